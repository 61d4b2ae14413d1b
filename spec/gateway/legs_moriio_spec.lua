-- The bytes of both legs of MoRIIOConnector, by the vLLM reference's notes: WRITE sends both at once, READ carries
-- prefill's reply to decode; sizes and addresses are what the engines have registered by ZeroMQ.

local common = require("gateway.support.common")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local PROMPT = ("Read or written, it is the same memory in the end. "):rep(6)
local FLAGS = { "--connector", "MoRIIOConnector", "--moriio-port", "0" }

local ROUTES = {
  {
    path = "/v1/completions",
    body = '"prompt":"%s","max_tokens":5,"min_tokens":2 , "temperature":0.7000,"big":12345678901234567890123',
    chat = false,
  },
  { path = "/v1/chat/completions",
    body = '"messages":[{"role":"user","content":"%s"}],"max_completion_tokens":5,"stop":["."],"stop_token_ids":[2]',
    chat = true },
}

local f

local function address(name)
  return ("host:127.0.0.1,handshake:%d,notify:61005"):format(f.workers[name].second)
end

-- The 32 digits at the end of a leg's id.
local function check_id(e)
  local id = e.headers["x-request-id"]
  local head = ("___prefill_addr_%s___decode_addr_%s_"):format(address("p0"), address("d0"))
  assert.equal(head, id:sub(1, #head))
  assert.truthy(id:sub(#head + 1):match("^[0-9a-f]+$"), id)
  assert.equal(32, #id - #head)
  return id
end

local function transfer_id(e)
  local id = json.decode(json.raw(json.raw(e.body, "kv_transfer_params"), "transfer_id"))
  assert.truthy(id:match("^tx%-%x+%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x+$") and #id == 39, id)
  return id
end

local function asked(dp, tp, id)
  return ('{"remote_dp_size":%d,"remote_tp_size":%d,"transfer_id":"%s","do_remote_decode":true,'
    .. '"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null}'):format(dp, tp, id)
end

local function written(dp, tp, id, rank)
  return ('{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":null,"remote_block_ids":null,'
    .. '"transfer_id":"%s","remote_dp_size":%d,"remote_tp_size":%d%s}'):format(id, dp, tp,
    rank and ',"remote_dp_rank":' .. rank or "")
end

-- Members of the object that decode gets of a reply, in order.
local function read(dp, tp, id, rank)
  return {
    do_remote_prefill = "true",
    do_remote_decode = "false",
    remote_engine_id = ('"127.0.0.1:%d"'):format(f.workers.p0.second),
    remote_host = '"127.0.0.1"',
    remote_handshake_port = tostring(f.workers.p0.second),
    remote_notify_port = "61005",
    remote_dp_rank = tostring(rank or 0),
    remote_dp_rank_override = "true",
    remote_dp_size = tostring(dp),
    remote_dp_size_local = tostring(dp),
    tp_size = tostring(tp),
    transfer_id = '"' .. id .. '"',
    remote_tp_size = tostring(tp),
  }
end

local function check_read(raw, expected)
  for _, m in ipairs(json.members(raw)) do
    if m.key == "remote_block_ids" then
      assert.is_true(#json.elements(m.raw) > 0)
    else
      assert.equal(expected[m.key], m.raw, m.key)
      expected[m.key] = nil
    end
  end
  assert.same({}, expected)
end

local MODES = {
  { name = "WRITE", words = "", plan = "bootstrap" },
  { name = "READ", words = ",read_mode=1", plan = "handoff" },
}

for _, mode in ipairs(MODES) do
  describe("legs of moriio, " .. mode.name, function()
    setup(function()
      local tail = "connector=MoRIIOConnector,ttft=1,itl=1" .. mode.words
      f = fleet.start({
        workers = { "role=prefill,tp=4," .. tail, "role=decode,tp=2," .. tail },
        flags = FLAGS,
        registers = "moriio_port",
      })
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
          assert.equal(mode.plan, answer:header("x-baton-plan"))
          local p, d = legs.one(seen.prefill), legs.one(seen.decode)
          local id = transfer_id(p)
          local change = legs.one_token(route.path, body, { kv_transfer_params = asked(1, 2, id), ignore_eos = "true" })
          table.insert(change.removed, "stop")
          table.insert(change.removed, "stop_token_ids")
          legs.check(body, p.body, change)
          local params = json.raw(d.body, "kv_transfer_params")
          if mode.name == "READ" then
            check_read(params, read(1, 4, id))
          else
            assert.equal(written(1, 4, id), params)
          end
          legs.check(body, d.body, { added = { kv_transfer_params = params } })
          assert.equal(check_id(p), check_id(d))
          assert.same({ fleet.expect(prompt, 5, { chat = route.chat }) }, texts.of(route.path, answer))
          if not stream then
            assert.equal("external", answer:header("x-sim-kv-source"))
          end
          assert.equal(0, f:state("p0").held_kv_requests)
        end)
      end
    end

    it("gives each prompt and sample ids of its own", function()
      local body = '{"model":"sim","prompt":["one prompt","another"],"n":2,"seed":5,"max_tokens":3,"temperature":1}'
      local answer, seen = f:exchange("/v1/completions", body)
      assert.equal(200, answer.status, answer.body)
      local ids, transfers = {}, {}
      for _, d in ipairs(seen.decode) do
        ids[check_id(d)], transfers[transfer_id(d)] = true, true
      end
      for _, p in ipairs(seen.prefill) do
        assert.is_true(ids[check_id(p)] and transfers[transfer_id(p)])
        ids[check_id(p)], transfers[transfer_id(p)] = nil, nil
      end
      assert.equal(4, #seen.prefill)
      assert.same({}, ids)
      common.check_samples(answer)
    end)

    local ORDINARY = common.ORDINARY
    local function get()
      return f
    end
    common.headers(get, ORDINARY)
  end)

  describe("ranks of moriio, " .. mode.name, function()
    setup(function()
      local tail = "connector=MoRIIOConnector,dp=2,ttft=1,itl=1" .. mode.words
      f = fleet.start({
        workers = { "role=prefill," .. tail, "role=decode," .. tail },
        flags = FLAGS,
        registers = "moriio_port",
      })
    end)

    teardown(function()
      f:stop()
      proc.clean()
    end)

    it("are the same on both legs, and each has its turn", function()
      local seen_ranks = {}
      for i = 1, 4 do
        local prompt = PROMPT .. i
        local answer, seen = f:exchange("/v1/completions",
          ('{"model":"sim","prompt":"%s","max_tokens":5}'):format(prompt))
        assert.equal(200, answer.status, answer.body)
        local p, d = legs.one(seen.prefill), legs.one(seen.decode)
        local rank = p.headers["x-data-parallel-rank"]
        assert.truthy(rank == "0" or rank == "1", tostring(rank))
        assert.equal(rank, d.headers["x-data-parallel-rank"])
        local params = json.raw(d.body, "kv_transfer_params")
        assert.equal(rank, json.raw(params, "remote_dp_rank"))
        assert.equal("2", json.raw(params, "remote_dp_size"))
        assert.equal("2", json.raw(json.raw(p.body, "kv_transfer_params"), "remote_dp_size"))
        assert.same({ fleet.expect(prompt, 5) }, texts.of("/v1/completions", answer))
        seen_ranks[rank] = true
      end
      assert.same({ ["0"] = true, ["1"] = true }, seen_ranks)
    end)
  end)
end

describe("transfer modes of moriio that differ", function()
  it("are refused with a word", function()
    f = fleet.start({
      workers = { "role=prefill,connector=MoRIIOConnector,read_mode=1", "role=decode,connector=MoRIIOConnector" },
      flags = FLAGS,
      registers = "moriio_port",
      ready = false,
    })
    eventually(function()
      return f:metric('baton_registrations_total{result="taken"}') == 2 and f:told("p0").usable and f:told("d0").usable
    end)
    local answer = f:post("/v1/completions", '{"model":"sim","prompt":"words","max_tokens":3}')
    assert.equal(503, answer.status)
    assert.matches("transfer modes differ: set read_mode of MoRIIOConnector alike on both sides", answer.body)
    f:stop()
    proc.clean()
  end)
end)

-- What READ needs of prefill's reply, missing: the gateway says so, and decode's engine never hears of it.
describe("a reply of moriio's prefill without parameters", function()
  it("ends the attempt", function()
    f = fleet.start({
      workers = {
        "role=prefill,connector=MoRIIOConnector,read_mode=1", "role=decode,connector=MoRIIOConnector,read_mode=1",
      },
      flags = FLAGS,
      registers = "moriio_port",
    })
    local answer, seen = f:exchange("/v1/completions", '{"model":"sim","prompt":"words","max_tokens":3}',
      { ["X-Sim-Fault"] = "no_params@prefill" })
    assert.equal(502, answer.status, answer.body)
    assert.matches("kv_transfer_params is missing", answer.body)
    assert.same({}, seen.decode)
    f:stop()
    proc.clean()
  end)
end)
