local testing = require "baton.testing"

local function prompt(blocks, salt)
  local text = (("%08d"):format(salt) .. ("y"):rep(248)):rep(blocks) -- 256 bytes a block of 64 tokens
  return { prompt = '"' .. text .. '"', prompt_tokens = blocks * 64 }
end

describe("mooncake_conductor", function()
  local policy, f

  before_each(function()
    testing.forget()
    testing.seed(7)
    policy = testing.load("mooncake_conductor", { ttft_ms = 1000, token_ms = 0.1, overhead_ms = 10 })
    f = testing.workers { prefill = 2, decode = 2 }
  end)

  local function plan(req)
    return testing.plan(policy, f, req)
  end

  it("weighs a prefix by the time that it saves", function()
    local home = plan(prompt(40, 1)).prefill -- 2,559 of 2,560 tokens
    local other = home == "p1" and "p2" or "p1"
    f:set(home, { prefill_tokens = 2558 })
    assert.are.equal(home, plan(prompt(40, 1)).prefill)
    f:set(home, { prefill_tokens = 2600 })
    assert.are.equal(other, plan(prompt(40, 1)).prefill)
  end)

  it("lets the fewest tokens decode", function()
    f:set("d1", { decode_tokens = 1 })
    assert.are.equal("d2", plan(prompt(4, 1)).decode)
  end)

  it("refuses early what would be late, at either side", function()
    f:set("p1", { prefill_tokens = 9900 })
    f:set("p2", { prefill_tokens = 9900 }) -- 990 + 10 ms before its own
    assert.has_error(function() plan(prompt(4, 1)) end, "it returned nil")
    f:set("p2", { prefill_tokens = 9000 })
    assert.are.equal("p2", plan(prompt(4, 1)).prefill)
    f:set("d1", { tpot_ema_ms = 101 })
    f:set("d2", { tpot_ema_ms = 101 })
    assert.has_error(function() plan(prompt(4, 2)) end, "it returned nil")
  end)
end)
