-- Calls that nobody waits for, here aborts of requests whose clients have left, are bounded by worker: one that hangs
-- holds few connections, and none of them for long.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")

local MANY = 120
local LOOPS = 2
local RUNNING_MAX = 32 + LOOPS -- each loop may always have one

local function leave_all(f)
  local clients = {}
  f.sim:fault("w0", { kind = "hang", times = MANY })
  for i = 1, MANY do
    clients[i] = http.start(f.port, { path = "/v1/completions", body = faults.body() })
  end
  eventually(function()
    return faults.state(f, "w0").live == MANY
  end, 20, "all requests hang")
  f:mark()
  for _, c in ipairs(clients) do
    c:close()
  end
end

local function aborts(f)
  local count = 0
  for _, list in pairs(f:legs("/abort_request")) do
    count = count + #list
  end
  return count
end

local function dropped(f)
  return faults.number(f, "baton_background_dropped_total")
end

describe("background calls", function()
  local f

  before_each(function()
    f = fleet.start({ workers = { "role=hybrid,name=w0,engine=sglang,itl=1,ttft=1" },
      flags = { "--engine", "sglang" } })
  end)

  after_each(function()
    f:stop()
  end)

  it("are few at a worker that does not answer them, and the rest is dropped after 2 s", function()
    f.sim:fault("w0", { kind = "hang", path = "/abort_request", times = 4294967295 })
    leave_all(f)
    local at_once = 0 -- while none has waited enough
    eventually(function()
      local seen = aborts(f)
      if dropped(f) > 0 then
        return true
      end
      at_once = seen
      return faults.number(f, "baton_background_calls") == MANY
    end, 20, "all of them run or wait")
    assert.is_true(at_once <= RUNNING_MAX, at_once .. " at once")
    eventually(function()
      return faults.number(f, "baton_background_calls") == 0
    end, 20, "nothing waits any more")
    assert.is_true(dropped(f) > 0)
    assert.equal(MANY, aborts(f) + dropped(f))
  end)

  it("all reach a worker that is only slow", function()
    f.sim:fault("w0", { kind = "slow_first_byte", ms = 100, path = "/abort_request", times = 4294967295 })
    leave_all(f)
    eventually(function()
      return aborts(f) + dropped(f) == MANY
    end, 20, "all aborts have come")
    assert.equal(0, dropped(f))
    faults.wait_idle(f)
  end)
end)

teardown(function()
  proc.clean()
end)
