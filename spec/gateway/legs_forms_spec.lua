-- However a request comes, its legs are the same: chunked, in single bytes, pipelined, large, with escaped keys, to
-- workers behind a path, over the connectors that speak another's dialect.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")
local texts = require("gateway.support.texts")

local BODY = '{"model":"sim","prompt":"hello again","max_tokens":4}'

local f

local function check(answer, prompt, count)
  assert.equal(200, answer.status, answer.body)
  assert.same({ fleet.expect(prompt or "hello again", count or 4) }, texts.of("/v1/completions", answer))
end

local function check_legs(body)
  local seen = f:legs("/v1/completions")
  for _, e in ipairs({ legs.one(seen.prefill), legs.one(seen.decode) }) do
    assert.equal(tostring(#e.body), e.headers["content-length"])
    assert.is_nil(e.headers["transfer-encoding"])
    assert.is_nil(e.headers.expect)
    assert.is_nil(e.headers.trailer)
  end
  legs.check(body, seen.decode[1].body,
    { added = { kv_transfer_params = json.raw(seen.decode[1].body, "kv_transfer_params") } })
end

local function chunked(body, size)
  local out = {}
  for at = 1, #body, size do
    local piece = body:sub(at, at + size - 1)
    out[#out + 1] = ("%x;x=y\r\n%s\r\n"):format(#piece, piece)
  end
  return table.concat(out) .. "0\r\nX-Trailer: 1\r\n\r\n"
end

describe("forms of a request", function()
  setup(function()
    f = fleet.start({
      workers = { "role=prefill,ttft=1", "role=decode,ttft=1,itl=1" },
      sim = { "--record-body", "4000000" },
      flags = { "--vllm-pd-disaggregation" },
    })
  end)

  before_each(function()
    f:mark()
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  it("chunked, of any size", function()
    for _, size in ipairs({ 1, 7, 1000 }) do
      f:mark()
      check(f:post("/v1/completions", chunked(BODY, size), { ["Transfer-Encoding"] = "chunked",
        Trailer = "X-Trailer" }))
      check_legs(BODY)
    end
  end)

  it("byte by byte", function()
    local c = http.connect(f.port)
    c:expect_answer()
    local bytes = http.head_of({ path = "/v1/completions", body = BODY }, f.port) .. BODY
    for i = 1, #bytes do
      c:send(bytes:sub(i, i))
    end
    check(c:wait())
    check_legs(BODY)
    c:close()
  end)

  it("with Expect: 100-continue, the body only after the interim answer", function()
    local c = http.connect(f.port)
    local ask = { path = "/v1/completions", body = BODY, headers = { Expect = "100-continue" } }
    c:expect_answer()
    c:send(http.head_of(ask, f.port))
    c:wait(function(answer)
      return answer.interim == 1
    end)
    assert.equal(0, #f:legs("/v1/completions").prefill)
    c:send(BODY)
    check(c:wait())
    check_legs(BODY)
    c:close()
  end)

  it("several on one connection, one after the other", function()
    local c = http.connect(f.port)
    for i = 1, 5 do
      c:ask({ path = "/v1/completions", body = ('{"model":"sim","prompt":"number %d","max_tokens":3}'):format(i) })
      check(c:wait(), "number " .. i, 3)
    end
    c:close()
  end)

  it("pipelined: answers in the order of the requests", function()
    local c = http.connect(f.port)
    local bytes = ""
    for i = 1, 4 do
      local body = ('{"model":"sim","prompt":"number %d","max_tokens":3}'):format(i)
      bytes = bytes .. http.head_of({ path = "/v1/completions", body = body }, f.port) .. body
    end
    c:expect_answer()
    c:send(bytes)
    for i = 1, 4 do
      check(c:wait(), "number " .. i, 3)
      local rest = c.answer.buffer
      c:expect_answer():feed(rest)
    end
    c:close()
  end)

  it("of three megabytes, nothing lost", function()
    local body = '{"model":"sim","prompt":"hello again","max_tokens":4,"junk":["' .. ("0123456789abcdef"):rep(200000)
      .. '"] }'
    check(f:post("/v1/completions", body))
    check_legs(body)
  end)

  it("with escaped keys: they are read, edited and kept in their place", function()
    local body = '{"mod\\u0065l":"sim","\\u0070rompt":["aa","bb"],"m\\u0061x_tokens":4,"str\\u0065am":true,"\\u006e"'
      .. ':2,"temperature":1}'
    local answer = f:post("/v1/completions", body)
    assert.equal(200, answer.status, answer.body)
    local seen = f:legs("/v1/completions")
    assert.equal(4, #seen.decode)
    for _, e in ipairs(seen.decode) do
      assert.same({ "model", "prompt", "max_tokens", "stream", "temperature", "kv_transfer_params" }, json.keys(e.body))
      assert.equal("true", json.raw(e.body, "stream"))
    end
    for _, e in ipairs(seen.prefill) do
      assert.same({ "model", "prompt", "max_tokens", "stream", "temperature", "kv_transfer_params" }, json.keys(e.body))
      assert.equal("1", json.raw(e.body, "max_tokens"))
      assert.equal("false", json.raw(e.body, "stream"))
    end
    assert.same({ fleet.expect("aa", 4), fleet.expect("aa", 4), fleet.expect("bb", 4), fleet.expect("bb", 4) },
      texts.of("/v1/completions", answer))
  end)

  it("with a query: both legs have it", function()
    check(f:post("/v1/completions?a=1&b=%2F", BODY))
    local seen = f:legs("/v1/completions")
    assert.equal("/v1/completions?a=1&b=%2F", legs.one(seen.prefill).target)
    assert.equal("/v1/completions?a=1&b=%2F", legs.one(seen.decode).target)
  end)

  it("in HTTP/1.0: the answer ends with the connection", function()
    local c = http.connect(f.port)
    local head = http.head_of({ path = "/v1/completions", body = BODY }, f.port):gsub("HTTP/1%.1", "HTTP/1.0", 1)
    c:expect_answer()
    c:send(head .. BODY)
    check(c:wait())
    eventually(function()
      return not c:pump()
    end)
    c:close()
  end)
end)

describe("MooncakeConnectorV1 of vLLM-Ascend", function()
  setup(function()
    f = fleet.start({
      workers = {
        "role=prefill,connector=MooncakeConnectorV1,ttft=1", "role=decode,connector=MooncakeConnectorV1,ttft=1,itl=1",
      },
      flags = { "--kv-connector", "mooncakeconnectorv1" },
    })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  it("is handed off as NIXL is", function()
    for _, stream in ipairs({ "", ',"stream":true' }) do
      local body = '{"model":"sim","prompt":"to the north","max_tokens":4' .. stream .. "}"
      local answer, seen = f:exchange("/v1/completions", body)
      check(answer, "to the north")
      assert.equal("true", json.raw(legs.one(seen.prefill).body, "kv_transfer_params", "do_remote_decode"))
      local raw = json.raw(legs.one(seen.decode).body, "kv_transfer_params")
      assert.equal("true", json.raw(raw, "do_remote_prefill"))
      assert.is_not_nil(json.raw(raw, "remote_block_ids"))
      assert.equal(0, f:state("p0").held_kv_requests)
      assert.equal(0, f:state("d0").local_compute)
    end
  end)
end)

local function start_stub()
  return stub.start(function()
    return stub.reply(200, '{"id":"x","choices":[]}')
  end)
end

describe("workers behind a path, a rank or a key", function()
  local one, process, port

  setup(function()
    one = start_stub()
    local path = proc.write("baton.lua", ([[return { engine = "vllm", api_key = "of-all", disable_health_check = true,
      load_interval_secs = 0, pools = { { workers = {
        { url = "%s/behind/a/path@3", api_key = "its-own" } } } } }]]):format(one.url))
    process, port = fleet.start_gateway({ path })
  end)

  teardown(function()
    process:stop()
    one:stop()
    proc.clean()
  end)

  it("get their path, their rank and their own key", function()
    eventually(function()
      return http.get(port, "/readiness").status == 200
    end)
    one.requests = {}
    local answer = http.post(port, "/v1/completions", '{"prompt":"x"}',
      { Authorization = "Bearer of-the-client", ["X-Data-Parallel-Rank"] = "9" })
    assert.equal(200, answer.status, answer.body)
    local request = one.requests[1]
    assert.equal("/behind/a/path/v1/completions", request.target)
    assert.equal("Bearer its-own", request.headers.authorization)
    assert.equal("3", request.headers["x-data-parallel-rank"])
    assert.equal('{"prompt":"x"}', request.body)
    assert.equal("127.0.0.1:" .. one.port, request.headers.host)
  end)
end)

describe("a rank that a policy names for a worker that serves alone", function()
  local one, process, port

  setup(function()
    one = start_stub()
    local policy = proc.write("ranked.lua", [[
return { api = 2, name = "ranked", version = "1", plan = function(req, view)
  local worker = view.single[1]
  return worker and { worker = worker, decode_rank = worker.dp_size > 2 and req.prompt_bytes > 8 and 2 or nil }
end }
]])
    local path = proc.write("baton.lua", ([[return { engine = "vllm", disable_health_check = true,
      load_interval_secs = 0, pools = { { workers = { { url = "%s", dp_size = 4 } } } } }]]):format(one.url))
    process, port = fleet.start_gateway({ path, "--policy", policy })
    eventually(function()
      return http.get(port, "/readiness").status == 200
    end)
  end)

  teardown(function()
    process:stop()
    one:stop()
    proc.clean()
  end)

  it("is told to it, and nothing is where none is named", function()
    one.requests = {}
    for i, prompt in ipairs({ "long enough", "short" }) do
      local answer = http.post(port, "/v1/completions", '{"prompt":"' .. prompt .. '"}')
      assert.equal(200, answer.status, answer.body)
      assert.equal(i == 1 and "2" or nil, one.requests[i].headers["x-data-parallel-rank"])
    end
  end)
end)
