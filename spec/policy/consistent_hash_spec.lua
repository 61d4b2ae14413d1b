local testing = require "baton.testing"

local function sessions(i)
  return { session = "session-" .. i }
end

describe("consistent_hash", function()
  it("sends a key to the same workers from every loop", function()
    local a, b = testing.load("consistent_hash"), testing.load("consistent_hash")
    local f = testing.workers { prefill = 8, decode = 8 }
    for i = 1, 100 do
      assert.are.same(testing.plan(a, f, sessions(i)), testing.plan(b, f, sessions(i)))
    end
  end)

  it("moves only the keys of the worker that goes", function()
    local policy, f = testing.load("consistent_hash"), testing.workers { prefill = 10, decode = 10 }
    local before, moved, lost = {}, 0, 0
    for i = 1, 1000 do
      before[i] = testing.plan(policy, f, sessions(i)).prefill
    end
    f:remove("p4")
    for i = 1, 1000 do
      local now = testing.plan(policy, f, sessions(i)).prefill
      moved = moved + (now ~= before[i] and before[i] ~= "p4" and 1 or 0)
      lost = lost + (before[i] == "p4" and 1 or 0)
    end
    assert.are.equal(0, moved)
    assert.is_true(lost > 60 and lost < 150, lost)
  end)

  it("keeps everybody below factor x mean, even for one hot key", function()
    local policy, f = testing.load("consistent_hash"), testing.workers { prefill = 8, decode = 8 }
    local seen = testing.spread(policy, f, 800, function(i)
      return { session = i % 2 == 0 and "hot" or "s" .. i }
    end, function(plan)
      f:bear(plan.prefill, 0, 1)
      f:bear(plan.decode, 0, 1)
    end)
    for side, counts in pairs { prefill = seen.prefill, decode = seen.decode } do
      for name, count in pairs(counts) do
        assert.is_true(count <= math.ceil(1.25 * 100), side .. " " .. name .. " " .. count)
      end
    end
  end)

  it("without a session or tenant keeps prompts together that begin alike", function()
    local policy, f = testing.load("consistent_hash"), testing.workers { prefill = 8, decode = 8 }
    local system, workers, others = testing.text(400), {}, {}
    for i = 1, 20 do
      workers[testing.plan(policy, f, { prompt = system:sub(1, -2) .. i .. '"' }).prefill] = true
      others[testing.plan(policy, f, { prompt = testing.text(400, i) }).prefill] = true
    end
    assert.is_nil(next(workers, next(workers)))
    assert.is_not_nil(next(others, next(others)))
  end)
end)
