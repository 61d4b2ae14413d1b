-- luacheck: std luajit+busted
-- The part of `baton` that the policy uses, on plain tables.
local fake = {
  pairable = function(list)
    return list
  end,
  compatible = function(list)
    return list
  end,
  argmin = function(list, field)
    local best
    for _, worker in ipairs(list) do
      if not best or worker[field] < best[field] then
        best = worker
      end
    end
    return best
  end,
}

local function load_policy()
  local chunk = assert(loadfile("examples/custom_policy/same_zone.lua"))
  return setfenv(chunk, { baton = fake, ipairs = ipairs })()
end

local function worker(name, zone, tokens)
  return { name = name, zone = zone, prefill_tokens = tokens, decode_tokens = tokens }
end

describe("same_zone", function()
  local policy = load_policy()

  it("prefers a decode worker of prefill's zone", function()
    local view = {
      prefill = { worker("p0", "east", 9), worker("p1", "west", 1) },
      decode = { worker("d0", "east", 0), worker("d1", "west", 50), worker("d2", "west", 40) },
    }
    local plan = policy.plan({}, view, {})
    assert.equal("p1", plan.prefill.name)
    assert.equal("d2", plan.decode.name)
  end)

  it("takes any decode worker when the zone has none", function()
    local view = {
      prefill = { worker("p0", "north", 1) },
      decode = { worker("d0", "east", 7), worker("d1", "west", 3) },
    }
    assert.equal("d1", policy.plan({}, view, {}).decode.name)
  end)
end)
