-- A gateway's own life: what it says when it is up, how it takes a new configuration, how it ends.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":4}'
-- The simulator takes its time over each of these tokens.
local SLOW = '{"model":"sim","prompt":"hello there","max_tokens":40,"stream":true}'

local sim, path

local function write_config(text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

local function config_of(name, more)
  return ('return { %s pools = { { workers = { { name = "%s", url = "%s", engine = "vllm" } } } } }'):format(
    more or "", name, sim.workers[name].url)
end

local function start(config, ...)
  write_config(config)
  return fleet.start_gateway({ path, ... })
end

local function wait_ready(port)
  eventually(function()
    local answer = http.get(port, "/readiness")
    return answer.status == 200, answer.body
  end, 10, "/readiness is 200")
end

local function wait_line(process, text)
  eventually(function()
    local log = process:stderr()
    return log:find(text, 1, true) ~= nil, log
  end, 10, "the log says " .. text)
end

local function worker_of(port)
  local answer = http.post(port, "/v1/completions", BODY)
  return answer.status == 200 and answer:header("x-baton-worker"), answer.body
end

local function run(...)
  local argv = { fleet.binary("BATON_BIN", "baton"), ... }
  return proc.run(argv, { name = "baton" })
end

describe("a gateway's life", function()
  local process, port, admin_port

  setup(function()
    sim = fleet.start_sim({ "role=hybrid,name=left,ttft=1,itl=50", "role=hybrid,name=right,ttft=1,itl=1" })
    path = proc.path("baton.lua")
  end)

  after_each(function()
    if process then
      process:kill()
      process:wait(5)
      process = nil
    end
  end)

  teardown(proc.clean)

  it("SIGHUP takes new workers", function()
    process, port = start(config_of("left"))
    wait_ready(port)
    assert.equal("left", (worker_of(port)))
    write_config(config_of("right"))
    process:kill(proc.SIGHUP)
    eventually(function()
      return worker_of(port) == "right"
    end, 10, "the new worker answers")
    assert.is_true(process:is_alive())
  end)

  it("SIGHUP with a broken file changes nothing and says why once", function()
    process, port = start(config_of("left"))
    wait_ready(port)
    for i, broken in ipairs({ "return { prot = 1 }", "return {", config_of("left", 'policy = "passthrough",') }) do
      write_config(broken)
      process:kill(proc.SIGHUP)
      eventually(function()
        local count = select(2, process:stderr():gsub("reload refused", ""))
        return count == i, count .. " refusals"
      end, 10, "the refusal is logged")
    end
    wait_line(process, 'prot: unknown key, did you mean "port"?')
    assert.equal("left", (worker_of(port)))
  end)

  it("SIGHUP names what needs a restart", function()
    process, port = start(config_of("left"))
    wait_ready(port)
    write_config(config_of("left", "max_concurrent_requests = 5, log_level = 'debug',"))
    process:kill(proc.SIGHUP)
    wait_line(process, "max-concurrent-requests has changed: it needs a restart")
    assert.is_nil(process:stderr():find("log-level has changed", 1, true))
  end)

  it("SIGTERM lets a running answer end, takes no new connection, and ends with 0", function()
    process, port = start(config_of("left"))
    wait_ready(port)
    local c = http.start(port, { path = "/v1/completions", body = SLOW })
    c:wait_events(2)
    process:kill(proc.SIGTERM)
    eventually(function()
      local ok, other = pcall(http.connect, port)
      if ok and other then
        other:close()
      end
      return not ok or not other
    end, 5, "no new connection is taken")
    c:wait()
    assert.is_truthy(c.answer.body:find("[DONE]", 1, true))
    assert.equal(0, (process:wait(10)))
  end)

  it("a second SIGTERM cuts what runs and ends with 1", function()
    process, port = start(config_of("left"))
    wait_ready(port)
    local c = http.start(port, { path = "/v1/completions", body = SLOW })
    c:wait_events(1)
    process:kill(proc.SIGINT)
    wait_line(process, "draining")
    process:kill(proc.SIGTERM)
    assert.equal(1, (process:wait(10)))
    c:wait()
    assert.is_nil(c.answer.body:find("[DONE]", 1, true))
  end)

  it("--drain-timeout-secs ends a drain that takes too long, with 0", function()
    process, port = start(config_of("left"), "--drain-timeout-secs", "0.1")
    wait_ready(port)
    local c = http.start(port, { path = "/v1/completions", body = SLOW })
    c:wait_events(1)
    process:kill(proc.SIGTERM)
    assert.equal(0, (process:wait(10)))
    c:wait()
    assert.is_nil(c.answer.body:find("[DONE]", 1, true))
  end)

  it("writes the ready file when it serves, and takes it away", function()
    local ready = proc.path("mine.ready")
    write_config(config_of("left"))
    process = proc.start({
      fleet.binary("BATON_BIN", "baton"), "run", path, "--port", "0", "--admin-port", "0", "--ready-file", ready,
    })
    local told = json.decode(eventually(function()
      return proc.read(ready)
    end, 10, "the ready file is there"))
    assert.equal(process.pid, told.pid)
    assert.equal(200, http.get(told.port, "/health").status)
    assert.equal(200, http.get(told.admin_port, "/metrics").status)
    process:kill(proc.SIGTERM)
    assert.equal(0, (process:wait(10)))
    assert.is_nil(proc.read(ready))
  end)

  it("a port that is taken is one line and 2; for check, which may run beside, it is a warning", function()
    process, port, admin_port = start(config_of("left"))
    for flag, taken in pairs({ ["--port"] = port, ["--admin-port"] = admin_port }) do
      local other = flag == "--port" and "--admin-port" or "--port"
      local why = ("%s: cannot listen on 127.0.0.1:%d: address already in use"):format(flag, taken)
      local code, _, err = run("run", flag, taken, other, "0")
      assert.equal(2, code)
      assert.equal("baton: " .. why .. "\n", err)
      local out
      code, out, err = run("check", flag, taken, other, "0")
      assert.equal(0, code)
      assert.matches("^ok\n", out)
      assert.equal("warning: " .. why .. " (by the gateway that serves this, maybe)\n", err)
    end
  end)

  it("--worker-startup-timeout-secs gives up with 1 and the reason", function()
    local code, _, err = run("run", "--port", "0", "--admin-port", "0", "--worker-urls", "http://127.0.0.1:1",
      "--worker-startup-timeout-secs", "0.3")
    assert.equal(1, code)
    assert.is_truthy(err:find("pool default is not usable 300 ms after the start", 1, true), err)
  end)

  it("commands that are wrong say so with 2", function()
    for want, words in pairs({
      ["baton: no command; try baton --help\n"] = {},
      ["baton: rn: unknown command, did you mean run?\n"] = { "rn" },
      ["baton: help rn: unknown topic; baton help lists them\n"] = { "help", "rn" },
      ["baton: --port: the command comes first: baton run --port ...\n"] = { "--port", "1" },
      ["baton: --prot: unknown flag, did you mean --port?\n"] = { "run", "--prot", "1" },
      ["baton: --hots: unknown flag, did you mean --host?\nbaton: --jwt-role-claim: roles are scopes here: "
        .. "see --jwt-scope-claim\nbaton: --mini-lb: not used: Baton is the load "
        .. "balancer\n"] = { "run", "--mini-lb", "--hots", "x", "--jwt-role-claim", "y" },
    }) do
      local code, out, err = run(unpack(words))
      assert.equal(2, code)
      assert.equal("", out)
      assert.equal(want, err)
    end
  end)

  it("help, version and check answer on stdout with 0", function()
    local lines = { { "--help" }, { "help" }, { "run", "--help" }, { "help", "file" }, { "version" }, { "--version" } }
    for _, words in ipairs(lines) do
      local code, out, err = run(unpack(words))
      assert.equal(0, code)
      assert.equal("", err)
      assert.is_truthy(out:find("baton", 1, true))
    end
    write_config(config_of("left", "port = 0, admin_port = 0,"))
    local code, out, err = run("check", path, "--mini-lb")
    assert.equal(0, code)
    assert.equal("warning: --mini-lb: not used: Baton is the load balancer\n", err)
    assert.equal("ok\n", out:sub(1, 3))
    assert.is_truthy(out:find("left     hybrid", 1, true))
  end)
end)
