-- Policies that share state through one real Redis: limits over four gateways, sessions and responses over two, and
-- what holds when Redis goes. Limits are by the day here: no spec meets the end of one but at midnight.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":[1,2,3,4,5],"max_tokens":2}'

local LIMIT = [[
return { api = 2, name = "mine", version = "1",
  start = function()
    local n, why = baton.shared.add("starts", 1)
    return { starts = n or why }
  end,
  admit = function(req, ctx)
    local is_in, wait_s = baton.shared.take("requests", %d, 86400000)
    if is_in == false then return { status = 429, retry_after = wait_s, reason = "over" } end
    if not is_in then return { status = 418, reason = wait_s } end
  end,
  plan = function(req, view) return { worker = baton.argmin(view.hybrid, "requests") } end,
}]]

describe("policies of one fleet", function()
  local sim, gateways, folder

  before_each(function()
    gateways = {}
    sim = fleet.start_sim({ "role=hybrid,ttft=1,itl=1,name=h0", "role=hybrid,ttft=1,itl=1,name=h1",
      "role=hybrid,ttft=1,itl=1,name=h2" })
    folder = proc.path("policies")
    assert(os.execute("mkdir -p " .. folder) == 0)
  end)

  after_each(function()
    for _, g in ipairs(gateways) do
      fleet.stop_gateway(g.gateway)
    end
    proc.kill_all()
  end)

  teardown(proc.clean)

  local function write(name, text)
    local file = assert(io.open(("%s/%s.lua"):format(folder, name), "w"))
    file:write(text)
    file:close()
  end

  -- r: a redis-server, or nil.
  local function start_gateway(r, policy, params)
    local words = { "--policy-dir", folder, "--policy", policy, "--debug-headers", "--worker-urls" }
    for _, w in ipairs(sim.list) do
      words[#words + 1] = w.url
    end
    for _, word in ipairs(r and { "--redis-url", r.url } or {}) do
      words[#words + 1] = word
    end
    for _, param in ipairs(params or {}) do
      words[#words + 1] = "--policy-param"
      words[#words + 1] = param
    end
    local g = {}
    g.gateway, g.port, g.admin_port = fleet.start_gateway(words)
    gateways[#gateways + 1] = g
    eventually(function()
      local up = faults.number(g, "baton_worker_usable")
      return up == #sim.list, up
    end, 10, "its workers are up")
    eventually(function()
      local said = http.get(g.port, "/readiness").body
      return said:find('"degraded":[]', 1, true) ~= nil, said
    end, 10, "every loop has reached the store")
    return g
  end

  local function wait_replicas(count)
    for _, g in ipairs(gateways) do
      eventually(function()
        local now = #json.decode(http.get(g.admin_port, "/fleet").body).replicas
        return now == count, now
      end, 10, count .. " replicas are known")
    end
  end

  -- How many of each status, asked in turn.
  local function ask(times, list, headers)
    local seen = {}
    for i = 1, times do
      local answer = http.post(list[(i - 1) % #list + 1].port, PATH, BODY, headers)
      seen[answer.status] = (seen[answer.status] or 0) + 1
    end
    return seen
  end

  it("hold a limit alone, without a Redis", function()
    write("mine", LIMIT:format(10))
    local g = start_gateway(nil, "mine")
    assert.same({ [200] = 10, [429] = 20 }, ask(30, { g }))
    local answer = http.post(g.port, PATH, BODY)
    local wait_s = tonumber(answer:header("retry-after"))
    assert.is_true(wait_s > 0 and wait_s <= 86400, wait_s)
  end)

  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  it("hold a limit together, over four gateways", function()
    local r = redis.start()
    write("mine", LIMIT:format(200))
    for _ = 1, 4 do
      start_gateway(r, "mine")
    end
    wait_replicas(4)
    assert.same({ [200] = 200, [429] = 200 }, ask(400, gateways))
    assert.equal("200", r:ask("HGET", "baton:{fleet}:q:mine:requests:86400000", "n"))
    local granted, denied = 0, 0
    for _, g in ipairs(gateways) do
      granted = granted + faults.number(g, "baton_quota_granted_total")
      denied = denied + faults.number(g, "baton_quota_denied_total")
      assert.equal(1, faults.number(g, "baton_quota_live"))
    end
    assert.same({ 200, 200 }, { granted, denied })
    -- start has asked too, on its own thread: once for each VM.
    assert.is_true(tonumber(r:ask("GET", "baton:{fleet}:p:mine:starts")) >= 8)
  end)

  it("give back to the token what a request did not use", function()
    local r = redis.start()
    local file = assert(io.open("policies/tenant_fair.lua"))
    write("fair", (file:read("*a"):gsub("MINUTE_MS = 60000", "MINUTE_MS = 86400000")))
    file:close()
    for _ = 1, 2 do
      start_gateway(r, "fair", { "shared=true", "tokens_per_minute=1000000", "answer_tokens=5000" })
    end
    wait_replicas(2)
    local used = 0
    for i = 1, 12 do
      local answer = http.post(gateways[i % 2 + 1].port, PATH, '{"model":"sim","prompt":[1,2,3,4,5]}',
        { ["x-tenant-id"] = "acme" })
      assert.equal(200, answer.status, answer.body)
      local usage = json.decode(answer.body).usage
      assert.equal(5, usage.prompt_tokens)
      used = used + usage.prompt_tokens + usage.completion_tokens
    end
    -- A client that leaves has used what came until then, and somebody else's tokens are not touched.
    assert.equal(200, http.post(gateways[1].port, PATH, BODY, { ["x-tenant-id"] = "other" }).status)
    eventually(function()
      local n = tonumber(r:ask("HGET", "baton:{fleet}:q:tenant_fair:tokens/acme:86400000", "n"))
      return n == used, ("%s of %d"):format(tostring(n), used)
    end, 20, "the store has what was used, to the token")
  end)

  it("fail nothing when Redis goes, and then hold each to its part", function()
    local r = redis.start()
    write("mine", LIMIT:format(40))
    for _ = 1, 2 do
      start_gateway(r, "mine")
    end
    wait_replicas(2)
    r:kill()
    assert.same({ [200] = 20, [429] = 10 }, ask(30, { gateways[1] }))
    assert.same({ [200] = 20, [429] = 10 }, ask(30, { gateways[2] }))
    r:again()
    -- What was granted meanwhile is told as soon as it is back, though it has forgotten all else.
    eventually(function()
      local n = r:ask("HGET", "baton:{fleet}:q:mine:requests:86400000", "n")
      return tonumber(n) ~= nil and tonumber(n) >= 40, tostring(n)
    end, 20, "the store knows what was granted without it")
    -- Who is back first may have some of what the other has not told yet.
    eventually(function()
      return ask(10, gateways)[429] == 10
    end, 20, "nobody gets more")
  end)

  it("keep a session where it is, through both gateways, and while Redis is away", function()
    local r = redis.start()
    for _ = 1, 2 do
      start_gateway(r, "session_affinity", { "shared=true", "refresh_s=0" })
    end
    local homes, places = {}, {}
    local function home_of(i, g)
      local answer = http.post(g.port, PATH, BODY, { ["x-session-id"] = "s" .. i })
      assert.equal(200, answer.status, answer.body)
      return answer:header("x-baton-decode") or answer:header("x-baton-worker")
    end
    for i = 1, 12 do
      homes[i] = assert(home_of(i, gateways[1]))
      places[homes[i]] = true
    end
    assert.is_not_nil(next(places, next(places))) -- not all in one place
    for i = 1, 12 do
      eventually(function() -- plan sends it, nobody waits for it
        return r:ask("GET", "baton:{fleet}:p:session_affinity:s/s" .. i)
      end, 10, "the place is told")
      for round = 1, 4 do
        assert.equal(homes[i], home_of(i, gateways[round % 2 + 1]))
      end
    end
    r:kill()
    for i = 1, 12 do
      for round = 1, 2 do
        assert.equal(homes[i], home_of(i, gateways[round % 2 + 1]))
      end
    end
  end)

  it("find the worker that made a response through another gateway", function()
    local r = redis.start()
    for _ = 1, 2 do
      start_gateway(r, "least_load")
    end
    local body = '{"model":"sim","input":"remember me","max_output_tokens":3}'
    for _ = 1, 6 do
      local made = http.post(gateways[1].port, "/v1/responses", body)
      assert.equal(200, made.status, made.body)
      local owner = made:header("x-baton-decode") or made:header("x-baton-worker")
      local id = json.decode(made.body).id
      local stored = http.get(gateways[2].port, "/v1/responses/" .. id)
      assert.equal(200, stored.status, stored.body)
      assert.equal(made.body, stored.body)
      local more = http.post(gateways[2].port, "/v1/responses",
        ('{"model":"sim","previous_response_id":"%s","input":"again","max_output_tokens":3}'):format(id))
      assert.equal(200, more.status, more.body)
      assert.equal(owner, more:header("x-baton-decode") or more:header("x-baton-worker"))
    end
    assert.equal(404, http.get(gateways[2].port, "/v1/responses/resp_nobody").status)
    local made = http.post(gateways[1].port, "/v1/responses", body)
    r:kill()
    assert.equal(404, http.get(gateways[2].port, "/v1/responses/" .. json.decode(made.body).id).status)
    assert.equal(200, http.get(gateways[1].port, "/v1/responses/" .. json.decode(made.body).id).status)
  end)
end)
