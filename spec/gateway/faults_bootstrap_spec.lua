-- The fault matrix of pairs that run both legs at once: SGLang (joined by a room, aborted by rid) and
-- NixlPushConnector.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local SIM = { "--time-scale", "0.05" }
local NO_BREAKER = "--disable-circuit-breaker"

local function start_sglang(count, flags)
  local words = { "--pd-disaggregation", NO_BREAKER }
  proc.append(words, flags)
  local tail = (",engine=sglang,count=%d,itl=1,ttft=1"):format(count)
  return fleet.start({ workers = { "role=prefill" .. tail, "role=decode" .. tail }, flags = words })
end

-- Engine ids are configured, so that no request has to teach them first.
local function push_config(workers)
  local lines = {}
  for _, w in pairs(workers) do
    local more = w.role == "prefill" and (', engine_id = "%s", bootstrap_port = %d'):format(w.name, w.second) or ""
    local line = '{ name = "%s", role = "%s", url = "%s", connector = "NixlPushConnector"%s },'
    lines[#lines + 1] = line:format(w.name, w.role, w.url, more)
  end
  return "return { pools = { { name = \"push\", workers = {\n" .. table.concat(lines, "\n") .. "\n} } } }\n"
end

local function start_push(count, flags)
  local words = { NO_BREAKER }
  proc.append(words, flags)
  local tail = (",connector=NixlPushConnector,count=%d,itl=1,ttft=1"):format(count)
  return fleet.start({ workers = { "role=prefill" .. tail, "role=decode" .. tail }, sim = SIM, flags = words,
    config = push_config })
end

local title = faults.title

local function both_ways(rows, row)
  faults.add_both_ways(rows, "bootstrap", row)
end

-- aborts: the engine has an abort route; then its prefill waits for decode, so both partners can be seen cancelled.
local function matrix(aborts)
  local rows = {}
  for _, leg in ipairs({ "prefill", "decode" }) do
    local any_partner = leg == "decode" and not aborts
    local function add(row)
      row.leg, row.aborts, row.any_partner = leg, aborts, row.any_partner or any_partner
      both_ways(rows, row)
    end
    for _, status in ipairs({ 400, 404, 413 }) do
      add({ fault = "status:" .. status, status = status, error = "upstream_status", engine = true, attempts = 1 })
    end
    for _, status in ipairs({ 429, 503 }) do
      add({ fault = "status:" .. status, status = status, error = "upstream_status", engine = true, retry_after = "7",
        attempts = 2 })
    end
    add({ fault = "status:500", status = 500, error = "upstream_status", engine = true, attempts = 2, guilty = "leg" })
    add({ fault = "error_body", status = 500, error = "upstream_body", engine = true, attempts = 2, guilty = "leg" })
    if leg == "decode" then -- prefill has answered, or is just doing so
      for _, fault in ipairs({ "rst:0", "fin:0" }) do
        local row = { leg = leg, fault = fault, status = 502, error = "reset", attempts = 2, guilty = "leg",
          any_partner = true,
          aborts = aborts, plan = "bootstrap" }
        if aborts then -- SGLang's stream has no head before its first event
          row.may_be_stale = true
        end
        both_ways(rows, row)
      end
    end
  end
  rows[#rows + 1] = { plan = "bootstrap", leg = "decode", fault = "sse_error", stream = true, status = 500,
    error = "upstream_body",
    engine = "event", attempts = 2, guilty = "leg", aborts = aborts, any_partner = not aborts }
  return rows
end

local FLEETS = {
  { name = "SGLang", start = start_sglang, aborts = true },
  { name = "NixlPushConnector", start = start_push, aborts = false },
}

for _, which in ipairs(FLEETS) do
  describe("both legs at once, " .. which.name, function()
    local f

    setup(function()
      f = which.start(2)
    end)

    teardown(function()
      f:stop()
    end)

    for _, row in ipairs(matrix(which.aborts)) do
      it("keeps the engine's words, cancels the other leg once and blames the right worker: " .. title(row), function()
        faults.check_row(f, row)
      end)
    end

    for _, fault in ipairs({ "rst", "fin" }) do
      it("tells the client when decode's stream breaks after its first event: " .. fault, function()
        faults.check_broken_stream(f, fault, faults.wait_quiet)
      end)
    end

    for _, stream in ipairs({ false, true }) do
      for _, order in ipairs({
        { role = "p", kind = "status", status = 500 }, { role = "p", kind = "status", status = 429 }, { role = "p",
          kind = "error_body" },
        { role = "d", kind = "status", status = 500 }, { role = "d", kind = "status", status = 503 }, { role = "d",
          kind = "rst" },
        { role = "d", kind = "fin" }, { role = "d", kind = stream and "sse_error" or "error_body" },
      }) do
        it(("serves everybody while one of two workers is sick: %s %s %s%s"):format(order.role, order.kind,
          order.status or "",
          stream and ", streamed" or ""), function()
          faults.check_sick_worker(f, order, stream)
        end)
      end
    end

    it("leaves nothing behind after all of this", function()
      faults.wait_idle(f)
      faults.assert_serves(f, true)
      faults.wait_idle(f)
    end)
  end)
end

describe("a retry of an SGLang pair", function()
  it("has a new room and a new rid", function()
    local f = start_sglang(2)
    local id = faults.new_id()
    f.sim:fault("d0", { kind = "status", status = 500 })
    f.sim:fault("d1", { kind = "status", status = 500 })
    f:mark()
    assert.equal(500, f:post("/v1/completions", faults.body(), { ["X-Request-Id"] = id }).status)
    faults.wait_idle(f)
    local seen = {}
    local legs = faults.legs_of(f, id)
    assert.equal(2, #legs.decode)
    for _, e in ipairs(legs.decode) do
      local body = json.decode(e.body)
      assert.is_nil(seen[body.rid])
      assert.is_nil(seen[json.raw(e.body, "bootstrap_room")])
      seen[body.rid], seen[json.raw(e.body, "bootstrap_room")] = true, true
    end
    f:stop()
  end)
end)

-- Whichever leg is silent, the other one waits for it: which of them is named depends on whose deadline is first,
-- and nobody
-- is blamed for it (blame_spec: two partners in a row).
for _, which in ipairs(FLEETS) do
  describe("silence of both legs at once, " .. which.name, function()
    local SECONDS = 1.5 * clock.slowness()
    local CASES = {
      { fault = "hang@prefill" }, { fault = "hang@prefill", stream = true }, { fault = "hang_after_headers@prefill" },
      { fault = "hang@decode" }, { fault = "hang@decode", stream = true }, { fault = "hang_after_headers@decode" },
      { fault = "hang_after_headers@decode", stream = true }, { fault = "stall:3@decode", stream = true, begun = true },
    }
    local f

    setup(function()
      local s = tostring(SECONDS)
      f = which.start(1, { "--prefill-timeout-secs", s, "--first-event-timeout-secs", s, "--answer-timeout-secs", s,
        "--stall-timeout-secs", s, "--disable-retries" })
    end)

    teardown(function()
      f:stop()
    end)

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
      assert.is_not_nil(answer:header("x-baton-leg"))
      assert.equal("first_byte_timeout", answer:header("x-baton-error"))
    end

    it("is answered in time, holds exactly its tokens until then, and ends both legs once", function()
      f:mark()
      for _, case in ipairs(CASES) do
        case.id = faults.new_id()
        case.client = http.start(f.port, { path = "/v1/completions", body = faults.body({ stream = case.stream }),
          headers = { ["X-Sim-Fault"] = case.fault, ["X-Request-Id"] = case.id } })
      end
      local tokens = #CASES * faults.PROMPT_TOKENS
      eventually(function()
        local ledger = faults.ledger(f)
        assert.equal(tokens + 3, ledger["d0 decode"], "prompts, and three events of the stalled stream")
        -- push: a prefill does not wait for its decode, so only those that are silent themselves hold tokens
        assert.equal(which.aborts and tokens - faults.PROMPT_TOKENS or 3 * faults.PROMPT_TOKENS, ledger["p0 prefill"])
        return true
      end, SECONDS / clock.slowness(), "the ledger holds what is waiting")
      for _, case in ipairs(CASES) do
        local ok, why = pcall(check_case, case)
        assert.is_true(ok, ("%s: %s"):format(case.fault, type(why) == "table" and why.message or tostring(why)))
      end
      faults.wait_idle(f)
      local aborts = faults.aborts(f)
      for _, case in ipairs(CASES) do
        local legs = faults.legs_of(f, case.id)
        for _, role in ipairs({ "prefill", "decode" }) do
          assert.equal(1, #legs[role], case.fault)
          assert.not_equal("open", legs[role][1]["end"], case.fault)
          if which.aborts and not case.begun then
            assert.equal(1, aborts[legs[role][1].worker .. " " .. json.decode(legs[role][1].body).rid],
              case.fault .. " " .. role)
          end
        end
      end
      faults.assert_serves(f, true)
      faults.wait_idle(f)
    end)
  end)
end

describe("the total deadline of an SGLang pair", function()
  it("ends both legs with 504", function()
    local f = start_sglang(1, { "--request-timeout-secs", tostring(clock.slowness()) })
    f:mark()
    local answer = f:post("/v1/completions", faults.body(), { ["X-Sim-Fault"] = "hang@decode" })
    assert.equal(504, answer.status)
    assert.equal("total_timeout", answer:header("x-baton-error"))
    faults.wait_idle(f)
    local aborted = 0
    for _, times in pairs(faults.aborts(f)) do
      assert.equal(1, times)
      aborted = aborted + 1
    end
    assert.equal(2, aborted, "both legs")
    assert.same({}, faults.guilt(f))
    f:stop()
  end)
end)

teardown(function()
  proc.clean()
end)
