-- luacheck: std luajit+busted
-- baton policy test examples/custom_policy/spread_decode_spec.lua; pending without the real native functions.
local has_testing, testing = pcall(require, "baton.testing")
local path = (debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "spread_decode.lua"

describe("spread_decode", function()
  if not has_testing then
    pending("needs baton policy test")
    return
  end

  local function decodes(workers, policies, times)
    local seen = {}
    for i = 1, times do
      seen[i] = testing.plan(policies[i % #policies + 1], workers).decode
    end
    return seen
  end

  it("takes the most free KV of all but the last", function()
    local workers = testing.workers { prefill = 1, decode = 4 }
    for name, free in pairs { d1 = 0.2, d2 = 0.9, d3 = 0.1, d4 = 0.8 } do
      workers:set(name, { kv_free = free })
    end
    local seen = decodes(workers, { testing.load(path) }, 100)
    for i = 2, #seen do -- from the second on; the first depends on where the counter stood
      assert.are.equal(seen[i - 1] == "d2" and "d4" or "d2", seen[i])
    end
  end)

  it("takes the prefill worker with the most free KV, or the least work where that is equal", function()
    local workers, policy = testing.workers { prefill = 3, decode = 2 }, testing.load(path)
    for name, free in pairs { p1 = 0.2, p2 = 0.9, p3 = 0.4 } do
      workers:set(name, { kv_free = free, prefill_tokens = free * 1000 })
    end
    assert.are.equal("p2", testing.plan(policy, workers).prefill)
    workers:set("p3", { kv_free = 0.9, prefill_tokens = 10 })
    assert.are.equal("p3", testing.plan(policy, workers).prefill)
  end)

  it("never takes one twice in a row, whichever event thread plans", function()
    local workers = testing.workers { prefill = 2, decode = 5 }
    local seen = decodes(workers, { testing.load(path), testing.load(path), testing.load(path) }, 500)
    for i = 2, #seen do
      assert.are_not.equal(seen[i - 1], seen[i])
    end
  end)

  it("serves with one decode worker, and single workers", function()
    local policy = testing.load(path)
    assert.are.same({ "d1", "d1" }, decodes(testing.workers { prefill = 1, decode = 1 }, { policy }, 2))
    assert.are.equal("h1", testing.plan(policy, testing.workers { hybrid = 1 }).worker)
  end)
end)
