-- Gateway-managed rooms whose workers die, stand still or are left: before the first byte another prefill takes over
-- under a waiting decode, after it all begins anew, and nothing is held by anybody in the end.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local managed = require("gateway.support.gateway_managed")

local PATH = "/v1/completions"

-- Prefill that never sends (one chunk, not soon), and one that sends page by page and does not come to an end.
local DEAD = "kv_dead_ms=4000" -- the gateway has missed two heartbeats by then, and knows whom to blame
local SILENT = "ttft=60000,kv_chunk_pages=1000," .. DEAD
local ENDLESS = "ttft=60000,kv_chunk_pages=1," .. DEAD
local QUICK = "ttft=1," .. DEAD
local LONG = ("The baton is handed on at full speed, and nobody may drop it now. "):rep(180)

local function body_of(prompt, stream)
  return faults.body({ prompt = prompt, stream = stream })
end

local function wait_waiting(f, name)
  eventually(function()
    local s = f:state(name)
    return s.kv.rooms.waiting_for_input == 1, json.encode(s.kv)
  end, 10, name .. " waits for the first byte")
end

local function wait_moving(f, name)
  eventually(function()
    local s = f:state(name)
    return s.kv.rooms.transferring == 1 and s.kv.agents[1].bytes_received > 0, json.encode(s.kv)
  end, 10, "bytes come to " .. name)
end

local function wait_asked(f, name)
  eventually(function()
    return #f:requests(name) == 1
  end, 10, name .. " has the leg")
end

local function assert_right(answer, prompt, stream)
  assert.equal(200, answer.status, answer.body)
  assert.equal(fleet.expect(prompt, faults.TOKENS), faults.text_of(answer, stream))
  assert.equal(not stream and "external" or nil, answer:header("x-sim-kv-source"))
end

describe("a gateway-managed transfer that goes wrong", function()
  local f

  after_each(function()
    proc.clean()
  end)

  local function finish()
    f:wait_idle()
    f:stop()
  end

  -- p0 has the request, p1 comes only then; harm(f) takes p0 out of it.
  local function replaces(stream, harm)
    f = managed.start({ p0 = SILENT, p1 = QUICK, d0 = "itl=1," .. DEAD }, { late = { p1 = true } })
    local client = f:start(PATH, body_of(LONG, stream), { ["X-Request-Id"] = "swap-1" })
    wait_waiting(f, "d0")
    wait_asked(f, "p0")
    f:attach("p1")
    harm()
    local answer = client:wait()
    assert_right(answer, LONG, stream)
    assert.equal("p1", answer:header("x-baton-prefill"))
    assert.equal("2", answer:header("x-baton-attempts"))
    assert.equal(1, #f:requests("d0"), "decode heard of nothing")
    assert.equal(1, #f:requests("p1"))
    assert.not_equal(managed.room_of(f:requests("d0")[1]), managed.room_of(f:requests("p1")[1]))
    assert.equal(1, f:number("baton_prefill_replacements_total"))
    assert.equal(0, f:number("baton_retries_total"))
    local record = eventually(function()
      return f:record("swap-1").attempts[1].end_ms and f:record("swap-1")
    end, 10, "the record")
    assert.equal(1, #record.attempts)
    assert.equal("p0", record.attempts[1].replaced[1].prefill)
    assert.equal("p1", record.attempts[1].prefill)
    return record
  end

  for _, stream in ipairs({ false, true }) do
    it("gives a waiting decode another prefill when its own is killed" .. (stream and ", streamed" or ""), function()
      replaces(stream, function()
        f:kill("p0")
      end)
      assert.same({ p0 = 1 }, faults.guilt(f))
      finish()
    end)
  end

  it("does so when prefill's engine dies and its process lives", function()
    replaces(false, function()
      f:fault("p0", { kind = "die" })
      f:forget("p0") -- its port is closed
    end)
    finish()
  end)

  it("does so when prefill stands still", function()
    replaces(true, function()
      f:kill("p0", proc.SIGSTOP)
    end)
    faults.wait_idle(f)
    f.sims.p0.process:kill(proc.SIGKILL) -- its peers wait for what a stopped process may still write
    finish()
  end)

  local function begins_anew(stream, harm)
    f = managed.start({ p0 = ENDLESS, p1 = QUICK, d0 = "itl=1," .. DEAD }, { late = { p1 = true } })
    local client = f:start(PATH, body_of(LONG, stream), { ["X-Request-Id"] = "anew-1" })
    wait_moving(f, "d0")
    f:attach("p1")
    harm()
    local answer = client:wait()
    assert_right(answer, LONG, stream)
    assert.equal("p1", answer:header("x-baton-prefill"))
    assert.equal(2, #f:requests("d0"))
    assert.not_equal(managed.room_of(f:requests("d0")[1]), managed.room_of(f:requests("d0")[2]))
    assert.equal(managed.room_of(f:requests("p1")[#f:requests("p1")]), managed.room_of(f:requests("d0")[2]))
  end

  for _, stream in ipairs({ false, true }) do
    it("begins anew when prefill is killed after the first byte" .. (stream and ", streamed" or ""), function()
      begins_anew(stream, function()
        f:kill("p0")
      end)
      assert.same({ p0 = 1 }, faults.guilt(f))
      finish()
    end)
  end

  it("begins anew when prefill stands still after the first byte", function()
    begins_anew(false, function()
      f:kill("p0", proc.SIGSTOP)
    end)
    faults.wait_idle(f)
    f.sims.p0.process:kill(proc.SIGKILL) -- its peers wait for what a stopped process may still write
    finish()
  end)

  it("aborts prefill's room when decode is killed, and another decode serves", function()
    f = managed.start({ p0 = QUICK, d0 = "itl=1", d1 = "itl=1" }, { late = { d1 = true } })
    f:fault("p0", { kind = "kv_stall", times = 1, after_chunks = 3 })
    local client = f:start(PATH, body_of(LONG))
    wait_moving(f, "d0")
    f:attach("d1")
    f:kill("d0")
    local answer = client:wait()
    assert_right(answer, LONG)
    assert.equal("d1", answer:header("x-baton-decode"))
    assert.equal(2, #f:requests("p0"))
    assert.equal(1, f:state("p0").kv.rooms_failed)
    assert.equal(0, f:number("baton_prefill_replacements_total"))
    finish()
  end)

  it("aborts both rooms when the client leaves", function()
    f = managed.start({ p0 = ENDLESS, d0 = "itl=1" })
    local client = f:start(PATH, body_of(LONG))
    wait_moving(f, "d0")
    client:close()
    eventually(function()
      return f:state("p0").kv.rooms_failed == 1 and f:state("d0").kv.rooms_failed == 1
    end, 10, "both rooms have failed")
    finish()
  end)

  it("fails with the reason where nobody can take over", function()
    f = managed.start({ p0 = SILENT, d0 = "itl=1" })
    local client = f:start(PATH, body_of(LONG))
    wait_waiting(f, "d0")
    f:kill("p0")
    local answer = client:wait()
    assert.equal(502, answer.status, answer.body)
    assert.equal("prefill", answer:header("x-baton-leg"))
    finish()
  end)

  it("ends a room that nothing comes to by its deadline", function()
    f = managed.start({ p0 = SILENT, d0 = "itl=1" }, { flags = { "--room-start-ms", "300", "--max-attempts", "1" } })
    local answer = f:post(PATH, body_of(LONG))
    assert.equal(502, answer.status, answer.body)
    assert.equal("kv_transfer", answer:header("x-baton-error"))
    finish()
  end)
end)
