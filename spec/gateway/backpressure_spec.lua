-- A client that does not read: the gateway holds a bounded piece of its answer, the worker is made to wait, others
-- flow.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local TOKENS = 60000 -- about 12 MB of events: more than all socket buffers on the way
local MANY_BYTES = 1048576

describe("a client that does not read", function()
  local f

  setup(function()
    f = fleet.start({ workers = { "role=prefill,latency=0", "role=decode,latency=0" },
      flags = { "--vllm-pd-disaggregation", "--loops", "1" } })
    faults.assert_serves(f, true)
  end)

  teardown(function()
    faults.wait_idle(f)
    f:stop()
  end)

  local function buffered()
    return faults.number(f, "baton_buffered_bytes")
  end

  -- Until nothing moves any more: decode is blocked in the middle of its answer.
  local function wait_stalled()
    local last, since
    eventually(function()
      local events = faults.ledger(f)["d0 decode"] or 0
      if events ~= last then
        last, since = events, clock.now()
      end
      return last > faults.PROMPT_TOKENS and clock.now() - since > 0.15, "events so far: " .. tostring(last)
    end, 10, "the stream has come to a stop")
    assert.is_true(last < TOKENS, "decode was made to wait at " .. last)
  end

  it("costs less than 1 MB, and other streams flow beside it", function()
    local before = buffered()
    local c = http.start(f.port, { path = PATH, body = faults.body({ stream = true, tokens = TOKENS }) })
    wait_stalled()
    assert.is_true(buffered() - before < MANY_BYTES, ("%d bytes more"):format(buffered() - before))
    for _ = 1, 5 do
      faults.assert_serves(f, true)
    end
    local answer = c:wait(nil, 60)
    c:close()
    assert.equal(200, answer.status)
    assert.is_truthy(answer.body:find("data: [DONE]\n\n", -20, true), "whole")
    eventually(function()
      return buffered() <= before + 65536, buffered()
    end)
  end)

  for how, leave in pairs({
    FIN = function(c)
      c.socket:shutdown("send")
    end,
    RST = function(c)
      c:reset()
    end,
  }) do
    it("is noticed when it leaves while it is stalled: " .. how, function()
      f:mark()
      local c = http.start(f.port, { path = PATH, body = faults.body({ stream = true, tokens = TOKENS }) })
      wait_stalled()
      leave(c)
      eventually(function()
        return next(faults.ledger(f)) == nil and faults.state(f, "d0").live == 0
      end, 10, "decode has stopped")
      c:close()
    end)
  end

  it("is left when it reads nothing for too long", function()
    local short = fleet.start({ workers = { "role=prefill,latency=0", "role=decode,latency=0" },
      flags = { "--vllm-pd-disaggregation", "--client-write-stall-secs", tostring(0.5 * clock.slowness()) } })
    local c = http.start(short.port, { path = PATH, body = faults.body({ stream = true, tokens = TOKENS }) })
    eventually(function()
      return faults.number(short, "baton_client_gone_total") == 1
    end, 8, "the client was given up")
    faults.wait_idle(short)
    assert.same({}, faults.guilt(short))
    c:close()
    short:stop()
  end)

  it("does not run into decode's stall deadline", function()
    local short = fleet.start({ workers = { "role=prefill,latency=0", "role=decode,latency=0" },
      flags = { "--vllm-pd-disaggregation", "--stall-timeout-secs", tostring(0.5 * clock.slowness()) } })
    local c = http.start(short.port, { path = PATH, body = faults.body({ stream = true, tokens = TOKENS }) })
    local from = clock.now()
    eventually(function() -- silence of the worker that we ourselves have ordered
      assert.is_not_nil(faults.ledger(short)["d0 decode"])
      return clock.now() - from > 1.0 * clock.slowness()
    end, 8)
    local answer = c:wait(nil, 60)
    c:close()
    assert.is_truthy(answer.body:find("data: [DONE]\n\n", -20, true), "whole")
    assert.same({}, faults.guilt(short))
    short:stop()
  end)
end)

teardown(function()
  proc.clean()
end)
