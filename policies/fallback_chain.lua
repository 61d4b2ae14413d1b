-- fallback_chain - the first tier that has room; after a failure the next worker down the chain.
--
-- Label workers tier=primary, tier=spare, tier=last (the names are a parameter). Requests go to the least loaded
-- of the first tier that has a worker below max_requests; when all are full, of the first tier that has any.
-- Workers without the label come last. After a failed attempt the chain is walked again without what was tried;
-- nil, when nobody is left.

local params = {
  tiers = { type = "list", min = 1, max = 8, default = { "primary", "spare", "last" },
    doc = "Values of the label tier, in order." },
  max_requests = { type = "integer", min = 1, default = 256, doc = "A worker with so many requests is full." },
}

local function untried(list, tried)
  if not tried or #tried == 0 then
    return list
  end
  local was, left = {}, {}
  for _, id in ipairs(tried) do
    was[id] = true
  end
  for i = 1, #list do
    if not was[list[i].id] then
      left[#left + 1] = list[i]
    end
  end
  return left
end

local function members(list, tiers, i)
  if i > #tiers then
    return baton.without(list, "tier")
  end
  return baton.where(list, "tier", tiers[i])
end

-- The least loaded worker of the first tier with room, else of the first tier.
local function choose(list, field, p)
  local first
  for i = 1, #p.tiers + 1 do
    local best = baton.argmin(members(list, p.tiers, i), field, "requests")
    if best and best.requests < p.max_requests then
      return best
    end
    first = first or best
  end
  return first or baton.argmin(list, field, "requests")
end

local function walk(view, tried, p)
  local decodes = untried(view.decode, tried)
  local prefill = choose(baton.pairable(untried(view.prefill, tried), decodes), "prefill_tokens", p)
  if prefill then
    return { prefill = prefill, decode = choose(baton.compatible(decodes, prefill), "decode_tokens", p) }
  end
  local worker = choose(untried(view.hybrid, tried), "tokens", p)
  return worker and { kind = "single", worker = worker } or nil
end

local function plan(_, view, ctx)
  return walk(view, nil, ctx.params)
end

local function fallback(_, view, failure, ctx)
  if failure.scope == "request" then
    return nil
  end
  return walk(view, failure.tried, ctx.params)
end

return { api = 2, name = "fallback_chain", version = "1.0", params = params, plan = plan, fallback = fallback }
