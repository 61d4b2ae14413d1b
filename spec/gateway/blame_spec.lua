-- Whom a failure is blamed on when it could be either's, and what the breaker does about it.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"

-- Which worker serves is chosen by headers, so that a spec can name its pairs.
local CHOOSE = [[
local function named(rows, name)
  for _, w in ipairs(rows) do
    if w.name == name then
      return w.id
    end
  end
end
return {
  api = 2,
  name = "by_header",
  version = "1",
  plan = function(req, view)
    local p = named(view.prefill, req.headers["x-p"]) or view.prefill[1]
    local d = named(view.decode, req.headers["x-d"]) or view.decode[1]
    if p and d then
      return { prefill = p, decode = d }
    end
    local w = named(view.hybrid, req.headers["x-w"])
    return w and { kind = "single", worker = w } or nil
  end,
}
]]

local function start(engine, flags)
  local words = { engine == "sglang" and "--pd-disaggregation" or "--vllm-pd-disaggregation", "--policy",
    proc.write("by_header.lua", CHOOSE), "--disable-retries" }
  proc.append(words, flags)
  local tail = (",engine=%s,count=2,itl=1,ttft=1"):format(engine)
  return fleet.start({ workers = { "role=prefill" .. tail, "role=decode" .. tail }, flags = words,
    sim = { "--time-scale", "0.05" } })
end

local function ask(f, p, d, fault)
  return f:post(PATH, faults.body(), { ["X-P"] = p, ["X-D"] = d, ["X-Sim-Fault"] = fault })
end

describe("decode's 500 in a hand-off", function()
  local f

  before_each(function()
    f = start("vllm", { "--disable-circuit-breaker" })
  end)

  after_each(function()
    f:stop()
  end)

  local function failed(p, d)
    assert.equal(500, ask(f, p, d, "status:500@decode").status)
  end

  it("is nobody's while the same two have failed together", function()
    for _ = 1, 3 do
      failed("p0", "d0")
    end
    assert.same({}, faults.guilt(f))
  end)

  it("is decode's when it fails so with a second prefill", function()
    failed("p0", "d0")
    failed("p1", "d0")
    assert.same({ d0 = 1 }, faults.guilt(f))
    failed("p1", "d0")
    assert.same({ d0 = 1 }, faults.guilt(f), "the same two again say nothing new")
    assert.equal(200, ask(f, "p0", "d1").status)
    assert.equal(200, ask(f, "p1", "d1").status)
    failed("p0", "d0")
    assert.same({ d0 = 2 }, faults.guilt(f))
  end)

  it("is prefill's when its next decode fails too", function()
    failed("p0", "d0")
    failed("p0", "d1")
    assert.same({ p0 = 1 }, faults.guilt(f))
  end)

  it("is forgotten when the pair works again", function()
    failed("p0", "d0")
    assert.equal(200, ask(f, "p0", "d0").status)
    failed("p1", "d0")
    failed("p0", "d1")
    assert.same({}, faults.guilt(f))
  end)
end)

describe("silence of a pair that runs both legs at once", function()
  it("is nobody's until one of them is silent with a second partner", function()
    local s = tostring(0.4 * clock.slowness())
    local f = start("sglang", { "--prefill-timeout-secs", s, "--first-event-timeout-secs", s, "--answer-timeout-secs",
      s,
      "--disable-circuit-breaker" })
    assert.equal(504, ask(f, "p0", "d0", "hang@decode").status)
    assert.same({}, faults.guilt(f))
    assert.equal(504, ask(f, "p1", "d0", "hang@decode").status)
    assert.same({ d0 = 1 }, faults.guilt(f))
    faults.wait_idle(f)
    f:stop()
  end)
end)

local function breaker_state(f, name)
  return faults.number(f, "baton_worker_breaker_state", { worker = name })
end

describe("a breaker", function()
  local f

  local function start_open_for(seconds)
    f = start("vllm", { "--breaker-open-secs", tostring(seconds), "--health-check-interval-secs", "60" })
  end

  after_each(function()
    faults.wait_idle(f)
    f:stop()
  end)

  local function break_p0()
    for i = 1, 5 do
      assert.equal(0, breaker_state(f, "p0"), "closed before failure " .. i)
      assert.equal(500, ask(f, "p0", "d0", "status:500@prefill").status)
    end
  end

  -- Open again it is for twice as long.
  local function half_open_p0()
    start_open_for(0.5 * clock.slowness())
    break_p0()
    eventually(function()
      return breaker_state(f, "p0") == 2
    end, 5, "half open")
  end

  it("does not hear of what is not the worker's fault", function()
    start_open_for(60)
    for _, status in ipairs({ 400, 404, 413, 422, 429, 503 }) do
      assert.equal(status, ask(f, "p0", "d0", "status:" .. status .. "@prefill").status)
      assert.equal(status, ask(f, "p0", "d0", "status:" .. status .. "@decode").status)
    end
    for _ = 1, 6 do -- clients that leave
      local c = http.start(f.port, { path = PATH, body = faults.body(), headers = { ["X-P"] = "p0", ["X-D"] = "d0",
        ["X-Sim-Fault"] = "hang@prefill" } })
      eventually(function()
        return faults.state(f, "p0").live == 1
      end)
      c:close()
      faults.wait_quiet(f)
    end
    assert.same({}, faults.guilt(f))
    for _, name in ipairs({ "p0", "p1", "d0", "d1" }) do
      assert.equal(0, breaker_state(f, name))
    end
  end)

  it("opens after five failures of its worker; all traffic goes to the other one", function()
    start_open_for(60)
    break_p0()
    assert.equal(1, breaker_state(f, "p0"))
    for _, name in ipairs({ "p1", "d0", "d1" }) do
      assert.equal(0, breaker_state(f, name), name)
    end
    local answer = ask(f, "p0", "d0")
    assert.equal(200, answer.status, answer.body)
    assert.equal("p1", answer:header("x-baton-prefill"))
  end)

  it("stays closed at both ends of a pair that keeps failing, while each works with others", function()
    start_open_for(60)
    for _ = 1, 7 do
      assert.equal(500, ask(f, "p0", "d0", "status:500@decode").status)
      assert.equal(200, ask(f, "p0", "d1").status)
      assert.equal(200, ask(f, "p1", "d0").status)
    end
    assert.same({}, faults.guilt(f))
    for _, name in ipairs({ "p0", "p1", "d0", "d1" }) do
      assert.equal(0, breaker_state(f, name), name)
    end
  end)

  it("spares the other half: a fault that all show takes nobody more out", function()
    start_open_for(60)
    break_p0()
    for _ = 1, 7 do
      assert.equal(500, ask(f, "p1", "d0", "status:500@prefill").status)
    end
    assert.equal(0, breaker_state(f, "p1"))
    assert.equal(1, faults.number(f, "baton_worker_breaker_spared_total", { worker = "p1" }), "counted once")
    assert.equal(0, faults.number(f, "baton_worker_breaker_opened_total", { worker = "p1" }))
    assert.truthy(http.get(f.admin_port, "/workers").body:find('"spared_total":1,"spared":true', 1, true))
    local answer = ask(f, "p1", "d0")
    assert.equal(200, answer.status, answer.body)
    assert.equal("p1", answer:header("x-baton-prefill"))
  end)

  it("lets one probe through when its time is over; the probe's success closes it", function()
    half_open_p0()
    local probe = http.start(f.port, { path = PATH, body = faults.body(), headers = { ["X-P"] = "p0", ["X-D"] = "d0",
      ["X-Sim-Fault"] = ("slow_first_byte:%d@prefill"):format(1500 * clock.slowness()) } })
    eventually(function()
      return faults.state(f, "p0").live == 1
    end, 5, "the probe is at p0")
    for _ = 1, 5 do
      assert.equal("p1", ask(f, "p0", "d0"):header("x-baton-prefill"), "one probe only")
    end
    local answer = probe:wait()
    probe:close()
    assert.equal(200, answer.status)
    assert.equal("p0", answer:header("x-baton-prefill"))
    assert.equal(0, breaker_state(f, "p0"))
    assert.equal("p0", ask(f, "p0", "d0"):header("x-baton-prefill"))
  end)

  it("opens again for longer when the probe fails", function()
    half_open_p0()
    assert.equal(500, ask(f, "p0", "d0", "status:500@prefill").status)
    assert.equal(1, breaker_state(f, "p0"))
    assert.equal(2, faults.number(f, "baton_worker_breaker_opened_total", { worker = "p0" }))
  end)

  it("asks for another probe when the client of the first one left", function()
    half_open_p0()
    local probe = http.start(f.port, { path = PATH, body = faults.body(), headers = { ["X-P"] = "p0", ["X-D"] = "d0",
      ["X-Sim-Fault"] = "hang@prefill" } })
    eventually(function()
      return faults.state(f, "p0").live == 1
    end, 5, "the probe is at p0")
    probe:close()
    faults.wait_quiet(f)
    assert.equal(2, breaker_state(f, "p0"))
    assert.equal("p0", ask(f, "p0", "d0"):header("x-baton-prefill"))
    assert.equal(0, breaker_state(f, "p0"))
  end)
end)

teardown(function()
  proc.clean()
end)
