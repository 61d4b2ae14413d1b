-- The fault matrix of single workers (hybrids), vLLM and SGLang.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local function start(engine, count, flags)
  local words = { "--engine", engine, "--disable-circuit-breaker" }
  proc.append(words, flags)
  local name = count > 1 and "w" or "w0" -- several get a number; so both sides use the same names
  return fleet.start({ workers = { ("role=hybrid,name=%s,engine=%s,count=%d,itl=1,ttft=1"):format(name, engine,
    count) }, flags = words })
end

local ROWS = {
  { fault = "status:400", status = 400, error = "upstream_status", engine = true, attempts = 1 },
  { fault = "status:404", status = 404, error = "upstream_status", engine = true, attempts = 1 },
  { fault = "status:413", status = 413, error = "upstream_status", engine = true, attempts = 1 },
  { fault = "status:429", status = 429, error = "upstream_status", engine = true, attempts = 2, retry_after = "7" },
  { fault = "status:503", status = 503, error = "upstream_status", engine = true, attempts = 2, retry_after = "7" },
  { fault = "status:500", status = 500, error = "upstream_status", engine = true, attempts = 2, guilty = true },
  { fault = "error_body", status = 500, error = "upstream_body", engine = true, attempts = 2, guilty = true },
  { fault = "rst:0", status = 502, error = "reset", attempts = 2, guilty = true, may_be_stale = true },
  { fault = "fin:0", status = 502, error = "reset", attempts = 2, guilty = true, may_be_stale = true },
}

local function check(f, row, stream)
  local before, id = faults.outcomes(f), faults.new_id()
  local body = faults.body({ stream = stream })
  f:mark()
  local answer = f:post("/v1/completions", body, { ["X-Sim-Fault"] = row.fault, ["X-Request-Id"] = id })
  assert.equal(row.status, answer.status, answer.body)
  assert.equal("single", answer:header("x-baton-leg"))
  assert.equal(row.error, answer:header("x-baton-error"))
  assert.equal(row.retry_after, answer:header("retry-after"))
  if row.engine then
    local own = http.post(f.workers.w0.port, "/v1/completions", body, { ["X-Sim-Fault"] = row.fault })
    assert.equal(own.body, answer.body)
    assert.equal(own:header("content-type"), answer:header("content-type"))
  end
  faults.wait_idle(f)
  local legs, asked = faults.legs_of(f, id).hybrid, {}
  for _, e in ipairs(legs) do
    asked[e.worker] = 1
  end
  local guilt = faults.guilt(f, before)
  if row.may_be_stale then -- a pooled connection without an answer byte proves nothing
    for name, times in pairs(guilt) do
      assert.equal(asked[name], times)
    end
    return
  end
  assert.equal(row.attempts, #legs)
  assert.same(row.guilty and asked or {}, guilt)
end

for _, engine in ipairs({ "vllm", "sglang" }) do
  describe("single workers of " .. engine, function()
    local f

    setup(function()
      f = start(engine, 2)
    end)

    teardown(function()
      faults.wait_idle(f)
      f:stop()
    end)

    for _, stream in ipairs({ false, true }) do
      for _, row in ipairs(ROWS) do
        it(("keep the engine's words and take the blame: %s%s"):format(row.fault, stream and ", streamed" or ""),
          function()
          check(f, row, stream)
        end)
      end

      for _, order in ipairs({ { kind = "status", status = 500 }, { kind = "status", status = 429 }, { kind = "rst" },
        { kind = "fin" },
        { kind = stream and "sse_error" or "error_body" } }) do
        order.role = "w"
        it(("serve everybody while one of two is sick: %s %s%s"):format(order.kind, order.status or "",
          stream and ", streamed" or ""),
          function()
            faults.check_sick_worker(f, order, stream)
          end)
      end
    end

    it("end a stream that broke after its first event with an error, once", function()
      for _, fault in ipairs({ "rst:3", "fin:3" }) do
        local before, id = faults.outcomes(f), faults.new_id()
        f:mark()
        local answer = f:post("/v1/completions", faults.body({ stream = true }), { ["X-Sim-Fault"] = fault,
          ["X-Request-Id"] = id })
        assert.equal(200, answer.status)
        faults.assert_not_whole(answer)
        assert.equal(faults.expected():sub(1, #faults.text_of(answer, true)), faults.text_of(answer, true))
        local legs = faults.legs_of(f, id).hybrid
        assert.equal(1, #legs)
        assert.same({ [legs[1].worker] = 1 }, faults.guilt(f, before))
      end
    end)

    it("hold prompt tokens in the prefill phase until the first byte, then in the decode phase", function()
      local c = http.start(f.port, { path = "/v1/completions", body = faults.body({ stream = true }),
        headers = { ["X-Sim-Fault"] = "stall:3" } })
      c:wait_events(3)
      eventually(function()
        local ledger = faults.ledger(f)
        local held = ledger["w0 decode"] or ledger["w1 decode"]
        assert.equal(faults.PROMPT_TOKENS + 3, held)
        assert.is_nil(ledger["w0 prefill"] or ledger["w1 prefill"])
        return true
      end)
      c:close()
      faults.wait_idle(f)
      c = http.start(f.port, { path = "/v1/completions", body = faults.body({ stream = true }),
        headers = { ["X-Sim-Fault"] = "hang_after_headers" } })
      eventually(function()
        local ledger = faults.ledger(f)
        assert.equal(faults.PROMPT_TOKENS, ledger["w0 prefill"] or ledger["w1 prefill"])
        return true
      end)
      c:close()
      faults.wait_idle(f)
    end)
  end)

  describe("silence of a single worker of " .. engine, function()
    it("is answered with 504 in time and is its own fault", function()
      local seconds = 1.5 * clock.slowness()
      local s = tostring(seconds)
      local f = start(engine, 1, { "--first-event-timeout-secs", s, "--answer-timeout-secs", s,
        "--stall-timeout-secs", s,
        "--disable-retries" })
      local cases = {
        { fault = "hang" }, { fault = "hang", stream = true }, { fault = "hang_after_headers", stream = true },
        { fault = "stall:0" }, { fault = "stall:3", stream = true, begun = true },
      }
      for _, case in ipairs(cases) do
        case.client = http.start(f.port, { path = "/v1/completions", body = faults.body({ stream = case.stream }),
          headers = { ["X-Sim-Fault"] = case.fault } })
      end
      for _, case in ipairs(cases) do
        local answer = case.client:wait(nil, seconds + 8)
        case.client:close()
        assert.is_true(answer.ended_at - case.client.asked_at >= seconds * 0.9)
        if case.begun then
          assert.equal(200, answer.status)
          faults.assert_not_whole(answer)
        else
          assert.equal(504, answer.status, case.fault)
          assert.equal(504, json.decode(answer.body).error.code)
          assert.equal("single", answer:header("x-baton-leg"))
        end
      end
      faults.wait_idle(f)
      assert.same({ w0 = #cases }, faults.guilt(f))
      faults.assert_serves(f, true)
      f:stop()
    end)
  end)
end

teardown(function()
  proc.clean()
end)
