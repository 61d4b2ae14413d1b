-- session_affinity - a session stays on its workers, whatever their load.
--
-- There is no table of sessions: each session has an order of all workers of its own (rendezvous hashing over
-- their URLs), so every event thread, every replica and the next start of the gateway agree. When its worker goes,
-- a session moves to the next in its order, and back when the worker returns. Requests without a session go where
-- the load is least.

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
    return { kind = "single", worker = baton.argmin(view.single, "decode_tokens", "requests") }
  end
  local partners = baton.compatible(view.decode, prefill)
  return { prefill = prefill, decode = baton.argmin(partners, "decode_tokens", "requests") }
end

local function plan(req, view)
  local prefills, key = baton.pairable(view.prefill, view.decode), req.session
  if not key then
    return least(view, prefills)
  end
  if #prefills > 0 then
    return sticky_pair(view, prefills, key)
  end
  return sticky_single(view.single, key)
end

return { api = 1, name = "session_affinity", version = "1.0", plan = plan }
