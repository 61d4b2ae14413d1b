-- tenant_fair - a tenant that floods the fleet leaves room for the others.
--
-- Prompt tokens are counted per tenant (the x-tenant-id header) over a sliding window that all event threads
-- share. While others are active too, a tenant above its share is confined to a part of the workers, the same ones
-- each time; everybody else chooses among all by least load, and so finds workers that the flood cannot reach.
-- Alone, a tenant may use everything.
--
-- With `shared` each tenant also has limits per minute that hold over all gateways of the fleet. A request takes what
-- it may cost (its prompt, and as many tokens as it asks for at most) before it is let in; what it did cost is known
-- at its end, and the difference goes back, or is taken then.

local params = {
  share = { type = "number", min = 0, max = 1, default = 0.5, doc = "Part of all tokens that is too much." },
  part = { type = "number", min = 0.01, max = 1, default = 0.5, doc = "Part of the workers it then has (at most 64)." },
  others = { type = "number", min = 0, max = 1, default = 0.01, doc = "Part of all tokens that makes others active." },
  window_s = { type = "number", min = 1, max = 3600, default = 10, doc = "Length of the window in seconds." },
  shared = { type = "boolean", default = false, doc = "The limits below hold, over the whole fleet." },
  requests_per_minute = { type = "integer", min = 0, max = 1e9, default = 0, doc = "Of a tenant; 0: no limit." },
  tokens_per_minute = { type = "integer", min = 0, max = 1e12, default = 0, doc = "Of a tenant; 0: no limit." },
  answer_tokens = { type = "integer", min = 0, max = 1e6, default = 256,
    doc = "What an answer is thought to cost where the client does not limit it." },
}

local MAX_PART = 64
local MINUTE_MS = 60000

-- ---- limits of the fleet ----

-- Events have 63 bytes of a tenant's name.
local function quota_of(kind, tenant)
  return kind .. "/" .. (tenant or ""):sub(1, 63)
end

local function refusal(what, wait_s)
  return { status = 429, retry_after = wait_s, reason = "this tenant has used its " .. what .. " of this minute" }
end

local function estimate_of(req, p)
  local answer = (req.max_tokens or p.answer_tokens) * req.n
  return math.max(1, math.min(req.prompt_tokens + answer, p.tokens_per_minute)) -- one that is larger takes all
end

-- nil and a message from take: the limit cannot be told now, and lets in.
local function admit(req, ctx)
  local p = ctx.params
  if not p.shared then
    return
  end
  local requests, tokens = quota_of("requests", req.tenant), quota_of("tokens", req.tenant)
  local window, of_window, is_in, wait_s
  if p.requests_per_minute > 0 then
    is_in, wait_s, window = baton.shared.take(requests, p.requests_per_minute, MINUTE_MS)
    if is_in == false then
      return refusal("requests", wait_s)
    end
  end
  if p.tokens_per_minute > 0 then
    local cost = estimate_of(req, p)
    is_in, wait_s, of_window = baton.shared.take(tokens, p.tokens_per_minute, MINUTE_MS, cost)
    if is_in == false then
      if window then
        baton.shared.give(requests, MINUTE_MS, 1, window)
      end
      return refusal("tokens", wait_s)
    end
    ctx.vars.kept = is_in and { of_window, cost } or nil
  end
end

-- What it did cost. Where nobody has worked: nothing; where the worker does not say: what was taken.
local function cost_of(event, taken)
  if not event.decode then
    return 0
  end
  local prompt = event.prompt_tokens or 0
  if event.output_tokens or event.kind ~= "finished" then
    return prompt + (event.output_tokens or 0)
  end
  return math.max(taken, prompt)
end

local function observe(events, ctx)
  local p = ctx.params
  if not p.shared or p.tokens_per_minute == 0 then
    return
  end
  for _, event in ipairs(events) do
    local kept = event.kept or {}
    local taken = kept[2] or 0
    local rest = taken - cost_of(event, taken)
    if rest ~= 0 then
      baton.shared.give(quota_of("tokens", event.tenant), MINUTE_MS, rest, kept[1])
    end
  end
end

-- ---- the part of the workers ----

local function is_confined(req, view, p)
  local tokens, pool = math.max(req.prompt_tokens, 1), "tenant_fair/" .. view.pool
  local all = baton.window(pool, tokens, p.window_s)
  local own = baton.window(pool .. "/" .. (req.tenant or ""), tokens, p.window_s)
  return req.tenant and own > all * p.share and all - own > all * p.others
end

local function room(list, tenant, p)
  if not tenant then
    return list
  end
  local count = math.ceil(#list * p.part)
  return baton.rendezvous(list, tenant, math.max(1, math.min(count, MAX_PART)))
end

local function plan(req, view, ctx)
  local p = ctx.params
  local tenant = is_confined(req, view, p) and req.tenant or nil
  local prefills = baton.pairable(view.prefill, view.decode)
  local prefill = baton.argmin(room(prefills, tenant, p), "prefill_tokens", "requests")
  if not prefill then
    local singles = room(view.hybrid, tenant, p)
    local idlest = baton.argmin_sum(singles, "tokens", 1, "requests", 64)
    return { kind = "single", worker = idlest }
  end
  local partners = room(baton.compatible(view.decode, prefill), tenant, p)
  return { prefill = prefill, decode = baton.argmin(partners, "decode_tokens", "requests") }
end

return {
  api = 2,
  name = "tenant_fair",
  version = "1.0",
  params = params,
  admit = admit,
  plan = plan,
  observe = observe,
}
