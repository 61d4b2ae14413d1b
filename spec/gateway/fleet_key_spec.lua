-- baton fleet goes on to addresses that the store names. The admin key goes only to gateways that the operator has
-- named: whoever may write to the store must not have it sent to him.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")
local replicas = require("gateway.support.replicas")
local stub = require("gateway.support.stub")

local KEY = "s3cret-4711"
local READY = stub.reply(200, '{"status":"ready"}')

local fl, thief

local function url(one)
  return ("http://127.0.0.1:%d"):format(one.admin_port)
end

local function has(text, part)
  assert.truthy(text:find(part, 1, true), ("%q is not in:\n%s"):format(part, text))
end

-- Exit code, stdout, stderr of `baton fleet`; listeners are served meanwhile.
local function run(words, opts)
  local argv = { fleet.binary("BATON_BIN", "baton"), "fleet" }
  proc.append(argv, words)
  local env = not (opts and opts.is_keyless) and { BATON_ADMIN_API_KEY = KEY } or nil
  local process = proc.start(argv, { name = "fleet", env = env })
  local deadline = clock.now() + 60 * clock.slowness()
  while process:is_alive() do
    for _, one in ipairs(http.background) do
      one:pump()
    end
    assert(clock.now() < deadline, "it does not end")
    clock.nap(0.002)
  end
  for _, one in ipairs(http.background) do
    one:pump() -- what came last
  end
  return process.code, process:stdout(), process:stderr()
end

-- What has come to a listener since the last look: requests, and whether any of them brought the key.
local function taken(one)
  local requests, has_key = one.requests, false
  one.requests = {}
  for _, request in ipairs(requests) do
    has_key = has_key or request.head:find(KEY, 1, true) ~= nil
  end
  return #requests, has_key
end

local function assert_nothing_came()
  assert.same({}, thief.peers)
  assert.equal(0, (taken(thief)))
end

-- One line that says who was not asked, why, and what would change that.
local function assert_told(err, ...)
  assert.equal(1, select(2, err:gsub("\n", "")), err)
  for _, name in ipairs({ ... }) do
    has(err, name)
  end
  has(err, "--gateway URL")
  has(err, "--trust-store")
  assert.is_nil(err:find(KEY, 1, true))
end

describe("the admin key of baton fleet", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  local function wait_listed(one, count)
    eventually(function()
      local answer = http.get(one.admin_port, "/admin/fleet", { Authorization = "Bearer " .. KEY })
      return #json.decode(answer.body).replicas == count, answer.body
    end, 10, one.name .. " knows all")
  end

  -- A row that somebody has written into the store: a replica that may have minted any room, and never ran.
  setup(function()
    thief = stub.start(function()
      return READY
    end)
    fl = replicas.start({}, nil)
    fl:add("a", { "--admin-api-key", KEY })
    fl:add("b", { "--admin-api-key", KEY })
    fl.redis:ask("HSET", "baton:{fleet}:replicas", "thief#1", "0:" .. json.encode({ name = "thief",
      incarnation = "1", admin = thief.url, version = "9", rooms = { word = 0, loops = 1024 } }))
    for _, one in ipairs(fl) do
      wait_listed(one, 3)
    end
    taken(thief)
  end)

  teardown(function()
    thief:stop()
    fl:stop()
    proc.clean()
  end)

  it("goes to no address that the store alone names", function()
    local code, out, err = run({ "status", "--admin", url(fl.a) })
    assert.equal(0, code, out .. err)
    assert.truthy(out:find("a +%S+ +%S+ +ready"), out)
    assert.truthy(out:find("b +%S+ +%S+ +not asked"), out)
    assert.truthy(out:find("thief +%S+ +%S+ +not asked"), out)
    assert_told(err, "b (" .. url(fl.b) .. ")", "thief (" .. thief.url .. ")")
    assert_nothing_came()
  end)

  it("goes to those that are named, and to no others", function()
    local port = fl.b.admin_port
    for _, words in ipairs({
      { "--gateway", url(fl.b) }, { "--gateway", "http://127.0.0.1:1," .. url(fl.b) .. "/" },
      { "--gateway", "http://127.0.0.1:1", "--gateway", "HTTP://127.0.0.1:" .. port },
      { "--gateway", "127.0.0.1:" .. port },
    }) do
      local code, out, err = run({ "status", "--admin", url(fl.a), unpack(words) })
      assert.equal(0, code, out .. err)
      assert.truthy(out:find("b +%S+ +%S+ +ready"), out)
      assert.truthy(out:find("thief +%S+ +%S+ +not asked"), out)
      assert_told(err, "thief (" .. thief.url .. ")")
      assert.is_nil(err:find(url(fl.b), 1, true))
    end
    -- Names are compared as they are written.
    local _, out, err = run({ "status", "--admin", url(fl.a), "--gateway", "http://localhost:" .. port })
    assert.truthy(out:find("b +%S+ +%S+ +not asked"), out)
    assert_told(err, "b (" .. url(fl.b) .. ")")
    assert_nothing_came()
  end)

  it("goes to all where the operator says so", function()
    for _, words in ipairs({ { "--trust-store" }, { "--gateway", url(fl.b) .. "," .. thief.url } }) do
      local code, out, err = run({ "status", "--admin", url(fl.a), unpack(words) })
      assert.equal(0, code, out .. err)
      assert.equal("", err)
      assert.truthy(out:find("thief +%S+ +%S+ +ready"), out)
      local count, has_key = taken(thief)
      assert.equal(1, count)
      assert.is_true(has_key)
    end
  end)

  it("is not sent to find a room", function()
    local code, out, err = run({ "room", "77", "--admin", url(fl.a) })
    assert.equal(1, code)
    assert.equal("", out)
    has(err, "thief: the store names " .. thief.url)
    has(err, "--gateway URL")
    has(err, "--trust-store")
    has(err, "room 77 is at no replica that could be asked")
    assert_nothing_came()
    run({ "room", "77", "--admin", url(fl.a), "--trust-store" })
    local count, has_key = taken(thief)
    assert.equal(1, count)
    assert.is_true(has_key)
  end)

  it("is not sent to pin a replica", function()
    for _, name in ipairs({ "b", "thief" }) do
      local code, out, err = run({ "policy", "pin", "--replica", name, "--admin", url(fl.a) })
      assert.equal(1, code)
      assert.equal("", out)
      assert_told(err, name)
    end
    assert_nothing_came()
    local _, out = run({ "policy", "pin", "--replica", "b", "--admin", url(fl.a), "--gateway", url(fl.b) })
    has(out, "b stays with set 0")
    _, out = run({ "policy", "unpin", "--replica", "b", "--admin", url(fl.a), "--trust-store" })
    has(out, "b follows the fleet again")
    taken(thief)
  end)

  it("follows no redirect", function()
    local elsewhere = stub.start(function()
      return READY
    end)
    local crooked = stub.start(function()
      return stub.reply(302, "", { Location = elsewhere.url .. "/admin/fleet" })
    end)
    local code, out, err = run({ "status", "--admin", crooked.url })
    assert.equal(1, code)
    assert.equal("", out)
    has(err, "it answered 302")
    assert.equal(1, (taken(crooked)))
    assert.equal(0, (taken(elsewhere)))
    assert.same({}, elsewhere.peers)
    crooked:stop()
    elsewhere:stop()
  end)

  it("is not needed to look at gateways that have none", function()
    local keyless = fl:add("c")
    wait_listed(keyless, 4)
    local code, out, err = run({ "status", "--admin", url(keyless) }, { is_keyless = true })
    assert.equal(1, code, out .. err) -- a and b refuse
    assert.equal("", err)
    assert.truthy(out:find("c +%S+ +%S+ +ready"), out)
    assert.truthy(out:find("b +%S+ +%S+ +refused"), out)
    assert.truthy(out:find("thief +%S+ +%S+ +ready"), out)
    local count, has_key = taken(thief)
    assert.equal(1, count)
    assert.is_false(has_key)
  end)

  it("is refused to what is no address", function()
    for _, case in ipairs({ { "ftp://x", "--gateway ftp://x: only http://" }, { "", "--gateway : " },
      { "http://a:1,", "--gateway : " }, { "http://a:99999", "the port must be" } }) do
      local code, out, err = run({ "status", "--gateway", case[1] })
      assert.equal(2, code, err)
      assert.equal("", out)
      has(err, case[2])
    end
    local code, _, err = run({ "status", "--gateway" })
    assert.equal(2, code)
    has(err, "--gateway needs a value")
  end)
end)
