-- Another process takes a gateway's place (SIGUSR2): no request fails, and one that cannot start changes nothing.

local eventually = require("gateway.support.eventually")
local ffi = require("ffi")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local notified = require("gateway.support.notified")
local pace = require("gateway.support.pace")
local proc = require("gateway.support.proc")
local socket = require("socket")
local successors = require("gateway.support.successors")
local texts = require("gateway.support.texts")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":4}'
local SLOW = '{"model":"sim","prompt":"hello there","max_tokens":60,"stream":true}'

local sim, path, ready, port, admin_port, first, line

local function write_config(text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

local function config_of(name, more, url)
  return ('return { %s pools = { { workers = { { name = "%s", url = "%s", engine = "vllm" } } } } }'):format(
    more or "", name, url or sim.workers[name].url)
end

local function wait_ready()
  eventually(function()
    local answer = http.get(port, "/readiness")
    return answer.status == 200, answer.body
  end, 10, "/readiness is 200")
end

local function start(words, opts)
  local all = { path }
  proc.append(all, words)
  local told
  first, port, admin_port, told = fleet.start_gateway(all, opts)
  assert(told.pid == first.pid)
  for i, word in ipairs(first.argv) do
    ready = word == "--ready-file" and first.argv[i + 1] or ready
  end
  line = successors.of(first, ready)
  wait_ready()
end

local function worker_of()
  local answer = http.post(port, "/v1/completions", BODY)
  return answer.status == 200 and answer:header("x-baton-worker"), answer.body
end

describe("an upgrade", function()
  setup(function()
    sim = fleet.start_sim({ "role=hybrid,name=left,ttft=1,itl=20", "role=hybrid,name=right,ttft=1,itl=1" })
    path = proc.path("baton.lua")
  end)

  before_each(function()
    write_config(config_of("left"))
  end)

  after_each(function()
    if line then
      line:clean()
      line = nil
    end
  end)

  teardown(proc.clean)

  it("lets answers end on the old process, while the new one serves by the new configuration", function()
    start()
    local stream = http.start(port, { path = "/v1/completions", body = SLOW })
    stream:wait_events(2)
    write_config(config_of("right", "max_concurrent_requests = 50,"))
    line:upgrade()
    eventually(function()
      return worker_of() == "right"
    end, 10, "the new process answers")
    assert.is_true(first:is_alive())
    assert.equal(200, stream:wait(nil, 20).status)
    assert.same({ fleet.expect("hello there", 60) }, texts.of("/v1/completions", stream.answer))
    assert.equal(0, line:wait_end(1))
    assert.equal("right", (worker_of()))
    assert.truthy(http.get(admin_port, "/metrics").body:find("baton_", 1, true))
    assert.truthy(proc.read(ready), "the old process took the ready file of the new one away")
  end)

  local function status_of(pid, name)
    return assert(io.open("/proc/" .. pid .. "/status")):read("*a"):match("\n" .. name .. ":%s*(%d+)")
  end

  -- --sandbox: it serves, reloads and is replaced inside, and reaches nothing else. ThreadSanitizer wants its file of
  -- suppressions at every start, and a successor starts inside.
  local sandboxed = os.getenv("BATON_SANITIZE") == "thread" and pending or it
  sandboxed("leads out of no sandbox, and is not kept by it", function()
    local outside = os.tmpname() -- beside the configuration's directory, not in it
    local file = assert(io.open(outside, "w"))
    file:write("return { { policy = 'round_robin' } }")
    file:close()
    finally(function()
      os.remove(outside)
    end)
    start({ "--sandbox", "auto", "--audit-log", proc.path("audit.log") })
    if first:stderr():find("no sandbox: ", 1, true) then
      pending("no Landlock here")
      return
    end
    first:says("sandbox: files of the system and of the configuration's directories only")
    assert.same({ "2", "1" }, { status_of(first.pid, "Seccomp"), status_of(first.pid, "NoNewPrivs") })
    local version, metrics = http.get(admin_port, "/version").body, http.get(admin_port, "/metrics").body
    assert.truthy(version:find('"sandbox":{"mode":"auto","landlock":"on","landlock_abi":%d+,"seccomp":"on"}'), version)
    for _, layer in ipairs({ "landlock", "seccomp" }) do
      assert.truthy(metrics:find(('\nbaton_sandbox{layer="%s"} 1\n'):format(layer), 1, true), metrics)
    end
    assert.equal("left", (worker_of()))
    local function reload(text, said)
      write_config(text)
      first:kill(proc.SIGHUP)
      eventually(function()
        return first:stderr():find(said, 1, true), first:stderr()
      end, 10, said)
    end
    reload(config_of("left", "max_concurrent_requests = 49,"), "reloaded: epoch")
    reload(config_of("left", ("rules_file = %q,"):format(outside)), outside .. ": cannot read: Permission denied")
    assert.equal("left", (worker_of()))
    write_config(config_of("right"))
    line:upgrade()
    assert.equal(0, line:wait_end(1))
    assert.equal("right", (worker_of()))
    assert.same({ "2", "1" }, { status_of(line:last(), "Seccomp"), status_of(line:last(), "NoNewPrivs") })
    line:upgrade() -- and once more, from within
    assert.equal("right", (worker_of()))
  end)

  it("loses no request, several times in a row, on connections that stay and that come", function()
    write_config(config_of("right"))
    start()
    local load = pace.start(port, 16, 400, 0)
    local streams = {}
    for _ = 1, 4 do
      for _ = 1, 8 do
        streams[#streams + 1] = http.start(port, { path = "/v1/completions", body = SLOW })
      end
      line:upgrade()
    end
    for _, stream in ipairs(streams) do
      assert.equal(200, stream:wait(nil, 20).status)
      assert.truthy(stream.answer.body:find("[DONE]", 1, true))
    end
    for i = 1, #line.pids - 1 do
      assert.equal(0, line:wait_end(i))
    end
    assert.is_true(pace.stop(load).right > 100)
  end)

  it("tells the service manager who is its main process now", function()
    local manager = notified.open()
    start({}, { env = manager.env })
    manager:waits_for("READY=1")
    line:upgrade()
    manager:waits_for("MAINPID=" .. line.pids[2])
    assert.equal(0, manager:count("STOPPING=1"))
    assert.equal(0, line:wait_end(1))
    assert.equal(0, manager:count("STOPPING=1"))
    ffi.C.kill(line.pids[2], proc.SIGTERM)
    manager:waits_for("STOPPING=1")
    manager:close()
  end)

  it("leaves systemd's socket systemd's: an idle client may still ask the new process once when it ends", function()
    local held = assert(socket.bind("127.0.0.1", 0))
    start({}, { sockets = { { fd = held:getfd(), name = "client" } } })
    line:upgrade()
    assert.equal(0, line:wait_end(1))
    local idle = http.start(port, { path = "/v1/completions", body = BODY })
    assert.equal(200, idle:wait().status)
    local stream = http.start(port, { path = "/v1/completions", body = SLOW })
    stream:wait_events(2)
    ffi.C.kill(line:last(), proc.SIGTERM)
    first:says("SIGTERM: draining")
    assert.equal(200, stream:wait().status)
    idle:ask({ path = "/v1/completions", body = BODY })
    assert.equal(200, idle:wait().status)
    assert.equal("close", idle.answer:header("connection"))
    held:close()
  end)

  it("is given up when the new process cannot start; this one serves on, and can be asked again", function()
    start()
    write_config("return { prot = 1 }")
    ffi.C.kill(first.pid, proc.SIGUSR2)
    first:says('prot: unknown key, did you mean "port"?')
    first:says("upgrade given up, this process serves on")
    first:says("ended with status 2 before it was ready")
    assert.equal("left", (worker_of()))
    write_config(config_of("right"))
    line:upgrade()
    assert.equal(0, line:wait_end(1))
    assert.equal("right", (worker_of()))
  end)

  it("waits with listening until workers can be used", function()
    start()
    local away = fleet.start_sim({ "role=hybrid,name=away" })
    local url = away.workers.away.url
    away.process:kill(proc.SIGSTOP)
    write_config(config_of("away", nil, url))
    ffi.C.kill(first.pid, proc.SIGUSR2)
    first:says("pool default: 0 prefill, 0 decode, 1 hybrid, 0 encode, policy least_load")
    for _ = 1, 20 do
      assert.equal("left", (worker_of()))
    end
    away.process:kill(proc.SIGCONT)
    eventually(function()
      return worker_of() == "away"
    end, 10, "the new process answers")
    line:wait_next()
  end)

  it("ends with the process that began it", function()
    start()
    local away = fleet.start_sim({ "role=hybrid,name=away" })
    away.process:kill(proc.SIGSTOP)
    write_config(config_of("away", nil, away.workers.away.url))
    ffi.C.kill(first.pid, proc.SIGUSR2)
    first:says("to take this one's place")
    local pid = tonumber(first:stderr():match("starts as process (%d+)"))
    first:kill(proc.SIGTERM)
    assert.equal(0, (first:wait(10)))
    eventually(function()
      return successors.is_gone(pid)
    end, 10, "the successor has ended too")
  end)

  it("is refused where engines are connected to this very process", function()
    start({ "--registry-port", "0" })
    ffi.C.kill(first.pid, proc.SIGUSR2)
    first:says("SIGUSR2: no upgrade, this process serves on: --registry-port: engines are connected")
    assert.equal("left", (worker_of()))
  end)
end)
