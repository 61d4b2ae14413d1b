local testing = require "baton.testing"

describe("tenant_fair", function()
  local policy = testing.load("tenant_fair")

  -- The window is the process's: each spec has tenants and a history of its own, and history only helps the small one.
  it("lets a tenant alone use every worker", function()
    local f = testing.fleet { prefill = 8, decode = 8 }
    local seen = testing.spread(policy, f, 400, function()
      return { tenant = "alone", prompt_tokens = 10 }
    end, function(plan)
      f:bear(plan.prefill, 10, 1)
    end)
    for i = 1, 8 do
      assert.are.equal(50, seen.prefill["p" .. i])
    end
  end)

  it("confines a flood to half of the workers while others are there, who see the free half", function()
    local f = testing.fleet { prefill = 8, decode = 8 }
    local flood, small = {}, {}
    testing.spread(policy, f, 2000, function(i)
      return i % 20 == 0 and { tenant = "small", prompt_tokens = 2000 } or { tenant = "flood", prompt_tokens = 2000 }
    end, function(plan, i)
      if i > 200 and i % 20 ~= 0 then
        flood[plan.prefill] = true
        f:bear(plan.prefill, 1000, 1)
      elseif i > 200 then
        small[plan.prefill] = (small[plan.prefill] or 0) + 1
      end
    end)
    local confined = 0
    for name in pairs(flood) do
      confined = confined + 1
      assert.is_nil(small[name], name)
    end
    assert.are.equal(4, confined)
    assert.is_not_nil(next(small))
  end)
end)
