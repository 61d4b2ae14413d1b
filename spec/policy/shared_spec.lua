-- baton.shared as policies see it: every function, what raises, what comes back when the store does not answer, the
-- cache for hooks that cannot wait, the budget, names of each policy's own.
local testing = require "baton.testing"

local store, clock

-- A policy whose route runs `text` (req, ctx and out are there) and which hands over what is in out; pure: in plan.
local function doing(text, pure, name)
  return testing.load_text(([[
local out = {}
return { api = 2, name = %q, version = "1",
  route = function(req, ctx) %s end,
  observe = function(events, ctx) %s end,
  plan = function(req, view, ctx)
    %s
    return { prefill = view.prefill[1], decode = view.decode[1] }
  end,
  handover = function() return out end,
}]]):format(name or "mine", pure and "" or text, pure == "observe" and text or "", pure == "plan" and text or ""))
end

local function routed(text, req)
  local policy = doing(text)
  assert(policy:route(req or {}))
  return policy:handover()
end

local function error_of(text)
  local answer, why = doing(text):route({})
  assert.is_nil(answer)
  return why
end

describe("baton.shared", function()
  before_each(function()
    clock = testing.clock(60000000)
    store = testing.store()
  end)

  after_each(function()
    clock:stop()
  end)

  it("counts", function()
    local out = routed [[
      out.a, out.b = baton.shared.add("n", 5), baton.shared.add("n", -7)
      out.text = baton.shared.get("n")
    ]]
    assert.are.same({ a = 5, b = -2, text = "-2" }, out)
    assert.are.equal("-2", store:get("n"))
  end)

  it("keeps cells, for a time", function()
    local out = routed [[
      out.none = baton.shared.get("c") == nil
      out.first = baton.shared.set("c", "x", 1000)
      out.second = baton.shared.set("c", "y", 1000, true)
      out.value = baton.shared.get("c")
    ]]
    assert.are.same({ none = true, first = true, second = false, value = "x" }, out)
    clock:advance(1000)
    assert.is_true(routed([[out.none = baton.shared.get("c") == nil]]).none)
    store:set("c", 7)
    assert.are.same({ value = "7", dropped = true }, routed [[
      out.value = baton.shared.get("c")
      out.dropped = baton.shared.drop("c")
    ]])
    assert.is_nil(store:get("c"))
  end)

  it("leases", function()
    assert.are.same({ fence = 60000000, same = true }, routed [[
      out.fence = baton.shared.lease("l", 1000)
      out.same = baton.shared.lease("l", 1000) == out.fence
    ]])
    assert.is_true(routed([[out.ours = baton.shared.release("l")]]).ours)
    store:hold("l", 1000)
    assert.are.same({ fence = false, holder = "another", ours = false }, routed [[
      out.fence, out.holder = baton.shared.lease("l", 1000)
      out.ours = baton.shared.release("l")
    ]])
    clock:advance(1000)
    assert.are.equal(60001000, routed([[out.fence = baton.shared.lease("l", 1000)]]).fence)
  end)

  it("takes from windows, and gives back to the one that was meant", function()
    clock:advance(15000)
    local out = routed [[
      out.ok, out.wait, out.window = baton.shared.take("w", 3, 60000, 2)
      out.more, out.wait_s = baton.shared.take("w", 3, 60000, 2)
      out.one = baton.shared.take("w", 3, 60000)
    ]]
    assert.are.same({ ok = true, wait = 0, window = 1000, more = false, wait_s = 45, one = true }, out)
    assert.are.equal(3, store:taken("w"))
    routed [[baton.shared.give("w", 60000, 1, 999) baton.shared.give("w", 60000, 2, 1000)]]
    assert.are.equal(1, store:taken("w"))
    clock:advance(45000)
    routed [[baton.shared.take("w", 3, 60000) baton.shared.give("w", 60000, 1, 1000)]]
    assert.are.equal(1, store:taken("w"))
  end)

  it("keeps tables", function()
    local out = routed [[
      out.put = baton.shared.put("t", "a", 1)
      baton.shared.put("t", "b", "two", 500)
      baton.shared.put("t", "c", "three")
      baton.shared.drop("t", "c")
      out.all = baton.shared.fields("t")
    ]]
    assert.are.same({ put = true, all = { a = "1", b = "two" } }, out)
    clock:advance(500)
    assert.are.same({ a = "1" }, routed([[out.all = baton.shared.fields("t")]]).all)
    assert.are.same({}, routed([[out.all = baton.shared.fields("nothing")]]).all)
  end)

  it("answers nil and why when the store does not, in every function that waits", function()
    store:fail("store_unavailable")
    for _, call in ipairs {
      "add('n', 1)", "get('c')", "set('c', 'x')", "drop('c')", "drop('t', 'f')", "lease('l', 10)", "release('l')",
      "take('w', 1, 1000)", "put('t', 'f', 'v')", "fields('t')",
    } do
      local out = routed("out.value, out.why = baton.shared." .. call)
      assert.are.same({ why = "the shared store does not answer" }, out, call)
    end
    store:fail(nil)
    assert.are.equal(1, routed([[out.n = baton.shared.add("n", 1)]]).n)
  end)

  it("knows one type of a name", function()
    local out = routed [[
      baton.shared.put("x", "f", "v")
      out.value, out.why = baton.shared.add("x", 1)
      out.lease, out.why_lease = baton.shared.lease("x", 1000)
      out.taken = baton.shared.set("x", "cell")
    ]]
    assert.are.same({ why = "invalid argument", why_lease = "invalid argument", taken = true }, out)
  end)

  it("raises on arguments that make no sense", function()
    for call, word in pairs {
      ["add('', 1)"] = "1 to 255 bytes",
      ["add(('n'):rep(256), 1)"] = "1 to 255 bytes",
      ["add('n', 1.5)"] = "whole number",
      ["add('n', 2^54)"] = "whole number",
      ["add('n')"] = "number expected",
      ["add('n', 1, 0)"] = "1 ms to a year",
      ["get()"] = "string expected",
      ["get({})"] = "string expected",
      ["set('c')"] = "string expected",
      ["set('c', ('x'):rep(65537))"] = "64 KiB",
      ["set('c', 'x', 'soon')"] = "number expected",
      ["lease('l')"] = "number expected",
      ["lease('l', 0)"] = "1 ms",
      ["take('w', -1, 1000)"] = "0 or more",
      ["take('w', 1.5, 1000)"] = "whole",
      ["take('w', 1, 99)"] = "100 ms",
      ["take('w', 1, 1000, 0)"] = "1 or more",
      ["take('w', 0/0, 1000)"] = "whole",
      ["give('w', 1000, 1.5)"] = "whole",
      ["give('w', 10, 1)"] = "100 ms",
      ["put('t', '', 'v')"] = "1 to 255 bytes",
      ["put('t', 'f', {})"] = "string expected",
      ["drop('t', {})"] = "string expected",
      ["cached('c', -1)"] = "0 ms",
    } do
      local why = error_of("baton.shared." .. call)
      assert.is_truthy(why:find(word, 1, true), call .. ": " .. why)
    end
    assert.are.equal(0, #store.calls)
  end)

  it("may be asked sixteen times a run, and says so", function()
    local why = error_of [[for i = 1, 17 do baton.shared.add("n", 1) end]]
    assert.is_truthy(why:find("a run of route may ask the shared state at most 16 times", 1, true), why)
    assert.are.equal("16", store:get("n"))
    assert.are.equal(32, routed([[for i = 1, 16 do out.n = baton.shared.add("n", 1) end]]).n) -- each run anew
    local pure = doing([[for i = 1, 17 do baton.shared.set("c" .. i, "x") end]], "plan")
    local _, refused = pure:plan(testing.workers { prefill = 1, decode = 1 }, {})
    assert.is_truthy(refused:find("a run of plan may ask the shared state at most 16 times", 1, true), refused)
  end)

  it("does not wait in pure hooks: it refuses to read, and sends what it writes", function()
    local workers = testing.workers { prefill = 1, decode = 1 }
    local _, why = doing([[baton.shared.get("c")]], "plan"):plan(workers, {})
    assert.is_truthy(why:find("plan is a pure hook and cannot wait", 1, true), why)
    local observer = doing([[
      for i, event in ipairs(events) do
        out[i] = select("#", baton.shared.add("n", event.output_tokens))
        baton.shared.put("t", event.session, "seen")
        baton.shared.set("last", event.session)
        baton.shared.give("w", 1000, 1)
      end]], "observe")
    assert(observer:observe { { output_tokens = 3, session = "a" }, { output_tokens = 4, session = "b" } })
    assert.are.same({ 0, 0 }, observer:handover())
    assert.are.equal("7", store:get("n"))
    assert.are.equal("b", store:get("last"))
    assert.are.same({ a = "seen", b = "seen" }, store:fields("t"))
  end)

  it("is not there inside pcall, nor while the file is loaded", function()
    local why = error_of [[
      local ok, problem = pcall(baton.shared.get, "c")
      error(problem, 0)
    ]]
    assert.is_truthy(why:find("cannot wait inside pcall", 1, true), why)
    local ok, refusal = pcall(testing.load_text, "baton.shared.give('w', 1000, 1) return {}")
    assert.is_false(ok)
    assert.is_truthy(refusal:find("not while the file is loaded", 1, true), refusal)
  end)

  it("remembers for pure hooks what the process has last read or written", function()
    local workers = testing.workers { prefill = 1, decode = 1 }
    local function cached(call)
      local policy = doing("out.value, out.age = baton.shared.cached(" .. call .. ") out.n = 1", "plan")
      testing.plan(policy, workers, {})
      return policy:handover()
    end
    assert.are.same({ n = 1 }, cached "'c'")
    routed [[baton.shared.add("n", 3) baton.shared.set("c", "x") baton.shared.put("t", "f", "v")]]
    routed [[baton.shared.fields("t") baton.shared.get("nothing")]]
    clock:advance(250)
    assert.are.same({ value = 3, age = 250, n = 1 }, cached "'n'")
    assert.are.same({ value = "x", age = 250, n = 1 }, cached "'c'")
    assert.are.same({ value = { f = "v" }, age = 250, n = 1 }, cached "'t'")
    assert.are.same({ age = 250, n = 1 }, cached "'nothing'")
    assert.are.same({ value = "x", age = 250, n = 1 }, cached "'c', 250")
    assert.are.same({ n = 1 }, cached "'c', 249")
    routed [[baton.shared.drop("c")]]
    assert.are.same({ n = 1 }, cached "'c'")
    store:fail("store_unavailable")
    routed [[baton.shared.get("n")]]
    assert.are.equal(3, cached("'n'").value) -- what was known stays
  end)

  it("gives each policy names of its own", function()
    local text = [[out.n = baton.shared.add("n", 1)]]
    local one, two = doing(text), doing(text, nil, "two")
    assert(one:route({}))
    assert(two:route({}))
    assert.are.equal(1, two:handover().n)
    assert.are.equal("p:mine:n", store.calls[1].key)
    assert.are.equal("p:two:n", store.calls[2].key)
  end)

  it("serves start and tick", function()
    store:set("limit", 12)
    local policy = testing.load_text [[
return { api = 2, name = "mine", version = "1",
  start = function() return { limit = tonumber(baton.shared.get("limit")) } end,
  tick = function(now, view, ctx)
    if baton.shared.lease("leader", 2000) then ctx.state.limit = baton.shared.add("rounds", 1) + ctx.state.limit end
  end,
  plan = function() end,
  handover = function(ctx) return ctx.state end,
}]]
    local workers = testing.workers { prefill = 1, decode = 1 }
    assert.is_true(policy:tick(nil, workers))
    store:hold("leader", 500)
    assert.is_true(policy:tick(nil, workers))
    assert.are.equal(13, policy:handover().limit)
    assert.are.equal("1", store:get("rounds"))
  end)

  it("hands ctx.vars.kept to observe", function()
    local policy = doing [[ctx.vars.kept = { 7, 0.5 }]]
    local req = {}
    assert(policy:route(req))
    assert.are.same({ 7, 0.5 }, policy:kept(req))
    local observer = doing([[out.kept, out.none = events[1].kept, events[2].kept == nil]], "observe")
    assert(observer:observe { { kept = policy:kept(req) }, {} })
    assert.are.same({ kept = { 7, 0.5 }, none = true }, observer:handover())
  end)
end)
