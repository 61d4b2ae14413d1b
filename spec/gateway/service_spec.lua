-- As a service: what the manager is told, what its watchdog hears of a thread that hangs, sockets that it passes.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local ffi = require("ffi")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local notified = require("gateway.support.notified")
local proc = require("gateway.support.proc")
local socket = require("socket")

ffi.cdef([[
long ptrace(int request, int pid, void *addr, void *data);
]])

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":4}'
local SLOW = '{"model":"sim","prompt":"hello there","max_tokens":40,"stream":true}'
local PTRACE_ATTACH, PTRACE_DETACH, WALL = 16, 17, 0x40000000

local sim, manager, process

local function start(words, opts)
  opts = opts or {}
  opts.env = opts.env or manager.env
  local port, admin_port
  local all = { "--worker-urls", sim.workers.h.url }
  proc.append(all, words)
  process, port, admin_port = fleet.start_gateway(all, opts)
  return port, admin_port
end

local function wait_ready(port)
  eventually(function()
    local answer = http.get(port, "/readiness")
    return answer.status == 200, answer.body
  end, 10, "/readiness is 200")
end

local function listener(host)
  local s = assert(socket.tcp())
  assert(s:bind(host or "127.0.0.1", 0))
  assert(s:listen(64))
  local _, port = s:getsockname()
  return s, tonumber(port)
end

-- The gateway's event threads.
local function event_threads(pid)
  local pipe = assert(io.popen("grep -l '^baton-loop-' /proc/" .. pid .. "/task/*/comm"))
  local list = {}
  for tid in pipe:read("*a"):gmatch("task/(%d+)") do
    list[#list + 1] = tonumber(tid)
  end
  pipe:close()
  assert.equal(2, #list)
  return list
end

-- Holds this thread still and no other: false where we may not.
local function hold(tid)
  return ffi.C.ptrace(PTRACE_ATTACH, tid, nil, nil) == 0 and ffi.C.waitpid(tid, ffi.new("int[1]"), WALL) == tid
end

local function let_go(tid)
  ffi.C.ptrace(PTRACE_DETACH, tid, nil, nil)
end

describe("a gateway under a service manager", function()
  setup(function()
    sim = fleet.start_sim({ "role=hybrid,name=h,ttft=1,itl=20" })
  end)

  before_each(function()
    manager = notified.open()
  end)

  after_each(function()
    if process then
      process:kill()
      process:wait(5)
      process = nil
    end
    manager:close()
  end)

  teardown(proc.clean)

  it("says that it is ready once it answers, and when workers can be used", function()
    local port = start()
    local ready = manager:waits_for("READY=1")
    assert.equal(200, http.get(port, "/health").status)
    assert.truthy(ready.STATUS:find("clients on 127.0.0.1:" .. port, 1, true))
    if ready.STATUS:find("no usable workers yet", 1, true) then
      assert.is_nil(manager:waits_for("READY=1").STATUS:find("no usable", 1, true))
    end
  end)

  it("says nothing of being ready when it cannot start", function()
    local code = proc.run({ fleet.binary("BATON_BIN", "baton"), "run", "--port", "70000" }, { env = manager.env })
    assert.equal(2, code)
    assert.equal(0, manager:count("READY=1"))
  end)

  it("puts a reload between RELOADING and READY, also one that is refused", function()
    local path = proc.write("baton.lua", "return {}")
    local port
    process, port = fleet.start_gateway({ path, "--worker-urls", sim.workers.h.url }, { env = manager.env })
    manager:waits_for("READY=1")
    wait_ready(port)
    for i, text in ipairs({ "return { log_level = 'debug' }", "return { prot = 1 }", "return { policy = 'none' }" }) do
      local file = assert(io.open(path, "w"))
      file:write(text)
      file:close()
      process:kill(proc.SIGHUP)
      local reloading = manager:waits_for("RELOADING=1")
      assert.is_true(tonumber(reloading.MONOTONIC_USEC) / 1e6 <= clock.now())
      manager:waits_for("READY=1")
      assert.equal(i, manager:count("RELOADING=1"))
    end
  end)

  it("says that it drains, and asks for the time that this may take", function()
    local port = start({ "--drain-timeout-secs", "500" })
    wait_ready(port)
    local c = http.start(port, { path = "/v1/completions", body = SLOW })
    c:wait_events(2)
    process:kill(proc.SIGTERM)
    local stopping = manager:waits_for("STOPPING=1")
    assert.is_true(tonumber(stopping.EXTEND_TIMEOUT_USEC) >= 500e6)
    local told = manager:count("READY=1")
    assert.equal(200, c:wait().status)
    http.hang_up(port)
    assert.equal(0, (process:wait(10)))
    assert.equal(told, manager:count("READY=1"))
  end)

  it("tells the watchdog that all is well only while every event thread answers", function()
    manager.env.WATCHDOG_USEC = "400000"
    local _, admin_port = start()
    for _ = 1, 3 do
      manager:waits_for("WATCHDOG=1")
    end
    local tid = event_threads(process.pid)[2]
    if not hold(tid) then
      return pending("threads of others may not be held here")
    end
    local ok, why = pcall(process.says, process, "does not answer: the service manager's watchdog (400 ms)")
    local told = manager:count("WATCHDOG=1")
    local is_quiet = http.get(admin_port, "/metrics").status == 200 and manager:count("WATCHDOG=1") == told
    let_go(tid)
    assert.is_true(ok, why)
    assert.is_true(is_quiet)
    manager.read = #manager.messages
    manager:waits_for("WATCHDOG=1")
  end)

  it("leaves a watchdog alone that is another process's", function()
    manager.env.WATCHDOG_USEC, manager.env.WATCHDOG_PID = "40000", "1"
    local port = start()
    manager:waits_for("READY=1")
    wait_ready(port)
    assert.equal(0, manager:count("WATCHDOG=1"))
  end)

  it("starts when nobody is at NOTIFY_SOCKET, and says so", function()
    local port = start({}, { env = { NOTIFY_SOCKET = "/nowhere/notify" } })
    wait_ready(port)
    process:says("the service manager is not told")
  end)

  it("listens on the sockets that it is passed, by their names, on every loop", function()
    local client, client_port = listener()
    local admin, admin_port = listener()
    local told_port, told_admin =
      start({}, { sockets = { { fd = admin:getfd(), name = "admin" }, { fd = client:getfd(), name = "client" } } })
    client:close()
    admin:close()
    assert.equal(client_port, told_port)
    assert.equal(admin_port, told_admin)
    wait_ready(client_port)
    assert.equal(200, http.post(client_port, "/v1/completions", BODY).status)
    assert.equal(200, http.get(admin_port, "/metrics").status)
  end)

  it("serves every one of more sockets than loops", function()
    local sockets, ports = {}, {}
    for i = 1, 5 do
      local s
      s, ports[i] = listener()
      sockets[i] = { fd = s:getfd(), name = "client", socket = s }
    end
    start({}, { sockets = sockets })
    for i, port in ipairs(ports) do
      sockets[i].socket:close()
      wait_ready(port)
      assert.equal(200, http.post(port, "/v1/completions", BODY).status)
    end
  end)

  it("keeps a request that waits in a passed socket over a restart, until workers are known", function()
    local client, port = listener()
    local passed = { sockets = { { fd = client:getfd(), name = "client" } } }
    start({}, passed)
    wait_ready(port)
    http.hang_up(port)
    assert.equal(0, (process:stop(10)))
    local c = http.start(port, { path = "/v1/completions", body = BODY }) -- nobody is there
    start({}, passed)
    client:close()
    assert.equal(200, c:wait().status)
  end)

  it("judges a passed socket by the address that it listens on", function()
    local admin, admin_port = listener("0.0.0.0")
    start({}, { sockets = { { fd = admin:getfd(), name = "admin" } } })
    admin:close()
    eventually(function()
      return http.get(admin_port, "/metrics").status == 200
    end)
    assert.equal(403, http.get(admin_port, "/workers").status)
  end)

  it("refuses sockets that it cannot serve, with the remedy", function()
    local function run_with(sockets)
      local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "run", "--admin-port", "0" },
        { sockets = sockets })
      assert.equal(2, code)
      return err
    end
    local s = listener()
    assert.truthy(run_with({ { fd = s:getfd(), name = "baton.socket" } })
      :find('a socket is named "baton.socket"; in its unit write FileDescriptorName=client', 1, true))
    local again = { { fd = s:getfd(), name = "admin" }, { fd = s:getfd(), name = "admin" } }
    assert.truthy(run_with(again):find("two sockets are named admin", 1, true))
    local udp = assert(socket.udp())
    assert(udp:setsockname("127.0.0.1", 0))
    assert.truthy(run_with({ { fd = udp:getfd(), name = "client" } }):find("does not listen on TCP", 1, true))
    s:close()
    udp:close()
  end)

  it("leaves no core file, unless it is asked to", function()
    local function soft_limit(words)
      local port = start(words)
      wait_ready(port)
      local soft = proc.read("/proc/" .. process.pid .. "/limits"):match("Max core file size%s+(%S+)")
      process:kill()
      process:wait(5)
      return soft
    end
    local soft, hard = proc.read("/proc/self/limits"):match("Max core file size%s+(%S+)%s+(%S+)")
    if hard == "0" then
      return pending("nobody may leave a core file here")
    end
    assert.equal("1", soft_limit({}))
    assert.equal(soft, soft_limit({ "--core-dumps" }))
  end)

  it("says how the open files are divided, and warns when that is less than is configured", function()
    start({}, { env = {}, limits = { files = 1024 } })
    process:says("warn  gateway: the limit of open files is 1024: at most")
    process:says("for 1000 clients raise it to 5024 (ulimit -n, LimitNOFILE=)")
    process:kill()
    process:wait(5)
    start({ "--max-concurrent-requests", "100", "--queue-size", "20" }, { env = {}, limits = { files = 1024 } })
    process:says("info  gateway: 1024 open files:")
    process:kill()
    process:wait(5)
    start({ "--max-concurrent-requests", "400" }, { env = {}, limits = { files = 1024 } })
    process:says("for 400 clients raise it")
  end)

  it("leaves sockets alone that are meant for another process", function()
    local port = start({}, { env = { LISTEN_PID = "1", LISTEN_FDS = "1", LISTEN_FDNAMES = "client" } })
    wait_ready(port)
  end)
end)
