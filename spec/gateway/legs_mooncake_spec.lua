-- The bytes of both legs of vLLM's own MooncakeConnector, by the vLLM reference's wire notes (1.4): both at once,
-- joined by a transfer id; decode told the bootstrap server and the engine id of prefill's rank, which GET /query
-- says.

local common = require("gateway.support.common")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local PROMPT = "Prefill pushes, but decode asks first, one two three four five six seven eight nine ten."
local COMPLETIONS = "/v1/completions"

local ROUTES = {
  { path = COMPLETIONS,
    body = '"prompt":"' .. PROMPT .. '","max_tokens":5,"temperature":0.7000,"stop":["zzz"] ,"stop_token_ids":[1]' },
  { path = "/v1/chat/completions", chat = true,
    body = '"messages" : [{"role":"user","content":"' .. PROMPT
      .. '"}],"max_completion_tokens":5,"min_tokens":3,"ignore_eos":false,"big":12345678901234567890123' },
  { path = "/v1/messages", chat = true,
    body = '"messages":[{"role":"user","content":"' .. PROMPT .. '"}],"max_tokens":5,"stop_sequences":["zzz"]' },
}

local f

local function start(words, config, flags)
  f = fleet.start({ workers = words, flags = flags or { "--kv-connector", "MooncakeConnector" }, config = config })
end

local function stop()
  f:stop()
  proc.clean()
end

local function pair(more)
  return { "role=prefill,connector=MooncakeConnector,ttft=1" .. (more or ""),
    "role=decode,connector=MooncakeConnector,ttft=1,itl=1" }
end

local function asked_as(id)
  return ('{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"%s"}'):format(id)
end

local function told_as(id, engine_id)
  return ('{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":"http://127.0.0.1:%d",'
    .. '"remote_engine_id":"%s","transfer_id":"%s"}'):format(f.workers.p0.second, engine_id, id)
end

local function transfer_id(entry)
  return json.decode(json.raw(entry.body, "kv_transfer_params", "transfer_id"))
end

describe("legs of mooncake", function()
  setup(function()
    start(pair())
  end)
  teardown(stop)

  for _, route in ipairs(ROUTES) do
    for _, stream in ipairs({ false, true }) do
      it(route.path .. (stream and ", streamed" or ""), function()
        local body = '{"model" : "sim",' .. route.body
          .. (stream and ', "stream":true,"stream_options":{"include_usage":true} }' or " }")
        local answer, seen = f:exchange(route.path, body)
        assert.equal(200, answer.status, answer.body)
        local p, d = legs.one(seen.prefill), legs.one(seen.decode)
        local id = transfer_id(p)
        assert.truthy(id:match("^xfer%-%x+$"), id)
        assert.equal(37, #id)
        assert.equal(p.headers["x-request-id"], d.headers["x-request-id"])
        assert.equal("0", p.headers["x-data-parallel-rank"])
        assert.is_nil(d.headers["x-data-parallel-rank"])
        local change = legs.one_token(route.path, body,
          { kv_transfer_params = asked_as(id) }, { ignore_eos = "true" })
        for _, key in ipairs({ "stop", "stop_token_ids", "stop_sequences" }) do
          table.insert(change.removed, key)
        end
        legs.check(body, p.body, change)
        legs.check(body, d.body, { added = { kv_transfer_params = told_as(id, "p0") } })
        assert.equal(body:sub(1, -3), d.body:sub(1, #body - 2))
        assert.same({ fleet.expect(PROMPT, 5, { chat = route.chat }) }, texts.of(route.path, answer))
        assert.equal("bootstrap", answer:header("x-baton-plan"))
        if not stream then
          assert.equal("external", answer:header("x-sim-kv-source"))
        end
        eventually(function()
          return f:state("p0").held_kv_requests == 0
        end)
      end)
    end
  end

  it("/inference/v1/generate", function()
    local body = '{"model":"sim","token_ids":[1,2,3],"sampling_params":{"max_tokens":4,"stop":["z"],"min_tokens":2}}'
    local answer, seen = f:exchange("/inference/v1/generate", body)
    assert.equal(200, answer.status, answer.body)
    assert.equal('{"max_tokens":1,"ignore_eos":true}',
      legs.dense(json.raw(legs.one(seen.prefill).body, "sampling_params")))
    assert.equal('{"max_tokens":4,"stop":["z"],"min_tokens":2}',
      legs.dense(json.raw(legs.one(seen.decode).body, "sampling_params")))
  end)

  it("is not served on a route that does not say how prefill has ended", function()
    local answer, seen = f:exchange("/v1/responses", '{"model":"sim","input":"x","max_output_tokens":3}')
    assert.equal(400, answer.status, answer.body)
    assert.truthy(answer.body:find("route", 1, true), answer.body)
    assert.equal(0, #seen.prefill + #seen.decode)
  end)

  it("sends both legs at once", function()
    f:mark()
    local c = http.start(f.port, { path = COMPLETIONS, body = '{"model":"sim","prompt":"wait","max_tokens":2}',
      headers = { ["X-Sim-Fault"] = "slow_first_byte:1000@prefill" } })
    eventually(function()
      local seen = f:legs(COMPLETIONS)
      return #seen.decode == 1 and #seen.prefill == 1 and seen.prefill[1]["end"] == "open"
    end, 5, "decode is asked while prefill is silent")
    assert.equal(200, c:wait().status)
    c:close()
  end)

  for _, stream in ipairs({ false, true }) do
    it("splits lists and samples: one transfer id each" .. (stream and ", streamed" or ""), function()
      local body = '{"model":"sim","prompt":["one prompt","another"],"n":2,"seed":5,"max_tokens":3,"temperature":1'
        .. (stream and ',"stream":true}' or "}")
      local answer, seen = f:exchange(COMPLETIONS, body, { ["X-Request-Id"] = "moon" })
      assert.equal(200, answer.status, answer.body)
      local by_id = {}
      for _, p in ipairs(seen.prefill) do
        assert.is_nil(by_id[transfer_id(p)])
        by_id[transfer_id(p)] = p.headers["x-request-id"]
      end
      assert.equal(4, #seen.decode)
      for _, d in ipairs(seen.decode) do
        assert.equal(by_id[transfer_id(d)], d.headers["x-request-id"])
        assert.is_nil(json.raw(d.body, "n"))
      end
      common.check_samples(answer)
    end)
  end

  -- Prefill's token may be an end of the text by chance: it is computed on all the same, and decode ends by it.
  it("lets no end of the text at prefill keep decode waiting", function()
    local answer, seen = f:exchange(COMPLETIONS, '{"model":"sim","prompt":"short","max_tokens":7}',
      { ["X-Sim-Fault"] = "eos" })
    assert.equal(200, answer.status, answer.body)
    assert.equal("true", json.raw(legs.one(seen.prefill).body, "ignore_eos"))
    assert.same({ fleet.expect("short", 1) }, texts.of(COMPLETIONS, answer))
  end)

  local ORDINARY = common.ORDINARY
  local function get()
    return f
  end
  common.ids(get, ORDINARY)
  common.forged(get, ORDINARY, { prefill = { "kv_transfer_params" }, decode = { "kv_transfer_params" } })
end)

-- On messages vLLM does not read ignore_eos.
describe("a prefill of mooncake that ends too early", function()
  setup(function()
    start(pair())
  end)
  teardown(stop)

  for _, path in ipairs({ COMPLETIONS, "/v1/chat/completions", "/v1/messages" }) do
    it("stops decode, which would wait for ever: " .. path, function()
      local body = '{"model":"sim","prompt":"x","messages":[{"role":"user","content":"x"}],"max_tokens":7}'
      local answer, seen = f:exchange(path, body, { ["X-Sim-Fault"] = "eos:1@prefill" })
      assert.equal(502, answer.status, answer.body)
      assert.truthy(answer.body:find("has freed its KV", 1, true), answer.body)
      assert.is_true(#seen.prefill >= 1)
      eventually(function()
        return f:state("d0").live == 0
      end, 5, "nothing waits at decode")
      assert.equal(0, f:state("p0").held_kv_requests)
    end)
  end
end)

describe("data-parallel ranks of mooncake", function()
  local function config(w)
    return ([[return { connector = "MooncakeConnector", pools = { { workers = {
      { url = "%s", role = "prefill", bootstrap_port = %d, dp_size = 4 },
      { url = "%s", role = "decode" } } } } }]]):format(w.p0.url, w.p0.second, w.d0.url)
  end
  setup(function()
    start(pair(",dp=4"), config)
  end)
  teardown(stop)

  it("are taken in turn, and decode is told the rank's engine", function()
    f:mark()
    for i = 1, 40 do
      local answer = f:post(COMPLETIONS, ('{"model":"sim","prompt":"rank %d","max_tokens":1}'):format(i))
      assert.equal(200, answer.status, answer.body)
    end
    local seen, ranks, counts = f:legs(COMPLETIONS), {}, { [0] = 0, 0, 0, 0 }
    for _, p in ipairs(seen.prefill) do
      local rank = tonumber(p.headers["x-data-parallel-rank"])
      ranks[transfer_id(p)] = rank
      counts[rank] = counts[rank] + 1
    end
    for _, d in ipairs(seen.decode) do
      assert.equal(('"p0_dp%d"'):format(ranks[transfer_id(d)]),
        json.raw(d.body, "kv_transfer_params", "remote_engine_id"))
      assert.is_nil(d.headers["x-data-parallel-rank"])
    end
    for rank = 0, 3 do
      assert.is_true(counts[rank] >= 8, "in turn: " .. counts[rank] .. " at rank " .. rank)
    end
  end)
end)

describe("engine ids of mooncake", function()
  setup(function()
    start(pair(), nil, { "--kv-connector", "MooncakeConnector", "--health-check-interval-secs", "600" })
  end)
  teardown(stop)

  local function ask(prompt)
    return f:exchange(COMPLETIONS, ('{"model":"sim","prompt":"%s","max_tokens":3}'):format(prompt))
  end

  -- Its first requests go there with the old id: prefill answers them, decode waits at an engine that is no more.
  it("are asked again when prefill restarts, and no request waits for the old one", function()
    assert.equal(200, ask("before").status)
    f.sim:reset("p0")
    local again, seen
    eventually(function()
      again, seen = ask("after")
      return again.status == 200, again.body
    end, 10, "it is served again")
    assert.equal('"p0.1"', json.raw(legs.one(seen.decode).body, "kv_transfer_params", "remote_engine_id"))
    eventually(function()
      return f:state("d0").live == 0
    end, 5, "nothing waits at decode")
  end)

  it("are asked again when prefill breaks off, and serve till then", function()
    f.sim:reset("p0")
    f.sim:fault("p0", { kind = "rst", path = COMPLETIONS, times = 1 })
    local answer = ask("broken")
    assert.equal(502, answer.status, answer.body)
    assert.equal(200, f:get("/readiness").status)
    eventually(function()
      local _, seen = ask("healed")
      return json.raw(legs.one(seen.decode).body, "kv_transfer_params", "remote_engine_id") == '"p0.2"'
    end, 10, "decode is told the new engine id")
    eventually(function()
      return f:state("d0").live == 0
    end, 5, "nothing waits at decode")
  end)
end)

describe("mooncake without a bootstrap port", function()
  it("is refused, with the remedy", function()
    local path = proc.write("baton.lua", [[return { connector = "MooncakeConnector", pools = { { workers = {
      { url = "http://127.0.0.1:1", role = "prefill", bootstrap_port = "none" },
      { url = "http://127.0.0.1:2", role = "decode" } } } } }]])
    local baton = fleet.binary("BATON_BIN", "baton")
    local code, _, err = proc.run({ baton, "run", path, "--port", "0", "--admin-port", "0" })
    assert.equal(2, code)
    assert.truthy(err:find("give bootstrap_port (vLLM's is 8998)", 1, true), err)
    proc.clean()
  end)

  it("is 8998 where none is named, and not ready while it does not answer", function()
    local sim = fleet.start_sim(pair())
    local path = proc.write("baton.lua", ([[return { connector = "MooncakeConnector", pools = { { workers = {
      { url = "%s", role = "prefill", bootstrap_port = %d }, { url = "%s", role = "decode" } } } } }]]):format(
      sim.workers.p0.url, sim.workers.d0.port, sim.workers.d0.url))
    local gateway, port = fleet.start_gateway({ path })
    eventually(function()
      return gateway:stderr():find("engine ids of the bootstrap port's /query answered 404", 1, true)
    end, 5, "the log says what is missing")
    local answer = http.post(port, COMPLETIONS, '{"model":"sim","prompt":"x","max_tokens":1}')
    assert.equal(503, answer.status, answer.body)
    gateway:stop(5)
    sim.process:stop(5)
    proc.clean()
  end)
end)
