-- Who a client is, behind proxies (by a header, by PROXY protocol) and without; under which names it is served.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"x","max_tokens":2}'
local LONG = '{"model":"sim","prompt":"x","max_tokens":400,"stream":true,"rid":"7"}'
local PROXY, STRANGER = "127.0.0.1", "127.0.0.2"

local f

local function start(flags)
  local words = { "--log-format", "json" }
  proc.append(words, flags)
  f = fleet.start({ workers = { "role=hybrid,ttft=1,itl=10" }, flags = words })
end

local function stop()
  f:stop()
  proc.clean()
end

-- The answer, what the worker was told of the client, and the access log's client.
local function ask(from, headers, id)
  headers["X-Request-Id"] = id
  f:mark()
  local answer = http.request(f.port, { path = PATH, body = BODY, headers = headers, from = from })
  assert.equal(200, answer.status)
  local client = eventually(function()
    return f.gateway:stderr():match('"request":"' .. id:gsub("%-", "%%-") .. '","client":"([^"]*)"')
  end, 10, "the access log has " .. id)
  local leg = f:legs(function(e)
    return e.path == PATH
  end).hybrid[1]
  return client, leg.headers
end

describe("--trusted-proxies", function()
  after_each(stop)

  it("are believed who the client is, and nobody else", function()
    start({ "--trusted-proxies", PROXY })
    local forged = { ["X-Forwarded-For"] = "6.6.6.6, 203.0.113.7", ["X-Real-IP"] = "6.6.6.6",
      Forwarded = "for=6.6.6.6", ["X-Forwarded-Proto"] = "https", ["X-Forwarded-Host"] = "api.example" }
    local client, leg = ask(PROXY, forged, "by-proxy")
    assert.equal("203.0.113.7", client)
    assert.equal("203.0.113.7", leg["x-forwarded-for"])
    assert.equal("https", leg["x-forwarded-proto"])
    assert.equal("api.example", leg["x-forwarded-host"])
    assert.is_nil(leg["x-real-ip"])
    assert.is_nil(leg.forwarded)
    client, leg = ask(STRANGER, forged, "by-stranger")
    assert.equal(STRANGER, client)
    for _, name in ipairs({ "x-forwarded-for", "x-real-ip", "forwarded", "x-forwarded-proto", "x-forwarded-host" }) do
      assert.is_nil(leg[name], name)
    end
  end)

  it("are nobody by default: workers are told nothing that a client could have made up", function()
    start({})
    local client, leg = ask(PROXY, { ["X-Forwarded-For"] = "6.6.6.6", ["X-Real-IP"] = "6.6.6.6" }, "by-default")
    assert.equal(PROXY, client)
    assert.is_nil(leg["x-forwarded-for"])
    assert.is_nil(leg["x-real-ip"])
  end)

  it("bring many clients over one connection, each of which may cancel its own requests only", function()
    start({ "--trusted-proxies", PROXY })
    local function abort(client)
      return http.request(f.port, { path = "/abort_request", body = '{"rid":"7"}',
        headers = { ["X-Forwarded-For"] = client }, from = PROXY }).status
    end
    local c = http.start(f.port, { path = PATH, body = LONG, headers = { ["X-Forwarded-For"] = "203.0.113.7" },
      from = PROXY })
    c:wait_events(2)
    assert.equal(200, abort("203.0.113.8"))
    c:wait_events(8) -- it runs on
    assert.equal(200, abort("203.0.113.7"))
    assert.is_true(#c:wait():data() < 400)
  end)

  it("do not count as one client where connections are limited for each", function()
    start({ "--trusted-proxies", PROXY, "--max-connections-per-peer", "1" })
    local ask_one = { path = PATH, body = LONG, from = PROXY }
    local first, second = http.start(f.port, ask_one), http.start(f.port, ask_one)
    first:wait_events(1)
    second:wait_events(1)
    ask_one.from = STRANGER
    local third = http.start(f.port, ask_one)
    third:wait_events(1)
    assert.equal(503, http.request(f.port, { path = PATH, body = BODY, from = STRANGER }).status)
    first:close()
    second:close()
    third:close()
  end)
end)

-- The header of PROXY protocol 2 for this client (IPv4).
local function proxy_header(client, command)
  local bytes = {}
  for part in client:gmatch("%d+") do
    bytes[#bytes + 1] = string.char(tonumber(part))
  end
  return "\r\n\r\n\0\r\nQUIT\n" .. (command or "\33") .. "\17\0\12" .. table.concat(bytes) .. "\127\0\0\1\16\1\117\48"
end

describe("over HTTP/2", function()
  setup(function()
    start({ "--trusted-proxies", PROXY, "--client-allowed-host", "api.example",
      "--cors-origin", "https://app.example" })
  end)

  teardown(stop)

  local function curl(id, ...)
    f:mark()
    local code, out, err = proc.run({ "/usr/bin/env", "curl", "-sS", "-i", "--max-time", "20",
      "--http2-prior-knowledge", "-H", "content-type: application/json", "-H", "x-request-id: " .. id, ... })
    assert.equal(0, code, err)
    local leg = f:legs(function(e)
      return e.path == PATH
    end).hybrid[1]
    return tonumber(out:match("^HTTP/2 (%d+)")), out, leg and leg.headers
  end

  it("all of it holds: proxies, strangers, Host, CORS", function()
    local url = ("http://127.0.0.1:%d%s"):format(f.port, PATH)
    local status, out, leg = curl("proxied", "-H", "x-forwarded-for: 6.6.6.6, 203.0.113.7", "-H", "x-real-ip: 6.6.6.6",
      "-H", "origin: https://app.example", "--data-binary", BODY, url)
    assert.equal(200, status)
    assert.truthy(out:find("access-control-allow-origin: https://app.example", 1, true), out)
    assert.equal("203.0.113.7", leg["x-forwarded-for"])
    assert.is_nil(leg["x-real-ip"])
    assert.equal("203.0.113.7", eventually(function()
      return f.gateway:stderr():match('"request":"proxied","client":"([^"]*)"')
    end, 10, "the access log has it"))
    status, out, leg = curl("strange", "--interface", STRANGER, "-H", "x-forwarded-for: 6.6.6.6", "-H",
      "origin: https://evil.example", "--data-binary", BODY, url)
    assert.equal(200, status)
    assert.falsy(out:find("access-control-allow-origin", 1, true), out)
    assert.truthy(out:find("vary: Origin", 1, true), out)
    assert.is_nil(leg["x-forwarded-for"])
    status, out, leg = curl("elsewhere", "-H", "host: evil.example", url)
    assert.equal(421, status)
    assert.truthy(out:find("--client-allowed-host", 1, true), out)
    assert.is_nil(leg)
  end)
end)

describe("--proxy-protocol", function()
  local BALANCER = "127.0.0.3" -- and not PROXY: this spec's own looks into the gateway come from there

  setup(function()
    start({ "--trusted-proxies", BALANCER, "--proxy-protocol", "--client-head-timeout-secs", "1",
      "--max-connections-per-peer", "1" })
  end)

  teardown(stop)

  local function ask_with(header, from, id)
    local c = http.connect(f.port, nil, from)
    c:expect_answer("POST")
    c:send(header .. http.head_of({ path = PATH, body = BODY, headers = { ["X-Request-Id"] = id,
      ["X-Forwarded-For"] = "6.6.6.6" } }, f.port) .. BODY)
    return c
  end

  local function wait_log(part)
    eventually(function()
      return f.gateway:stderr():find(part, 1, true)
    end, 10, "the log says: " .. part)
  end

  local function client_of(id)
    return eventually(function()
      return f.gateway:stderr():match('"request":"' .. id .. '","client":"([^"]*)"')
    end, 10, "the access log has " .. id)
  end

  it("says of a listed proxy's connection whose it is, and such a client is believed no header", function()
    local c = ask_with(proxy_header("203.0.113.7"), BALANCER, "told")
    assert.equal(200, c:wait().status)
    assert.equal("203.0.113.7", client_of("told"))
    -- Limits go by it, too.
    local other
    eventually(function() -- it is idle a moment after its answer
      other = ask_with(proxy_header("203.0.113.7"), BALANCER, "more")
      local status = other:wait().status
      return status == 200, status
    end, 10, "the idle one has gone for it")
    assert.is_true(not c:pump())
    other:close()
  end)

  it("lets the proxy's own checks through", function()
    local c = ask_with(proxy_header("0.0.0.0", "\32"), BALANCER, "checks")
    assert.equal(200, c:wait().status)
    assert.equal("6.6.6.6", client_of("checks")) -- its own connection: it may speak for others
    c:close()
  end)

  it("is asked of listed proxies, and of nobody else", function()
    local stranger = ask_with("", STRANGER, "stranger")
    assert.equal(200, stranger:wait().status)
    assert.equal(STRANGER, client_of("stranger"))
    stranger:close()
    local forger = ask_with(proxy_header("203.0.113.7"), STRANGER, "forger")
    assert.equal(400, forger:wait().status)
    forger:close()
    for _, bytes in ipairs({ "", "PROXY TCP4 203.0.113.7 127.0.0.1 4242 30000\r\n",
      proxy_header("203.0.113.7", "\34") }) do
      local c = ask_with(bytes, BALANCER, "none")
      eventually(function()
        return not c:pump()
      end, 10, "it is closed")
      assert.is_nil(c.answer.status)
    end
    wait_log("version 1 is not spoken here")
  end)

  it("does not wait for it for ever", function()
    local c = http.connect(f.port, nil, BALANCER)
    c:expect_answer("GET")
    c:send("\r\n\r\n")
    eventually(function()
      return not c:pump()
    end, 10, "it is closed")
    wait_log("it did not come in time")
  end)
end)

describe("--client-allowed-host", function()
  setup(function()
    start({ "--client-allowed-host", "api.example", "--warm-pairs" })
  end)

  teardown(stop)

  it("serves its names, addresses and localhost; others are 421, and no worker hears of them", function()
    for _, host in ipairs({ "api.example", "API.EXAMPLE:30000", "127.0.0.1:" .. f.port, "localhost", "[::1]:80" }) do
      assert.equal(200, http.request(f.port, { path = PATH, body = BODY, headers = { Host = host } }).status, host)
    end
    f:mark()
    for _, host in ipairs({ "evil.example", "api.example.evil", "evil.example:" .. f.port, "" }) do
      for _, path in ipairs({ PATH, "/health", "/v1/models", "/workers" }) do
        local answer = http.request(f.port, { path = path, body = path == PATH and BODY or nil,
          headers = { Host = host } })
        assert.equal(421, answer.status, host .. path)
      end
    end
    assert.equal(0, #f:legs(function(e)
      return e.path == PATH
    end).hybrid)
    local error_body = http.request(f.port, { path = PATH, body = BODY, headers = { Host = "evil.example" } }).body
    assert.truthy(json.decode(error_body).error.message:find("--client-allowed-host", 1, true))
  end)

  it("is refused as a URL, and --client-address-header without proxies", function()
    for _, case in ipairs({
      { "--client-allowed-host", "http://a", "--client-allowed-host: expected a host name" },
      { "--trusted-proxies", "10.0.0.0/40", "--trusted-proxies: expected an address or a network" },
      { "--client-address-header", "forwarded", "--trusted-proxies" },
      { "--proxy-protocol", "--proxy-protocol: nobody is believed it" },
      { "--client-address-header", "x-forwarded", "--client-address-header" },
    }) do
      local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "check", "--port", "0", "--admin-port", "0",
        case[1], case[3] and case[2] })
      assert.equal(2, code)
      assert.truthy(err:find(case[3] or case[2], 1, true), err)
    end
  end)
end)
