-- baton fleet ...: what an operator types, against gateways over a real Redis.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")
local replicas = require("gateway.support.replicas")

local fl

-- Exit code, stdout, stderr. opts: env.
local function run(words, opts)
  local argv = { fleet.binary("BATON_BIN", "baton"), "fleet" }
  proc.append(argv, words)
  return proc.run(argv, { name = "fleet", seconds = 60, env = opts and opts.env })
end

local function url(one)
  return ("http://127.0.0.1:%d"):format(one.admin_port)
end

local function at(one, ...)
  return run({ "--admin", url(one), ... })
end

-- The words must do; stdout.
local function done(one, ...)
  local code, out, err = at(one, ...)
  assert.equal(0, code, table.concat({ ... }, " ") .. ": " .. out .. err)
  return out
end

local function has(text, part)
  assert.truthy(text:find(part, 1, true), ("%q is not in:\n%s"):format(part, text))
end

local function write(name, text)
  local folder = proc.path("push")
  assert(os.execute("mkdir " .. folder) == 0)
  local path = folder .. "/" .. name
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
  return path
end

describe("baton fleet, its words", function()
  teardown(proc.clean)

  it("teaches", function()
    local code, out = run({ "--help" })
    assert.equal(0, code)
    for _, word in ipairs({ "status", "policy push", "policy rollback", "policy pin|unpin", "rules push", "workers add",
      "room NUMBER", "--json", "Exit status", "Examples" }) do
      has(out, word)
    end
    local again = select(2, run({ "policy", "push", "--help" }))
    assert.equal(out, again)
    assert.equal(out, select(2, proc.run({ fleet.binary("BATON_BIN", "baton"), "help", "fleet" })))
  end)

  it("refuses what is wrong in one line, with the nearest word", function()
    local wrong = {
      { {}, "no command" },
      { { "statsu" }, "did you mean status?" },
      { { "status", "x" }, "takes no arguments" },
      { { "status", "--jsno" }, "did you mean --json?" },
      { { "status", "--admin" }, "--admin needs a value" },
      { { "status", "--timeout", "x" }, "--timeout: expected a number from 0.1 to 3600" },
      { { "status", "--timeout=9999" }, "--timeout: expected a number from 0.1 to 3600" },
      { { "status", "--json=1" }, "--json has no value" },
      { { "status", "--jsno=1" }, "did you mean --json?" },
      { { "status", "--admin", "ftp://x" }, "--admin ftp://x: " },
      { { "policy" }, "list, push, withdraw" },
      { { "policy", "push" }, "which file?" },
      { { "policy", "push", "/nowhere/x.lua" }, "/nowhere/x.lua: No such file" },
      { { "policy", "push", write("empty.lua", "") }, "is empty" },
      { { "policy", "withdraw" }, "names of policies, or --all" },
      { { "policy", "withdraw", "x", "--all" }, "names of policies, or --all" },
      { { "policy", "rollback", "x" }, "the number of a set" },
      { { "policy", "pin", "x" }, "--replica NAME" },
      { { "policy", "rollback", "--dry-run" }, "--dry-run: policy push" },
      { { "rules" }, "push or withdraw" },
      { { "rules", "push" }, "one file" },
      { { "workers", "fly" }, "list, add, remove" },
      { { "workers", "add" }, "which url?" },
      { { "workers", "add", "http://127.0.0.1:1", "role" }, "key=value is needed" },
      { { "workers", "remove" }, "one name or url" },
      { { "workers", "drain" }, "one name or url" },
      { { "room" }, "one number from 1 to 9223372036854775807" },
      { { "room", "0" }, "one number" },
      { { "room", "9223372036854775808" }, "one number" },
      { { "room", "12x" }, "one number" },
      { { "room", "1", "2" }, "one number" },
      { { "advice", "x" }, "takes no arguments" },
      { { "roo" }, "did you mean room?" },
      { { "status", "--admin-api-key", "a\r\nX: y" }, "control character" },
    }
    for _, case in ipairs(wrong) do
      local code, out, err = run(case[1])
      assert.equal(2, code, table.concat(case[1], " ") .. err)
      assert.equal("", out)
      has(err, "baton: fleet: ")
      has(err, case[2])
      assert.equal(1, select(2, err:gsub("\n", "")), err)
    end
  end)

  it("says who does not answer", function()
    local listener = assert(require("socket").bind("127.0.0.1", 0))
    local _, port = listener:getsockname()
    local silent = ("http://127.0.0.1:%d"):format(port)
    local code, _, err = run({ "status", "--admin", silent, "--timeout", "0.3" })
    assert.equal(1, code)
    has(err, silent .. " does not answer: ")
    listener:close()
    code, _, err = run({ "status", "--admin", silent })
    assert.equal(1, code)
    has(err, silent .. " does not answer: ")
  end)
end)

describe("baton fleet", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  teardown(proc.clean)

  after_each(function()
    fl:stop()
  end)

  it("shows who is there, and what is wrong", function()
    fl = replicas.start({ "a", "b" })
    local out = done(fl.a, "status")
    has(out, "fleet fleet, store up, set 0 of policies and rules (none: every replica has its own)")
    for _, one in ipairs(fl) do
      assert.truthy(out:find(one.name .. " +" .. url(one):gsub("%p", "%%%0") .. " +%S+ +ready +0 +%-"), out)
    end
    local told = json.decode(done(fl.b, "status", "--json"))
    assert.equal("up", told.fleet.store.state)
    assert.equal("b", told.policies.replica)
    -- A replica that hangs is told, within a deadline; the store that is gone as well.
    fl.b:freeze()
    local code
    code, out = at(fl.a, "status")
    assert.equal(1, code)
    assert.truthy(out:find("b +%S+ +%S+ +unreachable"), out)
    fl.b:thaw()
    fl.redis:kill()
    eventually(function()
      code, out = at(fl.a, "status")
      return code == 1 and out:find("store unavailable: ", 1, true), out
    end, 10, "the store is told to be away")
    local err
    code, out, err = at(fl.a, "policy", "push", write("mine.lua", replicas.policy("2")))
    assert.equal(1, code)
    assert.equal("", out)
    has(err, "the shared store does not do it")
  end)

  it("pushes policies and rules, lists them, and goes back", function()
    fl = replicas.start({ "a", "b" })
    local mine = write("mine.lua", replicas.policy("1"))
    local out = done(fl.a, "policy", "push", mine)
    has(out, "set 1 is committed\n")
    has(out, "  a serves it\n  b serves it\n")
    fl.b:wait_version("mine@1")
    has(done(fl.a, "policy", "push", mine), "set 1 has it already: nothing changed")
    -- Tried by all, served by none.
    out = done(fl.b, "policy", "push", write("mine.lua", replicas.policy("5")), "--dry-run")
    has(out, "every replica would serve it; nothing has changed\n  a would serve it\n  b would serve it\n")
    has(done(fl.b, "policy", "push", write("mine.lua", replicas.policy("1")), "--dry-run"), "nothing would change")
    local code, _, err = at(fl.a, "policy", "push", write("mine.lua", "return {"), "--dry-run")
    assert.equal(1, code)
    has(err, "not all replicas would serve it (set 2): replica ")
    assert.equal("mine@1", fl.b:version())
    -- Two files and rules at once.
    local rules = write("rules.lua", 'return { api = 1, rules = { { name = "r", policy = "other" } } }')
    local other = write("other.lua", (replicas.policy("7"):gsub('"mine"', '"other"')))
    local two = write("mine.lua", replicas.policy("2"))
    local told = json.decode(done(fl.b, "policy", "push", two, other, "--rules", rules, "--json"))
    assert.equal(2, told.number)
    assert.equal(2, #told.policies)
    fl.a:wait_version("other@7")
    out = done(fl.a, "policy", "list")
    has(out, "a serves set 2; the fleet's is set 2")
    assert.truthy(out:find("mine +%d+ +%x+\n"), out)
    assert.truthy(out:find("%(rules%) +%d+ +%x+\n"), out)
    assert.truthy(out:find("\n2 +committed +%d+%-%d+%-%d+ %d+:%d+:%d+Z +%S+@%S+ +%-\n"), out)
    -- A text that is refused: one line, 1, and nothing has changed.
    code, _, err = at(fl.a, "policy", "push", write("mine.lua", "return {"))
    assert.equal(1, code)
    has(err, "set 3 is committed nowhere: replica ")
    has(err, "fleet/mine.lua:")
    has(done(fl.a, "policy", "list"), "the fleet's is set 2")
    code, _, err = at(fl.a, "policy", "push", write("no name!.lua", replicas.policy("1")))
    assert.equal(1, code)
    has(err, "a policy's name is at most 64 letters")
    -- Back, rules alone, withdrawn.
    has(done(fl.b, "policy", "rollback"), "set 4 is committed")
    fl.a:wait_version("mine@1")
    has(done(fl.a, "policy", "list"), "back to 1")
    has(done(fl.a, "rules", "push", write("rules.lua", "return { api = 1, rules = {} }")), "set 5 is committed")
    has(done(fl.a, "rules", "withdraw"), "set 6 is committed")
    has(done(fl.a, "policy", "rollback", "2"), "set 7 is committed")
    fl.b:wait_version("other@7")
    has(done(fl.a, "policy", "push", two, "--replace"), "set 8 is committed")
    fl.b:wait_version("mine@2")
    assert.equal(1, #fl.b:fleet().serving.policies)
    has(done(fl.a, "policy", "withdraw", "mine"), "set 9 is committed")
    fl.b:wait_version("mine@file")
    code, _, err = at(fl.a, "policy", "withdraw", "mine")
    assert.equal(1, code)
    has(err, "mine: not in the fleet's set")
    done(fl.a, "policy", "push", mine)
    has(done(fl.a, "policy", "withdraw", "--all"), "set 11 is committed")
    fl.a:wait_version("mine@file")
  end)

  it("pins a replica through another one", function()
    fl = replicas.start({ "a", "b" })
    has(done(fl.a, "policy", "pin", "--replica", "b"), "b stays with set 0")
    local out = done(fl.a, "policy", "push", write("mine.lua", replicas.policy("1")))
    has(out, "  a serves it\n  b is pinned to set 0\n")
    has(done(fl.a, "status"), "0 (pinned)")
    assert.equal("mine@file", fl.b:version())
    local told = json.decode(done(fl.b, "policy", "unpin", "--json"))
    assert.is_false(told.pinned)
    fl.b:wait_version("mine@1")
    local code, _, err = at(fl.a, "policy", "pin", "--replica", "zz")
    assert.equal(1, code)
    has(err, "there is no replica zz")
  end)

  it("says by its exit status how a push ended", function()
    fl = replicas.start({ "a" })
    -- b cannot serve what has no such parameter; while it is pinned, nobody asks it.
    local with = 'params = { extra = { type = "integer", default = 0 } },'
    fl:add("b", { "--policy-param", "extra=1" }, replicas.policy("file", with))
    fl:wait_known({ "a", "b" })
    local mine = write("mine.lua", replicas.policy("1"))
    local code, out, err = at(fl.a, "policy", "push", mine)
    assert.equal(1, code, out .. err)
    done(fl.b, "policy", "pin")
    eventually(function()
      code, out, err = at(fl.a, "policy", "push", mine)
      return code == 0, out .. err
    end, 10, "a knows that b is pinned")
    done(fl.b, "policy", "unpin")
    eventually(function()
      code, out, err = at(fl.a, "policy", "push", mine)
      return code == 3 and out:find("  b still serves set 0: set ", 1, true), out .. err
    end, 10, "b is behind")
    has(out, "extra")
    -- The gateway that was asked goes away. Nobody else is asked: b would refuse at once.
    done(fl.b, "policy", "pin")
    eventually(function()
      code, out, err = at(fl.a, "policy", "push", mine)
      return code == 0, out .. err
    end, 10, "a knows that b is pinned again")
    local argv = { fleet.binary("BATON_BIN", "baton"), "fleet", "--admin", url(fl.a), "policy", "push",
      write("mine.lua", replicas.policy("2", "start = function() baton.sleep(4000) end,")) }
    local pushing = proc.start(argv, { name = "fleet" })
    eventually(function()
      local log = fl:log()
      return log[#log].what == "trying" and log[#log].replica == "a", json.encode(log[#log])
    end, 10, "a tries it")
    fl.a:kill()
    assert.equal(4, (pushing:wait(30)))
    code = at(fl.a, "policy", "push", mine) -- nobody has heard it
    assert.equal(1, code)
  end)

  it("adds, drains and removes workers everywhere", function()
    fl = replicas.start({ "a", "b" })
    local more = fleet.start_sim({ "role=hybrid,ttft=1,itl=1,name=w9" })
    local where = more.workers.w9.url
    has(done(fl.a, "workers", "add", where, "role=hybrid", "name=w9"), "w9 is added; the other replicas follow\n")
    local function row(one)
      local out = done(one, "workers", "list")
      return out:match("\n(w9[^\n]*)"), out
    end
    eventually(function()
      return row(fl.b)
    end, 10, "b has w9")
    local function wait_note(is_draining)
      for _, one in ipairs(fl) do
        eventually(function()
          local line = row(one)
          return (line:find("draining", 1, true) ~= nil) == is_draining, line
        end, 10, one.name .. " has heard")
      end
    end
    has(done(fl.a, "workers", "drain", where), "gets no new requests; the other replicas follow\n")
    wait_note(true)
    assert.same({ status = "serving", worker = "w9", fleet = "told" },
      json.decode(done(fl.b, "workers", "undrain", "w9", "--json")))
    wait_note(false)
    local code, _, err = at(fl.a, "workers", "drain", "nobody")
    assert.equal(1, code)
    has(err, "there is no worker nobody")
    has(done(fl.b, "workers", "remove", where), "is removed")
    eventually(function()
      return row(fl.a) == nil
    end, 10, "a has let w9 go")
    code, _, err = at(fl.a, "workers", "remove", "w9")
    assert.equal(1, code)
    has(err, "there is no worker w9")
    code, _, err = at(fl.a, "workers", "add", where, "rolle=hybrid")
    assert.equal(1, code)
    has(err, "rolle")
    more.process:stop(5)
  end)

  it("says when only one gateway has done it", function()
    fl = replicas.start({ "a", "b" })
    fl.redis:kill()
    fl.a:wait_degraded("unavailable")
    local why = "not told to the other replicas: the store is unavailable: they follow when it is back\n"
    local code, out, err = at(fl.a, "workers", "drain", "w0")
    assert.equal(1, code)
    has(out, "w0 gets no new requests\n")
    has(err, "baton: fleet: done here, " .. why)
    code, out, err = at(fl.a, "workers", "undrain", "w0", "--json")
    assert.equal(1, code)
    assert.equal("serving", json.decode(out).status)
    has(err, why)
    code, out, err = at(fl.a, "workers", "add", "http://127.0.0.1:9", "role=hybrid", "name=w9")
    assert.equal(1, code)
    has(out, "w9 is added\n")
    has(err, why)
    code, out, err = at(fl.a, "workers", "remove", "w9")
    assert.equal(1, code)
    has(out, "w9 is removed")
    has(err, why)
    fl.redis:again()
    fl.a:wait_up()
    has(done(fl.a, "workers", "drain", "w0"), "; the other replicas follow\n")
  end)

  it("shows what is drained and nobody's, and ends it", function()
    fl = replicas.start({ "a", "b" })
    local function hset(field, value)
      fl.redis:ask("HSET", "baton:{fleet}:workers", field, "0:" .. value)
    end
    hset("default 127.0.0.1:9@-1 drain", '{"stamp":5,"pool":"default","draining":true}')
    local line = "drained, and not a worker of this gateway: 127.0.0.1:9 of pool default " ..
      "(baton fleet workers undrain 127.0.0.1:9 ends it)\n"
    eventually(function()
      local out = done(fl.b, "status")
      return out:find(line, 1, true), out
    end, 10, "b has read it")
    eventually(function()
      return done(fl.a, "status"):find(line, 1, true)
    end, 10, "a has read it")
    has(done(fl.a, "workers", "undrain", "127.0.0.1:9"), "takes requests again; the other replicas follow\n")
    eventually(function()
      return not done(fl.b, "status"):find("drained", 1, true)
    end, 10, "b has heard")
    local code, _, err = at(fl.a, "workers", "undrain", "127.0.0.1:9")
    assert.equal(1, code)
    has(err, "there is no worker 127.0.0.1:9")
    -- A value that nobody can read changes nothing, and is told once.
    done(fl.a, "workers", "drain", fl.sim.workers.w0.url)
    local function field(one)
      local w = json.decode(done(one, "workers", "list", "--json")).workers[1]
      return ("%s %s@-1 drain"):format(w.pool, w.url:match("//(.*)")), w.draining
    end
    eventually(function()
      return select(2, field(fl.b))
    end, 10, "b has heard")
    hset((field(fl.a)), '{"v":2}')
    fl.b:wait_log("cannot be read: it changes nothing here")
    fl.b:wait_count("baton_fleet_heartbeats_total", 25)
    assert.is_true(select(2, field(fl.b)))
    fl.b:assert_lines(1, "cannot be read")
  end)

  it("has a key, and says when a gateway is alone", function()
    fl = replicas.start({}, nil)
    local one = fl:add("k", { "--admin-api-key", "s3cret" })
    local code, _, err = at(one, "status")
    assert.equal(1, code)
    has(err, "BATON_ADMIN_API_KEY")
    assert.equal(0, (at(one, "status", "--admin-api-key", "s3cret")))
    assert.equal(0, (run({ "status", "--admin", url(one) }, { env = { BATON_ADMIN_API_KEY = "s3cret" } })))
    local process, _, admin_port = fleet.start_gateway({ "--worker-urls", fl.sim.workers.w0.url })
    code, _, err = run({ "status", "--admin", ("http://127.0.0.1:%d"):format(admin_port) })
    assert.equal(1, code)
    has(err, "this gateway is alone: --redis-url makes it one of a fleet")
    local alone = { admin_port = admin_port } -- it has workers nevertheless
    has(done(alone, "workers", "drain", fl.sim.workers.w0.url), "gets no new requests\n")
    has(done(alone, "workers", "list"), "draining")
    done(alone, "workers", "undrain", fl.sim.workers.w0.url)
    assert.is_nil(done(alone, "workers", "list"):find("draining", 1, true))
    assert.equal(0, (process:stop(10)))
  end)
end)
