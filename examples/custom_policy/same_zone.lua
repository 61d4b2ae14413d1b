-- same_zone - KV stays in the zone where it was made, as long as the zone has a decode worker.
local function plan(_, view)
  local prefill = baton.argmin(baton.pairable(view.prefill, view.decode), "prefill_tokens", "requests")
  local near, all = {}, baton.compatible(view.decode, prefill)
  for _, worker in ipairs(all) do
    near[#near + 1] = worker.zone == prefill.zone and worker or nil
  end
  return { prefill = prefill, decode = baton.argmin(#near > 0 and near or all, "decode_tokens") }
end
return { api = 2, name = "same_zone", version = "1", plan = plan }
