-- The bytes of both legs of vLLM's pull connector (NixlConnector), by the vLLM reference's wire notes: prefill first
-- with one token, its kv_transfer_params verbatim to decode.

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

local REPLY_KEYS = {
  "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host",
  "remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode",
  "remote_prefill_cached_tokens",
}

-- White space, a 23-digit integer, 0.7000, key order, escapes and unknown members: none of it is the gateway's
-- business.
local ODD = '  "temperature" : 0.7000 ,\n\t"big":12345678901234567890123, "deep" : {"z":1.0,"a":[ 1 ,2 ],'
  .. ' "\\u006b\\/":"\\u00e9é"},'
  .. ' "x-unknown":null , "neg":-0.0,"exp":1E+2'

local PROMPT = "The gateway takes the words and hands them on, one two three four five six seven eight nine ten."

local ROUTES = {
  {
    path = "/v1/completions",
    prompt = '"prompt":"' .. PROMPT .. '"',
    tokens = '"max_tokens" : 6',
    expect = function()
      return fleet.expect(PROMPT, 6)
    end,
    id_prefix = "cmpl%-",
  },
  {
    path = "/v1/chat/completions",
    prompt = '"messages":[ {"role":"user", "content":"' .. PROMPT .. '","cache_control":{"t":1.50}} ]',
    tokens = '"max_tokens":6,"max_completion_tokens":6',
    expect = function()
      return fleet.expect(PROMPT, 6, { chat = true })
    end,
    id_prefix = "chatcmpl%-",
  },
  {
    path = "/v1/responses",
    prompt = '"input":"' .. PROMPT .. '"',
    tokens = '"max_output_tokens":6',
    expect = function()
      return fleet.expect(PROMPT, 6, { chat = true })
    end,
    id_prefix = "resp_",
  },
  {
    path = "/v1/messages",
    prompt = '"messages":[{"role":"user","content":[{"type":"text","text":"' .. PROMPT .. '"}]}]',
    tokens = '"max_tokens":6',
    expect = function()
      return fleet.expect(PROMPT, 6, { chat = true })
    end,
    id_prefix = ".*",
  },
  {
    path = "/inference/v1/generate",
    prompt = '"token_ids":[ 11,22, 33,44 ,55]',
    tokens = '"sampling_params":{ "max_tokens" : 6, "min_tokens":2,"top_p":0.90 }',
    nested = { prefill = '{ "max_tokens" : 1,"top_p":0.90 }' },
    id_prefix = ".*",
  },
}

local function body_of(route, more)
  return '{ "model" : "sim",' .. route.prompt .. "," .. ODD .. "," .. route.tokens .. (more and "," .. more or "")
    .. " }"
end

-- What a plain engine must be sent to name the answer as our legs do.
local function plain_body(route, id, body)
  return route.path == "/v1/responses" and body:sub(1, -3) .. ',"request_id":"resp_' .. id .. '" }' or body
end

local f

describe("legs of nixl", function()
  setup(function()
    f = fleet.start({
      workers = { "role=prefill,ttft=1", "role=decode,ttft=1,itl=1", "role=hybrid,name=plain,ttft=1,itl=1" },
      config = function(w)
        return ([[return { connector = "nixl", engine = "vllm", pools = { { workers = {
          { url = "%s", role = "prefill" }, { url = "%s", role = "decode" } } } } }]]):format(w.p0.url, w.d0.url)
      end,
      ready = false,
    })
    eventually(function()
      return f:get("/readiness").status == 200
    end)
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  local function check_decode(route, client, e, p)
    local raw = json.raw(e.body, "kv_transfer_params")
    legs.check(client, e.body, { added = with_id(route, p.headers["x-request-id"], { kv_transfer_params = raw }) })
    assert.same(REPLY_KEYS, json.keys(raw))
    assert.equal("true", json.raw(raw, "do_remote_prefill"))
    assert.equal("false", json.raw(raw, "do_remote_decode"))
    assert.equal('"p0"', json.raw(raw, "remote_engine_id"))
    assert.equal('"127.0.0.1"', json.raw(raw, "remote_host"))
    assert.equal(tostring(f.workers.p0.second), json.raw(raw, "remote_port"))
    assert.truthy(json.raw(raw, "remote_request_id"):find("^\"" .. route.id_prefix
      .. p.headers["x-request-id"]:gsub("%-", "%%-")))
    assert.equal(p.headers["x-request-id"], e.headers["x-request-id"])
  end

  for _, route in ipairs(ROUTES) do
    for _, stream in ipairs({ false, '"stream":false', '"stream" : true' }) do
      it(route.path .. " with " .. (stream or "no stream member"), function()
        local body = body_of(route, stream or nil)
        local answer, seen = f:exchange(route.path, body)
        assert.equal(200, answer.status, answer.body)
        local p, d = legs.one(seen.prefill), legs.one(seen.decode)
        legs.check(body, p.body,
          legs.one_token(route.path, body, with_id(route, p.headers["x-request-id"], { kv_transfer_params = ASKED }),
            route.nested and { sampling_params = route.nested.prefill }))
        assert.truthy(p.body:find(ODD, 1, true), p.body)
        check_decode(route, body, d, p)
        assert.truthy(d.body:sub(1, #body - 2) == body:sub(1, -3), "the client's bytes, then ours: " .. d.body)
        if route.expect then
          assert.same({ route.expect() }, texts.of(route.path, answer))
        else
          local plain = http.post(f.workers.plain.port, route.path, body)
          assert.same(texts.of(route.path, plain), texts.of(route.path, answer))
        end
        assert.equal(0, f:state("p0").held_kv_requests)
      end)
    end
  end

  it("takes out min_tokens, min_completion_tokens and stream_options of the prefill leg only", function()
    local body = '{"stream_options":{"include_usage":true},"model":"sim","min_tokens":2,"prompt":"a b c","stream":true,'
      .. '"min_completion_tokens":2,"max_tokens":4,"end":1}'
    local answer, seen = f:exchange("/v1/completions", body)
    assert.equal(200, answer.status, answer.body)
    assert.equal('{"model":"sim","prompt":"a b c","stream":false,"max_tokens":1,"end":1,"kv_transfer_params":'
      .. ASKED .. "}",
      seen.prefill[1].body)
    assert.equal(body:sub(1, -2), seen.decode[1].body:sub(1, #body - 1))
    assert.equal(1, #texts.usages(answer))
  end)

  it("adds what is absent to the smallest body", function()
    local answer, seen = f:exchange("/v1/completions", '{"prompt":"x"}')
    assert.equal(200, answer.status, answer.body)
    legs.check('{"prompt":"x"}', seen.prefill[1].body,
      { added = { stream = "false", max_tokens = "1", kv_transfer_params = ASKED } })
  end)

  it("knows prefill's name for an id that stands in the engine's prefix, too", function()
    local answer, seen = f:exchange("/v1/completions", '{"prompt":"x"}', { ["X-Request-Id"] = "mpl" })
    assert.equal(200, answer.status, answer.body)
    assert.equal("mpl", seen.decode[1].headers["x-request-id"])
  end)

  it("relays a stream as a plain engine would have sent it", function()
    for _, route in ipairs(ROUTES) do
      local body = body_of(route, '"stream":true,"stream_options":{"include_usage":true}')
      local id = "same-id" .. route.path:gsub("/", ".")
      local ours = f:post(route.path, body, { ["X-Request-Id"] = id })
      local plain = http.post(f.workers.plain.port, route.path, plain_body(route, id, body), { ["X-Request-Id"] = id })
      local function timeless(text)
        return (text:gsub('"created":%d+', '"created":0'):gsub('"created_at":%d+', '"created_at":0'))
      end
      assert.equal(timeless(plain.body), timeless(ours.body), route.path)
      assert.equal(plain:header("content-type"), ours:header("content-type"))
    end
  end)

  it("relays a whole answer as a plain engine would have sent it", function()
    for _, route in ipairs(ROUTES) do
      local body = body_of(route)
      local id = "same-whole-id" .. route.path:gsub("/", ".")
      local ours = f:post(route.path, body, { ["X-Request-Id"] = id })
      local plain = http.post(f.workers.plain.port, route.path, plain_body(route, id, body), { ["X-Request-Id"] = id })
      local function timeless(text)
        return (text:gsub('"created":%d+', '"created":0'):gsub('"created_at":%d+', '"created_at":0'))
      end
      assert.equal(timeless(plain.body), timeless(ours.body), route.path)
      assert.equal(tostring(#ours.body), ours:header("content-length"))
    end
  end)

  local ORDINARY = common.ORDINARY
  local OURS = { prefill = { "kv_transfer_params" }, decode = { "kv_transfer_params" } }
  local function get()
    return f
  end
  common.headers(get, ORDINARY)
  common.ids(get, ORDINARY)
  common.forged(get, ORDINARY, OURS)
end)

describe("lists and samples over nixl", function()
  setup(function()
    f = fleet.start({
      workers = { "role=prefill,count=2,ttft=1", "role=decode,count=2,ttft=1,itl=1" },
      flags = { "--vllm-pd-disaggregation", "--policy", "round_robin" },
    })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  -- asked: { path, prompts = {...} or prompt, n, seed, stream, max_tokens }
  local function check_children(seen, count, id)
    assert.equal(count, #seen.prefill)
    assert.equal(count, #seen.decode)
    local remote, ids = {}, {}
    for _, d in ipairs(seen.decode) do
      local raw = json.raw(d.body, "kv_transfer_params", "remote_request_id")
      assert.is_nil(remote[raw], "one remote id for each child")
      remote[raw] = true
      ids[d.headers["x-request-id"]] = true
      assert.is_nil(json.raw(d.body, "n"))
    end
    for i = 0, count - 1 do
      assert.is_true(ids[id .. "-" .. i] or false, "child " .. i)
    end
  end

  local function check_prompts(seen, wanted)
    for _, role in ipairs({ "prefill", "decode" }) do
      local found = {}
      for _, e in ipairs(seen[role]) do
        found[tonumber(e.headers["x-request-id"]:match("%-(%d+)$")) + 1] = json.raw(e.body, "prompt")
      end
      assert.same(wanted, found)
    end
  end

  for _, stream in ipairs({ false, true }) do
    local how = stream and ", streamed" or ""
    local tail = stream and ',"stream":true,"stream_options":{"include_usage":true}}' or "}"

    it("splits a list of prompts" .. how, function()
      local body = '{"model":"sim","prompt":["first prompt", "the second\\u0020one" ,"3rd"],"max_tokens":4,'
        .. '"big":12345678901234567890123'
        .. tail
      local answer, seen = f:exchange("/v1/completions", body, { ["X-Request-Id"] = "list" })
      assert.equal(200, answer.status, answer.body)
      check_children(seen, 3, "list")
      check_prompts(seen, { '"first prompt"', '"the second\\u0020one"', '"3rd"' })
      assert.truthy(seen.decode[1].body:find('"big":12345678901234567890123', 1, true))
      assert.same({ fleet.expect("first prompt", 4), fleet.expect("the second one", 4), fleet.expect("3rd", 4) },
        texts.of("/v1/completions", answer))
      local usage = stream and texts.usages(answer)[1] or json.decode(answer.body).usage
      assert.equal(3 + 4 + 1, usage.prompt_tokens)
      assert.equal(12, usage.completion_tokens)
      assert.equal(20, usage.total_tokens)
      if stream then
        assert.equal(1, texts.dones(answer))
        assert.equal(1, #texts.distinct(answer, "id"))
        assert.equal(1, #texts.distinct(answer, "created"))
        assert.equal(1, #texts.usages(answer))
        assert.equal("[DONE]", answer:data()[#answer:data()])
      end
    end)

    it("splits n samples and counts their prompt once" .. how, function()
      local body = '{"model":"sim","messages":[{"role":"user","content":"sample me"}],"n" : 3,"seed":40,'
        .. '"max_tokens":5,"temperature":1.0'
        .. tail
      local answer, seen = f:exchange("/v1/chat/completions", body, { ["X-Request-Id"] = "samples" })
      assert.equal(200, answer.status, answer.body)
      check_children(seen, 3, "samples")
      local seeds = {}
      for _, d in ipairs(seen.decode) do
        seeds[tonumber(d.headers["x-request-id"]:match("%-(%d+)$")) + 1] = json.raw(d.body, "seed")
      end
      assert.same({ "40", "41", "42" }, seeds)
      local wanted = {}
      for i = 0, 2 do
        wanted[i + 1] = fleet.expect("sample me", 5, { chat = true, seed = 40 + i })
      end
      assert.same(wanted, texts.of("/v1/chat/completions", answer))
      local usage = stream and texts.usages(answer)[1] or json.decode(answer.body).usage
      assert.equal(15, usage.completion_tokens)
      assert.equal(math.ceil(#"user\nsample me\n" / 4), usage.prompt_tokens)
      assert.equal(usage.prompt_tokens + 15, usage.total_tokens)
      if stream then
        assert.equal(1, texts.dones(answer))
        assert.equal(1, #texts.distinct(answer, "id"))
        assert.equal(1, #texts.usages(answer))
      else
        assert.equal("chat.completion", json.decode(answer.body).object)
        assert.equal(3, #json.decode(answer.body).choices)
      end
    end)

    it("splits samples of a token request, whose count stands in sampling_params" .. how, function()
      local body = '{"model":"sim","token_ids":[1,2,3],"sampling_params":'
        .. '{"n":2, "seed":3,"max_tokens":4,"temperature":1.0}'
        .. (stream and ',"stream":true}' or "}")
      local answer, seen = f:exchange("/inference/v1/generate", body, { ["X-Request-Id"] = "tokens" })
      assert.equal(200, answer.status, answer.body)
      check_children(seen, 2, "tokens")
      for _, e in ipairs(seen.decode) do
        local child = tonumber(e.headers["x-request-id"]:match("%-(%d+)$"))
        assert.equal(('{"seed":%d,"max_tokens":4,"temperature":1.0}'):format(3 + child),
          legs.dense(json.raw(e.body, "sampling_params")))
      end
      for _, e in ipairs(seen.prefill) do
        assert.equal("1", json.raw(e.body, "sampling_params", "max_tokens"))
      end
      local found = texts.of("/inference/v1/generate", answer)
      assert.equal(2, #found)
      assert.not_equal(found[1], found[2])
      if stream then
        assert.equal(1, texts.dones(answer))
        assert.equal(1, #texts.distinct(answer, "request_id"))
      end
    end)

    it("splits prompts times samples, the prompt's samples side by side" .. how, function()
      local body = '{"model":"sim","prompt":[[1,2,3,4],[5,6]],"n":2,"seed":7,"max_tokens":3,"temperature":1' .. tail
      local answer, seen = f:exchange("/v1/completions", body, { ["X-Request-Id"] = "both" })
      assert.equal(200, answer.status, answer.body)
      check_children(seen, 4, "both")
      check_prompts(seen, { "[1,2,3,4]", "[1,2,3,4]", "[5,6]", "[5,6]" })
      local wanted = {}
      for _, ids in ipairs({ "1,2,3,4", "5,6" }) do
        for seed = 7, 8 do
          wanted[#wanted + 1] = fleet.expect(ids, 3, { ids = true, seed = seed })
        end
      end
      assert.same(wanted, texts.of("/v1/completions", answer))
      local usage = stream and texts.usages(answer)[1] or json.decode(answer.body).usage
      assert.equal(6, usage.prompt_tokens)
      assert.equal(12, usage.completion_tokens)
    end)
  end

  it("leaves a list of one prompt and a prompt of ids in one piece each", function()
    for _, prompt in ipairs({ '["only one"]', "[1,2,3]", "[[1,2,3]]" }) do
      local body = '{"model":"sim","prompt":' .. prompt .. ',"max_tokens":2}'
      local answer, seen = f:exchange("/v1/completions", body)
      assert.equal(200, answer.status, answer.body)
      assert.equal(prompt, json.raw(legs.one(seen.prefill).body, "prompt"))
      assert.equal(prompt, json.raw(legs.one(seen.decode).body, "prompt"))
    end
  end)

  it("gives no usage event that was not asked for", function()
    local answer = f:post("/v1/completions", '{"model":"sim","prompt":["a","b"],"max_tokens":2,"stream":true}')
    assert.equal(200, answer.status)
    assert.equal(0, #texts.usages(answer))
    assert.equal(1, texts.dones(answer))
  end)

  it("refuses more children than max_fanout", function()
    local answer, seen = f:exchange("/v1/completions", '{"model":"sim","prompt":"x","n":65,"max_tokens":2}')
    assert.equal(400, answer.status, answer.body)
    assert.truthy(answer.body:find("64", 1, true), answer.body)
    assert.equal(0, #seen.prefill)
  end)

  it("refuses what no pair can do", function()
    for _, more in ipairs({
      '"best_of":2', '"use_beam_search":true', '"echo":true,"logprobs":1', '"prompt_logprobs":1,"stream":true',
    }) do
      local answer, seen = f:exchange("/v1/completions", '{"model":"sim","prompt":"x","max_tokens":2,' .. more .. "}")
      assert.equal(400, answer.status, more .. " " .. answer.body)
      assert.equal(0, #seen.prefill)
    end
    for _, n in ipairs({ "0", "-1", "1.5", '"2"', "1e9", "[]" }) do
      local answer, seen = f:exchange("/v1/completions", '{"model":"sim","prompt":"x","max_tokens":2,"n":' .. n .. "}")
      assert.equal(400, answer.status, n .. " " .. answer.body)
      assert.equal(0, #seen.prefill)
    end
  end)

  it("ends all children when one fails", function()
    local answer = f:exchange("/v1/completions", '{"model":"sim","prompt":["good","bad"],"max_tokens":999999}')
    assert.equal(400, answer.status, answer.body)
    assert.equal("BadRequestError", json.decode(answer.body).error.type)
    eventually(function()
      local live = 0
      for name in pairs(f.workers) do
        local s = f:state(name)
        live = live + s.live + s.held_kv_requests
      end
      return live == 0, live
    end, 5, "nothing runs, nothing is held")
  end)

  it("ends a stream of several choices with one error event when a child breaks off", function()
    local before = f:state("d0").cancelled + f:state("d1").cancelled
    f.sim:fault("d0", { kind = "rst", path = "/v1/chat/completions", after_chunks = 3, times = 1 })
    local answer = f:exchange("/v1/chat/completions",
      '{"model":"sim","messages":[{"role":"user","content":"x"}],"n":2,"max_tokens":400,"temperature":1,"stream":true}')
    assert.equal(200, answer.status)
    assert.is_true(answer.done or false)
    local data, errors = answer:data(), 0
    for _, event in ipairs(data) do
      errors = errors + (event ~= "[DONE]" and json.raw(event, "error") and 1 or 0)
    end
    assert.equal(1, errors)
    assert.equal(502, json.decode(data[#data - 1]).error.code)
    assert.equal("[DONE]", data[#data])
    eventually(function()
      return f:state("d0").live + f:state("d1").live == 0
    end, 5, "the other child was cancelled")
    assert.is_true(f:state("d0").cancelled + f:state("d1").cancelled > before)
  end)

  it("tries one child again on another pair while nothing of it has gone out", function()
    f.sim:fault("d1", { kind = "status", status = 500, path = "/v1/completions", times = 1 })
    local body = '{"model":"sim","prompt":["first","second"],"max_tokens":3}'
    local answer, seen = f:exchange("/v1/completions", body, { ["X-Request-Id"] = "twice" })
    assert.equal(200, answer.status, answer.body)
    assert.same({ fleet.expect("first", 3), fleet.expect("second", 3) }, texts.of("/v1/completions", answer))
    assert.equal(3, #seen.decode)
    local again = 0
    for _, e in ipairs(seen.decode) do
      again = again + (e.headers["x-request-id"]:match("^twice%-[01]%-a2$") and 1 or 0)
    end
    assert.equal(1, again)
  end)

  it("numbers a retry -a2 and tries another pair", function()
    f.sim:fault("p0", { kind = "status", status = 500, path = "/v1/completions", times = 1 })
    local retried
    for i = 1, 4 do
      local answer, seen = f:exchange("/v1/completions", '{"model":"sim","prompt":"again","max_tokens":2}',
        { ["X-Request-Id"] = "retry" .. i })
      assert.equal(200, answer.status, answer.body)
      if #seen.prefill == 2 then
        retried = true
        local by_id = {}
        for _, e in ipairs(seen.prefill) do
          by_id[e.headers["x-request-id"]] = e.worker
        end
        assert.same({ ["retry" .. i] = "p0", ["retry" .. i .. "-a2"] = "p1" }, by_id)
        assert.equal("retry" .. i .. "-a2", legs.one(seen.decode).headers["x-request-id"])
        assert.equal("2", answer:header("x-baton-attempts"))
        assert.equal("retry" .. i, answer:header("x-request-id"))
      end
    end
    assert.is_true(retried or false, "p0 was never chosen")
  end)
end)
