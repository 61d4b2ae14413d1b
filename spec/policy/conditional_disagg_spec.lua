local testing = require "baton.testing"

local function prompt(blocks, salt)
  local text = (("%08d"):format(salt) .. ("y"):rep(248)):rep(blocks) -- 256 bytes a block of 64 tokens
  return { prompt = '"' .. text .. '"', prompt_tokens = blocks * 64 }
end

local function tokens(n)
  return { prompt_tokens = n }
end

describe("conditional_disagg", function()
  local policy, f

  before_each(function()
    testing.forget()
    testing.seed(7)
    policy = testing.load("conditional_disagg", { prefill_limit = 10000 })
    f = testing.workers { prefill = 2, decode = 2 }
  end)

  local function plan(req)
    return testing.plan(policy, f, req)
  end

  it("computes short prompts on the least loaded decode worker, long ones by two", function()
    f:set("d1", { decode_tokens = 100 })
    assert.are.equal("d2", plan(tokens(511)).worker)
    assert.is_string(plan(tokens(512)).prefill)
  end)

  it("counts only what decode has not had: llm-d's bound, then Dynamo's", function()
    local first = plan(prompt(40, 1)) -- 2,560 tokens
    assert.is_string(first.prefill)
    assert.are.equal(first.decode, plan(prompt(40, 1)).worker)
    local longer = prompt(40, 1)
    longer.prompt_tokens = 40 * 64 + 1700 -- 1,700 new ones of 4,260
    assert.are.equal(first.decode, plan(longer).worker)
    longer.prompt_tokens = 40 * 64 + 2048
    assert.is_string(plan(longer).prefill)
  end)

  it("asks for a real share of the prompt to be there", function()
    local first = plan(prompt(8, 2)) -- 512 tokens
    local longer = prompt(8, 2)
    longer.prompt_tokens = 512 + 1100 -- 68 % are new
    assert.are.equal(first.decode, plan(longer).worker)
    longer.prompt_tokens = 512 + 1300 -- 72 %
    assert.is_string(plan(longer).prefill)
  end)

  it("relieves prefill only while each of them is over its limit", function()
    f:set("p1", { prefill_tokens = 10001 })
    assert.are.equal("p2", plan(tokens(5000)).prefill)
    f:set("p2", { prefill_tokens = 10001 })
    assert.is_string(plan(tokens(5000)).worker)
  end)

  it("spares a decode worker whose cache is full", function()
    f:set("d1", { kv_free = 0.05 })
    for _ = 1, 20 do
      assert.are.equal("d2", plan(tokens(10)).worker)
    end
    f:set("d2", { kv_free = 0.05 })
    assert.is_string(plan(tokens(10)).prefill)
  end)

  it("never asks a decode worker that cannot", function()
    f = testing.workers { prefill = { { connector = "sglang" } }, decode = { { connector = "sglang" } } }
    assert.are.same({ "p1", "d1" }, { plan(tokens(10)).prefill, plan(tokens(10)).decode })
  end)

  it("uses hybrids where there is no pair", function()
    f = testing.workers { hybrid = 2 }
    f:set("h1", { decode_tokens = 9 })
    assert.are.equal("h2", plan(tokens(5000)).worker)
  end)
end)
