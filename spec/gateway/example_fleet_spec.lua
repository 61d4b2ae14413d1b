-- examples/fleet/run.sh, as its README says.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")
local ports = require("gateway.support.port")
local redis = require("gateway.support.redis")

describe("examples/fleet", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  teardown(proc.clean)

  local baton = fleet.binary("BATON_BIN", "baton")

  -- Ready, or ended: somebody else may take a port between our look at it and its gateway's start.
  local function start()
    local port, admin_port = ports.free(2), ports.free(2)
    local run = proc.start({ "/bin/sh", "examples/fleet/run.sh" }, { name = "run", env = {
      PORT = tostring(port), ADMIN_PORT = tostring(admin_port), REDIS_PORT = tostring(ports.free()),
      BATON_BUILD_DIR = baton:match("^(.*)/[^/]*$"),
    } })
    eventually(function()
      return not run:is_alive() or run:stdout():find("Ctrl-C ends all", 1, true), run:stdout() .. run:stderr()
    end, 60, "run.sh is ready")
    return run, port, admin_port
  end

  it("starts two gateways that take a policy together, outlives one, and ends all", function()
    local run, port, admin_port = start()
    for _ = 1, 2 do
      if not run:is_alive() and run:stderr():find("address already in use", 1, true) then
        run, port, admin_port = start()
      end
    end
    assert.is_true(run:is_alive(), run:stdout() .. run:stderr())
    local body = '{"model":"demo","prompt":"hello","max_tokens":4}'
    for i = 0, 1 do
      assert.equal("spread_decode@1", http.post(port + i, "/v1/completions", body):header("x-baton-policy"))
    end
    local text = proc.read("examples/custom_policy/spread_decode.lua"):gsub('version = "1"', 'version = "2"')
    local folder = proc.path("push")
    assert(os.execute("mkdir " .. folder) == 0)
    local file = assert(io.open(folder .. "/spread_decode.lua", "w"))
    file:write(text)
    file:close()
    local function tool(...)
      return proc.run({ baton, "fleet", "--admin", ("http://127.0.0.1:%d"):format(admin_port), ... }, { name = "fleet",
        seconds = 60 })
    end
    local code, out, err = tool("policy", "push", folder .. "/spread_decode.lua")
    assert.equal(0, code, out .. err)
    for i = 0, 1 do
      assert.equal("spread_decode@2", http.post(port + i, "/v1/completions", body):header("x-baton-policy"))
    end
    local b = tonumber(run:stdout():match("gateway b on port %d+ %(admin %d+, pid (%d+)%)"))
    assert(os.execute("kill -9 " .. b) == 0)
    eventually(function()
      return run:stdout():find("gateway b has ended", 1, true)
    end, 20, "run.sh sees it")
    assert.equal(200, http.post(port, "/v1/completions", body).status)
    local a = tonumber(run:stdout():match("gateway a on port %d+ %(admin %d+, pid (%d+)%)"))
    run:kill(proc.SIGINT)
    code = run:wait(30)
    assert.equal(0, code, run:stderr())
    assert.is_nil(proc.read(("/proc/%d/stat"):format(a)))
  end)
end)
