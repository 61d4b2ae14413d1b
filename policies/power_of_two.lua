-- power_of_two - of two workers drawn at random, the less loaded one.
--
-- Nearly as good as looking at all of them, and gateways that do not know of each other's requests do not all run to
-- the same idle worker.

local function better(list, field)
  local a, b = baton.pick2(list)
  if a and b[field] < a[field] then
    return b
  end
  return a
end

local function plan(_, view)
  local prefill = better(baton.pairable(view.prefill, view.decode), "prefill_tokens")
  if not prefill then
    return { kind = "single", worker = better(view.hybrid, "tokens") } -- prompts that it is still at, too
  end
  return { prefill = prefill, decode = better(baton.compatible(view.decode, prefill), "decode_tokens") }
end

return { api = 2, name = "power_of_two", version = "1.0", plan = plan }
