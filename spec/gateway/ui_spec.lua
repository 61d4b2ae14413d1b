-- The dashboard's server side: its files, its login, its stream. What a browser makes of them: ui_browser_spec.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local replicas = require("gateway.support.replicas")

local KEY = "the-admins-own-key"
local BEARER = { Authorization = "Bearer " .. KEY }

describe("the dashboard's routes", function()
  local f, log

  local function start(flags, workers)
    log = proc.path("audit.jsonl")
    local words = { "--audit-log", log }
    proc.append(words, flags)
    f = fleet.start({ workers = workers or { "role=hybrid,name=w0" }, flags = words })
  end

  local function start_with_key(flags)
    local words = { "--admin-api-key", KEY }
    proc.append(words, flags)
    start(words)
  end

  local function login()
    local answer = http.request(f.admin_port, { method = "POST", path = "/ui/login", headers = BEARER })
    assert.equal(200, answer.status, answer.body)
    local cookie = answer:header("set-cookie")
    return cookie:match("^[^;]+"), cookie
  end

  local function status(method, path, headers, body)
    return http.request(f.admin_port, { method = method, path = path, headers = headers, body = body }).status
  end

  local function origin()
    return "http://127.0.0.1:" .. math.floor(f.admin_port)
  end

  local function follow(headers)
    local c = http.start(f.admin_port, { path = "/ui/events", headers = headers })
    c:wait_head()
    return c
  end

  -- The last data of each kind of event.
  local function sections(answer)
    local out = {}
    for _, e in ipairs(answer:events()) do
      if e.event then
        out[e.event] = json.decode(e.data)
      end
    end
    return out
  end

  after_each(function()
    f:stop()
    proc.clean()
  end)

  it("serve a page that names no other host and allows no script but its own", function()
    start()
    local page = http.get(f.admin_port, "/ui")
    assert.equal(200, page.status)
    assert.equal("text/html; charset=utf-8", page:header("content-type"))
    local rules = page:header("content-security-policy")
    for _, part in ipairs({ "default-src 'none'", "script-src 'self'", "style-src 'self'", "base-uri 'none'" }) do
      assert.truthy(rules:find(part, 1, true), part)
    end
    assert.falsy(rules:find("unsafe", 1, true))
    assert.equal("nosniff", page:header("x-content-type-options"))
    local bytes, seen = #page.body, {}
    local function take(path, type)
      if seen[path] then
        return
      end
      seen[path] = true
      local answer = http.get(f.admin_port, path)
      assert.equal(200, answer.status, path)
      assert.equal(type, answer:header("content-type"))
      bytes = bytes + #answer.body
      local names_host = answer.body:gsub("http://www.w3.org/2000/svg", ""):find("https?://%w+%.")
      assert.is_nil(names_host, path .. " names a host")
      for name in answer.body:gmatch('from "%./([%w.]+)"') do
        take("/ui/" .. name, "text/javascript; charset=utf-8")
      end
    end
    take("/ui/ui.css", "text/css; charset=utf-8")
    take("/admin/ui/app.js", "text/javascript; charset=utf-8")
    assert.truthy(seen["/ui/policies.js"])
    assert.is_true(bytes < 200000, bytes .. " bytes")
    assert.falsy(page.body:find("<script>", 1, true) or page.body:find(" style=", 1, true))
    assert.equal(404, status("GET", "/ui/../main.c"))
    assert.equal(404, status("GET", "/ui/ui%2Fapp.js"))
    assert.equal(405, status("PUT", "/ui/app.js", nil, "x"))
  end)

  it("tell nothing without the key but how to log in", function()
    start_with_key()
    assert.equal(200, status("GET", "/ui"))
    assert.equal(200, status("GET", "/ui/app.js"))
    local session = http.get(f.admin_port, "/ui/session")
    assert.same({ authorized = false, by_cookie = false }, json.decode(session.body))
    for _, path in ipairs({ "/ui/events", "/workers", "/policies/least_load", "/requests", "/explain" }) do
      assert.equal(401, status("GET", path), path)
    end
    assert.equal(401, status("POST", "/ui/login"))
    assert.equal(401, status("POST", "/ui/login", { Authorization = "Bearer wrong" }))
    assert.equal(401, status("GET", "/workers", { Cookie = "baton_ui_00000000=" .. ("0"):rep(32) }))
  end)

  it("log a page in by a cookie that no script reads and no other site's page sends", function()
    start_with_key()
    local cookie, whole = login()
    assert.truthy(cookie:match("^baton_ui_%x%x%x%x%x%x%x%x=" .. ("%x"):rep(32) .. "$"), cookie)
    for _, word in ipairs({ "HttpOnly", "SameSite=Strict", "Max-Age=3600", "Path=/" }) do
      assert.truthy(whole:find(word, 1, true), word)
    end
    assert.falsy(whole:find("Secure", 1, true))
    assert.equal(200, status("GET", "/workers", { Cookie = "a=b; " .. cookie .. "; c=d" }))
    assert.is_true(json.decode(http.get(f.admin_port, "/ui/session", { Cookie = cookie }).body).by_cookie)
    local drain = "/workers/w0/drain"
    assert.equal(403, status("POST", drain, { Cookie = cookie }))
    assert.equal(403, status("POST", drain, { Cookie = cookie, Origin = "http://127.0.0.1:1" }))
    assert.equal(403, status("POST", drain, { Cookie = cookie, Origin = "http://evil.example" }))
    assert.equal(200, status("POST", drain, { Cookie = cookie, Origin = origin() }))
    assert.equal(401, status("POST", "/ui/login", { Cookie = cookie, Origin = origin() })) -- or it would never end
    assert.equal(200, status("POST", "/ui/logout", { Cookie = cookie, Origin = origin() }))
    assert.equal(401, status("GET", "/workers", { Cookie = cookie }))
    local text = proc.read(log)
    for _, what in ipairs({ "POST /ui/login", "POST /workers/*/drain", "POST /ui/logout" }) do
      assert.truthy(text:find(what, 1, true), what)
    end
    assert.falsy(text:find(KEY, 1, true))
    assert.falsy(text:find(cookie:match("=(%x+)"), 1, true))
  end)

  it("give a cookie to none where no key is asked, and no page beyond loopback without one", function()
    start({ "--admin-host", "0.0.0.0" })
    assert.equal(403, status("GET", "/ui"))
    assert.equal(403, status("GET", "/ui/events"))
    f:stop()
    start()
    local answer = http.request(f.admin_port, { method = "POST", path = "/ui/login" })
    assert.equal(200, answer.status)
    assert.is_nil(answer:header("set-cookie"))
    assert.equal(200, status("GET", "/ui"))
    assert.equal(403, status("GET", "/ui", { Host = "evil.example" }))
    assert.equal(403, status("GET", "/ui/events", { Origin = "http://evil.example" }))
  end)

  it("stream what changes: all at first, then what is other than before", function()
    start()
    local c = follow()
    assert.equal("text/event-stream; charset=utf-8", c.answer:header("content-type"))
    c:wait_events(3)
    local told = sections(c.answer)
    assert.equal(1, told.workers.total)
    assert.equal("w0", told.workers.rows[1].name)
    assert.is_false(told.now.has.fleet)
    assert.equal(0, told.requests.total)
    http.post(f.admin_port, "/workers/w0/drain", "{}")
    c:wait(function(answer)
      return sections(answer).workers.rows[1].draining
    end)
    assert.equal("draining", sections(c.answer).workers.rows[1].why_not)
    local seen = 0
    for _, e in ipairs(c.answer:events()) do
      seen = seen + (e.event == "requests" and 1 or 0)
    end
    assert.equal(1, seen) -- nothing has changed there
    local second = follow()
    second:wait_events(3)
    assert.equal(1, #sections(second.answer).workers.rows)
    c:close()
    second:close()
    assert.equal(405, status("HEAD", "/ui/events"))
  end)

  it("have room for 16 pages, and make room when one is closed", function()
    start()
    local pages = {}
    for i = 1, 16 do
      pages[i] = follow()
      assert.equal(200, pages[i].answer.status)
    end
    assert.equal(503, status("GET", "/ui/events"))
    pages[3]:close()
    eventually(function()
      local c = follow()
      pages[3] = c
      return c.answer.status == 200
    end, 10, "there is room again")
    for _, c in ipairs(pages) do
      c:close()
    end
  end)

  it("end a page's stream when it logs out, and all when the gateway ends", function()
    start_with_key()
    local cookie = login()
    local page, tool = follow({ Cookie = cookie }), follow(BEARER)
    page:wait_events(3)
    assert.equal(200, status("POST", "/ui/logout", { Cookie = cookie, Origin = origin() }))
    page:wait(nil, 10)
    assert.is_true(page.answer.done)
    tool:wait_events(5)
    f.gateway:kill(proc.SIGTERM)
    tool:wait(nil, 10)
    assert.equal(0, f.gateway:wait(10))
    page:close()
    tool:close()
  end)

  it("show at most 200 live requests, and say how many there are", function()
    start({ "--max-concurrent-requests", "-1" }, { "role=hybrid,name=w0,itl=2000" })
    local clients = {}
    for i = 1, 230 do
      clients[i] = http.start(f.port, {
        path = "/v1/completions", body = '{"model":"sim","prompt":"x","stream":true,"max_tokens":60}',
      })
    end
    local c = follow()
    c:wait(function(answer)
      local now = sections(answer).requests
      return now and now.total == 230
    end)
    local told = sections(c.answer).requests
    assert.is_true(#told.rows <= 200 and #told.rows >= 100, #told.rows .. " rows")
    assert.equal("run", told.rows[1].step)
    for _, client in ipairs(clients) do
      client:close()
    end
    c:wait(function(answer)
      return sections(answer).requests.total == 0
    end)
    c:close()
  end)

  it("give the text of a policy by its name, and of no other file", function()
    start()
    local answer = http.get(f.admin_port, "/policies/least_load")
    assert.equal(200, answer.status)
    assert.equal("text/plain; charset=utf-8", answer:header("content-type"))
    assert.equal(proc.read("policies/least_load.lua"), answer.body)
    local mine = replicas.policy("7")
    assert.equal(200, status("PUT", "/policies/random", nil, mine))
    assert.equal(mine, http.get(f.admin_port, "/policies/random").body)
    assert.equal(404, status("GET", "/policies/nobody"))
    assert.equal(404, status("GET", "/policies/policies%2Frandom.lua"))
    assert.equal(404, status("GET", "/policies/%2Fetc%2Fpasswd"))
  end)
end)
