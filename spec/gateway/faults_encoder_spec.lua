-- Encoders that fail before a pair: another one takes the part, whose fault it was is held against it alone, and
-- nothing stays held: no KV, for none was made yet, no load, no leg.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local CHAT = "/v1/chat/completions"
local number = 0

local function body(stream)
  number = number + 1
  return json.encode({ model = "sim", max_tokens = 4, stream = stream or nil, messages = { { role = "user", content = {
    { type = "text", text = "look" }, { type = "image_url", image_url = { url = "http://media/" .. number } },
    { type = "image_url", image_url = { url = "http://media/too/" .. number } },
  } } } })
end

local f

local function start(count, flags)
  local words = { "--vllm-pd-disaggregation", "--breaker-failures", "16" }
  proc.append(words, flags)
  f = fleet.start({
    workers = { "role=encode,ttft=1,count=" .. count, "role=prefill,ttft=1", "role=decode,ttft=1,itl=1" },
    flags = words, sim = { "--time-scale", "0.01" },
  })
end

local function stop()
  f:stop()
  proc.clean()
end

local function assert_nothing_held()
  faults.wait_idle(f)
  for _, name in ipairs({ "e0", "p0", "d0" }) do
    local ledger = f:told(name).ledger
    assert.equal(0, ledger.prefill.requests + ledger.decode.requests + ledger.prefill.tokens)
  end
end

-- guilty: e0 (or it and nobody: nil).
local FAULTS = {
  { { kind = "status", status = 500 }, guilty = true },
  { { kind = "status", status = 503 } },
  { { kind = "status", status = 429 } },
  { { kind = "rst" }, guilty = true },
  { { kind = "error_body" }, guilty = true },
  { { kind = "hang" }, guilty = true },
}

describe("an encoder that fails", function()
  setup(function()
    start(2, { "--prefill-timeout-secs", "2" })
  end)
  teardown(stop)

  for _, row in ipairs(FAULTS) do
    local name = row[1].kind .. (row[1].status and " " .. row[1].status or "")
    it("gives its part to the other one: " .. name, function()
      local before = faults.outcomes(f)
      row[1].times = 2
      f.sim:fault("e0", row[1])
      local id = faults.new_id()
      local answer, seen = f:exchange(CHAT, body(), { ["X-Request-Id"] = id })
      assert.equal(200, answer.status, answer.body)
      assert.equal("e1", answer:header("x-baton-encode"))
      assert.is_true(#seen.encode >= 3, "asked again")
      assert.equal(1, #seen.prefill)
      assert.equal(0, f:state("p0").media_local)
      local guilt = faults.guilt(f, before)
      assert.equal(row.guilty and true or nil, guilt.e0 ~= nil or nil)
      assert.is_nil(guilt.e1 or guilt.p0 or guilt.d0)
      local text = http.get(f.admin_port, "/admin/explain/" .. id .. "?format=text").body
      assert.truthy(text:find("not encoded by e0: ", 1, true), text)
      assert_nothing_held()
      http.request(f.sim.workers.e0.port, { method = "DELETE", path = "/sim/fault" })
    end)
  end
end)

describe("the only encoder", function()
  setup(function()
    start(1, { "--disable-retries" })
  end)
  teardown(stop)

  it("is quoted where it refuses", function()
    f.sim:fault("e0", { kind = "status", status = 422, times = 4 })
    local answer, seen = f:exchange(CHAT, body())
    assert.equal(422, answer.status)
    assert.equal("encode", answer:header("x-baton-leg"))
    assert.equal(0, #seen.prefill + #seen.decode)
    assert.same({}, faults.guilt(f))
    http.request(f.sim.workers.e0.port, { method = "DELETE", path = "/sim/fault" })
    assert_nothing_held()
  end)

  it("stops when its client leaves", function()
    local c = http.start(f.port, { path = CHAT, body = body(), headers = { ["X-Sim-Fault"] = "hang@encode" } })
    eventually(function()
      return f:state("e0").live == 2
    end, 5, "both parts are there")
    c:close()
    eventually(function()
      return f:state("e0").live == 0
    end, 5, "both have ended")
    assert_nothing_held()
  end)

  it("has as long as the whole request", function()
    local g = fleet.start({ workers = { "role=encode", "role=hybrid,ttft=1" },
      flags = { "--request-timeout-secs", "2" } })
    local answer = g:post(CHAT, body(), { ["X-Sim-Fault"] = "hang@encode" })
    assert.equal(504, answer.status, answer.body)
    assert.equal("encode", answer:header("x-baton-leg"))
    assert.equal("total_timeout", answer:header("x-baton-error"))
    assert.equal(200, g:post(CHAT, body()).status)
    g:stop()
  end)

  it("is missed with 503 by media, and by nobody else, when it is lost", function()
    f.sim:fault("e0", { kind = "die" })
    eventually(function()
      local told = f:told("e0")
      return not told.usable
    end, 10, "it is down")
    local before = f:state("p0").requests
    local answer = f:post(CHAT, body())
    assert.equal(503, answer.status, answer.body)
    assert.truthy(answer.body:find("no encode worker is usable: e0: down", 1, true), answer.body)
    assert.equal(before, f:state("p0").requests)
    local words = '{"model":"sim","messages":[{"role":"user","content":"words"}],"max_tokens":2}'
    assert.equal(200, f:post(CHAT, words).status)
  end)
end)
