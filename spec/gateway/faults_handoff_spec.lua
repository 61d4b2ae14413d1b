-- The fault matrix of hand-offs (prefill, then decode): NixlConnector, and the shared cache where it differs. What
-- the client
-- gets, whom it is blamed on, what is tried again, and that nothing stays held.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local SIM = { "--time-scale", "0.05" } -- leases of 1.5 s: what a broken decode has not told prefill comes back soon

local function start(connector, count, flags)
  local words = { "--vllm-pd-disaggregation", "--kv-connector", connector, "--disable-circuit-breaker" }
  proc.append(words, flags)
  local tail = (",connector=%s,count=%d,itl=1,ttft=1"):format(connector, count)
  return fleet.start({ workers = { "role=prefill" .. tail, "role=decode" .. tail }, sim = SIM, flags = words })
end

local title = faults.title

local function both_ways(rows, row)
  faults.add_both_ways(rows, "handoff", row)
end

local function rows_of_statuses(rows, leg)
  for _, status in ipairs({ 400, 404, 413 }) do
    both_ways(rows, { leg = leg, fault = "status:" .. status, status = status, error = "upstream_status",
      engine = true, attempts = 1 })
  end
  for _, status in ipairs({ 429, 503 }) do
    both_ways(rows, { leg = leg, fault = "status:" .. status, status = status, error = "upstream_status", engine = true,
      retry_after = "7", attempts = 2 })
  end
end

local function matrix(maybe)
  local rows = {}
  rows_of_statuses(rows, "prefill")
  rows_of_statuses(rows, "decode")
  both_ways(rows, { leg = "prefill", fault = "status:500", status = 500, error = "upstream_status", engine = true,
    attempts = 2,
    guilty = "leg" })
  both_ways(rows, { leg = "prefill", fault = "error_body", status = 500, error = "upstream_body", engine = true,
    attempts = 2,
    guilty = "leg" })
  both_ways(rows, { leg = "prefill", fault = "rst:0", status = 502, error = "reset", attempts = 2, guilty = "leg" })
  both_ways(rows, { leg = "prefill", fault = "fin:0", status = 502, error = "reset", attempts = 2, guilty = "leg" })
  both_ways(rows, { leg = "decode", fault = "status:500", status = 500, error = "upstream_status", engine = true,
    attempts = 2,
    guilty = maybe })
  both_ways(rows, { leg = "decode", fault = "error_body", status = 500, error = "upstream_body", engine = true,
    attempts = 2,
    guilty = maybe })
  both_ways(rows, { leg = "decode", fault = "rst:0", status = 502, error = "reset", attempts = 2, guilty = "leg" })
  both_ways(rows, { leg = "decode", fault = "fin:0", status = 502, error = "reset", attempts = 2, guilty = "leg" })
  rows[#rows + 1] = { plan = "handoff", leg = "decode", fault = "sse_error", stream = true, status = 500,
    error = "upstream_body",
    engine = "event", attempts = 2, guilty = maybe }
  return rows
end

for connector, maybe in pairs({ NixlConnector = "either", ExampleConnector = "leg" }) do
  describe("a hand-off over " .. connector, function()
    local f

    setup(function()
      f = start(connector, 2)
    end)

    teardown(function()
      f:stop()
    end)

    for _, row in ipairs(matrix(maybe)) do
      it("keeps the engine's words and blames the right worker: " .. title(row), function()
        faults.check_row(f, row)
      end)
    end

    for _, fault in ipairs({ "rst", "fin" }) do
      it("tells the client when decode's stream breaks after its first event: " .. fault, function()
        assert.is_true(#faults.check_broken_stream(f, fault, faults.wait_idle) > 0)
      end)
    end

    for _, stream in ipairs({ false, true }) do
      for _, order in ipairs({
        { role = "p", kind = "status", status = 500 }, { role = "p", kind = "status", status = 429 }, { role = "p",
          kind = "rst" },
        { role = "p", kind = "error_body" }, { role = "d", kind = "status", status = 500 }, { role = "d",
          kind = "status", status = 503 },
        { role = "d", kind = "fin" }, { role = "d", kind = stream and "sse_error" or "error_body" },
      }) do
        it(("serves everybody while one of two workers is sick: %s %s %s%s"):format(order.role, order.kind,
          order.status or "",
          stream and ", streamed" or ""), function()
          faults.check_sick_worker(f, order, stream)
        end)
      end
    end

    it("prefills again when decode has seen the request: old parameters never reach a second decode", function()
      local id = faults.new_id()
      for _, name in ipairs({ "d0", "d1" }) do
        f.sim:fault(name, { kind = "status", status = 500, times = 3 })
      end
      f:mark()
      local answer = f:post("/v1/completions", faults.body(), { ["X-Request-Id"] = id })
      assert.equal(500, answer.status)
      local legs = faults.legs_of(f, id)
      f.sim:reset("d0")
      f.sim:reset("d1")
      assert.is_true(#legs.decode == 2 or maybe == "either" and #legs.decode == 3)
      assert.equal(#legs.decode, #legs.prefill)
      local seen = {}
      for _, e in ipairs(legs.decode) do
        local params = json.raw(e.body, "kv_transfer_params") or e.headers["x-request-id"]
        assert.is_nil(seen[params])
        seen[params] = true
      end
    end)

    it("leaves nothing behind after all of this", function()
      faults.wait_idle(f)
      faults.assert_serves(f, true)
      faults.wait_idle(f)
    end)
  end)
end

describe("prefill without hand-off parameters", function()
  it("lets decode compute by itself, and counts it", function()
    local f = start("NixlConnector", 1)
    local before = faults.number(f, "baton_recomputes_total")
    for _, stream in ipairs({ false, true }) do
      faults.assert_serves(f, stream, { ["X-Sim-Fault"] = "no_params@prefill" })
    end
    assert.equal(2, faults.number(f, "baton_recomputes_total") - before)
    assert.same({}, faults.guilt(f))
    faults.wait_idle(f)
    f:stop()
  end)

  it("is prefill's fault with --refuse-recompute", function()
    local f = start("NixlConnector", 1, { "--refuse-recompute" })
    f:mark()
    local answer = f:post("/v1/completions", faults.body(), { ["X-Sim-Fault"] = "no_params@prefill" })
    assert.equal(502, answer.status)
    assert.equal("prefill", answer:header("x-baton-leg"))
    assert.equal("handoff", answer:header("x-baton-error"))
    assert.equal(0, #f:legs("/v1/completions").decode)
    assert.same({ p0 = 1 }, faults.guilt(f))
    faults.wait_idle(f)
    f:stop()
  end)
end)

-- Each silent request has its own; all run at once, so the deadline passes once.
describe("silence in a hand-off", function()
  local SECONDS = 1.5 * clock.slowness()
  local f

  setup(function()
    local s = tostring(SECONDS)
    f = start("NixlConnector", 1, { "--prefill-timeout-secs", s, "--first-event-timeout-secs", s,
      "--answer-timeout-secs", s,
      "--stall-timeout-secs", s, "--disable-retries" })
  end)

  teardown(function()
    f:stop()
  end)

  local CASES = {
    { leg = "prefill", fault = "hang" },
    { leg = "prefill", fault = "hang", stream = true },
    { leg = "prefill", fault = "hang_after_headers" },
    { leg = "prefill", fault = "hang_after_headers", stream = true },
    { leg = "prefill", fault = "stall:0" },
    { leg = "decode", fault = "hang" },
    { leg = "decode", fault = "hang", stream = true },
    { leg = "decode", fault = "hang_after_headers" },
    { leg = "decode", fault = "hang_after_headers", stream = true },
    { leg = "decode", fault = "stall:0" },
    { leg = "decode", fault = "stall:0", stream = true },
    { leg = "decode", fault = "stall:3", stream = true, begun = true },
  }

  local function start_case(case)
    case.id = faults.new_id()
    case.client = http.start(f.port, { path = "/v1/completions", body = faults.body({ stream = case.stream }),
      headers = { ["X-Sim-Fault"] = case.fault .. "@" .. case.leg, ["X-Request-Id"] = case.id } })
  end

  local function check_case(case)
    local answer = case.client:wait(nil, SECONDS + 8)
    case.client:close()
    assert.is_true(answer.ended_at - case.client.asked_at >= SECONDS * 0.9, "not before its time")
    if case.begun then
      assert.equal(200, answer.status)
      faults.assert_not_whole(answer)
      return
    end
    assert.equal(504, answer.status, answer.body)
    assert.equal(case.leg, answer:header("x-baton-leg"))
    assert.equal("first_byte_timeout", answer:header("x-baton-error"))
    assert.equal(504, json.decode(answer.body).error.code)
  end

  it("is answered in time whichever leg is silent, and holds exactly its tokens until then", function()
    local prefills, decodes = 0, 0
    f:mark()
    for _, case in ipairs(CASES) do
      start_case(case)
      prefills = prefills + (case.leg == "prefill" and 1 or 0)
      decodes = decodes + (case.leg == "decode" and 1 or 0)
    end
    -- stall:3 has sent three events
    local expected = { ["p0 prefill"] = prefills * faults.PROMPT_TOKENS,
      ["d0 decode"] = decodes * faults.PROMPT_TOKENS + 3 }
    eventually(function()
      assert.same(expected, faults.ledger(f))
      return true
    end, SECONDS / clock.slowness(), "the ledger holds what is waiting")
    for _, case in ipairs(CASES) do
      local ok, why = pcall(check_case, case)
      assert.is_true(ok, ("%s: %s"):format(title(case), type(why) == "table" and why.message or tostring(why)))
    end
    faults.wait_idle(f)
    for _, case in ipairs(CASES) do
      local legs = faults.legs_of(f, case.id)
      assert.equal(1, #legs.prefill, title(case))
      assert.equal(case.leg == "decode" and 1 or 0, #legs.decode, title(case))
      assert.not_equal("open", legs[case.leg][1]["end"], title(case))
    end
    faults.assert_serves(f, true)
  end)

  it("waits for a slow first byte within the deadline", function()
    for _, leg in ipairs({ "prefill", "decode" }) do
      for _, stream in ipairs({ false, true }) do
        faults.assert_serves(f, stream, { ["X-Sim-Fault"] = "slow_first_byte:200@" .. leg })
      end
    end
  end)
end)

describe("the total deadline", function()
  it("ends a request in any phase with 504 and names the leg that it waited for", function()
    local f = start("NixlConnector", 1, { "--request-timeout-secs", tostring(clock.slowness()) })
    local clients = {}
    for _, word in ipairs({ "hang@prefill", "hang@decode", "slow_first_byte:60000@decode" }) do
      clients[word] = http.start(f.port, { path = "/v1/completions", body = faults.body(),
        headers = { ["X-Sim-Fault"] = word } })
    end
    for word, client in pairs(clients) do
      local answer = client:wait()
      client:close()
      assert.equal(504, answer.status, word)
      assert.equal("total_timeout", answer:header("x-baton-error"))
      assert.equal(word:match("@(%w+)"), answer:header("x-baton-leg"), word)
    end
    assert.same({}, faults.guilt(f))
    faults.wait_idle(f)
    f:stop()
  end)
end)

teardown(function()
  proc.clean()
end)
