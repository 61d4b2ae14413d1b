local testing = require "baton.testing"

local function prompt(blocks, salt, more)
  local text = (("%08d"):format(salt) .. ("y"):rep(248)):rep(blocks) -- 256 bytes a block of 64 tokens
  return { prompt = '"' .. text .. '"', prompt_tokens = blocks * 64 + (more or 0) }
end

describe("ppd", function()
  local policy, f

  before_each(function()
    testing.forget()
    testing.seed(7)
    policy = testing.load("ppd")
    f = testing.workers { prefill = 2, decode = 2 }
  end)

  local function plan(req)
    return testing.plan(policy, f, req)
  end

  it("computes a first turn by two, the next ones where the answers are", function()
    local first = plan(prompt(100, 1))
    assert.is_string(first.prefill)
    f:set(first.decode, { decode_tokens = 7000 })
    assert.are.equal(first.decode, plan(prompt(100, 1, 500)).worker)
    assert.is_string(plan(prompt(100, 2)).prefill)
  end)

  it("goes by two again where too much is new, or many wait", function()
    f = testing.workers { prefill = 2, decode = 1 }
    local first = plan(prompt(100, 1))
    assert.is_string(plan(prompt(100, 1, 4097)).prefill)
    assert.is_string(plan(prompt(10, 1, 700)).prefill) -- most of it
    f:set(first.decode, { waiting = 5 })
    assert.is_string(plan(prompt(100, 1, 500)).prefill)
  end)

  it("spares a full cache", function()
    local first = plan(prompt(100, 1))
    f:set(first.decode, { kv_free = 0.05 })
    assert.is_string(plan(prompt(100, 1, 500)).prefill)
  end)
end)
