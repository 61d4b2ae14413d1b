-- One set of policies and rules for all replicas, by way of a real Redis: taken by all or by none.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")
local replicas = require("gateway.support.replicas")

local MINE = "/admin/fleet/policies/mine"
local policy = replicas.policy

local fl

local function push(to, version, more, body)
  local status, told = to:put(MINE, policy(version, more, body))
  assert(status == 200, json.encode(told))
  return told
end

local function row_of(told, name)
  for _, row in ipairs(told.replicas) do
    if row.replica == name then
      return row
    end
  end
end

local function all_serve(version)
  for _, one in ipairs(fl) do
    if one.process:is_alive() then
      one:wait_version("mine@" .. version)
    end
  end
end

describe("a fleet's policies", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  teardown(proc.clean)

  after_each(function()
    fl:stop()
  end)

  it("are pushed to one and taken by all, and everybody says which text serves and why", function()
    fl = replicas.start({ "a", "b", "c" })
    all_serve("file")
    local told = push(fl.a, "2")
    assert.is_true(told.changed)
    assert.equal(1, told.number)
    assert.equal(3, #told.replicas)
    for _, row in ipairs(told.replicas) do
      assert.equal(1, row.number, row.replica)
    end
    -- The answer comes when all have it: no request asked from now on is decided by another.
    for _, one in ipairs(fl) do
      assert.equal("mine@2", one:version())
      local _, listed = one:ask("GET", "/admin/policies")
      assert.equal("fleet", listed.pools[1].source)
      assert.equal("fleet/mine.lua", listed.pools[1].path)
      assert.truthy(listed.pools[1].why:find("set 1 of the fleet", 1, true), listed.pools[1].why)
      assert.equal(1, listed.fleet.set)
    end
    -- A file that changes has no say any more, nor has a PUT at one replica.
    local file = assert(io.open(fl.b.folder .. "/mine.lua", "w"))
    file:write(policy("newer-file"))
    file:close()
    local status, refused = fl.b:put("/admin/policies/mine", policy("9"))
    assert.equal(409, status)
    assert.truthy(refused.error.message:find("set 1 of the fleet has a policy mine", 1, true))
    -- The same once more changes nothing.
    told = push(fl.c, "2")
    assert.is_false(told.changed)
    assert.equal(1, told.number)
    -- Withdrawn: each replica's own file counts again.
    status, told = fl.c:ask("DELETE", MINE)
    assert.equal(200, status)
    assert.equal(2, told.number)
    assert.same({}, told.policies)
    fl.a:wait_version("mine@file")
    fl.b:wait_version("mine@newer-file")
    assert.equal(404, (fl.c:ask("DELETE", MINE)))
  end)

  it("come as a bundle, with rules, and go back to what was before", function()
    fl = replicas.start({ "a", "b" })
    push(fl.a, "1")
    local bundle = { policies = { mine = policy("2"), other = policy("2"):gsub('"mine"', '"other"') },
      rules = [[return { api = 1, rules = {
        { name = "r", match = { headers = { ["x-k"] = "o" } }, policy = "other" } } }]] }
    local status, told = fl.b:put("/admin/fleet/policies?by=ann", json.encode(bundle))
    assert.equal(200, status, json.encode(told))
    assert.equal(2, #told.policies)
    assert.is_table(told.rules)
    assert.equal("ann", told.by)
    all_serve("2")
    for _, one in ipairs(fl) do
      local answer = http.post(one.port, "/v1/completions", '{"model":"sim","prompt":"x","max_tokens":1}',
        { ["x-k"] = "o" })
      assert.equal("other@2", answer:header("x-baton-policy"))
      local _, rules = one:ask("GET", "/admin/rules")
      assert.equal("fleet/rules.lua", rules.file)
    end
    status, told = fl.a:ask("POST", "/admin/fleet/rollback")
    assert.equal(200, status, json.encode(told))
    assert.equal(3, told.number)
    assert.equal(1, told.copy_of)
    assert.equal(json.null, told.rules)
    all_serve("1")
    -- A rollback can be taken back, and any set that is kept can be named.
    assert.equal(200, (fl.b:ask("POST", "/admin/fleet/rollback")))
    all_serve("2")
    assert.equal(200, (fl.b:ask("POST", "/admin/fleet/rollback?to=1")))
    all_serve("1")
    status, told = fl.b:ask("POST", "/admin/fleet/rollback?to=77")
    assert.equal(400, status)
    assert.truthy(told.error.message:find("set 77 was never committed", 1, true))
    assert.equal(400, (fl.b:ask("POST", "/admin/fleet/rollback?to=x")))
    assert.equal(5, fl.a:fleet().committed)
  end)

  it("go nowhere when one replica refuses them", function()
    fl = replicas.start({ "a", "b" })
    -- c asks for a parameter that only the old text has.
    local words = { "--policy-param", "extra=1" }
    local with = 'params = { extra = { type = "integer", default = 0 } },'
    push(fl.a, "1", with)
    fl:add("c", words, policy("file", with))
    fl:wait_known({ "a", "b", "c" })
    all_serve("1")
    local status, told = fl.a:put(MINE, policy("2"))
    assert.equal(400, status)
    assert.truthy(told.error.message:find("set 2 is committed nowhere: replica c refuses: ", 1, true),
      told.error.message)
    assert.truthy(told.error.message:find("extra", 1, true), told.error.message)
    all_serve("1")
    eventually(function()
      return fl.b:fleet().sets[1].state == "aborted"
    end, 10, "b knows that set 2 is aborted")
    -- A text that nobody can use is refused by the first that looks, with file and line.
    status, told = fl.b:put(MINE, "return {\n  api = 1,\n  nonsense\n")
    assert.equal(400, status)
    assert.truthy(told.error.message:find("fleet/mine.lua:", 1, true), told.error.message)
    -- Also one that no pool asks for, and rules.
    status, told = fl.b:put("/admin/fleet/policies/unused", "error('no')")
    assert.equal(400, status)
    assert.truthy(told.error.message:find("fleet/unused.lua:1: no", 1, true), told.error.message)
    status, told = fl.b:put("/admin/fleet/rules", "return { api = 1, rules = { { pool = 'nowhere' } } }")
    assert.equal(400, status)
    assert.truthy(told.error.message:find("fleet/rules.lua: rules[1]", 1, true), told.error.message)
    assert.equal(1, fl.a:fleet().committed)
    push(fl.b, "3", with)
    all_serve("3")
  end)

  it("do not wait for a replica that was killed, but for one that hangs, until the deadline", function()
    fl = replicas.start({ "a", "b", "c", "d" }, { d = { "--fleet-expiry-ms", "3600000" } })
    -- Killed: its row runs out within the expiry, and the others go on.
    fl.c:kill()
    push(fl.a, "1")
    all_serve("1")
    -- Hangs, and its row lives: nothing is changed, and its name is told.
    fl.d:freeze()
    local status, told = fl.a:put(MINE, policy("2"))
    assert.equal(504, status, json.encode(told))
    assert.truthy(told.error.message:find("set 2 is committed nowhere: no vote within 10000 ms from d", 1, true),
      told.error.message)
    fl.d:thaw()
    all_serve("1")
    push(fl.a, "3")
    all_serve("3")
  end)

  it("are not left open by a proposer that was killed", function()
    fl = replicas.start({ "a", "b", "c" }, { c = { "--fleet-expiry-ms", "3600000" } })
    fl.c:freeze()
    local pushing = http.start(fl.a.admin_port, { method = "PUT", path = MINE, body = policy("1") })
    eventually(function()
      return fl.b:fleet().sets[1].state == "proposed" -- an error while there is none
    end, 10, "set 1 is proposed")
    -- While it goes on, nobody else may.
    local status, told = fl.b:put(MINE, policy("9"))
    assert.equal(409, status)
    assert.truthy(told.error.message:find("replica a is rolling something out", 1, true), told.error.message)
    fl.a:kill()
    pushing:close()
    fl.c:thaw()
    -- What the others say decides it; nothing of it needs who proposed it.
    fl.b:wait_version("mine@1")
    fl.c:wait_version("mine@1")
    push(fl.b, "2")
    all_serve("2")
    local sets = fl.b:fleet().sets
    assert.same({ 2, "committed", 1, "committed" }, { sets[1].number, sets[1].state, sets[2].number, sets[2].state })
  end)

  it("are there from the first request on, for a replica that joins later or was away", function()
    fl = replicas.start({ "a", "b" })
    push(fl.a, "1")
    fl:add("c")
    fl.c:wait_log("set 1 of the fleet serves, from the start")
    assert.equal("mine@1", fl.c:version())
    -- One that did not hear of a push follows as soon as it does.
    fl.b:freeze()
    eventually(function()
      return row_of(fl.a:fleet(), "b") == nil
    end, 10, "b is not waited for")
    push(fl.a, "2")
    fl.b:thaw()
    all_serve("2")
  end)

  it("are kept by a pinned replica, also over its restart", function()
    fl = replicas.start({ "a", "b" })
    push(fl.a, "1")
    local status, told = fl.b:ask("POST", "/admin/fleet/pin")
    assert.equal(200, status)
    assert.is_true(told.pinned)
    told = push(fl.a, "2")
    assert.is_true(row_of(told, "b").pinned)
    assert.equal(1, row_of(told, "b").number)
    fl.a:wait_version("mine@2")
    assert.equal("mine@1", fl.b:version())
    assert.is_true(fl.b:fleet().pinned)
    assert.equal(2, fl.b:fleet().committed)
    -- Its admin may try something there.
    assert.equal(200, (fl.b:put("/admin/policies/mine", policy("local"))))
    assert.equal("mine@local", fl.b:version())
    assert.equal(200, (fl.b:ask("DELETE", "/admin/policies/mine")))
    assert.equal("mine@1", fl.b:version())
    eventually(function()
      return fl.redis:ask("EXISTS", "baton:{fleet}:policy_pin:b") == 1
    end, 10, "the pin is in the store")
    fl.b:kill()
    fl:add("b")
    assert.equal("mine@1", fl.b:version())
    assert.is_true(fl.b:fleet().pinned)
    status, told = fl.b:ask("DELETE", "/admin/fleet/pin")
    assert.equal(200, status)
    assert.is_false(told.pinned)
    all_serve("2")
  end)

  it("serve on while Redis is gone, and a push says so", function()
    fl = replicas.start({ "a", "b" })
    push(fl.a, "1")
    fl.redis:kill()
    local began = clock.now()
    local status, told = fl.a:put(MINE, policy("2"))
    assert.equal(503, status)
    assert.truthy(told.error.message:find("the shared store does not do it", 1, true), told.error.message)
    assert.is_true(clock.now() - began < 60)
    all_serve("1")
    fl.redis:again() -- empty: what it had to say comes back from the replicas
    eventually(function()
      return fl:has_stored(1)
    end, 20, "set 1 is put back")
    fl:wait_known({ "a", "b" })
    assert.equal(2, push(fl.b, "2").number)
    all_serve("2")
  end)

  it("come back to a store that was flushed, and a replica starts without one", function()
    fl = replicas.start({ "a", "b" })
    push(fl.a, "1")
    push(fl.a, "2")
    fl.redis:ask("FLUSHALL")
    eventually(function()
      return fl:has_stored(2)
    end, 10, "set 2 is put back")
    fl:add("c")
    assert.equal("mine@2", fl.c:version())
    fl.redis:ask("FLUSHALL")
    eventually(function()
      return fl:has_stored(2)
    end, 10, "set 2 is put back again")
    fl:wait_known({ "a", "b", "c" })
    assert.equal(3, push(fl.c, "3").number)
    all_serve("3")
    fl.redis:kill()
    fl:add("d")
    fl.d:wait_log("this replica begins with its own")
    assert.equal("mine@file", fl.d:version())
    fl.redis:again()
    all_serve("3")
  end)

  it("say that a gateway is alone", function()
    fl = replicas.start({ "a" })
    local words = fl:words("x")
    local alone = {}
    for i, word in ipairs(words) do
      if word ~= "--redis-url" and words[i - 1] ~= "--redis-url" then
        alone[#alone + 1] = word
      end
    end
    local process, _, admin_port = require("gateway.support.fleet").start_gateway(alone)
    local answer = http.request(admin_port, { method = "PUT", path = MINE, body = policy("1") })
    assert.equal(404, answer.status)
    assert.truthy(answer.body:find("--redis-url", 1, true))
    assert.equal(0, (process:stop(10)))
  end)
end)
