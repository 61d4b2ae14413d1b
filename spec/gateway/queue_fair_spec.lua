-- --queue-size: who of those that wait is next, who makes room, who is refused at once. Workers are moved by hand, so
-- that every order is seen whole.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local puppet = require("gateway.support.puppet")

local PATH = "/v1/completions"
local ANSWER = '{"id":"x","choices":[{"index":0,"text":"fine","finish_reason":"length"}]}'
local CALM = { "--disable-health-check", "--load-interval-secs", "0", "--loops", "2" }

-- Each header is what enqueue says of the request.
local BY_HEADER = [[
return {
  api = 2,
  name = "by-header",
  version = "1",
  plan = function(req, view)
    return { worker = view.single[1] }
  end,
  enqueue = function(req, ctx)
    local h = req.headers
    if h["x-wrong"] then
      return { class = "urgent" }
    end
    return { class = h["x-class"], key = h["x-key"], cost = tonumber(h["x-cost"]), weight = tonumber(h["x-weight"]),
      timeout_ms = tonumber(h["x-timeout-ms"]) }
  end,
}
]]

local function reply(leg)
  return ('{"id":"p","choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":16},"kv_transfer_params":'
    .. '{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_engine_id":"e",'
    .. '"remote_request_id":"cmpl-%s-0-bd83aa8a","remote_host":"127.0.0.1","remote_port":41}}'):format(
    leg.headers["x-request-id"])
end

describe("those that wait", function()
  local process, port, admin_port, worker, clients

  local function start(...)
    local words = { ... }
    proc.append(words, CALM)
    process, port, admin_port = fleet.start_gateway(words)
    eventually(function()
      local answer = http.get(port, "/readiness")
      return answer.status == 200, answer.body
    end, 10, "/readiness is 200")
  end

  local function start_one(...)
    start("--worker-urls", worker.url, "--max-concurrent-requests", "1", ...)
  end

  local function by_header(...)
    start_one("--policy", proc.write("by_header.lua", BY_HEADER), ...)
  end

  local function metric(line)
    return fleet.metric(admin_port, line) or 0
  end

  local function wait_queued(count)
    eventually(function()
      local queued = metric('baton_queued_requests{pool="default"}')
      return queued == count, queued
    end, 10, count .. " requests wait")
  end

  local function ask(id, headers, body)
    headers = headers or {}
    headers["X-Request-Id"] = id
    local c = http.start(port, { path = PATH, headers = headers,
      body = body or '{"model":"a","prompt":"x","max_tokens":100}' })
    clients[id] = c
    return c
  end

  -- So many of one kind, one after the other, behind `before` others.
  local function ask_all(name, count, before, headers)
    for i = 1, count do
      local copy = {}
      for key, value in pairs(headers) do
        copy[key] = value
      end
      ask(name .. i, copy)
      wait_queued(before + i)
    end
  end

  local function serve(x)
    x:answer(200, {}, ANSWER)
    assert.equal(200, clients[x.headers["x-request-id"]]:wait().status)
  end

  -- The ids of the next ones, in the order in which the worker got them; the last one is still there.
  local function order(running, count)
    local ids = {}
    for i = 1, count do
      serve(running)
      running = worker:take(PATH)
      ids[i] = running.headers["x-request-id"]
    end
    return table.concat(ids, " "), running
  end

  local function explain(id)
    return fleet.explain(admin_port, id, 10)
  end

  before_each(function()
    worker, clients = puppet.open(), {}
  end)

  after_each(function()
    for _, c in pairs(clients) do
      c:close()
    end
    puppet.close_all()
    if process then
      local ended = process
      process = nil
      http.hang_up(port)
      fleet.stop_gateway(ended)
    end
  end)

  teardown(proc.clean)

  it("have turns by their tenants' weights, however many each sends", function()
    start_one("--queue-size", "50", "--queue-weights", "gold=2")
    ask("r0")
    local running = worker:take(PATH)
    ask_all("flood", 8, 0, { ["X-Tenant-Id"] = "flood" })
    ask_all("gold", 4, 8, { ["X-Tenant-Id"] = "gold" })
    ask_all("late", 1, 12, { ["X-Tenant-Id"] = "late" })
    local ids, last = order(running, 13)
    -- Rounds: gold costs half as many as the others, who are served as they came.
    assert.equal("gold1 flood1 gold2 late1 gold3 flood2 gold4 flood3 flood4 flood5 flood6 flood7 flood8", ids)
    serve(last)
    local queue = explain("late1").queue
    assert.equal("late", queue.share)
    assert.equal("normal", queue.class)
    assert.equal("called", queue["end"])
    assert.equal(3, queue.passed)
    assert.equal("gold", queue.behind[1].share)
    assert.is_true(queue.cost > 100 and queue.behind[2].tokens == queue.cost)
    assert.equal(13, metric('baton_queue_ends_total{pool="default",class="normal",end="called"}'))
    assert.is_truthy(http.get(admin_port, "/admin/explain/late1?format=text").body:find("behind gold", 1, true))
  end)

  it("make room for tenants who have less in line, and are told so", function()
    start_one("--queue-size", "3")
    ask("r0")
    local running = worker:take(PATH)
    ask_all("flood", 3, 0, { ["X-Tenant-Id"] = "flood" })
    assert.equal(429, ask("flood4", { ["X-Tenant-Id"] = "flood" }):wait().status)
    ask("light1", { ["X-Tenant-Id"] = "light" })
    local out = clients.flood3:wait()
    assert.equal(429, out.status)
    assert.is_truthy(out:header("retry-after"))
    assert.equal("put_out", explain("flood3").queue["end"])
    assert.equal("queue_full", explain("flood3").error)
    local ids, last = order(running, 3)
    assert.equal("flood1 light1 flood2", ids)
    serve(last)
    assert.equal(1, metric('baton_queue_ends_total{pool="default",class="normal",end="full"}'))
  end)

  it("stay when whoever would need their room gets in nowhere", function()
    start_one("--queue-size", "50", "--queue-max-bytes", "1000")
    ask("r0")
    local running = worker:take(PATH)
    local function of_bytes(count)
      local head = '{"model":"a","max_tokens":100,"prompt":"'
      return head .. ("x"):rep(count - #head - 2) .. '"}'
    end
    for i, bytes in ipairs({ 400, 400, 100 }) do
      ask("r" .. i, { ["X-Tenant-Id"] = i < 3 and "flood" or "light" }, of_bytes(bytes))
      wait_queued(i)
    end
    -- Were flood's second one out, it would still need more room than flood's first one has.
    assert.equal(429, ask("large", { ["X-Tenant-Id"] = "large" }, of_bytes(550)):wait().status)
    assert.equal(3, metric('baton_queued_requests{pool="default"}'))
    assert.equal(0, metric('baton_queue_ends_total{pool="default",class="normal",end="put_out"}'))
    local ids, last = order(running, 3)
    assert.equal("r3 r1 r2", ids) -- by cost, as they would have been without it
    serve(last)
  end)

  it("hold no more bytes than they may", function()
    start_one("--queue-size", "50", "--queue-max-bytes", "1000")
    ask("r0")
    local running = worker:take(PATH)
    local long = ('{"model":"a","prompt":"%s"}'):format(("x"):rep(600))
    ask("r1", nil, long)
    wait_queued(1)
    assert.equal(#long, metric('baton_queue_bytes{pool="default"}'))
    local refused = ask("r2", nil, long):wait()
    assert.equal(429, refused.status)
    assert.is_truthy(refused.body:find("--queue-max-bytes", 1, true))
    clients.r1:close()
    wait_queued(0)
    assert.equal(0, metric('baton_queue_bytes{pool="default"}'))
    assert.equal("gone", explain("r1").queue["end"])
    ask("r3", nil, long)
    wait_queued(1)
    local _, last = order(running, 1)
    serve(last)
  end)

  it("stand where the policy's enqueue puts them", function()
    by_header("--queue-size", "50")
    ask("r0")
    local running = worker:take(PATH)
    ask_all("low", 2, 0, { ["X-Class"] = "low" })
    ask_all("wrong", 1, 2, { ["X-Wrong"] = "1" }) -- as if it had said nothing
    ask_all("heavy", 1, 3, { ["X-Class"] = "normal", ["X-Key"] = "a", ["X-Cost"] = "5000" })
    ask_all("cheap", 2, 4, { ["X-Class"] = "normal", ["X-Key"] = "b", ["X-Cost"] = "10" })
    ask_all("high", 1, 6, { ["X-Class"] = "high" })
    local ids, last = order(running, 7)
    assert.equal("high1 cheap1 cheap2 wrong1 heavy1 low1 low2", ids)
    serve(last)
    assert.equal(1, metric("baton_policy_errors_total"))
    eventually(function()
      return process:stderr():find("class must be high, normal or low", 1, true) ~= nil, process:stderr()
    end, 10, "the log says what was wrong")
    local queue = explain("heavy1").queue
    assert.equal(5000, queue.cost)
    assert.equal("a", queue.share)
    assert.equal(2, metric('baton_queue_ends_total{pool="default",class="low",end="called"}'))
  end)

  it("are aged into the turn of those above", function()
    by_header("--queue-size", "50", "--queue-aging-secs", "0.001")
    ask("r0")
    local running = worker:take(PATH)
    ask_all("low", 2, 0, { ["X-Class"] = "low", ["X-Cost"] = "100" })
    ask_all("high", 5, 2, { ["X-Class"] = "high", ["X-Cost"] = "100" })
    -- A low one, then four high ones pay it back.
    local ids, last = order(running, 7)
    assert.equal("low1 high1 high2 high3 high4 low2 high5", ids)
    serve(last)
  end)

  it("are refused at once when they would wait too long, and the first in line never", function()
    by_header("--queue-size", "50")
    ask("r0")
    local running = worker:take(PATH)
    ask_all("one", 5, 0, { ["X-Cost"] = "100" })
    ask_all("costly", 1, 5, { ["X-Cost"] = "100000" }) -- whoever stands behind it waits for 1,000 such calls
    local ids, last = order(running, 5)
    assert.equal("one1 one2 one3 one4 one5", ids)
    wait_queued(1)
    local refused = ask("hasty", { ["X-Timeout-Ms"] = "1" }):wait()
    assert.equal(429, refused.status)
    assert.is_true(tonumber(refused:header("retry-after")) >= 1)
    assert.is_truthy(refused.body:find("a place would come free", 1, true))
    local record = explain("hasty")
    assert.equal("queue_too_long", record.error)
    assert.equal("too_long", record.queue["end"])
    assert.is_true(record.queue.predicted_ms > 1)
    assert.equal(1, metric("baton_queue_too_long_total"))
    assert.is_true(metric('baton_queue_tokens_per_second{pool="default"}') > 0)
    ask_all("patient", 1, 1, { ["X-Cost"] = "100", ["X-Timeout-Ms"] = "86400000" })
    ids, last = order(last, 2)
    assert.equal("costly1 patient1", ids)
    assert.is_true(metric("baton_queue_prediction_error_seconds_count") > 0)
    -- Nobody before it: its time-out is its own.
    assert.equal(408, ask("alone", { ["X-Timeout-Ms"] = "1" }):wait().status)
    serve(last)
  end)

  it("wait for workers at --engine-request-limit too", function()
    start("--worker-urls", worker.url, "--engine-request-limit", "1", "--queue-size", "2")
    ask("r0")
    local running = worker:take(PATH)
    ask_all("r", 2, 0, {})
    assert.equal(1, metric('baton_queue_places{pool="default"}'))
    assert.equal(429, ask("more"):wait().status)
    local ids, last = order(running, 2)
    assert.equal("r1 r2", ids)
    serve(last)
  end)

  local function move(name, how)
    local answer = http.post(admin_port, ("/admin/workers/%s/%s"):format(name, how), "")
    assert.equal(200, answer.status, answer.body)
  end

  it("go on waiting while no worker is usable; who comes then is told so at once", function()
    start("--worker-urls", worker.url, "--engine-request-limit", "1", "--queue-size", "5")
    ask("r0")
    local running = worker:take(PATH)
    ask_all("r", 2, 0, {})
    move("w0", "drain")
    assert.equal(503, ask("late"):wait().status)
    assert.equal(2, metric('baton_queued_requests{pool="default"}'))
    assert.equal(1, metric('baton_queue_places{pool="default"}'))
    move("w0", "undrain")
    local ids, last = order(running, 2)
    assert.equal("r1 r2", ids)
    serve(last)
  end)

  it("go on waiting when the only worker dies, but the one that meets it", function()
    local other = puppet.open()
    start("--worker-urls", worker.url, "--engine-request-limit", "1", "--queue-size", "5")
    ask("r0")
    local running = worker:take(PATH)
    ask_all("r", 4, 0, {})
    worker:refuse()
    running:rst()
    assert.is_true(clients.r0:wait().status >= 500)
    assert.is_true(clients.r1:wait().status >= 500)
    assert.equal(503, ask("late"):wait().status)
    assert.equal(0, metric('baton_queue_ends_total{pool="default",class="normal",end="timeout"}'))
    local added = http.post(admin_port, "/admin/workers", json.encode({ url = other.url }))
    assert.is_true(added.status >= 200 and added.status < 300, added.body)
    for i = 2, 4 do
      local x = other:take(PATH)
      assert.equal("r" .. i, x.headers["x-request-id"])
      serve(x)
    end
  end)

  it("are called when workers come, with nobody else to ask", function()
    local other = puppet.open()
    local function wait_places(count)
      eventually(function()
        local places = metric('baton_queue_places{pool="default"}')
        return places == count, places
      end, 10, "there are " .. count .. " places")
    end
    start("--worker-urls", worker.url, "--engine-request-limit", "1", "--queue-size", "5")
    ask("r0")
    local running = worker:take(PATH)
    ask_all("r", 3, 0, {})
    local added = http.post(admin_port, "/admin/workers", json.encode({ url = other.url }))
    assert.is_true(added.status >= 200 and added.status < 300, added.body)
    local beside = other:take(PATH)
    assert.equal("r1", beside.headers["x-request-id"])
    move("w0", "drain")
    wait_places(1)
    serve(running)
    wait_queued(2)
    move("w0", "undrain")
    running = worker:take(PATH)
    assert.equal("r2", running.headers["x-request-id"])
    serve(running)
    serve(worker:take(PATH))
    serve(beside)
  end)

  local function start_pairs(prefills, decodes, ...)
    local words = { "--vllm-pd-disaggregation", "--engine-request-limit", "1", "--queue-size", "5", ... }
    for role, list in pairs({ ["--prefill"] = prefills, ["--decode"] = decodes }) do
      for _, p in ipairs(list) do
        words[#words + 1] = role
        words[#words + 1] = p.url
        if role == "--prefill" then
          words[#words + 1] = "none"
        end
      end
    end
    start(unpack(words))
  end

  it("pass one whose only worker is full, and it is the next there", function()
    local other = puppet.open()
    local RESPONSES = "/v1/responses"
    start("--worker-urls", worker.url, other.url, "--engine-request-limit", "1", "--queue-size", "5")
    local function respond(x, id)
      x:answer(200, {}, ('{"id":"%s","object":"response","status":"completed","output":[]}'):format(id))
      assert.equal(200, clients[x.headers["x-request-id"]]:wait().status)
    end
    local function ask_response(id, more)
      clients[id] = http.start(port, { path = RESPONSES, headers = { ["X-Request-Id"] = id },
        body = '{"model":"a","input":"x"' .. more .. "}" })
    end
    ask_response("first", "")
    local first, at = puppet.take_any({ worker, other }, RESPONSES)
    local pinned, free = worker, other
    if at == 2 then
      pinned, free = other, worker
    end
    respond(first, "resp_1")
    local function follow_up(id)
      ask_response(id, ',"previous_response_id":"resp_1"')
    end
    follow_up("f0")
    local running = pinned:take(RESPONSES)
    for i = 1, 2 do
      follow_up("f" .. i)
      eventually(function()
        local blocked = metric('baton_queue_blocked{pool="default"}')
        return blocked == i, blocked
      end, 10, i .. " wait for their worker")
    end
    ask("r0")
    local beside = free:take(PATH)
    ask_all("r", 1, 0, {})
    for i = 1, 2 do -- it and not r1
      respond(running, "resp_1")
      running = pinned:take(RESPONSES)
      assert.equal("f" .. i, running.headers["x-request-id"])
    end
    wait_queued(1)
    serve(beside)
    beside = free:take(PATH)
    assert.equal("r1", beside.headers["x-request-id"])
    serve(beside)
    respond(running, "resp_1")
    assert.equal(0, metric('baton_queue_blocked{pool="default"}'))
    eventually(function()
      local places = metric('baton_queue_running{pool="default"}')
      return places == 0, places
    end, 10, "all places are given back")
  end)

  it("keep their place while every prefill is at its limit, and go on as one has room", function()
    local d1, d2 = puppet.open(), puppet.open()
    start_pairs({ worker }, { d1, d2 })
    ask("r0")
    local first = worker:take(PATH)
    ask("r1")
    eventually(function()
      local blocked = metric('baton_queue_blocked{pool="default"}')
      return blocked == 1, blocked
    end, 10, "r1 has a place, and no prefill")
    assert.is_nil(worker:poll(PATH))
    first:answer(200, {}, reply(first))
    local second = worker:take(PATH)
    assert.equal("r1", second.headers["x-request-id"])
    second:answer(200, {}, reply(second))
    for _ = 1, 2 do
      serve((puppet.take_any({ d1, d2 }, PATH)))
    end
    assert.equal(0, metric('baton_queue_blocked{pool="default"}'))
    assert.equal(0, metric("baton_limited_total"))
    assert.is_true(explain("r1").phases_ms.queue > 0)
  end)

  it("have a decode slot before their prefill is spent, though decode is chosen late", function()
    local other, decode = puppet.open(), puppet.open()
    start_pairs({ worker, other }, { decode }, "--policy", proc.write("late.lua", [[
      return {
        api = 2, name = "late", version = "1",
        plan = function(req, view) return { prefill = view.prefill[1] } end,
        plan_decode = function(req, view) return { decode = view.decode[1] } end,
      }]]))
    ask("r0")
    local first = puppet.take_any({ worker, other }, PATH)
    ask("r1")
    wait_queued(1)
    assert.is_nil(worker:poll(PATH))
    assert.is_nil(other:poll(PATH))
    first:answer(200, {}, reply(first))
    serve(decode:take(PATH))
    local second = puppet.take_any({ worker, other }, PATH)
    second:answer(200, {}, reply(second))
    serve(decode:take(PATH))
  end)

  it("leave the line with their clients, wherever they are in it", function()
    start_one("--queue-size", "50")
    ask("r0")
    local running = worker:take(PATH)
    ask_all("a", 3, 0, { ["X-Tenant-Id"] = "a" })
    ask_all("b", 2, 3, { ["X-Tenant-Id"] = "b" })
    clients.a1:close()
    clients.b2:close()
    wait_queued(3)
    assert.equal(2, metric('baton_queue_ends_total{pool="default",class="normal",end="gone"}'))
    assert.equal(2, metric('baton_queue_waiting_tenants{pool="default",class="normal"}'))
    local ids, last = order(running, 3)
    assert.equal("a2 b1 a3", ids)
    serve(last)
    assert.equal(0, metric('baton_queue_waiting_tokens{pool="default",class="normal"}'))
  end)
end)
