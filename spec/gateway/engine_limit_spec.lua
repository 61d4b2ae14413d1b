-- --engine-request-limit: no worker has more legs at once than it says, over all loops; whoever finds none below it is
-- told so at once.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")

local LIMIT = 2
local LONG = '{"model":"sim","prompt":"a b c","max_tokens":2000,"stream":true}'
local SHORT = '{"model":"sim","prompt":"a b c","max_tokens":1}'

local function start(workers, ...)
  return fleet.start({ workers = workers, flags = { "--loops", "2", "--policy", "round_robin",
    "--engine-request-limit", tostring(LIMIT), ... } })
end

-- So many streams, each on a connection of its own, all past their first event.
local function streams(f, count)
  local list = {}
  for i = 1, count do
    list[i] = http.start(f.port, { path = "/v1/completions", body = LONG })
  end
  for _, c in ipairs(list) do
    c:wait_events(1)
  end
  return list
end

local function assert_full(f)
  local answer = f:post("/v1/completions", SHORT)
  assert.equal(503, answer.status)
  assert.equal("1", answer:header("retry-after"))
  assert.matches("each is at its limit (--engine-request-limit)", answer.body, 1, true)
end

describe("--engine-request-limit", function()
  teardown(proc.clean)

  it("fills every worker and no more, and takes the next when one has ended", function()
    local f = start({ "role=hybrid,count=2,ttft=1,itl=1000" }, "--engine", "vllm")
    local list = streams(f, 2 * LIMIT)
    for name in pairs(f.workers) do
      assert.equal(LIMIT, faults.state(f, name).live)
    end
    for _ = 1, 4 do
      assert_full(f)
    end
    list[1]:close()
    eventually(function()
      local answer = f:post("/v1/completions", SHORT)
      return answer.status == 200, answer.body
    end, 10, "the place is free again")
    f:stop()
  end)

  it("counts a decode from the plan on, and lets no prefill stand in for it", function()
    local f = start({ "role=prefill,count=2,ttft=1,connector=NixlConnector",
      "role=decode,ttft=1,itl=1000,connector=NixlConnector" }, "--vllm-pd-disaggregation")
    streams(f, LIMIT)
    assert_full(f)
    f:stop()
  end)
end)
