local testing = require "baton.testing"

local PRICES = { "small=1/2", "big=10/30/2.5", "*=5/5" }

describe("budget", function()
  local clock, store

  before_each(function()
    clock = testing.clock(60000000)
    store = testing.store()
  end)

  after_each(function()
    clock:stop()
  end)

  local function load(more)
    local p = { prices = PRICES }
    for key, value in pairs(more) do
      p[key] = value
    end
    return testing.load("budget", p)
  end

  local function request(model, prompt, max_tokens, tenant)
    return { model = model, tenant = tenant or "a", prompt_tokens = prompt, max_tokens = max_tokens }
  end

  -- Money of today, in millionths.
  local function today(tenant)
    return store:taken("day/" .. (tenant or "a"), 86400000)
  end

  it("takes what a request may cost, and gives back what it did not", function()
    local policy = load { day = 1 }
    local req = request("small", 1000, 500)
    assert.is_true(policy:admit(req))
    assert.equal(2000, today())
    assert(policy:observe { { model = "small", tenant = "a", kept = policy:kept(req), decode = 2, prompt_tokens = 1000,
      output_tokens = 10 } })
    assert.equal(1020, today())
  end)

  it("charges what was used beyond, cached tokens at their price, and models by their own", function()
    local policy = load { day = 1 }
    local req = request("big", 1000, 10)
    assert.is_true(policy:admit(req))
    assert.equal(10300, today())
    assert(policy:observe { { model = "big", tenant = "a", kept = policy:kept(req), decode = 2, prompt_tokens = 1000,
      cached_tokens = 800, output_tokens = 100 } })
    assert.equal(200 * 10 + 800 * 2.5 + 100 * 30, today())
    assert.is_true(policy:admit(request("unheard-of", 10, 10)))
    assert.equal(7000 + 100, today())
  end)

  it("refuses until the day is over", function()
    local policy = load { day = 0.002 }
    assert.is_true(policy:admit(request("small", 1000, 450)))
    local refused = policy:admit(request("small", 1000, 1))
    assert.equal(429, refused.status)
    assert.equal("this tenant has spent its budget of this day", refused.reason)
    assert.equal(86400 - 60000, refused.retry_after)
    assert.is_true(policy:admit(request("small", 1000, 1, "b")))
    clock:advance(26400000)
    assert.is_true(policy:admit(request("small", 1000, 1)))
  end)

  it("refuses until the month is over, and gives the day back", function()
    local policy = load { day = 1, month = 0.003 }
    local req = request("small", 1000, 500)
    assert.is_true(policy:admit(req))
    assert.equal("2000", store:get("month/1970-01/a"))
    local refused = policy:admit(request("small", 1000, 500))
    assert.equal("this tenant has spent its budget of this month", refused.reason)
    assert.same({ "2000", 2000 }, { store:get("month/1970-01/a"), today() })
    assert(policy:observe { { model = "small", tenant = "a", kept = policy:kept(req), decode = 2, prompt_tokens = 1000,
      output_tokens = 0 } })
    assert.same({ "1000", 1000 }, { store:get("month/1970-01/a"), today() })
    assert.is_true(policy:admit(request("small", 1000, 500)))
    clock:advance(31 * 86400000)
    assert.is_true(policy:admit(request("small", 1000, 500)))
    assert.equal("2000", store:get("month/1970-02/a"))
  end)

  it("knows the months, leap years too", function()
    local policy = load { month = 1 }
    local wanted = { [58] = "1970-02", [59] = "1970-03", [364] = "1970-12", [365] = "1971-01", [11016] = "2000-02",
      [11017] = "2000-03", [20784] = "2026-11", [20788] = "2026-12" }
    local at = 0
    local days = {}
    for day in pairs(wanted) do
      days[#days + 1] = day
    end
    table.sort(days)
    for _, day in ipairs(days) do
      clock:advance((day - at) * 86400000)
      at = day
      assert.is_true(policy:admit(request("small", 1, 0)))
      assert.is_not_nil(store:get("month/" .. wanted[day] .. "/a"), wanted[day])
    end
  end)

  it("gives all back where nobody has worked, and charges parts of a split request", function()
    local policy = load { day = 1, month = 1 }
    local req = request("small", 100, 100)
    assert.is_true(policy:admit(req))
    assert(policy:observe { { kind = "failed", model = "small", tenant = "a", kept = policy:kept(req) } })
    assert.same({ "0", 0 }, { store:get("month/1970-01/a"), today() })
    req = request("small", 100, 100)
    assert.is_true(policy:admit(req))
    local part = { model = "small", tenant = "a", decode = 2, prompt_tokens = 50, output_tokens = 5 }
    local first = { kept = policy:kept(req) }
    for key, value in pairs(part) do
      first[key] = value
    end
    assert(policy:observe { first, part })
    assert.same({ "120", 120 }, { store:get("month/1970-01/a"), today() })
  end)

  it("has budgets of single tenants, and none where none is set", function()
    local policy = load { day = 0.001, tenants = { "rich=1/0", "free=0/0" } }
    assert.is_true(policy:admit(request("small", 1000, 1)))
    assert.equal(429, policy:admit(request("small", 1000, 1)).status)
    for _ = 1, 5 do
      assert.is_true(policy:admit(request("small", 1000, 1, "rich")))
      assert.is_true(policy:admit(request("small", 100000, 1, "free")))
    end
    assert.equal(5 * 1002, today("rich"))
    assert.equal(0, today("free") or 0)
  end)

  it("refuses a model without a price", function()
    local policy = testing.load("budget", { prices = { "small=1/2", "a=b=3/4" }, day = 1 })
    assert.equal(403, policy:admit(request("other", 1, 1)).status)
    assert.is_true(policy:admit(request("a=b", 1, 1)))
  end)

  it("lets in when the store is away", function()
    local policy = load { day = 0.000001, month = 0.000001 }
    store:fail("store_unavailable")
    assert.is_true(policy:admit(request("big", 1000, 1)))
  end)

  it("says what is wrong with a price or a budget", function()
    for text, said in pairs({
      ["small"] = "prices[1]: expected NAME=INPUT/OUTPUT[/CACHED], got small",
      ["small=1"] = "prices[1]: expected",
      ["small=1/x"] = "prices[1]: expected",
      ["small=1/-2"] = "prices[1]: expected",
      ["=1/2"] = "prices[1]: expected",
      ["small=1/2/3/4"] = "prices[1]: expected",
    }) do
      local ok, why = pcall(testing.load, "budget", { prices = { text } })
      assert.is_false(ok, text)
      assert.truthy(tostring(why):find(said, 1, true), tostring(why))
    end
    local ok, why = pcall(testing.load, "budget", { tenants = { "a=1" } })
    assert.is_false(ok)
    assert.truthy(tostring(why):find("tenants[1]: expected NAME=DAY/MONTH", 1, true), tostring(why))
  end)
end)
