-- testing - what a policy's spec needs: fleets made from a few words, many plans at once, counts of who was chosen; a
-- clock that the spec moves, a network that it answers for, counters that start at 0, traffic that was recorded.
--
-- The policy runs in its own closed VM with the real kernels and checks; only workers' loads and requests are made
-- up. Specs that use this run in an interpreter that has the module baton_testing (`baton policy test`,
-- spec/policy/host.c).

local core = require "baton_testing"

local testing = { seed = core.seed, forget = core.forget, names = core.names, api_names = core.api_names }

-- ---- policies ----

-- testing.policy(name or path[, params[, old]]): nil and a message when it is refused. old is what the generation
-- before handed over. Its methods answer what the gateway would get, with names of workers, or nil and a message:
--   policy:admit(req)    true, or {status, retry_after, reason}
--   policy:route(req)    {pool, class, key}; req has the class, and the key as its session, from then on
--   policy:plan(fleet[, req])  {prefill, decode} or {worker}, with alternates, kind, ranks, scores
--   policy:fallback(fleet, req, {scope, name, leg, status}, {tried name...})
--   policy:observe{event...}, policy:tick([now], fleet)  true
--   policy:handover()
-- Calls with the same table as req share ctx.vars. A req may have path, model, headers, stream, n, prompt (raw JSON),
-- prompt_bytes, prompt_tokens, session, tenant, class.
function testing.policy(name, params, old)
  return core.policy { name = name, params = params, old = old }
end

-- testing.load(name or path[, params[, old]]): like policy, but a mistake fails the spec.
function testing.load(name, params, old)
  return assert(testing.policy(name, params, old))
end

-- testing.load_text(text[, params[, old]]): a policy that is written in the spec.
function testing.load_text(text, params, old)
  return assert(core.policy { text = text, params = params, old = old })
end

-- ---- fleets ----

-- testing.fleet{prefill = 2, decode = 3, hybrid = 0}, or lists: {prefill = {{zone = "a"}, {labels = "gpu=h100"}}}.
-- Names are p1 p2 d1 d2 h1 ...; every worker may have name, url, connector, zone, labels. fleet:set(name,
-- {decode_tokens = 5000, ...}), :bear(name, tokens, requests), :add{...}, :remove(name), :id(name), :name(id),
-- :pool(name).
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

-- ---- time ----

local clock_ms -- nil: the real clock
local Clock = {}
Clock.__index = Clock

-- testing.clock([start_ms]): what policies see as time stands still at start_ms (1,000,000) from now on: tick's now,
-- at_ms of events, age_ms, take, window, ewma. Budgets keep the real clock. One for the process; clock:stop() gives
-- the real one back.
function testing.clock(start_ms)
  clock_ms = start_ms or 1000000
  core.set_now(clock_ms)
  return setmetatable({}, Clock)
end

function Clock.advance(_, ms)
  assert(ms >= 0, "time goes forward")
  clock_ms = assert(clock_ms, "the clock was stopped") + ms
  core.set_now(clock_ms)
end

function Clock.now()
  return core.now()
end

function Clock.stop()
  clock_ms = nil
  core.set_now(nil)
end

local function pass(ms)
  if clock_ms then
    Clock.advance(nil, ms)
  end
end

-- ---- shared state ----

-- testing.shared(): empties what policies share in the process (baton.shared_local, take, window, ewma) and looks
-- into it: shared.name and shared["a name"] are the counters' values, shared.name = 3 sets one.
function testing.shared()
  core.reset_shared()
  return setmetatable({}, {
    __index = function(_, name)
      return core.shared()[name] or 0
    end,
    __newindex = function(_, name, value)
      core.set_shared(name, value)
    end,
  })
end

-- ---- the network ----

local network -- the one that answers

local function url_of(want)
  return ("http://%s%s%s"):format(want.host, want.port == 80 and "" or ":" .. want.port, want.target)
end

local function place_of(url)
  local host, port, target = url:match "^http://(%[[^%]]*%]):?(%d*)(.*)$"
  if not host then
    host, port, target = url:match "^http://([^:/?]+):?(%d*)(.*)$"
  end
  assert(host, "network: no URL like http://host:80/path: " .. url)
  return host:lower() .. ":" .. (port ~= "" and port or "80"), target
end

local function answer_for(want)
  local place = want.host:lower() .. ":" .. want.port
  local here = network and network.answers[place]
  local answer = here and (here[want.target] or here[""])
  if answer == nil then
    error(("testing.network: nothing answers %s %s"):format(want.method, url_of(want)), 0)
  end
  if type(answer) == "function" then
    return answer(want)
  end
  return answer
end

local function serve(want)
  if want.sleep_ms then
    pass(want.sleep_ms)
    return {}
  end
  want.url = url_of(want)
  if network then
    network.calls[#network.calls + 1] = want
  end
  local answer, why = answer_for(want)
  if not answer or answer.error then
    return nil, why or answer and answer.error or "connect"
  end
  local late = (answer.after_ms or 0) > want.timeout_ms
  pass(late and want.timeout_ms or answer.after_ms or 0)
  if late then
    return nil, "timeout"
  end
  return answer
end
core.serve(serve)

-- testing.network{["http://auth:80/check"] = {status = 200, body = "...", headers = {}}, ...} answers baton.http from
-- now on, and allows these hosts. A URL without a path is for all paths of that host. An answer may be a
-- function(want) that returns one, with want = {method, url, host, port, target, headers, body, timeout_ms}. {error =
-- "connect"} is no answer, {after_ms = 300, ...} one that takes so long on the fake clock. baton.sleep moves the fake
-- clock, and returns at once. A call that nothing answers fails the spec. network.calls lists the wants.
function testing.network(answers)
  local hosts = {}
  network = { calls = {}, answers = {} }
  for url, answer in pairs(answers) do
    local place, target = place_of(url)
    if not network.answers[place] then
      hosts[#hosts + 1] = place
      network.answers[place] = {}
    end
    network.answers[place][target] = answer
  end
  core.allow_hosts(hosts)
  return network
end

-- ---- recorded traffic ----

local function labels_text(labels)
  local words = {}
  for key, value in pairs(labels or {}) do
    words[#words + 1] = value == true and key or ("%s=%s"):format(key, value)
  end
  table.sort(words)
  return #words > 0 and table.concat(words, ",") or nil
end

local LOADS = {
  "prefill_tokens", "decode_tokens", "requests", "running", "waiting", "kv_free", "ttft_ema_ms", "tpot_ema_ms",
  "age_ms",
}

local function add_row(fleet, list, row)
  local loads = {}
  fleet:add {
    name = row.name,
    role = row.role,
    connector = row.dialect,
    zone = row.zone,
    labels = labels_text(row.labels),
    alone = list == "single",
  }
  for _, field in ipairs(LOADS) do
    loads[field] = row[field]
  end
  fleet:set(row.name, loads)
end

local function fleet_of(record)
  local fleet = core.fleet()
  if record.pool then
    fleet:pool(record.pool)
  end
  for _, list in ipairs { "prefill", "decode", "single" } do
    local rows = record.candidates[list] and record.candidates[list].rows or {}
    for _, row in ipairs(rows) do
      add_row(fleet, list, row)
    end
  end
  return fleet
end

local REQUEST = {
  "path", "model", "stream", "n", "prompt_tokens", "prompt_bytes", "session", "tenant", "class", "headers",
}

local function req_of(record)
  local req = {}
  for _, field in ipairs(REQUEST) do
    req[field] = record[field]
  end
  req.session = record.key or record.session
  return req
end

local function is_path(source)
  return not source:find "^%s*{" and source ~= ""
end

local function lines_of(source)
  if is_path(source) then
    return io.lines(source)
  end
  return source:gmatch "[^\n]+"
end

-- for req, fleet, record in testing.records(path or text) do ... end: the sampled lines of a decision record file
-- (--record-file), each with the request as the policy saw it, less its prompt, and the fleet that it could choose
-- from. record is the whole line: record.plan.prefill and so on are the names that were chosen then.
function testing.records(source)
  local json = require "dkjson"
  local next_line, number = lines_of(source), 0
  return function()
    for line in next_line do
      number = number + 1
      local record, _, why = json.decode(line)
      if type(record) ~= "table" then
        error(("records: line %d is no record: %s"):format(number, why or "no object"), 2)
      end
      if record.candidates then
        return req_of(record), fleet_of(record), record
      end
    end
    return nil
  end
end

return testing
