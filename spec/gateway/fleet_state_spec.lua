-- Several gateways over one real Redis: what one learns the others know, and nothing that Redis does fails a request.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local pace = require("gateway.support.pace")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")
local relay = require("gateway.support.relay")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":1}'
local EXPIRY_MS = 2000

describe("gateways that share a Redis", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  local sim, servers, gateways

  before_each(function()
    servers, gateways = {}, {}
    sim = fleet.start_sim({ "role=hybrid,count=3,queue=1,ttft=1,itl=0" })
  end)

  after_each(function()
    fleet.stop_gateways(gateways)
    proc.kill_all()
  end)

  teardown(proc.clean)

  local function start_redis(words)
    local r = redis.start(words)
    servers[#servers + 1] = r
    return r
  end

  -- count: how many of the simulator's workers it is told of. usable: how many must be so before it is used, all of
  -- them unless told otherwise; those that others have added may be up as well.
  local function start_gateway(url, count, more, usable)
    local words = { "--redis-url", url, "--fleet-expiry-ms", EXPIRY_MS, "--worker-urls" }
    for i = 1, count do
      words[#words + 1] = sim.list[i].url
    end
    proc.append(words, more)
    local g = {}
    g.gateway, g.port, g.admin_port = fleet.start_gateway(words)
    gateways[#gateways + 1] = g
    eventually(function()
      local up = faults.number(g, "baton_worker_usable")
      return up >= (usable or count), up
    end, 10, "its workers are up")
    return g
  end

  local function seen(g)
    return json.decode(http.get(g.admin_port, "/fleet").body)
  end

  local function replicas(g)
    return #seen(g).replicas
  end

  local function wait_replicas(count, ...)
    for _, g in ipairs({ ... }) do
      eventually(function()
        local now = replicas(g)
        return now == count, now
      end, 10, count .. " replicas are known")
    end
  end

  local function worker(g, url)
    for _, w in ipairs(json.decode(http.get(g.admin_port, "/workers").body).workers) do
      if w.url == url then
        return w
      end
    end
  end

  local function others(g)
    local sum = 0
    for _, w in ipairs(json.decode(http.get(g.admin_port, "/workers").body).workers) do
      sum = sum + w.others.prefill.requests + w.others.decode.requests
    end
    return sum
  end

  local function degraded(g)
    local answer = http.get(g.port, "/readiness")
    assert.equal(200, answer.status, answer.body)
    return json.decode(answer.body).degraded
  end

  local function wait_degraded(g, word)
    return eventually(function()
      local now = degraded(g)
      return now[1] and now[1]:find(word, 1, true), json.encode(now)
    end, 15, "/readiness says " .. word)
  end

  local function wait_up(g)
    eventually(function()
      return #degraded(g) == 0, json.encode(degraded(g))
    end, 20, "/readiness says nothing of the store")
  end

  local function count_lines(g, text)
    local n = 0
    for line in g.gateway:stderr():gmatch("[^\n]+") do
      n = n + (line:find(text, 1, true) and 1 or 0)
    end
    return n
  end

  -- So many and no more; a line comes a moment after what it tells of.
  local function assert_lines(wanted, g, text)
    eventually(function()
      return count_lines(g, text) >= wanted
    end, 10, "the log says " .. text)
    assert.equal(wanted, count_lines(g, text))
  end

  local function hold(g, ms)
    return http.start(g.port, {
      path = PATH, body = BODY, headers = { ["X-Sim-Fault"] = ("slow_first_byte:%d@hybrid"):format(ms or 60000) },
    })
  end

  -- One request after the other on each gateway until done() is true; every one must be 200.
  local function serve_until(done, what)
    local answered, slowest = 0, 0
    eventually(function()
      for _, g in ipairs(gateways) do
        if g.gateway:is_alive() then
          local began = clock.now()
          local answer = http.post(g.port, PATH, BODY)
          assert(answer.status == 200, answer.body)
          slowest = math.max(slowest, clock.now() - began)
          answered = answered + 1
        end
      end
      return done()
    end, 30, what)
    return answered, slowest
  end

  -- A steady load on every gateway while work() runs: nothing fails. The worst p99, in ms.
  local function under_load(work)
    local loads, worst, right = {}, 0, 0
    for i, g in ipairs(gateways) do
      loads[i] = pace.start(g.port, 16, 100, 0)
    end
    work()
    for _, p in ipairs(loads) do
      local report = pace.stop(p)
      right, worst = right + report.right, math.max(worst, report.p99_us / 1000)
    end
    assert.is_true(right > 0)
    return worst, right
  end

  it("serve a worker that was added on one of them, until it is removed on another", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 2), start_gateway(r.url, 2)
    wait_replicas(2, a, b)
    local url = sim.list[3].url
    local added = http.post(a.admin_port, "/workers", json.encode({ url = url, name = "third" }))
    assert.equal(201, added.status, added.body)
    eventually(function()
      local w = worker(b, url)
      return w and w.usable
    end, 10, "the other one can use it")
    eventually(function()
      return http.post(b.port, PATH, BODY):header("x-baton-worker") == "third"
    end, 10, "the other one does use it")
    local gone = http.request(b.admin_port, { method = "DELETE", path = "/workers/third" })
    assert.equal(200, gone.status, gone.body)
    eventually(function()
      return not worker(a, url)
    end, 10, "the first one has removed it")
    assert.truthy(worker(a, sim.list[1].url))
  end)

  -- Of each of so many requests in turn: which worker served it.
  local function served_by(g, times)
    local names = {}
    for _ = 1, times do
      local answer = http.post(g.port, PATH, BODY)
      assert.equal(200, answer.status, answer.body)
      names[answer:header("x-baton-worker")] = true
    end
    return names
  end

  -- What it says of the others: are they told?
  local function order(g, url, word)
    local path = "/workers/" .. url:gsub("[:/]", { [":"] = "%3a", ["/"] = "%2f" }) .. "/" .. word
    local answer = http.request(g.admin_port, { method = "POST", path = path })
    assert.equal(200, answer.status, answer.body)
    return json.decode(answer.body).fleet
  end

  local function wait_draining(g, url, wanted)
    eventually(function()
      local w = worker(g, url)
      return w and w.draining == wanted, json.encode(w)
    end, 20, ("%s of %d: draining is %s"):format(url, g.port, tostring(wanted)))
  end

  it("send nothing to a worker that was drained on one of them, until it is undrained on another", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 2), start_gateway(r.url, 2)
    wait_replicas(2, a, b)
    local url = sim.list[1].url
    local name = worker(b, url).name
    assert.truthy(served_by(b, 20)[name])
    assert.equal("told", order(a, url, "drain"))
    assert.is_true(worker(a, url).draining)
    wait_draining(b, url, true)
    assert.equal("draining", worker(b, url).why_not)
    assert.is_nil(served_by(b, 20)[name])
    assert_lines(1, b, "drains: no new requests")
    assert_lines(1, b, ": drained by an order of 20")
    assert.equal(0, count_lines(a, ": drained by an order of ")) -- it was told itself
    -- Who comes later has it drained as well, before the first request.
    local c = start_gateway(r.url, 1, nil, 0)
    assert.is_true(worker(c, url).draining)
    eventually(function()
      return worker(c, url).health == "up", worker(c, url).health
    end, 10, "it is up there")
    assert.not_equal(200, http.post(c.port, PATH, BODY).status)
    order(b, url, "undrain")
    wait_draining(a, url, false)
    wait_draining(c, url, false)
    eventually(function()
      return served_by(a, 5)[name]
    end, 10, "it serves again")
    assert.equal(200, http.post(c.port, PATH, BODY).status)
  end)

  it("know of drains and added workers before they are ready", function()
    local r = start_redis()
    local a = start_gateway(r.url, 2)
    local url = sim.list[1].url
    assert.equal("told", order(a, url, "drain"))
    local third = sim.list[3].url
    assert.equal(201, http.post(a.admin_port, "/workers", json.encode({ url = third })).status)
    local far = relay.start(r.port)
    far:delay(40)
    local known = 0
    for _ = 1, 5 do
      local b = start_gateway("redis://127.0.0.1:" .. far.port, 1, nil, 0)
      if worker(b, url).draining then
        known = known + 1
        assert.truthy(worker(b, third))
        eventually(function()
          return http.post(b.port, PATH, BODY).status == 200
        end, 10, "its loops know the third")
        assert.equal(0, count_lines(b, "which workers are drained"))
      else -- the machine stood still for longer than a start waits
        assert_lines(1, b, "which workers are drained")
      end
      b.gateway:kill(proc.SIGKILL)
    end
    assert.is_true(known >= 1, "none of five knew")
  end)

  it("start without the store, and say once what they do not know", function()
    local r = start_redis()
    r:kill()
    local a = start_gateway(r.url, 1)
    assert_lines(1, a, "the store has not said within 1000 ms which workers are drained")
    assert.equal(200, http.post(a.port, PATH, BODY).status)
  end)

  it("tell of a drain when Redis is back, and again when it was flushed", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 2), start_gateway(r.url, 2)
    wait_replicas(2, a, b)
    local first, second = sim.list[1].url, sim.list[2].url
    r:kill()
    wait_degraded(a, "unavailable")
    assert.equal("the store is unavailable: they follow when it is back", order(a, first, "drain"))
    assert.is_true(worker(a, first).draining)
    assert.is_false(worker(b, first).draining)
    r:again()
    wait_draining(b, first, true)
    r:freeze() -- this time it has kept what it knew
    wait_degraded(b, "unavailable")
    order(b, first, "undrain")
    order(b, second, "drain")
    r:thaw()
    wait_draining(a, first, false)
    wait_draining(a, second, true)
    r:ask("FLUSHALL")
    local c = start_gateway(r.url, 2, nil, 1)
    wait_draining(c, second, true)
    for _, g in ipairs({ a, b }) do
      assert.is_true(worker(g, second).draining)
      assert.is_false(worker(g, first).draining)
    end
  end)

  it("see each other's load, and forget a gateway's that was killed within the expiry", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 2), start_gateway(r.url, 2)
    wait_replicas(2, a, b)
    local held = {}
    for i = 1, 4 do
      held[i] = hold(a)
    end
    eventually(function()
      return others(b) == 4, others(b)
    end, 10, "the four requests are seen from the other one")
    assert.equal(0, others(a))
    a.gateway:kill(proc.SIGKILL)
    a.gateway:wait(5)
    local killed = clock.now()
    eventually(function()
      return others(b) == 0, others(b)
    end, 10, "they are gone")
    local took = clock.now() - killed
    wait_replicas(1, b)
    print(("    [a killed gateway's load was gone after %.2f s; expiry %.1f s]"):format(took, EXPIRY_MS / 1000))
    for i = 1, 4 do
      held[i]:close()
    end
  end)

  it("say good-bye: a gateway that ends is gone at once", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 1, { "--fleet-expiry-ms", "600000" }), start_gateway(r.url, 1)
    wait_replicas(2, a, b)
    fleet.stop_gateway(a.gateway)
    wait_replicas(1, b)
    assert.equal(1, #r:ask("HKEYS", "baton:{fleet}:replicas"))
  end)

  it("cancel a request wherever it is", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 1), start_gateway(r.url, 1)
    wait_replicas(2, a, b)
    for i, ask in ipairs({
      function(id)
        return http.request(b.admin_port, { method = "POST", path = "/requests/" .. id .. "/cancel" })
      end,
      function(id)
        return http.post(b.port, "/abort_request", json.encode({ rid = id }))
      end,
    }) do
      local id = "elsewhere-" .. i
      local c = http.start(a.port, {
        path = PATH, body = BODY,
        headers = { ["X-Sim-Fault"] = "slow_first_byte:60000@hybrid", ["X-Request-Id"] = id },
      })
      eventually(function()
        return http.get(a.admin_port, "/requests").body:find(id, 1, true)
      end, 5, "it runs")
      assert.is_true(ask(id).status < 300)
      c:wait(nil, 10)
      assert.is_true(c.answer.status ~= 200, c.answer.body)
      c:close()
    end
    eventually(function()
      return faults.number(a, "baton_concurrent_requests") == 0
    end, 10, "nothing is left")
    assert.equal(2, faults.number(b, "baton_fleet_calls_sent_total"))
    assert.equal(0, faults.number(a, "baton_fleet_calls_sent_total"))
  end)

  it("tell each other of prompts", function()
    local r = start_redis()
    local more = { "--policy", "sglang_cache_aware" }
    local a, b = start_gateway(r.url, 3, more), start_gateway(r.url, 3, more)
    wait_replicas(2, a, b)
    local told = 0
    for i = 1, 5 do
      local prompt = ("story %d "):format(i) .. ("word "):rep(2000)
      local body = json.encode({ model = "sim", max_tokens = 1, prompt = prompt })
      local first = http.post(a.port, PATH, body)
      assert.equal(200, first.status, first.body)
      eventually(function()
        local sent = faults.number(a, "baton_fleet_prefix_sent_total")
        return sent > told and faults.number(b, "baton_fleet_prefix_received_total") == sent
      end, 10, "the blocks have arrived")
      told = faults.number(a, "baton_fleet_prefix_sent_total")
      local second = http.post(b.port, PATH, body)
      assert.equal(first:header("x-baton-worker"), second:header("x-baton-worker"))
    end
  end)

  it("ask the store less than once a request, under load", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 3, { "--policy", "sglang_cache_aware" }), start_gateway(r.url, 3)
    wait_replicas(2, a, b)
    local trips = faults.number(a, "baton_store_round_trips_total")
    local _, right = under_load(function()
      local heartbeats = faults.number(a, "baton_fleet_heartbeats_total")
      eventually(function()
        return faults.number(a, "baton_fleet_heartbeats_total") >= heartbeats + 20
      end, 20, "twenty heartbeats")
    end)
    trips = faults.number(a, "baton_store_round_trips_total") - trips
    print(("    [%d round trips of one gateway for its share of %d requests: %.2f each]"):format(trips, right,
      trips / (right / 2)))
    assert.is_true(trips <= right / 2, trips .. " for " .. right / 2)
  end)

  it("go on when Redis is stopped under load, and find each other when it is back", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 3), start_gateway(r.url, 3)
    wait_replicas(2, a, b)
    local calm = under_load(function()
      local heartbeats = faults.number(a, "baton_fleet_heartbeats_total")
      eventually(function()
        return faults.number(a, "baton_fleet_heartbeats_total") >= heartbeats + 20
      end, 20, "twenty heartbeats")
    end)
    local worst = under_load(function()
      r:kill()
      wait_degraded(a, "unavailable")
      wait_degraded(b, "unavailable")
      assert.equal(2, replicas(a)) -- as many as were known last
      local failed = faults.number(a, "baton_fleet_heartbeats_failed_total")
      eventually(function()
        return faults.number(a, "baton_fleet_heartbeats_failed_total") >= failed + 25
      end, 20, "longer than the expiry")
      r:again()
      wait_up(a)
      wait_up(b)
    end)
    print(("    [p99 %.2f ms with Redis, %.2f ms over its being away]"):format(calm, worst))
    wait_replicas(2, a, b)
    assert_lines(1, a, "is unavailable, serving on local data")
    assert_lines(3, a, "store: ") -- up, away, up
    hold(a):close()
    local c = hold(a)
    eventually(function()
      return others(b) == 1, others(b)
    end, 10, "loads are told again")
    c:close()
  end)

  it("go on when Redis stands still", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 3), start_gateway(r.url, 3)
    wait_replicas(2, a, b)
    local c = hold(b)
    eventually(function()
      return others(a) == 1
    end, 10, "load is seen")
    r:freeze()
    under_load(function()
      wait_degraded(a, "unavailable")
      eventually(function()
        return others(a) == 0
      end, 10, "a load that nobody confirms counts no more")
    end)
    r:thaw()
    wait_up(a)
    wait_up(b)
    eventually(function()
      return others(a) == 1
    end, 10, "load is seen again")
    c:close()
  end)

  it("tell all anew after FLUSHALL under load", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 2), start_gateway(r.url, 2)
    wait_replicas(2, a, b)
    local url = sim.list[3].url
    assert.equal(201, http.post(a.admin_port, "/workers", json.encode({ url = url })).status)
    eventually(function()
      return worker(b, url)
    end, 10, "it is known")
    under_load(function()
      for _ = 1, 3 do
        r:ask("FLUSHALL")
        eventually(function()
          local rows = r:ask("HKEYS", "baton:{fleet}:workers")
          return #rows == 2, #rows
        end, 10, "the worker's row is back")
        assert.equal(2, replicas(a))
      end
    end)
    assert.truthy(worker(a, url))
    assert.truthy(worker(b, url))
    assert.equal(0, count_lines(a, "is gone"))
    local c = start_gateway(r.url, 2, nil, 3)
    eventually(function()
      return worker(c, url)
    end, 10, "who comes later knows it too")
  end)

  it("serve with a wrong password, and say so", function()
    local r = start_redis({ "--requirepass", "right" })
    local a = start_gateway(r.url, 2)
    wait_degraded(a, "shared state: degraded")
    assert_lines(1, a, "store: ")
    assert.equal(200, http.post(a.port, PATH, BODY).status)
    local file = proc.write("password", "right\n")
    local b = start_gateway(r.url, 2, { "--redis-password-file", file })
    wait_up(b)
    wait_replicas(1, b)
  end)

  it("start without Redis, and find each other when it comes", function()
    local r = start_redis()
    r:kill()
    local a, b = start_gateway(r.url, 2), start_gateway(r.url, 2)
    wait_degraded(a, "unavailable")
    assert.equal(200, http.post(a.port, PATH, BODY).status)
    assert_lines(1, a, "is unavailable, serving on local data")
    r:again()
    wait_replicas(2, a, b)
    wait_up(a)
  end)

  it("follow a failover by Sentinel under load", function()
    local master = start_redis()
    local replica = start_redis({ "--replicaof", "127.0.0.1 " .. master.port })
    eventually(function()
      return replica:ask("INFO", "replication"):find("master_link_status:up", 1, true)
    end, 20, "the replica follows")
    local s = redis.start_sentinel(master.port, { name = "m", quorum = 1, down_ms = 500 })
    eventually(function()
      return table.concat(s:ask("SENTINEL", "master", "m"), " "):find("num%-slaves 1")
    end, 30, "the Sentinel knows the replica")
    local url = ("sentinel://127.0.0.1:%d/m"):format(s.port)
    local a, b = start_gateway(url, 3), start_gateway(url, 3)
    wait_replicas(2, a, b)
    local worst = under_load(function()
      master:kill()
      wait_degraded(a, "shared state")
      wait_up(a)
      wait_up(b)
    end)
    print(("    [p99 %.2f ms over the failover]"):format(worst))
    wait_replicas(2, a, b)
    assert.equal(2, #replica:ask("HKEYS", "baton:{fleet}:replicas"))
  end)

  it("do not hear each other in fleets of other names", function()
    local r = start_redis()
    local a = start_gateway(r.url, 1, { "--fleet-name", "one" })
    local b = start_gateway(r.url, 1, { "--fleet-name", "two", "--replica-name", "bee" })
    eventually(function()
      local name = "baton_fleet_heartbeats_total"
      return faults.number(a, name) > 5 and faults.number(b, name) > 5
    end, 10, "both have told")
    assert.equal(1, replicas(a))
    assert.equal("bee", seen(b).replica)
    assert.equal("two", seen(b).fleet)
  end)

  it("open a breaker at the first failure where another's is open", function()
    local r = start_redis()
    local more = { "--disable-retries", "--breaker-failures", "3", "--breaker-open-secs", "30" }
    local a, b = start_gateway(r.url, 1, more), start_gateway(r.url, 1, more)
    wait_replicas(2, a, b)
    local function fail(g)
      return http.post(g.port, PATH, BODY, { ["X-Sim-Fault"] = "status:500@hybrid" }).status
    end
    local function is_open(g)
      return worker(g, sim.list[1].url).breaker.state == "open"
    end
    assert.equal(500, fail(b))
    assert.is_false(is_open(b))
    for _ = 1, 3 do
      fail(a)
    end
    assert.is_true(is_open(a))
    local heartbeats = faults.number(b, "baton_fleet_heartbeats_total")
    eventually(function()
      return faults.number(b, "baton_fleet_heartbeats_total") >= heartbeats + 3
    end, 10, "the other one has heard")
    assert.is_false(is_open(b))
    assert.equal(200, http.post(b.port, PATH, BODY).status)
    assert.equal(500, fail(b))
    assert.is_true(is_open(b))
  end)

  it("serve as ever while replicas come and go", function()
    local r = start_redis()
    local a, b = start_gateway(r.url, 3), start_gateway(r.url, 3)
    wait_replicas(2, a, b)
    fleet.stop_gateway(b.gateway)
    local answered = serve_until(function()
      return replicas(a) == 1
    end, "the other one is gone")
    assert.is_true(answered > 0)
  end)
end)
