-- Shadows: a second policy decides beside the one that serves. It is compared, counted and recorded; it changes nothing
-- for anybody.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":1}'
local RULE = '{ name = "try", shadow = { policy = "candidate"%s } }'

local f, folder

local function replace(name, text)
  proc.replace(folder .. "/" .. name, text)
end

-- Always this worker of the pool; `first` runs before it. The self-test asks for another model than "sim".
local function policy(name, version, index, first, more)
  return ([[
return {
  api = 2, name = "%s", version = "%s",
  %s
  plan = function(req, view, ctx)
    %s
    local at = view.hybrid[%d] or view.hybrid[1]
    return { worker = at.id }
  end,
}
]]):format(name, version, more or "", first or "", index)
end

local function rules(list)
  return "return { api = 1, rules = { " .. list .. " } }"
end

-- candidate: the shadow's text; in_rule: more of its rule; before: replaces files before the gateway starts.
local function start(candidate, in_rule, mine)
  folder = proc.path("shadow")
  assert(os.execute("mkdir " .. folder) == 0)
  replace("mine.lua", mine or policy("mine", "1", 1))
  replace("candidate.lua", candidate)
  replace("rules.lua", rules(RULE:format(in_rule or "")))
  local worker = "role=hybrid,ttft=0,itl=1,name="
  f = fleet.start({
    workers = { worker .. "w0", worker .. "w1" },
    flags = { "--policy-dir", folder, "--policy", "mine", "--rules-file", folder .. "/rules.lua" },
  })
end

local function ask(headers)
  local answer = http.post(f.port, PATH, BODY, headers)
  assert.equal(200, answer.status, answer.body)
  return answer
end

-- The policies that a client sees, and the worker.
local function ask_mine(version)
  local answer = ask()
  assert.equal("mine@" .. (version or "1"), answer:header("x-baton-policy"))
  return answer:header("x-baton-worker")
end

local function counts()
  return { same = f:metric("baton_shadow_same_total"), different = f:metric("baton_shadow_different_total"),
    errors = f:metric("baton_shadow_errors_total") }
end

local function explain(id)
  return fleet.explain(f.admin_port, id, 10)
end

local function part(name)
  for _, row in ipairs(json.decode(http.get(f.admin_port, "/policies").body).pools) do
    if row.pool == name and row.part == "policy" then
      return row
    end
  end
end

local function wait_part(name, version)
  eventually(function()
    local row = part(name)
    return row and row.version == version, row and tostring(row.version) .. " " .. tostring(row.error)
  end, 10, name .. " is at " .. version)
end

local function assert_no_harm()
  assert.equal(0, f:metric("baton_policy_errors_total"))
  assert.equal(0, f:metric("baton_policy_invalid_total"))
  assert.equal(0, f:metric("baton_policy_rollbacks_total"))
end

describe("a shadow", function()
  after_each(function()
    f:stop()
  end)

  it("that chooses otherwise changes nothing, and is counted and explained", function()
    start(policy("candidate", "7", 2, "if req.headers['x-same'] then return { worker = view.hybrid[1].id } end"))
    local worker = ask_mine()
    for _ = 1, 9 do
      assert.equal(worker, ask_mine())
    end
    assert.same({ same = 0, different = 10, errors = 0 }, counts())
    for _ = 1, 5 do
      assert.equal(worker, ask({ ["x-same"] = "1" }):header("x-baton-worker"))
    end
    assert.same({ same = 5, different = 10, errors = 0 }, counts())
    assert.equal(15, #f:legs(PATH).hybrid)
    for _, leg in ipairs(f:legs(PATH).hybrid) do
      assert.equal("w0", leg.worker)
    end
    ask({ ["X-Request-Id"] = "other" })
    local shadow = explain("other").shadow
    assert.same({ "try", "candidate", "7", false }, { shadow.rule, shadow.policy, shadow.version, shadow.same })
    assert.is_string(shadow.worker)
    assert.not_equal(worker, shadow.worker)
    assert.is_true(shadow.plan_ms >= 0)
    ask({ ["X-Request-Id"] = "same", ["x-same"] = "1" })
    shadow = explain("same").shadow
    assert.same({ true, worker }, { shadow.same, shadow.worker })
    assert.truthy(http.get(f.admin_port, "/admin/explain/other?format=text").body:find("shadow (rule try", 1, true))
    assert_no_harm()
  end)

  -- 400 draws at 0.5: six standard deviations are 60.
  it("decides for its share of the requests", function()
    start(policy("candidate", "1", 2), ", sample = 0.5")
    local c = http.connect(f.port)
    for _ = 1, 400 do
      c:ask({ path = PATH, body = BODY })
      c:wait()
      assert.equal(200, c.answer.status)
    end
    c:close()
    local seen = counts()
    assert.is_true(seen.different > 140 and seen.different < 260, tostring(seen.different))
    assert.same({ 0, 0 }, { seen.same, seen.errors })
  end)

  it("that fails or never ends costs no request, and takes nothing back", function()
    start(policy("candidate", "1", 2, [[
      if req.headers["x-error"] then error("no idea") end
      while req.headers["x-loop"] do end]]))
    for _ = 1, 12 do -- more than what takes a young policy back
      ask({ ["x-error"] = "1" })
    end
    assert.same({ same = 0, different = 0, errors = 12 }, counts())
    ask({ ["X-Request-Id"] = "failed", ["x-error"] = "1" })
    assert.truthy(explain("failed").shadow.error:find("no idea", 1, true))
    for _ = 1, 12 do
      local answer = ask({ ["x-loop"] = "1" })
      assert.equal("mine@1", answer:header("x-baton-policy"))
    end
    assert.equal(25, counts().errors)
    eventually(function() -- its VM was made anew meanwhile
      ask()
      return counts().different > 0, counts().errors
    end, 10, "it decides again")
    assert_no_harm()
    assert.equal("1", part("rules:try/shadow").version)
  end)

  it("that fails takes nothing back that came together with it", function()
    start(policy("candidate", "1", 2))
    ask_mine()
    -- One SIGHUP brings both: watching may have seen the first file alone, so both are looked at when both are there.
    replace("candidate.lua", policy("candidate", "2", 2, "if req.model == 'sim' then error('boom') end"))
    replace("mine.lua", policy("mine", "2", 2))
    f.gateway:kill(proc.SIGHUP)
    wait_part("default", "2")
    wait_part("rules:try/shadow", "2")
    for _ = 1, 25 do
      ask_mine("2")
    end
    assert.is_true(counts().errors >= 25)
    -- A third text shows that nothing was taken back or refused meanwhile.
    replace("mine.lua", policy("mine", "3", 1))
    wait_part("default", "3")
    ask_mine("3")
    assert_no_harm()
  end)

  local COUNTED = [[observe = function(events)
      for _ = 1, #events do baton.shared_local.add("seen", 1) end
    end,
    admit = function(req)
      if req.headers["x-tell"] then
        return { status = 418, reason = tostring(baton.shared_local.get("seen")) }
      end
    end,]]

  -- What a shadow has counted can only be seen in its choices: w1 once it has seen as many events as the request says.
  it("learns by observe, and has a shared_local of its own", function()
    start(policy("candidate", "1", 1, [[
      local wanted = tonumber(req.headers["x-wanted"])
      if wanted and baton.shared_local.get("seen") == wanted then return { worker = view.hybrid[2].id } end]],
      COUNTED:match("^(.-end,)\n%s*admit")), "", policy("mine", "1", 1, "", COUNTED:gsub("1%)", "100)", 1)))
    local function told()
      local answer = http.post(f.port, PATH, BODY, { ["x-tell"] = "1" })
      return tonumber(json.decode(answer.body).error.message)
    end
    for _ = 1, 5 do
      ask_mine()
    end
    eventually(function()
      return told() == 500, told()
    end, 10, "the policy that serves has seen five events")
    local seen = 5
    eventually(function() -- each question is one event more
      local before = counts().different
      ask({ ["x-wanted"] = tostring(seen) })
      local is_right = counts().different > before
      seen = told() / 100
      return is_right, seen
    end, 10, "the shadow has seen as many, and counts by one")
    assert_no_harm()
  end)

  it("that cannot be made is left out loudly, and comes with its next text", function()
    start("return { api = 2, name = 'candidate'")
    assert.equal("mine@1", ask():header("x-baton-policy"))
    local row = part("rules:try/shadow")
    assert.is_true(row.shadow)
    assert.truthy(row.error:find("candidate.lua:1", 1, true), row.error)
    f.gateway:says("rules:try/shadow is left out")
    assert.same({ same = 0, different = 0, errors = 0 }, counts())
    replace("candidate.lua", policy("candidate", "2", 2))
    wait_part("rules:try/shadow", "2")
    ask_mine()
    assert.same({ same = 0, different = 1, errors = 0 }, counts())
    replace("candidate.lua", policy("candidate", "3", 1))
    wait_part("rules:try/shadow", "3")
    ask_mine()
    assert.same({ same = 1, different = 1, errors = 0 }, counts())
    -- A broken text beside it: the one that decides goes on.
    replace("candidate.lua", "return {")
    eventually(function()
      local now = part("rules:try/shadow")
      return type(now.error) == "string" and now.version == "3", tostring(now.error)
    end, 10, "the broken text is told of")
    ask_mine()
    assert.equal(2, counts().same)
    assert_no_harm()
  end)
end)
