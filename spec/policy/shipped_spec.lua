-- What every shipped policy must do: serve pairs and singles, keep ill pairs apart, survive an empty fleet.
local testing = require "baton.testing"

local prompt = testing.text(400)

-- As a prompt that is worth two workers.
local function long(req)
  req = req or { prompt = prompt }
  req.prompt_tokens = 8192
  return req
end

local function each_policy(check)
  for _, name in ipairs(testing.names()) do
    check(testing.load(name), name)
  end
end

describe("every shipped policy", function()
  before_each(testing.forget)

  it("serves a pair, a single worker and a fleet of one", function()
    each_policy(function(policy, name)
      local pair = testing.plan(policy, testing.workers { prefill = 3, decode = 2, hybrid = 1 }, long())
      assert.is_string(pair.prefill, name)
      assert.is_string(pair.decode, name)
      local single = testing.plan(policy, testing.workers { hybrid = 2 }, { prompt = prompt, session = "s" })
      assert.is_string(single.worker, name)
      local one = testing.plan(policy, testing.workers { prefill = 1, decode = 1 }, long { tenant = "t" })
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
        local req = long { prompt = testing.text(100, i), session = i % 2 == 0 and "s" .. i or nil }
        local plan = testing.plan(policy, workers, req)
        assert.are_not.equal("p3", plan.prefill)
      end
    end)
  end)

  it("answers an empty fleet with nobody or an error of its own, not with a crash", function()
    each_policy(function(policy, name)
      local plan, why = policy:plan(testing.workers { prefill = 1 }, { prompt = prompt })
      assert.is_nil(plan, name)
      assert.matches(" returned ", why)
    end)
  end)
end)

describe("a worker that does both", function()
  for _, name in ipairs { "power_of_two", "least_load", "conditional_disagg", "length_buckets", "session_affinity",
    "tenant_fair" } do
    it("has the prompts that it is still at as load: " .. name, function()
      local policy = testing.load(name)
      local workers = testing.workers { hybrid = 2 }
      workers:set("h1", { prefill_tokens = 1000 })
      workers:set("h2", { decode_tokens = 10 })
      for _ = 1, 20 do
        assert.equal("h2", testing.plan(policy, workers, { prompt = prompt }).worker)
      end
    end)
  end
end)
