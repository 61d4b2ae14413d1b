-- Rules: which pool, policy and parameters a request gets by what it is; hot reload of the file, of parameters
-- and of pools.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":1}'
local PATH = "/v1/completions"

local f, folder, config_path

-- ---- files ----

local function replace(name, text)
  proc.replace(folder .. "/" .. name, text)
end

local function overwrite(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

-- Chooses the worker of the pool that its parameter says; its name is how a spec sees who decided.
local function policy(name, version, more)
  return ([[
return {
  api = 2, name = "%s", version = "%s",
  params = { index = { type = "integer", min = 1, max = 2, default = 1 } },
  %s
  plan = function(req, view, ctx)
    local at = view.hybrid[ctx.params.index] or view.hybrid[1]
    return { worker = at.id }
  end,
}
]]):format(name, version, more or "")
end

local function rules(list)
  return "return { api = 1, rules = { " .. list .. " } }"
end

-- The self-test asks for another model.
local BOOM = "if req.model == 'sim' then error('boom') end local at"

-- Takes longer than anybody waits, in an engine that only counts instructions.
local ENDLESS = '(("a"):rep(40)):match(("a?"):rep(40) .. ("a"):rep(40))'

local LONG = '{ name = "long", match = { headers = { ["X-Kind"] = "lo*" } }, pool = "long" }'

-- ---- the gateway ----

-- Pools: "default" with w0 and w1, "long" with w2.
local function config_text(workers, more)
  local w = workers
  return ([[return { policy_dir = "%s", rules_file = "%s/rules.lua",
    pools = { { name = "default", policy = "mine", %s workers = { { url = "%s" }, { url = "%s" } } },
              { name = "long", models = { "other" }, policy = "mine", workers = { { url = "%s" } } } } }]]):format(
    folder, folder, more or "", w.w0.url, w.w1.url, w.w2.url)
end

-- flags: more words of the gateway.
local function start(list, more, flags)
  folder = proc.path("rules")
  assert(os.execute("mkdir " .. folder) == 0)
  replace("mine.lua", policy("mine", "1"))
  replace("next.lua", policy("next", "1"))
  replace("rules.lua", rules(list))
  local worker = "role=hybrid,ttft=1,itl=1,name="
  f = fleet.start({
    workers = { worker .. "w0", worker .. "w1", worker .. "w2" },
    config = function(workers)
      return config_text(workers, more)
    end,
    flags = flags or { "--no-access-log" },
  })
  local list_of = assert(io.popen("ls " .. proc.folder() .. "/*-baton.lua")):read("*a")
  config_path = list_of:match("([^\n]+)\n$") -- names are numbered: the last one is ours
end

-- Which worker answered (by its port, whatever the gateway calls it), and who decided.
local function ask(headers, body)
  f:mark()
  local answer = http.post(f.port, PATH, body or BODY, headers)
  assert.equal(200, answer.status, answer.body)
  local legs = f:legs(PATH).hybrid
  assert.equal(1, #legs)
  return legs[1].worker, answer:header("x-baton-policy")
end

local function decided_by(headers)
  local answer = http.post(f.port, PATH, BODY, headers)
  assert.equal(200, answer.status, answer.body)
  return answer:header("x-baton-policy")
end

local function told()
  return json.decode(http.get(f.admin_port, "/admin/rules").body)
end

local function part(name)
  for _, row in ipairs(json.decode(http.get(f.admin_port, "/policies").body).pools) do
    if row.pool == name and row.part == "policy" then
      return row
    end
  end
end

local function wait_policy(wanted, headers)
  eventually(function()
    local seen = decided_by(headers)
    return seen == wanted, seen
  end, 10, "decided by " .. wanted)
end

local function wait_error(words)
  return eventually(function()
    local seen = told().error
    return type(seen) == "string" and seen:find(words, 1, true) and seen, seen
  end, 10, "GET /rules says " .. words)
end

local function count_log(words)
  return select(2, f.gateway:stderr():gsub(words:gsub("%p", "%%%0"), ""))
end

-- So many and no more; a line comes a moment after what it tells of.
local function assert_log(wanted, words)
  eventually(function()
    return count_log(words) >= wanted
  end, 10, "the log says " .. words)
  assert.equal(wanted, count_log(words))
end

describe("a rule", function()
  after_each(function()
    f:stop()
  end)

  it("chooses the pool, the policy and its parameters", function()
    start(LONG .. [[,
      { name = "next", match = { tenant = "acme" }, policy = "next" },
      { name = "second", match = { tenant = "globex" }, policy = "mine", params = { index = 2 } },
      { name = "own", match = { tenant = "initech" }, pool = "default", params = { index = 2 } }]])
    local worker, name = ask()
    assert.same({ "w0", "mine@1" }, { worker, name })
    worker = ask({ ["x-kind"] = "long" })
    assert.equal("w2", worker)
    worker, name = ask({ ["x-tenant-id"] = "acme" })
    assert.same({ "w0", "next@1" }, { worker, name })
    worker, name = ask({ ["x-tenant-id"] = "globex" })
    assert.same({ "w1", "mine@1" }, { worker, name })
    worker, name = ask({ ["x-tenant-id"] = "initech" })
    assert.same({ "w1", "mine@1" }, { worker, name })
    local list = told()
    assert.equal(1, list.generation)
    assert.equal(folder .. "/rules.lua", list.file)
    assert.equal(4, #list.rules)
    assert.same({ "long", 1 }, { list.rules[1].name, list.rules[1].hits })
    assert.equal("lo*", list.rules[1].match.headers["X-Kind"])
    assert.same({ "next", 1 }, { list.rules[2].targets[1].policy, list.rules[2].hits })
    assert.equal(2, list.rules[4].targets[1].params.index)
    assert.equal(2, part("rules:second").params.index)
  end)

  it("splits by weight, and a session stays on its side", function()
    start([[{ name = "canary", sticky = "session",
      split = { { weight = 80 }, { weight = 20, policy = "next" } } }]])
    local seen, count = {}, 0
    for i = 1, 300 do
      seen[i] = decided_by({ ["x-session-id"] = "s" .. i })
      count = count + (seen[i] == "next@1" and 1 or 0)
    end
    -- 60 expected, a deviation of 7: six of them
    assert.is_true(count > 18 and count < 102, tostring(count))
    for i = 1, 300, 3 do
      assert.equal(seen[i], decided_by({ ["x-session-id"] = "s" .. i }))
    end
    local targets = told().rules[1].targets
    assert.equal(400, targets[1].hits + targets[2].hits)
    -- another text of the canary, the same sessions
    replace("next.lua", policy("next", "2"))
    local first
    for i = 1, 300 do
      first = first or (seen[i] == "next@1" and i)
    end
    wait_policy("next@2", { ["x-session-id"] = "s" .. first })
    for i = 1, 60 do
      assert.equal((seen[i]:gsub("next@1", "next@2")), decided_by({ ["x-session-id"] = "s" .. i }))
    end
  end)

  it("follows its file: a new file under the name, the same file written, a link that is swapped", function()
    start(LONG)
    replace("rules.lua", rules('{ name = "all", policy = "next" }'))
    wait_policy("next@1")
    assert.equal(2, told().generation)
    overwrite(folder .. "/rules.lua", rules('{ name = "none", match = { model = "x" }, policy = "next" }'))
    wait_policy("mine@1")
    assert(os.execute(("cd %s && mkdir ..one ..two && mv rules.lua ..one/ && ln -s ..one ..data && "
      .. "ln -s ..data/rules.lua rules.lua"):format(folder)) == 0)
    replace("..two/rules.lua", rules('{ name = "all", policy = "next", params = { index = 2 } }'))
    assert(os.execute(("cd %s && ln -s ..two ..new && mv -T ..new ..data"):format(folder)) == 0)
    wait_policy("next@1")
    assert.equal("w1", (ask()))
    -- parameters alone
    replace("..two/rules.lua", rules('{ name = "all", policy = "next", params = { index = 1 } }'))
    eventually(function()
      return ask() == "w0"
    end, 10, "the first worker is asked")
  end)

  it("stays as it was when its file is broken, and says so once", function()
    start(LONG .. ', { name = "all", policy = "next" }')
    local broken = {
      { "return {", "rules.lua:1:" },
      { rules('{ name = "a", pool = "lonk" }'), 'rules[1].pool: there is no pool "lonk" (did you mean "long"?)' },
      { rules(LONG .. ', { name = "a", match = { n = { mim = 1 } }, pool = "long" }'),
        'rules[2].match.n.mim: unknown key, did you mean "min"?' },
      { rules('{ name = "a", policy = "nexd" }'), "rules[1].policy: no policy 'nexd'" },
      { rules('{ name = "a", policy = "next", params = { index = 3 } }'),
        "rules[1].params.index: 3 is above max 2" },
      { rules("{ name = " .. ENDLESS .. " }"), "rules.lua:1: string.match: the pattern takes too many steps" },
      { rules('{ name = "a", policy = "next", params = { index = 3 } }'),
        "rules[1].params.index: 3 is above max 2" },
    }
    for _, case in ipairs(broken) do
      replace("rules.lua", case[1])
      wait_error(case[2])
      assert.equal("next@1", decided_by())
      assert.equal("w2", (ask({ ["x-kind"] = "long" })))
      assert.equal(2, #told().rules)
      assert.equal(1, f:metric("baton_rules_not_as_in_file"))
    end
    replace("unrelated.lua", policy("u", "1")) -- an event: looked at again
    f.gateway:kill(proc.SIGHUP)
    eventually(function()
      return count_log("reloaded: epoch") == 1
    end, 10, "SIGHUP was heard")
    assert_log(2, "rules[1].params.index: 3 is above max 2")
    os.remove(folder .. "/rules.lua")
    wait_error("rules.lua")
    assert.equal("next@1", decided_by())
    replace("rules.lua", rules('{ name = "all", policy = "mine" }'))
    wait_policy("mine@1")
    assert.is_not_string(told().error)
    assert.equal(0, f:metric("baton_rules_not_as_in_file"))
  end)

  it("keeps the old text of its policy when that breaks", function()
    start('{ name = "all", policy = "next" }')
    replace("next.lua", "return {")
    eventually(function()
      local row = part("rules:all")
      return type(row.error) == "string" and row.error:find("next.lua", 1, true), row.error
    end, 10, "GET /policies says why")
    assert.equal("next@1", decided_by())
    replace("next.lua", policy("next", "2"))
    wait_policy("next@2")
  end)

  it("takes a policy back that fails soon after it came", function()
    start('{ name = "all", policy = "next" }')
    replace("next.lua", (policy("next", "2"):gsub("local at", BOOM)))
    wait_policy("default")
    for _ = 1, 12 do
      decided_by()
    end
    wait_policy("next@1")
    assert.equal(1, f:metric("baton_policy_rollbacks_total"))
  end)

  it("has a shadow that cannot stop the others", function()
    start('{ name = "try", shadow = { policy = "nowhere" } }, { name = "all", policy = "next" }')
    assert.equal("next@1", decided_by())
    local row = part("rules:try/shadow")
    assert.is_true(row.shadow)
    assert.truthy(row.error:find("rules[1].shadow.policy: no policy 'nowhere'", 1, true), row.error)
    assert_log(1, "rules:try/shadow is left out")
    replace("nowhere.lua", policy("nowhere", "1"))
    replace("rules.lua", rules('{ name = "try", shadow = { policy = "nowhere" } }, { name = "all", policy = "mine" }'))
    wait_policy("mine@1")
    row = part("rules:try/shadow")
    assert.equal("nowhere", row.name)
    assert.is_not_string(row.error)
    -- one that always fails is never taken back, and takes nobody with it
    replace("nowhere.lua", (policy("nowhere", "2"):gsub("local at", BOOM)))
    eventually(function()
      return part("rules:try/shadow").version == "2"
    end, 10, "the shadow is new")
    for _ = 1, 30 do
      assert.equal("mine@1", decided_by())
    end
    assert.equal("2", part("rules:try/shadow").version)
    assert.equal(0, f:metric("baton_policy_rollbacks_total"))
  end)
end)

describe("SIGHUP", function()
  local function reload(text, heard)
    local before = count_log(heard)
    overwrite(config_path, text)
    f.gateway:kill(proc.SIGHUP)
    eventually(function()
      return count_log(heard) > before
    end, 10, heard)
  end

  after_each(function()
    f:stop()
  end)

  it("brings parameters of pools, and refuses what does not fit as a whole", function()
    start(LONG)
    assert.equal("w0", (ask()))
    reload("return { policy = " .. ENDLESS .. " }", "reload refused, everything stays as it was: " .. config_path ..
      ":1: string.match: the pattern takes too many steps on a text of 40 bytes")
    reload(config_text(f.workers, "params = { index = 2 },"), "reloaded: epoch")
    eventually(function()
      return ask() == "w1"
    end, 10, "the second worker is asked")
    assert.equal(2, part("default").params.index)
    reload(config_text(f.workers, "params = { index = 12 }, max_attempts = 1,"),
      "pools[1].params.index: 12 is above max 2")
    assert_log(2, "reload refused, everything stays as it was")
    assert.equal("w1", (ask()))
    assert.equal(2, part("default").params.index)
  end)

  it("brings a new pool together with its policy and with the rules that wait for it", function()
    start(LONG)
    local new = '{ name = "new", match = { headers = { ["x-kind"] = "new" } }, pool = "new" }'
    replace("rules.lua", rules(LONG .. ", " .. new))
    wait_error('rules[2].pool: there is no pool "new"')
    assert.equal("w0", (ask({ ["x-kind"] = "new" })))
    local text = config_text(f.workers):gsub(", { url = [^}]*}", "", 1) -- w1 leaves "default" ...
    text = text:gsub("} } } }$", ('} }, { name = "new", models = { "fresh" }, policy = "next", '
      .. 'workers = { { url = "%s" } } } } }'):format(f.workers.w1.url)) -- and is all of "new"
    reload(text, "reloaded: epoch")
    eventually(function()
      local worker, name = ask({ ["x-kind"] = "new" })
      assert.equal(worker == "w1" and "next@1" or "mine@1", name)
      return worker == "w1", worker
    end, 10, "the new pool serves")
    assert.is_not_string(told().error)
    assert.equal("w0", (ask()))
  end)

  it("takes a pool away from requests that wait for it: they go where their model is", function()
    start(LONG, nil, { "--policy-wait-ms", "60000" })
    replace("mine.lua", policy("mine", "2", [[admit = function(req)
      if req.headers["x-go"] then baton.shared_local.set("go", 1) end
      while req.headers["x-wait"] and baton.shared_local.get("go") ~= 1 do
        if not baton.sleep(10) then return end
      end
    end,]]))
    wait_policy("mine@2")
    wait_policy("mine@2", { ["x-kind"] = "long" })
    local waiting = http.start(f.port,
      { method = "POST", path = PATH, body = BODY, headers = { ["x-kind"] = "long", ["x-wait"] = "1" } })
    eventually(function()
      return json.decode(http.get(f.admin_port, "/requests").body).total == 1
    end, 10, "it waits")
    replace("rules.lua", rules(""))
    reload(config_text(f.workers):gsub(",%s+{ name = \"long\".*$", " } }"), "reloaded: epoch")
    assert.equal("mine@2", decided_by({ ["x-go"] = "1" }))
    waiting:wait(nil, 20)
    assert.equal(200, waiting.answer.status, waiting.answer.body)
    assert.not_equal(f.workers.w2.url, waiting.answer:header("x-baton-worker"))
  end)

  it("keeps the rules' pools, or is refused", function()
    start(LONG)
    local text = config_text(f.workers):gsub('name = "long"', 'name = "brief"')
    reload(text, 'rules[1].pool: there is no pool "long"')
    assert.equal("w2", (ask({ ["x-kind"] = "long" })))
  end)
end)

describe("the start", function()
  it("is refused with the place of what is wrong", function()
    folder = proc.path("rules")
    assert(os.execute("mkdir " .. folder) == 0)
    replace("mine.lua", policy("mine", "1"))
    local function refused(words, list, why)
      replace("rules.lua", rules(list))
      local argv = { fleet.binary("BATON_BIN", "baton"), "run", "--port", "0", "--admin-port", "0",
        "--policy-dir", folder, "--rules-file", folder .. "/rules.lua", "--policy", "mine" }
      proc.append(argv, words)
      local code, _, err = proc.run(argv)
      assert.equal(2, code, err)
      assert.truthy(err:find(why, 1, true), err)
    end
    refused({}, '{ name = "a", pool = "x" }', "rules.lua: rules[1].pool: there is no pool")
    refused({}, "{ name = " .. ENDLESS .. " }", "rules.lua:1: string.match: the pattern takes too many steps")
    refused({}, '{ name = "a", policy = "mine", params = { index = 0 } }',
      "rules.lua: rules[1].params.index: 0 is below min 1")
    refused({ "--policy-param", "index=9" }, "", "--policy-param: params.index: 9 is above max 2")
    refused({ "--policy-param", "indx=1" }, "", "--policy-param: params.indx: the policy has no such parameter")
    refused({ "--policy-http-host", "nobody" }, "", "--policy-http-host: expected HOST:PORT")
  end)
end)
