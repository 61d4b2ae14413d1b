-- Answers that go on by their token ids, with workers whose every byte the spec writes: events as vLLM sends them with
-- return_token_ids, and what the next worker is asked for.

local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local puppet = require("gateway.support.puppet")
local rig = require("gateway.support.rig")

local PATH = "/v1/completions"
local BODY = '{"model":"m","prompt":[1,2],"max_tokens":8,"stream":true, "unknown" : {"x":[1.50]}}'

-- One token's event. ids, text: raw. more: members behind it.
local function event(id, text, ids, finish, prompt_ids)
  return ('{"id":"%s","object":"text_completion","created":%d,"model":"m","choices":[{"index":0,"text":"%s",'
    .. '"logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":%s,"token_ids":%s}],'
    .. '"usage":null}'):format(id, #id * 1000, text, finish or "null", prompt_ids or "null", ids)
end

describe("a replay on the wire", function()
  local r

  local function start(flags)
    local all = { "--replay-lost-decode" }
    proc.append(all, flags)
    r = rig.start({ hybrids = 2, engine = "vllm", flags = all })
  end

  -- The leg of the request or of its replay, whoever gets it.
  local function take()
    return puppet.take_any(r.w, PATH)
  end

  local function replays()
    return tonumber(http.get(r.admin_port, "/metrics").body:match('baton_replays_total{reason="lost"} (%d+)'))
  end

  -- The first worker sends this and breaks off; the client's connection, when it has the last of it.
  local function broken_off(body, events, shown)
    local c = r:ask(PATH, body)
    local leg = take()
    leg:begin()
    for _, data in ipairs(events) do
      leg:event(data)
    end
    r:until_so(function()
      return c.answer.status and #c.answer:data() >= (shown or #events)
    end, "the client has what was sent", { c })
    leg:rst()
    return c, leg
  end

  after_each(function()
    if r then
      r:stop()
      r = nil
    end
  end)

  teardown(proc.clean)

  it("asks for the rest of eight tokens when one was delivered", function()
    start()
    local c, first = broken_off(BODY, { event("cmpl-a", "x", "[10]", nil, "[1,2]") })
    legs.check(BODY, first.body, { added = { return_token_ids = "true" } })
    local second = take()
    legs.check(BODY, second.body,
      { set = { prompt = "[1,2,10]", max_tokens = "7" }, added = { return_token_ids = "true" } })
    assert.equal(first.headers["x-request-id"] .. "-a2", second.headers["x-request-id"])
    second:begin()
    second:event(event("cmpl-other", "y", "[11]", nil, "[1,2,10]"))
    second:event(event("cmpl-other", "z", "[12]", '"stop"'))
    second:event("[DONE]")
    second:finish()
    local answer = r:answer_of(c)
    assert.same({ event("cmpl-a", "x", "null"), event("cmpl-a", "y", "null"), event("cmpl-a", "z", "null", '"stop"'),
      "[DONE]" }, answer:data())
    assert.equal(1, replays())
  end)

  it("says again what the engine held back, and no half of an event", function()
    start()
    local c = r:ask(PATH, BODY)
    local leg = take()
    leg:begin()
    local second_event = "data: " .. event("a", "b", "[11]") .. "\n\n"
    leg:chunk("data: " .. event("a", "x", "[10]") .. "\n\n" .. second_event:sub(1, 40))
    leg:chunk(second_event:sub(41))
    leg:event(event("a", "", "[12]")) -- half a character
    local cut = "data: " .. event("a", "never", "[13]") .. "\n\n"
    leg:chunk(cut:sub(1, #cut - 1))
    r:until_so(function()
      return c.answer.status and #c.answer:data() >= 3
    end, "three events", { c })
    leg:rst()
    local second = take()
    assert.equal("[1,2,10,11]", json.raw(second.body, "prompt"))
    assert.equal("6", json.raw(second.body, "max_tokens"))
    second:begin()
    second:event(event("b", "é", "[12,14]", '"length"'))
    second:event("[DONE]")
    second:finish()
    local answer = r:answer_of(c)
    assert.same({ event("a", "x", "null"), event("a", "b", "null"), event("a", "", "null"),
      event("a", "é", "null", '"length"'), "[DONE]" }, answer:data())
  end)

  it("learns the ids of a text from the engine", function()
    start()
    local body = BODY:gsub("%[1,2%]", '"hello"')
    local c = broken_off(body, { event("a", "x", "[10]", nil, "[7,8,9]") })
    local second = take()
    legs.check(body, second.body,
      { set = { prompt = "[7,8,9,10]", max_tokens = "7" }, added = { return_token_ids = "true" } })
    second:begin()
    second:event(event("a", "y", "[11]", '"length"'))
    second:finish()
    assert.equal(2, #r:answer_of(c):data())
  end)

  local function assert_fails(body, events)
    local c = broken_off(body, events)
    local answer = r:answer_of(c)
    assert.truthy(answer.body:find('"error"', 1, true), answer.body)
    assert.equal(1, #r.w[1].seen + #r.w[2].seen)
    assert.equal(0, replays())
  end

  it("fails as ever where the engine tells no ids", function()
    start()
    assert_fails(BODY, { event("a", "x", "null") })
  end)

  it("fails as ever where a text's ids are not told", function()
    start()
    assert_fails(BODY:gsub("%[1,2%]", '"hello"'), { event("a", "x", "[10]") })
  end)

  it("fails as ever where the client has ids without their text", function()
    start()
    assert_fails(BODY:gsub("}}$", '},"return_token_ids":true}'), { event("a", "x", "[10]"), event("a", "", "[11]") })
  end)

  it("fails as ever where all tokens are there but the engine has not ended", function()
    start()
    assert_fails(BODY:gsub(":8,", ":1,"), { event("a", "x", "[10]") })
  end)

  it("fails as ever with --disable-retries", function()
    start({ "--disable-retries" })
    assert_fails(BODY, { event("a", "x", "[10]") })
    assert.is_nil(json.decode((r.w[1].seen[1] or r.w[2].seen[1]).body).return_token_ids)
  end)

  local function texts_bytes()
    return tonumber(http.get(r.admin_port, "/metrics").body:match('baton_memory_bytes{kind="texts"} (%d+)'))
  end

  local function many(count)
    return "[" .. ("7,"):rep(count - 1) .. "7]"
  end

  it("keeps four bytes an id, and gives them back", function()
    start()
    local c = r:ask(PATH, (BODY:gsub(":8,", ":300000,")))
    local leg = take()
    leg:begin()
    leg:event(event("a", "x", many(100000)))
    r:until_so(function()
      return c.answer.status and #c.answer:data() == 1
    end, "the event", { c })
    local held = texts_bytes()
    assert.is_true(held >= 400000 and held < 4000000, tostring(held))
    leg:event(event("a", "y", "[8]", '"stop"'))
    leg:finish()
    r:answer_of(c)
    r:until_so(function()
      return texts_bytes() < 100000
    end, "the ids are given back")
  end)

  it("keeps no more than a million ids", function()
    start()
    assert_fails(BODY:gsub(":8,", ":3000000,"), { event("a", "x", many(1048577)) })
    assert.is_true(texts_bytes() < 100000)
  end)

  it("ends at the request's deadline", function()
    start({ "--request-timeout-secs", "4" })
    local c = broken_off(BODY, { event("a", "x", "[10]") })
    take()
    local answer = r:answer_of(c)
    assert.truthy(answer.body:find('"code":504', 1, true), answer.body)
    assert.equal(1, replays())
  end)

  it("tries others when the one that shall go on cannot be reached", function()
    start()
    local c, first = broken_off(BODY, { event("a", "x", "[10]") })
    local second = take()
    assert.not_equal(first.worker.url, second.worker.url)
    second:rst()
    local answer = r:answer_of(c)
    assert.truthy(answer.body:find('"error"', 1, true), "both were tried: " .. answer.body)
    assert.equal(1, replays())
  end)
end)
