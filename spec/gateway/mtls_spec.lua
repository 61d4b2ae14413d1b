-- A client's verified certificate says who asks: on the client port beside keys, on the admin port as far as flags say.

local certs = require("gateway.support.certs")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"x","max_tokens":1}'
local LONG = '{"model":"sim","prompt":"x","max_tokens":600,"stream":true}'

-- Its answer says what a policy is told of who asks.
local POLICY = [[
return { api = 2, name = "mine", version = "1",
  plan = function(req, view, ctx) return { worker = view.hybrid[1] } end,
  admit = function(req, ctx)
    local who = req.identity
    return { status = 418, reason = table.concat({ who.source, who.id or "nobody", who.tenant,
      tostring(who.scopes.inference), req.tenant or "none" }, " ") }
  end }
]]

describe("a client's certificate", function()
  local c, f, cert, key, web, job, ops

  setup(function()
    c = certs.new()
    cert, key = c:make("server")
    local function client(name, cn, san)
      local file, key_file = c:make(name, { cn = cn, san = san, usage = "clientAuth" })
      return { "--cert", file, "--key", key_file }
    end
    web = client("web", "web-1/O=Example")
    job = client("job", "shared", "URI:spiffe://td/job,DNS:job.example")
    ops = client("ops", "ops")
  end)

  teardown(proc.clean)

  after_each(function()
    if f then
      f:stop()
    end
    f = nil
  end)

  local function curl(who, words)
    local all = { "--cacert", c.ca }
    for _, list in ipairs({ who or {}, words }) do
      proc.append(all, list)
    end
    return certs.curl(all)
  end

  local function url(path, port)
    return ("https://127.0.0.1:%d%s"):format(port or f.port, path)
  end

  -- flags: beside TLS and the authority of clients; who: is let in.
  local function start(flags, who)
    local words = { "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", c.ca }
    proc.append(words, flags)
    f = fleet.start({ workers = { "role=hybrid,ttft=1,itl=5" }, flags = words, ready = false })
    eventually(function()
      local status, body, why = curl(who, { url("/readiness") })
      return status == 200, (body or "") .. why
    end, 10, "/readiness is 200 over TLS")
  end

  local function with_policy(...)
    return { "--policy", proc.write("mine.lua", POLICY), ... }
  end

  -- Status and the sentence of an error; more: words for curl.
  local function ask(who, ...)
    local status, body, why = curl(who, { "-d", BODY, url("/v1/completions"), ... })
    assert.truthy(status, why)
    local told = json.decode(body)
    return status, told.error and told.error.message
  end

  local function reason(who, ...)
    local status, text = ask(who, ...)
    assert.equal(418, status, text)
    return text
  end

  local function bearer(value)
    return "-H", "Authorization: Bearer " .. value
  end

  it("is an identity where no key is shown; a key that is shown has to be right, and counts", function()
    local keys = proc.write("keys.txt", "right-key tenant=acme\n")
    start(with_policy("--tls-client-auth", "optional", "--client-api-keys-file", keys))
    assert.equal("mtls subject:O=Example,CN=web-1 web-1 true web-1", reason(web))
    assert.truthy(reason(web, bearer("right-key")):find("^key key%-%x+ acme true acme$"))
    assert.truthy(reason(nil, bearer("right-key")):find("^key key%-%x+ acme true acme$"))
    for _, words in ipairs({
      { bearer("wrong") }, { "-H", "x-api-key: wrong" }, { "-H", "Authorization: Basic right-key" },
      { "-H", "x-api-key;" }, -- curl's word for an empty one
    }) do
      assert.equal(401, (ask(web, unpack(words))), words[2])
    end
    local status, text = ask(nil)
    assert.same({ 401, "missing or wrong API key" }, { status, text })
    -- before its body is read, too
    local large = proc.write("large.json", BODY:gsub('"x"', '"' .. ("x"):rep(100000) .. '"'))
    assert.equal(418, (curl(web, { "-d", "@" .. large, url("/v1/completions") })))
    assert.equal(401, (curl(nil, { "-d", "@" .. large, url("/v1/completions") })))
    assert.equal(200, (curl(web, { url("/v1/models") })))
    assert.equal(401, (curl(nil, { url("/v1/models") })))
  end)

  it("is one over HTTP/2, and on sessions that are resumed", function()
    local expected = "mtls subject:O=Example,CN=web-1 web-1 true web-1"
    local function resumed()
      return f:metric('baton_tls_handshakes_resumed_total{side="client"}')
    end
    start(with_policy(), web)
    -- a connection of HTTP/1.1, then, by its ticket, two streams of HTTP/2
    local told = "\n%{http_version}\n"
    local asked = { "-d", BODY, url("/v1/completions") }
    local argv = { "/usr/bin/env", "curl" }
    for i, words in ipairs({ { "--http1.1", "-H", "Connection: close" }, { "--http2", asked[3] } }) do
      local next = i == 2 and { "--next" } or {}
      for _, list in ipairs({ next, { "-sS", "--cacert", c.ca, "-w", told }, web, words, asked }) do
        proc.append(argv, list)
      end
    end
    local code, out, err = proc.run(argv, { seconds = 30 })
    assert.equal(0, code, err)
    assert.equal(3, select(2, out:gsub(expected:gsub("%-", "%%-"), "")), out)
    assert.same({ 1, 2 }, { select(2, out:gsub("\n1.1\n", "")), select(2, out:gsub("\n2\n", "")) }, out)
    assert.equal(1, resumed())
    -- by 1.2, too, of another process
    local session = proc.path("session.pem")
    local hello = ("POST /v1/completions HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n" ..
      "Content-Length: %d\\r\\n\\r\\n%s"):format(#BODY, BODY)
    for i, word in ipairs({ "-sess_out", "-sess_in" }) do
      local words = ("-connect 127.0.0.1:%d -CAfile '%s' -cert '%s' -key '%s' %s '%s'"):format(f.port, c.ca, web[2],
        web[4], word, session)
      out = select(2, proc.run({ "/bin/sh", "-c",
        ("printf '%s' | openssl s_client -quiet -tls1_2 %s"):format(hello, words) }, { seconds = 30 }))
      assert.truthy(out:find(expected, 1, true), out)
      assert.equal(i, resumed())
    end
  end)

  it("is one where no keys are asked for: those of clients are the workers' then", function()
    start(with_policy("--tls-client-auth", "optional"))
    assert.equal("mtls subject:O=Example,CN=web-1 web-1 true web-1", reason(web, bearer("a-workers")))
    assert.equal("anonymous nobody anonymous true none", reason(nil))
    assert.equal("anonymous nobody said true said", reason(nil, "-H", "x-tenant-id: said"))
    assert.equal("mtls subject:O=Example,CN=web-1 web-1 true web-1", reason(web, "-H", "x-tenant-id: said"))
    f:stop()
    start({ "--tls-client-auth", "optional" })
    assert.equal(200, (ask(web, bearer("a-workers"))))
    assert.equal("Bearer a-workers", f:legs("/v1/completions").hybrid[1].headers.authorization)
  end)

  it("has the tenant of its name, of its organization, or says nothing", function()
    start(with_policy("--tls-client-auth", "optional"))
    -- a URI is no tenant's name: what can be had of it, and a hash of all of it
    assert.truthy(reason(job):find("^mtls URI:spiffe://td/job spiffe%-td%-job%-%x+ true spiffe%-td%-job%-%x+$"))
    f:stop()
    start(with_policy("--tls-client-auth", "optional", "--tls-client-tenant", "organization"))
    assert.equal("mtls subject:O=Example,CN=web-1 Example true Example", reason(web))
    assert.truthy(reason(ops):find("^mtls subject:CN=ops subject%-CN%-ops%-%x+ true "), reason(ops))
    f:stop()
    start(with_policy("--tls-client-tenant", "none"), web)
    assert.equal("anonymous nobody said true said", reason(web, "-H", "x-tenant-id: said"))
    f:stop()
    local keys = proc.write("keys.txt", "right-key tenant=acme\n")
    start(with_policy("--tls-client-tenant", "none", "--client-api-keys-file", keys), web)
    assert.equal(401, (ask(web)))
    assert.truthy(reason(web, bearer("right-key")):find("^key "))
    f:stop()
    -- the certificate of a proxy is not that of whom it speaks for
    start(with_policy("--trusted-proxies", "127.0.0.1"), web)
    assert.equal("anonymous nobody anonymous true none", reason(web, "-H", "X-Forwarded-For: 10.1.2.3"))
  end)

  it("is in records and logs, and is who may cancel; it opens no worker paths", function()
    start({ "--log-format", "json", "--access-log", "--admin-api-key", "admins" }, web)
    assert.equal(200, (ask(web, "-H", "X-Request-Id: r1")))
    f.gateway:says('"identity":"subject:O=Example,CN=web-1"')
    f.gateway:says('"tenant":"web-1"')
    local story = http.get(f.admin_port, "/explain/r1?format=text", { Authorization = "Bearer admins" }).body
    assert.truthy(story:find("tenant web-1, identity subject:O=Example,CN=web-1", 1, true), story)

    local out = proc.path("stream")
    local p = proc.start({ "/usr/bin/env", "curl", "-sSN", "--cacert", c.ca, "-o", out, "-H", "X-Request-Id: r2", "-d",
      LONG, web[1], web[2], web[3], web[4], url("/v1/completions") })
    local function events()
      return select(2, (proc.read(out) or ""):gsub("data:", ""))
    end
    local function wait_events(count)
      eventually(function()
        return events() >= count, tostring(events())
      end, 10, "events come")
    end
    wait_events(2)
    local function abort(who)
      assert.equal(200, (curl(who, { "-d", '{"rid":"r2"}', url("/abort_request") })))
    end
    abort(ops)
    wait_events(events() + 20)
    abort(web)
    p:wait(20)
    assert.is_true(events() < 600, events())

    assert.equal(404, (curl(web, { url("/workers") })))
    assert.equal(404, (curl(web, { "-X", "POST", url("/add_worker?url=http://127.0.0.1:1") })))
    assert.equal(200, (curl(web, { url("/workers"), bearer("admins") })))
  end)

  describe("on the admin port", function()
    local log

    local function start_admin(...)
      log = proc.path("audit.jsonl")
      local words = {
        "--tls-client-auth", "optional", "--admin-tls-cert", cert, "--admin-tls-key", key, "--admin-tls-client-ca",
        c.ca, "--audit-log", log, ...,
      }
      start(words)
    end

    local function status(who, ...)
      return (curl(who, { ... }))
    end

    local function change(...)
      return status(ops, "-X", "POST", url("/workers/w0/drain", f.admin_port), ...)
    end

    local function by(who)
      eventually(function()
        local text = proc.read(log) or ""
        return text:find('"by":"' .. who .. '"', 1, true), text
      end, 10, "the audit log says who")
    end

    it("opens nothing by itself, and says who it was", function()
      start_admin("--admin-api-key", "admins")
      assert.equal(401, status(ops, url("/workers", f.admin_port)))
      assert.equal(401, change())
      assert.equal(200, status(ops, url("/workers", f.admin_port), bearer("admins")))
      assert.equal(200, change(bearer("admins")))
      by("admin_key")
      f:stop()
      start_admin()
      assert.equal(200, change())
      by("mtls:subject:CN=ops")
    end)

    it("may read, or change, where a flag says so; a wrong key is refused all the same", function()
      for _, keys in ipairs({ { "--admin-api-key", "admins" }, {} }) do
        start_admin("--admin-tls-client-scope", "admin-read", unpack(keys))
        assert.equal(200, status(ops, url("/workers", f.admin_port)))
        assert.equal(403, change())
        if keys[1] then
          assert.equal(401, status(ops, url("/workers", f.admin_port), bearer("wrong")))
          assert.equal(200, change(bearer("admins")))
        end
        f:stop()
        start_admin("--admin-tls-client-scope", "admin-write", unpack(keys))
        assert.equal(200, change())
        by("mtls:subject:CN=ops")
        -- a browser shows it for any page
        assert.equal(403, change("-H", "Origin: https://evil.example"))
        assert.equal(403, status(ops, url("/workers", f.admin_port), "-H", "Host: evil.example"))
        assert.equal(415, change("-H", "Content-Type: text/plain"))
        f:stop()
      end
      f = nil
    end)
  end)

  it("is shown by baton fleet, which verifies the gateway before it says its key", function()
    local function tool(words)
      local argv = { fleet.binary("BATON_BIN", "baton"), "fleet", "workers", "list", "--admin", url("", f.admin_port) }
      proc.append(argv, words)
      return proc.run(argv, { seconds = 30, env = { BATON_ADMIN_API_KEY = "admins" } })
    end
    start({
      "--tls-client-auth", "optional", "--admin-tls-cert", cert, "--admin-tls-key", key, "--admin-tls-client-ca", c.ca,
      "--admin-api-key", "admins",
    })
    local code, out, err = tool({ "--tls-ca", c.ca, "--tls-cert", ops[2], "--tls-key", ops[4] })
    assert.equal(0, code, err)
    assert.truthy(out:find("w0", 1, true), out)
    for _, case in ipairs({
      { 1, "does not answer: TLS: the handshake failed: ", "--tls-cert", ops[2], "--tls-key", ops[4] }, -- unknown CA
      { 1, "does not answer: ", "--tls-ca", c.ca }, -- shows no certificate
      { 2, "/nowhere/ca.pem: ", "--tls-ca", "/nowhere/ca.pem" },
      { 2, "--tls-cert: only with --tls-key", "--tls-cert", ops[2] },
    }) do
      code, out, err = tool({ unpack(case, 3) })
      assert.equal(case[1], code, err)
      assert.equal("", out)
      assert.truthy(err:find(case[2], 1, true), err)
    end
  end)

  it("is refused where it would be nobody's", function()
    for _, case in ipairs({
      { "--tls-client-tenant", "organization", "--tls-client-tenant: only with --tls-client-ca" },
      { "--admin-tls-client-scope", "admin-read", "--admin-tls-client-scope: only with --admin-tls-client-ca" },
    }) do
      local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "check", "--worker-urls",
        "http://127.0.0.1:1", case[1], case[2] })
      assert.equal(2, code, err)
      assert.truthy(err:find(case[3], 1, true), err)
    end
  end)
end)
