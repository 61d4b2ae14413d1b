-- Gateway-managed rooms at the seams between agents, hub and dispatcher: several things go wrong one after the other,
-- or the gateway itself stands still.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local gateway_managed = require("gateway.support.gateway_managed")

local PATH = "/v1/completions"
local DEAD = "kv_dead_ms=4000"
local SILENT = "ttft=60000,kv_chunk_pages=1000," .. DEAD -- a prefill that never sends
local QUICK = "ttft=1," .. DEAD
local LONG = ("The baton is handed on at full speed, and nobody may drop it now. "):rep(180)

local function wait_kv(f, name, what, is_so)
  eventually(function()
    local s = f:state(name)
    return is_so(s.kv), json.encode(s.kv)
  end, 10, name .. ": " .. what)
end

local function wait_waiting(f, name)
  wait_kv(f, name, "it waits for the first byte", function(kv)
    return kv.rooms.waiting_for_input == 1
  end)
end

local function wait_moving(f, name)
  wait_kv(f, name, "bytes come", function(kv)
    return kv.rooms.transferring == 1 and kv.agents[1].bytes_received > 0
  end)
end

local function wait_asked(f, name, times)
  eventually(function()
    return #f:requests(name) == (times or 1)
  end, 10, name .. " has the leg")
end

local function assert_right(answer)
  assert.equal(200, answer.status, answer.body)
  assert.equal(fleet.expect(LONG, faults.TOKENS), faults.text_of(answer))
end

describe("a gateway-managed transfer in which several things go wrong", function()
  local f

  after_each(function()
    proc.clean()
  end)

  local function start(workers, late, flags)
    f = gateway_managed.start(workers, { late = late, flags = flags })
  end

  local function ask(id)
    return f:start(PATH, faults.body({ prompt = LONG }), { ["X-Request-Id"] = id or "review-1" })
  end

  local function finish()
    f:wait_idle()
    f:stop()
  end

  it("goes on when the gateway has stood still for longer than agents wait for it", function()
    start({ p0 = "ttft=9000,kv_chunk_pages=1," .. DEAD, d0 = "itl=1," .. DEAD })
    local client = ask()
    wait_moving(f, "d0")
    f.gateway:kill(proc.SIGSTOP)
    for _, name in ipairs({ "p0", "d0" }) do
      eventually(function()
        return f.sims[name].process:stderr():find("no gateway at .-: no sign of life") ~= nil
      end, 10, name .. " has hung up on it")
    end
    f.gateway:kill(proc.SIGCONT)
    local answer = client:wait()
    assert_right(answer)
    assert.is_nil(answer:header("x-baton-attempts"))
    assert.same({}, faults.guilt(f))
    assert.equal(1, #f:requests("d0"))
    finish()
  end)

  it("does not wait for a stopped prefill with decode's pages", function()
    start({ p0 = SILENT, p1 = QUICK, d0 = "itl=1," .. DEAD }, { p1 = true })
    local client = ask()
    wait_waiting(f, "d0")
    f:attach("p1")
    f:kill("p0", proc.SIGSTOP)
    assert_right(client:wait())
    finish() -- d0 holds nothing, though p0 has confirmed nothing
  end)

  it("tries another prefill with the only decode when it is nobody's fault", function()
    start({ p0 = QUICK, p1 = QUICK, d0 = "itl=1," .. DEAD }, { p1 = true }, { "--room-stall-ms", "2000" })
    f:fault("p0", { kind = "kv_stall", times = 1, after_chunks = 3 })
    local client = ask()
    wait_moving(f, "d0")
    f:attach("p1")
    local answer = client:wait()
    assert_right(answer)
    assert.equal("p1", answer:header("x-baton-prefill"))
    assert.equal(2, #f:requests("d0"))
    finish()
  end)

  it("is repaired twice in a row", function()
    start({ p0 = SILENT, p1 = SILENT, p2 = QUICK, d0 = "itl=1," .. DEAD }, { p1 = true, p2 = true })
    local client = ask()
    wait_waiting(f, "d0")
    wait_asked(f, "p0")
    f:attach("p1")
    f:kill("p0")
    wait_asked(f, "p1")
    wait_kv(f, "p1", "decode has announced itself", function(kv)
      return kv.rooms.waiting_for_input == 1
    end)
    f:attach("p2")
    f:kill("p1")
    local answer = client:wait()
    assert_right(answer)
    assert.equal("p2", answer:header("x-baton-prefill"))
    assert.equal(1, #f:requests("d0"))
    assert.equal(2, f:number("baton_prefill_replacements_total"))
    assert.same({ p0 = 1, p1 = 1 }, faults.guilt(f))
    finish()
  end)

  it("begins anew when decode dies after its prefill was replaced", function()
    start({ p0 = SILENT, p1 = QUICK, d0 = "itl=1," .. DEAD, d1 = "itl=1," .. DEAD }, { p1 = true, d1 = true })
    f:fault("p1", { kind = "kv_stall", times = 1, after_chunks = 0 })
    local client = ask()
    wait_waiting(f, "d0")
    f:attach("p1")
    f:kill("p0")
    wait_asked(f, "p1")
    f:attach("d1")
    f:kill("d0")
    local answer = client:wait()
    assert_right(answer)
    assert.equal("d1", answer:header("x-baton-decode"))
    assert.equal(2, #f:requests("p1"))
    assert.equal(1, #f:requests("d1"))
    finish()
  end)

  it("gives everything back when the client leaves after prefill was replaced", function()
    start({ p0 = SILENT, p1 = SILENT, d0 = "itl=1," .. DEAD }, { p1 = true })
    local client = ask()
    wait_waiting(f, "d0")
    f:attach("p1")
    f:kill("p0")
    wait_asked(f, "p1")
    client:close()
    finish()
  end)

  it("computes the prompt anew when prefill had answered, and died before a byte of it moved", function()
    start({ p0 = QUICK, p1 = QUICK, d0 = "itl=1," .. DEAD }, { p1 = true })
    f:fault("p0", { kind = "kv_stall", times = 1, after_chunks = 0 })
    local client = ask()
    wait_waiting(f, "d0")
    eventually(function()
      return f:state("p0").live == 0
    end, 10, "p0 has answered")
    f:attach("p1")
    f:kill("p0")
    local answer = client:wait()
    assert_right(answer)
    assert.equal("p1", answer:header("x-baton-prefill"))
    assert.equal(1, #f:requests("d0"))
    finish()
  end)

  it("frees prefill at once when decode refuses the request", function()
    start({ p0 = SILENT, d0 = "itl=1" })
    f:fault("d0", { kind = "status", status = 400, times = 1, path = PATH })
    local answer = f:post(PATH, faults.body({ prompt = LONG }))
    assert.equal(400, answer.status, answer.body)
    finish()
  end)

  it("ends cleanly while rooms are open", function()
    start({ p0 = SILENT, d0 = "itl=1" }, nil, { "--drain-timeout-secs", "1" })
    local client = ask()
    wait_waiting(f, "d0")
    f.gateway:kill(proc.SIGTERM)
    assert.equal(0, f.gateway:wait(10))
    client:close()
    for _, name in ipairs({ "p0", "d0" }) do
      wait_kv(f, name, "its room is over", function(kv)
        return kv.rooms_failed == 1 and kv.agents[1].rooms_open == 0
      end)
      f.sims[name].process:stop(5)
    end
  end)

  it("lets nobody's rooms stay when one of two gateways is killed", function()
    start({ p0 = SILENT, d0 = "itl=1" })
    local client = ask()
    wait_waiting(f, "d0")
    f.gateway:kill(proc.SIGKILL)
    client:close()
    for _, name in ipairs({ "p0", "d0" }) do
      wait_kv(f, name, "its room is over", function(kv)
        return kv.rooms_failed == 1 and kv.agents[1].rooms_open == 0
      end)
      f.sims[name].process:stop(5)
    end
  end)
end)
