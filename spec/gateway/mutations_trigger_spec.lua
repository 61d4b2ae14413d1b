-- The simulator refuses what engines refuse: each field of a trigger's legs in turn is dropped, retyped or swapped.
-- No gateway here: the spec is the metaserver and the dispatcher, and its right legs are typed from vLLM-Ascend's
-- layer-wise proxy.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

local PATH = "/v1/completions"
local PROMPT = ("The runner before us keeps the baton until our hand is there. "):rep(4)
local OTHER = ("Another team runs on another lane, and its baton is not ours. "):rep(4)
local TAIL = ",connector=MooncakeLayerwiseConnector,latency=0"

local sim, metaserver, calls

local function body_of(prompt, tokens, params)
  return ('{"model":"sim","prompt":%s,"max_tokens":%d,"stream":false,"kv_transfer_params":%s}'):format(
    json.encode(prompt), tokens, params)
end

local function send(worker, body, id)
  return http.start(sim.workers[worker].port, { path = PATH, body = body, headers = { ["X-Request-Id"] = id } })
end

local function state(name)
  return json.decode(http.get(sim.workers.plain.port, "/sim/state?worker=" .. name).body)
end

-- Decode has been asked, and has called: its client, and what it said.
local function ask_decode(id, params)
  calls = {}
  local client = send("d0", body_of(PROMPT, 4, params
    or ('{"do_remote_decode":false,"do_remote_prefill":true,"metaserver":"%s/v1/metaserver?attempt=7"}'):format(
      metaserver.url)), id)
  eventually(function()
    state("d0") -- the metaserver is served meanwhile
    return #calls > 0
  end, 5, "decode calls")
  return client, calls[1]
end

local function with(object, key, raw)
  local out = {}
  for _, m in ipairs(json.members(object)) do
    if m.key ~= key then
      out[#out + 1] = m.raw_key .. ":" .. m.raw
    end
  end
  if raw then
    out[#out + 1] = json.encode(key) .. ":" .. raw
  end
  return "{" .. table.concat(out, ",") .. "}"
end

describe("a layer-wise pair", function()
  local numbered = 0

  local function new_id()
    numbered = numbered + 1
    return "mutation-" .. numbered
  end

  setup(function()
    metaserver = stub.start(function(request)
      calls[#calls + 1] = request
      return stub.reply(200, '{"status":"ok"}')
    end)
    sim = fleet.start_sim({ "role=prefill" .. TAIL, "role=decode" .. TAIL, "role=hybrid,name=plain,latency=0" })
  end)

  teardown(function()
    metaserver:stop()
    sim.process:stop(5)
    proc.clean()
  end)

  before_each(function()
    for _, name in ipairs({ "p0", "d0" }) do
      assert.equal(200, http.post(sim.workers.plain.port, "/sim/reset?worker=" .. name, "{}").status)
    end
  end)

  local function wait(client)
    local answer = client:wait(nil, 5)
    client:close()
    return answer
  end

  it("hands over what the call says", function()
    local id = new_id()
    local decode, call = ask_decode(id)
    assert.equal("/v1/metaserver?attempt=7", call.target)
    assert.equal("POST", call.method)
    assert.equal("application/json", call.headers["content-type"])
    assert.equal(json.encode("cmpl-" .. id .. "-0"), json.raw(call.body, "request_id"))
    local prefill = wait(send("p0", body_of(PROMPT, 1, call.body), id))
    assert.equal(200, prefill.status, prefill.body)
    assert.equal("null", json.raw(prefill.body, "kv_transfer_params"))
    local answer = wait(decode)
    assert.equal(fleet.expect(PROMPT, 4), json.decode(answer.body).choices[1].text)
    assert.equal("external", answer:header("x-sim-kv-source"))
    assert.equal(0, state("p0").failed_transfers)
  end)

  it("gives a wrong text for another prompt's KV", function()
    local id = new_id()
    local decode, call = ask_decode(id)
    assert.equal(200, wait(send("p0", body_of(OTHER, 1, call.body), id)).status)
    assert.not_equal(fleet.expect(PROMPT, 4), json.decode(wait(decode).body).choices[1].text)
  end)

  for _, field in ipairs({ "request_id", "remote_block_ids", "remote_block_size", "remote_engine_id", "remote_host",
    "remote_port", "remote_tp_size", "remote_pcp_size", "remote_dcp_size", "remote_cached_tokens" }) do
    for _, raw in ipairs({ false, "null", "{}" }) do
      it(("ends prefill's engine: %s %s"):format(field, raw or "is missing"), function()
        local id = new_id()
        local decode, call = ask_decode(id)
        assert.equal(500, wait(send("p0", body_of(PROMPT, 1, with(call.body, field, raw or nil)), id)).status)
        assert.is_true(state("p0").engine_dead)
        assert.equal(1, state("d0").live)
        decode:close()
      end)
    end
  end

  -- Prefill answers all the same; decode gets nothing.
  for field, raw in pairs({ request_id = '"cmpl-somebody-else-0"', remote_block_ids = "[[1]]",
    remote_engine_id = '"d1"', remote_port = "1", remote_host = '"10.0.0.1"' }) do
    it(("pushes past decode: %s is another's"):format(field), function()
      local id = new_id()
      local decode, call = ask_decode(id)
      assert.equal(200, wait(send("p0", body_of(PROMPT, 1, with(call.body, field, raw)), id)).status)
      assert.equal(1, state("p0").failed_transfers)
      assert.equal(1, state("d0").waiting)
      decode:close()
    end)
  end

  it("pushes past decode: prefill goes by another id than decode", function()
    local id = new_id()
    local decode, call = ask_decode(id)
    assert.equal(200, wait(send("p0", body_of(PROMPT, 1, call.body), "another")).status)
    assert.equal(1, state("p0").failed_transfers)
    assert.equal(1, state("d0").waiting)
    decode:close()
  end)

  it("computes where nobody says remote", function()
    local answer = wait(send("d0", body_of(PROMPT, 4, "{}"), new_id()))
    assert.equal(fleet.expect(PROMPT, 4), json.decode(answer.body).choices[1].text)
    assert.equal("local", answer:header("x-sim-kv-source"))
  end)

  it("waits for ever without a metaserver, and is free when its client leaves", function()
    local client = send("d0", body_of(PROMPT, 4, '{"do_remote_decode":false,"do_remote_prefill":true}'), new_id())
    eventually(function()
      return state("d0").waiting == 1
    end)
    client:close()
    eventually(function()
      return state("d0").live == 0 and state("d0").used_blocks == 0
    end)
  end)

  it("takes one prompt and one sample for each call", function()
    local params = ('{"do_remote_prefill":true,"metaserver":"%s/"}'):format(metaserver.url)
    local list = ('{"model":"sim","prompt":["a","b"],"kv_transfer_params":%s}'):format(params)
    local samples = ('{"model":"sim","prompt":"a","n":2,"kv_transfer_params":%s}'):format(params)
    assert.equal(400, wait(send("d0", list, new_id())).status)
    assert.equal(400, wait(send("d0", samples, new_id())).status)
  end)

  it("calls three times while the connection breaks", function()
    local fresh = state("d0").callbacks_sent
    local client = send("d0", body_of(PROMPT, 4,
      '{"do_remote_prefill":true,"metaserver":"http://127.0.0.1:1/v1/metaserver?attempt=7"}'), new_id())
    eventually(function()
      return state("d0").callbacks_sent == fresh + 3
    end)
    client:close()
  end)
end)
