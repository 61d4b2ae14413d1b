local testing = require "baton.testing"

describe("tenant_fair", function()
  local policy = testing.load("tenant_fair")

  -- The window is the process's: each spec has tenants and a history of its own, and history only helps the small one.
  it("lets a tenant alone use every worker", function()
    local f = testing.workers { prefill = 8, decode = 8 }
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
    local f = testing.workers { prefill = 8, decode = 8 }
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

describe("tenant_fair with limits of the fleet", function()
  local clock, store

  before_each(function()
    clock = testing.clock(60000000)
    store = testing.store()
  end)

  after_each(function()
    clock:stop()
  end)

  it("lets a tenant have so many requests a minute, and each its own", function()
    local policy = testing.load("tenant_fair", { shared = true, requests_per_minute = 2 })
    clock:advance(20000)
    assert.is_true(policy:admit { tenant = "a" })
    assert.is_true(policy:admit { tenant = "a" })
    local refused = policy:admit { tenant = "a" }
    assert.are.equal(429, refused.status)
    assert.are.equal(40, refused.retry_after)
    assert.are.equal("this tenant has used its requests of this minute", refused.reason)
    assert.is_true(policy:admit { tenant = "b" })
    assert.is_true(policy:admit {})
    clock:advance(40000)
    assert.is_true(policy:admit { tenant = "a" })
  end)

  it("takes the most that a request may cost, and gives back what it did not", function()
    local policy = testing.load("tenant_fair", { shared = true, tokens_per_minute = 1000, answer_tokens = 100 })
    local function take(req)
      local answer = policy:admit(req)
      return answer, policy:kept(req)
    end
    local _, kept = take { tenant = "a", prompt_tokens = 100, max_tokens = 200, n = 2 }
    assert.are.equal(500, store:taken "tokens/a")
    local _, other = take { tenant = "a", prompt_tokens = 300 }
    assert.are.equal(900, store:taken "tokens/a")
    assert.are.equal(429, (take { tenant = "a", prompt_tokens = 1 }).status)
    local function ends(event)
      event.tenant = "a"
      assert(policy:observe { event })
    end
    ends { kept = kept, decode = 2, prompt_tokens = 100, output_tokens = 50 }
    assert.are.equal(550, store:taken "tokens/a")
    ends { kind = "failed", kept = other } -- nobody has worked on it
    assert.are.equal(150, store:taken "tokens/a")
    local _, third = take { tenant = "a", prompt_tokens = 10, max_tokens = 20 }
    ends { kept = third, decode = 2, prompt_tokens = 10, output_tokens = 60 } -- more than it had asked for
    assert.are.equal(220, store:taken "tokens/a")
    local _, silent = take { tenant = "a", prompt_tokens = 10, max_tokens = 20 }
    ends { kept = silent, decode = 2, prompt_tokens = 10 } -- the worker does not say
    assert.are.equal(250, store:taken "tokens/a")
  end)

  it("forgets a refund whose minute is over", function()
    local policy = testing.load("tenant_fair", { shared = true, tokens_per_minute = 1000 })
    local req = { tenant = "a", prompt_tokens = 100, max_tokens = 100 }
    assert.is_true(policy:admit(req))
    clock:advance(60000)
    assert.is_true(policy:admit { tenant = "a", prompt_tokens = 300, max_tokens = 100 })
    local event = { tenant = "a", kept = policy:kept(req), decode = 2, prompt_tokens = 100, output_tokens = 1 }
    assert(policy:observe { event })
    assert.are.equal(400, store:taken "tokens/a")
  end)

  it("gives the request back that it does not let in for its tokens", function()
    local policy = testing.load("tenant_fair", { shared = true, requests_per_minute = 5, tokens_per_minute = 100 })
    assert.is_true(policy:admit { tenant = "a", prompt_tokens = 90, max_tokens = 5 })
    local refused = policy:admit { tenant = "a", prompt_tokens = 6 }
    assert.are.equal("this tenant has used its tokens of this minute", refused.reason)
    assert.are.equal(1, store:taken "requests/a")
  end)

  it("lets one that is larger than the limit have all of it", function()
    local policy = testing.load("tenant_fair", { shared = true, tokens_per_minute = 100 })
    assert.is_true(policy:admit { tenant = "a", prompt_tokens = 5000 })
    assert.are.equal(100, store:taken "tokens/a")
  end)

  it("lets in when the limit cannot be told, and asks nothing where it is not shared", function()
    local policy = testing.load("tenant_fair", { shared = true, requests_per_minute = 1, tokens_per_minute = 1 })
    store:fail("store_unavailable")
    assert.is_true(policy:admit { tenant = "a" })
    assert.is_true(policy:admit { tenant = "a" })
    store = testing.store()
    assert.is_true(testing.load("tenant_fair"):admit { tenant = "a" })
    assert.are.equal(0, #store.calls)
  end)
end)
