-- Texts that somebody pushes to the fleet: whatever they do, the control loops go on, and nobody is told a secret; a
-- set that brings a replica down does so once.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local ffi = require("ffi")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")
local replicas = require("gateway.support.replicas")

local MINE, RULES = "/admin/fleet/policies/mine", "/admin/fleet/rules"
local policy = replicas.policy

local fl

-- Pushes while every replica's control loop is asked for its health; the longest of these answers in seconds.
local function push_and_look(to, path, text)
  local pushing = http.start(to.admin_port, { method = "PUT", path = path, body = text })
  local longest = 0
  repeat
    for _, one in ipairs(fl) do
      local began = clock.now()
      local answer = http.request(one.admin_port, { path = "/health", seconds = 5 })
      assert.equal(200, answer.status, one.name)
      longest = math.max(longest, clock.now() - began)
    end
    pushing:pump()
    clock.nap(0.02) -- or asking takes the processor from those who validate
  until pushing.answer.done or pushing.answer.broken
  local answer = pushing:wait()
  pushing:close()
  return answer.status, json.decode(answer.body), longest
end

-- Refused, with these words; nobody waits for long meanwhile. Sets are validated in the background: on a machine
-- that is busy with other things nobody may have voted in time (504), and who pushed pushes again; an answer that is
-- late once may be the machine's fault, one that is late each time is not.
local function refused(to, path, text, words)
  local status, told, longest
  for _ = 1, 5 do
    status, told, longest = push_and_look(to, path, text)
    if status ~= 504 and longest < 1 * clock.slowness() then
      break
    end
  end
  assert.equal(400, status, json.encode(told))
  assert.truthy(told.error.message:find(words, 1, true), told.error.message)
  assert.is_true(longest < 1 * clock.slowness(), ("a control loop was away for %.1f s"):format(longest))
  return told.error.message
end

-- Until it stands in the log that it tries it.
local function wait_trying(name, number)
  eventually(function()
    local open = fl:trying(name)
    return open[#open] == number, json.encode(open)
  end, 20, name .. " tries set " .. number)
end

local function all_serve(version)
  for _, one in ipairs(fl) do
    if one.process:is_alive() then
      one:wait_version("mine@" .. version)
    end
  end
end

describe("what is pushed to a fleet", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  setup(function()
    ffi.C.setenv("BATON_SPEC_SECRET", "hunter2", 1) -- the gateways inherit it
  end)

  teardown(proc.clean)

  after_each(function()
    fl:stop() -- SIGTERM: each ends in time, with 0
  end)

  it("ends, whatever the rules do, and holds up nobody", function()
    fl = replicas.start({ "a", "b", "c" })
    local exponential = "local s = ('a'):rep(40)\nlocal p = ('a?'):rep(40) .. s\n"
    refused(fl.a, RULES, exponential .. "return { api = 1, rules = { { name = s:match(p), pool = 'x' } } }",
      "fleet/rules.lua:3: string.match is not available to pushed code")
    -- find is the plain one: what follows is reached, and has no such pool.
    refused(fl.b, RULES, exponential .. "assert(not s:find(p)) return { api = 1, rules = { { pool = 'nowhere' } } }",
      "fleet/rules.lua: rules[1]")
    refused(fl.c, RULES, "while true do end", "fleet/rules.lua:1: the code ran too long")
    refused(fl.b, RULES, "local n = ('a'):rep(500000) .. 'b' while true do ('a'):rep(1000000):find(n) end",
      "fleet/rules.lua:1: the code ran") -- over its budget, or too long: which limit is met first is the machine's
    refused(fl.c, RULES, "local t = {} while true do t[#t + 1] = { {}, {}, {}, {} } end", "fleet/rules.lua")
    refused(fl.a, RULES, "local s, t = ('x'):rep(1000000), {} for i = 1, 60000 do t[i] = s end return t",
      "too many bytes of strings in all")
    refused(fl.b, RULES, "return " .. ("a and "):rep(60000) .. "a", "fleet/rules.lua")
    -- A policy's file would be read by the control loop.
    refused(fl.c, RULES, "return { api = 1, rules = { { name = 'a', policy = '/dev/tty' } } }",
      '"/dev/tty" is a file, and pushed rules name policies')
    all_serve("file")
    local good = [[return { api = 1, rules = { { name = "r", match = { model = "sim" }, policy = "mine" } } }]]
    local status, told = push_and_look(fl.b, RULES, good)
    assert.equal(200, status, json.encode(told))
  end)

  it("says nothing of the environment", function()
    fl = replicas.start({ "a", "b" })
    local texts = {
      "return { api = 1, rules = { { name = env('BATON_SPEC_SECRET'), pool = 'default' } } }",
      "error(env('BATON_SPEC_SECRET'))",
      "local ok, e = pcall(env, 'BATON_SPEC_SECRET') return { api = 1, rules = { { name = e, pool = 'x' } } }",
    }
    for _, text in ipairs(texts) do
      local status, _, answer = fl.a:put(RULES, text)
      assert.equal(400, status, text)
      assert.is_nil(answer.body:find("hunter2", 1, true), answer.body)
      for _, one in ipairs(fl) do
        assert.is_nil(http.get(one.admin_port, "/admin/rules").body:find("hunter2", 1, true))
        assert.is_nil(http.get(one.admin_port, "/admin/fleet/policies").body:find("hunter2", 1, true))
      end
    end
    refused(fl.b, RULES, texts[1], "fleet/rules.lua:1: env is not available to pushed code")
  end)

  it("leaves no names behind when it is refused", function()
    fl = replicas.start({ "a", "b" })
    for i = 1, 3 do
      local names = ([[start = function()
        for i = 1, 3000 do baton.shared_local.add("refused%d/" .. i) end error("no") end,]]):format(i)
      refused(fl.a, MINE, policy("0", names), ": no")
    end
    assert.equal(200, (fl.b:put(MINE, policy("1", "", 'baton.shared_local.add("another")'))))
    all_serve("1")
  end)

  local slow = "start = function() baton.sleep(4000) end,"

  it("is not tried again by a replica that was killed while it tried", function()
    fl = replicas.start({ "a", "b" }, { b = { "--fleet-expiry-ms", "3600000" } })
    local status = fl.a:put(MINE, policy("1"))
    assert.equal(200, status)
    local pushing = http.start(fl.a.admin_port, { method = "PUT", path = MINE, body = policy("2", slow) })
    wait_trying("b", 2)
    fl.b:kill()
    fl:add("b", { "--fleet-expiry-ms", "3600000" })
    fl.b:wait_log("set 2 was being tried when this replica ended last")
    assert.equal("mine@1", fl.b:version())
    local answer = pushing:wait(nil, 30)
    pushing:close()
    assert.equal(400, answer.status, answer.body)
    assert.truthy(answer.body:find("set 2 is committed nowhere: replica b refuses: it brought this replica down before",
      1, true), answer.body)
    all_serve("1")
    -- It is about that set; the next one is tried, and then nothing is left open.
    assert.equal(200, (fl.b:put(MINE, policy("3"))))
    all_serve("3")
    eventually(function()
      return #fl:trying("a") == 0 and #fl:trying("b") == 0, json.encode(fl:log())
    end, 10, "all trials have ended")
  end)

  it("is begun without by a replica that it has brought down, until another set comes", function()
    fl = replicas.start({ "a", "b" })
    assert.equal(200, (fl.a:put(MINE, policy("1", slow))))
    all_serve("1")
    fl.b:kill()
    local words = fl:words("b")
    for i, word in ipairs({ fleet.binary("BATON_BIN", "baton"), "run", "--port", "0", "--admin-port", "0" }) do
      table.insert(words, i, word)
    end
    local starting = proc.start(words, { name = "baton" })
    wait_trying("b", 1)
    starting:kill(proc.SIGKILL)
    starting:wait()
    fl:add("b")
    fl.b:wait_log("set 1 brought this replica down before: it starts without it")
    assert.equal("mine@file", fl.b:version())
    local told = fl.b:fleet()
    assert.equal(0, told.serving.number)
    assert.equal(1, told.committed)
    assert.truthy(told.error:find("set 1 does not serve here: it brought this replica down", 1, true), told.error)
    eventually(function()
      for _, row in ipairs(fl.a:fleet().replicas) do
        if row.replica == "b" then
          return tostring(row.error):find("brought this replica down", 1, true), json.encode(row)
        end
      end
    end, 10, "a knows why b does not serve it")
    assert.equal(200, (fl.b:put(MINE, policy("2"))))
    all_serve("2")
    assert.equal(json.null, fl.b:fleet().error)
  end)
end)
