-- https:// workers that nobody lists: found by DNS, in Kubernetes, in a file; what else is asked of them over TLS.
-- Each is another gateway, with TLS, before a simulator.

local certs = require("gateway.support.certs")
local dns = require("gateway.support.dns")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local kube_api = require("gateway.support.kube_api")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":3}'
local NAME = "vllm.llm.test" -- for which the worker's certificate is, and for no address

describe("TLS to workers that are found", function()
  local c, cert, key, behind, gateway, port, admin_port, server

  before_each(function()
    c = certs.new()
    cert, key = c:make("worker", { san = "DNS:" .. NAME })
  end)

  after_each(function()
    for _, it in ipairs({ gateway or false, behind or false, server or false }) do
      if it then
        it:stop(10)
      end
    end
    gateway, behind, server = nil, nil, nil
    proc.clean()
  end)

  local function start_worker(words, more)
    local flags = { "--tls-cert", cert, "--tls-key", key }
    proc.append(flags, more)
    behind = fleet.start({ workers = { words or "role=hybrid,ttft=1,itl=1" }, flags = flags, ready = false })
  end

  local function start(flags)
    local argv = { "--worker-tls-ca", c.ca }
    proc.append(argv, flags)
    gateway, port, admin_port = fleet.start_gateway(argv)
  end

  local function worker()
    return json.decode(http.get(admin_port, "/workers").body).workers[1]
  end

  -- At https://127.0.0.1, verified for NAME: its checks, and a request.
  local function serves()
    local w = eventually(function()
      local w = worker()
      return w and w.health == "up" and w.usable and w, http.get(admin_port, "/workers").body .. gateway:stderr()
    end, 15, "it is well")
    assert.equal("https://127.0.0.1:" .. behind.port, w.url)
    local answer = http.post(port, "/v1/completions", BODY)
    assert.equal(200, answer.status, answer.body)
  end

  local function is_refused_by_name()
    gateway:says("health check: TLS: the handshake failed: ")
    gateway:says("mismatch")
    assert.equal(503, http.post(port, "/v1/completions", BODY).status)
    assert.equal(0, #behind:legs("/v1/completions").hybrid)
  end

  local function resolves(zone, option)
    server = dns.start(zone)
    start({ "--dns-servers", server.address, "--workers-dns", option })
  end

  it("by DNS are known by the name that was asked for", function()
    start_worker()
    resolves({ [NAME] = { A = { "127.0.0.1" } } }, ("name=%s,port=%d,scheme=https"):format(NAME, behind.port))
    serves()
  end)

  it("by DNS are not who an alias leads to", function()
    start_worker()
    local zone = { ["else.test"] = { CNAME = NAME }, [NAME] = { A = { "127.0.0.1" } } }
    resolves(zone, ("name=else.test,port=%d,scheme=https"):format(behind.port))
    is_refused_by_name()
  end)

  it("by SRV are known by its domain, not by targets, which could be anybody's", function()
    start_worker()
    local zone = {
      ["_https._tcp." .. NAME] = { SRV = { { "pod-0.test", behind.port } } },
      ["pod-0.test"] = { A = { "127.0.0.1" } },
    }
    resolves(zone, ("srv=_https._tcp.%s,scheme=https"):format(NAME))
    serves()
  end)

  it("by SRV may be told another name", function()
    start_worker()
    local zone = {
      ["_https._tcp.else.test"] = { SRV = { { "pod-0.test", behind.port } } },
      ["pod-0.test"] = { A = { "127.0.0.1" } },
    }
    resolves(zone, "srv=_https._tcp.else.test,scheme=https,tls_name=" .. NAME)
    serves()
  end)

  it("by DNS show our certificate, of files of their own", function()
    local ours, ours_key = c:make("gateway", { cn = "gateway", usage = "clientAuth", san = "DNS:gw.test" })
    start_worker(nil, { "--tls-client-ca", c.ca, "--tls-client-allow", "DNS:gw.test" })
    server = dns.start({ [NAME] = { A = { "127.0.0.1" } } })
    local config = proc.write("baton.lua", ([[return { dns_servers = %q, workers_dns = { { name = %q, port = %d,
      scheme = "https", tls_ca = %q, tls_cert = %q, tls_key = %q } } }]]):format(server.address, NAME, behind.port,
      c.ca, ours, ours_key))
    gateway, port, admin_port = fleet.start_gateway({ config })
    serves()
  end)

  describe("in Kubernetes", function()
    local function pod(more)
      return kube_api.pod("w0", { role = "hybrid", port = behind.port }, more)
    end

    local function follow(more)
      start({ "--workers-kubernetes", ("namespace=llm,selector=app=vllm,api=%s,ca-file=%s%s"):format(server.url,
        server.ca_file, more or "") })
    end

    it("say it for themselves, by a label or an annotation", function()
      start_worker()
      server = kube_api.start()
      server:put(pod({ annotations = { ["baton/scheme"] = "https", ["baton/tls-name"] = NAME } }))
      follow()
      serves()
    end)

    it("may all be said to", function()
      start_worker()
      server = kube_api.start()
      server:put(pod())
      follow(",scheme=https,tls-name=" .. NAME)
      serves()
    end)

    it("change from one to the other at the same place, as one worker", function()
      start_worker()
      server = kube_api.start()
      server:put(pod())
      follow()
      eventually(function()
        local w = worker()
        return w and w.url == "http://127.0.0.1:" .. behind.port and w.health == "down"
      end, 15, "it does not speak HTTP")
      server:put(pod({ annotations = { ["baton/scheme"] = "https", ["baton/tls-name"] = NAME } }))
      serves()
      assert.equal(1, #json.decode(http.get(admin_port, "/workers").body).workers)
    end)

    it("are not trusted by their address alone", function()
      start_worker()
      server = kube_api.start()
      server:put(pod({ annotations = { ["baton/scheme"] = "https" } }))
      follow()
      is_refused_by_name()
    end)

    it("are refused with the reason where the scheme is none", function()
      start_worker()
      server = kube_api.start()
      server:put(pod({ annotations = { ["baton/scheme"] = "tls" } }))
      follow()
      eventually(function()
        local said = http.get(admin_port, "/discovery").body
        return said:find("baton/scheme: expected http or https", 1, true), said
      end, 15, "the reason is told")
    end)
  end)

  it("by a watched file are verified as the configuration's own", function()
    start_worker()
    local file = proc.write("workers.lua", "return {}")
    start({ "--workers-file", file })
    local text = ('return { { url = "https://127.0.0.1:%d", tls_name = %q } }'):format(behind.port, NAME)
    certs.replace(proc.write("new.lua", text), file)
    serves()
  end)

  it("by the admin API may say the certificate's name", function()
    start_worker()
    start({})
    local added = http.post(admin_port, "/workers", ('{"url":"https://127.0.0.1:%d","tls_name":%q}'):format(behind.port,
      NAME))
    assert.truthy(added.status >= 200 and added.status < 300, added.body)
    serves()
  end)

  it("are asked for their role over TLS", function()
    start_worker("role=decode,engine=sglang,ttft=1", { "--pd-disaggregation" })
    start({ proc.write("baton.lua", ([[return { pools = { { workers = {
      { url = "https://127.0.0.1:%d", tls_name = %q, role = "prefill", engine = "sglang", bootstrap_port = "none" }
      } } } }]]):format(behind.port, NAME)) })
    eventually(function()
      local w = worker()
      return w.health == "up" and w.role == "decode", json.encode(w)
    end, 15, "its engine's role is known")
    assert.equal("prefill", worker().role_switched_from)
  end)

  it("are refused where a name or a file is for TLS and the worker is not", function()
    local file = proc.write("baton.lua",
      'return { pools = { { workers = { { url = "http://127.0.0.1:1", tls_name = "x" } } } } }')
    local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "check", file })
    assert.equal(2, code)
    assert.truthy(err:find("tls_name are for https:// only", 1, true), err)
  end)
end)
