-- What depends on the order of bytes: workers here are puppets, every byte of an answer is the spec's.

local faults = require("gateway.support.faults")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local rig = require("gateway.support.rig")
local puppet = require("gateway.support.puppet")

local PATH = "/v1/completions"
local PARAMS = '{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e%s",'
  .. '"remote_request_id":"cmpl-%s-0-bd83aa8a","remote_host":"127.0.0.1","remote_port":4%s,"tp_size":1.0,'
  .. '"remote_num_tokens":16,'
  .. '"unknown":[12345678901234567890 , 0.70]}'
local CHUNK = '{"id":"x","object":"text_completion",'
  .. '"choices":[{"index":0,"text":"%s","finish_reason":null}],"usage":null}'
local WHOLE = '{"id":"x","object":"text_completion","choices":[{"index":0,"text":"fine","finish_reason":"length"}],'
  .. '"usage":{"prompt_tokens":16,"completion_tokens":8}}'

local function params_for(leg, engine)
  return PARAMS:format(engine or "1", leg.headers["x-request-id"], engine or "1")
end

local function reply(params, tokens)
  return ('{"id":"cmpl-p","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"length"}],'
    .. '"usage":{"prompt_tokens":%d,"total_tokens":17,"completion_tokens":1},"kv_transfer_params":%s}'):format(
    tokens or 16, params)
end

local function is_gone(...)
  local list = { ... }
  return function()
    for _, x in ipairs(list) do
      if not x:is_gone() then
        return false, "a leg is still open"
      end
    end
    return true
  end
end

describe("a hand-off, byte by byte", function()
  local r

  local function start(ask)
    ask.connector = ask.connector or "NixlConnector"
    r = rig.start(ask)
    return r
  end

  after_each(function()
    if r then
      local ended = r
      r = nil
      faults.wait_idle(ended)
      ended:stop()
    end
  end)

  it("gives a finished prefill to another decode when the first one refused the connection", function()
    start({ prefills = 1, decodes = 2, flags = { "--policy", "round_robin" } })
    r.d[1]:refuse()
    local again = 0
    for i = 1, 2 do -- one of both meets the dead decode first
      local before = faults.outcomes(r)
      local c = r:ask(PATH, faults.body())
      local p = r.p[1]:take(PATH)
      local params = params_for(p)
      p:answer(200, {}, reply(params))
      local d = r.d[2]:take(PATH)
      assert.equal(params, json.raw(d.body, "kv_transfer_params"), "verbatim")
      assert.equal(p.headers["x-request-id"], d.headers["x-request-id"])
      d:answer(200, {}, WHOLE)
      local answer = r:answer_of(c)
      assert.equal(200, answer.status)
      assert.equal(WHOLE, answer.body)
      assert.equal("d1", answer:header("x-baton-decode"), "the header names who answered")
      assert.equal(i, #r.p[1].seen, "prefill is not asked again")
      if answer:header("x-baton-attempts") == "2" then
        again = again + 1
        assert.same({ d0 = 1 }, faults.guilt(r, before))
        local id = answer:header("x-request-id")
        local record = json.decode(http.get(r.admin_port, "/explain/" .. id).body)
        assert.same({ { decode = "d0", failure = "connect" } }, record.attempts[1].replaced)
        local story = http.get(r.admin_port, "/explain/" .. id .. "?format=text").body
        assert.truthy(story:find("could not be handed to d0: connect", 1, true), story)
      end
    end
    assert.equal(1, again)
    assert.equal(1, faults.number(r, "baton_decode_replacements_total"))
    assert.equal(0, faults.number(r, "baton_releases_total"))
  end)

  it("prefills again when decode's connection broke after the request had gone out", function()
    start({ prefills = 1, decodes = 2 })
    local c = r:ask(PATH, faults.body())
    local p1 = r.p[1]:take(PATH)
    p1:answer(200, {}, reply(params_for(p1, "1")))
    local d1, first = puppet.take_any(r.d, PATH)
    d1:rst()
    local p2 = r.p[1]:take(PATH)
    assert.equal(p1.headers["x-request-id"] .. "-a2", p2.headers["x-request-id"])
    p2:answer(200, {}, reply(params_for(p2, "2")))
    local d2, second = puppet.take_any(r.d, PATH)
    assert.not_equal(first, second)
    assert.equal("e2", json.decode(d2.body).kv_transfer_params.remote_engine_id)
    d2:answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    assert.same({ ["d" .. (first - 1)] = 1 }, faults.guilt(r))
  end)

  -- A pooled connection is no exception: decode may have read prefill's blocks before it died.
  it("prefills again when a pooled connection to decode died without an answer", function()
    start({ prefills = 1, decodes = 1, flags = { "--loops", "1" } })
    local c = r:ask(PATH, faults.body())
    local p = r.p[1]:take(PATH)
    p:answer(200, {}, reply(params_for(p)))
    r.d[1]:take(PATH):answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)

    c = r:ask(PATH, faults.body())
    p = r.p[1]:take(PATH)
    p:answer(200, {}, reply(params_for(p, "2")))
    local d = r.d[1]:take(PATH)
    assert.equal(1, #r.d[1].connections, "the connection was used again")
    d:rst()
    p = r.p[1]:take(PATH)
    p:answer(200, {}, reply(params_for(p, "3")))
    d = r.d[1]:take(PATH)
    assert.equal("e3", json.decode(d.body).kv_transfer_params.remote_engine_id)
    d:answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    assert.same({}, faults.guilt(r), "a stale connection proves nothing")
  end)

  it("asks prefill again on a fresh connection when its pooled one was closed", function()
    start({ prefills = 1, decodes = 1, flags = { "--loops", "1" } })
    for turn = 1, 2 do
      local c = r:ask(PATH, faults.body())
      local p = r.p[1]:take(PATH)
      if turn == 2 then
        p:rst()
        p = r.p[1]:take(PATH)
      end
      p:answer(200, {}, reply(params_for(p)))
      r.d[1]:take(PATH):answer(200, {}, WHOLE)
      local answer = r:answer_of(c)
      assert.equal(200, answer.status)
      assert.is_nil(answer:header("x-baton-attempts"))
    end
    assert.same({}, faults.guilt(r))
  end)

  local BAD = {
    { "without remote_block_ids", '"remote_block_ids":%[%[1,2%]%],', "" },
    { "with empty remote_block_ids", '"remote_block_ids":%[%[1,2%]%]', '"remote_block_ids":[]' },
    { "with null remote_block_ids", '"remote_block_ids":%[%[1,2%]%]', '"remote_block_ids":null' },
    { "without remote_engine_id", '"remote_engine_id":"e1",', "" },
    { "with a number as remote_engine_id", '"remote_engine_id":"e1"', '"remote_engine_id":1' },
    { "without remote_request_id", '"remote_request_id":"[^"]*",', "" },
    { "made for another request", '"remote_request_id":"cmpl%-[^"]*"',
      '"remote_request_id":"cmpl-somebody-else-0-11"' },
    { "without remote_host", '"remote_host":"127.0.0.1",', "" },
    { "without remote_port", '"remote_port":41,', "" },
    { "with null remote_port", '"remote_port":41', '"remote_port":null' },
    { "with do_remote_prefill false", '"do_remote_prefill":true', '"do_remote_prefill":false' },
    { "without do_remote_prefill", '"do_remote_prefill":true,', "" },
    { "of a prompt of another length", '"remote_num_tokens":16', '"remote_num_tokens":15' },
  }

  it("never lets decode see wrong parameters, which would kill it; they are prefill's fault", function()
    start({ prefills = 1, decodes = 1, flags = { "--disable-circuit-breaker" } })
    for i, bad in ipairs(BAD) do
      local c = r:ask(PATH, faults.body())
      local p = r.p[1]:take(PATH)
      local good = params_for(p)
      local wrong = good:gsub(bad[2], bad[3])
      assert.not_equal(good, wrong)
      p:answer(200, {}, reply(wrong))
      local answer = r:answer_of(c)
      assert.equal(502, answer.status, bad[1] .. ": " .. answer.body)
      assert.equal("prefill", answer:header("x-baton-leg"), bad[1])
      assert.equal("handoff", answer:header("x-baton-error"), bad[1])
      assert.same({ p0 = i }, faults.guilt(r), bad[1])
    end
    faults.wait_idle(r)
    puppet.pump()
    assert.equal(0, #r.d[1].seen, "neither a leg nor a release")
  end)

  it("takes another prefill when the first one's parameters are wrong", function()
    start({ prefills = 2, decodes = 1 })
    local c = r:ask(PATH, faults.body())
    local p, first = puppet.take_any(r.p, PATH)
    p:answer(200, {}, reply((params_for(p):gsub('"remote_host":"127.0.0.1",', ""))))
    local q, second = puppet.take_any(r.p, PATH)
    assert.not_equal(first, second)
    q:answer(200, {}, reply(params_for(q, "2")))
    local d = r.d[1]:take(PATH)
    assert.equal("e2", json.decode(d.body).kv_transfer_params.remote_engine_id)
    d:answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    assert.same({ ["p" .. (first - 1)] = 1 }, faults.guilt(r))
  end)

  it("gives the client the engine's own bytes, whatever they are", function()
    start({ prefills = 1, decodes = 1, flags = { "--disable-circuit-breaker" } })
    local cases = {
      { leg = "prefill", status = 429, body = "slow down\r\n\0\255 not JSON", headers = { { "Retry-After",
        "Wed, 21 Oct 2026 07:28:00 GMT" },
        { "Content-Type", "text/weird" }, { "X-Own", "a, b" }, { "X-Own", "c" } } },
      { leg = "decode", status = 503, body = ' {"error" : {"message":"\\u00e9 é","n":1.0}} ',
        headers = { { "retry-after", "120" } } },
      { leg = "decode", status = 422, body = "", headers = {} },
      { leg = "prefill", status = 418, body = ("x"):rep(70000), headers = {} },
    }
    for _, case in ipairs(cases) do
      local c = r:ask(PATH, faults.body({ stream = true }))
      local leg = r.p[1]:take(PATH)
      if case.leg == "decode" then
        leg:answer(200, {}, reply(params_for(leg)))
        leg = r.d[1]:take(PATH)
      end
      leg:answer(case.status, case.headers, case.body)
      local answer = r:answer_of(c)
      assert.equal(case.status, answer.status)
      assert.equal(case.body, answer.body)
      assert.equal(case.leg, answer:header("x-baton-leg"))
      for _, h in ipairs(case.headers) do
        assert.is_truthy(table.concat(answer:all(h[1]), "|"):find(h[2], 1, true), h[1])
      end
    end
    assert.same({}, faults.guilt(r))
  end)

  it("releases prefill's KV at decode when the client leaves before decode could be asked", function()
    start({ prefills = 1, decodes = 1 })
    local full = r.d[1]:fill_backlog() -- a connect now stays unanswered
    local c = r:ask(PATH, faults.body())
    local p = r.p[1]:take(PATH)
    local params = params_for(p)
    p:answer(200, {}, reply(params))
    r:until_so(function()
      return faults.ledger(r)["d0 decode"] == faults.PROMPT_TOKENS
    end, "decode's leg waits for its connection")
    c:close()
    r:until_so(function()
      return faults.number(r, "baton_releases_total") == 1
    end, "a release leg is sent")
    full()
    local x = r.d[1]:take(PATH, 4)
    local body = json.decode(x.body)
    assert.equal(params, json.raw(x.body, "kv_transfer_params"), "complete, verbatim")
    assert.not_equal("sim", body.model)
    x:answer(404, {}, '{"error":{"message":"The model does not exist.","code":404}}')
    faults.wait_idle(r)
    assert.same({}, faults.guilt(r))
    assert.equal(1, #r.d[1].seen)
  end)

  it("releases one prompt's KV when another one's prefill refuses", function()
    start({ prefills = 1, decodes = 1 })
    local full = r.d[1]:fill_backlog()
    local c = r:ask(PATH, '{"model":"sim","prompt":["good","bad"],"max_tokens":8}')
    local good, bad = r.p[1]:take(PATH), r.p[1]:take(PATH)
    if bad.body:find("good", 1, true) then
      good, bad = bad, good
    end
    local params = params_for(good)
    good:answer(200, {}, reply(params))
    r:until_so(function()
      return faults.number(r, "baton_prefill_seconds_count") == 1
    end, "decode's leg waits for its connection")
    bad:answer(400, {}, '{"error":{"message":"no","code":400}}')
    assert.equal(400, r:answer_of(c).status)
    assert.equal(1, faults.number(r, "baton_releases_total"))
    full()
    local x = r.d[1]:take(PATH, 4)
    assert.equal(params, json.raw(x.body, "kv_transfer_params"))
    x:answer(404, {}, "{}")
    faults.wait_idle(r)
  end)

  it("breaks off, with an error event between two events and without a last chunk inside one", function()
    start({ prefills = 1, decodes = 1, flags = { "--disable-circuit-breaker" } })
    for _, case in ipairs({ { bytes = "data: " .. CHUNK:format("a") .. "\n\n", event = true },
      { bytes = "data: " .. CHUNK:format("a") .. "\r\n\r\n", event = true },
      { bytes = "data: " .. CHUNK:format("a") .. "\n\ndata: {\"id\":", event = false } }) do
      local c = r:ask(PATH, faults.body({ stream = true }))
      local p = r.p[1]:take(PATH)
      p:answer(200, {}, reply(params_for(p)))
      local d = r.d[1]:take(PATH)
      d:begin()
      d:chunk(case.bytes)
      r:until_so(function()
        return #c.answer.body >= #case.bytes
      end, "the bytes have come", { c })
      d:fin()
      local answer = r:answer_of(c)
      assert.equal(case.bytes, answer.body:sub(1, #case.bytes), "every byte that came is there")
      assert.equal(case.event and "event" or "broken", faults.assert_not_whole(answer))
    end
  end)
end)

describe("both legs at once, byte by byte", function()
  local r

  local function start(ask)
    ask.connector, ask.engine, ask.bootstrap_port = "sglang", "sglang", 8998
    r = rig.start(ask)
    return r
  end

  after_each(function()
    if r then
      local ended = r
      r = nil
      faults.wait_idle(ended)
      ended:stop()
    end
  end)

  local function both(stream)
    local c = r:ask(PATH, faults.body({ stream = stream }))
    return c, r.p[1]:take(PATH), r.d[1]:take(PATH)
  end

  local function aborted_once(list, x)
    local rid, times = json.decode(x.body).rid, 0
    for _, seen in ipairs(list) do
      times = times + (seen == rid and 1 or 0)
    end
    return times == 1, times
  end

  for _, stream in ipairs({ false, true }) do
    it("answers with the first failure and ends the silent leg: " .. (stream and "streamed" or "not streamed"),
      function()
      start({ prefills = 1, decodes = 1, flags = { "--disable-retries" } })
      for _, failing in ipairs({ "p", "d" }) do
        local c, p, d = both(stream)
        local bad, other = p, d
        if failing == "d" then
          bad, other = d, p
        end
        bad:answer(400, {}, '{"object":"error","message":"too long"}')
        local answer = r:answer_of(c)
        assert.equal(400, answer.status)
        assert.equal('{"object":"error","message":"too long"}', answer.body)
        r:until_so(is_gone(other), "the other leg is closed")
        r:until_so(function()
          return aborted_once(other.worker.aborts, other)
        end, "and aborted by its rid")
      end
      faults.wait_idle(r)
      assert.equal(1, select(2, aborted_once(r.p[1].aborts, r.p[1].seen[2])))
    end)
  end

  it("does not wait for prefill's body once decode has answered", function()
    start({ prefills = 1, decodes = 1 })
    for _, stream in ipairs({ false, true }) do
      local c, p, d = both(stream)
      if stream then
        d:begin()
        d:event(CHUNK:format("a"))
        d:event("[DONE]")
        d:finish()
      else
        d:answer(200, {}, WHOLE)
      end
      local answer = r:answer_of(c, 4)
      assert.equal(200, answer.status)
      assert.is_false(answer.broken or false)
      assert.is_false(p:is_gone(), "its connection is worth keeping")
      p:answer(200, {}, WHOLE)
    end
    assert.same({}, faults.guilt(r))
  end)

  local ABORTS = {
    '{"id":"x","choices":[{"index":0,"text":"","finish_reason":"abort"}]}',
    '{"text":"","meta_info":{"id":"x","finish_reason":{"type":"abort","message":"out of memory",'
      .. '"status_code":500,"err_type":null}}}',
    '{"object":"error","message":"broken","type":"500","param":null,"code":500}',
  }

  it("finds the failure in prefill's 200", function()
    start({ prefills = 1, decodes = 1, flags = { "--disable-retries", "--disable-circuit-breaker" } })
    for i, body in ipairs(ABORTS) do
      local c, p, d = both(true)
      p:answer(200, {}, body)
      local answer = r:answer_of(c)
      assert.equal(500, answer.status)
      assert.equal(body, answer.body)
      assert.equal("prefill", answer:header("x-baton-leg"))
      assert.equal("upstream_body", answer:header("x-baton-error"))
      r:until_so(is_gone(d), "decode is closed")
      r:until_so(function()
        return aborted_once(r.d[1].aborts, d)
      end, "and aborted")
      assert.same({ p0 = i }, faults.guilt(r))
    end
  end)

  it("does not care how prefill ends after decode's first event", function()
    start({ prefills = 1, decodes = 1, flags = { "--disable-circuit-breaker" } })
    for _, how in ipairs({ "abort", "rst", "status" }) do
      local c, p, d = both(true)
      d:begin()
      d:event(CHUNK:format("a"))
      r:until_so(function()
        return #c.answer:data() == 1
      end, "the first event is there", { c })
      if how == "abort" then
        p:answer(200, {}, ABORTS[1])
      elseif how == "rst" then
        p:rst()
      else
        p:answer(500, {}, "{}")
      end
      r:until_so(function()
        return faults.ledger(r)["p0 prefill"] == nil
      end, "prefill's end is noticed")
      d:event("[DONE]")
      d:finish()
      local answer = r:answer_of(c)
      assert.same({ CHUNK:format("a"), "[DONE]" }, answer:data())
    end
  end)

  local KV = '{"object":"error","message":"Decode transfer failed for request rank=0 '
    .. 'KVTransferError(bootstrap_room=1): Lost connection with prefill instance","type":"500","param":null,"code":500}'

  it("waits a moment for prefill's fate before it blames anybody for a failed transfer", function()
    start({ prefills = 1, decodes = 1, flags = { "--disable-retries", "--disable-circuit-breaker" } })
    local c, p, d = both(false)
    d:answer(500, {}, KV)
    p:rst()
    local answer = r:answer_of(c)
    assert.equal(500, answer.status)
    assert.equal(KV, answer.body)
    assert.same({ p0 = 1 }, faults.guilt(r), "prefill died, decode only said so")

    c, p, d = both(false)
    d:answer(500, {}, KV)
    assert.equal(KV, r:answer_of(c).body)
    r:until_so(is_gone(p), "prefill is ended")
    assert.same({ p0 = 1 }, faults.guilt(r), "the pair's, which is nobody's")
  end)

  it("takes a new room, a new rid and waits for no abort answer when it tries again", function()
    start({ prefills = 1, decodes = 2 })
    local c = r:ask(PATH, faults.body())
    local p1 = r.p[1]:take(PATH)
    local d1 = puppet.take_any(r.d, PATH)
    d1:answer(500, {}, '{"object":"error","message":"cuda"}')
    local d2 = puppet.take_any(r.d, PATH)
    local p2 = r.p[1]:take(PATH)
    for _, key in ipairs({ "bootstrap_room", "rid" }) do
      assert.equal(json.raw(p1.body, key), json.raw(d1.body, key))
      assert.equal(json.raw(p2.body, key), json.raw(d2.body, key))
      assert.not_equal(json.raw(p1.body, key), json.raw(p2.body, key))
    end
    d2:answer(200, {}, WHOLE)
    p2:answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
  end)

  it("does not send a room twice over a stale connection", function()
    start({ prefills = 1, decodes = 1, flags = { "--loops", "1" } })
    local c, p, d = both(true)
    p:answer(200, {}, WHOLE)
    d:answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    c, p, d = both(true)
    local room = json.raw(d.body, "bootstrap_room")
    d:rst()
    local p2, d2 = r.p[1]:take(PATH), r.d[1]:take(PATH)
    assert.not_equal(room, json.raw(d2.body, "bootstrap_room"))
    assert.equal(json.raw(p2.body, "bootstrap_room"), json.raw(d2.body, "bootstrap_room"))
    r:until_so(is_gone(p), "the first prefill leg is ended")
    p2:answer(200, {}, WHOLE)
    d2:answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    assert.same({}, faults.guilt(r))
  end)
end)

describe("after keep-alive comments", function()
  local r

  setup(function()
    r = rig.start({ connector = "NixlConnector", prefills = 2, decodes = 1,
      flags = { "--stream-keepalive-secs", "0.05", "--disable-circuit-breaker" } })
  end)

  teardown(function()
    r:stop()
  end)

  local function commented()
    local c = r:ask(PATH, faults.body({ stream = true }))
    local p, i = puppet.take_any(r.p, PATH)
    r:until_so(function()
      return #c.answer:events() >= 2
    end, "comments have come", { c })
    assert.equal(200, c.answer.status)
    assert.equal(0, #c.answer:data())
    return c, p, i
  end

  it("another attempt may still serve", function()
    local c, p, i = commented()
    p:rst()
    local q, k = puppet.take_any(r.p, PATH)
    assert.not_equal(i, k)
    q:answer(200, {}, reply(params_for(q)))
    local d = r.d[1]:take(PATH)
    d:begin()
    d:event(CHUNK:format("a"))
    d:event("[DONE]")
    d:finish()
    assert.same({ CHUNK:format("a"), "[DONE]" }, r:answer_of(c):data())
  end)

  it("a refusal becomes an event that says what the engine said", function()
    local c, p = commented()
    p:answer(400, {},
      '{"error":{"message":"the prompt is far too long","type":"BadRequestError","param":null,"code":400}}')
    local answer = r:answer_of(c)
    local errors = faults.error_events(answer)
    assert.equal(1, #errors)
    assert.equal(400, errors[1].code)
    assert.equal("the prompt is far too long", errors[1].message)
    assert.equal("[DONE]", answer:data()[2])
  end)

  it("so does SGLang's form, and one that is not JSON is told in our words", function()
    local c, p = commented()
    p:answer(400, {}, '{"object":"error","message":"no\\"room","type":"BadRequestError","param":null,"code":400}')
    assert.equal('no"room', faults.error_events(r:answer_of(c))[1].message)
    c, p = commented()
    p:answer(413, {}, "<html>\n\ntoo large</html>")
    local errors = faults.error_events(r:answer_of(c))
    assert.equal(1, #errors)
    assert.equal(413, errors[1].code)
  end)
end)

teardown(function()
  proc.clean()
end)
