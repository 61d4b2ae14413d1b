local testing = require "baton.testing"

describe("zone_aware", function()
  local policy = testing.load("zone_aware")
  local zones = { { zone = "a" }, { zone = "b" }, { zone = "b" } }

  it("takes decode from prefill's zone", function()
    local f = testing.workers { prefill = zones, decode = zones }
    f:bear("p1", 100, 1)
    f:bear("p3", 100, 1)
    f:bear("d2", 2000, 1)
    f:bear("d3", 1000, 1)
    local plan = testing.plan(policy, f)
    assert.are.same({ "p2", "d3" }, { plan.prefill, plan.decode })
  end)

  it("leaves a zone that is more than twice as busy as the mean, and not before", function()
    local f = testing.workers {
      prefill = { { zone = "b" } },
      decode = { { zone = "a" }, { zone = "a" }, { zone = "b" } },
    }
    f:set("d1", { decode_tokens = 10000 })
    f:set("d2", { decode_tokens = 20000 })
    f:set("d3", { decode_tokens = 60000 }) -- mean 30,000: the limit is 64,096
    assert.are.equal("d3", testing.plan(policy, f).decode)
    f:set("d3", { decode_tokens = 120000 }) -- mean 50,000: the limit is 104,096
    assert.are.equal("d1", testing.plan(policy, f).decode)
  end)

  it("prefers the gateway's zone for prefill, while it is not busy", function()
    local own = testing.load("zone_aware", { zone = "a", slack = 0 })
    local f = testing.workers { prefill = zones, decode = zones }
    f:bear("p1", 50, 1)
    f:bear("p2", 25, 1) -- mean 25: the limit is 50
    assert.are.equal("p1", testing.plan(own, f).prefill)
    f:bear("p1", 10, 1)
    assert.are_not.equal("p1", testing.plan(own, f).prefill)
  end)

  it("counts prompts that a lone worker is still at", function()
    local f = testing.workers { hybrid = 2 }
    f:set("h1", { prefill_tokens = 5000, requests = 1 })
    f:set("h2", { decode_tokens = 100, requests = 1 })
    assert.are.equal("h2", testing.plan(policy, f).worker)
  end)

  it("without zones takes the least loaded", function()
    local f = testing.workers { prefill = 2, decode = 2 }
    f:bear("p1", 5, 1)
    f:bear("d2", 5, 1)
    local plan = testing.plan(policy, f)
    assert.are.same({ "p2", "d1" }, { plan.prefill, plan.decode })
  end)
end)
