local testing = require "baton.testing"

local function prompt(blocks, salt, more)
  local text = (("%08d"):format(salt) .. ("y"):rep(248)):rep(blocks) -- 256 bytes a block of 64 tokens
  return { prompt = '"' .. text .. '"', prompt_tokens = blocks * 64 + (more or 0) }
end

describe("baton_kv", function()
  local policy, f

  local function load_with(params)
    testing.forget()
    testing.seed(7)
    policy = testing.load("baton_kv", params)
    f = testing.workers { prefill = 2, decode = 2 }
  end

  before_each(function()
    load_with { alone_tokens = 0 }
  end)

  local function plan(req)
    return testing.plan(policy, f, req)
  end

  it("keeps to a prefix until its queue is as long as eight times what it saves", function()
    local home = plan(prompt(40, 1)).prefill -- 2,560 tokens, 8 x 2,559 saved
    local other = home == "p1" and "p2" or "p1"
    f:set(home, { prefill_tokens = 20000 })
    assert.are.equal(home, plan(prompt(40, 1)).prefill)
    assert.are.equal(home, plan(prompt(40, 1)).prefill)
    -- Its last prompts were cached: by what it had to compute of them, this queue is 64 % as long as it seems.
    f:set(home, { prefill_tokens = 60000 })
    assert.are.equal(other, plan(prompt(40, 1)).prefill)
  end)

  it("lets a beginning that all prompts share draw nobody", function()
    local head = ("h"):rep(256 * 3) -- three blocks of forty
    local function least_of_twenty()
      local seen = { p1 = 0, p2 = 0 }
      for i = 1, 20 do
        local rest = (("%08d"):format(i) .. ("y"):rep(248)):rep(37)
        local prefill = plan({ prompt = '"' .. head .. rest .. '"', prompt_tokens = 40 * 64 }).prefill
        seen[prefill] = seen[prefill] + 1
      end
      return math.min(seen.p1, seen.p2)
    end
    assert.is_true(least_of_twenty() > 2)
    load_with { alone_tokens = 0, min_share = 0 }
    assert.are.equal(0, least_of_twenty())
  end)

  it("takes a queue of cached prompts for what of it is to be computed", function()
    local home = plan(prompt(40, 1)).prefill
    for _ = 1, 20 do
      assert.are.equal(home, plan(prompt(40, 1)).prefill)
    end
    f:set(home, { prefill_tokens = 100000 }) -- some 1,000 new ones
    assert.are.equal(home, plan(prompt(40, 1)).prefill)
  end)

  it("sends a burst to all decode workers, before any of them counts it", function()
    local seen = { d1 = 0, d2 = 0 }
    for salt = 1, 10 do
      local decode = plan(prompt(10, salt)).decode
      seen[decode] = seen[decode] + 1
    end
    assert.are.same({ d1 = 5, d2 = 5 }, seen)
  end)

  it("has a long turn computed where the answers are, if that saves enough", function()
    load_with()
    f = testing.workers { prefill = 2, decode = 1 }
    local first = plan(prompt(200, 1)) -- 12,800 tokens
    local turn = prompt(200, 1, 1000)
    assert.is_string(plan(turn).prefill) -- both have it, and prefill is idle
    f:set(first.prefill, { prefill_tokens = 30000 })
    f:set(first.prefill == "p1" and "p2" or "p1", { prefill_tokens = 30000 })
    assert.are.equal(first.decode, plan(turn).worker)
    f:set(first.decode, { kv_free = 0.05 })
    assert.is_string(plan(turn).prefill)
    f:set(first.decode, { kv_free = 0.5, tpot_ema_ms = 51 })
    assert.is_string(plan(turn).prefill)
    f:set(first.decode, { tpot_ema_ms = 20 })
    assert.is_string(plan(prompt(200, 1, 12900)).prefill) -- more new than old
    assert.are.equal(first.decode, plan(turn).worker)
  end)

  it("has short prompts computed on decode where prefill is overrun, unless they would be late there", function()
    local function overrun(p, d)
      f:set("p1", { prefill_tokens = p })
      f:set("p2", { prefill_tokens = p })
      f:set("d1", { prefill_tokens = d })
    end
    load_with()
    f = testing.workers { prefill = 2, decode = 1 }
    overrun(30000, 0)
    assert.is_string(plan(prompt(20, 1)).prefill) -- of nobody's turn: 1,280 new tokens
    overrun(40000, 0)
    assert.are.equal("d1", plan(prompt(20, 2)).worker)
    assert.is_string(plan(prompt(130, 3)).prefill) -- 8,320 are too many
    overrun(40000, 10000)
    assert.is_string(plan(prompt(20, 4)).prefill)
    load_with { ttft_ms = 1000, token_ms = 0.1 } -- 10,000 tokens
    f = testing.workers { prefill = 2, decode = 1 }
    overrun(400000, 5000)
    assert.are.equal("d1", plan(prompt(20, 5)).worker)
    overrun(400000, 20000)
    assert.has_error(function() plan(prompt(20, 6)) end, "it returned nil")
  end)

  it("refuses who would miss the objective everywhere, and nobody without one", function()
    local function busy(p1, p2)
      f:set("p1", { prefill_tokens = p1 })
      f:set("p2", { prefill_tokens = p2 })
    end
    busy(1000000, 1000000)
    assert.is_string(plan(prompt(4, 1)).prefill)
    load_with { alone_tokens = 0, ttft_ms = 1000, token_ms = 0.1 } -- 10,000 tokens
    local home = plan(prompt(40, 1)).prefill
    busy(home == "p1" and 11000 or 0, home == "p2" and 11000 or 0)
    assert.are_not.equal(home, plan(prompt(40, 1)).prefill) -- home has it, but too late
    busy(30000, 30000)
    assert.has_error(function() plan(prompt(40, 2)) end, "it returned nil")
    f = testing.workers { hybrid = 1 }
    f:set("h1", { prefill_tokens = 30000 })
    assert.has_error(function() plan(prompt(40, 2)) end, "it returned nil")
  end)

  it("serves alone by prefix and load", function()
    f = testing.workers { hybrid = 2 }
    local home = plan(prompt(40, 4)).worker
    assert.are.equal(home, plan(prompt(40, 4)).worker)
    f:set(home, { prefill_tokens = 60000 })
    assert.are_not.equal(home, plan(prompt(40, 4)).worker)
  end)
end)
