-- examples/tour.md: each of its commands, over examples/run/run.sh.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local ports = require("gateway.support.port")
local proc = require("gateway.support.proc")

local SECONDS = 60 -- of one block: a worker that was killed comes back in it

describe("examples/tour.md", function()
  teardown(proc.clean)

  -- Ready, or ended: somebody else may take a port between our look at it and its process's start.
  local function start()
    local words = {
      PORT = tostring(ports.free()), ADMIN_PORT = tostring(ports.free()), TRANSFER_PORT = tostring(ports.free()),
      RUN_DIR = proc.path("run"), BATON_BUILD_DIR = fleet.binary("BATON_BIN", "baton"):match("^(.*)/[^/]*$"),
    }
    local run = proc.start({ "/bin/sh", "examples/run/run.sh" }, { name = "run", env = words })
    eventually(function()
      return not run:is_alive() or run:stdout():find("Ctrl-C ends all", 1, true), run:stdout() .. run:stderr()
    end, 60, "run.sh is ready")
    return run, words
  end

  local function blocks()
    local out = {}
    for block in proc.read("examples/tour.md"):gmatch("\n```sh\n(.-)\n```\n") do
      out[#out + 1] = block
    end
    return out
  end

  it("does what it says", function()
    local run, words = start()
    for _ = 1, 2 do
      if not run:is_alive() and run:stderr():find("address already in use", 1, true) then
        run, words = start()
      end
    end
    assert.is_true(run:is_alive(), run:stdout() .. run:stderr())
    assert.truthy(run:stdout():find("http://127.0.0.1:" .. words.ADMIN_PORT .. "/ui", 1, true))
    local all = blocks()
    assert.is_true(#all >= 11, #all .. " blocks")
    for _, block in ipairs(all) do
      local here = block:gsub(":30000", ":" .. words.PORT):gsub(":29000", ":" .. words.ADMIN_PORT):gsub("build/run",
        words.RUN_DIR)
      eventually(function()
        local code, out, err = proc.run({ "/bin/sh", "-c", here }, { name = "block", seconds = 30 })
        local log = proc.read(words.RUN_DIR .. "/gateway.log") or ""
        local said = run:stdout():sub(-500) .. run:stderr() .. log:sub(-1500)
        local seen = { here, "status " .. tostring(code), out, err, said }
        return code == 0, table.concat(seen, "\n")
      end, SECONDS, block)
    end
    eventually(function() -- the load that it makes is answered
      return fleet.metric(tonumber(words.ADMIN_PORT), 'baton_requests_total{route="chat",status="200"}') > 3
    end, 20, "requests are answered")
    http.hang_up(tonumber(words.ADMIN_PORT))
    run:kill(proc.SIGTERM)
    assert.equal(0, run:wait(30), run:stderr())
    for _, name in ipairs({ "p0", "p1", "d0", "d1" }) do
      assert.is_nil(proc.read(words.RUN_DIR .. "/" .. name .. ".pid"))
    end
  end)
end)
