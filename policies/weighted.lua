-- weighted - workers in turn, each as often as its weight says.
--
-- The weight is the worker's label of that name (labels = "weight=3"; none = 1, 0 = never), the order is smooth:
-- with 5, 1 and 1 it is a a b a c a a. Each event thread turns a wheel of its own, so counts are exact to within a
-- turn per thread.

local params = {
  label = { type = "string", min = 1, default = "weight", doc = "The label that holds a worker's weight." },
}

-- One wheel a list: decode workers of another dialect are another list.
local function wheel_names(state, pool)
  local names = state[pool]
  if not names then
    names = { prefill = pool .. "/prefill", single = pool .. "/single", decode = {} }
    state[pool] = names
  end
  return names
end

local function decode_wheel(names, pool, dialect)
  local name = names.decode[dialect]
  if not name then
    name = pool .. "/decode/" .. dialect
    names.decode[dialect] = name
  end
  return name
end

local function plan(_, view, ctx)
  local names = wheel_names(ctx.state, view.pool)
  local label = ctx.params.label
  local prefill = baton.smooth(baton.pairable(view.prefill, view.decode), names.prefill, label)
  if not prefill then
    return { kind = "single", worker = baton.smooth(view.hybrid, names.single, label) }
  end
  local wheel = decode_wheel(names, view.pool, prefill.dialects[1] or "")
  return { prefill = prefill, decode = baton.smooth(baton.compatible(view.decode, prefill), wheel, label) }
end

return { api = 2, name = "weighted", version = "1.0", params = params, plan = plan }
