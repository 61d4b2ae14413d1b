-- fleet.lua - one simulator process with workers, one gateway before it, and looks into both.
--
--   local f = fleet.start({ workers = { "role=prefill", "role=decode" }, flags = { "--vllm-pd-disaggregation" } })
--   local answer = f:post("/v1/completions", body)
--   local legs = f:legs()          -- what the workers got since the last f:mark()
--   f:stop()
--
-- workers: words of baton-sim --worker. They become --prefill, --decode and --worker-urls of the gateway, unless
-- `config` (a function of the workers by name) returns the text of a baton.lua.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local fleet = {}

local Fleet = {}
Fleet.__index = Fleet

local INFERENCE = {
  ["/v1/completions"] = true,
  ["/v1/chat/completions"] = true,
  ["/v1/responses"] = true,
  ["/v1/messages"] = true,
  ["/generate"] = true,
  ["/inference/v1/generate"] = true,
  ["/v1/embeddings"] = true,
  ["/rerank"] = true,
  ["/v1/rerank"] = true,
  ["/classify"] = true,
}

function fleet.binary(variable, name)
  return os.getenv(variable) or ("build/release/" .. name)
end

local function wait_for_file(process, path, seconds)
  return eventually(function()
    local text = proc.read(path)
    if text then
      return text
    end
    if not process:is_alive() then
      return error("UNABLE: " .. process.name .. " has ended: " .. process:stderr())
    end
  end, seconds or 10, process.name .. " writes its ready file")
end

-- ---- the simulator ----

local Sim = {}
Sim.__index = Sim

local function parse_workers(text)
  local list, by_name = {}, {}
  for name, role, url, second in text:gmatch("worker (%S+) (%S+) (%S+) bootstrap=(%d+)") do
    local w = { name = name, role = role, url = url, port = tonumber(url:match(":(%d+)$")), second = tonumber(second) }
    list[#list + 1] = w
    by_name[name] = w
  end
  return list, by_name
end

-- flags: more words of baton-sim.
function fleet.start_sim(workers, flags)
  local ready = proc.path("sim.ready")
  local argv = { fleet.binary("BATON_SIM_BIN", "baton-sim"), "--ready-file", ready, "--record", "4000" }
  for _, words in ipairs(workers) do
    argv[#argv + 1] = "--worker"
    argv[#argv + 1] = words
  end
  proc.append(argv, flags)
  local process = proc.start(argv, { name = "sim" })
  local list, by_name = parse_workers(wait_for_file(process, ready))
  return setmetatable({ process = process, list = list, workers = by_name }, Sim)
end

function Sim:state(name)
  return json.decode(http.get(self.workers[name].port, "/sim/state").body)
end

-- The next matching request of this worker goes wrong so: { kind =, path =, times =, after_chunks =, status =, ms = }.
function Sim:fault(name, fault)
  local answer = http.post(self.workers[name].port, "/sim/fault", json.encode(fault))
  assert(answer.status == 200, answer.body)
end

function Sim:reset(name)
  for _, w in ipairs(self.list) do
    if w.name ~= name then
      return http.post(w.port, "/sim/reset?worker=" .. name, "{}")
    end
  end
end

local function read_entry(raw)
  local e = json.decode(raw)
  e.headers, e.header_list = {}, {}
  for i, m in ipairs(json.members(json.raw(raw, "headers"))) do
    local value = json.decode("[" .. m.raw .. "]")[1]
    e.header_list[i] = { m.key, value }
    e.headers[m.key] = e.headers[m.key] and e.headers[m.key] .. ", " .. value or value
  end
  e.path = e.target:match("^[^?]*")
  return e
end

-- What came to a worker after request number `since`: { number, method, target, path, headers (lower case), body, ...
-- }.
function Sim:requests(name, since)
  local text = http.get(self.workers[name].port, "/sim/requests?since=" .. (since or 0)).body
  local out = {}
  for i, raw in ipairs(json.elements(json.raw(text, "requests"))) do
    out[i] = read_entry(raw)
    out[i].worker = name
  end
  return out, tonumber(json.raw(text, "next")) - 1
end

-- ---- the gateway ----

local function worker_flags(sim)
  local argv, urls = {}, {}
  for _, w in ipairs(sim.list) do
    if w.role == "prefill" then
      for _, word in ipairs({ "--prefill", w.url, w.second > 0 and w.second or "none" }) do
        argv[#argv + 1] = word
      end
    elseif w.role == "decode" or w.role == "encode" then
      argv[#argv + 1] = "--" .. w.role
      argv[#argv + 1] = w.url
    else
      urls[#urls + 1] = w.url
    end
  end
  if #urls > 0 then
    argv[#argv + 1] = "--worker-urls"
    proc.append(argv, urls)
  end
  return argv
end

local QUICK = {
  "--worker-startup-check-interval", "0.05", "--health-check-interval-secs", "0.5", "--load-interval-secs", "0.5",
}

-- argv of the gateway on free ports, behind the words of what it shall run under; ready file's path.
local function gateway_argv(words, under, program)
  local ready = proc.path("gateway.ready")
  local argv = {}
  local own = {
    program or fleet.binary("BATON_BIN", "baton"), "run", "--port", "0", "--admin-port", "0", "--loops", "2",
      "--ready-file", ready,
  }
  for _, list in ipairs({ under or {}, own, QUICK, words }) do
    proc.append(argv, list)
  end
  return argv, ready
end

-- A gateway with these words, before a simulator or none: its process, ports, and all that its ready file says.
-- opts: of proc.start; under (words of a program that runs it), program (another than the one built), seconds (until
-- it is up).
function fleet.start_gateway(words, opts)
  opts = opts or {}
  local argv, ready = gateway_argv(words, opts.under, opts.program)
  opts.name = "baton"
  local process = proc.start(argv, opts)
  local told = json.decode(wait_for_file(process, ready, opts.seconds))
  return process, told.port, told.admin_port, told
end

-- Ready, and every worker is up: one that is not would leave the first request to the others alone.
function fleet.wait_up(port, admin_port)
  eventually(function()
    local answer, told = http.get(port, "/readiness"), http.get(admin_port, "/workers").body
    return answer.status == 200 and not told:find('"health":"unknown"', 1, true)
      and not told:find('"health":"down"', 1, true), answer.body .. told
  end, 10, "/readiness is 200, and all workers are up")
end

local function config_words(sim, config)
  local path = proc.write("baton.lua", config(sim.workers))
  return { path }
end

-- ask: workers, sim (flags), before (gets the simulator, before the gateway), flags, config, ready (false: do not wait
-- until requests can be served), proc (options of proc.start for the gateway), registers ("p2p_nccl_port",
-- "moriio_port": workers register there).
function fleet.start(ask)
  local sim = fleet.start_sim(ask.workers, ask.sim)
  if ask.before then
    ask.before(sim)
  end
  local words = ask.config and config_words(sim, ask.config) or worker_flags(sim)
  proc.append(words, ask.flags)
  if ask.config then -- the file stands first
    table.insert(words, 1, table.remove(words, 1))
  end
  local process, port, admin_port, told = fleet.start_gateway(words, ask.proc)
  local self = setmetatable({
    sim = sim, workers = sim.workers, gateway = process, port = port, admin_port = admin_port, ready_file = told,
    config_path = ask.config and words[1], marks = {},
  }, Fleet)
  if ask.registers then
    self:register(told[ask.registers])
  end
  if ask.ready ~= false then
    self:wait_ready()
  end
  self:mark()
  return self
end

-- Ready, and every worker is up: a spec's first request then finds them all.
function Fleet:wait_ready()
  eventually(function()
    for _, w in ipairs(self.sim.list) do
      local _, count = self.sim:state(w.name), 0
      for _, r in ipairs(self.sim:requests(w.name)) do
        count = count + (r.path == "/health" and 1 or 0)
      end
      if count == 0 then
        return false, w.name .. " was not asked for its health"
      end
    end
    return true
  end, 10, "all workers were asked")
  fleet.wait_up(self.port, self.admin_port) -- their answers may still be on the way to the gateway
end

-- Workers whose connector registers by ZeroMQ (all, or the one named) say so at this port; nil: nowhere any more.
function Fleet:register(port, name)
  for _, w in ipairs(self.sim.list) do
    if (name == nil and w.role ~= "encode") or name == w.name then
      local answer = http.post(w.port, "/sim/register",
        ('{"register":"%s"}'):format(port and "127.0.0.1:" .. math.floor(port) or ""))
      assert(answer.status == 200, answer.body)
    end
  end
end

-- What GET /workers says of one.
function Fleet:told(name)
  for _, w in ipairs(json.decode(http.get(self.admin_port, "/workers").body).workers) do
    if w.name == name then
      return w
    end
  end
end

function Fleet:state(name)
  return self.sim:state(name)
end

function Fleet:requests(name, since)
  return self.sim:requests(name, since)
end

-- From here on legs() counts.
function Fleet:mark()
  for _, w in ipairs(self.sim.list) do
    local _, last = self.sim:requests(w.name, 1e9)
    self.marks[w.name] = last
  end
end

-- Requests of one kind of path since the mark, by role: { prefill = {...}, decode = {...}, hybrid = {...},
-- encode = {...} }.
-- wanted: a path, a function of the entry, or nil for all inference routes.
function Fleet:legs(wanted)
  local out = { prefill = {}, decode = {}, hybrid = {}, encode = {} }
  for _, w in ipairs(self.sim.list) do
    for _, e in ipairs(self.sim:requests(w.name, self.marks[w.name])) do
      local is_wanted
      if type(wanted) == "function" then
        is_wanted = wanted(e)
      else
        is_wanted = wanted and e.path == wanted or (not wanted and INFERENCE[e.path])
      end
      if is_wanted then
        table.insert(out[w.role], e)
      end
    end
  end
  return out
end

-- mark, one request, its answer and its legs.
function Fleet:exchange(path, body, headers)
  self:mark()
  local answer = http.request(self.port, { path = path, body = body, headers = headers })
  return answer, self:legs(path)
end

function Fleet:post(path, body, headers)
  return http.post(self.port, path, body, headers)
end

function Fleet:get(path, headers)
  return http.get(self.port, path, headers)
end

-- A value of the admin listener's /metrics, nil when the line is not there.
function Fleet:metric(line_begin)
  return fleet.metric(self.admin_port, line_begin)
end

-- The record of a request, which may end a moment after its client has the last byte.
function fleet.explain(admin_port, id, seconds)
  return eventually(function()
    local answer = http.get(admin_port, "/admin/explain/" .. id)
    return answer.status == 200 and json.decode(answer.body), answer.body
  end, seconds, "a record of " .. id)
end

-- text: a scrape of before.
function fleet.metric(admin_port, line_begin, text)
  text = text or http.get(admin_port, "/metrics").body
  for line in text:gmatch("[^\n]+") do
    if line:sub(1, #line_begin) == line_begin then
      return tonumber(line:match("%s(%S+)$"))
    end
  end
end

-- It must end by itself, cleanly, and not before it is asked: a sanitizer's findings are exit codes too. One that the
-- spec has killed has ended well.
function fleet.stop_gateway(process)
  if process.was_killed and not process:is_alive() then
    return
  end
  local code, signal = process:stop(10)
  local err = process:stderr()
  if err:find("Sanitizer", 1, true) or err:find("runtime error", 1, true) then
    error("the gateway's sanitizer says:\n" .. err:sub(-6000), 2)
  end
  if code ~= 0 then
    error(("the gateway ended with code %s, signal %s\n%s"):format(tostring(code), tostring(signal), err:sub(-3000)), 2)
  end
end

-- Of a list of { gateway = process }.
function fleet.stop_gateways(gateways)
  for _, g in ipairs(gateways) do
    fleet.stop_gateway(g.gateway)
  end
end

function Fleet:stop()
  http.hang_up(self.port)
  local ok, why = pcall(fleet.stop_gateway, self.gateway)
  self.sim.process:stop(5)
  if not ok then
    error(why, 0)
  end
end

-- The text of a right answer, from the simulator's own words.
local expected = {}
function fleet.expect(prompt, max_tokens, opts)
  opts = opts or {}
  local argv = { fleet.binary("BATON_SIM_BIN", "baton-sim"), "--expect", "--max-tokens", tostring(max_tokens) }
  for _, word in ipairs({ opts.ids and "--ids" or "--prompt", prompt }) do
    argv[#argv + 1] = word
  end
  if opts.chat then
    argv[#argv + 1] = "--chat"
  end
  if opts.system then
    argv[#argv + 1] = "--system"
    argv[#argv + 1] = opts.system
  end
  if opts.seed then
    argv[#argv + 1] = "--request-seed"
    argv[#argv + 1] = tostring(opts.seed)
  end
  local key = table.concat(argv, "\0")
  if not expected[key] then
    local code, out, err = proc.run(argv)
    assert(code == 0, err)
    expected[key] = (out:gsub("\n$", ""))
  end
  return expected[key]
end

fleet.clock = clock

return fleet
