-- What every shipped policy must do: serve pairs and singles, keep ill pairs apart, survive an empty fleet.
local testing = require "baton.testing"

local prompt = testing.text(400)

local function each_policy(check)
  for _, name in ipairs(testing.names()) do
    check(testing.load(name), name)
  end
end

describe("every shipped policy", function()
  before_each(testing.forget)

  it("serves a pair, a single worker and a fleet of one", function()
    each_policy(function(policy, name)
      local pair = testing.plan(policy, testing.workers { prefill = 3, decode = 2, hybrid = 1 }, { prompt = prompt })
      assert.is_string(pair.prefill, name)
      assert.is_string(pair.decode, name)
      local single = testing.plan(policy, testing.workers { hybrid = 2 }, { prompt = prompt, session = "s" })
      assert.is_string(single.worker, name)
      local one = testing.plan(policy, testing.workers { prefill = 1, decode = 1 }, { tenant = "t" })
      assert.are.same({ "p1", "d1" }, { one.prefill, one.decode }, name)
    end)
  end)

  it("never chooses a worker that has no partner, nor an ill pair", function()
    local workers = testing.workers {
      prefill = { {}, { connector = "ExampleConnector" }, { connector = "NixlPushConnector" } },
      decode = { {}, { connector = "ExampleConnector" } },
    }
    each_policy(function(policy)
      for i = 1, 50 do -- an ill pair would be refused
        local req = { prompt = testing.text(100, i), session = i % 2 == 0 and "s" .. i or nil }
        local plan = testing.plan(policy, workers, req)
        assert.are_not.equal("p3", plan.prefill)
      end
    end)
  end)

  it("answers an empty fleet with an error of its own, not with a crash", function()
    each_policy(function(policy, name)
      local plan, why = policy:plan(testing.workers { prefill = 1 }, { prompt = prompt })
      assert.is_nil(plan, name)
      assert.matches("plan returned", why)
    end)
  end)
end)
