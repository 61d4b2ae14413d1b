-- Hooks that may wait (admit, route, tick), and observe: through the real gateway, with requests side by side.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":4}'
local STREAM = '{"model":"sim","prompt":"hello there","max_tokens":4,"stream":true}'

local f, folder

-- text: the policy's members beside api, name and version; what stands before `return` may come first.
local function policy(text, before)
  return ([[
%s
return { api = 2, name = "mine", version = "1",
  plan = function(req, view, ctx) return { worker = view.hybrid[1] } end,
  %s }
]]):format(before or "", text)
end

local function write(text)
  local file = assert(io.open(folder .. "/mine.lua.tmp", "w"))
  file:write(text)
  file:close()
  assert(os.rename(folder .. "/mine.lua.tmp", folder .. "/mine.lua"))
end

local function start(text, flags)
  folder = proc.path("policies")
  assert(os.execute("mkdir " .. folder) == 0)
  write(text)
  local words = { "--policy-dir", folder, "--policy", "mine" }
  proc.append(words, flags)
  local worker = "role=hybrid,ttft=1,itl=1,name="
  f = fleet.start({ workers = { worker .. "w0", worker .. "w1" }, flags = words })
end

local function ask(headers, body)
  return http.post(f.port, PATH, body or BODY, headers)
end

local function message(answer)
  return json.decode(answer.body).error.message
end

local function log_has(text)
  return eventually(function()
    return f.gateway:stderr():find(text, 1, true) ~= nil, f.gateway:stderr():sub(-1500)
  end, 10, "the log says " .. text)
end

local function live()
  return json.decode(http.get(f.admin_port, "/requests").body).total
end

describe("a hook that may wait", function()
  after_each(function()
    if f then
      f:stop()
      f = nil
    end
  end)

  it("rejects with its own status, Retry-After and reason", function()
    start(policy([[admit = function(req)
      if req.tenant == "flood" then
        return { status = 429, retry_after = 7, reason = "tenant flood is over its rate" }
      end
    end]]))
    local answer = ask({ ["x-tenant-id"] = "flood" })
    assert.equal(429, answer.status)
    assert.equal("7", answer:header("retry-after"))
    assert.equal("tenant flood is over its rate", message(answer))
    assert.equal("rate_limit_error", json.decode(answer.body).error.type)
    assert.equal(200, ask({ ["x-tenant-id"] = "calm" }).status)
    assert.equal(200, ask().status)
    assert.equal(1, f:metric("baton_policy_rejected_total"))
    assert.equal(2, #f:legs(PATH).hybrid)
  end)

  it("asks an allowed host, and no other, and decides by its answer", function()
    local other = fleet.start_sim({ "role=hybrid,name=x" })
    local port = other.workers.x.port
    start(policy([[admit = function(req)
      if req.headers["x-ask"] == nil then return end
      local answer, why = baton.http{ url = req.headers["x-ask"], timeout_ms = 2000 }
      return { status = 418, reason = answer and "said " .. answer.status or why }
    end]]), {
      "--policy-wait-ms", "5000", "--policy-http-host", "127.0.0.1:" .. port, "--policy-http-host", "127.0.0.1:1",
    })
    local function told(url)
      local answer = ask({ ["x-ask"] = url })
      assert.equal(418, answer.status, f.gateway:stderr():sub(-1500))
      return message(answer)
    end
    assert.equal("said 200", told("http://127.0.0.1:" .. port .. "/health"))
    assert.equal("said 404", told("http://127.0.0.1:" .. port .. "/nothing/here"))
    assert.truthy(told("http://127.0.0.1:1/check"):find("connect", 1, true))
    other.process:stop(5)
    assert.truthy(told("http://127.0.0.1:" .. port .. "/health"):find("connect", 1, true))
    -- A mistake of the policy's: it is logged with the remedy, and the request goes on.
    assert.equal(200, ask({ ["x-ask"] = f.workers.w0.url .. "/health" }).status)
    log_has("is not an allowed host; start baton with --policy-http-host")
    assert.equal(200, ask({ ["x-ask"] = "https://127.0.0.1/" }).status)
    log_has("http://")
    assert.equal(2, f:metric("baton_policy_errors_total"))
  end)

  it("keeps what each request has left in ctx.vars, however they interleave", function()
    start([[
      local function admit(req, ctx)
        ctx.vars.wanted = req.headers["x-worker"] or "w0"
        baton.sleep(tonumber(req.headers["x-ms"] or 0))
        if ctx.vars.wanted ~= (req.headers["x-worker"] or "w0") then return { status = 500, reason = "mixed up" } end
      end
      local function route(req, ctx)
        baton.sleep(tonumber(req.headers["x-ms"] or 0))
        return { class = "c" .. ctx.vars.wanted, key = "k" .. ctx.vars.wanted }
      end
      local function plan(req, view, ctx)
        local wanted = ctx.vars.wanted
        if req.class and (req.class ~= "c" .. wanted or req.session ~= "k" .. wanted) then error("mixed up") end
        for _, w in ipairs(view.hybrid) do
          if w.name == ctx.vars.wanted then return { worker = w } end
        end
      end
      return { api = 2, name = "mine", version = "1", admit = admit, route = route, plan = plan }
    ]], { "--policy-wait-ms", "20000" })
    local asks = {}
    for i = 1, 40 do
      asks[i] = {
        method = "POST", path = PATH, body = i % 3 == 0 and STREAM or BODY,
        headers = { ["x-worker"] = "w" .. i % 2, ["x-ms"] = tostring((i * 7) % 60) },
      }
    end
    for i, answer in ipairs(http.together(f.port, asks, 30)) do
      assert.equal(200, answer.status, answer.body)
      assert.equal("w" .. i % 2, answer:header("x-baton-worker"))
      assert.equal("mine@1", answer:header("x-baton-policy"))
    end
    assert.equal(0, f:metric("baton_policy_errors_total"))
  end)

  it("sends a request to another pool, and stays where it is when there is none of that name", function()
    folder = proc.path("policies")
    assert(os.execute("mkdir " .. folder) == 0)
    write(policy([[route = function(req) return { pool = req.headers["x-pool"] } end]]))
    f = fleet.start({
      workers = { "role=hybrid,ttft=1,itl=1,name=w0", "role=hybrid,ttft=1,itl=1,name=w1" },
      flags = { "--policy-dir", folder },
      config = function(w)
        return ([[return { engine = "vllm", pools = {
          { name = "front", policy = "mine", workers = { { url = "%s" } } },
          { name = "back", models = { "other" }, workers = { { url = "%s" } } } } }]]):format(w.w0.url, w.w1.url)
      end,
    })
    local front = ask()
    local back = ask({ ["x-pool"] = "back" })
    assert.equal("mine@1", front:header("x-baton-policy"))
    assert.not_equal(front:header("x-baton-worker"), back:header("x-baton-worker"))
    assert.truthy(back:header("x-baton-policy"):find("^least_load@"), back:header("x-baton-policy"))
    local nowhere = ask({ ["x-pool"] = "bakc" })
    assert.equal(200, nowhere.status)
    assert.equal(front:header("x-baton-worker"), nowhere:header("x-baton-worker"))
    log_has("route named pool 'bakc'")
    assert.equal(1, f:metric("baton_policy_errors_total"))
  end)

  it("ends at --policy-wait-ms, and the request is served", function()
    start(policy([[admit = function(req)
      while req.headers["x-long"] do baton.sleep(20) end
    end]]), { "--policy-wait-ms", "200" })
    assert.equal(200, ask({ ["x-long"] = "1" }).status)
    log_has("admit waited longer than 200 ms (--policy-wait-ms)")
    assert.equal(1, f:metric("baton_policy_errors_total"))
    assert.equal(200, ask().status)
  end)

  it("is given up when its client leaves, or when it is cancelled by id", function()
    start(policy([[admit = function(req) baton.sleep(60000) end]]), { "--policy-wait-ms", "60000" })
    local left = http.start(f.port, { method = "POST", path = PATH, body = BODY })
    eventually(function() return live() == 1, live() end, 10, "one waits")
    left:close()
    eventually(function() return live() == 0, live() end, 10, "nobody waits")
    local id = { ["x-request-id"] = "abc" }
    local named = http.start(f.port, { method = "POST", path = PATH, body = BODY, headers = id })
    eventually(function() return live() == 1, live() end, 10, "the named one waits")
    assert.equal(202, http.request(f.admin_port, { method = "DELETE", path = "/requests/abc" }).status)
    named:wait(nil, 10)
    assert.equal(499, named.answer.status)
    eventually(function() return live() == 0, live() end, 10, "nobody waits")
  end)

  it("goes on with the policy that it began with when another one is dropped in", function()
    start(policy([[admit = function(req)
      if req.headers["x-wait"] then baton.sleep(1500) end
    end]]), { "--policy-wait-ms", "20000" })
    local old = http.start(f.port, { method = "POST", path = PATH, body = BODY, headers = { ["x-wait"] = "1" } })
    eventually(function() return live() == 1, live() end, 10, "it waits")
    write((policy("version_note = nil"):gsub('version = "1"', 'version = "2"'):gsub("version_note = nil", "")))
    eventually(function()
      local seen = ask():header("x-baton-policy")
      return seen == "mine@2", seen
    end, 10, "the new one serves")
    old:wait(nil, 20)
    assert.equal(200, old.answer.status)
    assert.equal("mine@1", old.answer:header("x-baton-policy"))
  end)
end)

describe("a policy learns", function()
  after_each(function()
    f:stop()
  end)

  -- What the hooks have counted is told by admit.
  local TELL = [[admit = function(req)
    local name = req.headers["x-tell"]
    if name then return { status = 418, reason = tostring(baton.shared_local.get(name)) } end
  end]]

  local function told(name)
    return tonumber(message(ask({ ["x-tell"] = name })))
  end

  local function wait_told(name, wanted)
    eventually(function()
      local seen = told(name)
      return seen == wanted, ("%s is %s"):format(name, seen)
    end, 10, name .. " is " .. wanted)
  end

  it("what became of its plans, once each", function()
    start(policy(TELL .. [[, observe = function(events)
      for _, e in ipairs(events) do
        baton.shared_local.add("kind:" .. e.kind, 1)
        baton.shared_local.add("tokens", e.output_tokens or 0)
        baton.shared_local.add("status:" .. (e.status or 0), 1)
        if e.decode == nil or e.total_ms == nil or e.at_ms == nil then baton.shared_local.add("incomplete", 1) end
        if e.tenant == "t1" and e.model == "sim" then baton.shared_local.add("named", 1) end
      end
    end]]))
    for i = 1, 30 do
      assert.equal(200, ask({ ["x-tenant-id"] = i <= 10 and "t1" or nil }, i % 2 == 0 and STREAM or BODY).status)
    end
    wait_told("kind:finished", 30)
    assert.equal(10, told("named"))
    assert.equal(30, told("status:200"))
    assert.equal(0, told("incomplete"))
    f.sim:fault("w0", { kind = "status", status = 400, path = PATH, times = 1 })
    f.sim:fault("w1", { kind = "status", status = 400, path = PATH, times = 1 })
    assert.equal(400, ask().status)
    wait_told("status:400", 1)
    assert.is_true(f:metric("baton_observed_events_total") >= 31)
    assert.equal(0, f:metric("baton_observed_dropped_total"))
  end)

  it("what became of the plans of a rule, however long its name", function()
    local name = ("r"):rep(64)
    local file = proc.write("rules.lua", 'return { api = 1, rules = { { name = "' .. name .. '", policy = "mine" } } }')
    start(policy(TELL .. [[, observe = function(events) baton.shared_local.add("events", #events) end]]),
      { "--rules-file", file })
    assert.equal(200, ask().status)
    wait_told("events", 1)
  end)

  it("and a failing observe costs no request anything", function()
    start(policy(TELL .. [[, observe = function(events) error("no") end]]))
    assert.equal(200, ask().status)
    eventually(function()
      local n = f:metric("baton_observed_dropped_total")
      return n == 1, n
    end, 10, "the event is counted as lost")
    assert.equal(200, ask().status)
  end)

  it("what time it is, and may wait in between", function()
    start(policy(TELL .. [[, tick = function(now, view, ctx)
      baton.sleep(1)
      baton.shared_local.add("ticks", 1)
      baton.shared_local.set("workers", #view.hybrid)
      if type(now) ~= "number" or now <= (ctx.state.last or 0) then baton.shared_local.add("backwards", 1) end
      ctx.state.last = now
    end]]))
    eventually(function() return told("ticks") >= 4, told("ticks") end, 20, "four ticks (two loops)")
    assert.equal(2, told("workers"))
    assert.equal(0, told("backwards"))
    assert.equal(0, f:metric("baton_policy_errors_total"))
  end)
end)

describe("a gate that one half names", function()
  after_each(function()
    f:stop()
    proc.clean()
  end)

  -- Only decode's workers are chosen by it, but nobody comes in past it.
  it("is asked like that of the pool's policy", function()
    local gate = proc.write("gate.lua", [[
return { api = 2, name = "gate", version = "1",
  admit = function(req)
    if req.headers["x-key"] ~= "open" then return { status = 403, reason = "no key" } end
  end,
  plan = function(req, view) return { decode = view.decode[1] } end }
]])
    f = fleet.start({ workers = { "role=prefill,ttft=1", "role=decode,ttft=1,itl=1" },
      flags = { "--vllm-pd-disaggregation", "--decode-policy", gate } })
    local answer = ask()
    assert.equal(403, answer.status)
    assert.equal("no key", message(answer))
    assert.equal(200, ask({ ["x-key"] = "open" }).status)
  end)
end)

describe("baton.log", function()
  after_each(function()
    f:stop()
    proc.clean()
  end)

  it("writes a line with the policy's name and the request's id", function()
    start(policy('admit = function(req) baton.log("info", "asked for " .. req.model) end'))
    assert.equal(200, ask({ ["X-Request-Id"] = "told-1" }).status)
    log_has("policy: request=told-1 mine: asked for sim")
  end)
end)

describe("a policy that fails", function()
  after_each(function()
    f:stop()
    proc.clean()
  end)

  it("is not said to have decided", function()
    local text = [[
return { api = 2, name = "odd", version = "1", plan = function(req, view)
  if req.headers["x-fail"] then error("no idea") end
  return { worker = view.hybrid[1] }
end }
]]
    f = fleet.start({ workers = { "role=hybrid,ttft=1,itl=1" },
      flags = { "--policy", proc.write("odd.lua", text), "--access-log", "--log-format", "json" } })
    local answer = ask({ ["X-Request-Id"] = "chosen" })
    assert.equal("odd@1", answer:header("x-baton-policy"))
    answer = ask({ ["X-Request-Id"] = "unchosen", ["x-fail"] = "1" })
    assert.equal(200, answer.status)
    assert.equal("default", answer:header("x-baton-policy"))
    for id, decider in pairs({ chosen = "odd", unchosen = "default" }) do
      eventually(function()
        for line in f.gateway:stderr():gmatch("[^\n]+") do
          local row = line:find('"request":"' .. id .. '"', 1, true) and json.decode(line)
          if row then
            assert.equal(decider, row.policy)
            return true
          end
        end
      end)
    end
    local record = json.decode(http.get(f.admin_port, "/explain/unchosen").body)
    assert.equal("default", record.decided_by)
    assert.truthy(record.why:find("no idea", 1, true))
  end)
end)
