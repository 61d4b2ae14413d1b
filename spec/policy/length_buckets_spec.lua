local testing = require "baton.testing"

local function tokens(n)
  return { prompt_tokens = n }
end

describe("length_buckets", function()
  local policy = testing.load("length_buckets")

  it("sends prompts to the bucket of their length", function()
    local f = testing.workers {
      prefill = { { labels = "bucket=short" }, { labels = "bucket=medium" }, { labels = "bucket=long" } },
      decode = { { labels = "bucket=short" }, { labels = "bucket=long" } },
    }
    local expect = { [1] = "p1 d1", [1024] = "p1 d1", [1025] = "p2 d2", [8192] = "p2 d2", [8193] = "p3 d2" }
    for n, expected in pairs(expect) do
      local plan = testing.plan(policy, f, tokens(n))
      assert.are.equal(expected, plan.prefill .. " " .. plan.decode, n)
    end
  end)

  it("takes the least loaded of a bucket, not of the fleet", function()
    local f = testing.workers { prefill = { { labels = "bucket=long" }, { labels = "bucket=long" }, {} }, decode = 1 }
    f:bear("p1", 50000, 3)
    f:bear("p2", 40000, 3)
    assert.are.equal("p2", testing.plan(policy, f, tokens(9000)).prefill)
  end)

  it("goes to longer buckets first, then to workers without a label, then to shorter ones", function()
    local f = testing.workers { hybrid = { { labels = "bucket=medium" }, { labels = "bucket=short" }, {} } }
    assert.are.equal("h2", testing.plan(policy, f, tokens(10)).worker)
    f:remove("h2")
    assert.are.equal("h1", testing.plan(policy, f, tokens(10)).worker)
    assert.are.equal("h3", testing.plan(policy, f, tokens(9000)).worker)
    f:remove("h3")
    assert.are.equal("h1", testing.plan(policy, f, tokens(9000)).worker)
  end)
end)
