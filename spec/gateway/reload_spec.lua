-- Policies change while traffic flows: by file, by SIGHUP, by the admin listener.
-- No request may notice but by its headers.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local policy_files = require("gateway.support.policy_files")
local proc = require("gateway.support.proc")

local BROKEN, policy, replace = policy_files.BROKEN, policy_files.policy, proc.replace
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":4}'
local PATH = "/v1/completions"

local f, folder

local function sh(command)
  assert(os.execute(command) == 0, command)
end

-- ---- the gateway ----

local function start(flags)
  folder = proc.path("policies")
  sh("mkdir " .. folder)
  local words = flags and flags(folder) or { "--policy-dir", folder, "--policy", "mine" }
  local worker = "role=hybrid,ttft=1,itl=1"
  f = fleet.start({ workers = { worker .. ",name=w0", worker .. ",name=w1" }, flags = words })
end

local function mine()
  return folder .. "/mine.lua"
end

local function ask(port)
  local answer = http.post(port or f.port, PATH, BODY)
  assert(answer.status == 200, answer.body)
  return answer
end

local function version_now()
  return ask():header("x-baton-policy")
end

local function policies()
  return json.decode(http.get(f.admin_port, "/policies").body)
end

local function put(name, text)
  local answer = http.request(f.admin_port, { method = "PUT", path = "/admin/policies/" .. name, body = text })
  return answer, json.decode(answer.body)
end

local function wait_version(wanted)
  eventually(function()
    local seen = version_now()
    return seen == wanted, seen
  end, 10, "the policy is " .. wanted)
end

local function wait_error(part)
  return eventually(function()
    local row = policies().pools[1]
    return type(row.error) == "string" and row.error:find(part, 1, true) and row, row.error
  end, 10, "GET /policies says " .. part)
end

local function metric(line)
  return f:metric(line)
end

describe("a policy", function()
  before_each(function()
    start(function(dir)
      replace(dir .. "/mine.lua", policy("1"))
      return { "--policy-dir", dir, "--policy", "mine" }
    end)
  end)

  after_each(function()
    f:stop()
  end)

  it("is tried by a dry run, which says what would change and changes nothing", function()
    local before = http.get(f.admin_port, "/policies").body
    local answer, told = put("mine?dry_run=true", policy("2"))
    assert.equal(200, answer.status, answer.body)
    assert.same({ policy = "mine", name = "mine", version = "2", generation = 1, changed = true, pools = { "default" },
      dry_run = true }, told)
    answer = put("mine?dry_run=true", BROKEN[3])
    assert.equal(400, answer.status)
    assert.matches("admin/mine.lua:", answer.body, nil, true)
    for _, query in ipairs({ "dry_run=1", "dryrun=true", "dry_run" }) do
      answer = put("mine?" .. query, policy("3"))
      assert.equal(400, answer.status, query)
      assert.matches("dry_run=true or false", answer.body)
    end
    assert.equal(before, http.get(f.admin_port, "/policies").body)
    assert.equal(0, metric('baton_policy_reloads_total{result="ok"}'))
    assert.equal(0, metric('baton_policy_reloads_total{result="refused"}'))
    assert.equal("mine@1", version_now())
    assert.equal(200, put("mine?dry_run=false", policy("4")).status)
    assert.equal("mine@4", version_now())
    assert.is_false(select(2, put("mine?dry_run=true", policy("4"))).changed)
  end)

  it("is named in the answer's headers, with its generation", function()
    local answer = ask()
    assert.equal("mine@1", answer:header("x-baton-policy"))
    assert.equal("1", answer:header("x-baton-policy-generation"))
    local told = policies()
    assert.equal(1, told.generation)
    assert.equal("default", told.pools[1].pool)
    assert.equal("dir", told.pools[1].source)
    assert.equal("good", told.pools[1].state)
    assert.same({ "mine" }, told.dir)
  end)

  it("changes when its file is replaced, written in place, or behind a link that is swapped", function()
    replace(mine(), policy("2"))
    wait_version("mine@2")
    assert.equal("2", ask():header("x-baton-policy-generation"))
    local file = assert(io.open(mine(), "w"))
    file:write(policy("3"))
    file:close()
    wait_version("mine@3")
    -- A ConfigMap: mine.lua -> ..data/mine.lua, ..data -> ..one
    sh(("mkdir %s/..one %s/..two"):format(folder, folder))
    replace(folder .. "/..one/mine.lua", policy("4"))
    replace(folder .. "/..two/mine.lua", policy("5"))
    sh(("cd %s && ln -s ..one ..data && ln -sf ..data/mine.lua mine.lua"):format(folder))
    wait_version("mine@4")
    sh(("cd %s && ln -s ..two ..new && mv -T ..new ..data"):format(folder))
    wait_version("mine@5")
    replace(folder .. "/..two/mine.lua", policy("6"))
    wait_version("mine@6")
    assert.equal(6, metric('baton_policy_generation{pool="default"}'))
    assert.equal(5, metric('baton_policy_reloads_total{result="ok"}'))
  end)

  it("keeps serving when the new text is broken in any way, and says why once", function()
    for i, text in ipairs(BROKEN) do
      replace(mine(), text)
      eventually(function()
        return metric('baton_policy_reloads_total{result="refused"}') == i
      end, 10, "refusal " .. i)
      assert.equal("mine@1", version_now())
      assert.truthy(policies().pools[1].error:find("mine.lua", 1, true), policies().pools[1].error)
    end
    assert.truthy(wait_error("mine.lua"))
    replace(mine(), policy("2"))
    wait_version("mine@2")
    assert.equal("on_probation", policies().pools[1].state)
    assert.equal(2, policies().generation)
  end)

  it("answers PUT with the generation that serves on all loops, or with file and line", function()
    local answer, told = put("mine", policy("7"))
    assert.equal(200, answer.status, answer.body)
    assert.equal(2, told.generation)
    assert.equal("7", told.version)
    assert.same({ "default" }, told.pools)
    for _ = 1, 20 do
      assert.equal("mine@7", version_now())
    end
    answer, told = put("mine", policy("8"):gsub("plan =", "plann ="))
    assert.equal(400, answer.status)
    assert.truthy(told.error.message:find("admin/mine.lua", 1, true), answer.body)
    assert.truthy(told.error.message:find("'plan'", 1, true), answer.body)
    answer, told = put("mine", "return {\n  x = = 1 }")
    assert.equal(400, answer.status)
    assert.truthy(told.error.message:find("admin/mine.lua:2:", 1, true), answer.body)
    assert.equal("mine@7", version_now())
    -- a file that changes below it does not take it away; DELETE does
    replace(mine(), policy("9"))
    answer = http.request(f.admin_port, { method = "DELETE", path = "/policies/mine" })
    assert.equal(200, answer.status, answer.body)
    assert.equal("mine@9", version_now())
    answer = http.request(f.admin_port, { method = "DELETE", path = "/policies/mine" })
    assert.equal(404, answer.status, answer.body)
    assert.equal(400, (put("..%2fmine", policy("1"))).status)
    assert.equal(200, (put("nobodys", policy("1"))).status)
  end)

  it("leaves no names behind when it is refused, while the names of what serves go on", function()
    local count = [[local n = baton.shared_local.add("served", 1) if n > 1e9 then error("never") end]]
    put("mine", policy("counts", count))
    for _ = 1, 3 do
      ask()
    end
    -- More than there is room for in the process, in start and before the self-test.
    local names = [[for i = 1, 3000 do
      baton.shared_local.add("%s/" .. i, 1) baton.ewma("%s/" .. i, 1) baton.window("%s/" .. i, 1, 1)
    end]]
    for i = 1, 4 do
      local made = names:gsub("%%s", "made" .. i)
      local text = policy("0"):gsub("plan =", "start = function() " .. made .. " error('no') end,\n  plan =")
      local answer, told = put("mine", text)
      assert.equal(400, answer.status)
      assert.truthy(told.error.message:find(": no", 1, true), answer.body)
    end
    for i = 1, 4 do
      local made = names:gsub("%%s", "tested" .. i)
      local text = policy("0", "error('no')"):gsub("plan =", "start = function() " .. made .. " end,\n  plan =")
      local answer, told = put("mine", text)
      assert.equal(400, answer.status)
      assert.truthy(told.error.message:find("self-test", 1, true), answer.body)
    end
    -- There is room for others, and what served goes on counting over the reload.
    local answer = put("mine", policy("good", [[baton.shared_local.add("another", 1)
      local n = baton.shared_local.add("served", 1) if req.model == "sim" and n < 4 then error("forgotten") end]]))
    assert.equal(200, answer.status, answer.body)
    for _ = 1, 5 do
      assert.equal("mine@good", version_now())
    end
    assert.equal(json.null, policies().pools[1].error)
  end)

  it("falls back loudly when its file goes", function()
    os.remove(mine())
    wait_error("no policy 'mine'")
    assert.equal("mine@1", version_now())
    assert.equal("fallen_back", policies().pools[1].state)
    assert.equal(1, metric("baton_policy_fallbacks_total"))
    f.gateway:says("serves on from memory")
    replace(mine(), policy("2"))
    wait_version("mine@2")
    assert.equal("on_probation", policies().pools[1].state)
  end)

  it("is taken back when it fails soon after it came, and not tried again until it changes", function()
    local bad = policy("2", "if req.model == 'sim' then error('boom') end")
    replace(mine(), bad)
    wait_version("default")
    for _ = 1, 12 do
      ask()
    end
    wait_version("mine@1")
    local row = wait_error("boom")
    assert.truthy(row.error:find("taken back", 1, true), row.error)
    assert.equal(1, metric("baton_policy_rollbacks_total"))
    assert.equal(3, policies().generation)
    f.gateway:says("was taken back")
    assert.equal(1, select(2, f.gateway:stderr():gsub("was taken back", "")))
    f.gateway:kill(proc.SIGHUP)
    replace(folder .. "/other.lua", policy("1")) -- an event in the folder: looked at again
    eventually(function()
      return select(2, f.gateway:stderr():gsub("reloaded:", "")) == 1
    end, 10, "SIGHUP was heard")
    assert.equal("mine@1", version_now())
    replace(mine(), policy("4"))
    wait_version("mine@4")
    assert.equal("on_probation", policies().pools[1].state)
    assert.equal(0, metric('baton_policy_not_as_asked{pool="default"}'))
  end)

  it("is taken back to what served before it, on probation or not", function()
    replace(mine(), policy("2"))
    wait_version("mine@2")
    replace(mine(), policy("3", "if req.model == 'sim' then error('boom') end"))
    wait_version("default")
    for _ = 1, 12 do
      ask()
    end
    wait_version("mine@2")
    assert.equal("on_probation", policies().pools[1].state) -- it may still go back to the first
    f.gateway:says("mine@2 serves again")
  end)

  it("is looked at by SIGHUP, which makes no generation when nothing has changed", function()
    f.gateway:kill(proc.SIGHUP)
    eventually(function()
      return f.gateway:stderr():find("reloaded: epoch", 1, true) ~= nil
    end, 10, "SIGHUP was heard")
    assert.equal(1, policies().generation)
    replace(mine(), policy("2"))
    f.gateway:kill(proc.SIGHUP)
    wait_version("mine@2")
    assert.equal(2, policies().generation)
  end)
end)

describe("probation", function()
  local function start_with(secs)
    start(function(dir)
      replace(dir .. "/mine.lua", policy("1"))
      return { "--policy-dir", dir, "--policy", "mine", "--policy-probation-secs", secs,
        "--policy-rollback-errors", "2" }
    end)
  end

  after_each(function()
    f:stop()
  end)

  it("bears as many errors as its flag says", function()
    start_with("60")
    replace(folder .. "/mine.lua", policy("2", "if req.model == 'sim' then error('boom') end"))
    wait_version("default")
    for _ = 1, 3 do
      ask()
    end
    wait_version("mine@1")
  end)

  it("is as long as its flag says", function()
    start_with("0.3")
    replace(folder .. "/mine.lua", policy("2"))
    wait_version("mine@2")
    eventually(function()
      return policies().pools[1].state == "good"
    end, 5, "its time is over")
  end)
end)

describe("a shipped policy", function()
  it("is covered by a file of the same name, and comes back when that goes", function()
    start(function(dir)
      return { "--policy-dir", dir, "--policy", "random" }
    end)
    local path = folder .. "/random.lua"
    assert.truthy(version_now():find("^random@"))
    replace(path, policy("1"))
    wait_version("mine@1")
    os.remove(path)
    eventually(function()
      return version_now():find("^random@") ~= nil
    end, 10, "the shipped one is back")
    assert.equal(1, metric("baton_policy_fallbacks_total"))
    f.gateway:says("the shipped one serves")
    f:stop()
  end)
end)

describe("a request", function()
  after_each(function()
    f:stop()
  end)

  -- Generation 1 is asked for the next try; generation 2 would give up.
  it("keeps the generation it began with over a retry", function()
    start(function(dir)
      replace(dir .. "/mine.lua", policy("1"))
      return { "--policy-dir", dir, "--policy", "mine", "--answer-timeout-secs",
        tostring(clock.slowness()) }
    end)
    f.sim:fault("w0", { kind = "hang", times = 1 })
    local c = http.start(f.port, { path = PATH, body = BODY })
    eventually(function()
      return #f:legs(PATH).hybrid == 1
    end, 5, "its leg runs")
    local gives_up = policy("2"):gsub("}%s*$", "fallback = function() return nil end }")
    assert.equal(200, (put("mine", gives_up)).status)
    c:wait()
    assert.equal(200, c.answer.status, c.answer.body)
    assert.equal("mine@1", c.answer:header("x-baton-policy"))
    assert.equal("1", c.answer:header("x-baton-policy-generation"))
    assert.equal("2", c.answer:header("x-baton-attempts"))
    c:close()
    -- and generation 2 does give up
    f.sim:fault("w0", { kind = "hang", times = 1 })
    local answer = http.post(f.port, PATH, BODY)
    assert.is_true(answer.status >= 500, answer.status)
    assert.equal("2", answer:header("x-baton-policy-generation"))
  end)

  it("makes a reload wait while four generations are alive, and nobody is refused", function()
    start(function(dir)
      replace(dir .. "/mine.lua", policy("1"))
      return { "--policy-dir", dir, "--policy", "mine" }
    end)
    -- one per loop at least: sockets are spread by the kernel
    local held = {}
    local function hold(generation)
      for _ = 1, 16 do
        held[#held + 1] = { generation = tostring(generation), c = http.start(f.port,
          { path = PATH, body = BODY, headers = { ["X-Sim-Fault"] = "slow_first_byte:3000@hybrid" } }) }
      end
      eventually(function()
        return #f:legs(PATH).hybrid >= #held
      end, 5, "they run")
    end
    hold(1)
    for generation = 2, 4 do
      local answer, told = put("mine", policy(tostring(generation)))
      assert.equal(200, answer.status, answer.body)
      assert.equal(generation, told.generation)
      hold(generation)
    end
    local began = clock.now()
    local late = http.start(f.admin_port, { method = "PUT", path = "/policies/mine", body = policy("5") })
    eventually(function()
      local told = policies()
      return told.reloading == true and (told.step == "reserve" or told.step == "abort"), told.step
    end, 5, "the fifth waits for room on the loops")
    assert.equal("mine@4", version_now())
    late:wait()
    assert.equal(200, late.answer.status, late.answer.body)
    assert.is_true(clock.now() - began > 0.2, "it waited")
    late:close()
    assert.equal("mine@5", version_now())
    for _, h in ipairs(held) do
      h.c:wait()
      assert.equal(200, h.c.answer.status)
      assert.equal(h.generation, h.c.answer:header("x-baton-policy-generation"))
      h.c:close()
    end
  end)
end)

teardown(function()
  proc.clean()
end)
