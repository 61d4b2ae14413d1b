-- The bytes of both legs of P2pNcclConnector, by the vLLM reference's notes on its proxy: prefill with one token,
-- drained; then decode with the client's own body; both under an id that names the KV addresses of both, which the
-- engines register by ZeroMQ.

local common = require("gateway.support.common")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")
local texts = require("gateway.support.texts")

local PROMPT = ("Sent from rank to rank, and nobody else has it. "):rep(6)

local ROUTES = {
  {
    path = "/v1/completions",
    body = '"prompt":"%s","max_tokens":5,"min_tokens":2 , "temperature":0.7000,"big":12345678901234567890123',
    chat = false,
  },
  { path = "/v1/chat/completions", body = '"messages":[{"role":"user","content":"%s"}],"max_completion_tokens":5',
    chat = true },
}

local CONNECTOR = "connector=P2pNcclConnector,ttft=1,itl=1"
local f

local function start(ask)
  ask.workers = ask.workers or { "role=prefill," .. CONNECTOR, "role=decode," .. CONNECTOR }
  ask.flags = ask.flags or { "--connector", "P2pNcclConnector", "--p2p-nccl-port", "0" }
  return fleet.start(ask)
end

-- The id of a leg: addresses of this pair and 32 hex digits, which are returned.
local function check_id(e, prefill, decode)
  local id = e.headers["x-request-id"]
  local head = ("___prefill_addr_127.0.0.1:%d___decode_addr_127.0.0.1:%d_"):format(f.workers[prefill or "p0"].second,
    f.workers[decode or "d0"].second)
  assert.equal(head, id:sub(1, #head))
  assert.truthy(id:sub(#head + 1):match("^%x+$"), id)
  assert.equal(32, #id - #head)
  return id
end

describe("legs of p2p_nccl", function()
  setup(function()
    f = start({ registers = "p2p_nccl_port" })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  for number, route in ipairs(ROUTES) do
    for _, stream in ipairs({ false, true }) do
      it(route.path .. (stream and ", streamed" or ""), function()
        local prompt = PROMPT .. number .. (stream and "s" or "w")
        local body = '{\n"model" : "sim",' .. route.body:format(prompt)
          .. (stream and ', "stream":true,"stream_options":{"include_usage":true} }' or " }")
        local answer, seen = f:exchange(route.path, body, { ["X-Request-Id"] = "mine" })
        assert.equal(200, answer.status, answer.body)
        assert.equal("mine", answer:header("x-request-id"))
        assert.truthy(answer.body:find("___prefill_addr_x+___decode_addr_x+_%x+"))
        assert.is_nil(answer.body:find("127.0.0.1", 1, true), answer.body)
        local p, d = legs.one(seen.prefill), legs.one(seen.decode)
        legs.check(body, p.body, legs.one_token(route.path, body))
        assert.equal(body, d.body)
        assert.equal(check_id(p), check_id(d))
        assert.same({ fleet.expect(prompt, 5, { chat = route.chat }) }, texts.of(route.path, answer))
        if not stream then
          assert.equal("external", answer:header("x-sim-kv-source"))
        end
        assert.equal(0, f:state("p0").held_kv_requests)
      end)
    end
  end

  it("lets prefill end before decode begins", function()
    local body = '{"model":"sim","prompt":"one after the other","max_tokens":3}'
    local _, seen = f:exchange("/v1/completions", body, { ["X-Sim-Fault"] = "slow_first_byte:200@prefill" })
    assert.is_true(seen.decode[1].time_us - seen.prefill[1].time_us >= 200000)
  end)

  it("gives each prompt and sample an id of its own", function()
    local body = '{"model":"sim","prompt":["one prompt","another"],"n":2,"seed":5,"max_tokens":3,"temperature":1}'
    local answer, seen = f:exchange("/v1/completions", body)
    assert.equal(200, answer.status, answer.body)
    assert.equal(4, #seen.decode)
    local ids = {}
    for _, d in ipairs(seen.decode) do
      assert.is_nil(ids[check_id(d)])
      ids[check_id(d)] = true
    end
    for _, p in ipairs(seen.prefill) do
      assert.is_true(ids[check_id(p)])
    end
    common.check_samples(answer)
  end)

  it("never says an id twice, and takes none from a client", function()
    local body = '{"model":"sim","prompt":"once","max_tokens":3}'
    local forged = ("___prefill_addr_127.0.0.1:1___decode_addr_127.0.0.1:2_%s"):format(("a"):rep(32))
    local _, first = f:exchange("/v1/completions", body, { ["X-Request-Id"] = forged })
    local _, second = f:exchange("/v1/completions", body, { ["X-Request-Id"] = forged })
    assert.not_equal(check_id(first.decode[1]), check_id(second.decode[1]))
  end)

  it("refuses routes that its proxy does not have", function()
    local answer = f:post("/v1/responses", '{"model":"sim","input":"words"}')
    assert.is_true(answer.status >= 400, answer.body)
    assert.same({ prefill = {}, decode = {}, hybrid = {}, encode = {} }, f:legs("/v1/responses"))
  end)

  local ORDINARY = common.ORDINARY
  local function get()
    return f
  end
  common.headers(get, ORDINARY)
  common.forged(get, ORDINARY, {})
end)

describe("workers that register for p2p_nccl", function()
  after_each(function()
    f:stop()
    proc.clean()
  end)

  local BODY = '{"model":"sim","prompt":"who are you","max_tokens":3}'

  it("serve only while they do, and the refusal says so", function()
    f = start({ ready = false })
    eventually(function()
      return f:told("p0").health == "up" and f:told("d0").health == "up"
    end)
    local answer = f:post("/v1/completions", BODY)
    assert.equal(503, answer.status)
    assert.matches("p0: not_registered", answer.body)
    f:register(f.ready_file.p2p_nccl_port)
    f:wait_ready()
    assert.equal(200, f:post("/v1/completions", BODY).status)
    assert.equal("127.0.0.1:" .. f.workers.p0.second, f:told("p0").kv_address)
    f:register(nil, "d0") -- its engine lives on, and says nothing any more
    eventually(function()
      return f:told("d0").why_not == "not_registered"
    end, 9)
    assert.is_true(f:told("p0").usable)
    answer = f:post("/v1/completions", BODY)
    assert.equal(503, answer.status)
    assert.matches("d0: not_registered", answer.body)
    f:register(f.ready_file.p2p_nccl_port, "d0")
    eventually(function()
      return f:told("d0").usable
    end)
    assert.equal(200, f:post("/v1/completions", BODY).status)
  end)

  -- Its engine would look for decode's address in the id, and end.
  it("are asked for nothing as a prefill without a decode", function()
    f = start({ ready = false })
    f:register(f.ready_file.p2p_nccl_port, "p0")
    eventually(function()
      return f:told("p0").usable
    end)
    local answer, seen = f:exchange("/v1/completions", BODY)
    assert.equal(503, answer.status)
    assert.same({}, seen.prefill)
    f.sim:fault("d0", { kind = "die" })
    eventually(function()
      return f:told("d0").health == "down"
    end)
    assert.equal(503, f:post("/v1/completions", BODY).status)
    assert.is_false(f:state("p0").engine_dead)
  end)

  it("are refused when nobody has named them, unless they may become workers", function()
    f = start({
      workers = { "role=prefill," .. CONNECTOR, "role=decode," .. CONNECTOR, "role=decode,name=new," .. CONNECTOR },
      config = function(w)
        return ([[return { connector = "p2p_nccl", p2p_nccl_port = 0, pools = { { workers = {
          { url = "%s", role = "prefill" }, { url = "%s", role = "decode" } } } } }]]):format(w.p0.url, w.d0.url)
      end,
      flags = {},
      registers = "p2p_nccl_port",
      ready = false,
    })
    eventually(function()
      return f:metric('baton_registrations_total{result="unknown"}') == 1
        and f:metric('baton_registrations_total{result="taken"}') == 2
    end)
    local told = "127.0.0.1:" .. f.workers.new.port .. " is no worker's: add it as one, or set "
      .. "--registration-new-workers"
    eventually(function() -- the log has a thread of its own
      return f.gateway:stderr():find(told, 1, true) ~= nil
    end)
    assert.equal(2, #json.decode(http.get(f.admin_port, "/workers").body).workers)
  end)

  it("become workers where that is allowed, and serve", function()
    f = start({
      config = function()
        return "return { connector = \"p2p_nccl\" }"
      end,
      flags = { "--p2p-nccl-port", "0", "--registration-new-workers" },
      registers = "p2p_nccl_port",
      ready = false,
    })
    eventually(function()
      return f:get("/readiness").status == 200
    end)
    f:mark()
    local answer, seen = f:exchange("/v1/completions", BODY)
    assert.equal(200, answer.status, answer.body)
    assert.equal(check_id(legs.one(seen.prefill)), check_id(legs.one(seen.decode)))
    assert.same({ fleet.expect("who are you", 3) }, texts.of("/v1/completions", answer))
  end)

  it("give a decode that is dead no second one: its prefill has sent to the first", function()
    f = start({
      workers = { "role=prefill," .. CONNECTOR, "role=decode,count=2," .. CONNECTOR },
      flags = { "--connector", "P2pNcclConnector", "--p2p-nccl-port", "0", "--disable-health-check",
        "--load-interval-secs", "0" }, -- a check would find it dead before a request does
      registers = "p2p_nccl_port",
      ready = false, -- that waits for checks
    })
    eventually(function()
      return f:told("p0").usable and f:told("d0").usable and f:told("d1").usable
    end)
    f.sim:fault("d0", { kind = "refuse", ms = 60000 })
    local attempts, requests = 0, 0
    repeat -- the least loaded of two is drawn by lot
      requests = requests + 1
      local answer = f:post("/v1/completions",
        ('{"model":"sim","prompt":"who are you, %d","max_tokens":3}'):format(requests))
      assert.equal(200, answer.status, answer.body)
      assert.equal("external", answer:header("x-sim-kv-source"))
      attempts = attempts + tonumber(answer:header("x-baton-attempts") or 1)
      local last = eventually(function()
        local legs_of_it = {}
        for _, e in ipairs(f:requests("p0")) do -- health checks, too
          legs_of_it[#legs_of_it + 1] = e.headers["x-request-id"] and e
        end
        return #legs_of_it >= attempts and legs_of_it[#legs_of_it], #legs_of_it .. " legs"
      end, 10, "the prefill leg is there")
      check_id(last, "p0", "d1")
    until attempts > requests or requests == 64
    assert.is_true(attempts > requests)
  end)

  it("need no port where the configuration says the addresses", function()
    f = start({
      config = function(w)
        return ([[return { connector = "p2p_nccl", pools = { { workers = {
          { url = "%s", role = "prefill", kv_address = "127.0.0.1:%d" },
          { url = "%s", role = "decode", kv_address = "127.0.0.1:%d" } } } } }]]):format(w.p0.url, w.p0.second,
          w.d0.url, w.d0.second)
      end,
      flags = {},
    })
    local answer, seen = f:exchange("/v1/completions", BODY)
    assert.equal(200, answer.status, answer.body)
    assert.equal(check_id(legs.one(seen.prefill)), check_id(legs.one(seen.decode)))
  end)
end)

-- Engines repeat the id, which names both of their KV addresses, in what they say of an error, too.
describe("errors of p2p_nccl", function()
  local p, d, gateway, port, say

  local function id_of(request)
    return request.headers["x-request-id"]
  end

  setup(function()
    p = stub.start(function(request)
      return say.prefill(id_of(request))
    end)
    d = stub.start(function(request)
      return say.decode(id_of(request))
    end)
    local config = proc.write("baton.lua", ([[return { connector = "p2p_nccl", pools = { { workers = {
      { url = "%s", role = "prefill", kv_address = "10.1.2.3:4567" },
      { url = "%s", role = "decode", kv_address = "10.1.2.4:4568" } } } } }]]):format(p.url, d.url))
    gateway, port = fleet.start_gateway({ config, "--disable-retries", "--disable-circuit-breaker",
      "--load-interval-secs", "0" })
    eventually(function()
      return http.get(port, "/readiness").status == 200
    end)
  end)

  teardown(function()
    p:stop()
    d:stop()
    gateway:stop()
    proc.clean()
  end)

  local function error_of(id)
    return '{"error":{"message":"request ' .. id .. ' has failed","code":400}}'
  end

  local function good()
    return stub.reply(200, '{"id":"cmpl-1","choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":{}}')
  end

  local function fails(status)
    return function(id)
      return stub.reply(status, error_of(id))
    end
  end

  local function fails_in_stream(id)
    return stub.stream({ "data: " .. error_of(id) .. "\n\n" })
  end

  for _, case in ipairs({
    { "prefill's status", fails(400), good },
    { "prefill's 200", fails(200), good },
    { "decode's status", good, fails(400) },
    { "decode's 200", good, fails(200) },
    { "decode's first event", good, fails_in_stream },
  }) do
    it("show no address: " .. case[1], function()
      say = { prefill = case[2], decode = case[3] }
      local body = '{"model":"m","prompt":"x","max_tokens":3,"stream":%s}'
      local answer = http.post(port, "/v1/completions", body:format(tostring(case[3] == fails_in_stream)))
      assert.equal(400, answer.status, answer.body)
      assert.truthy(answer.body:find("___prefill_addr_x+___decode_addr_x+_%x+ has failed"), answer.body)
      assert.is_nil(answer.body:find("10.1.2", 1, true), answer.body)
    end)
  end
end)
