-- canary - a few percent of the sessions on the workers that run something new.
--
-- Label the new workers track=canary. A session (else a tenant) is on one side always: its hash decides, so
-- raising the percentage only adds sessions. Requests without either are drawn. Within a side the least loaded
-- serves; a side that has no usable pair gives way to the other.

local params = {
  percent = { type = "number", min = 0, max = 100, default = 5, doc = "Percent of the sessions that get the canary." },
  label = { type = "string", min = 1, default = "track", doc = "The label that says `canary`." },
}

local HASH_SEED = 20 -- not the places of consistent_hash: being a canary must not depend on the worker
local PARTS = 1000000

local function is_canary(req, p)
  local key = req.session or req.tenant
  local draw = key and baton.hash(key, HASH_SEED) % PARTS / PARTS or baton.random()
  return draw * 100 < p.percent
end

local function side(list, canary, label)
  if canary then
    return baton.where(list, label, "canary")
  end
  return baton.without(list, label, "canary")
end

local function choose(prefills, decodes, singles)
  local prefill = baton.argmin(baton.pairable(prefills, decodes), "prefill_tokens", "requests")
  if prefill then
    return { prefill = prefill, decode = baton.argmin(baton.compatible(decodes, prefill), "decode_tokens", "requests") }
  end
  local worker = baton.argmin(singles, "tokens", "requests")
  return worker and { kind = "single", worker = worker } or nil
end

local function choose_side(view, canary, label)
  return choose(side(view.prefill, canary, label), side(view.decode, canary, label), side(view.hybrid, canary, label))
end

local function plan(req, view, ctx)
  local canary, label = is_canary(req, ctx.params), ctx.params.label
  return choose_side(view, canary, label)
    or choose_side(view, not canary, label)
    or choose(view.prefill, view.decode, view.hybrid)
end

return { api = 2, name = "canary", version = "1.0", params = params, plan = plan }
