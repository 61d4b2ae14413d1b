-- testing - what a policy's spec needs: fleets made from a few words, many plans at once, counts of who was chosen.
--
-- The policy runs in its own closed VM with the real kernels and checks; only workers' loads and requests are made up.
-- Specs that use this run in an interpreter that has the module baton_testing (spec/policy/host.c).

local core = require "baton_testing"

local testing = { policy = core.policy, seed = core.seed, forget = core.forget, names = core.names }

-- testing.load(name or path[, params]): like policy, but a mistake fails the spec.
function testing.load(name, params)
  return assert(core.policy(name, params))
end

-- testing.fleet{prefill = 2, decode = 3, hybrid = 0}, or lists: {prefill = {{zone = "a"}, {labels = "gpu=h100"}}}.
-- Names are p1 p2 d1 d2 h1 ...; every worker may have name, url, connector, zone, labels.
function testing.fleet(shape)
  local fleet = core.fleet()
  for _, role in ipairs { "prefill", "decode", "hybrid" } do
    local list = shape[role] or 0
    for i = 1, type(list) == "number" and list or #list do
      local worker = { name = role:sub(1, 1) .. i, role = role, url = ("http://%s-%d:8000"):format(role, i) }
      for key, value in pairs(type(list) == "table" and list[i] or {}) do
        worker[key] = value
      end
      fleet:add(worker)
    end
  end
  return fleet
end

-- testing.plan(policy, fleet, req): the plan; a refusal fails the spec.
function testing.plan(policy, fleet, req)
  return assert(policy:plan(fleet, req))
end

-- testing.spread(policy, fleet, times, make_req[, each]) -> {prefill = {name = count}, decode = ..., worker = ...}
-- make_req(i) gives the request, each(plan, i) is called after every plan (to put load on the chosen, for instance).
function testing.spread(policy, fleet, times, make_req, each)
  local seen = { prefill = {}, decode = {}, worker = {} }
  for i = 1, times do
    local plan = testing.plan(policy, fleet, make_req and make_req(i) or nil)
    for side, counts in pairs(seen) do
      if plan[side] then
        counts[plan[side]] = (counts[plan[side]] or 0) + 1
      end
    end
    if each then
      each(plan, i)
    end
  end
  return seen
end

-- testing.text(words, salt): a prompt of so many words as raw JSON, different for every salt from its first word on.
function testing.text(words, salt)
  local parts = {}
  for i = 1, words do
    parts[i] = ("w%s-%d"):format(salt or "", i)
  end
  return '"' .. table.concat(parts, " ") .. '"'
end

return testing
