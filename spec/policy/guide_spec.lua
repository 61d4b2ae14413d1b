-- What policies/README.md shows is run here: its policy, its hooks, its ways to test.
local testing = require "baton.testing"

local function guide()
  local file = assert(io.open "policies/README.md")
  local text = file:read "*a"
  file:close()
  return text
end

-- The code of a section, block by block.
local function blocks_of(title)
  local text = guide():match("\n## " .. title .. "\n(.-)\n## ") or guide():match("\n## " .. title .. "\n(.*)")
  local blocks = {}
  for code in assert(text, title):gmatch "```lua\n(.-)```" do
    blocks[#blocks + 1] = code
  end
  return blocks
end

local function hooks_policy(old)
  local first = assert(blocks_of("Writing one")[1]:match "(.-)return { api")
  local text = first .. "return { api = 2, name = 'guide', version = '1', plan = plan,\n"
  return testing.load_text(text .. table.concat(blocks_of "The other hooks", "") .. "}", { weight = 2 }, old)
end

describe("the guide's", function()
  local clock
  local limits = { ["http://conf:8000/limits"] = { body = '{"a":1}' }, ["http://auth/check"] = {} }

  before_each(function()
    clock = testing.clock()
    testing.network(limits)
  end)

  after_each(function()
    clock:stop()
  end)

  it("first policy plans", function()
    local workers = testing.workers { prefill = 2, decode = 2 }
    workers:set("p1", { prefill_tokens = 10 })
    workers:set("d2", { decode_tokens = 10 })
    local plan = testing.plan(testing.load_text(blocks_of("Writing one")[1]), workers)
    assert.are.same({ "p2", "d1" }, { plan.prefill, plan.decode })
  end)

  it("start takes what was handed over, and refuses without limits", function()
    assert.are.same({ failures = 7 }, hooks_policy({ failures = 7 }):handover())
    testing.network { ["http://conf:8000/limits"] = { error = "connect" } }
    local ok, why = pcall(hooks_policy)
    assert.is_false(ok)
    assert.matches("no limits: connect failed", why)
  end)

  it("admit asks, and route sends the batch tier elsewhere, later", function()
    local policy, req = hooks_policy(), {}
    testing.network { ["http://auth/check"] = { headers = { ["x-tier"] = "batch" } } }
    local before = clock:now()
    assert.is_true(policy:admit(req))
    assert.are.same({ pool = "batch", class = "batch" }, policy:route(req))
    assert.are.equal(20, clock:now() - before)
    testing.network { ["http://auth/check"] = { headers = {} } }
    req = { tenant = "t", prompt_tokens = 9000 }
    assert.is_true(policy:admit(req))
    assert.are.same({ class = "long", key = "t" }, policy:route(req))
    testing.network { ["http://auth/check"] = { status = 403 } }
    assert.are.same({ status = 401, reason = "unknown key" }, policy:admit {})
    testing.network { ["http://auth/check"] = { error = "connect" } }
    assert.are.equal(503, policy:admit({}).status)
  end)

  it("fallback, observe, tick and handover do what they say", function()
    local policy, workers = hooks_policy(), testing.workers { hybrid = 2 }
    assert.are.equal("h2", policy:fallback(workers, {}, { scope = "worker" }, { "h1" }).worker)
    assert.is_nil(policy:fallback(workers, {}, { scope = "request" }, { "h1" }))
    assert.is_true(policy:observe { { failure = "reset" }, { kind = "finished" }, { failure = "stall" } })
    testing.network(limits)
    assert.is_true(policy:tick(nil, workers))
    assert.are.same({ failures = 2 }, policy:handover())
  end)

  it("limit of the whole fleet is held, given back, and asked for by one gateway", function()
    local text = "return { api = 2, name = 'guide', version = '1', plan = function() end,\n"
      .. "handover = function(ctx) return ctx.state end,\n"
    local policy = testing.load_text(text .. blocks_of("State of the whole fleet")[1] .. "}")
    local workers, store = testing.workers { hybrid = 1 }, testing.store()
    local req = { tenant = "t", prompt_tokens = 60000 }
    assert.is_true(policy:admit(req))
    assert.are.equal(429, policy:admit({ tenant = "t", prompt_tokens = 60000 }).status)
    assert(policy:observe { { tenant = "t", kept = policy:kept(req) } })
    assert.is_true(policy:admit { tenant = "t", prompt_tokens = 60000 })
    local network = testing.network(limits)
    assert.is_true(policy:tick(nil, workers))
    assert.are.same({ limits = { a = 1 } }, policy:handover())
    store:set("limits", '{"a":2}')
    store:hold("asker", 5000) -- another gateway
    assert.is_true(policy:tick(nil, workers))
    assert.are.same({ limits = { a = 2 } }, policy:handover())
    assert.are.equal(1, #network.calls)
  end)

  it("spec for the network passes", function()
    testing.network {}
    local spec = assert(blocks_of("Testing one")[1]:match 'it%("asks.-\nend%)\n')
    local run = assert(loadstring((spec:gsub('testing%.load "policies/mine%.lua"', "hooks_policy()"))))
    local ran = 0
    setfenv(run, setmetatable({
      testing = testing,
      hooks_policy = hooks_policy,
      it = function(_, body)
        ran = ran + 1
        body()
      end,
    }, { __index = getfenv() }))
    run()
    assert.are.equal(1, ran)
  end)
end)
