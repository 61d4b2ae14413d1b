-- Many streams of HTTP/2 over a hundred connections: what they have taken of malloc and of our own allocators they give
-- back. Resident memory is printed, never judged: it goes up and down with Lua's heaps.
--
-- BATON_SOAK=1 (`make soak`): 100,000 streams at a time, else 10,000.

local allocations = require("gateway.support.allocations")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")
local workers = require("gateway.support.mock")

local STREAMS = (os.getenv("BATON_SOAK") or "") ~= "" and 100000 or 10000
local CONNECTIONS = 100
local KEPT_BYTES = 1048576 -- of objects that the next connections use again
local JSON = ('{"model":"m","messages":[{"role":"user","content":"%s"}],"max_tokens":5}'):format(("a"):rep(950))
local STREAM = JSON:gsub('"content":"', '"content":"bench stream: '):gsub("}$", ',"stream":true}')

local h2load = os.execute("command -v h2load >/dev/null") == 0
local it_is = h2load and (os.getenv("BATON_SANITIZE") or "") == "" and it or pending -- sanitizers have their own malloc

describe("HTTP/2's memory", function()
  local mock, prefill, decode

  before_each(function()
    mock, prefill, decode = workers.start()
  end)

  after_each(function()
    mock:stop()
    proc.clean()
  end)

  for what, body in pairs({ whole = JSON, streamed = STREAM }) do
    it_is("is flat, answers " .. what, function()
      local counter = allocations.new()
      local gateway, port, admin_port = fleet.start_gateway({ "--vllm-pd-disaggregation", "--prefill", prefill,
        "--decode", decode, "--disable-health-check", "--load-interval-secs", "0", "--no-access-log" },
        { env = counter.env })
      eventually(function()
        local answer = http.get(port, "/readiness")
        return answer.status == 200, answer.body
      end, 10, "/readiness is 200")
      local file = proc.write("load.json", body)

      local function ask()
        local p = proc.start({ "/usr/bin/env", "h2load", "-n", STREAMS, "-c", CONNECTIONS, "-m", "10",
          "-H", "content-type: application/json", "-d", file,
          ("http://127.0.0.1:%d/v1/chat/completions"):format(port) }, { name = "h2load" })
        assert.equal(0, p:wait(240))
        assert.truthy(p:stdout():find(STREAMS .. " succeeded, 0 failed, 0 errored", 1, true), p:stdout())
        assert.truthy(p:stdout():find(STREAMS .. " 2xx", 1, true), p:stdout())
        eventually(function()
          local open = 0
          for count in http.get(admin_port, "/metrics").body:gmatch("\nbaton_client_connections{[^}]*} (%d+)") do
            open = open + count
          end
          return open == 0, open
        end, 10, "all connections are closed")
      end

      -- All kinds of our own, and what the process has of the system.
      local function memory()
        local own = 0
        for bytes in http.get(admin_port, "/metrics").body:gmatch("\nbaton_memory_bytes{[^}]*} (%d+)") do
          own = own + bytes
        end
        return own, fleet.metric(admin_port, "baton_process_resident_bytes ")
      end

      ask()
      local own_before, resident_before = memory()
      local taken, freed = counter:count(ask)
      local own, resident = memory()
      print(("  %d streams %s: %d calls of malloc, %+d kept; of our own %+d bytes; resident %.1f MB, %+.1f"):format(
        STREAMS, what, taken, taken - freed, own - own_before, resident / 1e6, (resident - resident_before) / 1e6))
      assert.truthy(taken > STREAMS, "the counter does not count")
      assert.truthy(math.abs(taken - freed) < STREAMS / 10, taken - freed)
      assert.truthy(own - own_before < KEPT_BYTES, own - own_before)
      gateway:stop()
    end)
  end
end)
