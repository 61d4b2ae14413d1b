-- Limits that two gateways share by one Redis: exact together while it answers, an even part each while it does not.
-- Windows are days.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":[1,2,3,4,5],"max_tokens":2}'

describe("limits of a fleet", function()
  local sim, gateways

  before_each(function()
    gateways = {}
    sim = fleet.start_sim({ "role=hybrid,ttft=1,itl=1,name=h0" })
  end)

  after_each(function()
    for _, g in ipairs(gateways) do
      fleet.stop_gateway(g.gateway)
    end
    proc.kill_all()
  end)

  teardown(proc.clean)

  local function start(r, limits)
    for i = 1, 2 do
      local path = proc.write(("baton%d.lua"):format(i),
        ("return { limits = { %s }, redis_url = '%s', pools = { { name = 'p', workers = { { url = '%s' } } } } }")
          :format(limits, r.url, sim.list[1].url))
      local g = {}
      g.gateway, g.port, g.admin_port = fleet.start_gateway({ path })
      gateways[i] = g
      eventually(function()
        local said = http.get(g.port, "/readiness").body
        return said:find('"degraded":[]', 1, true) ~= nil and said:find('"ready":true', 1, true) ~= nil, said
      end, 10, "every loop has reached the store, and the worker is up")
    end
    for _, g in ipairs(gateways) do
      eventually(function()
        local now = #json.decode(http.get(g.admin_port, "/fleet").body).replicas
        return now == 2, now
      end, 10, "both replicas are known")
    end
  end

  -- How many of each status, asked in turn.
  local function ask(times, body)
    local seen, last = {}, nil
    for i = 1, times do
      last = http.post(gateways[i % 2 + 1].port, PATH, body or BODY)
      seen[last.status] = (seen[last.status] or 0) + 1
    end
    return seen, last
  end

  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  it("count together, to the request", function()
    local r = redis.start()
    start(r, "{ name = 'rpd', requests = 200, window_s = 86400 }")
    local seen, last = ask(300)
    assert.same({ [200] = 200, [429] = 100 }, seen)
    assert.equal("0", last:header("x-ratelimit-remaining-requests"))
    assert.equal("200", r:ask("HGET", "baton:{fleet}:l:rpd:requests:86400000", "n"))
  end)

  it("are trued up to the token", function()
    local r = redis.start()
    start(r, "{ name = 'tpd', per = 'tenant', tokens = 100000, window_s = 86400 }")
    local used = 0
    for i = 1, 20 do
      local answer = http.post(gateways[i % 2 + 1].port, PATH, '{"model":"sim","prompt":[1,2,3,4,5]}',
        { ["x-tenant-id"] = "acme" })
      assert.equal(200, answer.status, answer.body)
      local usage = json.decode(answer.body).usage
      used = used + usage.prompt_tokens + usage.completion_tokens
    end
    eventually(function() -- what was leased and not used goes back
      local n = tonumber(r:ask("HGET", "baton:{fleet}:l:tpd:tokens:t4=acme:86400000", "n"))
      return n == used, { n, used }
    end, 10, "the store knows what was used")
  end)

  it("are an even part of each gateway's while Redis does not answer", function()
    local r = redis.start()
    start(r, "{ name = 'rpd', requests = 40, window_s = 86400 }, { name = 'one', concurrent = 2 }")
    ask(2)
    r:freeze()
    local function alone(g)
      local count = 0
      for _ = 1, 60 do
        local answer = http.post(g.port, PATH, BODY)
        assert.is_true(answer.status == 200 or answer.status == 429, answer.body)
        count = count + (answer.status == 200 and 1 or 0)
      end
      return count
    end
    local first, second = alone(gateways[1]), alone(gateways[2])
    r:thaw()
    assert.is_true(first >= 1 and first <= 20, first) -- 20, and of them one or more before
    assert.is_true(second >= 1 and second <= 20, second)
    assert.equal(0, faults.number(gateways[1], 'baton_limit_refused_total{limit="one",by="concurrent"}'))
  end)
end)
