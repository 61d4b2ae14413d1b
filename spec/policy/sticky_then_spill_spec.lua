local testing = require "baton.testing"

describe("sticky_then_spill", function()
  local policy, f

  before_each(function()
    testing.seed(7)
    policy = testing.load("sticky_then_spill", { spill_factor = 1.5, spill_requests = 4, spill_waiting = 10 })
    f = testing.workers { prefill = 4, decode = 4 }
  end)

  local function plan(session)
    return testing.plan(policy, f, { session = session })
  end

  it("stays at home while home is only a little busier than the others", function()
    local home = plan "a"
    f:bear(home.prefill, 0, 3)
    f:bear(home.decode, 0, 3)
    assert.are.same(home, plan "a")
  end)

  it("spills to the least loaded, each side for itself, and comes home again", function()
    local home = plan "a"
    f:set(home.prefill, { requests = 12 })
    local least
    for i = 1, 4 do
      local name = "p" .. i
      if name ~= home.prefill then
        f:set(name, { requests = least and 2 or 1 })
        least = least or name
      end
    end
    local spilled = plan "a"
    assert.are.equal(least, spilled.prefill)
    assert.are.equal(home.decode, spilled.decode)
    f:set(home.prefill, { requests = 2 })
    assert.are.same(home, plan "a")
  end)

  it("needs both: more than factor x mean, and so many above the least", function()
    local home = plan "b"
    for i = 1, 4 do
      f:set("p" .. i, { requests = 100 })
    end
    f:set(home.prefill, { requests = 120 }) -- 20 above the least, but below 1.5 x 105
    assert.are.equal(home.prefill, plan("b").prefill)
    f:set(home.prefill, { requests = 200 })
    assert.are_not.equal(home.prefill, plan("b").prefill)
  end)

  it("counts prompts that a lone worker is still at", function()
    f = testing.workers { hybrid = 2 }
    f:set("h1", { prefill_tokens = 5000, requests = 1 })
    f:set("h2", { decode_tokens = 100, requests = 1 })
    assert.are.equal("h2", testing.plan(policy, f).worker) -- neither a session nor a prompt
  end)

  it("spills when the engine says that requests wait", function()
    local home = plan "c"
    f:set(home.prefill, { waiting = 9 })
    assert.are.equal(home.prefill, plan("c").prefill)
    f:set(home.prefill, { waiting = 10, requests = 1 })
    assert.are_not.equal(home.prefill, plan("c").prefill)
  end)

  it("without a session keeps prompts together that begin alike, and sends short ones by load", function()
    local text, seen = testing.text(400), {}
    for i = 1, 20 do
      seen[testing.plan(policy, f, { prompt = text:sub(1, -2) .. i .. '"' }).prefill] = true
    end
    assert.is_nil(next(seen, next(seen)))
    for _, name in ipairs { "p1", "p2", "p4" } do
      f:bear(name, 10, 1)
    end
    assert.are.equal("p3", testing.plan(policy, f, { prompt = '"hi"' }).prefill)
  end)

  it("serves alone where there is no pair", function()
    f = testing.workers { hybrid = 3 }
    local home = plan("d").worker
    f:set(home, { requests = 10 })
    assert.are_not.equal(home, plan("d").worker)
    f:set(home, { requests = 0 })
    assert.are.equal(home, plan("d").worker)
  end)
end)
