local testing = require "baton.testing"

describe("llm_d_default", function()
  local policy, f
  local prompt = testing.text(1000, "a") -- about 7,000 bytes: 27 blocks of 64 tokens

  before_each(function()
    testing.forget()
    policy = testing.load("llm_d_default")
    f = testing.workers { prefill = 1, decode = 3 }
  end)

  local function report(name, waiting, kv_free)
    f:set(name, { waiting = waiting, kv_free = kv_free })
  end

  it("weighs queue 2, free KV 2, prefix 3", function()
    report("d1", 0, 1)
    report("d2", 0, 1)
    report("d3", 0, 1)
    local home = testing.plan(policy, f, { prompt = prompt }).decode
    for i = 1, 3 do
      report("d" .. i, "d" .. i == home and 10 or 0, 1) -- home: 0 + 2 + 3; others: 2 + 2 + 0
    end
    assert.are.equal(home, testing.plan(policy, f, { prompt = prompt }).decode)
    report(home, 10, 0.4) -- 0 + 0.8 + 3 < 4
    assert.are_not.equal(home, testing.plan(policy, f, { prompt = prompt }).decode)
  end)

  it("weighs a queue between min and max by its place", function()
    report("d1", 10, 1) -- 0 + 2
    report("d2", 4, 0.6) -- 1.2 + 1.2
    report("d3", 0, 0.3) -- 2 + 0.6
    assert.are.equal("d3", testing.plan(policy, f, {}).decode)
    report("d2", 4, 0.75) -- 1.2 + 1.5
    assert.are.equal("d2", testing.plan(policy, f, {}).decode)
  end)

  it("takes its own requests where engines report nothing", function()
    f:set("d1", { requests = 3 })
    f:set("d3", { requests = 5 })
    assert.are.equal("d2", testing.plan(policy, f, {}).decode)
  end)
end)
