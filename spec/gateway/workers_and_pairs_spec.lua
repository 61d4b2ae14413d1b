-- Corners where two parts of the dispatcher meet: keys and background calls, keep-alive and answers that are no stream,
-- breakers and split requests, whose fault a shortage of our own is. Workers are puppets or stubs: every byte is the
-- spec's.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local rig = require("gateway.support.rig")
local stub = require("gateway.support.stub")

local PATH = "/v1/completions"
local WHOLE = '{"id":"x","object":"text_completion","choices":[{"index":0,"text":"fine","finish_reason":"length"}],'
  .. '"usage":{"prompt_tokens":16,"completion_tokens":8}}'
local EVENT = '{"id":"x","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}]}'
local PARAMS = '{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e1",'
  .. '"remote_request_id":"cmpl-%s-0-bd83aa8a","remote_host":"%s","remote_port":41,"tp_size":1}'

local function reply_to(leg, host)
  return ('{"id":"p","choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":16},'
    .. '"kv_transfer_params":%s}'):format(PARAMS:format(leg.headers["x-request-id"], host or "127.0.0.1"))
end

local function body(more)
  return ('{"model":"m","prompt":"a baton","max_tokens":8%s}'):format(more or "")
end

describe("one worker", function()
  local w, gateway, port, admin_port

  local function start(words, flags, answer)
    w = stub.start(answer)
    local config = 'return { pools = { { name = "only", workers = { { name = "w0", url = "%s", %s } } } } }\n'
    config = config:format(w.url, words)
    local argv = { proc.write("baton.lua", config), "--disable-health-check", "--load-interval-secs", "0" }
    proc.append(argv, flags)
    gateway, port, admin_port = fleet.start_gateway(argv)
    eventually(function()
      return http.get(port, "/readiness").status == 200
    end, 10, "/readiness is 200")
  end

  after_each(function()
    fleet.stop_gateway(gateway)
    w:stop()
  end)

  it("with a key of its own gets that key alone, not the client's beside it", function()
    start('role = "hybrid", api_key = "of-w0"', {}, function()
      return stub.reply(200, WHOLE)
    end)
    local answer = http.post(port, PATH, body(), { Authorization = "Bearer of-the-client" })
    assert.equal(200, answer.status, answer.body)
    local keys = {}
    for value in w.requests[1].head:gmatch("\r\n[Aa]uthorization: *([^\r\n]*)") do
      keys[#keys + 1] = value
    end
    assert.same({ "Bearer of-w0" }, keys)
  end)

  it("that checks the client's key is told to abort with that key", function()
    start('role = "hybrid", engine = "sglang"', {}, function(request)
      return request.target == "/abort_request" and stub.reply(200, "") or nil
    end)
    local headers = { Authorization = "Bearer of-the-client" }
    local c = http.start(port, { path = "/generate", body = '{"text":"a baton"}', headers = headers })
    eventually(function()
      w:pump()
      return #w.requests == 1
    end, 5, "the leg has come")
    c:close()
    eventually(function()
      w:pump()
      return #w.requests == 2
    end, 5, "the abort has come")
    assert.equal("/abort_request", w.requests[2].target)
    assert.equal("Bearer of-the-client", w.requests[2].headers.authorization)
  end)

  it("that answers no stream after a keep-alive comment ends the stream in an error event", function()
    start('role = "hybrid"', { "--stream-keepalive-secs", "0.05" }, function()
      return nil
    end)
    local c = http.start(port, { path = PATH, body = body(',"stream":true') })
    c:wait(function(answer)
      return answer.body:find(": waiting", 1, true) ~= nil
    end)
    table.insert(w.last_peer.queue, stub.reply(200, WHOLE))
    local answer = c:wait()
    c:close()
    assert.is_nil(answer.body:find("fine", 1, true), "JSON in the middle of an event stream: " .. answer.body)
    assert.equal(1, #faults.error_events(answer), answer.body)
  end)

  it("is not blamed when the gateway itself is out of descriptors", function()
    start('role = "hybrid"', { "--breaker-failures", "1", "--loops", "1" }, function()
      return stub.reply(200, WHOLE)
    end)
    local f = { admin_port = admin_port }
    local c = http.connect(port)
    c:ask({ path = "/health" })
    c:wait()
    local fds = 0
    for name in io.popen("ls /proc/" .. gateway.pid .. "/fd"):lines() do
      fds = math.max(fds, tonumber(name) or 0)
    end
    local soft = "prlimit --pid " .. gateway.pid .. " --nofile="
    local before = io.popen(soft:gsub("=$", "") .. " -o SOFT --noheadings"):read("*n")
    assert.equal(0, os.execute(soft .. "3:"))
    assert.is_true(fds > 3)
    c:ask({ path = PATH, body = body() })
    local refused = c:wait()
    os.execute(soft .. before .. ":")
    assert.equal(503, refused.status, refused.body)
    assert.truthy(tonumber(refused:header("retry-after")))
    c:close()
    assert.same({}, faults.guilt(f))
    assert.equal(200, http.post(port, PATH, body()).status)
  end)
end)

describe("a pair", function()
  local r

  after_each(function()
    faults.wait_idle(r)
    r:stop()
  end)

  local function serve_split(count)
    for _ = 1, count do
      r.p[1]:take(PATH):answer(200, {}, WHOLE)
      r.d[1]:take(PATH):answer(200, {}, WHOLE)
    end
  end

  it("is probed by a split request as a whole", function()
    r = rig.start({ connector = "ExampleConnector", prefills = 1, decodes = 1,
      flags = { "--breaker-failures", "1", "--breaker-open-secs", "0.2", "--disable-retries" } })
    local c = r:ask(PATH, body())
    r.p[1]:take(PATH):answer(500, {}, '{"error":{"message":"no"}}')
    assert.equal(500, r:answer_of(c).status)
    r:until_so(function()
      return http.get(r.port, "/readiness").status == 200
    end, "the breaker lets a probe through")
    c = r:ask(PATH, body(',"n":3'))
    serve_split(3)
    local answer = r:answer_of(c)
    assert.equal(200, answer.status, answer.body)
    assert.equal(3, #json.elements(json.raw(answer.body, "choices")))
    c = r:ask(PATH, body(',"n":2')) -- closed again
    serve_split(2)
    assert.equal(200, r:answer_of(c).status)
  end)

  it("refuses a list that would need thousands of rooms", function()
    r = rig.start({ connector = "sglang", engine = "sglang", bootstrap_port = 8998, prefills = 1, decodes = 1 })
    local prompts = ('"a",'):rep(5000):sub(1, -2)
    local answer = r:answer_of(r:ask(PATH, '{"model":"m","prompt":[' .. prompts .. "]}"))
    assert.equal(400, answer.status)
    assert.is_truthy(answer.body:find("4096 prompts", 1, true))
  end)

  it("counts a seed up beyond the largest number without harm", function()
    r = rig.start({ connector = "ExampleConnector", prefills = 1, decodes = 1 })
    local c = r:ask(PATH, body(',"n":2,"seed":9223372036854775807'))
    serve_split(2)
    assert.equal(200, r:answer_of(c).status)
    assert.equal("9223372036854775807", json.raw(r.d[1].seen[1].body, "seed"))
    assert.equal("-9223372036854775808", json.raw(r.d[1].seen[2].body, "seed"))
  end)

  it("whose children answer in two forms is an error, not half an answer", function()
    r = rig.start({ connector = "ExampleConnector", prefills = 1, decodes = 1 })
    local c = r:ask(PATH, body(',"n":2,"stream":true'))
    r.p[1]:take(PATH):answer(200, {}, WHOLE)
    r.p[1]:take(PATH):answer(200, {}, WHOLE)
    local one, other = r.d[1]:take(PATH), r.d[1]:take(PATH)
    one:begin()
    one:event(EVENT)
    r:until_so(function()
      return #c.answer:data() == 1
    end, "the first child's event", { c })
    other:answer(200, {}, WHOLE)
    local answer = r:answer_of(c)
    assert.equal(1, #faults.error_events(answer), answer.body)
  end)

  it("whose child streams what is no JSON is an error, not an answer with a hole", function()
    r = rig.start({ connector = "ExampleConnector", prefills = 1, decodes = 1 })
    local c = r:ask(PATH, body(',"n":2,"stream":true'))
    r.p[1]:take(PATH):answer(200, {}, WHOLE)
    r.p[1]:take(PATH):answer(200, {}, WHOLE)
    local one, other = r.d[1]:take(PATH), r.d[1]:take(PATH)
    other:begin()
    one:begin()
    one:event(EVENT)
    one:event('{"choices":[{"text":')
    assert.equal(1, #faults.error_events(r:answer_of(c)), c.answer.body)
  end)

  it("never sends one id for two clients, however they choose theirs", function()
    r = rig.start({ connector = "ExampleConnector", prefills = 1, decodes = 1 })
    local asks = {
      r:ask(PATH, body(), { ["X-Request-Id"] = "y-0" }), r:ask(PATH, body(',"n":2'), { ["X-Request-Id"] = "y" }),
      r:ask(PATH, body(',"n":2'), { ["X-Request-Id"] = "x" }),
    }
    local seen = r.p[1].seen
    r:until_so(function()
      return #seen == 5
    end, "the prefill legs of all three")
    asks[4] = r:ask(PATH, body(), { ["X-Request-Id"] = "x-1" })
    r:until_so(function()
      return #seen == 6
    end, "and of the fourth")
    local ids = {}
    for _, leg in ipairs(seen) do
      local id = leg.headers["x-request-id"]
      assert.is_nil(ids[id], "twice: " .. id)
      ids[id] = true
    end
    assert.is_true(ids["x-0"] and ids["x-1"] and ids["y-0"])
    for _, c in ipairs(asks) do
      c:close()
    end
  end)

  it("counts what it blanks in decode's answer", function()
    r = rig.start({ connector = "NixlConnector", prefills = 1, decodes = 1 })
    local c = r:ask(PATH, body())
    local p = r.p[1]:take(PATH)
    p:answer(200, {}, reply_to(p))
    r.d[1]:take(PATH):answer(200, {}, '{"choices":[],"kv_transfer_params":{"remote_host":"10.0.0.1"}}')
    local answer = r:answer_of(c)
    assert.is_nil(answer.body:find("10.0.0.1", 1, true))
    assert.equal(1, faults.number(r, "baton_redacted_total"))
  end)

  it("is released by a host that decode can reach", function()
    r = rig.start({ connector = "NixlConnector", prefills = 1, decodes = 1, prefill_words = "lease_ms = 5200,",
      flags = { "--disable-retries" } })
    local c = r:ask(PATH, body())
    local p = r.p[1]:take(PATH)
    local reply = reply_to(p, "localhost")
    p:answer_part(200, reply:sub(1, 10), #reply)
    clock.nap(0.3) -- the lease is counted from the first byte; 5 s of it must be left
    p:send(reply:sub(11))
    local release = r.d[1]:take(PATH)
    assert.equal('"baton-release-no-such-model"', json.raw(release.body, "model"))
    assert.equal('"127.0.0.1"', json.raw(json.raw(release.body, "kv_transfer_params"), "remote_host"))
    assert.equal("41", json.raw(json.raw(release.body, "kv_transfer_params"), "remote_port"))
    release:answer(404, {}, "{}")
    assert.equal(503, r:answer_of(c).status)
  end)

  it("that pushes keeps what it has learned when a client's request is refused", function()
    r = rig.start({ connector = "NixlPushConnector", prefills = 1, decodes = 1 })
    local c = r:ask(PATH, body())
    local p = r.p[1]:take(PATH)
    p:answer(200, {}, reply_to(p))
    r.d[1]:take(PATH):answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    c = r:ask(PATH, body())
    r.d[1]:take(PATH)
    r.p[1]:take(PATH):answer(400, {}, '{"error":{"message":"no"}}')
    assert.equal(400, r:answer_of(c).status)
    c = r:ask(PATH, body())
    local d = r.d[1]:take(PATH) -- at once, before prefill has answered
    r.p[1]:take(PATH):answer(200, {}, WHOLE)
    d:answer(200, {}, '{"choices":[],"kv_transfer_params":{"remote_host":"10.0.0.1"}}')
    local answer = r:answer_of(c)
    assert.equal(200, answer.status)
    assert.is_nil(answer.body:find("10.0.0.1", 1, true), "decode's parameters are nobody's")
  end)

  it("whose prefill is one rank mints rooms of that rank", function()
    r = rig.start({ connector = "sglang", engine = "sglang", bootstrap_port = 8998, prefills = 1, decodes = 1,
      prefill_words = "dp_size = 64, dp_rank = 37," })
    local c = r:ask(PATH, body())
    local p = r.p[1]:take(PATH)
    assert.equal("37", json.raw(p.body, "routed_dp_rank"))
    local room = json.raw(p.body, "bootstrap_room")
    local rank = 0
    for digit in room:gmatch("%d") do
      rank = (rank * 10 + tonumber(digit)) % 64
    end
    assert.equal(37, rank)
    p:answer(200, {}, WHOLE)
    r.d[1]:take(PATH):answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
  end)

  it("beside a hybrid worker that is down says so with 503, not with 400", function()
    r = rig.start({ connector = "ExampleConnector", prefills = 1, decodes = 1, hybrids = 1,
      flags = { "--breaker-failures", "1", "--breaker-open-secs", "60", "--disable-retries" } })
    local c = r:ask(PATH, body(',"best_of":2'))
    r.w[1]:take(PATH):answer(500, {}, '{"error":{"message":"no"}}')
    assert.equal(500, r:answer_of(c).status)
    local answer = r:answer_of(r:ask(PATH, body(',"best_of":2')))
    assert.equal(503, answer.status, answer.body)
    assert.equal("1", answer:header("retry-after"))
  end)
end)

describe("a gateway that is told to end", function()
  it("does not wait for a prefill whose answer nobody needs any more", function()
    local r = rig.start({ connector = "sglang", engine = "sglang", bootstrap_port = 8998, prefills = 1, decodes = 1,
      flags = { "--drain-timeout-secs", "0.2" } })
    local c = r:ask(PATH, body())
    local p = r.p[1]:take(PATH)
    r.d[1]:take(PATH):answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    assert.equal(200, http.get(r.port, "/readiness").status)
    r.gateway:kill(proc.SIGTERM)
    eventually(function()
      return p:is_gone()
    end, 8, "the prefill leg is closed") -- it would drain for 10 s
    r:stop()
  end)
end)
