-- zone_aware - KV stays in its zone, unless that zone is much busier than the rest.
--
-- Prefill is taken near the gateway (the parameter zone; without it anywhere), decode in prefill's zone, each the
-- least loaded there. When even that one has more than spill x the mean of all zones plus slack tokens, all zones
-- are candidates.

local params = {
  zone = { type = "string", min = 1, doc = "The gateway's own zone." },
  spill = { type = "number", min = 1, max = 100, default = 2, doc = "How much busier than the mean a zone may be." },
  slack = { type = "integer", min = 0, default = 4096, doc = "Tokens of load that never count as busy." },
}

local function near(list, zone, field, p)
  if not zone then
    return list
  end
  local close = baton.where(list, "zone", zone)
  if #close == 0 or #close == #list then
    return list
  end
  local least = baton.range(close, field)
  local _, _, mean = baton.range(list, field)
  return least > mean * p.spill + p.slack and list or close
end

local function plan(_, view, ctx)
  local p = ctx.params
  local prefills = near(baton.pairable(view.prefill, view.decode), p.zone, "prefill_tokens", p)
  local prefill = baton.argmin(prefills, "prefill_tokens", "requests")
  if not prefill then
    local singles = near(view.hybrid, p.zone, "tokens", p)
    return { kind = "single", worker = baton.argmin(singles, "tokens", "requests") }
  end
  local partners = near(baton.compatible(view.decode, prefill), prefill.zone, "decode_tokens", p)
  return { prefill = prefill, decode = baton.argmin(partners, "decode_tokens", "requests") }
end

return { api = 2, name = "zone_aware", version = "1.0", params = params, plan = plan }
