-- least_load - the least loaded prefill worker, and the least loaded decode worker that can be its partner.
--
-- Load is what gateways have put on a worker, this one and those that share its store: prompt tokens not yet prefilled,
-- tokens being decoded; of a worker that does both, the two, and each request as 64 more. Requests break a tie; among
-- equals the choice is random, so that idle workers share evenly. With --warm-pairs, pairs that are warm go first.

local function plan(_, view)
  local prefills = baton.warm(baton.pairable(view.prefill, view.decode))
  local prefill = baton.argmin(prefills, "prefill_tokens", "requests")
  if not prefill then
    local idlest = baton.argmin_sum(view.hybrid, "tokens", 1, "requests", 64)
    return { kind = "single", worker = idlest }
  end
  local partners = baton.warm(baton.compatible(view.decode, prefill), prefill)
  return { prefill = prefill, decode = baton.argmin(partners, "decode_tokens", "requests") }
end

return { api = 2, name = "least_load", version = "1.0", plan = plan }
