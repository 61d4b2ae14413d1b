-- random - any worker, and any partner for it.

local function any(list)
  return #list > 0 and list[baton.random(#list)] or nil
end

local function plan(_, view)
  local prefill = any(baton.pairable(view.prefill, view.decode))
  if not prefill then
    return { kind = "single", worker = any(view.hybrid) }
  end
  return { prefill = prefill, decode = any(baton.compatible(view.decode, prefill)) }
end

return { api = 2, name = "random", version = "1.0", plan = plan }
