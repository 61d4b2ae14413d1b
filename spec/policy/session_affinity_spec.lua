local testing = require "baton.testing"

describe("session_affinity", function()
  it("keeps a session whatever the load, and offers the next two places", function()
    local policy, f = testing.load("session_affinity"), testing.workers { prefill = 4, decode = 4 }
    local first = testing.plan(policy, f, { session = "a" })
    f:bear(first.prefill, 1e6, 1000)
    f:bear(first.decode, 1e6, 1000)
    assert.are.same(first, testing.plan(policy, f, { session = "a" }))
    assert.are.equal(first.prefill, first.alternates[1].prefill)
    assert.are_not.equal(first.decode, first.alternates[1].decode)
    assert.are_not.equal(first.prefill, first.alternates[2].prefill)
    f:remove(first.prefill)
    assert.are.equal(first.alternates[2].prefill, testing.plan(policy, f, { session = "a" }).prefill)
  end)

  it("moves fewer than 1/n of the sessions when a worker goes, and none of the others'", function()
    local policy, f = testing.load("session_affinity"), testing.workers { hybrid = 10 }
    local before, own, moved = {}, 0, 0
    for i = 1, 2000 do
      before[i] = testing.plan(policy, f, { session = "s" .. i }).worker
    end
    f:remove("h7")
    for i = 1, 2000 do
      local now = testing.plan(policy, f, { session = "s" .. i }).worker
      own = own + (before[i] == "h7" and 1 or 0)
      moved = moved + (before[i] ~= now and 1 or 0)
    end
    assert.are.equal(own, moved)
    assert.is_true(moved > 120 and moved < 280, moved) -- 200 expected
  end)

  it("spreads sessions evenly, and requests without one by load", function()
    local policy, f = testing.load("session_affinity"), testing.workers { prefill = 4, decode = 4 }
    local seen = testing.spread(policy, f, 4000, function(i)
      return { session = "x" .. i }
    end)
    for _, count in pairs(seen.decode) do
      assert.is_true(count > 850 and count < 1150, count)
    end
    for _, name in ipairs { "p1", "p2", "p4" } do
      f:bear(name, 10, 1)
    end
    assert.are.equal("p3", testing.plan(policy, f, {}).prefill)
  end)
end)

describe("session_affinity with a priority", function()
  it("is said of sessions alone, wherever they go", function()
    local policy = testing.load("session_affinity", { priority = 7 })
    for _, f in ipairs { testing.workers { prefill = 2, decode = 2 }, testing.workers { hybrid = 2 } } do
      assert.are.same({ priority = 7 }, testing.plan(policy, f, { session = "a" }).hints)
      assert.is_nil(testing.plan(policy, f, {}).hints)
      assert.is_nil(testing.plan(testing.load("session_affinity"), f, { session = "a" }).hints)
    end
    local shared = testing.load("session_affinity", { priority = 7, shared = true })
    assert.are.same({ priority = 7 },
      testing.plan(shared, testing.workers { prefill = 2, decode = 2 }, { session = "a" }).hints)
    assert.has_error(function()
      testing.load("session_affinity", { priority = 1.5 })
    end)
  end)
end)

describe("session_affinity with places that the fleet knows", function()
  local clock, store, workers

  before_each(function()
    clock = testing.clock(60000000)
    store = testing.store()
    workers = testing.workers { prefill = 4, decode = 4 }
  end)

  after_each(function()
    clock:stop()
  end)

  -- One request: what a gateway does with it, route and plan.
  local function plan(policy, req, where)
    assert(policy:route(req))
    return testing.plan(policy, where or workers, req)
  end

  local function shared(params)
    params = params or {}
    params.shared = true
    return testing.load("session_affinity", params)
  end

  it("begins where the load is least, and stays there through any gateway", function()
    for _, name in ipairs { "p1", "p2", "p4", "d1", "d2", "d3" } do
      workers:bear(name, 100, 1)
    end
    local first = plan(shared(), { session = "a" })
    assert.are.equal("p3", first.prefill)
    assert.are.equal("d4", first.decode)
    assert.are.equal("p3\nd4", store:get "s/a")
    workers:bear("p3", 1e6, 1000)
    workers:bear("d4", 1e6, 1000)
    local there = plan(shared(), { session = "a" })
    assert.are.equal("p3", there.prefill)
    assert.are.equal("d4", there.decode)
    workers:add { name = "p9", role = "prefill", url = "http://prefill-9:8000" }
    assert.are.equal("p3", plan(shared(), { session = "a" }).prefill)
    assert.are_not.equal("p3", plan(shared(), { session = "b" }).prefill)
  end)

  it("moves when its worker goes, and stays where it has moved to", function()
    local policy = shared()
    local first = plan(policy, { session = "a" })
    workers:remove(first.prefill)
    local second = plan(policy, { session = "a" })
    assert.are_not.equal(first.prefill, second.prefill)
    assert.are.equal(second.prefill .. "\n" .. second.decode, store:get "s/a")
    workers:add { name = first.prefill, role = "prefill", url = "http://prefill-back:8000" }
    assert.are.equal(second.prefill, plan(policy, { session = "a" }).prefill)
  end)

  it("asks once in refresh_s, and keeps the place alive then", function()
    local policy = shared { refresh_s = 10, ttl_s = 60 }
    for _ = 1, 20 do
      plan(policy, { session = "a" })
    end
    assert.are.same({ "get", "set" }, { store.calls[1].op, store.calls[2].op })
    assert.are.equal(2, #store.calls)
    for _ = 1, 12 do
      clock:advance(11000)
      plan(policy, { session = "a" })
    end
    assert.is_not_nil(store:get "s/a")
    clock:advance(60000)
    assert.is_nil(store:get "s/a")
  end)

  it("stays where it was while the store is unavailable, and goes by its order where nobody knows", function()
    local policy = shared()
    local first = plan(policy, { session = "a" })
    workers:bear(first.prefill, 1e6, 1000)
    clock:advance(60000)
    store:fail("store_unavailable")
    assert.are.equal(first.prefill, plan(policy, { session = "a" }).prefill)
    local unknown = plan(policy, { session = "b" })
    local alone = testing.plan(testing.load("session_affinity"), workers, { session = "b" })
    assert.are.equal(alone.prefill, unknown.prefill)
  end)

  it("knows single workers too, and asks nothing for requests without a session", function()
    local hybrids = testing.workers { hybrid = 3 }
    hybrids:bear("h1", 5, 1)
    hybrids:bear("h3", 5, 1)
    assert.are.equal("h2", plan(shared(), { session = "a" }, hybrids).worker)
    assert.are.equal("h2", store:get "s/a")
    store = testing.store()
    plan(shared(), {}, hybrids)
    assert.are.equal(0, #store.calls)
  end)
end)
