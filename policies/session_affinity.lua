-- session_affinity - a session stays on its workers, whatever their load.
--
-- There is no table of sessions: each session has an order of all workers of its own (rendezvous hashing over
-- their URLs), so every event thread, every replica and the next start of the gateway agree. When its worker goes,
-- a session moves to the next in its order, and back when the worker returns. Requests without a session go where
-- the load is least.
--
-- With `shared` a session's first request goes where the load is least, and the fleet remembers where that was: it
-- stays there also when workers come and go, through whichever gateway it comes. While the shared state is away,
-- sessions that this gateway knows stay where they are, and others go by their order.
--
-- With `priority` SGLang's engines are told that sessions' KV is worth that much: where they evict by priority
-- (--radix-eviction-policy priority) requests without a session lose their prefixes first, so a conversation's is
-- still there when its next turn comes. Among sessions the one unused for longest goes first.

local params = {
  shared = { type = "boolean", default = false, doc = "Sessions have a place that all gateways of the fleet know." },
  ttl_s = { type = "number", min = 1, max = 86400, default = 3600, doc = "Not seen for so long, a session has none." },
  refresh_s = { type = "number", min = 0, max = 3600, default = 10,
    doc = "How long a gateway goes by what it knows of a session before it asks again." },
  priority = { type = "integer", min = 0, max = 1000, default = 0, doc = "Of sessions' KV at SGLang; 0: not said." },
}

local function first_two(list, key)
  local order = baton.rendezvous(list, key, 2)
  return order[1], order[2]
end

local function sticky_pair(view, prefills, key)
  local prefill, other = first_two(prefills, key)
  local decode, spare = first_two(baton.compatible(view.decode, prefill), key)
  local answer = { prefill = prefill, decode = decode, alternates = {} }
  if spare then
    answer.alternates[1] = { prefill = prefill, decode = spare }
  end
  if other then
    local partner = baton.rendezvous(baton.compatible(view.decode, other), key)
    answer.alternates[#answer.alternates + 1] = { prefill = other, decode = partner }
  end
  return answer
end

local function sticky_single(list, key)
  local worker, spare = first_two(list, key)
  local alternates = spare and { { kind = "single", worker = spare } } or nil
  return { kind = "single", worker = worker, alternates = alternates }
end

local function least(view, prefills)
  local prefill = baton.argmin(prefills, "prefill_tokens", "requests")
  if not prefill then
    local idlest = baton.argmin_sum(view.hybrid, "tokens", 1, "requests", 64)
    return { kind = "single", worker = idlest }
  end
  local partners = baton.compatible(view.decode, prefill)
  return { prefill = prefill, decode = baton.argmin(partners, "decode_tokens", "requests") }
end

local function sticky(view, prefills, key)
  if #prefills > 0 then
    return sticky_pair(view, prefills, key)
  end
  return sticky_single(view.hybrid, key)
end

-- ---- places that the fleet knows: "prefill<newline>decode", or one worker's name ----

local function cell_of(session)
  return "s/" .. session:sub(1, 200)
end

local function named(list, name)
  for _, worker in ipairs(list) do
    if worker.name == name then
      return worker
    end
  end
end

-- The plan that the place says, if its workers are there and fit.
local function at_home(view, prefills, home)
  local cut = home:find("\n")
  if not cut then
    local worker = #prefills == 0 and named(view.hybrid, home)
    return worker and { kind = "single", worker = worker }
  end
  local prefill = named(prefills, home:sub(1, cut - 1))
  local decode = prefill and named(baton.compatible(view.decode, prefill), home:sub(cut + 1))
  return decode and { prefill = prefill, decode = decode }
end

local function place_of(answer)
  return answer.prefill and answer.prefill.name .. "\n" .. answer.decode.name or answer.worker.name
end

local function remember(answer, key, ttl_ms)
  local first = answer.worker or answer.decode
  if first then
    baton.shared.set(cell_of(key), place_of(answer), ttl_ms)
  end
end

local function plan_shared(view, prefills, key, ctx)
  local vars, ttl_ms = ctx.vars or {}, ctx.params.ttl_s * 1000
  local answer = vars.home and at_home(view, prefills, vars.home)
  if answer then
    if vars.is_asked then
      remember(answer, key, ttl_ms) -- it lives on
    end
    answer.alternates = { least(view, prefills) }
    return answer
  end
  answer = vars.is_away and sticky(view, prefills, key) or least(view, prefills)
  remember(answer, key, ttl_ms)
  return answer
end

-- ---- hooks ----

local function route(req, ctx)
  if not ctx.params.shared or not req.session then
    return
  end
  local name, vars = cell_of(req.session), ctx.vars
  local home, age = baton.shared.cached(name, ctx.params.refresh_s * 1000)
  if not age then
    local why
    home, why = baton.shared.get(name)
    vars.is_asked = not why
    vars.is_away = why ~= nil
    if why then
      home = baton.shared.cached(name)
    end
  end
  vars.home = home
end

local function plan(req, view, ctx)
  local prefills, key = baton.pairable(view.prefill, view.decode), req.session
  if not key then
    return least(view, prefills)
  end
  local answer = ctx.params.shared and plan_shared(view, prefills, key, ctx) or sticky(view, prefills, key)
  if ctx.params.priority > 0 then
    answer.hints = { priority = ctx.params.priority }
  end
  return answer
end

return { api = 2, name = "session_affinity", version = "1.0", params = params, route = route, plan = plan }
