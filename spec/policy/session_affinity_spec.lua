local testing = require "baton.testing"

describe("session_affinity", function()
  it("keeps a session whatever the load, and offers the next two places", function()
    local policy, f = testing.load("session_affinity"), testing.fleet { prefill = 4, decode = 4 }
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
    local policy, f = testing.load("session_affinity"), testing.fleet { hybrid = 10 }
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
    local policy, f = testing.load("session_affinity"), testing.fleet { prefill = 4, decode = 4 }
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
