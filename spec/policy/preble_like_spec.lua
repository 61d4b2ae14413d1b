local testing = require "baton.testing"

local function prompt(blocks, salt, more)
  local text = (("%08d"):format(salt) .. ("y"):rep(248)):rep(blocks) -- 256 bytes a block of 64 tokens
  return { prompt = '"' .. text .. '"', prompt_tokens = blocks * 64 + (more or 0) }
end

describe("preble_like", function()
  local policy, f

  before_each(function()
    testing.forget()
    testing.seed(7)
    policy = testing.load("preble_like")
    f = testing.workers { prefill = 2, decode = 2 }
  end)

  local function plan(req)
    return testing.plan(policy, f, req)
  end

  it("exploits what is mostly cached, explores what is mostly new", function()
    local home = plan(prompt(40, 1)).prefill
    local other = home == "p1" and "p2" or "p1"
    assert.are.equal(home, plan(prompt(40, 1, 2000)).prefill)
    assert.are.equal(other, plan(prompt(40, 1, 20000)).prefill)
  end)

  it("remembers for three minutes what it has given", function()
    local clock = testing.clock()
    local home = plan(prompt(40, 1)).prefill
    local other = home == "p1" and "p2" or "p1"
    assert.are.equal(other, plan(prompt(40, 2)).prefill)
    assert.are.equal(other, plan(prompt(20, 2, 0)).prefill) -- its beginning
    assert.are.equal(home, plan(prompt(10, 3)).prefill)
    clock:stop()
  end)

  it("leaves the cached one when it has twice the load of the least", function()
    local home = plan(prompt(40, 1)).prefill
    f:set(home, { prefill_tokens = 2500 })
    assert.are.equal(home, plan(prompt(40, 1)).prefill)
    f:set(home, { prefill_tokens = 2700 })
    assert.are_not.equal(home, plan(prompt(40, 1)).prefill)
  end)

  it("lets the fewest tokens decode", function()
    f:set("d1", { decode_tokens = 1 })
    assert.are.equal("d2", plan(prompt(4, 1)).decode)
  end)
end)
