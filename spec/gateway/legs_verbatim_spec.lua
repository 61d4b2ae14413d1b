-- What no simulator would say: workers whose every byte the spec writes. Hand-off parameters and answers pass byte
-- for byte, or not at all.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

local BODY = '{"model":"m","prompt":"hello","max_tokens":3}'

-- A prefill answer as the vLLM reference shows it. change: members of the parameters to replace (raw), false = absent.
local function params(id, change)
  local members = {
    { "do_remote_prefill", "true" },
    { "do_remote_decode", "false" },
    { "remote_block_ids", "[[1,2,3]]" },
    { "remote_engine_id", '"p0"' },
    { "remote_request_id", '"cmpl-' .. id .. '-0-bd83aa8a"' },
    { "remote_host", '"10.9.8.7"' },
    { "remote_port", "40061" },
    { "tp_size", "1" },
    { "remote_num_tokens", "72" },
  }
  local out = {}
  for _, m in ipairs(members) do
    local raw = m[2]
    if change and change[m[1]] ~= nil then
      raw = change[m[1]]
    end
    if raw then
      out[#out + 1] = '"' .. m[1] .. '":' .. raw
    end
  end
  return "{" .. table.concat(out, ",") .. "}"
end

local function prefill_reply(raw_params)
  return stub.reply(200,
    '{"id":"cmpl-x","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"",'
    .. '"finish_reason":"length"}],"usage":{"prompt_tokens":72,"total_tokens":73,"completion_tokens":1}'
    .. (raw_params and ',"kv_transfer_params":' .. raw_params or "") .. "}")
end

local ANSWER = '{"id":"cmpl-1","object":"text_completion","created":2,"model":"m","choices":[{"index":0,"text":"hi"}]}'

local p, d, gateway, port
local give -- what prefill answers: function(request) -> parameters or nil
local say -- what decode answers: function(request) -> bytes

local function start(flags)
  give = function(request)
    return params(request.headers["x-request-id"])
  end
  say = function()
    return stub.reply(200, ANSWER)
  end
  p = stub.start(function(request)
    local out = give(request)
    return type(out) == "table" and out.bytes or prefill_reply(out)
  end)
  d = stub.start(function(request)
    return say(request)
  end)
  local words = {
    "--vllm-pd-disaggregation", "--prefill", p.url, "--decode", d.url, "--disable-circuit-breaker",
    "--load-interval-secs", "0",
  }
  proc.append(words, flags)
  gateway, port = fleet.start_gateway(words)
  eventually(function()
    return http.get(port, "/readiness").status == 200
  end)
end

local function stop()
  -- Connections of the stubs go first: a draining gateway waits for nobody then.
  gateway:kill(proc.SIGTERM)
  local code = gateway:wait(10)
  p:stop()
  d:stop()
  local err = gateway:stderr()
  assert.is_nil(err:find("Sanitizer", 1, true), err)
  assert.equal(0, code, err)
  proc.clean()
end

local function ask(body, headers)
  p.requests, d.requests = {}, {}
  return http.post(port, "/v1/completions", body or BODY, headers)
end

describe("hand-off parameters", function()
  setup(function()
    start()
  end)

  teardown(stop)

  before_each(function()
    give = function(request)
      return params(request.headers["x-request-id"])
    end
  end)

  it("go to decode byte for byte: unknown members, 1.0, long integers, escapes, white space", function()
    local raw
    give = function(request)
      raw = '{ "z" : 1.0,\n\t"do_remote_prefill" :true, "remote_block_ids":[ [1 , 2],[] ],'
        .. '"remote_engine_id":"p\\u0030\\/x",'
        .. '"n":12345678901234567890,"remote_request_id":"cmpl-' .. request.headers["x-request-id"] .. '-0-x", "e":1E5,'
        .. '"nested":{"a":[{},[],"}"," { "],"kv_transfer_params":{"remote_host":"no"}},"remote_host":"10.0.0.1" ,'
        .. '"remote_port":7.0e3,'
        .. '"last_token_id":-1,"q":"\\"}\\\\","remote_multi_nodes_meta_mapping":{"0":{"host":"h","engine_id":"e"}} ,'
          .. ' "u":"é" }'
      return raw
    end
    local answer = ask('{"model":"m","prompt":"hello" , "max_tokens":3 }')
    assert.equal(200, answer.status, answer.body)
    assert.equal('{"model":"m","prompt":"hello" , "max_tokens":3 ,"kv_transfer_params":' .. raw .. "}",
      d.requests[1].body)
  end)

  it("get a host that decode can reach, and no other change", function()
    for _, host in ipairs({ "localhost", "0.0.0.0" }) do
      give = function(request)
        return params(request.headers["x-request-id"], { remote_host = '"' .. host .. '"' })
      end
      local answer = ask(BODY, { ["X-Request-Id"] = "reach" })
      assert.equal(200, answer.status, answer.body)
      assert.equal(params("reach", { remote_host = '"127.0.0.1"' }), json.raw(d.requests[1].body, "kv_transfer_params"))
    end
  end)

  it("never reach decode when a member is missing, wrong or of another prompt", function()
    for _, change in ipairs({
      { do_remote_prefill = false }, { do_remote_prefill = "false" }, { do_remote_prefill = '"true"' },
      { do_remote_prefill = "1" },
      { remote_block_ids = false }, { remote_block_ids = "[]" }, { remote_block_ids = "[[]]" },
      { remote_block_ids = "null" },
      { remote_block_ids = "{}" }, { remote_block_ids = '"1"' },
      { remote_engine_id = false }, { remote_engine_id = "null" }, { remote_engine_id = '""' },
      { remote_engine_id = "5" },
      { remote_request_id = false }, { remote_request_id = "null" },
      { remote_request_id = '"cmpl-of-somebody-else-0-aa"' },
      { remote_request_id = '"chatcmpl-mine-0-aa"' }, { remote_request_id = '"cmpl-mine2-0-aa"' },
      { remote_host = false }, { remote_host = "null" }, { remote_host = '""' },
      { remote_port = false }, { remote_port = "null" }, { remote_port = '"40061"' },
      { remote_num_tokens = "71" },
    }) do
      give = function()
        return params("mine", change)
      end
      local answer = ask(BODY, { ["X-Request-Id"] = "mine" })
      local told = json.encode(change)
      assert.equal(502, answer.status, told .. " " .. answer.body)
      assert.equal("prefill", answer:header("x-baton-leg"), told)
      assert.truthy(answer.body:find("prefill leg, worker p0", 1, true), answer.body)
      for _, request in ipairs(d.requests) do
        assert.is_nil(request.body:find("hello", 1, true), told .. ": decode saw the request")
      end
    end
  end)

  it("that are no object are refused as well", function()
    for _, raw in ipairs({ "[]", '"x"', "5", "true" }) do
      give = function()
        return raw
      end
      assert.equal(502, ask().status, raw)
      assert.equal(0, #d.requests)
    end
  end)

  it("that are absent let decode compute the prompt itself", function()
    for _, raw in ipairs({ false, "null" }) do
      give = function()
        return raw or nil
      end
      local answer = ask()
      assert.equal(200, answer.status, answer.body)
      assert.equal(BODY, d.requests[1].body)
    end
  end)

  it("of a reply in many pieces are put together", function()
    give = function(request)
      local whole = prefill_reply(params(request.headers["x-request-id"], { tp_size = '"' .. ("x"):rep(300000)
        .. '"' }))
      local pieces = {}
      for at = 1, #whole, 40000 do
        pieces[#pieces + 1] = whole:sub(at, at + 39999)
      end
      return { bytes = pieces }
    end
    local answer = ask(BODY, { ["X-Request-Id"] = "pieces" })
    assert.equal(200, answer.status, answer.body)
    assert.equal(params("pieces", { tp_size = '"' .. ("x"):rep(300000) .. '"' }),
      json.raw(d.requests[1].body, "kv_transfer_params"))
  end)
end)

describe("answers", function()
  setup(function()
    start({ "--refuse-recompute", "--max-attempts", "1" })
  end)

  teardown(stop)

  it("are refused without hand-off parameters when the pool says so", function()
    give = function()
      return nil
    end
    assert.equal(502, ask().status)
    assert.equal(0, #d.requests)
    give = function(request)
      return params(request.headers["x-request-id"])
    end
  end)

  it("that are JSON arrive byte for byte", function()
    for _, body in ipairs({
      ANSWER,
      '{\n "id" : "x" ,"n":12345678901234567890123, "t":0.7000,"u":"\\u00e9é", "choices":[ ] , "kv_transfer_params" '
      .. ': null }\n',
      '{"big":"' .. ("0123456789"):rep(30000) .. '"}',
      "[]", "null", "not json at all", '{"cut":',
    }) do
      say = function()
        return stub.reply(200, body)
      end
      local answer = ask()
      assert.equal(200, answer.status)
      assert.equal(body, answer.body)
      assert.equal(tostring(#body), answer:header("content-length"))
    end
  end)

  it("lose hand-off parameters of decode, which name hosts, and nothing else", function()
    local before, after = '{"id":"x","a":{"kv_transfer_params":{"keep":1}},"kv_transfer_params":', ',"z" : 1.0}'
    say = function()
      return stub.reply(200, before .. params("y") .. after)
    end
    local answer = ask()
    assert.equal(200, answer.status)
    assert.is_nil(answer.body:find("10.9.8.7", 1, true), answer.body)
    assert.equal(before, answer.body:sub(1, #before))
    assert.equal(after, answer.body:sub(-#after))
    assert.is_nil(next(json.decode(answer.body).kv_transfer_params))
  end)

  local EVENTS = {
    ": a comment\n\n",
    'data: {"choices":[{"index":0,"text":"caf\195',
    '\169 "}]}\r\n\r',
    "\nevent: odd\nid: 7\nretry: 5\ndata: {\"choices\":[]}\ndata: two\n\n",
    "data: \240\159", "\146", "\191\n", "\n:\n\n", 'data:{"no":"space"}\n\ndata: {"two":1}\n\ndata: {"in one":2}\n\n',
    "data: [DONE]\n\n",
  }

  it("that are streams arrive byte for byte, however they are cut", function()
    say = function()
      return stub.stream(EVENTS)
    end
    local answer = ask('{"model":"m","prompt":"hello","stream":true}')
    assert.equal(200, answer.status)
    assert.equal(table.concat(EVENTS), answer.body)
    assert.equal("text/event-stream; charset=utf-8", answer:header("content-type"))
    assert.equal("chunked", answer:header("transfer-encoding"))
  end)

  it("begin with decode's first event, not with its head", function()
    say = function()
      return {}
    end
    p.requests, d.requests = {}, {}
    local c = http.start(port, { path = "/v1/completions", body = '{"model":"m","prompt":"hello","stream":true}' })
    local ok = pcall(c.wait, c, function()
      return #d.requests == 1
    end)
    assert.is_true(ok, "decode was asked")
    table.insert(d.last_peer.queue,
      "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    table.insert(d.last_peer.queue, "d\r\n: a comment\n\n\r\n")
    local deadline = fleet.clock.now() + 0.2
    pcall(c.wait, c, function(answer)
      return answer.status ~= nil or fleet.clock.now() > deadline
    end)
    assert.is_nil(c.answer.status, "no status line before the first event")
    table.insert(d.last_peer.queue, "b\r\ndata: {\"a\":\r\n")
    table.insert(d.last_peer.queue, "4\r\n1}\n\n\r\n")
    c:wait_head()
    table.insert(d.last_peer.queue, "0\r\n\r\n")
    c:wait()
    assert.equal(': a comment\n\ndata: {"a":1}\n\n', c.answer.body)
    c:close()
  end)

  it("carry the engine's end-to-end headers and none of another connection", function()
    say = function()
      return stub.reply(200, ANSWER, {
        ["X-Engine"] = "yes", ["content-type"] = "application/json; odd=1", Connection = "X-Hop", ["X-Hop"] = "1",
        ["Keep-Alive"] = "timeout=5", ["x-baton-plan"] = "forged", ["X-Request-Id"] = "of-the-engine", Vary = "Origin",
      })
    end
    local answer = ask(BODY, { ["X-Request-Id"] = "ours" })
    assert.equal("yes", answer:header("x-engine"))
    assert.equal("Origin", answer:header("vary"))
    assert.equal("application/json; odd=1", answer:header("content-type"))
    assert.is_nil(answer:header("x-hop"))
    assert.is_nil(answer:header("keep-alive"))
    assert.same({ "ours" }, answer:all("x-request-id"))
    assert.same({ "handoff" }, answer:all("x-baton-plan"))
  end)

  it("that are errors arrive as the engine gave them, of either leg", function()
    local error_body = '{"error" : {"message":"too much","code":429}}\n'
    for _, status in ipairs({ 400, 404, 413, 422, 429, 500, 503 }) do
      say = function()
        return stub.reply(status, error_body, { ["Retry-After"] = "17", ["X-Engine"] = "d" })
      end
      local answer = ask()
      assert.equal(status, answer.status)
      assert.equal(error_body, answer.body)
      assert.equal("17", answer:header("retry-after"))
      assert.equal("d", answer:header("x-engine"))
      assert.equal("decode", answer:header("x-baton-leg"))
      give = function()
        return { bytes = stub.reply(status, error_body, { ["Retry-After"] = "18" }) }
      end
      answer = ask()
      assert.equal(status, answer.status)
      assert.equal(error_body, answer.body)
      assert.equal("18", answer:header("retry-after"))
      assert.equal("prefill", answer:header("x-baton-leg"))
      assert.equal(0, #d.requests)
      give = function(request)
        return params(request.headers["x-request-id"])
      end
    end
  end)

  it("that hide an error in a 200 get the status they stand for", function()
    for _, case in ipairs({
      { '{"error":{"message":"no","type":"x","param":null,"code":400}}', 400 },
      { '{"object":"error","message":"no","type":"x","param":null,"code":503}', 503 },
      { '{"error":"text"}', 500 },
    }) do
      say = function()
        return stub.reply(200, case[1])
      end
      local answer = ask()
      assert.equal(case[2], answer.status, case[1])
      assert.equal(case[1], answer.body)
      say = function()
        return stub.stream({ "data: " .. case[1] .. "\n\n", "data: [DONE]\n\n" })
      end
      answer = ask('{"model":"m","prompt":"hello","stream":true}')
      assert.equal(case[2], answer.status, case[1])
      assert.equal(case[1], answer.body)
    end
  end)

  it("that break off between events end with an error event; within one, with a broken connection", function()
    for _, how in ipairs({ stub.CLOSE, stub.RESET }) do
      say = function()
        local out = stub.stream({ 'data: {"a":1}\n\n' })
        out[#out] = how
        return out
      end
      local answer = ask('{"model":"m","prompt":"hello","stream":true}')
      assert.equal(200, answer.status)
      assert.is_true(answer.done or false, "a whole answer")
      local data = answer:data()
      assert.equal('{"a":1}', data[1])
      assert.is_not_nil(json.decode(data[2]).error)
      assert.equal(502, json.decode(data[2]).error.code)
      say = function()
        local out = stub.stream({ 'data: {"a":1}\n\n', 'data: {"b":' })
        out[#out] = how
        return out
      end
      answer = ask('{"model":"m","prompt":"hello","stream":true}')
      assert.is_true(answer.broken or false, "no silent truncation")
      assert.equal('data: {"a":1}\n\ndata: {"b":', answer.body)
    end
  end)

  it("that are JSON and break off leave a broken answer, never a short whole one", function()
    say = function()
      return { "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 20000\r\n\r\n" .. '{"a":"'
        .. ("x"):rep(9000), stub.CLOSE }
    end
    local answer = ask()
    assert.is_true(answer.broken or answer.status >= 500, answer.status)
    say = function()
      return { "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2000\r\n\r\n" .. '{"a":',
        stub.CLOSE }
    end
    answer = ask()
    assert.equal(502, answer.status, "nothing had gone out yet")
  end)
end)
