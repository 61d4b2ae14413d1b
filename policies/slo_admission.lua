-- slo_admission - who would come too late is told at once, before any prompt is computed.
--
-- The time to the first token is predicted from the tokens that wait before it, the time per token from the requests
-- that run beside it, on the workers that least load would take. Both are lines through what was observed, old
-- observations fading: so they hold the fleet's own speed, and no profile is needed. A request that would miss
-- its target because of others (429, or 503) gets a Retry-After of the time that is missing; one that would miss it
-- alone is let in, because waiting would not help it. So no prefill is wasted on what would be too late (early
-- rejection of Mooncake, arXiv 2407.00079; decode's load is taken as it is now, not as it will be when prefill ends).
-- Let in, least load chooses.
--
-- Targets: MindIE publishes 1,000 and 50 ms (slo_ttft, slo_tpot), Dynamo's planner 500 and 50. A client's own stand in
-- x-llm-d-slo-ttft-ms and x-llm-d-slo-tpot-ms.
-- Each event thread predicts for itself; of what the others let in it hears at the next tick, a second later.

local params = {
  ttft_ms = { type = "number", min = 0, max = 3600000, default = 1000,
    doc = "Target of the time to the first token; 0: none." },
  tpot_ms = { type = "number", min = 0, max = 60000, default = 50, doc = "Target of the time per token; 0: none." },
  tolerance = { type = "number", min = 1, max = 100, default = 1,
    doc = "A target counts as missed above so many times itself." },
  status = { type = "integer", enum = { 429, 503 }, default = 429, doc = "The answer's status." },
  samples = { type = "integer", min = 2, max = 10000, default = 20,
    doc = "Observations before anybody is refused." },
  fade = { type = "number", min = 0.5, max = 1, default = 0.99,
    doc = "Weight of an observation when the next one comes." },
}

local MAX_RETRY_S = 60

-- ---- lines ----

local function line()
  return { seen = 0, n = 0, x = 0, y = 0, xx = 0, xy = 0 }
end

local function learn(l, x, y, fade)
  l.seen = l.seen + 1
  l.n = l.n * fade + 1
  l.x, l.y = l.x * fade + x, l.y * fade + y
  l.xx, l.xy = l.xx * fade + x * x, l.xy * fade + x * y
end

-- More load never makes it faster: a slope below 0 is noise.
local function predict(l, x)
  local spread = l.xx - l.x * l.x / l.n
  local slope = spread > 1e-9 * l.xx and math.max((l.xy - l.x * l.y / l.n) / spread, 0) or 0
  return math.max((l.y - slope * l.x) / l.n + slope * x, 0)
end

-- ---- what is known ----

local function start(_, old)
  return {
    ttft = old and old.ttft or line(), tpot = old and old.tpot or line(),
    tokens = 0, requests = 0, -- ahead of the next one, at the last tick
    prefills = 1, decodes = 1, -- workers that share what is let in
    new_tokens = 0, new_requests = 0, -- let in since
  }
end

local function handover(ctx)
  return { ttft = ctx.state.ttft, tpot = ctx.state.tpot }
end

local function tick(_, view, ctx)
  local s = ctx.state
  local prefills = baton.pairable(view.prefill, view.decode)
  local decodes = #prefills > 0 and view.decode or view.hybrid
  prefills = #prefills > 0 and prefills or view.hybrid
  s.tokens, s.requests = baton.range(prefills, "prefill_tokens") or 0, baton.range(decodes, "requests") or 0
  s.prefills, s.decodes = math.max(#prefills, 1), math.max(#decodes, 1)
  s.new_tokens, s.new_requests = 0, 0
end

local function observe(events, ctx)
  local s, fade = ctx.state, ctx.params.fade
  for _, event in ipairs(events) do
    local kept = event.kept
    if kept and event.kind == "finished" and event.ttft_ms then
      learn(s.ttft, kept[1], event.ttft_ms, fade)
      local gaps = (event.output_tokens or 0) - 1
      if gaps > 0 and event.total_ms then
        learn(s.tpot, kept[2], (event.total_ms - event.ttft_ms) / gaps, fade)
      end
    end
  end
end

-- ---- who comes in ----

local function target_of(req, name, set)
  return tonumber(req.headers[name]) or set
end

-- How many ms too late it would be because of what is ahead; nil: it is not, or nobody can say.
local function lateness(l, ahead, own, target, p)
  if target <= 0 or l.seen < p.samples then
    return nil
  end
  local limit, expected = target * p.tolerance, predict(l, ahead + own)
  return expected > limit and predict(l, own) <= limit and expected - limit or nil
end

local function refusal(what, late_ms, p)
  return { status = p.status, retry_after = math.min(math.max(math.ceil(late_ms / 1000), 1), MAX_RETRY_S),
    reason = ("the %s would miss its target by %.0f ms"):format(what, late_ms) }
end

local function admit(req, ctx)
  local s, p = ctx.state, ctx.params
  local tokens, requests = s.tokens + s.new_tokens / s.prefills, s.requests + s.new_requests / s.decodes
  local own = math.max(req.prompt_tokens, 1) * req.n
  local late = lateness(s.ttft, tokens, own, target_of(req, "x-llm-d-slo-ttft-ms", p.ttft_ms), p)
  if late then
    return refusal("first token", late, p)
  end
  late = lateness(s.tpot, requests, req.n, target_of(req, "x-llm-d-slo-tpot-ms", p.tpot_ms), p)
  if late then
    return refusal("time per token", late, p)
  end
  s.new_tokens, s.new_requests = s.new_tokens + own, s.new_requests + req.n
  ctx.vars.kept = { tokens + own, requests + req.n }
end

local function plan(_, view)
  local prefill = baton.argmin(baton.pairable(view.prefill, view.decode), "prefill_tokens", "requests")
  if not prefill then
    return { kind = "single", worker = baton.argmin(view.hybrid, "prefill_tokens", "requests") }
  end
  local partners = baton.compatible(view.decode, prefill)
  return { prefill = prefill, decode = baton.argmin(partners, "requests", "decode_tokens") }
end

return {
  api = 2,
  name = "slo_admission",
  version = "1.0",
  params = params,
  start = start,
  handover = handover,
  tick = tick,
  observe = observe,
  admit = admit,
  plan = plan,
}
