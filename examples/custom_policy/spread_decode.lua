-- spread_decode - the most free KV, but never the same decode worker twice in a row, over all event threads.
-- A counter that all threads share stands for the last one; a plan moves it on by 1 to #list - 1 places in one step.
local function plan(_, view)
  local list = baton.pairable(view.decode, view.prefill)
  if #list == 0 then
    return { kind = "single", worker = baton.argmax(view.hybrid, "kv_free") }
  end
  local counter, best, most = "spread_decode/" .. view.pool, 0, -1
  local last = baton.shared_local.get(counter)
  for step = 1, #list - 1 do
    local free = list[(last + step) % #list + 1].kv_free or 0
    if free > most then
      best, most = step, free
    end
  end
  local decode = list[baton.shared_local.add(counter, best) % #list + 1]
  local prefills = baton.compatible(view.prefill, decode)
  return { prefill = baton.argmax_sum(prefills, "kv_free", 1, "prefill_tokens", -1e-6), decode = decode }
end
return { api = 2, name = "spread_decode", version = "1", plan = plan }
