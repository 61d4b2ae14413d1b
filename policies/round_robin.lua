-- round_robin - workers in turn.
--
-- The turns are counted in baton.shared_local, which all event threads of the process share: the distribution is
-- exactly even however connections fall on threads. Each pool and each side has a counter of its own.

local function counter_names(pool)
  local prefix = "round_robin/" .. pool .. "/"
  return { prefill = prefix .. "prefill", decode = prefix .. "decode", single = prefix .. "single" }
end

local function next_of(list, counter)
  if #list == 0 then
    return nil
  end
  return list[(baton.shared_local.add(counter) - 1) % #list + 1]
end

local function plan(_, view, ctx)
  local names = ctx.state[view.pool]
  if not names then
    names = counter_names(view.pool)
    ctx.state[view.pool] = names
  end
  local prefill = next_of(baton.pairable(view.prefill, view.decode), names.prefill)
  if not prefill then
    return { kind = "single", worker = next_of(view.hybrid, names.single) }
  end
  return { prefill = prefill, decode = next_of(baton.compatible(view.decode, prefill), names.decode) }
end

return { api = 2, name = "round_robin", version = "1.0", plan = plan }
