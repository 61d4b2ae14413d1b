-- The fault matrix of a trigger (decode, its call, then prefill): MooncakeLayerwiseConnector. What the client gets,
-- whom it is blamed on, what is tried again, what the call is answered, and that nothing stays held.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

local CONNECTOR = "MooncakeLayerwiseConnector"

local function start(count, flags)
  local words = { "--connector", CONNECTOR, "--metaserver-port", "0", "--disable-circuit-breaker" }
  proc.append(words, flags)
  local tail = (",connector=%s,count=%d,itl=1,ttft=1"):format(CONNECTOR, count)
  return fleet.start({ workers = { "role=prefill" .. tail, "role=decode" .. tail }, flags = words })
end

local title = faults.title

local function both_ways(rows, row)
  faults.add_both_ways(rows, "trigger", row)
end

local function matrix()
  local rows = {}
  for _, leg in ipairs({ "prefill", "decode" }) do
    for _, status in ipairs({ 400, 404, 413 }) do
      both_ways(rows, { leg = leg, fault = "status:" .. status, status = status, error = "upstream_status",
        engine = true, attempts = 1 })
    end
    for _, status in ipairs({ 429, 503 }) do
      both_ways(rows, { leg = leg, fault = "status:" .. status, status = status, error = "upstream_status",
        engine = true, retry_after = "7", attempts = 2 })
    end
    both_ways(rows, { leg = leg, fault = "status:500", status = 500, error = "upstream_status", engine = true,
      attempts = 2, guilty = "leg" })
    both_ways(rows, { leg = leg, fault = "error_body", status = 500, error = "upstream_body", engine = true,
      attempts = 2, guilty = "leg" })
  end
  for number, what in ipairs({ "no member", "no JSON", "another request's id" }) do
    both_ways(rows, { leg = "decode", fault = "bad_call:" .. number - 1, what = what, status = 502, error = "callback",
      attempts = 2, guilty = "leg" })
  end
  return rows
end

describe("a trigger", function()
  local f

  setup(function()
    f = start(2)
  end)

  teardown(function()
    f:stop()
  end)

  for _, row in ipairs(matrix()) do
    it("keeps the engine's words and blames the right worker: " .. title(row), function()
      faults.check_row(f, row)
    end)
  end

  for _, fault in ipairs({ "rst", "fin" }) do
    it("tells the client when decode's stream breaks after its first event: " .. fault, function()
      faults.check_broken_stream(f, fault, faults.wait_idle)
    end)
  end

  for _, stream in ipairs({ false, true }) do
    for _, order in ipairs({
      { role = "p", kind = "status", status = 500 }, { role = "p", kind = "status", status = 429 },
      { role = "p", kind = "error_body" }, { role = "d", kind = "status", status = 500 },
      { role = "d", kind = "bad_call" }, { role = "d", kind = stream and "sse_error" or "error_body" },
    }) do
      it(("serves everybody while one of two workers is sick: %s %s %s%s"):format(order.role, order.kind,
        order.status or "", stream and ", streamed" or ""), function()
        faults.check_sick_worker(f, order, stream)
      end)
    end
  end

  it("starts one prefill for a decode that calls twice", function()
    local id = faults.new_id()
    f:mark()
    local answer = f:post("/v1/completions", faults.body(), { ["X-Sim-Fault"] = "call_twice@decode",
      ["X-Request-Id"] = id })
    assert.equal(200, answer.status, answer.body)
    assert.equal(faults.expected(), faults.text_of(answer))
    assert.equal(1, #faults.legs_of(f, id).prefill)
    eventually(function()
      local sent, answered = 0, 0
      for _, name in ipairs({ "d0", "d1" }) do
        sent = sent + f:state(name).callbacks_sent
        answered = answered + f:state(name).callbacks_answered
      end
      return sent == answered, ("%d of %d calls were answered"):format(answered, sent)
    end, 5, "both calls are answered")
  end)

  it("answers a call that comes after its client has left, and asks no prefill", function()
    local id = faults.new_id()
    local before = faults.number(f, "baton_callbacks_late_total")
    f:mark()
    local client = http.start(f.port, { path = "/v1/completions", body = faults.body(),
      headers = { ["X-Sim-Fault"] = "late_call:300@decode", ["X-Request-Id"] = id } })
    eventually(function()
      return #faults.legs_of(f, id).decode == 1
    end, 5, "decode has the request")
    client:close()
    eventually(function()
      return faults.number(f, "baton_callbacks_late_total") == before + 1
    end, 5, "the call comes")
    assert.equal(0, #faults.legs_of(f, id).prefill)
    faults.wait_idle(f)
  end)

  it("ends both legs when the client leaves after the call", function()
    local id = faults.new_id()
    f:mark()
    local client = http.start(f.port, { path = "/v1/completions", body = faults.body(),
      headers = { ["X-Sim-Fault"] = "hang@prefill", ["X-Request-Id"] = id } })
    eventually(function()
      return #faults.legs_of(f, id).prefill == 1
    end, 5, "prefill has the request")
    client:close()
    eventually(function()
      local legs = faults.legs_of(f, id)
      return legs.prefill[1]["end"] ~= "open" and legs.decode[1]["end"] ~= "open"
    end, 5, "both engines see their client leave")
    faults.wait_idle(f)
  end)

  it("leaves nothing behind after all of this", function()
    faults.wait_idle(f)
    faults.assert_serves(f, true)
    faults.wait_idle(f)
  end)
end)

for _, role in ipairs({ "prefill", "decode" }) do
  describe("a " .. role .. " that dies", function()
    local f

    setup(function()
      f = start(2)
    end)

    teardown(function()
      f:stop()
    end)

    it("is replaced with all that waits on it: the requests are served by others", function()
      local name = role:sub(1, 1) .. "0"
      local asks = {}
      for i = 1, 12 do
        asks[i] = { path = "/v1/completions", body = faults.body({ stream = i % 2 == 0 }) }
      end
      f.sim:fault(name, { kind = "die" })
      for i, answer in ipairs(http.together(f.port, asks)) do
        assert.equal(200, answer.status, answer.body)
        assert.equal(faults.expected(), faults.text_of(answer, i % 2 == 0))
      end
      faults.wait_quiet(f)
    end)
  end)
end

-- Each silent request has its own; all run at once, so the deadline passes once.
describe("silence in a trigger", function()
  local SECONDS = 1.5 * clock.slowness()
  local f

  setup(function()
    local s = tostring(SECONDS)
    f = start(1, { "--prefill-timeout-secs", s, "--first-event-timeout-secs", tostring(3 * SECONDS),
      "--answer-timeout-secs", tostring(3 * SECONDS), "--callback-timeout-secs", s, "--stall-timeout-secs", s,
      "--disable-retries" })
  end)

  teardown(function()
    f:stop()
  end)

  local CASES = {
    { leg = "decode", fault = "no_call", error = "callback_timeout", guilty = "d0" },
    { leg = "decode", fault = "no_call", stream = true, error = "callback_timeout", guilty = "d0" },
    { leg = "decode", fault = "hang", error = "callback_timeout", guilty = "d0" },
    { leg = "decode", fault = "hang", stream = true, error = "callback_timeout", guilty = "d0" },
    { leg = "decode", fault = "hang_after_headers", stream = true, error = "callback_timeout", guilty = "d0" },
    { leg = "prefill", fault = "hang", error = "first_byte_timeout", guilty = "p0" },
    { leg = "prefill", fault = "hang", stream = true, error = "first_byte_timeout", guilty = "p0" },
    { leg = "prefill", fault = "hang_after_headers", error = "first_byte_timeout", guilty = "p0" },
  }

  it("is answered in time, and blamed on whoever is silent", function()
    local before = faults.outcomes(f)
    local wanted = {}
    f:mark()
    for _, case in ipairs(CASES) do
      case.id = faults.new_id()
      wanted[case.guilty] = (wanted[case.guilty] or 0) + 1
      case.client = http.start(f.port, { path = "/v1/completions", body = faults.body({ stream = case.stream }),
        headers = { ["X-Sim-Fault"] = case.fault .. "@" .. case.leg, ["X-Request-Id"] = case.id } })
    end
    for _, case in ipairs(CASES) do
      local answer = case.client:wait(nil, SECONDS + 8)
      case.client:close()
      assert.is_true(answer.ended_at - case.client.asked_at >= SECONDS * 0.9, "not before its time")
      assert.equal(504, answer.status, title(case) .. answer.body)
      assert.equal(case.leg, answer:header("x-baton-leg"), title(case))
      assert.equal(case.error, answer:header("x-baton-error"), title(case))
      assert.equal(504, json.decode(answer.body).error.code)
    end
    assert.same(wanted, faults.guilt(f, before))
    faults.wait_idle(f)
    for _, case in ipairs(CASES) do
      local legs = faults.legs_of(f, case.id)
      assert.equal(1, #legs.decode, title(case))
      assert.equal(case.leg == "prefill" and 1 or 0, #legs.prefill, title(case))
      assert.not_equal("open", legs.decode[1]["end"], title(case))
    end
    faults.assert_serves(f, true)
  end)
end)

-- Workers whose every byte the spec writes, and a spec that calls as a decode would.
describe("the metaserver", function()
  local prefill, decode, gateway, port, metaserver, prefill_answer, decode_answer
  local calling = {}

  local function call(target, body)
    return http.request(metaserver, { path = target, body = body })
  end

  -- Decode's leg has come: its URL's target and its id.
  local function target_of(request)
    return json.decode(request.body).kv_transfer_params.metaserver:match("^http://[^/]+(/.*)$"),
      request.headers["x-request-id"]
  end

  local function right_call(id)
    return ('{"token_ids":[],"request_id":"cmpl-%s-0","do_remote_prefill":false,"do_remote_decode":true,'
      .. '"remote_block_ids":[[1]],"remote_block_size":[16],"remote_engine_id":"d","remote_host":"127.0.0.1",'
      .. '"remote_port":1,"remote_tp_size":1,"remote_pcp_size":1,"remote_dcp_size":1,"remote_cached_tokens":0}')
      :format(id)
  end

  setup(function()
    prefill = stub.start(function(request)
      return prefill_answer(request)
    end)
    decode = stub.start(function(request)
      return decode_answer(request)
    end)
    local _, told
    gateway, port, _, told = fleet.start_gateway({ "--connector", CONNECTOR, "--metaserver-port", "0", "--prefill",
      prefill.url, "none", "--decode", decode.url, "--disable-retries" })
    metaserver = told.metaserver_port
    eventually(function()
      return http.get(port, "/readiness").status == 200
    end)
  end)

  teardown(function()
    http.hang_up(port)
    local code = gateway:stop(10)
    prefill:stop()
    decode:stop()
    assert.equal(0, code, gateway:stderr())
  end)

  before_each(function()
    calling = {}
    decode_answer = function(request)
      calling[#calling + 1] = request
    end
    prefill_answer = function() end
  end)

  local function ask()
    local client = http.start(port, { path = "/v1/completions", body = '{"prompt":"x"}' })
    eventually(function()
      http.get(port, "/health") -- the stubs are served meanwhile
      return #calling == 1
    end, 5, "decode has the request")
    return client, target_of(calling[1])
  end

  it("answers when prefill has answered, and each call alike", function()
    local client, target, id = ask()
    prefill_answer = function()
      return stub.reply(200, '{"id":"cmpl-1","choices":[{"text":"x"}],"kv_transfer_params":null}')
    end
    local first = call(target, right_call(id))
    assert.equal(200, first.status, first.body)
    assert.equal('{"status":"ok"}', first.body)
    local again = call(target, right_call(id))
    assert.equal(200, again.status)
    assert.equal(first.body, again.body)
    client:close()
    eventually(function()
      return call(target, right_call(id)).status == 404
    end, 5, "the request is gone")
  end)

  it("tells decode that prefill has failed", function()
    local client, target, id = ask()
    prefill_answer = function()
      return stub.reply(422, '{"error":{"message":"too long for prefill"}}')
    end
    local answer = call(target, right_call(id))
    assert.is_true(answer.status == 502 or answer.status == 404, answer.body)
    local told = client:wait()
    assert.equal(422, told.status)
    assert.truthy(told.body:find("too long for prefill", 1, true))
    client:close()
  end)

  it("knows what is no call of a decode", function()
    assert.equal(404, call("/v1/metaserver", "{}").status)
    assert.equal(404, call("/v1/metaserver?attempt=1", "{}").status)
    assert.equal(404, call("/v1/metaserver?attempt=18446744073709551615", "{}").status)
    assert.equal(404, call("/v1/completions?attempt=1", "{}").status)
    assert.equal(405, http.get(metaserver, "/v1/metaserver?attempt=1").status)
    assert.equal(413, call("/v1/metaserver?attempt=1", (" "):rep(4 * 1024 * 1024 + 1)).status)
  end)

  it("ends with calls that wait", function()
    local client, target, id = ask()
    local waiting = http.start(metaserver, { path = target, body = right_call(id) })
    eventually(function()
      http.get(port, "/health")
      return #prefill.requests > 0 and prefill.requests[#prefill.requests].headers["x-request-id"] == id
    end, 5, "prefill has the request")
    client:close()
    assert.equal(409, waiting:wait().status)
    waiting:close()
  end)
end)

teardown(function()
  proc.clean()
end)
