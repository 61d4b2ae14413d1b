-- The bytes of both legs of vLLM's OffloadingConnector with a peer-to-peer tier, by the vLLM reference's wire notes
-- (1.8): prefill stores under a request id of ours, decode is told that id and where prefill's tier listens.

local common = require("gateway.support.common")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local with_id = legs.with_id

local PROMPT = "Stored at prefill, fetched by decode, one two three four five six seven eight nine ten."
local COMPLETIONS = "/v1/completions"

local ROUTES = {
  { path = COMPLETIONS, body = '"prompt":"%s","max_tokens":5,"min_tokens":2 , "temperature":0.7000' },
  { path = "/v1/chat/completions", chat = true,
    body = '"messages":[{"role":"user","content":"%s"}],"max_completion_tokens":5,"big":12345678901234567890123' },
  { path = "/v1/responses", chat = true, body = '"input":"%s","max_output_tokens":5' },
  { path = "/v1/messages", chat = true, body = '"messages":[{"role":"user","content":"%s"}],"max_tokens":5' },
}

local f

local function start(more, config)
  f = fleet.start({
    workers = { "role=prefill,connector=OffloadingConnector,ttft=1" .. (more or ""),
      "role=decode,connector=OffloadingConnector,ttft=1,itl=1" },
    flags = { "--kv-connector", "OffloadingConnector" },
    config = config,
  })
end

local function stop()
  f:stop()
  proc.clean()
end

local function asked_as(id)
  return ('{"remote_decoder":{"kv_request_id":"%s"}}'):format(id)
end

local function told_as(id, port)
  return ('{"remote_prefiller":{"kv_request_id":"%s","remote_host":"127.0.0.1","remote_port":%d}}'):format(id, port)
end

local function kv_id(entry, key)
  return json.decode(json.raw(entry.body, "kv_transfer_params", key, "kv_request_id"))
end

describe("legs of offloading_p2p", function()
  setup(function()
    start()
  end)
  teardown(stop)

  for number, route in ipairs(ROUTES) do
    for _, stream in ipairs({ false, true }) do
      it(route.path .. (stream and ", streamed" or ""), function()
        local prompt = PROMPT .. number .. (stream and "s" or "w")
        local body = '{"model" : "sim",' .. route.body:format(prompt)
          .. (stream and ', "stream":true,"stream_options":{"include_usage":true} }' or " }")
        local answer, seen = f:exchange(route.path, body)
        assert.equal(200, answer.status, answer.body)
        local p, d = legs.one(seen.prefill), legs.one(seen.decode)
        local id, request_id = kv_id(p, "remote_decoder"), p.headers["x-request-id"]
        assert.truthy(id:match("^kv%-%x+$"), id)
        assert.equal(request_id, d.headers["x-request-id"])
        local change = legs.one_token(route.path, body,
          with_id(route, request_id, { kv_transfer_params = asked_as(id) }))
        change.set.max_completion_tokens = nil
        table.insert(change.removed, "max_completion_tokens")
        legs.check(body, p.body, change)
        legs.check(body, d.body,
          { added = with_id(route, request_id, { kv_transfer_params = told_as(id, f.workers.p0.second) }) })
        assert.same({ fleet.expect(prompt, 5, { chat = route.chat }) }, texts.of(route.path, answer))
        assert.equal("handoff", answer:header("x-baton-plan"))
        if not stream then
          assert.equal("external", answer:header("x-sim-kv-source"))
        end
        assert.equal(0, f:state("p0").held_kv_requests)
      end)
    end
  end

  it("lets prefill end before decode begins", function()
    local body = '{"model":"sim","prompt":"one after the other","max_tokens":3}'
    local _, seen = f:exchange(COMPLETIONS, body, { ["X-Sim-Fault"] = "slow_first_byte:200@prefill" })
    assert.is_true(seen.decode[1].time_us - seen.prefill[1].time_us >= 200000)
  end)

  for _, stream in ipairs({ false, true }) do
    it("splits lists and samples: one id each" .. (stream and ", streamed" or ""), function()
      local body = '{"model":"sim","prompt":["one prompt","another"],"n":2,"seed":5,"max_tokens":3,"temperature":1'
        .. (stream and ',"stream":true}' or "}")
      local answer, seen = f:exchange(COMPLETIONS, body, { ["X-Request-Id"] = "off" })
      assert.equal(200, answer.status, answer.body)
      local by_id = {}
      for _, p in ipairs(seen.prefill) do
        assert.is_nil(by_id[kv_id(p, "remote_decoder")])
        by_id[kv_id(p, "remote_decoder")] = p.headers["x-request-id"]
      end
      assert.equal(4, #seen.decode)
      for _, d in ipairs(seen.decode) do
        assert.equal(by_id[kv_id(d, "remote_prefiller")], d.headers["x-request-id"])
        assert.is_nil(json.raw(d.body, "n"))
      end
      common.check_samples(answer)
      assert.equal(0, f:state("p0").held_kv_requests)
    end)
  end

  local ORDINARY = common.ORDINARY
  local OURS = { "kv_transfer_params" }
  local function get()
    return f
  end
  common.headers(get, ORDINARY)
  common.ids(get, ORDINARY)
  common.forged(get, ORDINARY, { prefill = OURS, decode = OURS })
end)

describe("data-parallel ranks of offloading_p2p", function()
  setup(function()
    start(",dp=4", function(w)
      return ([[return { connector = "OffloadingConnector", pools = { { workers = {
        { url = "%s", role = "prefill", bootstrap_port = %d, dp_size = 4 },
        { url = "%s", role = "decode" } } } } }]]):format(w.p0.url, w.p0.second, w.d0.url)
    end)
  end)
  teardown(stop)

  it("are chosen before, and decode asks the port of that rank", function()
    local used = {}
    for i = 1, 12 do
      local answer, seen = f:exchange(COMPLETIONS, ('{"model":"sim","prompt":"rank %d","max_tokens":2}'):format(i))
      assert.equal(200, answer.status, answer.body)
      assert.equal("external", answer:header("x-sim-kv-source"))
      local rank = tonumber(legs.one(seen.prefill).headers["x-data-parallel-rank"])
      local port = json.raw(legs.one(seen.decode).body, "kv_transfer_params", "remote_prefiller", "remote_port")
      assert.equal(f.workers.p0.second + rank, tonumber(port))
      used[rank] = true
    end
    assert.same({ [0] = true, true, true, true }, used)
  end)
end)

-- A pasted --kv-transfer-config says where the tier listens.
local PASTED = [[return { pools = { { workers = {
  { url = "%s", role = "prefill", kv_transfer_config = { kv_connector = "OffloadingConnector", kv_role = "kv_both",
    kv_connector_extra_config = { spec_name = "TieringOffloadingSpec", secondary_tiers = { %s } } } },
  { url = "%s", role = "decode", connector = "OffloadingConnector" } } } } }]]

describe("a pasted configuration of offloading_p2p", function()
  it("names host and port of the tier", function()
    start(nil, function(w)
      return PASTED:format(w.p0.url, ('{ type = "cpu" }, { type = "p2p", host = "127.0.0.1", port = %d }'):format(
        w.p0.second), w.d0.url)
    end)
    local answer = f:post(COMPLETIONS, '{"model":"sim","prompt":"pasted","max_tokens":3}')
    assert.equal(200, answer.status, answer.body)
    assert.equal("external", answer:header("x-sim-kv-source"))
    stop()
  end)

  it("without such a tier is refused, with the remedy", function()
    local path = proc.write("baton.lua",
      PASTED:format("http://127.0.0.1:1", '{ type = "cpu" }', "http://127.0.0.1:2"))
    local baton = fleet.binary("BATON_BIN", "baton")
    local code, _, err = proc.run({ baton, "run", path, "--port", "0", "--admin-port", "0" })
    assert.equal(2, code)
    assert.truthy(err:find("has no peer-to-peer tier", 1, true), err)
    proc.clean()
  end)
end)

describe("offloading_p2p with nobody at the tier's port", function()
  it("lets decode compute the prompt itself, at 5710 where no port is named", function()
    start(nil, function(w)
      return ([[return { connector = "OffloadingConnector", pools = { { workers = {
        { url = "%s", role = "prefill" }, { url = "%s", role = "decode" } } } } }]]):format(w.p0.url, w.d0.url)
    end)
    local answer, seen = f:exchange(COMPLETIONS, '{"model":"sim","prompt":"alone","max_tokens":3}')
    assert.equal(200, answer.status, answer.body)
    assert.equal("5710", json.raw(legs.one(seen.decode).body, "kv_transfer_params", "remote_prefiller", "remote_port"))
    assert.same({ fleet.expect("alone", 3) }, texts.of(COMPLETIONS, answer))
    assert.equal("local", answer:header("x-sim-kv-source"))
    eventually(function()
      return f:state("p0").kv_held == 1
    end)
    stop()
  end)
end)
