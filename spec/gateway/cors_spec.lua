-- Which pages of a browser may read answers: none but those of --cors-origin, whatever engines say.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

local PATH = "/v1/completions"
local BODY = '{"model":"m","prompt":"x"}'
local APP, OTHER = "https://app.example", "https://evil.example"

local worker, gateway, port

-- A worker that lets every page read it, as engines do.
local function start(...)
  worker = stub.start(function()
    return stub.reply(200, '{"id":"x","choices":[]}', { ["Access-Control-Allow-Origin"] = "*",
      ["access-control-allow-credentials"] = "true", ["X-Of-Engine"] = "kept" })
  end)
  local keys = proc.write("keys.txt", "secret\n")
  local admin_port
  gateway, port, admin_port = fleet.start_gateway({ "--client-api-keys-file", keys, "--worker-urls", worker.url, ... })
  eventually(function()
    return http.get(admin_port, "/workers").body:find('"health":"up"', 1, true)
  end, 10, "the worker is up")
end

local function stop()
  assert.equal(0, (gateway:stop(10)))
  worker:stop()
  proc.clean()
end

local function ask(origin, headers, more)
  headers = headers or { Authorization = "Bearer secret" }
  headers.Origin = origin
  local request = { path = PATH, body = BODY, headers = headers }
  for name, value in pairs(more or {}) do
    request[name] = value
  end
  return http.request(port, request)
end

local function preflight(origin, path, headers)
  return http.request(port, { method = "OPTIONS", path = path or PATH, headers = { Origin = origin,
    ["Access-Control-Request-Method"] = "POST", ["Access-Control-Request-Headers"] = headers
      or "authorization,content-type,x-stainless-os" } })
end

local function nothing_of_cors(answer)
  for _, name in ipairs({ "allow-origin", "allow-credentials", "allow-methods", "allow-headers", "expose-headers" }) do
    assert.is_nil(answer:header("access-control-" .. name), name)
  end
end

describe("without --cors-origin", function()
  setup(function()
    start()
  end)

  teardown(stop)

  it("no page may read an answer, whatever the engine says", function()
    local answer = ask(OTHER)
    assert.equal(200, answer.status)
    assert.equal("kept", answer:header("x-of-engine"))
    nothing_of_cors(answer)
    assert.is_nil(answer:header("vary"))
    local asked = preflight(APP)
    assert.is_true(asked.status >= 400, asked.status)
    nothing_of_cors(asked)
  end)
end)

describe("--cors-origin", function()
  setup(function()
    start("--cors-origin", APP, "--cors-origin", "http://localhost:8080", "--client-allowed-host", "api.example")
  end)

  teardown(stop)

  it("answers a preflight without a key, and no worker hears of it", function()
    local before = #worker.requests
    for _, path in ipairs({ PATH, "/v1/models", "/nowhere" }) do
      local answer = preflight(APP, path)
      assert.equal(204, answer.status)
      assert.equal(APP, answer:header("access-control-allow-origin"))
      assert.truthy(answer:header("access-control-allow-methods"):find("POST", 1, true))
      assert.equal("authorization,content-type,x-stainless-os", answer:header("access-control-allow-headers"))
      assert.equal("600", answer:header("access-control-max-age"))
      assert.equal("Origin", answer:header("vary"))
      assert.is_nil(answer:header("access-control-allow-credentials"))
      assert.equal("", answer.body)
    end
    assert.equal(before, #worker.requests)
  end)

  it("refuses another origin's, and echoes nothing but names", function()
    for _, origin in ipairs({ OTHER, "null", "https://app.example.evil", "https://app.example:8443",
      "http://app.example", "app.example", "https://app.example/" }) do
      local answer = preflight(origin)
      assert.equal(403, answer.status, origin)
      assert.truthy(answer.body:find("--cors-origin", 1, true))
      nothing_of_cors(answer)
      assert.equal("Origin", answer:header("vary"))
    end
    for _, names in ipairs({ "a: b", "a;b", '"a"', ("x"):rep(1025), "" }) do
      local answer = preflight(APP, PATH, names)
      assert.equal(204, answer.status)
      assert.is_nil(answer:header("access-control-allow-headers"))
    end
  end)

  it("lets its pages read answers and refusals, with our headers", function()
    for _, case in ipairs({ { 200 }, { 401, {} }, { 404, nil, { path = "/nowhere" } },
      { 400, nil, { body = "{" } }, { 417, { Authorization = "Bearer secret", Expect = "x" } },
      { 421, { Authorization = "Bearer secret", Host = "evil.example" } } }) do
      local answer = ask(APP, case[2], case[3])
      assert.equal(case[1], answer.status)
      if case[1] ~= 421 then -- which is nobody's origin
        assert.same({ APP }, answer:all("access-control-allow-origin"))
      end
      assert.equal("Origin", answer:header("vary"))
    end
    local answer = ask("http://localhost:8080")
    assert.equal("http://localhost:8080", answer:header("access-control-allow-origin"))
    assert.truthy(answer:header("access-control-expose-headers"):find("x-request-id", 1, true))
    assert.equal("kept", answer:header("x-of-engine"))
    assert.is_nil(answer:header("access-control-allow-credentials"))
  end)

  it("is told to caches whoever asks, and other pages read nothing", function()
    local answer = ask(OTHER)
    assert.equal(200, answer.status)
    nothing_of_cors(answer)
    assert.equal("Origin", answer:header("vary"))
    answer = ask(nil)
    nothing_of_cors(answer)
    assert.equal("Origin", answer:header("vary"))
  end)

  it("is of one request: the next one on the connection has its own", function()
    local c = http.connect(port)
    local key = { Authorization = "Bearer secret", Origin = APP }
    c:ask({ path = PATH, body = BODY, headers = key })
    assert.equal(APP, c:wait():header("access-control-allow-origin"))
    key.Origin = nil
    c:ask({ path = PATH, body = BODY, headers = key })
    nothing_of_cors(c:wait())
    c:close()
  end)
end)

describe("--cors-origin *", function()
  setup(function()
    start("--cors-origin", "*")
  end)

  teardown(stop)

  it("lets every page read, without credentials", function()
    local answer = ask(OTHER)
    assert.same({ "*" }, answer:all("access-control-allow-origin"))
    assert.is_nil(answer:header("access-control-allow-credentials"))
    assert.is_nil(answer:header("vary"))
    assert.equal(204, preflight(OTHER).status)
  end)
end)

describe("--cors-credentials", function()
  setup(function()
    start("--cors-origin", APP, "--cors-credentials")
  end)

  teardown(stop)

  it("is for listed origins", function()
    assert.equal("true", ask(APP):header("access-control-allow-credentials"))
    assert.equal("true", preflight(APP):header("access-control-allow-credentials"))
    nothing_of_cors(ask(OTHER))
  end)
end)
