local testing = require "baton.testing"

-- 100 blocks of 64 bytes, of which the first `same` are those of prompt 0.
local function prompt(same, salt)
  local parts = {}
  for i = 1, 100 do
    parts[i] = ("%04d-%06d-"):format(i, i <= same and 0 or salt) .. ("x"):rep(52)
  end
  return { prompt = '"' .. table.concat(parts) .. '"' }
end

describe("sglang_cache_aware", function()
  local policy, f

  before_each(function()
    testing.forget()
    policy = testing.load("sglang_cache_aware", { block_tokens = 16 })
    f = testing.workers { prefill = 4, decode = 1 }
  end)

  it("follows a prefix that matches more than 0.3", function()
    local home = testing.plan(policy, f, prompt(0, 0)).prefill
    for i = 1, 20 do
      assert.are.equal(home, testing.plan(policy, f, prompt(31, i)).prefill)
    end
  end)

  it("does not follow exactly 0.3: the smallest tree gets it", function()
    local seen = {}
    seen[testing.plan(policy, f, prompt(0, 0)).prefill] = true
    for i = 1, 3 do
      local worker = testing.plan(policy, f, prompt(30, i)).prefill
      assert.is_nil(seen[worker])
      seen[worker] = true
    end
  end)

  it("ignores a difference of 64, and one of 65 sends to the least loaded", function()
    local home = testing.plan(policy, f, prompt(0, 0)).prefill
    f:set(home, { requests = 64 })
    assert.are.equal(home, testing.plan(policy, f, prompt(100, 0)).prefill)
    f:set(home, { requests = 65 })
    assert.are_not.equal(home, testing.plan(policy, f, prompt(100, 0)).prefill)
  end)

  it("ignores a ratio of 1.5, and a greater one sends to the least loaded", function()
    local home = testing.plan(policy, f, prompt(0, 0)).prefill
    for i = 1, 4 do
      f:set("p" .. i, { requests = 200 })
    end
    f:set(home, { requests = 300 })
    assert.are.equal(home, testing.plan(policy, f, prompt(100, 0)).prefill)
    f:set(home, { requests = 301 })
    assert.are_not.equal(home, testing.plan(policy, f, prompt(100, 0)).prefill)
  end)

  it("gives a new prompt to the least loaded, if asked to", function()
    local params = { on_miss = "least_load", cache_threshold = 0.9, block_tokens = 16 }
    local other = testing.load("sglang_cache_aware", params)
    local home = testing.plan(other, f, prompt(0, 0)).prefill
    f:set(home, { requests = 1 })
    assert.are_not.equal(home, testing.plan(other, f, prompt(80, 1)).prefill)
    assert.are.equal(home, testing.plan(other, f, prompt(95, 2)).prefill)
  end)

  it("compares blocks of 64 tokens unless told, and so sees prompts of 65,536", function()
    local other = testing.load("sglang_cache_aware", { cache_threshold = 0.9 })
    local function text(salt)
      return prompt(0, salt).prompt:sub(2, -2)
    end
    local function long(same, salt) -- 40,000 tokens, of which 1,600 times `same` are those of long(25)
      return { prompt = '"' .. text(0):rep(same) .. text(salt):rep(25 - same) .. '"' }
    end
    local home = testing.plan(other, f, long(25, 0)).prefill
    assert.are.equal(home, testing.plan(other, f, long(24, 1)).prefill)
    assert.are_not.equal(home, testing.plan(other, f, long(20, 2)).prefill) -- though its first 16,384 are the same
  end)

  it("spreads new prompts by the size of the trees", function()
    local seen = testing.spread(policy, f, 40, function(i)
      return prompt(0, i)
    end)
    assert.are.same({ p1 = 10, p2 = 10, p3 = 10, p4 = 10 }, seen.prefill)
  end)
end)
