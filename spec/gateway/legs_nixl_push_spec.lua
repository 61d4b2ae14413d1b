-- The bytes of both legs of NixlPushConnector, by the vLLM reference's wire notes: both at once under one X-Request-
-- Id, decode told who prefill is; where that is not configured, the first hand-off's reply teaches it.

local common = require("gateway.support.common")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local with_id = legs.with_id

local ASKED = '{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
  .. '"remote_host":null,"remote_port":null}'

local PROMPT = "Pushed by prefill into the blocks of decode, one two three four five six seven eight nine ten."

local ROUTES = {
  { path = "/v1/completions", body = '"prompt":"' .. PROMPT .. '","max_tokens":5,"temperature":0.7000', chat = false },
  {
    path = "/v1/chat/completions",
    body = '"messages" : [{"role":"user","content":"' .. PROMPT
      .. '"}],"max_completion_tokens":5,"max_tokens":5,"big":12345678901234567890123',
    chat = true,
  },
  { path = "/v1/responses", body = '"input":"' .. PROMPT .. '","max_output_tokens":5', chat = true },
  { path = "/v1/messages", body = '"messages":[{"role":"user","content":"' .. PROMPT .. '"}],"max_tokens":5',
    chat = true },
}

local f

-- What the reference's decode leg carries when the gateway makes it.
local function told(id)
  return ('{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":"p0","remote_host":"127.0.0.1",'
    .. '"remote_port":%d,"tp_size":1,"pp_size":1,"remote_request_id":"%s"}'):format(f.workers.p0.second, id)
end

-- A policy that wants what a configured pair does not do by itself.
local BY_HAND = [[
return { api = 2, name = "asked", version = "1", plan = function(req, view)
  return { kind = "handoff", prefill = view.prefill[1], decode = view.decode[1] }
end }
]]

local function start(engine_id, flags)
  f = fleet.start({
    workers = {
      "role=prefill,connector=NixlPushConnector,ttft=1", "role=decode,connector=NixlPushConnector,ttft=1,itl=1",
      "role=hybrid,name=plain,ttft=1,itl=1",
    },
    config = function(w)
      return ([[return { connector = "NixlPushConnector", pools = { { workers = {
        { url = "%s", role = "prefill", %s bootstrap_port = %d }, { url = "%s", role = "decode" } } } } }]]):format(
        w.p0.url, engine_id and 'engine_id = "p0",' or "", w.p0.second, w.d0.url)
    end,
    ready = false,
    flags = flags,
  })
  eventually(function()
    return f:get("/readiness").status == 200
  end)
end

describe("legs of nixl_push, all configured", function()
  setup(function()
    start(true)
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  for _, route in ipairs(ROUTES) do
    for _, stream in ipairs({ false, true }) do
      it(route.path .. (stream and ", streamed" or ""), function()
        local body = '{"model" : "sim",' .. route.body .. (stream and ', "stream":true }' or " }")
        local answer, seen = f:exchange(route.path, body)
        assert.equal(200, answer.status, answer.body)
        local p, d = legs.one(seen.prefill), legs.one(seen.decode)
        local id = p.headers["x-request-id"]
        assert.equal(id, d.headers["x-request-id"])
        legs.check(body, p.body, legs.one_token(route.path, body, with_id(route, id, { kv_transfer_params = ASKED })))
        legs.check(body, d.body, { added = with_id(route, id, { kv_transfer_params = told(id) }) })
        assert.equal(body:sub(1, -3), d.body:sub(1, #body - 2))
        assert.same({ fleet.expect(PROMPT, 5, { chat = route.chat }) }, texts.of(route.path, answer))
        assert.equal("bootstrap", answer:header("x-baton-plan"))
        eventually(function()
          return f:state("p0").held_kv_requests == 0
        end)
      end)
    end
  end

  it("sends both legs at once", function()
    f:mark()
    local c = http.start(f.port, { path = "/v1/completions", body = '{"model":"sim","prompt":"wait","max_tokens":2}',
      headers = { ["X-Sim-Fault"] = "slow_first_byte:1000@prefill" } })
    eventually(function()
      local seen = f:legs("/v1/completions")
      return #seen.decode == 1 and #seen.prefill == 1 and seen.prefill[1]["end"] == "open"
    end, 5, "decode is asked while prefill is silent")
    assert.equal(200, c:wait().status)
    c:close()
  end)

  it("splits lists and samples: one request id each", function()
    local body = '{"model":"sim","prompt":["one prompt","another"],"n":2,"seed":5,"max_tokens":3,"temperature":1}'
    local answer, seen = f:exchange("/v1/completions", body, { ["X-Request-Id"] = "push" })
    assert.equal(200, answer.status, answer.body)
    local ids = {}
    for _, d in ipairs(seen.decode) do
      local id = d.headers["x-request-id"]
      ids[#ids + 1] = id
      assert.equal(json.encode(id), json.raw(d.body, "kv_transfer_params", "remote_request_id"))
    end
    table.sort(ids)
    assert.same({ "push-0", "push-1", "push-2", "push-3" }, ids)
    common.check_samples(answer)
  end)

  local ORDINARY = common.ORDINARY
  local OURS = { "kv_transfer_params" }
  local function get()
    return f
  end
  common.headers(get, ORDINARY)
  common.ids(get, ORDINARY)
  common.forged(get, ORDINARY, { prefill = OURS, decode = OURS })
end)

describe("nixl_push without an engine id", function()
  setup(function()
    start(false)
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  it("hands off once, then knows", function()
    local body = '{"model":"sim","prompt":"teach me","max_tokens":3}'
    local answer, seen = f:exchange("/v1/completions", body, { ["X-Request-Id"] = "first" })
    assert.equal(200, answer.status, answer.body)
    assert.equal("handoff", answer:header("x-baton-plan"))
    local raw = json.raw(legs.one(seen.decode).body, "kv_transfer_params")
    assert.equal('"push"', json.raw(raw, "transfer_mode"))
    assert.equal(13, #json.keys(raw))
    assert.same({ fleet.expect("teach me", 3) }, texts.of("/v1/completions", answer))
    -- The other loop has learned as well: what is known of a worker is shared.
    for i = 1, 6 do
      local id = "later" .. i
      answer, seen = f:exchange("/v1/completions", body, { ["X-Request-Id"] = id })
      assert.equal("bootstrap", answer:header("x-baton-plan"))
      assert.equal(legs.dense(told(id)), legs.dense(json.raw(legs.one(seen.decode).body, "kv_transfer_params")))
      assert.same({ fleet.expect("teach me", 3) }, texts.of("/v1/completions", answer))
    end
  end)
end)

describe("a policy that asks for a kind on nixl_push", function()
  setup(function()
    start(true, { "--policy", proc.write("asked.lua", BY_HAND) })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  it("gets a hand-off, though both legs at once could be", function()
    local body = '{"model":"sim","prompt":"by hand","max_tokens":3}'
    local answer, seen = f:exchange("/v1/completions", body, { ["X-Request-Id"] = "by-hand" })
    assert.equal(200, answer.status, answer.body)
    assert.equal("handoff", answer:header("x-baton-plan"))
    assert.equal("asked@1", answer:header("x-baton-policy"))
    assert.equal('"push"', json.raw(json.raw(legs.one(seen.decode).body, "kv_transfer_params"), "transfer_mode"))
    assert.same({ fleet.expect("by hand", 3) }, texts.of("/v1/completions", answer))
  end)
end)
