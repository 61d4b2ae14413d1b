local testing = require "baton.testing"

local function prompt(blocks, salt)
  return { prompt = '"' .. (("%08d"):format(salt) .. ("y"):rep(56)):rep(blocks) .. '"' } -- 64 bytes a block
end

describe("dynamo_kv", function()
  local policy, f

  before_each(function()
    testing.forget()
    policy = testing.load("dynamo_kv")
    f = testing.workers { prefill = 2, decode = 2 }
  end)

  it("takes the lowest of prefill blocks - matching blocks + decode blocks", function()
    local home = testing.plan(policy, f, prompt(40, 1)).prefill
    f:set(home, { prefill_tokens = 39 * 16 }) -- 39 - 40 < 0
    assert.are.equal(home, testing.plan(policy, f, prompt(40, 1)).prefill)
    f:set(home, { prefill_tokens = 41 * 16 })
    assert.are_not.equal(home, testing.plan(policy, f, prompt(40, 1)).prefill)
  end)

  it("gives decode no credit", function()
    local first = testing.plan(policy, f, prompt(40, 2))
    f:bear(first.decode, 16, 1)
    assert.are_not.equal(first.decode, testing.plan(policy, f, prompt(40, 2)).decode)
  end)

  it("draws ties", function()
    testing.seed(5)
    local seen = testing.spread(policy, f, 400)
    assert.is_true(seen.prefill.p1 > 150 and seen.prefill.p1 < 250, seen.prefill.p1)
  end)
end)
