-- Who asks: keys as hashes (baton key), tokens of an issuer, what each may, and what policies and records know of it.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local issuer = require("gateway.support.issuer")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")

local WORKERS = { "role=hybrid,ttft=1,itl=1" }
local BODY = '{"model":"sim","prompt":"x","max_tokens":1}'
local f

local function start(flags)
  f = fleet.start({ workers = WORKERS, flags = flags })
end

local function stop()
  if f then
    f:stop()
  end
  proc.clean()
end

local function baton_key(...)
  return proc.run({ fleet.binary("BATON_BIN", "baton"), "key", ... })
end

-- A new key of the file.
local function new_key(path, ...)
  local code, out, err = baton_key("new", path, ...)
  assert.equal(0, code, err)
  local key = out:match("^(bk_%w+_%w+)\n$")
  assert.truthy(key, out)
  return key
end

local function id_of(key)
  return key:match("^bk_%w+")
end

local write = proc.replace -- it is followed: nobody must see half of it

local function bearer(key, more)
  local headers = { Authorization = "Bearer " .. key }
  for name, value in pairs(more or {}) do
    headers[name] = value
  end
  return headers
end

local function ask(key, path, body)
  return f:post(path or "/v1/completions", body or BODY, key and bearer(key))
end

local function refused(answer, status, text, challenge)
  assert.equal(status, answer.status, answer.body)
  assert.truthy(answer.body:find(text, 1, true), answer.body)
  assert.equal(challenge, answer:header("www-authenticate"))
end

local INVALID, NONE = 'Bearer realm="baton", error="invalid_token"', 'Bearer realm="baton"'

describe("hashed keys", function()
  after_each(stop)

  it("let in whom they are, for what they may", function()
    local path = proc.path("keys.txt")
    local acme = new_key(path, "--tenant", "acme", "--comment", "batch jobs")
    local lister = new_key(path, "--scopes", "models", "--expires", "never")
    local narrow = new_key(path, "--models", "llama-*,m2")
    local text = proc.read(path)
    assert.is_nil(text:find(acme:match("_(%w+)$"), 1, true))
    assert.truthy(text:find(id_of(acme), 1, true))
    assert.equal("600", select(2, proc.run({ "/usr/bin/stat", "-c", "%a", path })):match("%d+"))
    start({ "--client-api-keys-file", path })

    assert.equal(200, ask(acme).status)
    refused(ask(nil), 401, "missing or wrong API key", NONE)
    refused(ask(acme .. "x"), 401, "missing or wrong API key", INVALID)
    refused(ask(id_of(acme) .. "_" .. lister:match("_(%w+)$")), 401, "missing or wrong API key", INVALID)
    refused(ask("bk_unknown_secret"), 401, "missing or wrong API key", INVALID)
    -- what a file that has leaked would give away
    refused(ask(text:match("sha256:(%S+)")), 401, "missing or wrong API key", INVALID)

    refused(ask(lister), 403, [[lacks the scope \"inference\"]],
      'Bearer realm="baton", error="insufficient_scope", scope="inference"')
    refused(ask(lister, "/v1/messages"), 403, '"type":"permission_error"',
      'Bearer realm="baton", error="insufficient_scope", scope="inference"')
    refused(ask(lister, "/abort_request", '{"rid":"a"}'), 403, [[lacks the scope \"cancel\"]],
      'Bearer realm="baton", error="insufficient_scope", scope="cancel"')
    assert.equal(200, f:get("/v1/models", bearer(lister)).status)
    refused(http.request(f.port, { method = "DELETE", path = "/v1/models/m2", headers = bearer(lister) }), 403,
      [[lacks the scope \"inference\"]], 'Bearer realm="baton", error="insufficient_scope", scope="inference"')
    assert.equal(403, ask(lister, nil, BODY:gsub('"x"', '"' .. ("x"):rep(100000) .. '"')).status) -- before its body

    refused(ask(narrow), 403, "may not use this model")
    refused(ask(narrow, nil, '{"prompt":"x"}'), 403, "may not use this model")
    assert.are_not.equal(403, ask(narrow, nil, BODY:gsub("sim", "llama-3")).status)

    assert.equal(5, f:metric('baton_auth_refused_total{reason="scope"}'))
    assert.equal(1, f:metric('baton_auth_refused_total{reason="missing"}'))
    assert.equal(4, f:metric('baton_auth_refused_total{reason="key_wrong"}'))
    assert.equal(2, f:metric('baton_auth_refused_total{reason="model"}'))
  end)

  it("may let a client give its own kv_hints, to an engine that takes them", function()
    local path = proc.path("keys.txt")
    local may, may_not = new_key(path, "--scopes", "inference,kv-hints"), new_key(path)
    f = fleet.start({ workers = { "role=hybrid,name=w,engine=sglang,ttft=1,itl=1" },
      flags = { "--engine", "sglang", "--client-api-keys-file", path } })
    local hints = '{"protocol_version":"0.1","message_id":"m","actions":[]}'
    local body = '{"text":"x","sampling_params":{"max_new_tokens":1},"kv_hints":%s}'
    local function sent(key, value)
      local status = ask(key, "/generate", body:format(value)).status
      local all = f:requests("w")
      return status, json.raw(all[#all].body, "kv_hints")
    end
    assert.same({ 200, hints }, { sent(may, hints) })
    assert.same({ 200 }, { sent(may_not, hints) })
    assert.same({ 400, '{"actions":1}' }, { sent(may, '{"actions":1}') }) -- the engine's to say
    assert.same({ 200 }, { sent(may, "[" .. hints .. "]") })
  end)

  it("are taken back without a restart, and a broken file changes nothing", function()
    local path = proc.path("keys.txt")
    local one, two = new_key(path, "--tenant", "one"), new_key(path, "--tenant", "two")
    start({ "--client-api-keys-file", path })
    assert.same({ 200, 200 }, { ask(one).status, ask(two).status })
    assert.equal(0, (baton_key("revoke", path, id_of(one))))
    eventually(function()
      return ask(one).status == 401
    end, 10, "the key is refused")
    refused(ask(one), 401, "has been revoked", INVALID)
    assert.equal(200, ask(two).status)

    local good = proc.read(path)
    write(path, good .. "bk_x sha256:12 tenant=a\n")
    f.gateway:says("client keys refused, those before count on: " .. path .. ":3: sha256:")
    assert.equal(200, ask(two).status)
    refused(ask(one), 401, "has been revoked", INVALID)
    write(path, "")
    f.gateway:says("no key in it: every client would be refused")
    assert.equal(200, ask(two).status)
    write(path, good)
    local three = new_key(path)
    eventually(function()
      return ask(three).status == 200
    end, 10, "a new key counts")

    -- one that expires while it is watched
    write(path, (good:gsub("expires=%S+", "expires=2020-01-01")))
    eventually(function()
      return ask(two).status == 401
    end, 10, "the key has expired")
    refused(ask(two), 401, "has expired", INVALID)
  end)

  it("come and go while others are served: no request of theirs fails", function()
    local path = proc.path("keys.txt")
    local mine = new_key(path, "--tenant", "mine")
    start({ "--client-api-keys-file", path })
    local c = http.connect(f.port)
    for _ = 1, 6 do
      local passing = new_key(path)
      local seen = false
      eventually(function()
        for _ = 1, 10 do
          c:ask({ path = "/v1/completions", headers = bearer(mine), body = BODY })
          assert.equal(200, c:wait(nil, 10).status)
        end
        local status = ask(passing).status
        if status == 200 and not seen then
          seen = true
          assert.equal(0, (baton_key("revoke", path, id_of(passing))))
        end
        return seen and status == 401
      end, 20, "the key has come and gone")
    end
    c:close()
  end)

  it("are known by their ids, and the keys themselves to nobody", function()
    local path = proc.path("keys.txt")
    local acme, other = new_key(path, "--tenant", "acme"), new_key(path, "--tenant", "acme")
    start({ "--client-api-keys-file", path, "--log-format", "json", "--log-level", "debug",
      "--record-file", proc.path("records"), "--record-sample", "1" })
    local answer = f:post("/v1/completions", BODY,
      bearer(acme, { ["X-Request-Id"] = "r1", ["x-tenant-id"] = "forged" }))
    assert.equal(200, answer.status)
    local record = eventually(function()
      local told = json.decode(http.get(f.admin_port, "/explain/r1").body)
      return told.identity and told
    end, 10, "the record is there")
    assert.equal(id_of(acme), record.identity)
    assert.equal("acme", record.tenant)
    local story = http.get(f.admin_port, "/explain/r1?format=text").body
    assert.truthy(story:find("tenant acme, identity " .. id_of(acme), 1, true), story)
    f.gateway:says('"identity":"' .. id_of(acme) .. '"')

    -- cancelling is the right of the key, not of its tenant
    local c = http.start(f.port, { path = "/v1/completions", headers = bearer(acme, { ["X-Request-Id"] = "r2" }),
      body = '{"model":"sim","prompt":"x","max_tokens":400,"stream":true}' })
    c:wait_events(2)
    local function abort(key)
      assert.equal(200, f:post("/abort_request", '{"rid":"r2"}', bearer(key)).status)
    end
    abort(other)
    c:wait_events(#c.answer:data() + 20)
    abort(acme)
    eventually(function()
      return json.decode(http.get(f.admin_port, "/requests").body).total == 0
    end, 10, "it ends")
    c:close()
    local secret = acme:match("_(%w+)$")
    assert.is_nil(f.gateway:stderr():find(secret, 1, true))
    assert.is_nil((proc.read(proc.path("records")) or ""):find(secret, 1, true))
    for _, leg in ipairs(f:legs().single or {}) do
      assert.is_nil(leg.headers.authorization)
    end
  end)

  it("open the admin port for what they may, beside the admin key", function()
    local path = proc.path("keys.txt")
    local client = new_key(path)
    local reader, writer = new_key(path, "--scopes", "admin-read"), new_key(path, "--scopes", "admin-write")
    local log = proc.path("audit.jsonl")
    start({ "--client-api-keys-file", path, "--admin-api-key", "root", "--audit-log", log })
    local function admin(method, what, key)
      return http.request(f.admin_port, { method = method, path = what, headers = bearer(key) })
    end
    assert.equal(200, admin("GET", "/workers", "root").status)
    assert.equal(401, admin("GET", "/workers", "wrong").status)
    assert.equal(403, admin("GET", "/workers", client).status)
    assert.equal(200, admin("GET", "/workers", reader).status)
    local name = json.decode(admin("GET", "/workers", reader).body).workers[1].name
    local answer = admin("POST", "/workers/" .. name .. "/drain", reader)
    assert.equal(403, answer.status)
    assert.truthy(answer.body:find("admin-write", 1, true), answer.body)
    assert.equal(200, admin("GET", "/workers", writer).status)
    assert.equal(200, admin("POST", "/workers/" .. name .. "/undrain", writer).status)
    eventually(function()
      local text = proc.read(log) or ""
      return text:find('"by":"key:' .. id_of(writer) .. '"', 1, true), text
    end, 10, "the audit log says who it was")
    -- The dashboard's cookie is worth what the key is that it was given for.
    assert.equal(403, admin("POST", "/ui/login", client).status)
    assert.equal(403, admin("POST", "/ui/login", reader).status)
    local login = admin("POST", "/ui/login", writer)
    assert.equal(200, login.status, login.body)
    local cookie = { Cookie = login:header("set-cookie"):match("^[^;]+"), Origin = "http://127.0.0.1:" .. f.admin_port }
    assert.equal(200, http.get(f.admin_port, "/workers", cookie).status)
    local drain = { method = "POST", path = "/workers/" .. name .. "/undrain", headers = cookie }
    assert.equal(200, http.request(f.admin_port, drain).status)
    local streams = {}
    for i, headers in ipairs({ cookie, bearer(writer), bearer("root") }) do
      streams[i] = http.start(f.admin_port, { path = "/ui/events", headers = headers })
      streams[i]:wait_events(2)
    end
    assert.equal(0, (baton_key("revoke", path, id_of(writer))))
    streams[1]:wait(nil, 10) -- nobody asks anything else: its key ends it
    streams[2]:wait(nil, 10)
    assert.equal(200, http.request(f.admin_port, { path = "/workers", headers = bearer("root") }).status)
    streams[3]:wait_events(#streams[3].answer:data() + 1)
    streams[3]:close()
    eventually(function()
      return http.get(f.admin_port, "/workers", cookie).status == 401
    end, 10, "the cookie ends with its key")
    assert.equal(401, http.request(f.admin_port, drain).status)
    writer = new_key(path, "--scopes", "admin-write")
    eventually(function()
      return admin("GET", "/workers", writer).status == 200
    end, 10, "the new key counts")
    assert.equal(401, http.get(f.admin_port, "/workers", cookie).status)
    assert.equal(403, ask(writer).status) -- an operator is no client
    assert.equal(200, f:get("/list_workers", bearer(reader)).status)
    assert.equal(404, f:get("/list_workers", bearer(client)).status)
    assert.equal(403, ask(reader, "/add_worker?url=http://127.0.0.1:9&worker_type=decode").status)
  end)
end)

local ISSUER = { "--jwt-issuer", "https://issuer", "--jwt-audience", "baton" }

local function with_issuer(...)
  local words = { ... }
  proc.append(words, ISSUER)
  return words
end

describe("tokens", function()
  after_each(stop)

  it("are believed where the issuer has signed them, and in no other case", function()
    local ed, rsa, stranger = issuer.new("ed"), issuer.new("rsa", "rsa"), issuer.new("ed-2")
    stranger.kid = "ed"
    local keys = proc.write("keys.txt", "plain\n")
    start(with_issuer("--jwt-jwks-file", proc.write("jwks.json", issuer.set(ed, rsa)),
      "--client-api-keys-file", keys))
    assert.equal(200, ask(ed:token()).status)
    assert.equal(200, ask(rsa:token()).status)
    assert.equal(200, ask("plain").status)
    for reason, token in pairs({
      token_signature = stranger:token(),
      token_algorithm = ed:confused_token(),
      token_expired = ed:token({ exp = os.time() - 100 }),
      token_early = ed:token({ nbf = os.time() + 1000 }),
      token_issuer = ed:token({ iss = "https://else" }),
      token_audience = ed:token({ aud = "else" }),
      token_key = ed:token({}, { kid = "none" }),
      token_claims = ed:token({ exp = "soon" }),
      token_malformed = ed:token({}, { crit = { "exp" } }),
      key_wrong = ed:unsigned_token(),
    }) do
      local answer = ask(token)
      assert.equal(401, answer.status, reason)
      assert.equal(INVALID, answer:header("www-authenticate"))
      assert.equal(1, f:metric(('baton_auth_refused_total{reason="%s"}'):format(reason)), reason)
    end
    refused(ask(ed:token({ scope = "openid models" })), 403, [[lacks the scope \"inference\"]],
      'Bearer realm="baton", error="insufficient_scope", scope="inference"')
  end)

  it("follow the issuer's file", function()
    local old, new = issuer.new("old"), issuer.new("new")
    local path = proc.write("jwks.json", issuer.set(old))
    start(with_issuer("--jwt-jwks-file", path))
    local first, second = old:token(), new:token()
    assert.same({ 200, 401 }, { ask(first).status, ask(second).status })
    write(path, issuer.set(new))
    eventually(function()
      return ask(second).status == 200
    end, 10, "the new key counts")
    assert.equal(401, ask(first).status) -- though it was believed before
    write(path, "{}")
    f.gateway:says('no key set: a list "keys" is needed')
    assert.equal(200, ask(second).status)
  end)

  it("follow the issuer's URL: an unknown key is asked for, but not once for each token", function()
    local old, new, stranger = issuer.new("old"), issuer.new("new"), issuer.new("stranger")
    local server = issuer.serve(issuer.set(old))
    start(with_issuer("--jwt-jwks-url", server.url, "--jwt-jwks-refresh-secs", "3600"))
    local first, second, third = old:token(), new:token(), stranger:token()
    eventually(function()
      return ask(first).status == 200
    end, 10, "the issuer's keys are there")
    assert.equal(1, server:calls())
    server:put(issuer.set(old, new))
    eventually(function()
      return ask(second).status == 200
    end, 20, "the new key was asked for")
    assert.equal(2, server:calls())
    local began = os.time()
    for _ = 1, 50 do
      assert.equal(401, ask(third).status)
    end
    assert.is_true(server:calls() <= 3 + (os.time() - began) / 5)
    server.process:stop()
    assert.equal(200, ask(first).status) -- its last answer counts
  end)

  it("are 503 until the issuer has answered once", function()
    local server = issuer.serve("no keys yet")
    start(with_issuer("--jwt-jwks-url", server.url, "--jwt-jwks-refresh-secs", "1"))
    local one = issuer.new("one")
    f.gateway:says("the issuer's keys that are known count on")
    assert.equal(503, ask(one:token()).status)
    server:put(issuer.set(one))
    eventually(function()
      return ask(one:token()).status == 200
    end, 10, "the issuer's keys are there")
  end)
end)

describe("req.identity", function()
  after_each(stop)

  local POLICY = [[
return { api = 2, name = "mine", version = "1",
  plan = function(req, view, ctx) return { worker = view.hybrid[1] } end,
  admit = function(req, ctx)
    local who = req.identity
    local groups = who.claims.groups and baton.json_decode(who.claims.groups) or {}
    return { status = 418, reason = table.concat({ who.source, who.id or "nobody", who.tenant,
      tostring(who.scopes.inference), tostring(who.scopes.gold), tostring(who.claims.plan),
      tostring(who.claims.email), tostring(groups[1]), req.tenant or "none" }, " ") }
  end }
]]

  local function reason(headers)
    return json.decode(f:post("/v1/completions", BODY, headers).body).error.message
  end

  local function start_with(flags)
    local words = { "--policy", proc.write("mine.lua", POLICY) }
    proc.append(words, flags)
    start(words)
  end

  it("tells a policy who asks", function()
    local ed, path = issuer.new("ed"), proc.path("keys.txt")
    local key = new_key(path, "--tenant", "acme")
    start_with(with_issuer("--client-api-keys-file", path, "--jwt-jwks-file",
      proc.write("jwks.json", issuer.set(ed)), "--jwt-claim", "plan", "--jwt-claim", "groups"))
    assert.equal("key " .. id_of(key) .. " acme true false nil nil nil acme", reason(bearer(key)))
    assert.equal("jwt alice globex true true pro nil a globex", reason(bearer(ed:token({
      tenant = "globex", scope = "inference gold", plan = "pro", groups = { "a", "b" }, email = "a@b",
    }))))
  end)

  it("is the tenant anonymous where who shows no key is let in, whatever it says of itself", function()
    local path = proc.path("keys.txt")
    local key = new_key(path, "--tenant", "acme", "--set-tenant")
    start_with({ "--client-api-keys-file", path, "--anonymous-scopes", "inference" })
    assert.equal("anonymous nobody anonymous true false nil nil nil anonymous", reason({ ["x-tenant-id"] = "acme" }))
    assert.equal("key " .. id_of(key) .. " other true false nil nil nil other",
      reason(bearer(key, { ["x-tenant-id"] = "other" })))
  end)

  it("is anonymous where nobody is asked", function()
    start_with({})
    assert.equal("anonymous nobody anonymous true false nil nil nil none", reason({}))
    assert.equal("anonymous nobody said true false nil nil nil said", reason({ ["x-tenant-id"] = "said" }))
  end)
end)

describe("clients without a key", function()
  after_each(stop)

  it("are let in beside keys where that is said, for that and no more", function()
    local path = proc.path("keys.txt")
    local key = new_key(path)
    local body = BODY:gsub("sim", "sim%-free")
    start({ "--client-api-keys-file", path, "--anonymous-scopes", "inference", "--anonymous-models", "sim-*" })
    assert.are_not.equal(401, ask(nil, nil, body).status)
    refused(ask(nil), 403, "may not use this model")
    assert.equal(200, ask(key).status)
    -- a scope that it has not is a matter of a key
    refused(f:get("/v1/models"), 401, "missing or wrong API key", NONE)
    refused(ask(nil, "/abort_request", '{"rid":"a"}'), 401, "missing or wrong API key", NONE)
    -- who shows one is judged by it
    refused(ask("bk_unknown_secret", nil, body), 401, "missing or wrong API key", INVALID)
    refused(f:post("/v1/completions", body, { Authorization = "" }), 401, "missing or wrong API key", NONE)
    refused(f:post("/v1/completions", body, { ["x-api-key"] = "" }), 401, "missing or wrong API key", NONE)
    assert.equal(401, f:post("/v1/completions", body, { Authorization = "Basic YTpi" }).status)
    -- a large body, too, is let in before it has been read
    assert.are_not.equal(401, ask(nil, nil, body:gsub('"x"', '"' .. ("x"):rep(100000) .. '"')).status)
  end)
end)

describe("baton key", function()
  after_each(proc.clean)

  it("lists what there is", function()
    local path = proc.write("keys.txt", "# ours\nplain-key tenant=old\n")
    local key = new_key(path, "--tenant", "acme", "--expires", "30d", "--comment", "batch jobs")
    assert.equal(0, (baton_key("revoke", path, id_of(new_key(path)))))
    local code, out = baton_key("list", path)
    assert.equal(0, code)
    assert.truthy(out:find(id_of(key) .. "%s+acme%s+inference,models,cancel%s+valid%s+%S+%s+batch jobs"), out)
    assert.truthy(out:find("key%-%x+%s+old%s+%S+%s+valid%s+never%s+%(plain%)"), out)
    assert.is_nil(out:find("plain-key", 1, true))
    local rows = json.decode(select(2, baton_key("list", path, "--json")))
    assert.equal(3, #rows)
    assert.equal("revoked", rows[3].state)
    assert.truthy(proc.read(path):find("# ours", 1, true))
  end)

  it("refuses what it does not understand, and writes nothing then", function()
    local path = proc.write("keys.txt", "plain\n")
    for _, case in ipairs({
      { { "new", path, "--scopes", "root" }, '"root" is none' },
      { { "new", path, "--expires", "soon" }, "--expires soon" },
      { { "new", path, "--expires", "2020-01-01" }, "is over" },
      { { "new", path, "--tenant", "a b" }, "--tenant" },
      { { "new", path, "--comment", "a\nb" }, "--comment" },
      { { "new", path, "--tenat", "a" }, "did you mean --tenant?" },
      { { "new" }, "the file is missing" },
      { { "revoke", path, "bk_none" }, "there is no bk_none" },
      { { "make", path }, "unknown command" },
      { { "new", proc.write("bad.txt", "not a key\n") }, "bad.txt:1: behind the key" },
    }) do
      local code, out, err = baton_key(unpack(case[1]))
      assert.equal(2, code, err)
      assert.equal("", out)
      assert.truthy(err:find(case[2], 1, true), err)
    end
    assert.equal("plain\n", proc.read(path))
    assert.equal(1, (baton_key("list", "/nonexistent/keys")))
    assert.equal(1, (baton_key("new", "/nonexistent/keys")))
  end)
end)

describe("keys in the store of a fleet", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  local gateways = {}

  after_each(function()
    for _, g in ipairs(gateways) do
      fleet.stop_gateway(g.process)
    end
    gateways = {}
    stop()
  end)

  local function answers(g, key, status)
    eventually(function()
      local answer = http.post(g.port, "/v1/completions", BODY, bearer(key))
      return answer.status == status, answer.body
    end, 10, "it answers " .. status)
  end

  it("count at all gateways, and go on while it is away", function()
    local r = redis.start()
    local store = { "--store", r.url }
    local first, second = new_key(unpack(store)), new_key("--store", r.url, "--tenant", "acme")
    local rows = table.concat(r:ask("HGETALL", "baton:{fleet}:client_keys"), "\n")
    assert.is_nil(rows:find(first:match("_(%w+)$"), 1, true))
    start({})
    local _, w = next(f.workers)
    local worker = "http://127.0.0.1:" .. w.port
    for i = 1, 2 do
      local process, port, admin_port = fleet.start_gateway({ "--worker-urls", worker, "--redis-url", r.url,
        "--client-api-keys-in-store" })
      gateways[i] = { process = process, port = port, admin_port = admin_port }
      answers(gateways[i], second, 200) -- of its worker it may not know yet, of its keys it does
      assert.equal(200, http.post(port, "/v1/completions", BODY, bearer(first)).status)
      assert.equal(401, http.post(port, "/v1/completions", BODY).status)
      assert.equal(2, fleet.metric(admin_port, "baton_client_keys"))
    end

    assert.equal(0, (baton_key("revoke", "--store", r.url, id_of(first))))
    r:ask("HSET", "baton:{fleet}:client_keys", "plain", "0:plain-key tenant=acme") -- by hand: no key
    local third = new_key("--store", r.url)
    for _, g in ipairs(gateways) do
      answers(g, third, 200)
      answers(g, first, 401)
      assert.equal(401, http.post(g.port, "/v1/completions", BODY, bearer("plain-key")).status)
      assert.equal(1, fleet.metric(g.admin_port, "baton_client_keys_left_out"))
    end
    local code, list = baton_key("list", "--store", r.url, "--json")
    assert.equal(0, code)
    local states = {}
    for _, row in ipairs(json.decode(list)) do
      states[row.id] = row.plain and "plain" or row.state
    end
    assert.equal("revoked", states[id_of(first)])
    assert.equal("valid", states[id_of(third)])

    r:kill()
    for _, g in ipairs(gateways) do
      eventually(function()
        local age = fleet.metric(g.admin_port, "baton_client_keys_age_seconds")
        return age > 1, age
      end, 20, "the metric says that the store is away")
      answers(g, third, 200)
      answers(g, first, 401)
    end
    local failed, _, err = baton_key("new", "--store", r.url)
    assert.equal(1, failed)
    assert.truthy(err:find("the store: ", 1, true), err)
  end)

  it("are revoked whatever else has been written there", function()
    local r = redis.start()
    local TABLE = "baton:{fleet}:client_keys"
    local store = { "--store", r.url }
    local key, good = new_key(unpack(store)), new_key(unpack(store))
    local process, port, admin_port = fleet.start_gateway({ "--worker-urls", "http://127.0.0.1:9", "--redis-url", r.url,
      "--client-api-keys-in-store" })
    local g = { process = process, port = port, admin_port = admin_port }
    gateways[1] = g
    local function knows(one)
      return http.get(port, "/v1/models", bearer(one)).status ~= 401 -- its one worker is nowhere
    end
    eventually(function()
      return knows(key) and knows(good)
    end, 10, "both keys count")

    local row = r:ask("HGET", TABLE, id_of(key))
    r:ask("HSET", TABLE, "alias", row) -- would sort before what is revoked
    r:ask("HSET", TABLE, "bk_junk", "0:bk_junk what=1")
    r:ask("HSET", TABLE, "two", row .. "\n" .. row)
    local code, _, err = baton_key("revoke", "--store", r.url, id_of(key))
    assert.equal(0, code, err)
    assert.truthy(err:find("the row alias is no line of a key", 1, true), err)
    assert.truthy(err:find("the row bk_junk is left out", 1, true), err)
    eventually(function()
      return not knows(key)
    end, 10, "it is revoked")
    assert.is_true(knows(good))
    assert.equal(3, fleet.metric(admin_port, "baton_client_keys_left_out"))
    local listed, list = baton_key("list", "--store", r.url, "--json")
    assert.equal(0, listed)
    assert.equal(2, #json.decode(list))

    r:ask("SET", "baton:{fleet}:client_keys_changes", "moved")
    r:ask("DEL", TABLE)
    r:ask("SET", TABLE, "no table")
    process:says("client keys in the store: WRONGTYPE")
    assert.is_true(knows(good))
  end)
end)
