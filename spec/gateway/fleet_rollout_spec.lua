-- A fleet of four, and what may befall it while a set is on its way, at every step: at the end all replicas serve the
-- new one, or all serve the old one, and what was answered agrees with it.

local eventually = require("gateway.support.eventually")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")
local replicas = require("gateway.support.replicas")

local MINE = "/admin/fleet/policies/mine"
local NAMES = { "a", "b", "c", "d" }
-- A trial that takes its time: steps can be told apart.
local SLOW = "start = function() baton.sleep(700) end,"

local fl
local number = 0 -- of versions

local function live()
  local list = {}
  for _, name in ipairs(NAMES) do
    if fl[name] and fl[name].process:is_alive() then
      list[#list + 1] = fl[name]
    end
  end
  return list
end

-- Until nothing is open and all serve the same; which version that is.
local function settled()
  local version
  eventually(function()
    local first = nil
    for _, one in ipairs(live()) do
      local told = one:fleet()
      local newest = told.sets and told.sets[1]
      if not told.serving or told.serving.number ~= told.committed or (newest and newest.state == "proposed") then
        return false, one.name .. ": " .. json.encode(told)
      end
      version = one:version()
      if version ~= (first or version) then
        return false, ("%s serves %s, not %s"):format(one.name, version, first)
      end
      first = version
    end
    return true
  end, 40, "all serve the same")
  return version
end

local function push_plain()
  number = number + 1
  local status, told
  eventually(function() -- the store may just have come back
    status, told = fl.b:put(MINE, replicas.policy(tostring(number)))
    return status == 200, json.encode(told)
  end, 30, "a set is pushed")
  assert.equal("mine@" .. number, settled())
end

-- How many entries of this kind there are about the newest proposal of the log.
local function entries(what)
  local uuid, n = nil, 0
  for _, e in ipairs(fl:log()) do
    if e.what == "propose" then
      uuid, n = e.uuid, 0
    end
    if e.what == what and e.uuid == uuid then
      n = n + 1
    end
  end
  return n, uuid
end

-- Steps of a push, by what the log shows.
local STEPS = {
  { "it is proposed", "propose", 1 },
  { "the first tries it", "trying", 1 },
  { "all try it", "trying", 4 },
  { "the first says yes", "yes", 1 },
  { "it is committed", "yes", 4 },
}

local function begin_push(step, by)
  number = number + 1
  local _, before = entries("propose")
  local pushing = http.start((by or fl.a).admin_port, { method = "PUT", path = MINE,
    body = replicas.policy(tostring(number), SLOW) })
  eventually(function()
    local n, uuid = entries(step[2])
    return uuid ~= before and n >= step[3], n
  end, 15, step[1])
  return pushing
end

-- Was it trying the newest set when it was killed?
local function has_died_of_it(name)
  local newest
  for _, e in ipairs(fl:log()) do
    newest = e.what == "propose" and e.number or newest
  end
  local tried = fl:trying(name)
  return tried[#tried] == newest
end

-- The answer must agree with what serves.
local function assert_agrees(pushing, old)
  local answer = pushing:wait(nil, 60)
  pushing:close()
  local now, new = settled(), "mine@" .. number
  if answer.status == 200 then
    assert.equal(new, now)
  elseif answer.status == 502 then
    assert.truthy(answer.body:find("the shared store became unavailable", 1, true), answer.body)
    assert.is_true(now == new or now == old, now)
  else
    assert.equal(old, now, answer.status .. " " .. answer.body)
  end
end

-- Puts what a proposer that is gone had written: texts (of a set that is in the store), and the proposal if asked.
local function write_as_proposer(from, uuid, is_proposed)
  local e
  for _, one in ipairs(fl:log()) do
    e = one.what == "propose" and one.number == from and one or e
  end
  local at = fl.a:fleet()
  local text = fl.redis:ask("GET", "baton:{fleet}:policy_set:" .. e.uuid)
  text = text:gsub('"number":%d+', ('"number":%d'):format(at.sets[1].number + 1), 1)
  text = text:gsub((e.uuid:gsub("%-", "%%-")), uuid, 1)
  fl.redis:ask("SET", "baton:{fleet}:policy_set:" .. uuid, text)
  if not is_proposed then
    return
  end
  local last = fl.redis:ask("XREVRANGE", "baton:{fleet}:policy_log", "+", "-", "COUNT", "1")[1][1]
  local epoch, n = last:match("^(%d+)%-(%d+)$")
  fl.redis:ask("XADD", "baton:{fleet}:policy_log", ("%s-%d"):format(epoch, tonumber(n) + 1), "v", json.encode({
    what = "propose", number = at.sets[1].number + 1, uuid = uuid, hash = e.hash, previous = at.committed,
    previous_uuid = at.serving.uuid, replica = "gone", by = "spec", members = NAMES,
  }))
end

describe("a set on its way through a fleet of four", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  teardown(proc.clean)

  after_each(function()
    fl:stop()
  end)

  it("is taken by all, or refused by one and taken by none", function()
    fl = replicas.start({ "a", "b", "c" })
    local with = 'params = { extra = { type = "integer", default = 0 } },'
    fl:add("d", { "--policy-param", "extra=1" }, replicas.policy("file", with))
    fl:wait_known(NAMES)
    local status, told = fl.a:put(MINE, replicas.policy("1", with))
    assert.equal(200, status, json.encode(told))
    assert.equal("mine@1", settled())
    for _, one in ipairs(live()) do
      status, told = one:put(MINE, replicas.policy("2"))
      assert.equal(400, status)
      assert.truthy(told.error.message:find("replica d refuses: ", 1, true), told.error.message)
      assert.equal("mine@1", settled())
    end
  end)

  it("needs nobody who proposed it, at whichever step that one was killed", function()
    fl = replicas.start(NAMES)
    push_plain()
    local one = fl.b:fleet().serving.number
    push_plain()
    -- After the texts: nobody has heard of it.
    write_as_proposer(one, "11111111-2222-3333-4444-555555555555", false)
    push_plain()
    -- After the proposal: the others need no more.
    write_as_proposer(one, "21111111-2222-3333-4444-555555555555", true)
    fl.b:wait_version("mine@1")
    assert.equal("mine@1", settled())
    for _, step in ipairs(STEPS) do
      push_plain()
      local old = "mine@" .. number
      local pushing = begin_push(step)
      fl.a:kill()
      pushing:close()
      local now = settled() -- of the others, which do not wait for it
      assert.is_true(now == old or now == "mine@" .. number, now)
      local has_died = has_died_of_it("a")
      fl:add("a")
      fl:wait_known(NAMES)
      if has_died and now ~= old then
        local told = fl.a:fleet()
        assert.equal(0, told.serving.number)
        assert.truthy(told.error:find("it brought this replica down before", 1, true), told.error)
      else
        assert.equal(now, settled())
      end
    end
    push_plain()
  end)

  it("waits for the one who proposed it, when that one was killed and comes back at once", function()
    local words = { "--fleet-expiry-ms", "3600000" } -- its row lives on
    fl = replicas.start(NAMES, { d = words })
    for _, step in ipairs(STEPS) do
      push_plain()
      local old = "mine@" .. number
      local pushing = begin_push(step, fl.d)
      fl.d:kill()
      pushing:close()
      local has_died = has_died_of_it("d")
      fl:add("d", words)
      local now = settled()
      assert.is_true(now == old or (now == "mine@" .. number and not has_died), now)
    end
  end)

  local function stop_redis(words)
    fl = replicas.start(NAMES, nil, { redis = redis.start(words) })
    push_plain()
    for _, step in ipairs(STEPS) do
      local old = "mine@" .. number
      local pushing = begin_push(step)
      fl.redis:kill()
      eventually(function()
        return fl.b:fleet().store_error ~= json.null
      end, 15, "the store is missed")
      for _, one in ipairs(live()) do
        local now = one:version()
        assert.is_true(now == old or now == "mine@" .. number, now)
      end
      fl.redis:again()
      assert_agrees(pushing, old)
      fl:wait_known(NAMES)
      push_plain()
    end
  end

  it("ends the same for all when Redis stops at any step, and comes back as it was", function()
    stop_redis({ "--appendonly", "yes", "--appendfsync", "always" })
  end)

  it("ends the same for all when Redis stops at any step, and comes back empty", function()
    stop_redis()
  end)

  it("is decided without a replica that comes late, which takes what was decided", function()
    fl = replicas.start({ "a", "b", "c" })
    push_plain()
    local pushing = begin_push({ "it is proposed", "propose", 1 })
    fl:add("d")
    local answer = pushing:wait(nil, 60)
    pushing:close()
    assert.equal(200, answer.status, answer.body)
    assert.equal("mine@" .. number, settled())
    assert.equal("mine@" .. number, fl.d:version())
  end)
end)
