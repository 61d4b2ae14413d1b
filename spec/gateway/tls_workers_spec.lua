-- Workers with https:// URLs. The worker is another gateway, with TLS, before a simulator.

local certs = require("gateway.support.certs")
local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":8,"stream":true}'

describe("TLS to workers", function()
  local c, cert, key, behind, gateway, port, admin_port

  before_each(function()
    c = certs.new()
    cert, key = c:make("worker")
  end)

  after_each(function()
    if gateway then
      gateway:stop(10)
    end
    if behind then
      behind:stop()
    end
    gateway, behind = nil, nil
    proc.clean()
  end)

  -- The worker, and the gateway before it. flags: of the gateway; more: of the worker.
  local function start(flags, more, host)
    local words = { "--tls-cert", cert, "--tls-key", key }
    proc.append(words, more)
    behind = fleet.start({ workers = { "role=hybrid,ttft=1,itl=1" }, flags = words, ready = false })
    local own = { "--worker-urls", ("https://%s:%d"):format(host or "127.0.0.1", behind.port), "--connect-timeout-ms",
      "2000" }
    proc.append(own, flags)
    gateway, port, admin_port = fleet.start_gateway(own)
  end

  local function wait_ready()
    eventually(function()
      local answer = http.get(port, "/readiness")
      return answer.status == 200, answer.body
    end, 10, "the worker serves")
  end

  local function ask()
    return http.post(port, "/v1/completions", BODY)
  end

  local function metric(at, name)
    for line in http.get(at, "/metrics").body:gmatch("[^\n]+") do
      if line:sub(1, #name + 1) == name .. " " then
        return tonumber(line:match(" (%S+)$"))
      end
    end
  end

  it("are served by, and resumed with", function()
    start({ "--worker-tls-ca", c.ca, "--worker-idle-secs", "0.05" })
    wait_ready()
    for _ = 1, 4 do
      local answer = ask()
      assert.equal(200, answer.status)
      assert.truthy(answer.body:find("data: [DONE]", 1, true))
    end
    eventually(function()
      ask()
      clock.nap(0.1) -- until the connection is closed
      return metric(behind.admin_port, 'baton_tls_handshakes_resumed_total{side="client"}') >= 1
    end, 10, "a leg has resumed")
    assert.truthy(metric(admin_port, 'baton_tls_handshakes_total{side="worker",version="TLSv1.3"}') >= 1)
    assert.equal(0, metric(admin_port, 'baton_tls_handshakes_failed_total{side="worker",reason="certificate"}'))
  end)

  it("are known by their name", function()
    start({ "--worker-tls-ca", c.ca }, nil, "localhost")
    wait_ready()
    assert.equal(200, ask().status)
  end)

  -- It gets no request, and the reason is told.
  local function is_refused(why)
    gateway:says("health check: TLS: the handshake failed: " .. why)
    local answer = ask()
    assert.equal(503, answer.status)
    assert.equal(0, #behind:legs("/v1/completions").hybrid)
    assert.truthy(metric(admin_port, 'baton_tls_handshakes_failed_total{side="worker",reason="certificate"}') > 0)
  end

  it("are not trusted when their certificate has expired", function()
    cert, key = c:make("old", { days = -1 })
    start({ "--worker-tls-ca", c.ca })
    is_refused("certificate has expired")
  end)

  it("are not trusted when their certificate is for somebody else", function()
    cert, key = c:make("else", { san = "DNS:elsewhere.example,IP:127.0.0.2" })
    start({ "--worker-tls-ca", c.ca })
    is_refused("IP address mismatch")
  end)

  it("are not trusted when nobody known vouches for them", function()
    start() -- the system's CAs
    is_refused("unable to get local issuer certificate")
  end)

  it("are not trusted when they do not speak TLS at all", function()
    behind = fleet.start({ workers = { "role=hybrid" } })
    gateway, port, admin_port = fleet.start_gateway({ "--worker-urls", ("https://127.0.0.1:%d"):format(behind.port),
      "--worker-tls-ca", c.ca })
    gateway:says("health check: TLS: the handshake failed: wrong version number")
    assert.equal(503, ask().status)
  end)

  it("get our certificate where they ask for one", function()
    local web, web_key = c:make("gateway", { cn = "gateway", usage = "clientAuth", san = "DNS:gw.example" })
    start({ "--worker-tls-ca", c.ca, "--worker-tls-cert", web, "--worker-tls-key", web_key },
      { "--tls-client-ca", c.ca, "--tls-client-allow", "DNS:gw.example" })
    wait_ready()
    assert.equal(200, ask().status)
  end)

  it("do not serve who has none to show", function()
    start({ "--worker-tls-ca", c.ca }, { "--tls-client-ca", c.ca })
    eventually(function()
      local refused = 'baton_tls_handshakes_failed_total{side="client",reason="certificate"}'
      return (metric(behind.admin_port, refused) or 0) > 0
    end, 10, "the worker refuses")
    assert.equal(503, ask().status)
  end)

  it("may have files of their own", function()
    behind = fleet.start({
      workers = { "role=hybrid,ttft=1" }, flags = { "--tls-cert", cert, "--tls-key", key }, ready = false,
    })
    local config = proc.write("baton.lua", ([[return { pools = { { workers = {
      { url = "https://127.0.0.1:%d", tls_ca = %q } } } } }]]):format(behind.port, c.ca))
    gateway, port, admin_port = fleet.start_gateway({ config })
    wait_ready()
    assert.equal(200, ask().status)
  end)

  it("come back with another certificate, wrong and right", function()
    local sim = fleet.start_sim({ "role=hybrid,ttft=1,itl=1" })
    local function worker(at, its_cert, its_key)
      return fleet.start_gateway({ "--worker-urls", sim.list[1].url, "--port", at, "--tls-cert", its_cert, "--tls-key",
        its_key })
    end
    local function serves(status)
      eventually(function()
        local answer = ask()
        return answer.status == status, answer.body
      end, 15, "the answer is " .. status)
    end
    local wrong, wrong_key = c:make("wrong", { san = "DNS:elsewhere.example" })
    local first, at = worker(0, cert, key)
    gateway, port, admin_port = fleet.start_gateway({
      "--worker-urls", "https://127.0.0.1:" .. at, "--worker-tls-ca", c.ca, "--health-failure-threshold", "1",
    })
    wait_ready()
    serves(200)
    first:stop(10)
    local second = worker(at, wrong, wrong_key)
    gateway:says("IP address mismatch")
    serves(503)
    assert.equal("down", json.decode(http.get(admin_port, "/workers").body).workers[1].health)
    second:stop(10)
    worker(at, cert, key)
    serves(200)
  end)

  it("are judged by a CA that is followed as its file changes", function()
    local ca = proc.path("ca.pem")
    local other = certs.new()
    certs.replace(other.ca, ca)
    start({ "--worker-tls-ca", ca })
    gateway:says("unable to get local issuer certificate")
    certs.replace(c.ca, ca)
    wait_ready()
    gateway:says("TLS to workers or Redis: certificates are read again")
    assert(io.open(ca, "w")):close()
    gateway:says("TLS to workers or Redis: the certificates stay as they were: ")
    assert.equal(200, ask().status)
  end)

  it("are refused at the start with files that cannot be used", function()
    local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "check", "--worker-urls", "https://127.0.0.1:1",
      "--worker-tls-ca", "/none.pem" })
    assert.equal(2, code)
    assert.truthy(err:find('"https://127.0.0.1:1": /none.pem: holds no certificate', 1, true), err)
  end)
end)
