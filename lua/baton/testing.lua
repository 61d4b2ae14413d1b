-- testing - what a policy's spec needs: workers made from a few words, many plans at once, counts of who was chosen; a
-- clock that the spec moves, a network that it answers for, counters that start at 0, traffic that was recorded.
--
-- The policy runs in its own closed VM with the real native functions and checks; only workers' loads and requests are
-- made up. Specs that use this run in an interpreter that has the module baton_testing (`baton policy test`,
-- spec/policy/host.c).

local core = require "baton_testing"

local testing = { seed = core.seed, forget = core.forget, names = core.names, api_names = core.api_names }

-- ---- policies ----

-- testing.policy(name or path[, params[, old]]): nil and a message when it is refused. old is what the generation
-- before handed over. Its methods answer what the gateway would get, with names of workers, or nil and a message:
--   policy:admit(req)    true (and the factors of limits that it gave), or {status, retry_after, reason}
--   policy:route(req)    {pool, class, key}; req has the class, and the key as its session, from then on
--   policy:enqueue(req)  {class, key, cost, weight, timeout_ms}, what it says of these
--   policy:plan(workers[, req])  {prefill, decode} or {worker}, with alternates, kind, ranks, scores
--   policy:plan_decode(workers, req, prefill[, attempt])  the plan with its decode worker, where plan left it open
--   policy:plan_prefill(workers, req, decode[, attempt])  the plan with its prefill worker, likewise
--   policy:fallback(workers, req, {scope, name, leg, status}, {tried name...})
--   policy:recompute(workers, req, {scope, name, made, left, replays}, {tried name...})  true or false: may it go on?
--   policy:observe{event...}, policy:tick([now], workers)  true
--   policy:handover(), policy:kept(req)  what its ctx.vars.kept holds, for the event that tells of it
-- Calls with the same table as req share ctx.vars. A req may have path, model, headers, stream, n, prompt (raw JSON),
-- prompt_bytes, prompt_tokens, session, tenant, class, identity ({ id, source, scopes = "inference gold",
-- claims = '{"plan":"pro"}' }).
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

-- ---- workers ----

-- testing.workers{prefill = 2, decode = 3, hybrid = 0}, or lists: {prefill = {{zone = "a"}, {labels = "gpu=h100"}}}.
-- Names are p1 p2 d1 d2 h1 ...; every worker may have name, url, connector, engine, version, zone, labels, dp_size,
-- tp_size, pp_size. workers:set(name, {decode_tokens = 5000, ...}), :bear(name, tokens, requests), :add{...},
-- :remove(name), :id(name), :name(id), :pool(name), :advice{...}.
function testing.workers(shape)
  local workers = core.workers()
  for _, role in ipairs { "prefill", "decode", "hybrid" } do
    local list = shape[role] or 0
    for i = 1, type(list) == "number" and list or #list do
      local worker = { name = role:sub(1, 1) .. i, role = role, url = ("http://%s-%d:8000"):format(role, i) }
      for key, value in pairs(type(list) == "table" and list[i] or {}) do
        worker[key] = value
      end
      workers:add(worker)
    end
  end
  return workers
end

-- testing.plan(policy, workers, req): the plan; a refusal fails the spec.
-- A plan that ran over its budget is asked once more: on a busy machine the core may have been taken away from it, and
-- a runaway does it again.
function testing.plan(policy, workers, req)
  local plan, why = policy:plan(workers, req)
  if not plan and why:find("ran over its budget", 1, true) then
    plan, why = policy:plan(workers, req)
  end
  return assert(plan, why)
end

-- testing.spread(policy, workers, times, make_req[, each]) -> {prefill = {name = count}, decode = ..., worker = ...}
-- make_req(i) gives the request, each(plan, i) is called after every plan (to put load on the chosen, for instance).
function testing.spread(policy, workers, times, make_req, each)
  local seen = { prefill = {}, decode = {}, worker = {} }
  for i = 1, times do
    local plan = testing.plan(policy, workers, make_req and make_req(i) or nil)
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

-- ---- the fleet's state ----

local store -- what baton.shared goes to
local Store = {}
Store.__index = Store

-- testing.store(): empties what policies share by baton.shared, and looks into it. Times are the fake clock's. Names
-- are the policy's own, whichever policy it is:
--   store:get(name), store:set(name, value)   a counter's or cell's value
--   store:fields(name)                        a table's
--   store:taken(name[, window_ms])            of a window that runs now
--   store:hold(name, ttl_ms)                  another gateway has the lease
--   store:fail(error)                         from now on every call comes to this (`store_unavailable`); nil: no more
--   store.calls                               what was asked for: { op =, name =, ... }, in order
function testing.store()
  core.reset_cached()
  store = setmetatable({ calls = {}, entries = {} }, Store)
  return store
end

-- "p:<policy>:<name>", "q:<policy>:<name>:<window_ms>"
local function name_of(key)
  local kind, name = key:match "^(%a):[^:]*:(.*)$"
  return kind == "q" and name:match "^(.*):%d+$" or name
end

local function entry_of(self, key)
  local entry = self.entries[key]
  if entry and entry.until_ms and entry.until_ms <= core.now() then
    self.entries[key] = nil
    return nil
  end
  return entry
end

local function named(self, name, kind)
  for key in pairs(self.entries) do
    if key:sub(1, 1) == kind and name_of(key) == name then
      return entry_of(self, key), key
    end
  end
  return nil
end

local function until_of(ttl_ms)
  return ttl_ms > 0 and core.now() + ttl_ms or nil
end

function Store:get(name)
  local entry = named(self, name, "p")
  return entry and entry.value
end

function Store:fields(name)
  local entry, out = named(self, name, "p"), {}
  for field, row in pairs(entry and entry.fields or {}) do
    if not row.until_ms or row.until_ms > core.now() then
      out[field] = row.value
    end
  end
  return out
end

function Store:taken(name, window_ms)
  for key, entry in pairs(self.entries) do
    local ms = tonumber(key:match ":(%d+)$")
    local is_it = key:sub(1, 1) == "q" and name_of(key) == name and (not window_ms or ms == window_ms)
    if is_it and entry.window == math.floor(core.now() / ms) then
      return entry.used
    end
  end
  return 0
end

-- What a spec sets may be there before the policy has asked: it waits for whoever asks for its name.
function Store:set(name, value)
  local _, key = named(self, name, "p")
  self.entries[key or "p::" .. name] = { kind = "text", value = tostring(value) }
end

function Store:hold(name, ttl_ms)
  local _, key = named(self, name, "p")
  local entry = { kind = "lease", owner = "another", until_ms = until_of(ttl_ms), fence = 1 }
  self.entries[key or "p::" .. name] = entry
end

function Store:fail(why)
  self.error = why
end

local ops = {}

function ops.add(self, op, entry)
  entry = entry or { kind = "text", value = "0", until_ms = until_of(op.ttl_ms) }
  entry.value = ("%d"):format(tonumber(entry.value) + op.amount)
  self.entries[op.key] = entry
  return { number = tonumber(entry.value) }
end

function ops.get(_, _, entry)
  return { text = entry and entry.value }
end

function ops.set(self, op, entry)
  if entry and op.if_absent then
    return { number = 0 }
  end
  self.entries[op.key] = { kind = "text", value = op.value, until_ms = until_of(op.ttl_ms) }
  return { number = 1 }
end

function ops.drop(self, op)
  self.entries[op.key] = nil
  return {}
end

function ops.lease(self, op, entry)
  if entry and entry.owner == "another" then
    return { number = 0, text = entry.owner }
  end
  local fence = entry and entry.fence or core.now()
  self.entries[op.key] = { kind = "lease", owner = "this", fence = fence, until_ms = until_of(op.ttl_ms) }
  return { number = fence }
end

function ops.release(self, op, entry)
  local is_ours = entry ~= nil and entry.owner == "this"
  if is_ours then
    self.entries[op.key] = nil
  end
  return { number = is_ours and 1 or 0 }
end

local function window_of(self, op)
  local window, entry = math.floor(core.now() / op.window_ms), self.entries[op.key]
  if not entry or entry.window ~= window then
    entry = { kind = "window", window = window, used = 0 }
    self.entries[op.key] = entry
  end
  return entry
end

function ops.take(self, op)
  local entry = window_of(self, op)
  local is_in = entry.used + op.amount <= op.limit
  if is_in then
    entry.used = entry.used + op.amount
  end
  local left_ms = (entry.window + 1) * op.window_ms - core.now()
  return { number = is_in and 1 or 0, window = entry.window, left_ms = left_ms }
end

function ops.give(self, op)
  local entry = window_of(self, op)
  if op.window == 0 or op.window == entry.window then
    entry.used = math.max(0, entry.used - op.amount)
  end
  return {}
end

function ops.put(self, op, entry)
  entry = entry or { kind = "table", fields = {} }
  entry.fields[op.field] = { value = op.value, until_ms = until_of(op.ttl_ms) }
  self.entries[op.key] = entry
  return {}
end

function ops.drop_field(_, op, entry)
  if entry and entry.fields then
    entry.fields[op.field] = nil
  end
  return {}
end

function ops.fields(self, op)
  return { fields = self:fields(name_of(op.key)) }
end

-- set takes a name over, drop removes it, whatever it was.
local KINDS = {
  add = "text", get = "text", lease = "lease", release = "lease", take = "window", give = "window", put = "table",
  drop_field = "table", fields = "table",
}

local function serve_store(op)
  local name = name_of(op.key)
  op.name = name
  store.calls[#store.calls + 1] = op
  if store.error then
    return nil, store.error
  end
  local given = store.entries["p::" .. name] -- of the spec
  if given and op.key:sub(1, 1) == "p" then
    store.entries["p::" .. name] = nil
    store.entries[op.key] = given
  end
  local entry = entry_of(store, op.key)
  if entry and KINDS[op.op] and entry.kind ~= KINDS[op.op] then
    return nil, "inval"
  end
  return ops[op.op](store, op, entry)
end

-- ---- the network ----

local network -- the one that answers

local function url_of(op)
  return ("http://%s%s%s"):format(op.host, op.port == 80 and "" or ":" .. op.port, op.target)
end

local function place_of(url)
  local host, port, target = url:match "^http://(%[[^%]]*%]):?(%d*)(.*)$"
  if not host then
    host, port, target = url:match "^http://([^:/?]+):?(%d*)(.*)$"
  end
  assert(host, "network: no URL like http://host:80/path: " .. url)
  return host:lower() .. ":" .. (port ~= "" and port or "80"), target
end

local function answer_for(op)
  local place = op.host:lower() .. ":" .. op.port
  local here = network and network.answers[place]
  local answer = here and (here[op.target] or here[""])
  if answer == nil then
    error(("testing.network: nothing answers %s %s"):format(op.method, url_of(op)), 0)
  end
  if type(answer) == "function" then
    return answer(op)
  end
  return answer
end

local function serve(op)
  if op.store then
    return serve_store(op.store)
  end
  if op.sleep_ms then
    pass(op.sleep_ms)
    return {}
  end
  op.url = url_of(op)
  if network then
    network.calls[#network.calls + 1] = op
  end
  local answer, why = answer_for(op)
  if not answer or answer.error then
    return nil, why or answer and answer.error or "connect"
  end
  local late = (answer.after_ms or 0) > op.timeout_ms
  pass(late and op.timeout_ms or answer.after_ms or 0)
  if late then
    return nil, "timeout"
  end
  return answer
end
core.serve(serve)
testing.store()

-- testing.network{["http://auth:80/check"] = {status = 200, body = "...", headers = {}}, ...} answers baton.http from
-- now on, and allows these hosts. A URL without a path is for all paths of that host. An answer may be a
-- function(op) that returns one, with op = {method, url, host, port, target, headers, body, timeout_ms}. {error =
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
  "prefill_tokens", "decode_tokens", "requests", "transfer_bytes", "running", "waiting", "kv_free", "ttft_ema_ms",
  "tpot_ema_ms", "age_ms",
}

local function add_row(workers, list, row)
  local loads = {}
  workers:add {
    name = row.name,
    role = row.role,
    connector = row.dialect or row.connector,
    engine = row.engine,
    version = row.version,
    dp_size = row.dp_size,
    tp_size = row.tp_size,
    pp_size = row.pp_size,
    zone = row.zone,
    labels = labels_text(row.labels),
    alone = list == "hybrid",
  }
  for _, field in ipairs(LOADS) do
    loads[field] = row[field]
  end
  workers:set(row.name, loads)
end

local function workers_of(record)
  local workers = core.workers()
  if record.pool then
    workers:pool(record.pool)
  end
  for _, list in ipairs { "prefill", "decode", "hybrid" } do -- single's are among them
    local rows = record.candidates[list] and record.candidates[list].rows or {}
    for _, row in ipairs(rows) do
      add_row(workers, list, row)
    end
  end
  return workers
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
  req.identity = record.identity and { id = record.identity } -- its claims are not in records
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

-- for req, workers, record in testing.records(path or text) do ... end: the sampled lines of a decision record file
-- (--record-file), each with the request as the policy saw it, less its prompt, and the workers that it could choose
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
        return req_of(record), workers_of(record), record
      end
    end
    return nil
  end
end

return testing
