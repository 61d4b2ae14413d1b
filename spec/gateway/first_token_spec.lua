-- --relay-first-token: a stream's first token goes out with prefill's reply, and decode's stream goes on behind it.
-- Replies and events as TensorRT-LLM's server writes them, by workers whose every byte the spec writes; then simulated
-- ones.

local common = require("gateway.support.common")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local puppet = require("gateway.support.puppet")
local rig = require("gateway.support.rig")
local texts = require("gateway.support.texts")

local COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
local BODY = '{"model":"m","prompt":"hello","max_tokens":8,"stream":true}'
local CHAT_BODY = '{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":8,"stream":true}'

-- What prefill's choice says beside its text: the id is the leg's own.
local function handed_on(leg, finish)
  local id = json.raw(leg.body, "disaggregated_params", "disagg_request_id")
  return ('"finish_reason":"%s","stop_reason":null,"disaggregated_params":{"request_type":"context_only",'
    .. '"first_gen_tokens":[5],"ctx_request_id":%s,"disagg_request_id":%s,"encoded_opaque_state":"AAAA",'
    .. '"draft_tokens":null}'):format(finish or "length", id, id)
end

local USAGE = '"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"prompt_tokens_details":'
  .. '{"cached_tokens":0}},"prompt_token_ids":[1,2]'

-- text: raw JSON, without quotes.
local function reply(leg, text, finish)
  return ('{"id":"cmpl-prefill","object":"text_completion","created":1700000001,"model":"m","choices":[{"index":0,'
    .. '"text":"%s","token_ids":null,"logprobs":null,%s}],%s}'):format(text, handed_on(leg, finish), USAGE)
end

local function chat_reply(leg, text, more)
  return ('{"id":"chatcmpl-prefill","object":"chat.completion","created":1700000001,"model":"m","choices":[{"index":0,'
    .. '"message":{"role":"assistant","content":"%s",%s"tool_calls":[]},"logprobs":null,%s}],%s}'):format(text,
    more or '"reasoning_content":"",', handed_on(leg), USAGE)
end

local function event(text, finish)
  return ('{"id":"cmpl-7","object":"text_completion","created":1700000009,"model":"m","choices":[{"index":0,'
    .. '"text":"%s","token_ids":null,"logprobs":null,"finish_reason":%s,"stop_reason":null}],"usage":null}'):format(
    text, finish and '"' .. finish .. '"' or "null")
end

local function chat_event(delta, finish)
  return ('{"id":"chatcmpl-7","object":"chat.completion.chunk","created":1700000009,"model":"m","choices":[{"index":0,'
    .. '"delta":{%s}%s}]}'):format(delta, finish and ',"finish_reason":"' .. finish .. '"' or "")
end

local LAST = '{"id":"cmpl-7","object":"text_completion","created":1700000009,"model":"m","choices":[],"usage":'
  .. '{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3}}'

-- The event that the client gets of a first token.
local function first_event(text)
  return ('{"id":"cmpl-prefill","object":"text_completion","created":1700000001,"model":"m","choices":[{"index":0,'
    .. '"text":"%s","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}'):format(text)
end

local PLANNER = [[
return {
  api = 2,
  name = "mine",
  version = "1",
  plan = function(_, view, ctx)
    baton.log("info", "planned attempt " .. ctx.attempt)
    return { prefill = view.prefill[1], decode = view.decode[1] }
  end,
}
]]

describe("a first token", function()
  local r

  local function start(what, ask)
    ask = ask or {}
    r = rig.start({
      engine = "trtllm", prefills = ask.prefills or 1, decodes = ask.decodes or 1,
      flags = { "--relay-first-token", what or "completions", unpack(ask.flags or {}) },
    })
  end

  after_each(function()
    if r then
      local ended = r
      r = nil
      ended:stop()
    end
    proc.clean()
  end)

  local function metric(name)
    return fleet.metric(r.admin_port, name)
  end

  -- Asks, and lets prefill reply: the client's connection and decode's leg.
  local function prefilled(body, make, path)
    path = path or COMPLETIONS
    local c = r:ask(path, body)
    local p = puppet.take_any(r.p, path)
    p:answer(200, {}, make(p))
    return c, (puppet.take_any(r.d, path))
  end

  local function says(text, finish)
    return function(leg)
      return reply(leg, text, finish)
    end
  end

  local function wait_events(c, count)
    r:until_so(function()
      return c.answer.status and #c.answer:data() >= count
    end, count .. " events are there", { c })
  end

  -- Decode says these, and no more.
  local function finish(c, leg, events)
    leg:begin()
    for _, data in ipairs(events) do
      leg:event(data)
    end
    leg:finish()
    return r:answer_of(c)
  end

  -- The event of this number says so, and ends the stream as engines do.
  local function assert_fails(c, number)
    local answer = r:answer_of(c)
    assert.is_falsy(answer.broken)
    assert.equal(number + 1, #answer:data(), answer.body)
    assert.truthy(json.decode(answer:data()[number]).error, answer.body)
    assert.equal("[DONE]", answer:data()[number + 1])
    return answer
  end

  it("is sent while decode still loads, and once", function()
    start()
    local c, d = prefilled(BODY, says(" Hel\\\"lo"))
    wait_events(c, 1)
    assert.equal(200, c.answer.status)
    assert.equal("text/event-stream; charset=utf-8", c.answer:header("content-type"))
    assert.equal("handoff", c.answer:header("x-baton-plan"))
    assert.same({ first_event(" Hel\\\"lo") }, c.answer:data())
    assert.equal("generation_only", json.decode(d.body).disaggregated_params.request_type)
    local answer = finish(c, d, { event(" Hel\\\"lo"), event(" wor"), event("ld", "length"), LAST, "[DONE]" })
    assert.same({ ' Hel"lo world' }, texts.of(COMPLETIONS, answer))
    assert.equal(5, #answer:data())
    for key, value in pairs({ id = '"cmpl-prefill"', created = "1700000001", model = '"m"' }) do
      assert.same({ value }, texts.distinct(answer, key))
    end
    assert.same({ { prompt_tokens = 2, total_tokens = 5, completion_tokens = 3 } }, texts.usages(answer))
    assert.equal(1, texts.dones(answer))
    for i = 1, 3 do
      assert.equal(i == 3 and "length" or json.null, json.decode(answer:data()[i]).choices[1].finish_reason)
    end
    assert.equal(1, metric("baton_first_tokens_total"))
    assert.equal(0, metric("baton_first_tokens_differ_total"))
  end)

  -- However decode cuts and spells it: prefill's text, decode's texts, what the client reads.
  local SHAPES = {
    { "with the token behind it", "Hel", { "Hello", "!" }, "Hello!" },
    { "in two pieces", "Hel", { "H", "el", "lo" }, "Hello" },
    { "a piece, then more than the rest", "Hel", { "He", "llo" }, "Hello" },
    { "behind an empty text", "Hel", { "", "Hello" }, "Hello" },
    { "of several bytes a character", "日本", { "日本", "語" }, "日本語" },
    { "escaped", "日本\\n.", { "\\u65e5\\u672C\\u000a.語", "x" }, "日本\n.語x" },
    { "escaped by prefill", "\\u65e5\\u672c", { "日", "本語" }, "日本語" },
    { "beyond the basic plane", "\\ud83d\\ude00", { "😀", "y" }, "😀y" },
    { "beyond it, escaped", "😀", { "\\uD83D\\uDE00\\ud83d\\ude01" }, "😀😁" },
    { "with quotes and strokes", "a\\\"\\\\\\/", { "a\\u0022\\u005c/b" }, 'a"\\/b' },
  }
  it("is taken out of decode's stream however that cuts and spells it", function()
    start()
    for _, shape in ipairs(SHAPES) do
      local name, text, said, wanted = unpack(shape)
      local c, d = prefilled(BODY, says(text))
      wait_events(c, 1)
      assert.equal(first_event(text), c.answer:data()[1], name)
      local events = {}
      for i, one in ipairs(said) do
        events[i] = event(one, i == #said and "length" or nil)
      end
      events[#events + 1] = "[DONE]"
      local answer = finish(c, d, events)
      assert.same({ wanted }, texts.of(COMPLETIONS, answer), name)
      assert.equal(1, texts.dones(answer), name)
      assert.truthy(answer.body:find('"finish_reason":"length"', 1, true), name)
    end
    assert.equal(#SHAPES, metric("baton_first_tokens_total"))
  end)

  it("is taken out of events that come in pieces of a byte", function()
    start()
    local c, d = prefilled(BODY, says("日本"))
    wait_events(c, 1)
    d:begin()
    local all = "data: " .. event("日本語") .. "\n\ndata: " .. event("!", "stop") .. "\n\ndata: [DONE]\n\n"
    for i = 1, #all do
      d:chunk(all:sub(i, i))
      c:pump()
    end
    d:finish()
    assert.same({ "日本語!" }, texts.of(COMPLETIONS, r:answer_of(c)))
  end)

  it("is the whole answer where max_tokens is 1", function()
    start()
    local c, d = prefilled(BODY:gsub('"max_tokens":8', '"max_tokens":1'), says("only"))
    wait_events(c, 1)
    local answer = finish(c, d, { event("only", "length"), "[DONE]" })
    assert.same({ "only" }, texts.of(COMPLETIONS, answer))
    assert.equal("length", json.decode(answer:data()[2]).choices[1].finish_reason)
    assert.equal(1, texts.dones(answer))
  end)

  -- The client gets what decode sends, byte by byte.
  local function assert_waits(c, d, said, why)
    local events = {}
    for i, one in ipairs(said) do
      events[i] = "data: " .. event(one, i == #said and "length" or nil) .. "\n\n"
    end
    local all = table.concat(events) .. "data: [DONE]\n\n"
    assert.is_nil(c.answer.status, why)
    d:begin()
    d:chunk(all)
    d:finish()
    assert.equal(all, r:answer_of(c).body, why)
  end

  it("waits for decode where another token may change it", function()
    start()
    local long = (" x"):rep(150)
    for _, text in ipairs({ "", " ", "Hel ", "\\n", "\\ufffd", "a\\ufffd", " '", " 's", " n", " n'", long }) do
      local c, d = prefilled(BODY, says(text))
      assert_waits(c, d, { text .. "lo", "!" }, text)
    end
    assert.equal(0, metric("baton_first_tokens_total"))
  end)

  it("waits for decode where more than text is asked for", function()
    start("all")
    for _, member in ipairs({
      '"logprobs":1', '"echo":true', '"stop":["x"]', '"stop":"x"', '"response_format":{"type":"json_object"}',
      '"detokenize":false', '"top_logprobs":2',
      '"stream_options":{"include_usage":true,"continuous_usage_stats":true}',
    }) do
      local c, d = prefilled(BODY:gsub("}$", "," .. member:gsub("%%", "%%%%") .. "}"), says("Hel"))
      assert_waits(c, d, { "Hel", "lo" }, member)
    end
    local c, d = prefilled(CHAT_BODY:gsub("}$", ',"tools":[{"type":"function"}]}'), function(leg)
      return chat_reply(leg, "Hel")
    end, CHAT)
    assert_waits(c, d, { "Hel", "lo" }, "tools")
    assert.equal(0, metric("baton_first_tokens_total"))
  end)

  it("goes out beside what changes nothing", function()
    start()
    for i, member in ipairs({
      '"logprobs":null', '"echo":false', '"stop":[]', '"n":1', '"presence_penalty":0.5', '"seed":3',
      '"stream_options":{"include_usage":true}', '"detokenize":true', '"stop_token_ids":[7]',
    }) do
      local c, d = prefilled(BODY:gsub("}$", "," .. member .. "}"), says("Hel"))
      wait_events(c, 1)
      assert.same({ "Hello" }, texts.of(COMPLETIONS, finish(c, d, { event("Hello", "stop"), "[DONE]" })), member)
      assert.equal(i, metric("baton_first_tokens_total"))
    end
  end)

  it("waits where prefill's token has ended the text", function()
    start()
    local c, d = prefilled(BODY, says("bye", "stop"))
    assert.is_nil(json.raw(d.body, "disaggregated_params"))
    assert_waits(c, d, { "bye" })
  end)

  it("is not sent for answers that are not streamed", function()
    start()
    local c, d = prefilled(BODY:gsub(',"stream":true', ""), says("Hel"))
    local whole = '{"id":"x","object":"text_completion","choices":[{"index":0,"text":"Hello","finish_reason":"stop"}]}'
    d:answer(200, {}, whole)
    assert.equal(whole, r:answer_of(c).body)
  end)

  it("waits in a chat, unless all are to be served so", function()
    start()
    local c, d = prefilled(CHAT_BODY, function(leg)
      return chat_reply(leg, "Hel")
    end, CHAT)
    assert.is_nil(c.answer.status)
    local answer = finish(c, d, { chat_event('"role":"assistant"'), chat_event('"content":"Hel"', "stop"), "[DONE]" })
    assert.same({ '"chatcmpl-7"' }, texts.distinct(answer, "id"))
  end)

  it("of a chat comes with its role", function()
    start("all")
    local c, d = prefilled(CHAT_BODY, function(leg)
      return chat_reply(leg, "Hel")
    end, CHAT)
    wait_events(c, 2)
    local head = '{"id":"chatcmpl-prefill","object":"chat.completion.chunk","created":1700000001,"model":"m","choices":'
      .. '[{"index":0,"delta":{%s},"logprobs":null,"finish_reason":null}],"usage":null}'
    assert.same({ head:format('"role":"assistant","content":""'), head:format('"content":"Hel"') }, c.answer:data())
    local answer = finish(c, d, {
      chat_event('"role":"assistant"'), chat_event('"content":"Hel","reasoning_content":""'),
      chat_event('"content":"lo","reasoning_content":""'), chat_event('"content":"","reasoning_content":""', "stop"),
      "[DONE]",
    })
    assert.same({ "Hello" }, texts.of(CHAT, answer))
    assert.equal(5, #answer:data())
    assert.same({ '"chatcmpl-prefill"' }, texts.distinct(answer, "id"))
    local roles = 0
    for _, data in ipairs(answer:data()) do
      roles = roles + (data:find('"role"', 1, true) and 1 or 0)
    end
    assert.equal(1, roles)
  end)

  it("of a chat waits where prefill's reply has reasoning", function()
    start("all")
    local c, d = prefilled(CHAT_BODY, function(leg)
      return chat_reply(leg, "Hel", '"reasoning_content":"Hm",')
    end, CHAT)
    local events = { chat_event('"role":"assistant"'), chat_event('"content":"Hel"', "stop"), "[DONE]" }
    assert.same(events, finish(c, d, events):data())
  end)

  it("is not sent again by another attempt, which goes on behind it", function()
    start(nil, { decodes = 2 })
    local c, d = prefilled(BODY, says("Hel"))
    wait_events(c, 1)
    d:rst()
    local p = puppet.take_any(r.p, COMPLETIONS)
    p:answer(200, {}, reply(p, "Hel"):gsub("cmpl%-prefill", "cmpl-again"))
    local answer = finish(c, puppet.take_any(r.d, COMPLETIONS), { event("Hello"), event("!", "stop"), "[DONE]" })
    assert.same({ "Hello!" }, texts.of(COMPLETIONS, answer))
    assert.same({ '"cmpl-prefill"' }, texts.distinct(answer, "id"))
    assert.equal(1, texts.dones(answer))
    assert.equal(1, metric("baton_first_tokens_total"))
    assert.equal(1, metric("baton_retries_total"))
  end)

  it("leaves the next attempt to the policy that has planned the first", function()
    local folder = proc.path("policies")
    os.execute("mkdir -p " .. folder)
    local file = assert(io.open(folder .. "/mine.lua", "w"))
    file:write(PLANNER)
    file:close()
    start(nil, {
      decodes = 2,
      flags = { "--policy-dir", folder, "--rules-file",
        proc.write("rules.lua", 'return { api = 1, rules = { { name = "all", policy = "mine" } } }') },
    })
    local c, d = prefilled(BODY, says("Hel"))
    wait_events(c, 1)
    d:rst()
    local p = puppet.take_any(r.p, COMPLETIONS)
    p:answer(200, {}, reply(p, "Hel"))
    finish(c, puppet.take_any(r.d, COMPLETIONS), { event("Hello", "stop"), "[DONE]" })
    assert.truthy(r.gateway:stderr():find("planned attempt 1", 1, true))
    assert.truthy(r.gateway:stderr():find("planned attempt 2", 1, true))
  end)

  it("stays good for another decode where the first one took no connection", function()
    start(nil, { decodes = 2 })
    local c = r:ask(COMPLETIONS, BODY)
    local p = puppet.take_any(r.p, COMPLETIONS)
    r.d[1]:refuse()
    p:answer(200, {}, reply(p, "Hel"))
    local d = r.d[2]:take(COMPLETIONS)
    wait_events(c, 1)
    local answer = finish(c, d, { event("Hello", "stop"), "[DONE]" })
    assert.same({ "Hello" }, texts.of(COMPLETIONS, answer))
    assert.equal(1, metric("baton_first_tokens_total"))
    assert.equal(0, #r.p[1].waiting)
  end)

  it("that the next attempt draws otherwise ends the answer, and decode's leg", function()
    start(nil, { decodes = 2 })
    local c, d = prefilled(BODY, says("Hel"))
    wait_events(c, 1)
    d:rst()
    local p = puppet.take_any(r.p, COMPLETIONS)
    p:answer(200, {}, reply(p, "Bon"))
    local answer = assert_fails(c, 2)
    assert.equal(first_event("Hel"), answer:data()[1])
    assert.equal(0, metric("baton_first_tokens_differ_total"))
  end)

  it("is followed by an error where no decode answers", function()
    start(nil, { flags = { "--disable-retries" } })
    local c, d = prefilled(BODY, says("Hel"))
    wait_events(c, 1)
    d:answer(500, {}, '{"object":"error","message":"out of memory","code":500}')
    local answer = assert_fails(c, 2)
    assert.truthy(answer:data()[2]:find("out of memory", 1, true), answer.body)
  end)

  it("is followed by an error where decode breaks off in the middle", function()
    start()
    local c, d = prefilled(BODY, says("Hel"))
    wait_events(c, 1)
    d:begin()
    d:event(event("Hello"))
    wait_events(c, 2)
    d:chunk("data: {\"id\":\"half an ev")
    d:rst()
    assert.equal("lo", json.decode(assert_fails(c, 3):data()[2]).choices[1].text)
  end)

  -- A tokenizer or parser of which nobody told us: it is seen, told, and does not come again.
  for name, said in pairs({
    ["another text"] = { event("Bon"), event("jour", "stop") }, ["too little"] = { event("He", "stop") },
    ["nothing"] = { event("", "stop") },
  }) do
    it("ends the answer where decode says " .. name .. ", and is not sent so again", function()
      start()
      local c, d = prefilled(BODY, says("Hel"))
      wait_events(c, 1)
      d:begin()
      for _, data in ipairs(said) do
        d:event(data)
      end
      assert.equal(first_event("Hel"), assert_fails(c, 2):data()[1])
      assert.equal(1, metric("baton_first_tokens_differ_total"))
      assert.truthy(r.gateway:stderr():find("Set relay_first_token to", 1, true))
      local next_c, next_d = prefilled(BODY, says("Hel"))
      assert_waits(next_c, next_d, { "Bon", "jour" })
      assert.equal(1, metric("baton_first_tokens_total"))
    end)
  end

  it("is not gone on with when its client leaves", function()
    start()
    local c, d = prefilled(BODY, says("Hel"))
    wait_events(c, 1)
    c:close()
    r:until_so(function()
      return d:is_gone()
    end, "decode's leg has ended")
  end)
end)

describe("first tokens of many prompts", function()
  local f

  setup(function()
    f = fleet.start({
      workers = { "role=prefill,engine=trtllm,ttft=1", "role=decode,engine=trtllm,ttft=1,itl=1,transfer_ms=5" },
      flags = { "--engine", "trtllm", "--relay-first-token", "all" },
    })
  end)
  teardown(function()
    f:stop()
    proc.clean()
  end)

  local WORDS = {
    "hello", "日本語", "naïve", "😀😁", "Привет", "line\\nbreak", "\\ud83d\\ude00", "quote\\\"", "नमस्ते", "ﷺ",
  }

  it("change no text, no usage and no end", function()
    local bodies = { [COMPLETIONS] = '"prompt":"%s"', [CHAT] = '"messages":[{"role":"user","content":"%s"}]' }
    local sent = 0
    for i = 1, 60 do
      for path, form in pairs(bodies) do
        local prompt = WORDS[i % #WORDS + 1] .. " " .. i .. WORDS[(i * 7 + 3) % #WORDS + 1]
        local max_tokens = i % 6 + 1
        local answer = f:post(path, ('{"model":"sim",%s,"max_tokens":%d,"stream":true,"seed":%d,"temperature":%d,'
          .. '"stream_options":{"include_usage":true}}'):format(form:format(prompt), max_tokens, i, i % 2))
        local plain = json.decode('"' .. prompt .. '"')
        assert.equal(200, answer.status, answer.body)
        assert.same({ fleet.expect(plain, max_tokens, { chat = path == CHAT, seed = i % 2 == 1 and i or nil }) },
          texts.of(path, answer), prompt)
        assert.equal(max_tokens, texts.usages(answer)[1].completion_tokens)
        assert.equal(1, texts.dones(answer))
        assert.equal(1, #texts.distinct(answer, "id"))
        assert.equal(1, select(2, answer.body:gsub('"finish_reason":"length"', "")))
        sent = sent + 1
      end
    end
    assert.equal(sent, f:metric("baton_first_tokens_total"))
    assert.equal(0, f:metric("baton_first_tokens_differ_total"))
    assert.equal(0, f:state("p0").held_kv_requests)
  end)

  it("are not those of lists", function()
    local before = f:metric("baton_first_tokens_total")
    local answer = f:post(COMPLETIONS, '{"model":"sim","prompt":["one","two"],"n":2,"max_tokens":3,"stream":true}')
    assert.equal(200, answer.status)
    assert.equal(4, #texts.of(COMPLETIONS, answer))
    assert.equal(before, f:metric("baton_first_tokens_total"))
  end)

  common.headers(function()
    return f
  end, { path = COMPLETIONS, body = '{"model":"sim","prompt":"ordinary words","max_tokens":3}' })
end)

describe("first tokens before decodes that fail", function()
  local f

  setup(function()
    f = fleet.start({
      workers = {
        "role=prefill,engine=trtllm,ttft=1,count=2",
        "role=decode,engine=trtllm,ttft=1,itl=1,transfer_ms=5,count=2",
      },
      flags = { "--engine", "trtllm", "--relay-first-token", "completions", "--disable-circuit-breaker" },
      sim = { "--time-scale", "0.1" },
    })
  end)
  teardown(function()
    f:stop()
    proc.clean()
  end)

  -- The other decode's answer goes on behind the token that the first try's prefill has drawn.
  local FAULTS = { "status", "error_body", "kv_lost", "rst" }
  for _, kind in ipairs(FAULTS) do
    it("stand, and what comes behind them is the rest: " .. kind, function()
      for i = 1, 10 do
        f.sim:fault("d0", { kind = kind, status = 500, path = COMPLETIONS, times = 1 })
        local prompt = kind .. " " .. i
        local body = '{"model":"sim","max_tokens":4,"stream":true,"prompt":"' .. prompt .. '"}'
        local answer = f:post(COMPLETIONS, body)
        assert.same({ fleet.expect(prompt, 4) }, texts.of(COMPLETIONS, answer), answer.body)
        assert.equal(1, #texts.distinct(answer, "id"))
        assert.equal(1, texts.dones(answer))
        http.request(f.workers.d0.port, { method = "DELETE", path = "/sim/fault" })
      end
    end)
  end

  it("were each sent once", function()
    assert.equal(10 * #FAULTS, f:metric("baton_first_tokens_total"))
    assert.equal(0, f:metric("baton_first_tokens_differ_total"))
    assert.is_true(f:metric("baton_retries_total") >= #FAULTS)
  end)
end)

describe("--relay-first-token", function()
  after_each(proc.clean)

  local function check(words)
    local argv = { fleet.binary("BATON_BIN", "baton"), "check", "--port", "0", "--admin-port", "0" }
    proc.append(argv, words)
    local code, out, err = proc.run(argv)
    return code, out .. err
  end

  local PAIR = { "--prefill", "http://127.0.0.1:9001", "--decode", "http://127.0.0.1:9002" }
  local AGAIN = "draws the first token anew"
  local ITSELF = "sends the first token itself"
  for connector, why in pairs({
    NixlConnector = AGAIN, MooncakeConnectorV1 = AGAIN, ExampleConnector = AGAIN, LMCacheConnectorV1 = AGAIN,
    NixlPushConnector = ITSELF, MooncakeConnector = ITSELF, BatonConnector = ITSELF,
  }) do
    it("is refused for " .. connector .. ", by name", function()
      local code, said = check({ "--vllm-pd-disaggregation", "--connector", connector, "--relay-first-token",
        "completions", "--transfer-port", "29511", unpack(PAIR) })
      assert.equal(2, code, said)
      assert.truthy(said:find("connector " .. connector, 1, true), said)
      assert.truthy(said:find("relay_first_token", 1, true), said)
      assert.truthy(said:find(why, 1, true), said)
    end)
  end

  it("is refused for SGLang", function()
    local code, said = check({ "--pd-disaggregation", "--relay-first-token", "all", unpack(PAIR) })
    assert.equal(2, code, said)
    assert.truthy(said:find(ITSELF, 1, true), said)
  end)

  it("is a matter of each pool", function()
    local function config(what)
      return proc.write("baton.lua", ([[return { pools = {
        { name = "one", engine = "trtllm", relay_first_token = "completions", workers = {
          { url = "http://127.0.0.1:9001", role = "prefill" }, { url = "http://127.0.0.1:9002", role = "decode" } } },
        { name = "two", models = { "m" }, relay_first_token = "%s", workers = {
          { url = "http://127.0.0.1:9003", role = "prefill", connector = "NixlConnector" },
          { url = "http://127.0.0.1:9004", role = "decode", connector = "NixlConnector" } } } } }]]):format(what))
    end
    local code, said = check({ config("off") })
    assert.equal(0, code, said)
    code, said = check({ config("all") })
    assert.equal(2, code, said)
    assert.truthy(said:find("pool two: relay_first_token: worker http://127.0.0.1:9003", 1, true), said)
    code, said = check({ config("some") })
    assert.equal(2, code, said)
    assert.truthy(said:find("off, completions, all", 1, true), said)
  end)
end)
