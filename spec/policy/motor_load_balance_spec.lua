local testing = require "baton.testing"

describe("motor_load_balance", function()
  local policy = testing.load("motor_load_balance")

  it("weighs a prefill request like 120.0745 / 0.0345 = 3,480 tokens", function()
    local f = testing.workers { prefill = 2, decode = 2 }
    f:set("p1", { prefill_tokens = 3480, requests = 0 })
    f:set("p2", { prefill_tokens = 0, requests = 1 })
    assert.are.equal("p1", testing.plan(policy, f).prefill) -- 120.06 against 120.07
    f:set("p1", { prefill_tokens = 3481, requests = 0 })
    assert.are.equal("p2", testing.plan(policy, f).prefill) -- 120.09 against 120.07
  end)

  it("counts only tokens on decode", function()
    local f = testing.workers { prefill = 1, decode = 2 }
    f:set("d1", { decode_tokens = 100, requests = 1 })
    f:set("d2", { decode_tokens = 99, requests = 500 })
    assert.are.equal("d2", testing.plan(policy, f).decode)
  end)

  it("counts prompts that a lone worker is still at", function()
    local f = testing.workers { hybrid = 2 }
    f:set("h1", { prefill_tokens = 5000, requests = 1 })
    f:set("h2", { decode_tokens = 100, requests = 1 })
    assert.are.equal("h2", testing.plan(policy, f).worker)
  end)

  it("adds 0.05 of the instance's mean to an endpoint", function()
    local f = testing.workers {
      prefill = 1,
      decode = {
        { labels = "instance=a" },
        { labels = "instance=a" },
        { labels = "instance=b" },
        { labels = "instance=b" },
      },
    }
    f:set("d1", { decode_tokens = 1000 }) -- 1000 + 0.05 x 3000 = 1150
    f:set("d2", { decode_tokens = 5000 })
    f:set("d3", { decode_tokens = 1090 }) -- 1090 + 0.05 x 1095 = 1144.75
    f:set("d4", { decode_tokens = 1100 })
    assert.are.equal("d3", testing.plan(policy, f).decode)
    f:set("d2", { decode_tokens = 4000 }) -- d1: 1000 + 0.05 x 2500 = 1125
    assert.are.equal("d1", testing.plan(policy, f).decode)
  end)
end)
