local testing = require "baton.testing"

local FINISHED = { kind = "finished", status = 200 }

describe("slo_admission", function()
  local policy, f

  before_each(function()
    testing.forget()
    policy = testing.load("slo_admission")
    f = testing.workers { prefill = 2, decode = 2 }
  end)

  local function event(req, ttft_ms, tpot_ms)
    local e = { kept = policy:kept(req), ttft_ms = ttft_ms, output_tokens = 11, total_ms = ttft_ms + 10 * tpot_ms }
    for key, value in pairs(FINISHED) do
      e[key] = value
    end
    return e
  end

  -- A fleet that needs 100 ms and 0.5 ms a token that waits or comes; tpot_ms of n requests on decode: 10 + 5 n.
  local function teach(times)
    for i = 1, times do
      local req = { prompt_tokens = 100 * (i % 10 + 1) }
      assert.is_true(policy:admit(req))
      assert.is_true(policy:tick(1000, f))
      f:set("d1", { requests = i % 4 })
      f:set("d2", { requests = i % 4 })
      local kept = policy:kept(req)
      assert.is_true(policy:observe { event(req, 100 + 0.5 * kept[1], 10 + 5 * kept[2]) })
    end
    f:set("d1", { requests = 0 })
    f:set("d2", { requests = 0 })
    assert.is_true(policy:tick(2000, f))
  end

  local function wait_on_prefill(tokens)
    f:set("p1", { prefill_tokens = tokens })
    f:set("p2", { prefill_tokens = tokens })
    assert.is_true(policy:tick(3000, f))
  end

  it("refuses nobody before it has seen enough", function()
    teach(19)
    wait_on_prefill(1000000)
    assert.is_true(policy:admit { prompt_tokens = 100 })
  end)

  it("refuses who would wait too long for the first token, and says for how long", function()
    teach(20)
    wait_on_prefill(1600) -- 100 + 0.5 * 1,700 = 950 ms
    assert.is_true(policy:admit { prompt_tokens = 100 })
    wait_on_prefill(6000) -- 100 + 0.5 * 6,100 = 3,150 ms
    local refused = policy:admit { prompt_tokens = 100 }
    assert.are.equal(429, refused.status)
    assert.are.equal(3, refused.retry_after)
    assert.are.equal("the first token would miss its target by 2150 ms", refused.reason)
  end)

  it("looks at the least loaded worker, for that one will be chosen", function()
    teach(20)
    wait_on_prefill(6000)
    f:set("p2", { prefill_tokens = 0 })
    policy:tick(4000, f)
    assert.is_true(policy:admit { prompt_tokens = 100 })
    assert.are.equal("p2", testing.plan(policy, f, { prompt_tokens = 100 }).prefill)
  end)

  it("counts what it has let in since the last tick", function()
    policy = testing.load("slo_admission", { ttft_ms = 1010, tpot_ms = 0 })
    teach(20)
    wait_on_prefill(0)
    local admitted = 0
    while admitted < 100 and policy:admit { prompt_tokens = 100 } == true do
      admitted = admitted + 1
    end
    -- 100 + 0.5 * (100 + 100 n / 2 workers) is above 1,010 from n = 35 on
    assert.are.equal(35, admitted)
    policy:tick(5000, f)
    assert.is_true(policy:admit { prompt_tokens = 100 })
  end)

  it("lets in who would be late alone: waiting does not help", function()
    teach(20)
    wait_on_prefill(6000)
    assert.is_true(policy:admit { prompt_tokens = 2000 })
  end)

  it("refuses who would slow decode below its target", function()
    teach(20)
    f:set("d1", { requests = 7 })
    f:set("d2", { requests = 7 })
    policy:tick(3000, f)
    assert.is_true(policy:admit { prompt_tokens = 10 }) -- 10 + 5 * 8 = 50 ms
    f:set("d1", { requests = 9 })
    f:set("d2", { requests = 9 })
    policy:tick(4000, f)
    local refused = policy:admit { prompt_tokens = 10 }
    assert.are.equal("the time per token would miss its target by 10 ms", refused.reason)
    assert.are.equal(1, refused.retry_after)
  end)

  it("takes a client's own targets", function()
    teach(20)
    wait_on_prefill(1600)
    local refused = policy:admit { prompt_tokens = 100, headers = { ["x-llm-d-slo-ttft-ms"] = "500" } }
    assert.are.equal("the first token would miss its target by 450 ms", refused.reason)
    wait_on_prefill(6000)
    assert.is_true(policy:admit { prompt_tokens = 100, headers = { ["x-llm-d-slo-ttft-ms"] = "3500" } })
  end)

  it("hands over what it has learned", function()
    teach(20)
    policy = testing.load("slo_admission", { status = 503 }, assert(policy:handover()))
    wait_on_prefill(6000)
    assert.are.equal(503, policy:admit({ prompt_tokens = 100 }).status)
  end)

  it("follows a fleet that became faster", function()
    teach(20)
    wait_on_prefill(6000)
    assert.are.equal(429, policy:admit({ prompt_tokens = 100 }).status)
    wait_on_prefill(0)
    for i = 1, 600 do
      local req = { prompt_tokens = 10 * (i % 50 + 1) }
      assert.is_true(policy:admit(req))
      assert.is_true(policy:observe { event(req, 10 + 0.05 * policy:kept(req)[1], 10) })
      policy:tick(4000, f)
    end
    wait_on_prefill(6000)
    assert.is_true(policy:admit { prompt_tokens = 100 })
  end)

  it("serves hybrids too", function()
    f = testing.workers { hybrid = 2 }
    f:set("h1", { prefill_tokens = 10 })
    assert.is_true(policy:tick(1000, f))
    assert.are.equal("h2", testing.plan(policy, f, {}).worker)
  end)
end)
