-- The dashboard in a headless Chromium: each view shows a change of its cause, its actions work, and what others wrote
-- is text.

local browser = require("gateway.support.browser")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")

local KEY = "the-admins-own-key"
local SECONDS = 10
local EVIL = "<script>window.stolen=1</script><img src=x onerror=window.stolen=1>"
local AXE = os.getenv("BATON_AXE") or "build/npm/node_modules/axe-core/axe.min.js"

local POLICY = [[
return {
  api = 2,
  name = "<img src=x onerror=window.stolen=1>",
  version = "%s",
  plan = function(_, view)
    return { prefill = view.prefill[1].id, decode = view.decode[1].id }
  end,
}
]]

local RUN_AXE = [[axe.run(document, { resultTypes: ["violations"] }).then((r) => JSON.stringify(r.violations
  .filter((v) => v.impact === "serious" || v.impact === "critical")
  .map((v) => v.id + ": " + v.nodes.map((n) => n.target + " " + n.failureSummary).slice(0, 3).join("; "))))]]

describe("the dashboard in a browser", function()
  local b, f

  local function start(flags, worker)
    worker = worker or ""
    local words = {}
    proc.append(words, flags)
    words[#words + 1] = "--vllm-pd-disaggregation"
    f = fleet.start({
      workers = { "role=prefill,count=2,ttft=1" .. worker, "role=decode,count=2,itl=1,ttft=1" .. worker },
      flags = words,
    })
  end

  local function url()
    return ("http://127.0.0.1:%d/ui"):format(f.admin_port)
  end

  local function open(view)
    b:open("about:blank")
    b.problems, b.requests = {}, {}
    b:send("Page.navigate", { url = url() .. "#" .. view })
    b:wait('document.querySelector("nav a[aria-current]") !== null', SECONDS, "the page has its views")
  end

  local function quote(text)
    return json.encode(text)
  end

  local function shows(text, where)
    return ("(document.querySelector(%s)?.textContent || '').includes(%s)"):format(quote(where or "main"), quote(text))
  end

  local function tell(view, cause, took)
    print(("\n%s shows %s after %.0f ms"):format(view, cause, took))
  end

  local function ask(id, headers, model)
    local all = { ["X-Request-Id"] = id }
    for name, value in pairs(headers or {}) do
      all[name] = value
    end
    return f:post("/v1/completions",
      json.encode({ model = model or "sim", prompt = "hello", max_tokens = 4 }), all)
  end

  local function click(selector)
    b:wait(("document.querySelector(%s) !== null"):format(quote(selector)), SECONDS, selector)
    b:eval(("document.querySelector(%s).click()"):format(quote(selector)))
  end

  local function confirm()
    b:wait('document.getElementById("confirm").open', SECONDS, "it asks first")
    click("#confirm-yes")
  end

  -- No error on the console, nothing asked of another host, nothing run that others wrote.
  local function assert_clean()
    assert.same({}, b.problems)
    for _, asked in ipairs(b.requests) do
      local own = asked:find("^http://127%.0%.0%.1:" .. math.floor(f.admin_port) .. "/")
      assert.truthy(own or asked:find("^data:,"), asked)
    end
    assert.is_true(b:eval("window.stolen === undefined"))
  end

  setup(function()
    b = browser.start()
  end)

  teardown(function()
    b:stop()
    proc.clean()
  end)

  after_each(function()
    b:open("about:blank")
    f:stop()
  end)

  it("shows a worker that is killed, and drains one when that is confirmed", function()
    start()
    open("topology")
    b:wait('document.querySelectorAll("[data-worker] .good").length >= 4', SECONDS, "four workers are up")
    assert.is_true(b:eval('document.querySelectorAll("main tbody tr").length === 4'))
    f.sim:fault("p1", { kind = "status", path = "/health", status = 503, times = 1000 })
    tell("topology", "a worker that is down", b:wait(
      [==[document.querySelector('[data-worker="p1"]')?.textContent.includes("down")]==], SECONDS, "p1 is down"))
    click('button[aria-label="Drain d1"]')
    b:wait('document.getElementById("confirm").open', SECONDS, "it asks first")
    click("#confirm-no")
    assert.is_false(f:told("d1").draining)
    click('button[aria-label="Drain d1"]')
    confirm()
    tell("topology", "a drained worker", b:wait(
      [==[document.querySelector('[data-worker="d1"]')?.textContent.includes("draining")]==], SECONDS, "d1 drains"))
    assert.is_true(f:told("d1").draining)
    assert_clean()
  end)

  it("draws the flows between workers, and a live request's way; cancels it", function()
    start({}, ",itl=200")
    open("topology")
    local c = http.start(f.port, {
      path = "/v1/completions", body = '{"model":"sim","prompt":"x","stream":true,"max_tokens":2000}',
      headers = { ["X-Request-Id"] = "a-live-one" },
    })
    tell("topology", "a flow", b:wait('document.querySelector("path.flow") !== null', SECONDS, "a flow"))
    b:eval('location.hash = "#requests"')
    tell("requests", "a live one", b:wait(
      [==[document.querySelector('tr[data-key="a-live-one"] rect.decode') !== null]==], SECONDS, "it is in decode"))
    click('button[aria-label="Cancel a-live-one"]')
    confirm()
    b:wait([==[document.querySelector('tr[data-key="a-live-one"]') === null]==], SECONDS, "it is gone")
    c:wait(nil)
    c:close()
    assert_clean()
  end)

  it("shows a request that failed, and why, with all that its client wrote as text", function()
    start({ "--record-sample", "1", "--record-header", "x-note" })
    open("requests")
    for _, name in ipairs({ "d0", "d1" }) do
      f.sim:fault(name, { kind = "status", status = 500, times = 20, path = "/v1/completions" })
    end
    ask("refused-1", nil, EVIL)
    assert.equal(500, ask("failed-1", { ["x-note"] = EVIL, ["x-tenant-id"] = EVIL }).status)
    tell("requests", "a failed one", b:wait(shows("failed-1"), SECONDS, "failed-1"))
    b:wait(shows(EVIL), SECONDS, "the model is text")
    click('a[href="#why/failed-1"]')
    tell("why", "it", b:wait(shows("decode: ") .. " && document.querySelectorAll('main section svg rect').length >= 4",
      SECONDS, "the candidates are drawn"))
    assert.is_true(b:eval(shows("status 500") .. " || " .. shows("(500)")))
    b:wait(shows(EVIL, "details"), SECONDS, "the header is text")
    assert_clean()
  end)

  it("pushes a policy, shows the difference, the refusal with its line, and the name as text", function()
    start()
    open("policies")
    b:wait('document.getElementById("policy-text")?.value.includes("least_load")', SECONDS, "the text is there")
    local function edit(text)
      b:eval(('document.getElementById("policy-text").value = %s'):format(quote(text)))
      click("#policy-push")
      confirm()
    end
    edit("return {\n  api = 2,\n  oops\n")
    tell("policies", "a refusal", b:wait(shows("least_load.lua:", "#policy-result"), SECONDS, "file and line"))
    b.problems = {} -- Chromium logs every 400
    b:eval(('document.getElementById("policy-text").value = %s'):format(quote(POLICY:format("7"))))
    click("#policy-check")
    tell("policies", "a dry run", b:wait(shows("7 would serve in default", "#policy-result"), SECONDS, "tried"))
    edit(POLICY:format("8"))
    tell("policies", "a push", b:wait(shows("least_load serves", "#policy-result"), SECONDS, "pushed"))
    b:wait(shows("<img src=x onerror=window.stolen=1> 8", "tbody"), SECONDS, "the new one serves")
    assert.is_true(b:eval('document.querySelectorAll(".diff .add").length > 3'))
    assert.equal(POLICY:format("8"), http.get(f.admin_port, "/policies/least_load").body)
    http.request(f.admin_port, { method = "PUT", path = "/policies/least_load", body = POLICY:format("9") })
    tell("policies", "another's push", b:wait(shows("stolen=1> 9", "tbody"), SECONDS, "version 9"))
    assert_clean()
  end)

  it("shows rooms, tenants and queues as they are", function()
    f = fleet.start({
      workers = { "role=hybrid,name=w0,itl=50,answer_tokens=40" },
      flags = { "--queue-size", "8", "--max-concurrent-requests", "1" },
    })
    open("tenants")
    local clients = {}
    for i = 1, 3 do
      clients[i] = http.start(f.port, { path = "/v1/completions", headers = { ["x-tenant-id"] = "gold" },
        body = '{"model":"sim","prompt":"x","stream":true,"max_tokens":60}' })
    end
    tell("tenants", "who waits", b:wait(
      'document.querySelector("tr[data-key=default] td:nth-child(3)")?.textContent === "2"', SECONDS, "two wait"))
    b:eval('location.hash = "#rooms"')
    b:wait(shows("BatonConnector"), SECONDS, "no rooms here, and why")
    b:eval('location.hash = "#fleet"')
    b:wait(shows("--redis-url"), SECONDS, "no fleet, and why")
    for _, c in ipairs(clients) do
      c:close()
    end
    assert_clean()
  end)

  it("shows a fleet's replicas and its store", function()
    local server = redis.start()
    f = fleet.start({
      workers = { "role=hybrid,name=w0" },
      flags = { "--redis-url", server.url, "--replica-name", "one" },
    })
    open("fleet")
    b:wait(shows("up", ".tiles dd.good"), SECONDS, "the store is up")
    local other, other_port = fleet.start_gateway({ "--redis-url", server.url, "--replica-name", "two", "--worker-urls",
      f.workers.w0.url })
    tell("fleet", "another replica", b:wait(
      [==[document.querySelector('tr[data-key="two"]') !== null]==], SECONDS, "two"))
    http.hang_up(other_port)
    other:stop(10)
    server:kill()
    tell("fleet", "a store that is gone", b:wait("document.querySelector('.tiles dd.bad') !== null", SECONDS, "gone"))
    assert_clean()
  end)

  it("asks for the key, shows nothing without it, and works by its cookie", function()
    start({ "--admin-api-key", KEY })
    b:open("about:blank")
    b.problems, b.requests = {}, {}
    b:open(url())
    b:wait('document.getElementById("key") !== null', SECONDS, "it asks for the key")
    assert.is_false(b:eval(shows("p0", "body")))
    local function enter(key)
      b:eval(('document.getElementById("key").value = %s'):format(quote(key)))
      b:eval("document.querySelector('form.login').requestSubmit()")
    end
    enter("wrong")
    b:wait(shows("not the admin key"), SECONDS, "refused")
    b.problems = {}
    enter(KEY)
    b:wait([==[document.querySelector('[data-worker="p0"]') !== null]==], SECONDS, "in")
    assert.equal("", b:eval("document.cookie"))
    click('button[aria-label="Drain p1"]')
    confirm()
    b:wait([==[document.querySelector('[data-worker="p1"]')?.textContent.includes("draining")]==], SECONDS, "it works")
    click("#logout")
    b:wait('document.getElementById("key") !== null', SECONDS, "out")
    assert.is_false(b:eval(shows("p0", "body")))
    assert_clean()
  end)

  it("asks the gateway nothing while it is hidden", function()
    start()
    open("topology")
    b:wait(shows("live", "#link"), SECONDS, "live")
    b:eval('Object.defineProperty(document, "hidden", { value: true, configurable: true }); ' ..
      'document.dispatchEvent(new Event("visibilitychange"))')
    b:wait(shows("paused", "#link"), SECONDS, "paused")
    eventually(function() -- all places are free again
      local pages, ok = {}, true
      for i = 1, 16 do
        pages[i] = http.start(f.admin_port, { path = "/ui/events" })
        pages[i]:wait_head()
        ok = ok and pages[i].answer.status == 200
      end
      for _, c in ipairs(pages) do
        c:close()
      end
      return ok
    end, SECONDS, "its stream is closed")
    b:eval('delete document.hidden; document.dispatchEvent(new Event("visibilitychange"))')
    b:wait(shows("live", "#link"), SECONDS, "live again")
    assert_clean()
  end)

  it("has no serious accessibility fault, in the light and in the dark", function()
    local axe = proc.read(AXE)
    if not axe then
      pending("axe-core is not at " .. AXE .. ": spec/tools/deps.sh install test")
      return
    end
    start({ "--record-sample", "1" })
    ask("for-axe")
    b:open(url())
    b:eval(axe .. "; 0")
    for _, scheme in ipairs({ "light", "dark" }) do
      b:send("Emulation.setEmulatedMedia", { features = { { name = "prefers-color-scheme", value = scheme } } })
      for _, view in ipairs({ "topology", "requests", "why/for-axe", "policies", "rooms", "fleet", "tenants" }) do
        b:eval(('location.hash = "#%s"'):format(view))
        b:wait(("document.querySelector('nav a[aria-current]')?.hash === '#%s'"):format(view:match("%a+")))
        local found = b:eval(RUN_AXE)
        assert.equal("[]", found, view .. ", " .. scheme)
      end
    end
  end)
end)
