-- TLS on the client and the admin port: what is served, what is refused, certificates that change under load.

local certs = require("gateway.support.certs")
local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")
local socket = require("socket")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":12,"stream":true}'

describe("TLS", function()
  local c, f, cert, key

  before_each(function()
    c = certs.new()
    cert, key = c:make("server")
  end)

  after_each(function()
    if f then
      f:stop()
    end
    f = nil
    proc.clean()
  end)

  local function url(path, port)
    return ("https://127.0.0.1:%d%s"):format(port or f.port, path)
  end

  -- ask: flags; plain words for curl are those of a client that knows the CA.
  local function start(flags)
    local words = { "--tls-cert", cert, "--tls-key", key, "--log-format", "json" }
    proc.append(words, flags)
    f = fleet.start({ workers = { "role=hybrid,ttft=1,itl=1" }, flags = words, ready = false })
  end

  local function curl(words, seconds)
    local all = { "--cacert", c.ca }
    proc.append(all, words)
    return certs.curl(all, seconds)
  end

  local function wait_ready(words)
    eventually(function()
      local all = { url("/readiness") }
      proc.append(all, words)
      local status, body, why = curl(all)
      return status == 200, (body or "") .. why
    end, 10, "/readiness is 200 over TLS")
  end

  local function metric(name)
    local text = http.get(f.admin_port, "/metrics").body
    for line in text:gmatch("[^\n]+") do
      if line:sub(1, #name + 1) == name .. " " then
        return tonumber(line:match(" (%S+)$"))
      end
    end
  end

  local function failed(reason)
    return metric(('baton_tls_handshakes_failed_total{side="client",reason="%s"}'):format(reason))
  end

  it("serves what plain HTTP serves, by both versions", function()
    start()
    wait_ready()
    local text
    for _, version in ipairs({ "--tlsv1.3", "--tls-max" }) do
      local words = { version, url("/v1/completions"), "-d", BODY }
      if version == "--tls-max" then
        table.insert(words, 2, "1.2")
      end
      local status, body, why = curl(words)
      assert.equal(200, status, why)
      assert.truthy(body:find("data: %[DONE%]"), body)
      local words_of = body:gsub('"id":"[^"]*"', ""):gsub('"created":%d+', "")
      text = text or words_of
      assert.equal(text, words_of)
    end
    assert.truthy(metric('baton_tls_handshakes_total{side="client",version="TLSv1.2"}') >= 1)
    f.gateway:says('"tls":"TLSv1.3"')
    f.gateway:says('"tls":"TLSv1.2"')
  end)

  it("keeps connections, and large bodies whole both ways", function()
    start()
    wait_ready()
    local prompt = ("word "):rep(60000)
    local sent = ('{"model":"sim","max_tokens":2,"prompt":"%s"}'):format(prompt)
    local path = proc.write("body.json", sent)
    local status, body, why = curl({ url("/v1/completions"), "-d", "@" .. path })
    assert.equal(200, status, why)
    assert.truthy(body:find('"choices"', 1, true), body)
    local got = f:legs("/v1/completions").hybrid
    local kept = got[#got].body -- the simulator keeps its beginning
    assert.truthy(#kept >= 65536)
    assert.equal(sent:sub(1, 65000), kept:sub(1, 65000))
    -- one connection for many requests
    local before = metric('baton_tls_handshakes_total{side="client",version="TLSv1.3"}')
    local words = {}
    for _ = 1, 20 do
      words[#words + 1] = url("/health")
    end
    curl(words)
    assert.equal(before + 1, metric('baton_tls_handshakes_total{side="client",version="TLSv1.3"}'))
  end)

  it("agrees on HTTP/2 by ALPN where it is on, and on HTTP/1.1", function()
    local function version(...)
      local _, out, err = proc.run({ "/usr/bin/env", "curl", "-sS", "--cacert", c.ca, "-o", "/dev/null", "-d", BODY,
        "-w", "%{http_code} %{http_version}", url("/v1/completions"), ... })
      return out .. err
    end
    start()
    wait_ready()
    assert.equal("200 2", version())
    assert.equal("200 1.1", version("--http1.1"))
    assert.equal("200 1.1", version("--no-alpn"))
    f:stop()
    start({ "--no-http2" })
    wait_ready()
    assert.equal("200 1.1", version())
  end)

  it("tells plain HTTP on its port so, and refuses who does not trust it, or is too old", function()
    start({ "--tls-min-version", "1.3" })
    wait_ready()
    local answer = http.get(f.port, "/health")
    assert.equal(400, answer.status)
    assert.truthy(answer.body:find("this port speaks TLS: use https://", 1, true), answer.body)
    assert.equal(1, failed("plain"))
    local status, _, _, code = certs.curl({ url("/health") })
    assert.is_nil(status)
    assert.equal(60, code) -- unknown CA
    assert.is_nil((curl({ "--tls-max", "1.2", url("/health") })))
    eventually(function()
      return failed("alert") == 1 and failed("version") == 1
    end, 10, "both are counted")
    -- a protocol that is not ours
    status = curl({ "--no-alpn", url("/health") })
    assert.equal(200, status)
  end)

  it("gives a slow handshake no more than its time, and a plain port's silence neither", function()
    start({ "--tls-handshake-timeout-secs", tostring(clock.slowness()) }) -- enough for who is honest
    wait_ready()
    local silent, slow = socket.connect("127.0.0.1", f.port), socket.connect("127.0.0.1", f.port)
    slow:send("\22\3\1\2\0\1\0\1\252\3\3") -- the first bytes of a hello
    for _, s in ipairs({ silent, slow }) do
      s:settimeout(10 * clock.slowness())
      local _, why = s:receive(1)
      assert.equal("closed", why)
    end
    eventually(function()
      return failed("closed") == 1 -- who said nothing is no failure
    end, 10, "the slow one is counted")
    assert.equal(200, (curl({ url("/health") })))
  end)

  it("resumes sessions", function()
    start()
    wait_ready()
    curl({ "--http1.1", "-H", "Connection: close", url("/health"), url("/health"), url("/health") })
    eventually(function()
      return metric('baton_tls_handshakes_resumed_total{side="client"}') >= 1
    end, 10, "a session is resumed")
  end)

  local function expiry()
    return metric(('baton_tls_certificate_expiry_seconds{side="client",file="%s"}'):format(cert))
  end

  -- Clients of their own processes, each request a connection: the statuses that they saw.
  local function load_of(seconds_file)
    local script = ([[while [ ! -e '%s' ]; do
      curl -s -m 20 --cacert '%s' -o /dev/null -w '%%{http_code}\n' '%s'; done]]):format(seconds_file, c.ca,
      url("/health"))
    local list = {}
    for i = 1, 3 do
      list[i] = proc.start({ "/bin/sh", "-c", script }, { name = "load" })
    end
    return list
  end

  it("takes new certificates without a failed request: as the files change, and on SIGHUP", function()
    start()
    wait_ready()
    local stop = proc.path("stop")
    local clients = load_of(stop)
    local times = { expiry() }
    local new_cert, new_key = c:make("renewed", { days = 60 })
    certs.replace(new_cert, cert) -- at first without its key
    certs.replace(new_key, key)
    eventually(function()
      return expiry() ~= times[1], tostring(expiry())
    end, 15, "the new certificate is served")
    times[2] = expiry()
    for days = 70, 90, 10 do
      new_cert, new_key = c:make("renewed" .. days, { days = days })
      certs.replace(new_cert, cert)
      certs.replace(new_key, key)
      f.gateway:kill(proc.SIGHUP)
      local before = times[#times]
      eventually(function()
        return expiry() ~= before
      end, 15, "SIGHUP brings the next one")
      times[#times + 1] = expiry()
    end
    proc.write("done", "")
    assert(io.open(stop, "w")):close()
    local count = 0
    for _, p in ipairs(clients) do
      p:wait(30)
      for status in p:stdout():gmatch("[^\n]+") do
        assert.equal("200", status)
        count = count + 1
      end
    end
    assert.truthy(count > 20, count)
  end)

  it("keeps the old certificate when the new one is broken, and says so", function()
    start()
    wait_ready()
    local before = expiry()
    local other_cert = c:make("other", { days = 77 })
    certs.replace(other_cert, cert)
    f.gateway:says("is not the key of the certificate")
    assert.equal(before, expiry())
    assert.equal(200, (curl({ url("/health") })))
    f.gateway:kill(proc.SIGHUP)
    assert.equal(200, (curl({ url("/health") })))
    assert.equal(before, expiry())
  end)

  it("asks clients for certificates, and of those takes the listed ones", function()
    local web, web_key = c:make("web", { cn = "web-1", usage = "clientAuth", san = "URI:spiffe://td/web" })
    local job, job_key = c:make("job", { cn = "job-1", usage = "clientAuth", san = "URI:spiffe://td/job" })
    local old, old_key = c:make("old", { cn = "web-1", usage = "clientAuth", san = "URI:spiffe://td/web", days = -1 })
    local stranger = certs.new()
    local foe, foe_key = stranger:make("foe", { cn = "web-1", usage = "clientAuth", san = "URI:spiffe://td/web" })
    start({ "--tls-client-ca", c.ca, "--tls-client-allow", "URI:spiffe://td/w*" })
    wait_ready({ "--cert", web, "--key", web_key })
    assert.is_nil((curl({ url("/health") })))
    assert.is_nil((curl({ "--cert", job, "--key", job_key, url("/health") })))
    assert.is_nil((curl({ "--cert", old, "--key", old_key, url("/health") })))
    assert.is_nil((curl({ "--cert", foe, "--key", foe_key, url("/health") })))
    eventually(function()
      return failed("certificate") == 4, tostring(failed("certificate"))
    end, 10, "four are refused")
    assert.equal(200, (curl({ "--cert", web, "--key", web_key, url("/health") })))
  end)

  it("serves who shows no certificate where that is allowed, but no wrong one", function()
    local stranger = certs.new()
    local foe, foe_key = stranger:make("foe", { usage = "clientAuth" })
    start({ "--tls-client-ca", c.ca, "--tls-client-auth", "optional" })
    wait_ready()
    assert.is_nil((curl({ "--cert", foe, "--key", foe_key, url("/health") })))
  end)

  it("serves the admin port by TLS, with its own certificates", function()
    local admin_cert, admin_key = c:make("admin")
    local ops, ops_key = c:make("ops", { cn = "ops", usage = "clientAuth" })
    start({ "--admin-tls-cert", admin_cert, "--admin-tls-key", admin_key, "--admin-tls-client-ca", c.ca })
    wait_ready()
    assert.equal(400, http.get(f.admin_port, "/metrics").status)
    assert.is_nil((curl({ url("/metrics", f.admin_port) })))
    local status, body, why = curl({ "--cert", ops, "--key", ops_key, url("/metrics", f.admin_port) })
    assert.equal(200, status, why)
    assert.truthy(body:find('baton_tls_handshakes_failed_total{side="admin",reason="certificate"} 1', 1, true))
  end)

  it("chooses the certificate by name", function()
    local other, other_key = c:make("other", { san = "DNS:b.example" })
    start({ "--tls-cert", other, "--tls-key", other_key })
    wait_ready()
    local to = ("b.example:%d:127.0.0.1"):format(f.port)
    local status, _, why = curl({ "--resolve", to, ("https://b.example:%d/health"):format(f.port) })
    assert.equal(200, status, why)
    to = ("c.example:%d:127.0.0.1"):format(f.port)
    assert.is_nil((curl({ "--resolve", to, ("https://c.example:%d/health"):format(f.port) })))
  end)

  it("is said in one table of the file, and SIGHUP reads its files again", function()
    local other, other_key = c:make("other", { san = "DNS:b.example" })
    local admin_cert, admin_key = c:make("admin")
    local web, web_key = c:make("web", { usage = "clientAuth", san = "URI:spiffe://td/web" })
    f = fleet.start({
      workers = { "role=hybrid,ttft=1,itl=1" },
      ready = false,
      config = function(workers)
        local _, w = next(workers)
        return ([[return {
          tls = {
            certificates = { { cert = %q, key = %q }, { cert = %q, key = %q } },
            client_ca = %q, client_allow = { "URI:spiffe://td/w*" }, min_version = "1.3",
            admin = { certificates = { { cert = %q, key = %q } } },
          },
          pools = { { workers = { { url = %q } } } } }]]):format(cert, key, other, other_key, c.ca, admin_cert,
          admin_key, w.url)
      end,
    })
    local show = { "--cert", web, "--key", web_key }
    wait_ready(show)
    assert.is_nil((curl({ url("/health") })))
    local to = ("b.example:%d:127.0.0.1"):format(f.port)
    local by_name = { "--resolve", to, ("https://b.example:%d/health"):format(f.port), unpack(show) }
    assert.equal(200, (curl(by_name)))
    assert.equal(200, (curl({ url("/health", f.admin_port) })))
    by_name[#by_name + 1] = "--tls-max"
    by_name[#by_name + 1] = "1.2"
    assert.is_nil((curl(by_name)))
    local newer, newer_key = c:make("newer", { san = "DNS:c.example" })
    certs.replace(newer, other)
    certs.replace(newer_key, other_key)
    f.gateway:kill(proc.SIGHUP)
    eventually(function()
      local at = ("c.example:%d:127.0.0.1"):format(f.port)
      local status, _, why = curl({ "--resolve", at, ("https://c.example:%d/health"):format(f.port), show[1], show[2],
        show[3], show[4] })
      return status == 200, why
    end, 10, "the new name is served")
  end)

  it("ends what runs before it ends", function()
    start()
    wait_ready()
    f.sim:fault(f.sim.list[1].name, { kind = "slow_first_byte", path = "/v1/completions", times = 1, ms = 300 })
    local p = proc.start({ "/usr/bin/env", "curl", "-sS", "--cacert", c.ca, "-d", BODY, url("/v1/completions") })
    eventually(function()
      return #f:legs("/v1/completions").hybrid == 1
    end, 10, "the request is with its worker")
    f.gateway:kill(proc.SIGTERM)
    assert.equal(0, (p:wait(20)), p:stderr())
    assert.truthy(p:stdout():find("data: [DONE]", 1, true), p:stdout())
    assert.equal(0, (f.gateway:wait(20)))
  end)

  it("refuses what it cannot serve with, and says which file", function()
    local function refuses(words, expected)
      local argv = { fleet.binary("BATON_BIN", "baton"), "check", "--worker-urls", "http://127.0.0.1:1" }
      proc.append(argv, words)
      local code, _, err = proc.run(argv)
      assert.equal(2, code, err)
      assert.truthy(err:find(expected, 1, true), err)
    end
    refuses({ "--tls-cert", cert }, "--tls-cert: there are 1 of them and 0 of --tls-key")
    refuses({ "--tls-cert", cert, "--tls-key", c.dir .. "/ca.key" }, "ca.key: is not the key of the certificate")
    refuses({ "--tls-cert", "/none.pem", "--tls-key", key }, "--tls-cert: /none.pem: cannot be read")
    refuses({ "--admin-tls-cert", key, "--admin-tls-key", key }, "holds no certificate that can be read")
    refuses({ "--tls-client-ca", c.ca }, "--tls-client-ca: only with --tls-cert and --tls-key")
    refuses({ "--tls-cert", cert, "--tls-key", key, "--tls-client-allow", "CN:x" },
      "--tls-client-allow: only with --tls-client-ca")
    refuses({ "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", c.ca, "--tls-client-allow", "x" },
      '--tls-client-allow: "x" begins with none of')
    refuses({ "--tls-cert", cert, "--tls-key", key, "--tls-ciphers", "NONSENSE" }, "no cipher of this list can be used")
  end)
end)
