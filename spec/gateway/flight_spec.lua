-- The flight recorder: what was unusual on a loop is told by GET /debug/flight, and by a gateway that crashes.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":1}'

local ENDLESS = [[
return { api = 2, name = "endless", version = "1",
  plan = function(req, view, ctx)
    while req.headers["x-endless"] do end
    return { worker = view.hybrid[1] and view.hybrid[1].id }
  end }
]]

local SIGSEGV = 11

local f, crash_file

local function flight(query)
  local answer = http.get(f.admin_port, "/debug/flight" .. (query or ""))
  assert.equal(200, answer.status, answer.body)
  return json.decode(answer.body)
end

-- The newest event of this kind whose detail has this text.
local function event(kind, text)
  return eventually(function()
    local events = flight().events
    for i = #events, 1, -1 do
      if events[i].kind == kind and events[i].detail:find(text, 1, true) then
        return events[i]
      end
    end
  end, 20, kind .. ": " .. text)
end

local function start(flags)
  local folder = proc.path("flight")
  assert(os.execute("mkdir " .. folder) == 0)
  local file = assert(io.open(folder .. "/endless.lua", "w"))
  file:write(ENDLESS)
  file:close()
  crash_file = folder .. "/crash"
  local words = { "--policy-dir", folder, "--policy", "endless", "--crash-file", crash_file, "--loops", "1" }
  proc.append(words, flags)
  f = fleet.start({ workers = { "role=hybrid" }, flags = words })
end

describe("the flight recorder", function()
  after_each(proc.kill_all)
  teardown(proc.clean)

  it("tells of a slow policy, of workers and of a reload, the newest last", function()
    start()
    assert.equal(200, f:post("/v1/completions", BODY, { ["x-endless"] = "1" }).status)
    local slow = event("slow_policy", "plan of policy endless, stopped over its budget")
    assert.equal(0, slow.loop)
    assert.is_true(slow.us >= 2000, slow.us)
    assert.equal("control", event("worker", "w0 is up").loop)
    local put = http.request(f.admin_port, {
      method = "PUT",
      path = "/policies/endless",
      body = (ENDLESS:gsub('"1"', '"2"')),
    })
    assert.equal(200, put.status, put.body)
    assert.equal("control", event("reload", "generation 2 serves").loop)
    http.post(f.admin_port, "/workers/w0/drain", "")
    event("worker", "w0 drains")
    local all = flight()
    for i = 2, #all.events do
      assert.is_true(all.events[i - 1].monotonic_us <= all.events[i].monotonic_us)
    end
    for _, e in ipairs(all.events) do
      assert.matches("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$", e.time)
      assert.is_true(e.monotonic_us <= all.monotonic_us)
    end
    assert.is_true(#flight("?secs=86400").events >= #all.events)
    local refused = http.get(f.admin_port, "/debug/flight?since=1")
    assert.equal(400, refused.status)
    assert.matches("%?secs=N", refused.body)
  end)

  it("is dumped with a backtrace by a gateway that crashes, inside the sandbox too", function()
    start({ "--sandbox", "auto" })
    assert.equal(200, f:post("/v1/completions", BODY, { ["x-endless"] = "1" }).status)
    event("slow_policy", "plan of policy endless")
    assert.equal("", proc.read(crash_file))
    f.gateway:kill(SIGSEGV)
    assert.equal(SIGSEGV, select(2, f.gateway:wait(20)))
    for name, dump in pairs({ file = proc.read(crash_file), stderr = f.gateway:stderr() }) do
      local head = "baton [^ ]+ crash: SIGSEGV sent by process %d+, in thread baton of process %d+"
      assert.matches(head, dump, nil, nil, name)
      assert.matches("\n  %-%d+%.%d+ 0 slow_policy plan of policy endless, stopped over its budget, us=%d+", dump)
      assert.matches("\n  %-%d+%.%d+ control worker w0 is up", dump)
      assert.matches("\nbacktrace .*bt_loop_run", dump)
    end
  end)

  it("is not where logs go that are started without a stderr", function()
    local path = proc.path("crash-alone")
    local process = fleet.start_gateway({ "--worker-urls", "http://127.0.0.1:9", "--crash-file", path },
      { under = { "/bin/sh", "-c", 'exec "$@" 2>&-', "sh" } })
    process:kill(proc.SIGTERM)
    assert.equal(0, process:wait(20))
    assert.equal("", proc.read(path))
  end)
end)
