local testing = require "baton.testing"

local function workers()
  return testing.workers {
    prefill = { { labels = "weight=5" }, {}, { labels = "gpu=x,weight=1" } },
    decode = { { labels = "weight=0" }, { labels = "weight=2.5" }, { labels = "weight=7.5" } },
  }
end

describe("weighted", function()
  it("takes workers in the smooth order", function()
    local policy, order = testing.load("weighted"), {}
    local f = workers()
    for i = 1, 14 do
      order[i] = testing.plan(policy, f).prefill
    end
    assert.are.equal("p1 p1 p2 p1 p3 p1 p1 p1 p1 p2 p1 p3 p1 p1", table.concat(order, " "))
  end)

  it("gives each its share exactly, and nothing to weight 0", function()
    local seen = testing.spread(testing.load("weighted"), workers(), 700)
    assert.are.same({ p1 = 500, p2 = 100, p3 = 100 }, seen.prefill)
    assert.are.same({ d2 = 175, d3 = 525 }, seen.decode)
  end)

  it("keeps its turns when a worker leaves", function()
    local policy, f = testing.load("weighted"), workers()
    testing.spread(policy, f, 70)
    f:remove("p3")
    local seen = testing.spread(policy, f, 600)
    assert.are.same({ p1 = 500, p2 = 100 }, seen.prefill)
  end)
end)
