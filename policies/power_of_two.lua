-- power_of_two - of two workers drawn at random, the less loaded one.
--
-- Nearly as good as looking at all of them, and gateways that do not know of each other's requests do not all run to
-- the same idle worker.

local function better(list, load)
  local a, b = baton.pick2(list)
  if a and load(b) < load(a) then
    return b
  end
  return a
end

local function prefilling(worker)
  return worker.prefill_tokens
end

local function decoding(worker)
  return worker.decode_tokens
end

-- A worker that does both: prompts that it is still at count as well as what it decodes.
local function both(worker)
  return worker.prefill_tokens + worker.decode_tokens
end

local function plan(_, view)
  local prefill = better(baton.pairable(view.prefill, view.decode), prefilling)
  if not prefill then
    return { kind = "single", worker = better(view.hybrid, both) }
  end
  return { prefill = prefill, decode = better(baton.compatible(view.decode, prefill), decoding) }
end

return { api = 2, name = "power_of_two", version = "1.0", plan = plan }
