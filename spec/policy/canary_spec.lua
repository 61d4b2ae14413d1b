local testing = require "baton.testing"

describe("canary", function()
  local policy = testing.load("canary")
  local shape = { prefill = { {}, { labels = "track=canary" } }, decode = { {}, { labels = "track=canary" } } }

  it("gives five percent of the sessions the canary, whole pairs, and always the same ones", function()
    local f, canaries = testing.workers(shape), {}
    local seen = testing.spread(policy, f, 10000, function(i)
      return { session = "s" .. i }
    end, function(plan, i)
      assert.are.equal(plan.prefill == "p2", plan.decode == "d2")
      canaries[i] = plan.prefill == "p2"
    end)
    assert.is_true(seen.prefill.p2 > 400 and seen.prefill.p2 < 600, seen.prefill.p2)
    f:bear("p2", 1e6, 100)
    for i = 1, 10000, 10 do
      assert.are.equal(canaries[i], testing.plan(policy, f, { session = "s" .. i }).prefill == "p2")
    end
  end)

  it("adds sessions when the percentage grows, and takes none away", function()
    local few, many = testing.load("canary", { percent = 10 }), testing.load("canary", { percent = 30 })
    local f = testing.workers(shape)
    local count = 0
    for i = 1, 1000 do
      local req = { session = "s" .. i }
      local canary = testing.plan(many, f, req).prefill == "p2"
      count = count + (canary and 1 or 0)
      assert.is_true(canary or testing.plan(few, f, req).prefill == "p1")
    end
    assert.is_true(count > 240 and count < 360, count)
    local plan, why = testing.policy("canary", { percent = 101 })
    assert.is_nil(plan)
    assert.matches("params.percent", why, 1, true)
  end)

  it("draws requests that have no session", function()
    testing.seed(1)
    local seen = testing.spread(policy, testing.workers(shape), 10000)
    assert.is_true(seen.prefill.p2 > 400 and seen.prefill.p2 < 600, seen.prefill.p2)
  end)

  it("counts prompts that a lone worker is still at", function()
    local f = testing.workers { hybrid = 2 }
    f:set("h1", { prefill_tokens = 5000, requests = 1 })
    f:set("h2", { decode_tokens = 100, requests = 1 })
    assert.are.equal("h2", testing.plan(policy, f).worker)
  end)

  it("gives way when a side has no pair", function()
    local f = testing.workers(shape)
    f:remove("d2")
    local seen = testing.spread(policy, f, 500, function(i)
      return { session = "s" .. i }
    end)
    assert.is_nil(seen.prefill.p2)
    f:remove("p1")
    assert.are.equal("p2", testing.plan(policy, f).prefill)
  end)
end)
