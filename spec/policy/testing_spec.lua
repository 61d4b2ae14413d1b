-- The helpers that authors' specs use: a clock, counters, a network, recorded traffic, and every hook.
local testing = require "baton.testing"

local function policy_with(members, params)
  return testing.load_text("return { api = 2, name = 'p', version = '1', " .. members .. " }", params)
end

local FIRST = "plan = function(req, view) return { prefill = view.prefill[1], decode = view.decode[1] } end"

-- A policy that does what `text` says at plan and hands over what it put into ctx.state.
local function doing(text)
  return policy_with(([[plan = function(req, view, ctx)
    local out = ctx.state
    %s
    return { prefill = view.prefill[1], decode = view.decode[1] }
  end, handover = function(ctx) return ctx.state end]]):format(text))
end

local function result_of(policy, workers, req)
  testing.plan(policy, workers or testing.workers { prefill = 1, decode = 1 }, req)
  return policy:handover()
end

describe("the fake clock", function()
  local clock

  before_each(function()
    testing.shared()
    clock = testing.clock(1000000)
  end)

  after_each(function()
    clock:stop()
  end)

  it("is what token buckets fill by", function()
    local policy = doing "out.ok, out.wait = baton.take('bucket', 2, 1)"
    assert.is_true(result_of(policy).ok)
    local refused = result_of(policy)
    assert.is_false(refused.ok)
    assert.are.equal(0.5, refused.wait)
    clock:advance(499)
    assert.is_false(result_of(policy).ok)
    clock:advance(1)
    assert.is_true(result_of(policy).ok)
  end)

  it("is what windows slide by", function()
    local policy = doing "out.sum = baton.window('w', 1, 10)"
    assert.are.equal(1, result_of(policy).sum)
    assert.are.equal(2, result_of(policy).sum)
    clock:advance(30000)
    assert.are.equal(1, result_of(policy).sum)
  end)

  it("is what reports grow old by", function()
    local workers = testing.workers { prefill = 1, decode = 1 }
    local policy = doing "out.age, out.running = view.decode[1].age_ms, view.decode[1].running"
    workers:set("d1", { running = 7 })
    assert.are.same({ age = 0, running = 7 }, result_of(policy, workers))
    clock:advance(1200)
    assert.are.same({ age = 1200, running = 7 }, result_of(policy, workers))
    clock:advance(4000)
    assert.are.same({ age = 5200 }, result_of(policy, workers))
    workers:set("d1", { running = 8, age_ms = 300 })
    assert.are.same({ age = 300, running = 8 }, result_of(policy, workers))
  end)

  it("has bytes on their way only where the gateway opens the rooms", function()
    local workers = testing.workers { prefill = { { connector = "baton" } }, decode = { { connector = "baton" } } }
    local policy = doing "out.bytes = view.decode[1].transfer_bytes"
    assert.are.same({ bytes = 0 }, result_of(policy, workers))
    workers:set("d1", { transfer_bytes = 4096 })
    assert.are.same({ bytes = 4096 }, result_of(policy, workers))
    local others = testing.workers { prefill = 1, decode = 1 }
    assert.are.same({}, result_of(policy, others))
    assert.has_error(function()
      others:set("d1", { transfer_bytes = 1 })
    end, "'transfer_bytes' cannot be set")
  end)

  it("is tick's now and the time of events", function()
    local policy = policy_with(FIRST .. [[,
      observe = function(events, ctx) ctx.state.at, ctx.state.kind = events[1].at_ms, events[1].kind end,
      tick = function(now, view, ctx) ctx.state.now, ctx.state.first = now, view.prefill[1].name end,
      handover = function(ctx) return ctx.state end]])
    clock:advance(7)
    assert.is_true(policy:observe { { session = "s" } })
    assert.is_true(policy:tick(nil, testing.workers { prefill = 1 }))
    assert.are.same({ at = 1000007, now = 1000007, kind = "finished", first = "p1" }, policy:handover())
    assert.is_true(policy:tick(5, testing.workers { prefill = 1 }))
    assert.are.equal(5, policy:handover().now)
  end)

  it("is moved by what hooks sleep, and by answers that take long", function()
    local policy = policy_with(FIRST .. [[, admit = function(req, ctx)
      baton.sleep(250)
      local answer, why = baton.http { url = "http://auth:8080/slow", timeout_ms = 100 }
      if answer then return { status = answer.status } end
      return { status = 503, reason = why }
    end]])
    testing.network { ["http://auth:8080"] = { status = 401, after_ms = 40 } }
    assert.are.equal(401, policy:admit({}).status)
    assert.are.equal(1000290, clock:now())
    testing.network { ["http://auth:8080"] = { status = 401, after_ms = 400 } }
    local refusal = policy:admit {}
    assert.are.equal(503, refusal.status)
    assert.matches("timeout_ms", refusal.reason)
    assert.are.equal(1000640, clock:now())
  end)

  it("stops", function()
    clock:stop()
    assert.has_error(function()
      clock:advance(1)
    end)
    assert.are_not.equal(1000000, clock:now())
  end)
end)

describe("shared state", function()
  it("starts clean, can be looked into and set", function()
    local policy = doing "out.now = baton.shared_local.add('turn'); out.mean = baton.ewma('e', 4)"
    local shared = testing.shared()
    assert.are.equal(0, shared.turn)
    assert.are.equal(1, result_of(policy).now)
    assert.are.equal(2, result_of(policy).now)
    assert.are.equal(2, shared.turn)
    shared.turn = 40
    assert.are.equal(41, result_of(policy).now)
    shared = testing.shared()
    assert.are.equal(0, shared.turn)
    assert.are.equal(4, result_of(policy).mean) -- a first sample again
  end)
end)

describe("req.identity", function()
  local policy = policy_with(FIRST .. [[, admit = function(req)
    local who = req.identity
    return { status = 418, reason = table.concat({ who.source, tostring(who.id), who.tenant,
      tostring(who.scopes.inference), tostring(who.scopes.gold), tostring(who.claims.plan), tostring(who.claims.max),
      tostring(who.claims.is_new), tostring(who.claims.groups), tostring(who.claims.none) }, " ") }
  end]])

  it("is what the spec says", function()
    assert.are.equal('jwt alice acme false true pro 2.5 true ["a"] nil', policy:admit({
      tenant = "acme", identity = { id = "alice", source = "jwt", scopes = "models gold",
        claims = '{"plan":"pr\\u006f","max":2.5,"is_new":true,"groups":["a"],"none":null}' },
    }).reason)
    assert.are.equal("key bk_a anonymous true false nil nil nil nil nil",
      policy:admit({ identity = { id = "bk_a" } }).reason)
    assert.are.equal("anonymous nil anonymous true false nil nil nil nil nil", policy:admit({}).reason)
  end)

  it("has no other fields, and cannot be kept", function()
    local wrong = policy_with(FIRST .. [[, admit = function(req, ctx) return { reason = req.identity.tennant } end]])
    local admitted, why = wrong:admit {}
    assert.is_nil(admitted)
    assert.matches("did you mean 'tenant'", why)
  end)
end)

describe("the network", function()
  local auth = FIRST .. [[, admit = function(req, ctx)
    local answer, why = baton.http {
      url = "http://auth:8080/check?m=" .. (req.model or ""), method = "POST",
      body = baton.json_encode { t = req.tenant }, headers = { ["x-key"] = req.headers["X-Key"] or "none" },
    }
    if not answer then return { status = 503, retry_after = 2, reason = why } end
    ctx.vars.tier = answer.headers["x-tier"]
    if answer.status ~= 200 then return { status = 403, reason = answer.body } end
  end,
  route = function(req, ctx) return { pool = ctx.vars.tier, class = "c-" .. ctx.vars.tier, key = "k" } end]]

  it("answers, and tells what it was asked", function()
    local policy = policy_with(auth)
    local network = testing.network { ["http://auth:8080/check?m=llama"] = { headers = { ["X-Tier"] = "gold" } } }
    local req = { tenant = "acme", model = "llama", headers = { ["x-key"] = "secret" } }
    assert.is_true(policy:admit(req))
    assert.are.equal(1, #network.calls)
    assert.are.same({
      method = "POST", url = "http://auth:8080/check?m=llama", host = "auth", port = 8080, target = "/check?m=llama",
      body = '{"t":"acme"}', headers = { ["x-key"] = "secret" }, timeout_ms = 1000,
    }, network.calls[1])
  end)

  it("shares ctx.vars from admit to route, and route's answer with the request", function()
    local policy = policy_with(auth)
    testing.network { ["http://auth:8080"] = { headers = { ["x-tier"] = "gold" } } }
    local req = {}
    assert.is_true(policy:admit(req))
    assert.are.same({ pool = "gold", class = "c-gold", key = "k" }, policy:route(req))
    assert.are.same({ class = "c-gold", session = "k" }, req)
    local direction, why = policy:route {} -- another request: it was never admitted
    assert.is_nil(direction)
    assert.matches("tier", why)
  end)

  it("can be a function, refuse, and be down", function()
    local policy = policy_with(auth)
    testing.network {
      ["http://AUTH:8080/"] = {},
      ["http://auth:8080"] = function(want)
        if want.body == '{"t":"bad"}' then
          return { status = 401, body = "no", headers = {} }
        end
        return nil, "connect"
      end,
    }
    assert.are.same({ status = 403, reason = "no" }, policy:admit { tenant = "bad" })
    assert.are.same({ status = 503, retry_after = 2, reason = "connect failed" }, policy:admit { tenant = "x" })
    testing.network { ["http://auth:8080"] = { error = "resolve" } }
    assert.are.equal("host name not resolved", policy:admit({}).reason)
  end)

  it("fails the spec that forgot an answer, and refuses hosts that nobody allowed", function()
    local policy = policy_with(auth)
    testing.network { ["http://auth:8080/other"] = {} }
    local ok, why = pcall(policy.admit, policy, { model = "m" })
    assert.is_false(ok)
    assert.matches("nothing answers POST http://auth:8080/check%?m=m", why)
    assert.has_error(function()
      testing.network { ["http://auth:8080"] = { error = "no such thing" } }
      policy:admit {}
    end)
    testing.network {}
    local admitted, refusal = policy:admit {}
    assert.is_nil(admitted)
    assert.matches("not an allowed host", refusal)
    testing.network { ["http://auth:8080"] = { headers = { ["x-tier"] = "t" } } }
    assert.is_true(policy:admit {}) -- it is none the worse for it
  end)

  it("serves start as well, and fails the spec there too", function()
    local text = "return { api = 2, name = 'p', version = '1', " .. FIRST .. [[,
      start = function(params, old)
        baton.sleep(5)
        local answer, why = baton.http { url = "http://conf/limits" }
        return { limits = answer and baton.json_decode(answer.body), why = why, old = old }
      end, handover = function(ctx) return ctx.state end }]]
    testing.network { ["http://conf:80/limits"] = { body = '{"a":[1,2]}' } }
    local policy = testing.load_text(text, nil, { before = true })
    assert.are.same({ limits = { a = { 1, 2 } }, old = { before = true } }, policy:handover())
    testing.network { ["http://conf/limits"] = { error = "timeout" } }
    assert.are.same({ why = "no answer within timeout_ms" }, testing.load_text(text):handover())
    testing.network { ["http://conf/other"] = {} }
    local ok, why = pcall(testing.load_text, text)
    assert.is_false(ok)
    assert.matches("nothing answers GET http://conf/limits", why)
  end)
end)

describe("hooks", function()
  it("say when there is none, and what went wrong", function()
    local policy = policy_with(FIRST)
    local workers = testing.workers { prefill = 1, decode = 1 }
    for _, result in ipairs {
      { policy:admit {} }, { policy:route {} }, { policy:observe {} },
      { policy:tick(1, workers) }, { policy:handover() },
      { policy:fallback(workers, {}, { scope = "worker" }, { "p1" }) },
    } do
      assert.is_nil(result[1])
      assert.matches("no such hook", result[2])
    end
    policy = policy_with(FIRST .. ", observe = function(events) return events[1].model.x.y end")
    local done, why = policy:observe { {} }
    assert.is_nil(done)
    assert.matches("model", why)
  end)

  it("hand plain data over to the next generation", function()
    local text = FIRST .. [[, start = function(params, old) return old end,
      handover = function(ctx) return ctx.state end]]
    local old = { list = { 1, 2, { deep = true } }, name = "x", flag = false }
    local policy = testing.load_text("return { api = 2, name = 'p', version = '1', " .. text .. " }", nil, old)
    assert.are.same(old, policy:handover())
  end)

  it("tell plan everything that a request has", function()
    local policy = doing [[
      for _, key in ipairs { "path", "model", "stream", "n", "prompt_tokens", "prompt_bytes", "session",
        "tenant", "class" } do out[key] = req[key] end
      out.tier, out.pool = req.headers["X-Tier"], view.pool]]
    local req = {
      path = "/v1/chat/completions", model = "m", stream = true, n = 3, prompt_tokens = 9, prompt_bytes = 40,
      session = "s", tenant = "t", class = "c", headers = { ["x-tier"] = "gold" },
    }
    local workers = testing.workers { prefill = 1, decode = 1 }
    workers:pool "long"
    local out = result_of(policy, workers, req)
    assert.are.equal("gold", out.tier)
    assert.are.equal("long", out.pool)
    req.headers, out.tier, out.pool = nil, nil, nil
    assert.are.same(req, out)
  end)

  it("tell tick which role is short, and plan nothing of it", function()
    local policy = policy_with [[plan = function(_, view) return view.advice end,
      tick = function(_, view, ctx) ctx.state.told = view.advice end,
      handover = function(ctx) return ctx.state end]]
    local workers = testing.workers { prefill = 1, decode = 3 }
    assert.is_true(policy:tick(nil, workers))
    assert.are.same({}, policy:handover())
    local advice = {
      bottleneck = "prefill", prefill = 1, decode = 3, advised_prefill = 3, advised_decode = 1, prefill_used = 0.9,
      decode_used = 0.25, predicted_ttft_ms = 120,
    }
    workers:advice(advice)
    assert.is_true(policy:tick(nil, workers))
    assert.are.same({ told = advice }, policy:handover())
    local _, why = policy:plan(workers)
    assert.matches("view.advice is for tick", why)
  end)

  it("show kinds, ranks and scores", function()
    local policy = policy_with [[plan = function(req, view)
      baton.note_score(view.prefill[2], 0.25)
      return { kind = "handoff", prefill = view.prefill[2], decode = view.decode[1], decode_rank = 0,
        alternates = { { prefill = view.prefill[1], decode = view.decode[1] } } }
    end]]
    assert.are.same({
      kind = "handoff", prefill = "p2", decode = "d1", decode_rank = 0, scores = { p2 = 0.25 },
      alternates = { { prefill = "p1", decode = "d1" } },
    }, testing.plan(policy, testing.workers { prefill = 2, decode = 1 }))
  end)
end)

describe("plan", function()
  local policy = testing.load_text [[
return { api = 2, name = "again", version = "1", plan = function(req, view, ctx)
  local failure = ctx.failure
  baton.note_score(view.decode[1], ctx.attempt)
  if failure and failure.keep then
    return { prefill = failure.keep.prefill, decode = view.decode[2] }
  end
  return { prefill = view.prefill[failure and 2 or 1], decode = view.decode[1] }
end }]]

  it("hears of the failure when it is asked again, and of none the next time", function()
    local workers = testing.workers { prefill = 2, decode = 2 }
    local failure = { scope = "worker", name = "connect", attempt = 3, keep = { prefill = "p1" } }
    for _ = 1, 2 do
      local first = testing.plan(policy, workers)
      assert.are.same({ "p1", "d1", 1 }, { first.prefill, first.decode, first.scores.d1 })
      local again = assert(policy:plan(workers, {}, failure, { "d1" }))
      assert.are.same({ "p1", "d2", 3 }, { again.prefill, again.decode, again.scores.d1 })
    end
  end)

  it("counts a request once, however often it is asked", function()
    local counts = testing.load_text [[
return { api = 2, name = "counts", version = "1", plan = function(req, view, ctx)
  baton.prefix_match(view.prefill, req, 16)
  baton.note_score(view.decode[1], baton.window("requests", 1, 60) + (baton.take("t", 1e-6, 1) and 0 or 100))
  baton.prefix_insert(req, view.prefill[ctx.attempt], 16)
  return { prefill = view.prefill[1], decode = view.decode[1] }
end }]]
    local workers, req = testing.workers { prefill = 2, decode = 1 }, { prompt = testing.text(100) }
    assert.are.equal(1, testing.plan(counts, workers, req).scores.d1)
    assert.are.equal(1, assert(counts:plan(workers, req, { scope = "worker" }, {})).scores.d1)
    assert.are.equal(102, testing.plan(counts, workers, req).scores.d1)
    local held = testing.load_text [[
return { api = 2, name = "held", version = "1", plan = function(req, view)
  baton.prefix_match(view.prefill, req, 16)
  baton.note_score(view.decode[1], view.prefill[1].prefix_blocks > 0 and view.prefill[2].prefix_blocks == 0 and 1 or 0)
  return { prefill = view.prefill[1], decode = view.decode[1] }
end }]]
    assert.are.equal(1, testing.plan(held, workers, req).scores.d1)
  end)
end)

describe("recorded traffic", function()
  local PAIR = [[
{"v":1,"id":"r1","path":"/v1/completions","model":"m","stream":true,"n":2,"prompt_tokens":12,"prompt_bytes":48,]] .. [[
"session":"s","key":"k","tenant":"t","class":"c","pool":"long","headers":{"x-tier":"gold"},]] .. [[
"candidates":{"prefill":{"total":1,"rows":[{"id":1,"name":"pa","role":"prefill","zone":"a",]] .. [[
"labels":{"gpu":"h100","hot":true},"dialect":"sglang","engine":"sglang","version":"0.5.6","tp_size":4,]] .. [[
"prefill_tokens":70,"decode_tokens":0,"requests":2,"running":3,"waiting":4,"kv_free":0.5,]] .. [[
"ttft_ema_ms":20,"tpot_ema_ms":5,"age_ms":300}]},]] .. [[
"decode":{"total":2,"rows":[{"id":2,"name":"db","role":"decode","dialect":"sglang","decode_tokens":900},]] .. [[
{"id":3,"name":"dc","role":"decode","dialect":"sglang","decode_tokens":100}]}},]] .. [[
"plan":{"kind":"bootstrap","decode":"dc"}}
{"v":1,"id":"unsampled","status":200}
{"v":1,"id":"r2","path":"/v1/completions","n":1,"prompt_tokens":1,"prompt_bytes":4,"pool":"default",]] .. [[
"candidates":{"hybrid":{"total":1,"rows":[{"id":9,"name":"alone","role":"prefill","dialect":"nixl","requests":1}]}}}
]]

  it("gives requests and fleets to plan again", function()
    local policy, ids = testing.load "least_load", {}
    for req, workers, record in testing.records(PAIR) do
      ids[#ids + 1] = record.id
      local plan = testing.plan(policy, workers, req)
      if record.id == "r1" then
        assert.are.equal("pa", plan.prefill)
        assert.are.equal(record.plan.decode, plan.decode)
      else
        assert.are.equal("alone", plan.worker)
      end
    end
    assert.are.same({ "r1", "r2" }, ids)
  end)

  it("has what the policy saw", function()
    local req, workers = testing.records(PAIR)()
    local policy = doing [[
      local w = view.prefill[1]
      for _, key in ipairs { "zone", "prefill_tokens", "decode_tokens", "requests", "running", "waiting",
        "kv_free", "ttft_ema_ms", "tpot_ema_ms", "engine",
        "connector", "version", "dp_size", "tp_size", "pp_size" } do out[key] = w[key] end
      out.gpu, out.hot, out.dialect, out.old = w.labels.gpu, w.labels.hot, w.dialects[1], w.age_ms >= 300
      out.session, out.tier, out.pool = req.session, req.headers["x-tier"], view.pool]]
    assert.are.same({
      zone = "a", prefill_tokens = 70, decode_tokens = 0, requests = 2, running = 3, waiting = 4, kv_free = 0.5,
      ttft_ema_ms = 20, tpot_ema_ms = 5, gpu = "h100", hot = true, dialect = "sglang", old = true,
      session = "k", tier = "gold", pool = "long",
      engine = "sglang", connector = "sglang", version = "0.5.6", dp_size = 1, tp_size = 4, pp_size = 1,
    }, result_of(policy, workers, req))
  end)

  it("comes from files, and says which line is none", function()
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(PAIR, "not JSON\n")
    file:close()
    local seen = 0
    local ok, why = pcall(function()
      for _ in testing.records(path) do
        seen = seen + 1
      end
    end)
    os.remove(path)
    assert.is_false(ok)
    assert.matches("line 4 is no record", why)
    assert.are.equal(2, seen)
  end)
end)
