-- limits = { ... } of baton.lua: who is let in, what each answer says of what is left, and that every end of a request
-- gives back exactly what it has not used. The worker is moved by hand. Windows are days: no spec meets the end of one
-- but at midnight.

local cjson = require("cjson")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local puppet = require("gateway.support.puppet")

local PATH = "/v1/completions"
local DAY = "window_s = 86400"
local CALM = { "--disable-health-check", "--load-interval-secs", "0", "--loops", "2" }
local USAGE = '"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":0}}'
local ANSWER = '{"id":"x","choices":[{"index":0,"text":"fine","finish_reason":"length"}],' .. USAGE
local EVENT = '{"id":"x","choices":[{"index":0,"text":"a"}]}'
local ANONYMOUS = {} -- a tenant as any other

describe("limits", function()
  local process, port, admin_port, worker, workers, config_path, clients

  local function config_of(limits, url)
    return ("return { limits = { %s }, pools = { { name = 'p', workers = { { url = '%s', engine = 'vllm' } } } } }")
      :format(limits, url or worker.url)
  end

  local function start(limits, flags, url)
    config_path = proc.write("baton.lua", config_of(limits, url))
    local words = { config_path }
    for _, list in ipairs({ CALM, flags or {} }) do
      proc.append(words, list)
    end
    process, port, admin_port = fleet.start_gateway(words)
    eventually(function()
      local answer = http.get(port, "/readiness")
      return answer.status == 200, answer.body
    end, 10, "/readiness is 200")
  end

  local function body_of(ids, max_tokens, stream)
    local list = {}
    for i = 1, ids do
      list[i] = i
    end
    return cjson.encode({ model = "m", prompt = list, max_tokens = max_tokens, stream = stream })
  end

  local function ask(tenant, body)
    local headers = tenant ~= ANONYMOUS and { ["x-tenant-id"] = tenant } or {}
    local c = http.start(port, { path = PATH, headers = headers, body = body or body_of(10, 5) })
    clients[#clients + 1] = c
    return c
  end

  local function serve(client, prompt, output)
    puppet.take_any(workers, PATH):answer(200, {}, ANSWER:format(prompt or 10, output or 5))
    local answer = client:wait()
    assert.equal(200, answer.status, answer.body)
    return answer
  end

  local function refused(client, limit, by)
    local answer = client:wait()
    assert.equal(429, answer.status, answer.body)
    local err = json.decode(answer.body).error
    assert.equal(limit, err.limit)
    assert.equal("rate_limit_error", err.type)
    assert.truthy(err.message:find('limit "' .. limit .. '"', 1, true), err.message)
    assert.is_true(tonumber(answer:header("retry-after")) >= 1)
    assert.is_true(fleet.metric(admin_port,
      ('baton_limit_refused_total{limit="%s",by="%s"}'):format(limit, by)) >= 1)
    return answer
  end

  local function left(answer, what)
    return tonumber(answer:header("x-ratelimit-remaining-" .. (what or "tokens")))
  end

  -- What is left of the limit after a request of one token of prompt and one of answer, which is over then.
  local function probe()
    local answer = serve(ask("acme", body_of(1, 1)), 1, 1)
    return left(answer, "tokens"), left(answer, "requests")
  end

  local function metric(line)
    return fleet.metric(admin_port, line) or 0
  end

  local function reload(text)
    local file = assert(io.open(config_path, "w"))
    file:write(text)
    file:close()
    process:kill(proc.SIGHUP)
  end

  before_each(function()
    worker, clients = puppet.open(), {}
    workers = { worker }
  end)

  after_each(function()
    for _, c in ipairs(clients) do
      c:close()
    end
    if process then
      assert.equal(0, (process:stop(10)))
      process = nil
    end
    puppet.close_all()
  end)

  teardown(proc.clean)

  it("count requests by tenant, over all loops, and say what is left", function()
    start("{ name = 'rpd', per = 'tenant', requests = 3, " .. DAY .. " }")
    for i = 1, 3 do
      local answer = serve(ask("acme"))
      assert.equal("3", answer:header("x-ratelimit-limit-requests"))
      assert.equal(3 - i, left(answer, "requests"))
      assert.truthy(answer:header("x-ratelimit-reset-requests"):match("^%d+%a"))
    end
    local answer = refused(ask("acme"), "rpd", "requests")
    assert.equal("3", answer:header("x-ratelimit-limit-requests"))
    assert.equal(0, left(answer, "requests"))
    assert.truthy(json.decode(answer.body).error.message:find("3 requests in 86400 s of this tenant", 1, true))
    assert.equal(2, left(serve(ask("other")), "requests"))
    assert.equal(2, left(serve(ask(ANONYMOUS)), "requests"))
    assert.equal(5, metric('baton_limit_admitted_total{limit="rpd"}'))
    assert.equal(1, metric('baton_limit_refused_total{limit="rpd",by="requests"}'))
    local row = json.decode(http.get(admin_port, "/limits").body).limits[1]
    assert.same({ "rpd", { "tenant" }, 3, 86400 }, { row.name, row.per, row.requests, row.window_s })
    assert.same({ 5, 1, 0 }, { row.admitted, row.refused.requests, row.refused.concurrent })
  end)

  it("are not there where none is configured, or none fits", function()
    start("{ name = 'rpd', per = 'tenant', requests = 1, match = { tenant = 'acme' }, " .. DAY .. " }")
    for _ = 1, 3 do
      assert.is_nil(serve(ask("other")):header("x-ratelimit-limit-requests"))
    end
    serve(ask("acme"))
    refused(ask("acme"), "rpd", "requests")
  end)

  it("of one name: the first that fits counts", function()
    start("{ name = 'rpd', per = 'tenant', requests = 3, match = { tenant = 'gold' }, " .. DAY .. " }, " ..
      "{ name = 'rpd', per = 'tenant', requests = 1, " .. DAY .. " }")
    assert.equal(2, left(serve(ask("gold")), "requests"))
    assert.equal(1, left(serve(ask("gold")), "requests"))
    assert.equal(0, left(serve(ask("acme")), "requests"))
    refused(ask("acme"), "rpd", "requests")
  end)

  it("of two that fit both hold, and who is refused by the second has taken nothing of the first", function()
    start("{ name = 'all', requests = 10, " .. DAY .. " }, " ..
      "{ name = 'models', per = { 'tenant', 'model' }, requests = 1, " .. DAY .. " }")
    serve(ask("acme"))
    for _ = 1, 5 do
      refused(ask("acme"), "models", "requests")
    end
    local answer = serve(ask("other"))
    assert.equal(0, left(answer, "requests")) -- the one of which least is left is told
    assert.equal(2, metric('baton_limit_admitted_total{limit="all"}'))
    for _ = 1, 8 do
      serve(ask("t" .. #clients))
    end
    refused(ask("last"), "all", "requests")
  end)

  it("hold requests at a time, and let the next in when one ends, however it ends", function()
    start("{ name = 'one', per = 'address', concurrent = 1 }", { "--disable-retries" })
    local function running()
      return metric('baton_limit_running{limit="one"}')
    end
    local ends = {
      served = function(x, c)
        x:answer(200, {}, ANSWER:format(10, 5))
        c:wait()
      end,
      failed = function(x, c)
        x:answer(500, {}, "{}")
        assert.equal(500, c:wait().status)
      end,
      cut = function(x, c)
        x:begin()
        x:event(EVENT)
        c:wait_events(1)
        x:rst()
        c:wait()
      end,
      left = function(_, c)
        c:close()
      end,
      left_midway = function(x, c)
        x:begin()
        x:event(EVENT)
        c:wait_events(1)
        c:reset()
      end,
    }
    for name, finish in pairs(ends) do
      local c = ask("acme", body_of(10, 5, name == "cut" or name == "left_midway"))
      local x = worker:take(PATH)
      assert.equal(1, running(), name)
      assert.is_nil(refused(ask("other"), "one", "concurrent"):header("x-ratelimit-limit-requests"))
      finish(x, c)
      eventually(function()
        return running() == 0, running()
      end, 10, name .. ": nothing runs")
    end
    serve(ask("acme"))
  end)

  it("keep one model's crowd from all places of a pool that serves several, and from its line", function()
    start("{ name = 'models', per = 'model', concurrent = 1 }",
      { "--max-concurrent-requests", "2", "--queue-size", "4" })
    local crowd = ask("acme")
    local x = worker:take(PATH)
    for _ = 1, 3 do
      refused(ask("acme"), "models", "concurrent")
    end
    assert.equal(0, metric('baton_queued_requests{pool="p"}'))
    serve(ask("acme", (body_of(10, 5):gsub('"m"', '"rare"')))) -- at once, beside the one that runs
    x:answer(200, {}, ANSWER:format(10, 5))
    assert.equal(200, crowd:wait().status)
    serve(ask("acme"))
  end)

  describe("in tokens", function()
    local LIMIT = "{ name = 'tpd', per = 'tenant', tokens = 100000, requests = 1000, " .. DAY .. " }"

    it("reserve by estimate and are trued up by usage", function()
      start(LIMIT)
      local c = ask("acme", body_of(10, 500))
      local x = worker:take(PATH)
      assert.equal(100000 - 510 - 2, (probe()))
      x:answer(200, {}, ANSWER:format(10, 7))
      assert.equal(100000 - 510, left(c:wait()))
      assert.equal(100000 - 17 - 4, (probe()))
      assert.equal(510 + 4, metric('baton_limit_tokens_reserved_total{limit="tpd",kind="input"}') +
        metric('baton_limit_tokens_reserved_total{limit="tpd",kind="output"}'))
      assert.equal(12, metric('baton_limit_tokens_used_total{limit="tpd",kind="input"}'))
      assert.equal(9, metric('baton_limit_tokens_used_total{limit="tpd",kind="output"}'))
    end)

    it("charge what was used beyond the estimate", function()
      start("{ name = 'tpd', per = 'tenant', tokens = 1000, answer_tokens = 20, " .. DAY .. " }")
      local c = ask("acme", '{"model":"m","prompt":[1,2,3]}')
      assert.equal(1000 - 23, left(serve(c, 3, 900)))
      assert.equal(1000 - 903 - 2, (probe()))
      c = ask("acme", '{"model":"m","prompt":[1,2,3]}')
      assert.equal(1000 - 905 - 23, left(serve(c, 3, 900)))
      local answer = refused(ask("acme", body_of(1, 1)), "tpd", "tokens")
      assert.equal(0, left(answer))
    end)

    it("refuse a prompt that no window would hold, and say so without a Retry-After", function()
      start("{ name = 'in', per = 'tenant', input_tokens = 50, output_tokens = 20, " .. DAY .. " }")
      local answer = ask("acme", body_of(51, 1)):wait()
      assert.equal(413, answer.status, answer.body)
      assert.equal("in", json.decode(answer.body).error.limit)
      assert.is_nil(answer:header("retry-after"))
      -- A client's max_tokens is a bound, not a need: all there is is reserved.
      answer = serve(ask("acme", body_of(50, 4000)), 50, 3)
      assert.same({ 0, 0 }, { left(answer, "input-tokens"), left(answer, "output-tokens") })
      assert.same({ "50", "20" }, { answer:header("x-ratelimit-limit-input-tokens"),
        answer:header("x-ratelimit-limit-output-tokens") })
      assert.is_nil(answer:header("x-ratelimit-limit-tokens"))
      refused(ask("acme", body_of(1, 1)), "in", "input_tokens")
    end)

    -- Each end: what stays used of a request that has reserved 10 and 40, and whether its request counts.
    local ENDS = {
      { "a stream that says its usage", 10 + 3, 1, true, function(x, c)
        x:begin()
        x:event(EVENT)
        x:event('{"id":"x","choices":[],' .. USAGE:format(10, 3))
        x:event("[DONE]")
        x:finish()
        c:wait()
      end },
      { "a stream that says none: its events", 10 + 3, 1, true, function(x, c)
        x:begin()
        for _ = 1, 3 do
          x:event(EVENT)
        end
        x:finish()
        c:wait()
      end },
      { "a stream cut off by its worker", 10 + 2, 1, true, function(x, c)
        x:begin()
        x:event(EVENT)
        x:event(EVENT)
        c:wait_events(2)
        x:rst()
        c:wait()
      end },
      { "a whole answer that says none: as reserved", 10 + 40, 1, false, function(x, c)
        x:answer(200, {}, '{"id":"x","choices":[{"index":0,"text":"fine"}]}')
        assert.equal(200, c:wait().status)
      end },
      { "a whole answer that says it, and much behind it", 10 + 7, 1, false, function(x, c)
        local behind = ',"prompt_token_ids":[' .. ("1,"):rep(2000) .. "1]}"
        x:answer(200, {}, ANSWER:format(10, 7):sub(1, -2) .. behind)
        assert.equal(200, c:wait().status)
      end },
      { "a whole answer that says there was none", 10, 1, false, function(x, c)
        x:answer(200, {}, ANSWER:format(10, 0))
        assert.equal(200, c:wait().status)
      end },
      { "a client that leaves in the middle", 10 + 2, 1, true, function(x, c)
        x:begin()
        x:event(EVENT)
        x:event(EVENT)
        c:wait_events(2)
        c:reset()
      end },
      { "a client that leaves before the answer", 10, 1, false, function(_, c)
        c:close()
      end },
      { "a worker's 500", 0, 1, false, function(x, c)
        x:answer(500, {}, "{}")
        assert.equal(500, c:wait().status)
      end },
      { "a worker's 400", 0, 1, false, function(x, c)
        x:answer(400, {}, "{}")
        assert.equal(400, c:wait().status)
      end },
      { "a worker that breaks off before its answer", 0, 1, false, function(x, c)
        x:rst()
        assert.equal(502, c:wait().status)
      end },
    }
    for _, case in ipairs(ENDS) do
      it("keep what was used: " .. case[1], function()
        start(LIMIT, { "--disable-retries" })
        local c = ask("acme", body_of(10, 40, case[4]))
        local x = worker:take(PATH)
        case[5](x, c)
        eventually(function()
          return metric('baton_limit_tokens_used_total{limit="tpd",kind="input"}') +
            metric('baton_limit_tokens_used_total{limit="tpd",kind="output"}') == case[2]
        end, 10, "it has ended with what it used")
        eventually(function() -- an end without tokens shows nowhere else
          return metric("baton_concurrent_requests") == 0
        end, 10, "nothing runs")
        local tokens, requests = probe()
        assert.equal(100000 - case[2] - 2, tokens)
        assert.equal(1000 - case[3] - 1, requests)
      end)
    end

    it("charge a request once that a second try serves", function()
      workers[2] = puppet.open()
      start(LIMIT, nil, worker.url .. "', engine = 'vllm' }, { url = '" .. workers[2].url)
      local c = ask("acme", body_of(10, 40))
      local first, i = puppet.take_any(workers, PATH)
      first:rst()
      workers[3 - i]:take(PATH):answer(200, {}, ANSWER:format(10, 4))
      assert.equal(200, c:wait().status)
      local tokens, requests = probe()
      assert.same({ 100000 - 14 - 2, 1000 - 2 }, { tokens, requests })
    end)

    it("give all back to whom no worker was asked for", function()
      worker:refuse()
      start(LIMIT, { "--queue-size", "0", "--max-concurrent-requests", "1" })
      for _ = 1, 3 do
        assert.is_true(ask("acme", body_of(10, 40)):wait().status >= 500)
      end
      assert.equal(0, metric('baton_limit_tokens_used_total{limit="tpd",kind="input"}'))
    end)
  end)

  it("keep their counts over a SIGHUP that changes them", function()
    local row = "{ name = 'rpd', per = 'tenant', requests = %d, " .. DAY .. " }"
    start(row:format(2))
    serve(ask("acme"))
    serve(ask("acme"))
    refused(ask("acme"), "rpd", "requests")
    reload(config_of(row:format(4)))
    eventually(function()
      return serve(ask("probe" .. #clients)):header("x-ratelimit-limit-requests") == "4"
    end, 10, "the new limit is in force")
    assert.equal(1, left(serve(ask("acme")), "requests"))
    assert.equal(0, left(serve(ask("acme")), "requests"))
    refused(ask("acme"), "rpd", "requests")
    assert.is_true(metric('baton_limit_admitted_total{limit="rpd"}') >= 5)
    reload(config_of(""))
    eventually(function()
      return serve(ask("probe")):header("x-ratelimit-limit-requests") == nil
    end, 10, "nothing is limited")
    serve(ask("acme"))
  end)

  it("are as many times as high as a policy says of who asks", function()
    local folder = proc.path("policies")
    assert(os.execute("mkdir -p " .. folder) == 0)
    local file = assert(io.open(folder .. "/mine.lua", "w"))
    file:write([[
return { api = 2, name = "mine", version = "1",
  admit = function(req)
    if req.tenant == "gold" then return { limits = { rpd = 3, unknown = 0 } } end
    if req.tenant == "none" then return { limits = { rpd = 0 } } end
    if req.tenant == "bad" then return { limits = { rpd = -1 } } end
    if req.tenant == "both" then return { limits = { rpd = 2 }, status = 403 } end
  end,
  plan = function(req, view) return { worker = baton.argmin(view.hybrid, "requests") } end,
}]])
    file:close()
    local row = "{ name = 'rpd', per = 'tenant', requests = 1, " .. DAY .. " }"
    start(row, { "--policy-dir", folder, "--policy", "mine" })
    for i = 1, 3 do
      local answer = serve(ask("gold"))
      assert.same({ "3", 3 - i }, { answer:header("x-ratelimit-limit-requests"), left(answer, "requests") })
    end
    refused(ask("gold"), "rpd", "requests")
    refused(ask("none"), "rpd", "requests")
    for _, tenant in ipairs({ "acme", "bad", "both" }) do -- a mistake of the policy changes nothing
      assert.equal("1", serve(ask(tenant)):header("x-ratelimit-limit-requests"))
      refused(ask(tenant), "rpd", "requests")
    end
    assert.is_true(metric("baton_policy_errors_total") >= 2)
  end)

  it("go by an estimate that each model's answers teach", function()
    start("{ name = 'tpd', per = 'model', input_tokens = 100000, " .. DAY .. " }")
    local function ask_text(model, bytes, tokens)
      local c = ask("acme", cjson.encode({ model = model, prompt = ("x"):rep(bytes - 2), max_tokens = 5 }))
      return 100000 - left(serve(c, tokens, 5), "input-tokens")
    end
    assert.equal(250, ask_text("a", 1000, 500)) -- 4 bytes a token, as long as nobody knows better
    for _ = 1, 40 do
      ask_text("a", 1000, 500)
      ask_text("b", 1000, 200)
    end
    local function bytes_of(model)
      return metric(('baton_model_bytes_per_token{pool="p",model="%s"}'):format(model))
    end
    assert.is_true(math.abs(bytes_of("a") - 2) < 0.05, bytes_of("a"))
    assert.is_true(math.abs(bytes_of("b") - 5) < 0.05, bytes_of("b"))
    assert.equal(41 * 500, metric('baton_model_prompt_tokens_total{pool="p",model="a"}'))
    local off = metric('baton_model_prompt_tokens_off_total{pool="p",model="a"}')
    assert.is_true(off >= 250 and off < 41 * 250, off)
    ask_text("a", 1000, 500)
    assert.is_true(metric('baton_model_prompt_tokens_off_total{pool="p",model="a"}') - off <= 10)
  end)

  local function check(limits)
    local path = proc.write("bad.lua", config_of(limits, "http://127.0.0.1:1"))
    local _, out, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "check", path })
    return out .. err
  end

  it("are refused with file, key and remedy when they make no sense", function()
    local cases = {
      ["{ requests = 1 }"] = "limits[1].name: missing",
      ["{ name = 'a b', requests = 1 }"] = "limits[1].name: expected 1 to 64",
      ["{ name = 'a' }"] = "limits[1].requests: missing",
      ["{ name = 'a', request = 1 }"] = 'limits[1].request: unknown key, did you mean "requests"?',
      ["{ name = 'a', requests = 1.5 }"] = "limits[1].requests: expected a whole number",
      ["{ name = 'a', requests = -1 }"] = "limits[1].requests: expected a whole number",
      ["{ name = 'a', requests = 1, per = 'user' }"] = "limits[1].per: expected",
      ["{ name = 'a', requests = 1, per = { 'tenant', 7 } }"] = "limits[1].per: expected",
      ["{ name = 'a', requests = 1, match = { user = 'x' } }"] = "limits[1].match: its keys are",
      ["{ name = 'a', requests = 1, window_s = 0 }"] = "limits[1].window_s: expected seconds",
      ["{ name = 'a', requests = 1 }, 7"] = "limits[2]: expected a table",
    }
    for text, said in pairs(cases) do
      assert.truthy(check(text):find(said, 1, true), text .. ": " .. check(text))
    end
    assert.truthy(check("{ name = 'a', requests = 1, per = { 'tenant', 'model' }, match = { key = 'k' } }")
      :find("limit a: requests 1 in 60 s per tenant per model, of key k", 1, true))
  end)
end)
