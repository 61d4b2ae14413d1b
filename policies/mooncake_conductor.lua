-- mooncake_conductor - the pair choice of Mooncake's Conductor (FAST'25, arXiv 2407.00079, algorithm 1), to compare
-- with.
--
-- Prefill: the least predicted TTFT = queue + prefill of what is new there, both from a line of the engine's own
-- times. Where another worker has balancing times as much of the prompt, its blocks would be fetched, so only the
-- rest is new, and the fetch costs. Decode: the least tokens, which is the least time between tokens. If the TTFT
-- would be above ttft_ms or the time between tokens is above tbt_ms, the request is refused at once (503): no prefill
-- is wasted.
-- What differs: Baton moves no KV between prefill workers. A hot spot's replica is made by computing it, and that the
-- worker should have fetched it is a hint in the log. Decode's load is today's, not that at prefill's end.
-- The line's defaults are those of Dynamo's mocker (16.5 ms a step, 169 ms for 8,192 tokens); set your own engine's.

local params = {
  ttft_ms = { type = "number", min = 0, max = 3600000, default = 30000, doc = "The paper's cap." },
  tbt_ms = { type = "number", min = 0, max = 60000, default = 100,
    doc = "Likewise, of a decode worker's time per token." },
  balancing = { type = "number", min = 1, max = 1000, default = 4, doc = "kvcache_balancing_threshold." },
  overhead_ms = { type = "number", min = 0, max = 60000, default = 16.5, doc = "Of a prefill." },
  token_ms = { type = "number", min = 0, max = 1000, default = 0.0206, doc = "Of a token in it." },
  fetch_token_ms = { type = "number", min = 0, max = 1000, default = 0.00205, doc = "Of moving a token's KV." },
}

local BLOCK = 64

-- What it would take until the first token, and whether most of the prefix is elsewhere.
local function ttft(worker, req, best, p)
  local own, most = worker.prefix_blocks * BLOCK, best and best.prefix_blocks * BLOCK or 0
  local fetches = most > own * p.balancing and most > BLOCK
  local new = math.max(req.prompt_tokens - own, 1)
  local ms = worker.prefill_tokens * p.token_ms + p.overhead_ms + new * p.token_ms
  return ms, fetches and (most - own) * p.fetch_token_ms
end

local function soonest(list, req, p)
  local best = baton.prefix_match(list, req, BLOCK)
  local chosen, least, ties, fetch_ms = nil, math.huge, 0, nil
  for _, worker in ipairs(list) do
    local ms, fetch = ttft(worker, req, best, p)
    baton.note_score(worker, ms)
    ties = ms < least and 1 or ms == least and ties + 1 or ties
    if ms < least or ms == least and baton.random(ties) == 1 then
      chosen, least, fetch_ms = worker, ms, fetch
    end
  end
  if fetch_ms then
    local hint = "%s should fetch this prompt's beginning from %s: %.0f ms"
    baton.log("debug", hint:format(chosen.name, best.name, fetch_ms))
  end
  return chosen, least
end

local function plan(req, view, ctx)
  local p = ctx.params
  local prefill, ms = soonest(baton.pairable(view.prefill, view.decode), req, p)
  local decode = prefill and baton.argmin(baton.compatible(view.decode, prefill), "decode_tokens", "requests")
  local worker = nil
  if not prefill then
    worker, ms = soonest(view.hybrid, req, p)
  end
  local answers = decode or worker
  if not answers or ms > p.ttft_ms or (answers.tpot_ema_ms or 0) > p.tbt_ms then
    return nil
  end
  baton.prefix_insert(req, prefill or worker, BLOCK)
  return prefill and { prefill = prefill, decode = decode } or { kind = "single", worker = worker }
end

return { api = 2, name = "mooncake_conductor", version = "1.0", params = params, plan = plan }
