-- Errors that the gateway makes itself have the form of the API that the path belongs to, whatever they come from: a
-- refused head, a body that is too large, no worker, a worker that breaks off before its answer or in the middle of it.
-- The forms are typed from the APIs' documentation; the table of every status is unit/api/error_test.c's.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local KEY = { Authorization = "Bearer good" }
local CHAT = '"messages":[{"role":"user","content":"hi"}]'

-- A family's body, and its event.
local function openai(types)
  return function(raw, status)
    local e = json.decode(raw)
    assert.same({ "error" }, json.keys(raw), raw)
    assert.same({ "message", "type", "param", "code" }, json.keys(json.raw(raw, "error")), raw)
    assert.equal(types[status] or (status < 500 and types[400] or types[500]), e.error.type, raw)
    assert.equal(json.null, e.error.param)
    assert.equal(status, e.error.code)
    return e.error.message
  end
end

local function data_event(check)
  return function(events, status)
    assert.equal("[DONE]", events[#events].data)
    assert.is_nil(events[#events - 1].event)
    return check(events[#events - 1].data, status)
  end
end

local function anthropic(raw, status)
  local TYPES = {
    [400] = "invalid_request_error", [401] = "authentication_error", [404] = "not_found_error",
    [405] = "invalid_request_error", [413] = "request_too_large", [415] = "invalid_request_error",
    [417] = "invalid_request_error", [502] = "api_error", [503] = "overloaded_error", [504] = "timeout_error",
  }
  local e = json.decode(raw)
  assert.same({ "type", "error" }, json.keys(raw), raw)
  assert.same({ "type", "message" }, json.keys(json.raw(raw, "error")), raw)
  assert.equal("error", e.type)
  assert.equal(TYPES[status], e.error.type, raw)
  return e.error.message
end

local function anthropic_event(events, status)
  assert.equal("error", events[#events].event)
  return anthropic(events[#events].data, status)
end

local function response_event(events, status)
  local last = events[#events]
  local e = json.decode(last.data)
  assert.equal("error", last.event)
  assert.same({ "type", "code", "message", "param", "sequence_number" }, json.keys(last.data))
  assert.equal("error", e.type)
  assert.equal(status >= 500 and "server_error" or "?", e.code)
  assert.equal(json.null, e.param)
  assert.equal(#events - 1, e.sequence_number) -- they count from 0
  return e.message
end

local function sglang(raw, status)
  local e = json.decode(raw)
  if status < 500 then
    assert.same({ "error" }, json.keys(raw), raw)
    assert.equal(status, e.error.code)
    return e.error.message
  end
  assert.same({ "object", "message", "type", "param", "code" }, json.keys(raw), raw)
  assert.equal("error", e.object)
  assert.equal(tostring(status), e.type)
  assert.equal(status, e.code)
  return e.message
end

local function sglang_event(events)
  assert.equal("[DONE]", events[#events].data)
  return json.decode(events[#events - 1].data).error.message
end

local OPENAI = openai({ [400] = "invalid_request_error", [401] = "authentication_error", [500] = "server_error" })
local VLLM = openai({
  [400] = "BadRequestError", [401] = "Unauthorized", [404] = "NotFoundError", [405] = "Method Not Allowed",
  [413] = "Content Too Large", [415] = "Unsupported Media Type", [417] = "Expectation Failed",
  [502] = "Bad Gateway", [503] = "Service Unavailable", [504] = "Gateway Timeout",
})

local FAMILIES = {
  { path = "/v1/completions", body = '"prompt":"hi"', check = OPENAI, event = data_event(OPENAI) },
  { path = "/v1/chat/completions", body = CHAT, check = OPENAI, event = data_event(OPENAI) },
  { path = "/v1/embeddings", body = '"input":"hi"', check = OPENAI },
  { path = "/v1/responses", body = '"input":"hi"', check = OPENAI, event = response_event },
  { path = "/v1/messages", body = CHAT .. ',"max_tokens":9', check = anthropic, event = anthropic_event },
  { path = "/inference/v1/generate", body = '"token_ids":[1,2],"sampling_params":{"max_tokens":9}', check = VLLM,
    event = data_event(VLLM) },
  { path = "/generate", body = '"text":"hi"', check = sglang, event = sglang_event, model = "sglang" },
}

local f

local function body_of(family, more)
  return ('{"model":"%s",%s%s}'):format(family.model or "vllm", family.body, more or "")
end

local function post(family, body, headers)
  local all = { Authorization = KEY.Authorization }
  for name, value in pairs(headers or {}) do
    all[name] = value
  end
  return f:post(family.path, body, all)
end

local function expect(family, answer, status)
  assert.equal(status, answer.status, family.path .. ": " .. answer.body)
  assert.equal("application/json", answer:header("content-type"))
  local message = family.check(answer.body, status)
  assert.is_true(#message > 0)
  return message
end

describe("errors of the gateway's own", function()
  setup(function()
    local keys = proc.write("keys", "good\n")
    f = fleet.start({
      workers = {
        "role=hybrid,name=v,model=vllm,ttft=1,itl=1", "role=hybrid,name=s,engine=sglang,model=sglang,ttft=1,itl=1",
      },
      flags = { "--client-api-keys-file", keys, "--max-payload-size", "100000", "--disable-retries",
        "--disable-circuit-breaker", "--answer-timeout-secs", "2" },
      config = function(w)
        return ([[return { engine = "vllm", pools = {
          { name = "vllm", models = { "vllm" }, workers = { { url = "%s" } } },
          { name = "sglang", models = { "sglang" }, engine = "sglang", workers = { { url = "%s" } } },
          { name = "none", models = { "none" }, workers = { { url = "http://127.0.0.1:1" } } } } }]])
          :format(w.v.url, w.s.url)
      end,
      ready = false,
    })
    eventually(function()
      return f:get("/readiness", KEY).status == 200
    end, 5, "the workers are there")
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  for _, family in ipairs(FAMILIES) do
    local path = family.path
    it("have the form of " .. path .. " before an answer", function()
      expect(family, post(family, "{"), 400)
      expect(family, f:post(path, body_of(family)), 401)
      expect(family, post({ path = path .. "/%2e%2e/x" }, body_of(family)), 400)
      expect(family, post(family, body_of({ model = "nobody's", body = family.body })), 404)
      expect(family, http.request(f.port, { method = "GET", path = path, headers = KEY }), 405)
      expect(family, post(family, body_of(family), { ["Content-Encoding"] = "gzip" }), 415)
      expect(family, post(family, body_of({ model = "none", body = family.body })), 503)
    end)

    it("have the form of " .. path .. " when the body is not even read", function()
      local large = body_of(family, ',"user":"' .. ("x"):rep(120000) .. '"')
      expect(family, post(family, large), 413)
      expect(family, post(family, ("1d4c0\r\n%s\r\n0\r\n\r\n"):format(("x"):rep(120000)),
        { ["Transfer-Encoding"] = "chunked" }), 413)
      expect(family, f:post(path, body_of(family, ',"x":"' .. ("x"):rep(90000) .. '"')), 401)
      expect(family, post(family, body_of(family), { Expect = "miracles" }), 417)
    end)

    if family.event then
      it("have the form of " .. path .. " when its worker fails", function()
        expect(family, post(family, body_of(family), { ["X-Sim-Fault"] = "rst:0" }), 502)
        expect(family, post(family, body_of(family), { ["X-Sim-Fault"] = "hang" }), 504)
      end)

      it("have the form of " .. path .. " when its worker fails in the middle of a stream", function()
        local answer = post(family, body_of(family, ',"stream":true'), { ["X-Sim-Fault"] = "rst:3" })
        assert.equal(200, answer.status, answer.body)
        local events = answer:events()
        assert.is_true(#events > 3, answer.body)
        assert.is_true(#family.event(events, 502) > 0)
      end)
    end
  end

  it("have the form of the family where no such route is", function()
    expect({ path = "/v1/messages/x", check = anthropic }, post({ path = "/v1/messages/x" }, "{}"), 404)
    expect({ path = "/v1/x", check = OPENAI }, post({ path = "/v1/x" }, "{}"), 404)
    expect({ path = "/abort_request", check = sglang }, f:post("/abort_request", "{}"), 401)
    expect({ path = "/abort_request", check = sglang }, post({ path = "/abort_request" }, "{}"), 400)
    expect({ path = "/v1/models", check = OPENAI }, f:get("/v1/models"), 401)
  end)
end)
