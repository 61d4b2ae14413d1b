-- Who may ask for what: managing workers on the client port, the admin port without a key, cancelling, tenants.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PAIR = { "role=prefill,ttft=1", "role=decode,ttft=1,itl=1" }
local f

local function start(flags)
  local words = { "--vllm-pd-disaggregation" }
  proc.append(words, flags)
  f = fleet.start({ workers = PAIR, flags = words })
end

local function stop()
  f:stop()
  proc.clean()
end

local function ask(port, method, path, headers, body)
  return http.request(port, { method = method, path = path, headers = headers, body = body })
end

local WORKER_PATHS = {
  { "GET", "/workers" }, { "GET", "/list_workers" },
  { "POST", "/add_worker?url=http://127.0.0.1:9&worker_type=decode" },
  { "POST", "/remove_worker?url=http://127.0.0.1:9" }, { "POST", "/workers", '{"url":"http://127.0.0.1:9"}' },
  { "GET", "/workers/p0" }, { "DELETE", "/workers/p0" }, { "POST", "/workers/p0/drain" },
  { "POST", "/add_worke%72?url=http://127.0.0.1:9" }, { "DELETE", "/worker%73/p0" },
}

-- All of them are 404 here (401: a client's key is asked for first), and no worker hears of them.
local function expect_none(headers, status)
  f:mark()
  for _, case in ipairs(WORKER_PATHS) do
    local answer = ask(f.port, case[1], case[2], headers, case[3])
    assert.equal(status or 404, answer.status, case[1] .. " " .. case[2])
  end
  local seen = f:legs(function(e)
    return e.path:find("worker", 1, true)
  end)
  assert.equal(0, #seen.prefill + #seen.decode)
  assert.equal(2, json.decode(http.get(f.admin_port, "/workers",
    { Authorization = "Bearer admin" }).body).total)
end

describe("worker paths on the client port", function()
  after_each(stop)

  it("are not there by default, on loopback or elsewhere", function()
    start({})
    expect_none({})
    stop()
    start({ "--host", "0.0.0.0" })
    expect_none({})
  end)

  it("ask for the admin key where there is one, whatever other keys a client has", function()
    local keys = proc.write("keys.txt", "client\n")
    start({ "--client-api-keys-file", keys, "--admin-api-key", "admin" })
    expect_none({}, 401)
    expect_none({ Host = "localhost" }, 401)
    expect_none({ Authorization = "Bearer client" })
    local key = { Authorization = "Bearer admin" }
    assert.equal(200, ask(f.port, "GET", "/workers", key).status)
    assert.equal(200, ask(f.port, "POST", WORKER_PATHS[3][2], key).status)
    assert.equal(3, json.decode(ask(f.port, "GET", "/workers", key).body).total)
  end)

  it("ask for the admin key with --client-worker-api too", function()
    start({ "--client-worker-api", "--admin-api-key", "admin" })
    expect_none({})
  end)

  it("are open with --client-worker-api, but not to a page in a browser", function()
    start({ "--client-worker-api" })
    local answer = f:get("/list_workers")
    assert.equal(200, answer.status)
    assert.same({ f.workers.p0.url, f.workers.d0.url }, json.decode(answer.body).urls)
    assert.equal(200, f:get("/workers/" .. f.workers.p0.url:gsub("[:/]", { [":"] = "%3A", ["/"] = "%2F" })).status)
    for _, headers in ipairs({
      { Host = "evil.example" }, { Origin = "http://evil.example" }, { Origin = "null" },
      { Host = "evil.example", Origin = "http://evil.example" },
    }) do
      assert.equal(403, ask(f.port, "POST", WORKER_PATHS[3][2], headers).status)
    end
    assert.equal(2, json.decode(f:get("/workers").body).total)
  end)
end)

describe("--client-worker-api", function()
  it("is refused beyond loopback without an admin key", function()
    local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "check", "--host", "0.0.0.0", "--port", "0",
      "--admin-port", "0", "--client-worker-api" })
    assert.equal(2, code)
    assert.truthy(err:find("--client-worker-api", 1, true) and err:find("--admin-api-key", 1, true), err)
  end)
end)

describe("the admin port without a key", function()
  setup(function()
    start({ "--admin-allowed-host", "ops.example" })
  end)

  teardown(stop)

  it("is served under addresses, localhost and listed names only", function()
    for _, host in ipairs({ "127.0.0.1", "localhost:" .. f.admin_port, "[::1]:1", "ops.example",
      "OPS.example:29000" }) do
      assert.equal(200, ask(f.admin_port, "GET", "/workers", { Host = host }).status, host)
    end
    for _, host in ipairs({ "evil.example", "evil.example:" .. f.admin_port, "ops.example.evil", "localhost.evil" }) do
      for _, case in ipairs({ { "GET", "/workers" }, { "POST", WORKER_PATHS[3][2] }, { "DELETE", "/admin/workers/p0" },
        { "GET", "/requests" } }) do
        local answer = ask(f.admin_port, case[1], case[2], { Host = host })
        assert.equal(403, answer.status, host .. " " .. case[2])
        assert.truthy(answer.body:find("--admin-allowed-host", 1, true))
      end
      assert.equal(200, ask(f.admin_port, "GET", "/metrics", { Host = host }).status)
      assert.equal(200, ask(f.admin_port, "GET", "/health", { Host = host }).status)
    end
    assert.equal(2, json.decode(http.get(f.admin_port, "/workers").body).total)
  end)

  it("takes nothing that a form can send", function()
    local body = '{"url":"http://127.0.0.1:9","role":"hybrid"}'
    for _, kind in ipairs({ "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x" }) do
      assert.equal(415, ask(f.admin_port, "POST", "/workers", { ["Content-Type"] = kind }, body).status, kind)
    end
    assert.equal(200, ask(f.admin_port, "POST", "/workers/p0/undrain", {}).status)
    assert.equal(201, ask(f.admin_port, "POST", "/workers", { ["Content-Type"] = "application/json" }, body).status)
    assert.equal(200, ask(f.admin_port, "DELETE", "/workers/http%3A%2F%2F127.0.0.1%3A9", {}).status)
  end)
end)

local LONG = '{"model":"sim","prompt":"x","max_tokens":400,"stream":true,"rid":"7"}'

-- A stream of 400 events that has begun.
local function begin(headers, from)
  local c = http.start(f.port, { path = "/v1/completions", headers = headers, body = LONG, from = from })
  c:wait_events(2)
  return c
end

local function abort(id, headers, from)
  local body = '{"rid":"' .. id .. '"}'
  return http.request(f.port, { path = "/abort_request", headers = headers, body = body, from = from })
end

local function is_live(id)
  local list = json.decode(http.get(f.admin_port, "/requests").body).requests
  for _, r in ipairs(list) do
    if r.id == id then
      return true
    end
  end
  return false
end

-- Told twice what is not its own; a later event shows that the word had time to arrive.
local function survives(c, id, headers, from)
  local events = #c.answer:data()
  assert.equal(200, abort(id, headers, from).status)
  assert.equal(200, abort("7", headers, from).status)
  c:wait_events(events + 20)
  assert.is_true(is_live(id), id)
end

local function ends(c, id, headers, from)
  assert.equal(200, abort(id, headers, from).status)
  eventually(function()
    return not is_live(id)
  end, 5, id .. " ends")
  c:close()
end

describe("cancelling by id", function()
  after_each(stop)

  it("is the right of the key that sent the request", function()
    local keys = proc.write("keys.txt", "one\ntwo\n")
    start({ "--client-api-keys-file", keys })
    local mine, other = { Authorization = "Bearer one", ["X-Request-Id"] = "a1" }, { Authorization = "Bearer two" }
    local c = begin(mine)
    survives(c, "a1", other)
    ends(c, "a1", { ["X-Api-Key"] = "one" }, "127.0.0.5")
  end)

  it("is the right of the address that sent it, where there are no keys", function()
    start({})
    local c = begin({ ["X-Request-Id"] = "a2" }, "127.0.0.7")
    survives(c, "a2", {}, "127.0.0.8")
    survives(c, "a2", { Authorization = "Bearer anything" })
    ends(c, "a2", {}, "127.0.0.7")
  end)

  it("is an operator's right", function()
    start({})
    local c = begin({ ["X-Request-Id"] = "a3" }, "127.0.0.7")
    assert.equal(202, ask(f.admin_port, "DELETE", "/requests/a3").status)
    eventually(function()
      return not is_live("a3")
    end, 5, "a3 ends")
    c:close()
  end)
end)

describe("client keys", function()
  after_each(stop)

  it("are read again on SIGHUP", function()
    local path = proc.write("keys.txt", "old\nboth\n")
    start({ "--client-api-keys-file", path })
    local function status(key)
      return f:post("/v1/completions", '{"model":"sim","prompt":"x","max_tokens":1}',
        { Authorization = "Bearer " .. key }).status
    end
    assert.same({ 200, 200, 401 }, { status("old"), status("both"), status("new") })
    for round = 1, 2 do
      local file = assert(io.open(path, "w"))
      file:write(round == 1 and "new\nboth\n" or "new\n")
      file:close()
      f.gateway:kill(proc.SIGHUP)
      eventually(function()
        return status(round == 1 and "old" or "both") == 401
      end)
      assert.equal(200, status("new"))
    end
    f.gateway:says("2 client keys count from now on")
  end)
end)

describe("the tenant", function()
  setup(function()
    local keys = proc.write("keys.txt", "plain\nacmes tenant=acme\nproxy tenant=edge set-tenant\n")
    start({ "--client-api-keys-file", keys })
  end)

  teardown(stop)

  local function tenant(key, said)
    local id = key .. (said or "")
    local answer = f:post("/v1/completions", '{"model":"sim","prompt":"x","max_tokens":1}',
      { Authorization = "Bearer " .. key, ["x-tenant-id"] = said, ["X-Request-Id"] = id })
    assert.equal(200, answer.status, answer.body)
    return eventually(function()
      local record = json.decode(http.get(f.admin_port, "/explain/" .. id).body)
      return record.tenant
    end)
  end

  it("is the key's, unless the key may say another one's name", function()
    assert.equal("acme", tenant("acmes"))
    assert.equal("acme", tenant("acmes", "globex"))
    assert.equal("edge", tenant("proxy"))
    assert.equal("globex", tenant("proxy", "globex"))
    assert.truthy(tenant("plain"):find("^key%-%x+$"))
    assert.equal(tenant("plain"), tenant("plain", "globex"))
  end)

  it("is told to workers only where the key may say it", function()
    f:mark()
    tenant("acmes", "forged")
    tenant("proxy", "said")
    local seen = {}
    for _, leg in ipairs(f:legs().decode) do
      seen[#seen + 1] = leg.headers["x-tenant-id"] or "none"
    end
    table.sort(seen)
    assert.same({ "none", "said" }, seen)
  end)
end)
