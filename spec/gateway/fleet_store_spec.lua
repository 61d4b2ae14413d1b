-- Two gateways whose Redis is slow, stopped for long, takes no writes, is full, refuses or holds the wrong thing, under
-- a steady load: no request fails, /readiness and the log say what it is, and all is as before when it is over.

local eventually = require("gateway.support.eventually")
local http = require("gateway.support.http")
local ports = require("gateway.support.port")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")
local relay = require("gateway.support.relay")
local replicas = require("gateway.support.replicas")
local socket = require("socket")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":2}'
local NAMES = { "a", "b" }
local LONG = 25 -- heartbeats: longer than what others tell lives (2 s)

local fl

-- Every request asks the store; one with x-tell is answered with what it said.
local ASKS = [[
return { api = 2, name = "mine", version = "1",
  admit = function(req)
    local value, why = baton.shared.get("k")
    if req.headers["x-tell"] then
      return { status = 418, reason = tostring(value) .. ", " .. tostring(why) }
    end
  end,
  plan = function(req, view) return { worker = view.hybrid[1].id } end,
}]]

-- By the day: no spec meets the end of one but at midnight.
local LIMIT = [[
return { api = 2, name = "mine", version = "1",
  admit = function(req)
    local is_in, wait_s = baton.shared.take("requests", 40, 86400000)
    if is_in == false then return { status = 429, retry_after = wait_s, reason = "over" } end
    if not is_in then return { status = 418, reason = wait_s } end
  end,
  plan = function(req, view) return { worker = view.hybrid[1].id } end,
}]]

local function start(own, more)
  local words = { "--no-access-log" }
  proc.append(words, more)
  fl = replicas.start(NAMES, { a = words, b = words }, own)
  for _, one in ipairs(fl) do
    one:wait_up()
    eventually(function()
      return one:listed() == 2, one:listed()
    end, 10, "both are listed")
  end
end

local function each(method, ...)
  for _, one in ipairs(fl) do
    one[method](one, ...)
  end
end

local function heartbeats()
  fl:wait_count("baton_fleet_heartbeats_total", 5)
end

local function assert_listed()
  each("wait_up")
  for _, one in ipairs(fl) do
    eventually(function()
      return one:listed() == 2 and #fl.redis:ask("HKEYS", "baton:{fleet}:replicas") == 2, one:listed()
    end, 15, "both are listed")
  end
end

-- And one's load is seen by the other.
local function assert_converged()
  assert_listed()
  local held = fl.a:hold()
  eventually(function()
    return fl.b:others() == 1, fl.b:others()
  end, 15, "load is seen")
  held:close()
  eventually(function()
    return fl.b:others() == 0, fl.b:others()
  end, 15, "and that it has ended")
end

-- A line for each change, and none besides: up, what it was, up again. A machine that stood still meanwhile has the
-- store away for a moment.
local function assert_told_by(one, word)
  local last, found = nil, 0
  for line in one.process:stderr():gmatch("store: ([^\n]*)") do
    local state = line:match("is (%a+)")
    assert.is_not.equal(last, state, one.process:stderr())
    last, found = state, found + (line:find(word, 1, true) and 1 or 0)
  end
  assert.equal("up", last)
  assert.is_true(found >= 1 and found <= 3, one.process:stderr())
end

local function assert_told(word)
  for _, one in ipairs(fl) do
    eventually(function()
      assert_told_by(one, word)
      return true
    end, 10, one.name .. " tells of each change once")
  end
end

-- How many of each status of so many requests, one after the other.
local function ask(one, times, headers)
  local seen = {}
  for _ = 1, times do
    local status = http.post(one.port, PATH, BODY, headers).status
    seen[status] = (seen[status] or 0) + 1
  end
  return seen
end

local function tell(one)
  local answer = http.post(one.port, PATH, BODY, { ["x-tell"] = "1" })
  assert.equal(418, answer.status, answer.body)
  return answer.body
end

local function tells(one, words)
  eventually(function()
    local told = tell(one)
    return told:find(words, 1, true), told
  end, 10, one.name .. " tells " .. words)
end

-- It costs nobody anything while work() goes on. A machine that stands still for a moment has answers late that were
-- not; a store that counts as away has them so each time.
local function assert_unharmed(work)
  local failed, lines
  for _ = 1, 10 do
    failed, lines = 0, 0
    for _, one in ipairs(fl) do
      failed = failed - one:number("baton_fleet_heartbeats_failed_total")
      lines = lines - one:lines("store: ")
    end
    work()
    each("wait_up")
    for _, one in ipairs(fl) do
      failed = failed + one:number("baton_fleet_heartbeats_failed_total")
      lines = lines + one:lines("store: ")
    end
    if failed == 0 and lines == 0 then
      return
    end
  end
  error(("each time heartbeats fail (%d) or the store is told of (%d lines)"):format(failed, lines), 2)
end

describe("a fleet's store", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  after_each(function()
    fl:stop()
    proc.kill_all()
  end)

  teardown(proc.clean)

  -- ---- slow ----

  it("may be far away: all goes on as with one that is near", function()
    local r = redis.start()
    local far = relay.start(r.port)
    start({ redis = r, url = "redis://127.0.0.1:" .. far.port })
    far:delay(60)
    assert_unharmed(function()
      local worst, right = fl:under_load(function()
        fl:wait_count("baton_fleet_heartbeats_total", LONG)
      end)
      print(("    [p99 %.2f ms of %d requests, the store's answers 60 ms late]"):format(worst, right))
    end)
    for _, one in ipairs(fl) do
      assert.is_true(one:number("baton_fleet_lag_seconds") >= 0.06)
    end
    assert_converged()
  end)

  it("counts as away when its answers are late, and is back when they are not", function()
    local r = redis.start()
    local far = relay.start(r.port)
    start({ redis = r, url = "redis://127.0.0.1:" .. far.port })
    local held = fl.b:hold()
    eventually(function()
      return fl.a:others() == 1, fl.a:others()
    end, 10, "load is seen")
    far:delay(600) -- before a connection counts as silent
    local worst, right = fl:under_load(function()
      each("wait_degraded", "shared state: unavailable: no answer in 250 ms")
      fl:wait_count("baton_fleet_heartbeats_failed_total", LONG)
      eventually(function()
        return fl.a:others() == 0, fl.a:others()
      end, 10, "a load that nobody confirms counts no more")
      assert.equal(2, fl.a:listed())
      assert.equal(1, fl.a:number("baton_store_state", { state = "unavailable" }))
      far:delay(0)
      each("wait_up")
    end)
    print(("    [p99 %.2f ms of %d requests, the store's answers 600 ms late]"):format(worst, right))
    -- Nobody has waited for more than a few answers: one was late, then only probes went.
    for _, one in ipairs(fl) do
      assert.is_true(one:number("baton_store_timeouts_total") <= 30, one:number("baton_store_timeouts_total"))
    end
    eventually(function()
      return fl.a:others() == 1, fl.a:others()
    end, 10, "load is seen again")
    held:close()
    assert_converged()
    assert_told("is unavailable, serving on local data: no answer in 250 ms")
  end)

  it("keeps a hook that asks it waiting for its own deadline once, then nobody", function()
    local r = redis.start()
    local far = relay.start(r.port)
    r:ask("SET", "baton:{fleet}:p:mine:k", "v")
    start({ redis = r, url = "redis://127.0.0.1:" .. far.port, policy = ASKS })
    tells(fl.a, "v, nil")
    far:delay(100)
    tells(fl.a, "v, nil")
    far:delay(600)
    each("wait_degraded", "unavailable")
    -- A loop that has not asked yet learns it by its first question.
    local timeouts = fl.a:number("baton_store_timeouts_total")
    local asked = 0
    fl:under_load(function()
      eventually(function()
        asked = asked + 1
        return tell(fl.a):find("nil, no answer in 250 ms", 1, true)
      end, 10, "it is told at once")
      fl:wait_count("baton_fleet_heartbeats_failed_total", 10)
    end)
    timeouts = fl.a:number("baton_store_timeouts_total") - timeouts
    -- Each of the two loops may have had every connection of the load waiting once.
    assert.is_true(timeouts <= 40 + asked, timeouts)
    far:delay(0)
    each("wait_up")
    tells(fl.a, "v, nil") -- it is asked again
  end)

  it("is given up by a hook whose own time is over sooner", function()
    local r = redis.start()
    local far = relay.start(r.port)
    r:ask("SET", "baton:{fleet}:p:mine:k", "v")
    start({ redis = r, url = "redis://127.0.0.1:" .. far.port, policy = ASKS }, { "--policy-wait-ms", "20" })
    far:delay(150)
    tells(fl.a, "nil, the hook's time is over")
    assert.same({ [200] = 5 }, ask(fl.a, 5))
    fl.a:wait_up() -- it is not too slow for the store's own deadline
    far:delay(0)
    tells(fl.a, "v, nil")
  end)

  it("is slow when a gateway starts whose policy asks it: that starts and serves", function()
    local r = redis.start()
    local far = relay.start(r.port)
    local start_hook = [[start = function()
      local n, why = baton.shared.add("starts", 1)
      local text, again = baton.shared.get("k")
      return { said = tostring(n) .. ", " .. tostring(why) .. ", " .. tostring(text) .. ", " .. tostring(again) }
    end,]]
    start({ redis = r, url = "redis://127.0.0.1:" .. far.port })
    far:delay(600)
    local c = fl:add("c", { "--no-access-log" }, replicas.policy("c", start_hook))
    c:wait_degraded("unavailable: no answer in 250 ms")
    assert.equal("mine@c", c:version())
    assert.equal(0, c:lines(" error "))
    far:delay(0)
    c:wait_up()
  end)

  -- ---- answering, but refusing ----

  local other -- of REPLICAOF
  local busy -- the connection that keeps a server busy
  local FAULTS = {
    { what = "takes no writes for want of replicas", why = "NOREPLICAS",
      begin = function(r)
        r:ask("CONFIG", "SET", "min-replicas-to-write", 1)
      end,
      finish = function(r)
        r:ask("CONFIG", "SET", "min-replicas-to-write", 0)
      end },
    { what = "has become a replica", why = "READONLY",
      begin = function(r)
        other = redis.start()
        r:ask("REPLICAOF", "127.0.0.1", other.port)
      end,
      finish = function(r)
        r:ask("REPLICAOF", "NO", "ONE")
      end },
    { what = "is full", why = "OOM",
      begin = function(r)
        r:ask("CONFIG", "SET", "maxmemory", 1)
      end,
      finish = function(r)
        r:ask("CONFIG", "SET", "maxmemory", 0)
      end },
    { what = "permits no scripts", why = "NOPERM",
      begin = function(r)
        r:ask("ACL", "SETUSER", "default", "-eval", "-evalsha")
      end,
      finish = function(r)
        r:ask("ACL", "SETUSER", "default", "+@all")
      end },
    { what = "has somebody's endless script", why = "BUSY", words = { "--lua-time-limit", "50" },
      begin = function(r)
        busy = assert(socket.connect("127.0.0.1", r.port))
        assert(busy:send("EVAL \"while true do end\" 0\r\n"))
      end,
      finish = function(r)
        r:ask("SCRIPT", "KILL")
        busy:close()
      end },
    { what = "holds something else where the list of replicas should be", why = "baton:{fleet}:replicas",
      begin = function(r)
        r:ask("SET", "baton:{fleet}:replicas", "x")
      end,
      finish = function(r)
        r:ask("DEL", "baton:{fleet}:replicas")
      end },
    { what = "holds something else where the loads should be", why = "baton:{fleet}:load",
      begin = function(r)
        r:ask("SET", "baton:{fleet}:load", "x")
      end,
      finish = function(r)
        r:ask("DEL", "baton:{fleet}:load")
      end },
  }

  for _, fault in ipairs(FAULTS) do
    it("is degraded while it " .. fault.what, function()
      start({ redis = redis.start(fault.words) })
      local errors = fl.a:number("baton_store_errors_total")
      local worst, right = fl:under_load(function()
        fault.begin(fl.redis)
        each("wait_degraded", "shared state: degraded: ")
        each("wait_degraded", fault.why)
        fl:wait_count("baton_fleet_heartbeats_failed_total", LONG)
        for _, one in ipairs(fl) do
          assert.equal(1, one:number("baton_store_state", { state = "degraded" }))
          assert.equal(2, one:listed()) -- as many as were known last
          assert.is_true(one:number("baton_store_errors_total") >= errors + LONG)
        end
        fault.finish(fl.redis)
        each("wait_up")
      end)
      print(("    [p99 %.2f ms of %d requests]"):format(worst, right))
      assert_converged()
      assert_told("is degraded: ")
    end)
  end

  it("holds something else at one key: the rest goes on, so a cancel through the other gateway", function()
    start()
    fl.redis:ask("SET", "baton:{fleet}:prefix", "x")
    each("wait_degraded", "baton:{fleet}:prefix is of no use: ")
    local held = fl.a:hold()
    local function running()
      return select(2, fl.a:ask("GET", "/requests")).requests
    end
    eventually(function()
      return running()[1]
    end, 10, "is listed")
    assert.equal(202, (fl.b:ask("POST", "/requests/" .. running()[1].id .. "/cancel")))
    eventually(function()
      return #running() == 0, #running()
    end, 10, "has ended")
    held:close()
    fl.redis:ask("DEL", "baton:{fleet}:prefix")
    each("wait_up")
  end)

  it("holds something else at several keys: one is named, and how many more there are", function()
    start()
    local keys = { "baton:{fleet}:workers", "baton:{fleet}:calls", "baton:{fleet}:prefix" }
    for _, key in ipairs(keys) do
      fl.redis:ask("SET", key, "x")
    end
    for i, more in ipairs({ " (and 2 more)", " (and 1 more)", "" }) do
      each("wait_degraded", keys[i] .. more .. " is of no use: WRONGTYPE")
      assert.falsy(fl.a:degraded():find("user_script", 1, true))
      fl.redis:ask("DEL", keys[i])
    end
    each("wait_up")
    assert_converged()
  end)

  it("needs a user that may touch the fleet's keys, and no others", function()
    start()
    fl.redis:ask("ACL", "SETUSER", "default", "resetkeys", "~baton:{fleet}:*", "+@all")
    fl.redis:ask("ACL", "LOG", "RESET")
    local connects = fl.a:number("baton_store_connects_total")
    fl.redis:ask("CLIENT", "KILL", "TYPE", "normal") -- who comes again proves that it may write
    eventually(function()
      return fl.a:number("baton_store_connects_total") > connects
    end, 10, "it is back")
    each("wait_up")
    heartbeats()
    assert.equal(200, (fl.a:ask("GET", "/admin/fleet")))
    assert_converged()
    assert.same({}, fl.redis:ask("ACL", "LOG"))
  end)

  it("may forget its scripts: nothing of it is seen", function()
    start()
    assert_unharmed(function()
      fl:under_load(function()
        for _ = 1, 5 do
          fl.redis:ask("SCRIPT", "FLUSH")
          heartbeats()
        end
      end)
    end)
    assert_converged()
  end)

  -- ---- limits ----

  local function hold_to_half(fault, one_ask)
    fault.begin(fl.redis)
    each("wait_degraded", fault.why)
    for _, one in ipairs(fl) do
      assert.same({ [200] = 20, [429] = 10 }, one_ask(one, 30))
    end
    fault.finish(fl.redis)
    assert_listed()
  end

  local function stored(key)
    return fl.redis:ask("HGET", "baton:{fleet}:q:" .. key .. ":86400000", "n")
  end

  it("takes no writes: each holds a limit to its part, and tells what it granted afterwards", function()
    start({ policy = LIMIT })
    hold_to_half(FAULTS[1], ask)
    eventually(function()
      return stored("mine:requests") == "40", stored("mine:requests")
    end, 20, "the store knows what was granted without it")
    for _, one in ipairs(fl) do
      assert.same({ [429] = 5 }, ask(one, 5))
    end
  end)

  it("is full: tenants' limits hold by halves", function()
    local file = assert(io.open("policies/tenant_fair.lua"))
    local text = file:read("*a"):gsub("MINUTE_MS = 60000", "MINUTE_MS = 86400000")
    file:close()
    start({ policy = text }, { "--policy-param", "shared=true", "--policy-param", "requests_per_minute=40" })
    hold_to_half(FAULTS[3], function(one, times)
      return ask(one, times, { ["x-tenant-id"] = "acme" })
    end)
    eventually(function()
      return stored("tenant_fair:requests/acme") == "40", stored("tenant_fair:requests/acme")
    end, 20, "the store knows what was granted without it")
    assert.same({ [429] = 5 }, ask(fl.a, 5, { ["x-tenant-id"] = "acme" }))
    assert.same({ [429] = 5 }, ask(fl.b, 5, { ["x-tenant-id"] = "acme" }))
  end)

  -- ---- what it costs ----

  local function count(family)
    return fl.a:number(family) + fl.b:number(family)
  end

  -- The heartbeats' own are in it: how many of them fall on a request is the load's.
  local function trips_each(requests, header, values)
    local trips = count("baton_store_round_trips_total")
    for i = 1, requests do
      local answer = http.post(fl[i % 2 + 1].port, PATH, BODY, { [header] = "v" .. i % values })
      assert.equal(200, answer.status, answer.body)
    end
    return (count("baton_store_round_trips_total") - trips) / requests
  end

  for _, row in ipairs({
    { policy = "tenant_fair", header = "x-tenant-id",
      params = { "shared=true", "requests_per_minute=1000000", "tokens_per_minute=1000000000" } },
    { policy = "session_affinity", header = "x-session-id", params = { "shared=true", "refresh_s=3600" } },
  }) do
    it(("is asked less than once a request by %s, once it knows whom it serves"):format(row.policy), function()
      local file = assert(io.open("policies/" .. row.policy .. ".lua"))
      local text = file:read("*a")
      file:close()
      local words = {}
      for _, param in ipairs(row.params) do
        words[#words + 1] = "--policy-param"
        words[#words + 1] = param
      end
      start({ policy = text }, words)
      local trips, told = count("baton_store_round_trips_total"), count("baton_fleet_heartbeats_total")
      fl:wait_count("baton_fleet_heartbeats_total", 10)
      local idle = (count("baton_store_round_trips_total") - trips) / (count("baton_fleet_heartbeats_total") - told)
      local first = trips_each(80, row.header, 20)
      told = count("baton_fleet_heartbeats_total")
      local steady = trips_each(400, row.header, 20)
      local own = steady - (count("baton_fleet_heartbeats_total") - told) * idle / 400
      print(("    [%.2f round trips a request at first; %.2f at steady state, %.2f of them its own]"):format(first,
        steady, own))
      assert.is_true(own < 0.9, own) -- heartbeats go by time, however few requests there are meanwhile
    end)
  end

  -- ---- TLS ----

  -- A CA with a certificate of it for 127.0.0.1, and another CA that has nothing to do with them.
  local function make_certificates()
    local dir = proc.path("tls")
    local made = os.execute(([[mkdir %s && cd %s && { for ca in ca other; do
      openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=$ca -keyout $ca.key -out $ca.pem || exit 1; done
      openssl req -newkey rsa:2048 -nodes -subj /CN=x -keyout key.pem -out csr.pem &&
      printf 'subjectAltName=IP:127.0.0.1' >ext &&
      openssl x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem
      } >log 2>&1]]):format(dir, dir))
    return made == 0 and dir
  end

  it("is reached by TLS, if its certificate is of a known CA", function()
    fl = { stop = function() end }
    local dir = make_certificates()
    if not dir then
      pending("openssl makes no certificates here")
      return
    end
    local port = ports.free()
    local ok, r = pcall(redis.start, { "--tls-port", port, "--tls-cert-file", dir .. "/cert.pem", "--tls-key-file",
      dir .. "/key.pem", "--tls-ca-cert-file", dir .. "/ca.pem", "--tls-auth-clients", "no" })
    if not ok then
      pending("this redis-server has no TLS")
      return
    end
    start({ redis = r, url = "rediss://127.0.0.1:" .. port }, { "--redis-tls-ca", dir .. "/ca.pem" })
    local worst, right = fl:under_load(function()
      fl:wait_count("baton_fleet_heartbeats_total", LONG)
      r:kill()
      each("wait_degraded", "unavailable")
      r:again()
      each("wait_up")
    end)
    print(("    [p99 %.2f ms of %d requests]"):format(worst, right))
    assert_converged()
    assert_told("is unavailable, serving on local data")
    assert.is_true(fl.a:number("baton_tls_handshakes_total", { side = "store", version = "TLSv1.3" }) >= 2)
    local c = fl:add("c", { "--redis-tls-ca", dir .. "/other.pem" })
    c:wait_degraded("TLS: ")
    assert.same({ [200] = 5 }, ask(c, 5))
    assert.equal(2, fl.a:listed())
  end)
end)
