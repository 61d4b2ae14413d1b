-- Two gateways over a real Redis Cluster: all that a fleet shares lies in one slot, and is followed wherever that goes.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local pace = require("gateway.support.pace")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":1}'
local KEY = "baton:{fleet}:replicas"

describe("gateways that share a Redis Cluster", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  local sim, cluster, gateways

  before_each(function()
    gateways = {}
    sim = fleet.start_sim({ "role=hybrid,count=3,queue=1,ttft=1,itl=0" })
    cluster = redis.start_cluster(3, 1)
  end)

  after_each(function()
    fleet.stop_gateways(gateways)
    proc.kill_all()
  end)

  teardown(proc.clean)

  local function start_gateway()
    local g = {}
    g.gateway, g.port, g.admin_port = fleet.start_gateway({ "--redis-url", cluster.url, "--fleet-expiry-ms", 2000,
      "--worker-urls", sim.list[1].url, sim.list[2].url })
    gateways[#gateways + 1] = g
    eventually(function()
      return faults.number(g, "baton_worker_usable") >= 2
    end, 10, "its workers are up")
    return g
  end

  local function wait_replicas(count)
    for _, g in ipairs(gateways) do
      eventually(function()
        local now = #json.decode(http.get(g.admin_port, "/fleet").body).replicas
        return now == count, now
      end, 10, count .. " replicas are known")
    end
  end

  local function degraded(g)
    local answer = http.get(g.port, "/readiness")
    assert.equal(200, answer.status, answer.body)
    return json.decode(answer.body).degraded
  end

  local function wait_up()
    for _, g in ipairs(gateways) do
      eventually(function()
        local now = degraded(g)
        return #now == 0, json.encode(now)
      end, 20, "/readiness says nothing of the store")
    end
  end

  -- What each has told from here on the other hears: both write and both read.
  local function wait_heard()
    local function heartbeats(g)
      return faults.number(g, "baton_fleet_heartbeats_total")
    end
    for _, g in ipairs(gateways) do
      local before = heartbeats(g)
      eventually(function()
        return heartbeats(g) >= before + 3
      end, 20, "it tells and hears")
    end
    wait_replicas(#gateways)
  end

  -- A steady load on every gateway while work() runs: nothing fails.
  local function under_load(work)
    local loads = {}
    for i, g in ipairs(gateways) do
      loads[i] = pace.start(g.port, 16, 100, 0)
    end
    work()
    for _, p in ipairs(loads) do
      assert.is_true(pace.stop(p).right > 0)
    end
  end

  local function added(g, name)
    for _, w in ipairs(json.decode(http.get(g.admin_port, "/workers").body).workers) do
      if w.name == name then
        return w
      end
    end
  end

  it("act as one, with all their keys in one slot", function()
    local a, b = start_gateway(), start_gateway()
    wait_replicas(2)
    local answer = http.post(a.admin_port, "/workers", json.encode({ url = sim.list[3].url, name = "third" }))
    assert.equal(201, answer.status, answer.body)
    eventually(function()
      return http.post(b.port, PATH, BODY):header("x-baton-worker") == "third"
    end, 10, "the other one uses the worker that was added")
    local owner = cluster:owner(KEY)
    for _, node in ipairs(cluster.nodes) do
      assert.equal(node == owner, node:ask("DBSIZE") > 0)
    end
  end)

  it("follow their slot while it moves, under load", function()
    local a, b = start_gateway(), start_gateway()
    wait_replicas(2)
    local from = cluster:owner(KEY)
    local to = from == cluster.nodes[1] and cluster.nodes[2] or cluster.nodes[1]
    under_load(function()
      cluster:move(KEY, from, to, function()
        wait_heard() -- over both halves
        assert.same({}, degraded(a))
        assert.same({}, degraded(b))
      end)
      wait_heard()
      wait_up()
    end)
    assert.equal(2, #to:ask("HKEYS", KEY))
    assert.equal(0, from:ask("DBSIZE"))
  end)

  it("follow a failover under load", function()
    local spare = cluster.nodes[4]
    local master = cluster:owner(KEY)
    spare:ask("CLUSTER", "REPLICATE", cluster:id(master))
    eventually(function()
      return spare:ask("INFO", "replication"):find("master_link_status:up", 1, true)
    end, 20, "the replica follows")
    local a, b = start_gateway(), start_gateway()
    wait_replicas(2)
    http.post(a.admin_port, "/workers", json.encode({ url = sim.list[3].url, name = "third" }))
    eventually(function()
      return added(b, "third")
    end, 10, "the other one knows the worker that was added")
    under_load(function()
      master:kill()
      eventually(function()
        return #degraded(a) > 0 and #degraded(b) > 0
      end, 15, "both miss it")
      spare:ask("CLUSTER", "FAILOVER", "TAKEOVER")
      wait_up()
      wait_heard()
    end)
    assert.equal(2, #spare:ask("HKEYS", KEY))
    assert.truthy(added(a, "third") and added(b, "third"))
  end)
end)
