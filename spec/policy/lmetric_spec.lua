local testing = require "baton.testing"

local function prompt(blocks, salt)
  local text = (("%08d"):format(salt) .. ("y"):rep(248)):rep(blocks) -- 256 bytes a block of 64 tokens
  return { prompt = '"' .. text .. '"', prompt_tokens = blocks * 64 }
end

describe("lmetric", function()
  local policy, f

  before_each(function()
    testing.forget()
    testing.seed(7)
    policy = testing.load("lmetric")
    f = testing.workers { prefill = 2, decode = 2 }
  end)

  it("lets a match outweigh a batch until the products meet", function()
    local home = testing.plan(policy, f, prompt(10, 1)).prefill
    local other = home == "p1" and "p2" or "p1"
    -- The other: 640 new tokens x 1. Home: (63 + 1) x 9 = 576, then (63 + 1) x 11 = 704.
    f:set(home, { prefill_tokens = 63, requests = 8 })
    assert.are.equal(home, testing.plan(policy, f, prompt(10, 1)).prefill)
    f:set(home, { prefill_tokens = 63, requests = 10 })
    assert.are.equal(other, testing.plan(policy, f, prompt(10, 1)).prefill)
  end)

  it("does not let a prompt that is cached whole hide a worker's queue", function()
    local home = testing.plan(policy, f, prompt(10, 2)).prefill
    f:set(home, { prefill_tokens = 1000, requests = 0 })
    assert.are_not.equal(home, testing.plan(policy, f, prompt(10, 2)).prefill)
  end)

  it("gives decode the smallest batch, and no credit for a prefix", function()
    local first = testing.plan(policy, f, prompt(10, 3))
    f:set(first.decode, { requests = 1 })
    assert.are_not.equal(first.decode, testing.plan(policy, f, prompt(10, 3)).decode)
  end)

  it("serves alone by the same product", function()
    f = testing.workers { hybrid = 2 }
    local home = testing.plan(policy, f, prompt(10, 4)).worker
    assert.are.equal(home, testing.plan(policy, f, prompt(10, 4)).worker)
    f:set(home, { prefill_tokens = 6400, requests = 1 })
    assert.are_not.equal(home, testing.plan(policy, f, prompt(10, 4)).worker)
  end)

  it("draws ties", function()
    f = testing.workers { prefill = 4, decode = 2 }
    local seen = testing.spread(policy, f, 800)
    for name, count in pairs(seen.prefill) do
      assert.is_true(count > 140 and count < 260, name .. " " .. count)
    end
  end)
end)
