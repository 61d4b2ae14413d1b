-- --audit-log: every change by an operator is a line that says who, what, with which result, and what it changed.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")
local replicas = require("gateway.support.replicas")

local POLICY = replicas.policy("1")
local KEY = "the-admins-own-key"
local WORKER_KEY = "a-workers-own-key"

local function lines_of(path)
  local out = {}
  for line in (proc.read(path) or ""):gmatch("([^\n]+)\n") do
    out[#out + 1] = json.decode(line)
  end
  return out
end

-- The first line behind number `since` that fits.
local function line_after(path, since, what, fits)
  return eventually(function()
    local lines = lines_of(path)
    for i = since + 1, #lines do
      if lines[i].audit == what and (not fits or fits(lines[i])) then
        return lines[i]
      end
    end
    return nil, json.encode(lines)
  end, 10, "a line of " .. what)
end

local function null(value)
  return value == nil or value == json.null
end

-- Answers of the admin port: status, body.
local function asker(port, headers)
  return function(method, path, body, more)
    local all = { ["Content-Type"] = body and "application/json" or nil }
    for name, value in pairs(headers or {}) do
      all[name] = value
    end
    for name, value in pairs(more or {}) do
      all[name] = value
    end
    local answer = http.request(port, { method = method, path = path, headers = all, body = body, seconds = 60 })
    return answer.status, answer.body
  end
end

describe("--audit-log FILE", function()
  local f, log, ask

  local function start(flags, ask_for)
    log = proc.path("audit.jsonl")
    local words = { "--audit-log", log }
    proc.append(words, flags)
    f = fleet.start({ workers = ask_for or { "role=hybrid,name=w0", "role=hybrid,name=w1" }, flags = words })
    ask = asker(f.admin_port)
  end

  after_each(function()
    f:stop()
    proc.clean()
  end)

  it("begins with the state, and each change goes on from the one before", function()
    start()
    assert.equal("start", lines_of(log)[1].audit)
    assert.equal(200, (ask("POST", "/workers/w0/drain")))
    assert.equal(200, (ask("POST", "/admin/workers/w0/undrain")))
    line_after(log, 2, "POST /workers/*/undrain")
    local lines = lines_of(log)
    assert.equal(3, #lines)
    local drain, undrain = lines[2], lines[3]
    assert.equal("POST /workers/*/drain", drain.audit)
    assert.equal("w0", drain.object)
    assert.equal("anyone", drain.by)
    assert.equal("127.0.0.1", drain.address)
    assert.equal("admin_port", drain.via)
    assert.equal(200, drain.status)
    assert.is_true(null(drain.error))
    assert.same({ "workers" }, drain.changed)
    assert.same(lines[1].after, drain.before)
    assert.same(drain.after, undrain.before)
    assert.same(drain.before, undrain.after) -- it is as it was
    assert.equal(3, f:metric("baton_audit_lines_total"))
    assert.equal(0, f:metric("baton_audit_lines_dropped_total"))
  end)

  it("has what was refused, and why, but not what is only read", function()
    start()
    assert.equal(404, (ask("POST", "/workers/nobody/drain")))
    assert.equal(400, (ask("PUT", "/policies/bad", "this is no Lua")))
    assert.equal(200, (ask("GET", "/workers")))
    local bad = line_after(log, 1, "PUT /policies/*")
    local lines = lines_of(log)
    assert.equal(3, #lines)
    assert.equal(404, lines[2].status)
    assert.truthy(lines[2].error:find("there is no worker nobody", 1, true))
    assert.same({}, lines[2].changed)
    assert.equal("bad", bad.object)
    assert.equal(400, bad.status)
    assert.truthy(#bad.error > 0)
    assert.same(bad.before, bad.after)
  end)

  it("has no line, and no key, of who has shown the wrong one", function()
    start({ "--admin-api-key", KEY })
    assert.equal(401, (ask("POST", "/workers/w0/drain")))
    assert.equal(401, (ask("POST", "/workers/w0/drain", nil, { Authorization = "Bearer wrong-key" })))
    assert.equal(401, (ask("POST", "/ui/login", nil, { Authorization = "Bearer wrong-key" })))
    assert.equal(200, (ask("POST", "/ui/logout")))
    ask = asker(f.admin_port, { Authorization = "Bearer " .. KEY })
    assert.equal(201, (ask("POST", "/workers", ('{"url":"http://127.0.0.1:9","api_key":"%s"}'):format(WORKER_KEY))))
    assert.equal(200, (ask("POST", "/remove_worker?url=http%3A%2F%2F127.0.0.1%3A9&api_key=" .. WORKER_KEY)))
    local removed = line_after(log, 1, "POST /remove_worker")
    local lines = lines_of(log)
    assert.equal(3, #lines)
    assert.equal("admin_key", lines[2].by)
    assert.equal("http://127.0.0.1:9", lines[2].object)
    assert.equal("http://127.0.0.1:9", removed.object)
    assert.is_true(null(removed.args))
    for _, secret in ipairs({ KEY, "wrong-key", WORKER_KEY }) do
      assert.falsy(proc.read(log):find(secret, 1, true), secret)
    end
    eventually(function()
      return f.gateway:stderr():find("POST of /workers/w0/drain by 127.0.0.1 is refused: 401", 1, true)
    end, 10, "the log tells of the wrong key")
    eventually(function()
      return f.gateway:stderr():find("POST of /ui/login by 127.0.0.1, who has shown no key: 401", 1, true)
    end, 10, "the log tells of the page's too")
  end)

  it("says that a change came by the client port", function()
    start({ "--client-worker-api" })
    local there = asker(f.port)
    assert.equal(200, (there("POST", "/workers/w1/drain")))
    local line = line_after(log, 1, "POST /workers/*/drain")
    assert.equal("client_port", line.via)
    assert.equal("127.0.0.1", line.address)
    assert.equal("w1", line.object)
  end)

  it("has roles that are switched: what was asked for, and how it ended", function()
    local engine = ",engine=sglang,role_switch=1,ttft=1,itl=1"
    start({ "--pd-disaggregation" }, { "role=prefill,count=2" .. engine, "role=decode" .. engine })
    assert.equal(202, (ask("POST", "/workers/p1/role?to=decode&timeout_secs=30")))
    local asked = line_after(log, 1, "POST /workers/*/role")
    assert.equal("to=decode&timeout_secs=30", asked.args)
    assert.equal(202, asked.status)
    local ended = line_after(log, 1, "role")
    assert.equal("p1", ended.object)
    assert.equal("to=decode", ended.args)
    assert.equal("role_switch", ended.via)
    assert.is_true(null(ended.by) and null(ended.error))
    assert.same({ "workers" }, ended.changed)
  end)

  it("is opened again by its name on SIGUSR1 and SIGHUP, and no line is lost", function()
    start()
    for i, signal in ipairs({ proc.SIGUSR1, proc.SIGHUP }) do
      local old = log .. "." .. i
      assert.equal(200, (ask("POST", "/workers/w0/drain")))
      line_after(log, 0, "POST /workers/*/drain")
      assert(os.rename(log, old))
      f.gateway:kill(signal)
      eventually(function()
        return proc.read(log) ~= nil
      end, 10, "the file is there again")
      assert.equal(200, (ask("POST", "/workers/w0/undrain")))
      line_after(log, 0, "POST /workers/*/undrain")
      assert.truthy(proc.read(old):find("/drain", 1, true))
    end
  end)

  it("that cannot be written is told, and holds nobody up", function()
    f = fleet.start({ workers = { "role=hybrid,name=w0" }, flags = { "--audit-log", "/dev/full" } })
    ask = asker(f.admin_port)
    assert.equal(200, (ask("POST", "/workers/w0/drain")))
    assert.equal(200, (ask("POST", "/workers/w0/undrain")))
    eventually(function()
      return f.gateway:stderr():find("audit: cannot write /dev/full", 1, true)
    end, 10, "the log tells of it")
    assert.is_true(f:metric("baton_audit_errors_total") > 0)
    assert.equal(200, f:post("/v1/completions", '{"model":"sim","prompt":"x","max_tokens":2}').status)
  end)
end)

describe("--audit-log", function()
  it("is refused where it cannot be opened", function()
    local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "run", "--port", "0", "--admin-port", "0",
      "--audit-log", "/nowhere/at/all/audit.jsonl" })
    assert.equal(2, code)
    assert.truthy(err:find("--audit-log: cannot write /nowhere/at/all/audit.jsonl", 1, true), err)
  end)

  it("stderr has the lines among the log's", function()
    local f = fleet.start({ workers = { "role=hybrid,name=w0" }, flags = { "--audit-log", "stderr" } })
    assert.equal(200, (asker(f.admin_port)("POST", "/workers/w0/drain")))
    local line = eventually(function()
      return f.gateway:stderr():match('\n({"time":[^\n]*"audit":"POST /workers/%*/drain"[^\n]*})\n')
    end, 10, "the line is on stderr")
    assert.equal("w0", json.decode(line).object)
    f:stop()
    proc.clean()
  end)
end)

describe("changes that no request asks for", function()
  local sim, gateway, log, file, keys, policy

  local rewrite = proc.replace -- it is followed: nobody must see half of it

  local function config(count)
    local list = ""
    for i = 0, count - 1 do
      local name = "w" .. i
      list = list .. ("{ url = %q, name = %q, role = 'hybrid' },"):format(sim.workers[name].url, name)
    end
    return ("return { client_api_keys_file = %q, policy = %q, pools = { { workers = { %s } } } }"):format(keys,
      policy, list)
  end

  before_each(function()
    keys = proc.write("keys.txt", "one tenant=a\n")
    policy = proc.write("mine.lua", POLICY)
    log = proc.path("audit.jsonl")
    sim = fleet.start_sim({ "role=hybrid,name=w0", "role=hybrid,name=w1" })
    file = proc.write("baton.lua", config(2))
    gateway = fleet.start_gateway({ file, "--audit-log", log })
  end)

  after_each(function()
    assert.equal(0, (gateway:stop(10)))
    sim.process:stop(5)
    proc.clean()
  end)

  local function hup(text)
    rewrite(file, text)
    gateway:kill(proc.SIGHUP)
  end

  local function by_signal(line)
    return line.via == "signal"
  end

  it("are written: SIGHUP with other workers, with other keys, with a mistake", function()
    local since = #lines_of(log)
    hup(config(1))
    local line = line_after(log, since, "reload", by_signal)
    assert.same({ "workers" }, line.changed)
    assert.is_true(null(line.by) and null(line.address) and null(line.error))
    since = #lines_of(log)
    rewrite(keys, "one tenant=a\ntwo tenant=b\n") -- followed, SIGHUP or not
    line = line_after(log, since, "keys")
    assert.same({ "keys" }, line.changed)
    assert.equal("file", line.via)
    assert.equal(keys, line.object)
    since = #lines_of(log)
    rewrite(keys, "two trees\n")
    line = line_after(log, since, "keys")
    assert.same({}, line.changed)
    assert.truthy(line.error:find("keys.txt:1:", 1, true))
    rewrite(keys, "one tenant=a\ntwo tenant=b\n")
    since = #lines_of(log)
    hup("return { workers = 7 }")
    line = line_after(log, since, "reload", by_signal)
    assert.same({}, line.changed)
    assert.truthy(line.error:find("workers", 1, true))
    assert.same(line.before, line.after)
    assert.falsy(proc.read(log):find("two tenant", 1, true))
  end)

  it("are written: a policy's file that is another one", function()
    local since = #lines_of(log)
    rewrite(policy, replicas.policy("2"))
    local line = line_after(log, since, "reload")
    assert.equal("file", line.via)
    assert.same({ "policies" }, line.changed)
  end)
end)

-- Every row of the routes' own table: one that is added without a line fails here.
describe("every changing route of the admin port", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  local BODIES = {
    ["POST /workers"] = '{"url":"http://127.0.0.1:9","role":"hybrid"}',
    ["PUT /policies/*"] = POLICY,
    ["PUT /fleet/policies/*"] = POLICY,
    ["PUT /fleet/policies"] = json.encode({ policies = { mine = POLICY } }),
    ["PUT /fleet/rules"] = "return { }",
  }
  local NAMES = { ["/workers/*"] = "w0", ["/policies/*"] = "mine", ["/fleet/policies/*"] = "mine",
    ["/requests/*"] = "nobody" }
  local QUERIES = { ["POST /workers/*/role"] = "?to=decode", ["POST /add_worker"] = "?url=http://127.0.0.1:10",
    ["POST /remove_worker"] = "?url=http://127.0.0.1:10" }

  local function concrete(path)
    return (path:gsub("^(.-/%*)", function(prefix)
      return (prefix:gsub("%*", (assert(NAMES[prefix], "this spec has no name for " .. prefix))))
    end))
  end

  it("writes its line", function()
    local log = proc.path("audit.jsonl")
    local fl = replicas.start({ "a" }, { a = { "--audit-log", log } })
    local ask = asker(fl.a.admin_port)
    local _, index = ask("GET", "/")
    local count = 0
    for method, path in index:gmatch("\n(%u+)%s+(/%S*)") do
      if method ~= "GET" then
        local what = method .. " " .. path
        local since = #lines_of(log)
        local status = ask(method, concrete(path) .. (QUERIES[what] or ""), BODIES[what])
        local line = line_after(log, since, what)
        assert.equal(status, line.status, what)
        assert.not_equal(405, status, what)
        count = count + 1
      end
    end
    assert.is_true(count >= 20, count .. " routes")
    local changed = line_after(log, 0, "PUT /fleet/policies/*")
    assert.same({ "policies" }, changed.changed)
    fl:stop()
    proc.clean()
  end)
end)
