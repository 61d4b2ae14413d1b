-- The bytes of both legs of TensorRT-LLM's disaggregated serving, context first, typed from the server's protocol
-- (DisaggregatedParams): prefill asked with context_only and an id of ours, decode with what prefill's choice carries,
-- as generation_only, the prompt as prefill's ids.

local common = require("gateway.support.common")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local PROMPT = "Context first, then generation, one two three four five six seven eight nine ten."

local COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
local ROUTES = {
  { path = COMPLETIONS, body = '"prompt":"%s","max_tokens":5, "temperature":0.7000,"min_tokens":2', ids = "prompt" },
  { path = CHAT, body = '"messages" : [{"role":"user","content":"%s"}],"max_completion_tokens":5,"min_tokens":2',
    chat = true, ids = "prompt_token_ids" },
  { path = CHAT, body = '"messages":[{"role":"user","content":"%s"}],"max_tokens":5,"tool_choice":"none"', chat = true,
    ids = "prompt_token_ids" },
}

local f

-- versions: of the engine; before 1.3 there is no ctx_usage.
local function start(version, flags, count)
  local more = version and ",version=" .. version or ""
  f = fleet.start({
    workers = { "role=prefill,engine=trtllm,ttft=1,count=" .. (count or 1) .. more,
      "role=decode,engine=trtllm,ttft=1,itl=1,count=" .. (count or 1) .. more },
    flags = flags or { "--engine", "trtllm" },
  })
end

local function stop()
  f:stop()
  proc.clean()
end

-- The prompt's bytes, four an id, as the simulator counts tokens.
local function ids_of(text)
  local out = {}
  for at = 1, #text, 4 do
    local a, b, c, d = (text:sub(at, at + 3) .. "\0\0\0"):byte(1, 4)
    out[#out + 1] = ("%d"):format(a + b * 256 + c * 65536 + d * 16777216)
  end
  return "[" .. table.concat(out, ",") .. "]"
end

local function tokens_of(text)
  return math.ceil(#text / 4)
end

-- An int64 that cannot be one of the engine's own, which are below 2^40.
local function assert_id(raw)
  assert.truthy(raw:match("^%d+$"), raw)
  assert.is_true(#raw >= 13 and tonumber(raw) >= 2 ^ 40 and tonumber(raw) < 2 ^ 63, raw)
end

local function asked_as(id)
  return '{"request_type":"context_only","disagg_request_id":' .. id .. "}"
end

-- What goes to decode: prefill's object, two of its members changed.
local function told_as(id, token, prompt, usage)
  return ('{"request_type":"generation_only","first_gen_tokens":[%s],"first_gen_log_probs":null,'
    .. '"first_gen_logits":null,"ctx_request_id":%s,"encoded_opaque_state":"SimState/p0/","draft_tokens":null,'
    .. '"disagg_request_id":%s,"ctx_dp_rank":0,"ctx_info_endpoint":null,"schedule_style":null%s}'):format(token, id, id,
    usage and (',"ctx_usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":1,'
      .. '"prompt_tokens_details":{"cached_tokens":0}}'):format(tokens_of(prompt), tokens_of(prompt) + 1) or "")
end

local function check_legs(route, body, seen, flat, usage)
  local p, d = legs.one(seen.prefill), legs.one(seen.decode)
  local id = json.raw(p.body, "disaggregated_params", "disagg_request_id")
  assert_id(id)
  local streams = json.raw(body, "stream") == "true"
  legs.check(body, p.body, { removed = streams and { "stream_options" } or {},
    set = { stream = streams and "false" or json.raw(body, "stream") },
    added = { disaggregated_params = asked_as(id) } })
  local token = json.raw(d.body, "disaggregated_params", "first_gen_tokens"):match("^%[(%d+)%]$")
  local set, added = {}, { disaggregated_params = told_as(id, token, flat, usage) }
  if route.ids == "prompt" then
    set.prompt = ids_of(flat)
  else
    added.prompt_token_ids = ids_of(flat)
  end
  legs.check(body, d.body, { set = set, added = added })
  assert.equal(p.headers["x-request-id"], d.headers["x-request-id"])
  return id
end

describe("legs of trtllm", function()
  setup(function()
    start()
  end)
  teardown(stop)

  for number, route in ipairs(ROUTES) do
    for _, stream in ipairs({ false, true }) do
      it(("%s (%d)%s"):format(route.path, number, stream and ", streamed" or ""), function()
        local prompt = PROMPT .. number .. (stream and "s" or "w")
        local body = '{"model" : "sim",' .. route.body:format(prompt)
          .. (stream and ', "stream":true,"stream_options":{"include_usage":true} }' or " }")
        local answer, seen = f:exchange(route.path, body)
        assert.equal(200, answer.status, answer.body)
        local flat = route.chat and "user\n" .. prompt .. "\n" or prompt
        check_legs(route, body, seen, flat, true)
        assert.same({ fleet.expect(prompt, 5, { chat = route.chat }) }, texts.of(route.path, answer))
        assert.equal("handoff", answer:header("x-baton-plan"))
        local usage = stream and texts.usages(answer)[1] or json.decode(answer.body).usage
        assert.equal(tokens_of(flat), usage.prompt_tokens)
        assert.equal(5, usage.completion_tokens)
        if not stream then
          assert.equal("external", answer:header("x-sim-kv-source"))
          assert.is_nil(answer.body:find("SimState", 1, true), "the client is not told where prefill's KV was")
        end
        assert.equal(0, f:state("p0").held_kv_requests)
      end)
    end
  end

  it("draws another id for each request", function()
    local seen_ids = {}
    for i = 1, 8 do
      local _, seen = f:exchange(COMPLETIONS, '{"model":"sim","prompt":"number ' .. i .. '","max_tokens":2}')
      local id = json.raw(legs.one(seen.prefill).body, "disaggregated_params", "disagg_request_id")
      assert.is_nil(seen_ids[id])
      seen_ids[id] = true
    end
  end)

  for _, stream in ipairs({ false, true }) do
    it("splits lists and samples: one id each" .. (stream and ", streamed" or ""), function()
      local body = '{"model":"sim","prompt":["one prompt","another"],"n":2,"seed":5,"max_tokens":3,"temperature":1'
        .. (stream and ',"stream":true}' or "}")
      local answer, seen = f:exchange(COMPLETIONS, body, { ["X-Request-Id"] = "list" })
      assert.equal(200, answer.status, answer.body)
      local ids = {}
      for _, d in ipairs(seen.decode) do
        local id = json.raw(d.body, "disaggregated_params", "disagg_request_id")
        assert.is_nil(ids[id])
        ids[id] = d
      end
      assert.equal(4, #seen.decode)
      for _, p in ipairs(seen.prefill) do
        local id = json.raw(p.body, "disaggregated_params", "disagg_request_id")
        assert.equal(p.headers["x-request-id"], ids[id].headers["x-request-id"])
        assert.is_nil(json.raw(p.body, "n"))
        assert.is_nil(json.raw(ids[id].body, "n"))
        assert.equal(json.raw(p.body, "seed"), json.raw(ids[id].body, "seed"))
      end
      common.check_samples(answer)
      if stream then
        assert.equal(1, texts.dones(answer))
      end
    end)

    it("asks decode for all where prefill's token has ended the text" .. (stream and ", streamed" or ""), function()
      local body = '{"model":"sim","prompt":"short","max_tokens":7' .. (stream and ',"stream":true}' or "}")
      local answer, seen = f:exchange(COMPLETIONS, body, { ["X-Sim-Fault"] = "eos" })
      assert.equal(200, answer.status, answer.body)
      assert.equal(body, legs.one(seen.decode).body)
      assert.same({ fleet.expect("short", 1) }, texts.of(COMPLETIONS, answer))
      assert.equal(0, f:state("p0").held_kv_requests)
    end)
  end

  it("asks decode for all where prefill's reply has no parameters", function()
    local body = '{"model":"sim","prompt":"nothing to fetch","max_tokens":3}'
    local answer, seen = f:exchange(COMPLETIONS, body, { ["X-Sim-Fault"] = "no_params@prefill" })
    assert.equal(200, answer.status, answer.body)
    assert.equal(body, legs.one(seen.decode).body)
    assert.same({ fleet.expect("nothing to fetch", 3) }, texts.of(COMPLETIONS, answer))
  end)

  it("serves no other route", function()
    for _, path in ipairs({ "/v1/messages", "/v1/responses" }) do
      local answer, seen = f:exchange(path, '{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"x"}],'
        .. '"input":"x"}')
      assert.equal(400, answer.status, answer.body)
      assert.truthy(answer.body:find("route", 1, true), answer.body)
      assert.equal(0, #seen.prefill + #seen.decode)
    end
  end)

  it("drops what only a gateway may say", function()
    for _, key in ipairs({ "disaggregated_params", "disaggreg\\u0061ted_params" }) do
      local body = '{"model":"sim","prompt":"forged","max_tokens":3,"' .. key
        .. '":{"request_type":"generation_only","encoded_opaque_state":"evil"},"kv_transfer_params":{"a":1},'
        .. '"prompt_token_ids_b64":"evil"}'
      local answer, seen = f:exchange(COMPLETIONS, body)
      assert.equal(200, answer.status, answer.body)
      for _, e in ipairs({ legs.one(seen.prefill), legs.one(seen.decode) }) do
        assert.is_nil(e.body:find("evil", 1, true), e.body)
        assert.is_nil(json.raw(e.body, "kv_transfer_params"))
      end
      assert.same({ fleet.expect("forged", 3) }, texts.of(COMPLETIONS, answer))
    end
  end)

  it("stops prefill when its client leaves", function()
    local before = f:state("p0").live
    local c = http.start(f.port, { path = COMPLETIONS, body = '{"model":"sim","prompt":"leave","max_tokens":2}',
      headers = { ["X-Sim-Fault"] = "slow_first_byte:60000@prefill" } })
    eventually(function()
      return f:state("p0").live == before + 1
    end, 5, "prefill has it")
    c:close()
    eventually(function()
      return f:state("p0").live == before
    end, 5, "prefill has ended it")
  end)

  local ORDINARY = { path = COMPLETIONS, body = '{"model":"sim","prompt":"ordinary words","max_tokens":3}' }
  local function get()
    return f
  end
  common.headers(get, ORDINARY)
  common.ids(get, ORDINARY)
end)

describe("trtllm with --refuse-recompute", function()
  setup(function()
    start(nil, { "--engine", "trtllm", "--refuse-recompute", "--disable-retries" })
  end)
  teardown(stop)

  it("takes no offence at a text that ends at its first token", function()
    local answer, seen = f:exchange(COMPLETIONS, '{"model":"sim","prompt":"short","max_tokens":7}',
      { ["X-Sim-Fault"] = "eos" })
    assert.equal(200, answer.status, answer.body)
    assert.equal(1, #seen.decode)
    assert.same({ fleet.expect("short", 1) }, texts.of(COMPLETIONS, answer))
    assert.same({}, faults.guilt(f))
  end)

  it("blames prefill for a reply without parameters", function()
    local answer, seen = f:exchange(COMPLETIONS, '{"model":"sim","prompt":"nothing to fetch","max_tokens":3}',
      { ["X-Sim-Fault"] = "no_params@prefill" })
    assert.equal(502, answer.status, answer.body)
    assert.equal("prefill", answer:header("x-baton-leg"))
    assert.equal(0, #seen.decode)
    assert.same({ p0 = 1 }, faults.guilt(f))
  end)
end)

describe("trtllm before 1.3", function()
  setup(function()
    start("1.2.0")
  end)
  teardown(stop)

  it("is told no ctx_usage, which it would refuse", function()
    local body = '{"model":"sim","prompt":"' .. PROMPT .. '","max_tokens":5}'
    local answer, seen = f:exchange(COMPLETIONS, body)
    assert.equal(200, answer.status, answer.body)
    check_legs(ROUTES[1], body, seen, PROMPT, false)
    assert.same({ fleet.expect(PROMPT, 5) }, texts.of(COMPLETIONS, answer))
  end)
end)

describe("trtllm with two of each", function()
  setup(function()
    start(nil, nil, 2)
  end)
  teardown(stop)

  it("tries another pair when prefill fails", function()
    f.sim:fault("p0", { kind = "status", status = 500, path = COMPLETIONS, times = 1 })
    for i = 1, 64 do -- the first is drawn by lot
      if f:state("p0").failed == 1 then
        break
      end
      local answer = f:post(COMPLETIONS, '{"model":"sim","prompt":"survive","max_tokens":3}')
      assert.equal(200, answer.status, i .. answer.body)
      assert.same({ fleet.expect("survive", 3) }, texts.of(COMPLETIONS, answer))
    end
    assert.equal(1, f:state("p0").failed)
  end)

  -- The engine calls a failed transfer a 400: it is not the client's.
  it("tries another pair when decode cannot fetch the KV", function()
    f.sim:fault("d0", { kind = "kv_lost", path = COMPLETIONS, times = 1 })
    for i = 1, 64 do
      if f:state("d0").failed_transfers == 1 then
        break
      end
      local answer = f:post(COMPLETIONS, '{"model":"sim","prompt":"fetch","max_tokens":3}')
      assert.equal(200, answer.status, i .. answer.body)
      assert.same({ fleet.expect("fetch", 3) }, texts.of(COMPLETIONS, answer))
    end
    assert.equal(1, f:state("d0").failed_transfers)
  end)

  it("gives the client what is wrong with the request itself", function()
    local answer = f:post(COMPLETIONS, '{"model":"sim","prompt":"odd","max_tokens":3,"unheard_of":1}')
    assert.equal(400, answer.status, answer.body)
    assert.truthy(answer.body:find("unheard_of", 1, true), answer.body)
  end)
end)
