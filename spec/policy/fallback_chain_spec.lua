local testing = require "baton.testing"

local function workers()
  return testing.workers {
    hybrid = {
      { labels = "tier=primary" },
      { labels = "tier=primary" },
      { labels = "tier=spare" },
      { labels = "tier=last" },
      {},
    },
  }
end

describe("fallback_chain", function()
  local policy = testing.load("fallback_chain")

  it("fills a tier before the next one", function()
    local f = workers()
    assert.matches("^h[12]$", testing.plan(policy, f).worker)
    f:bear("h1", 10, 255)
    f:bear("h2", 20, 256)
    assert.are.equal("h1", testing.plan(policy, f).worker)
    f:bear("h1", 0, 1)
    assert.are.equal("h3", testing.plan(policy, f).worker)
    for _, name in ipairs { "h3", "h4", "h5" } do
      f:bear(name, 100, 300)
    end
    assert.are.equal("h1", testing.plan(policy, f).worker) -- all full: the first tier's least loaded
  end)

  it("after failures walks down the chain and gives up at its end", function()
    local f, failure = workers(), { scope = "worker" }
    assert.are.equal("h2", policy:fallback(f, {}, failure, { "h1" }).worker)
    assert.are.equal("h3", policy:fallback(f, {}, failure, { "h1", "h2" }).worker)
    assert.are.equal("h5", policy:fallback(f, {}, failure, { "h1", "h2", "h3", "h4" }).worker)
    local plan, why = policy:fallback(f, {}, failure, { "h1", "h2", "h3", "h4", "h5" })
    assert.is_nil(plan)
    assert.are.equal("it returned nil", why)
    assert.is_nil(policy:fallback(f, {}, { scope = "request" }, { "h1" }))
  end)

  it("takes its tiers from its parameters", function()
    local other = testing.load("fallback_chain", { tiers = { "last", "spare" }, max_requests = 1 })
    local f = workers()
    assert.are.equal("h4", testing.plan(other, f).worker)
    f:bear("h4", 1, 1)
    assert.are.equal("h3", testing.plan(other, f).worker)
  end)

  it("counts prompts that a lone worker is still at", function()
    local f = workers()
    f:set("h1", { prefill_tokens = 5000, requests = 1 })
    f:set("h2", { decode_tokens = 100, requests = 1 })
    assert.are.equal("h2", testing.plan(policy, f).worker)
  end)

  it("walks pairs as well", function()
    local f = testing.workers { prefill = { { labels = "tier=spare" }, { labels = "tier=primary" } }, decode = 2 }
    assert.are.equal("p2", testing.plan(policy, f).prefill)
    local plan = policy:fallback(f, {}, { scope = "worker" }, { "p2", "d1" })
    assert.are.same({ "p1", "d2" }, { plan.prefill, plan.decode })
  end)
end)
