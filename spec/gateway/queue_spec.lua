-- --queue-size: requests above --max-concurrent-requests wait before their pool, first come first served, whichever
-- loop they came to. Workers are moved by hand.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")
local puppet = require("gateway.support.puppet")

local PATH = "/v1/completions"
local ANSWER = '{"id":"x","choices":[{"index":0,"text":"fine","finish_reason":"length"}]}'
local CALM = { "--disable-health-check", "--load-interval-secs", "0", "--max-concurrent-requests", "1" }

describe("--queue-size", function()
  local process, port, admin_port, worker, other, clients

  local function start(words, more)
    local all = {}
    for _, list in ipairs({ words, CALM, more or {} }) do
      proc.append(all, list)
    end
    process, port, admin_port = fleet.start_gateway(all)
    eventually(function()
      local answer = http.get(port, "/readiness")
      return answer.status == 200, answer.body
    end, 10, "/readiness is 200")
  end

  local function start_one(...)
    start({ "--worker-urls", worker.url }, { ... })
  end

  -- Two pools by model, "a" and "b", each with one of these.
  local function config_of(a, b)
    local pool = '{ name = "%s", models = { "%s" }, workers = { { url = "%s", engine = "vllm" } } }'
    return ("return { pools = { %s, %s } }"):format(pool:format("a", "a", a.url), pool:format("b", "b", b.url))
  end

  local function metric(line)
    return fleet.metric(admin_port, line) or 0
  end

  local function queued(pool)
    return metric(('baton_queued_requests{pool="%s"}'):format(pool or "default"))
  end

  local function wait_queued(count, pool)
    eventually(function()
      return queued(pool) == count, queued(pool)
    end, 10, count .. " requests wait")
  end

  local function ask(id, model)
    local c = http.start(port, { path = PATH, headers = { ["X-Request-Id"] = id },
      body = ('{"model":"%s","prompt":"x"}'):format(model or "a") })
    clients[#clients + 1] = c
    return c
  end

  local function take(id, from)
    local x = (from or worker):take(PATH)
    assert.equal(id, x.headers["x-request-id"])
    return x
  end

  local function serve(x, client)
    x:answer(200, {}, ANSWER)
    assert.equal(200, client:wait().status)
  end

  local function explain(id)
    return fleet.explain(admin_port, id, 5)
  end

  before_each(function()
    worker, other, clients = puppet.open(), puppet.open(), {}
  end)

  after_each(function()
    for _, c in ipairs(clients) do
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

  it("keeps the order over the loops, and says how long each waited", function()
    start_one("--queue-size", "20", "--loops", "2")
    local count = 13
    ask("r0")
    local running = take("r0")
    for i = 1, count - 1 do
      ask("r" .. i)
      wait_queued(i)
    end
    for i = 1, count - 1 do
      assert.is_nil(worker:poll(PATH))
      serve(running, clients[i])
      running = take("r" .. i)
    end
    serve(running, clients[count])
    assert.equal(0, queued())
    assert.equal(count - 1, metric("baton_queue_wait_seconds_count"))
    assert.is_nil(explain("r0").phases_ms.queue)
    assert.is_true(explain("r1").phases_ms.queue > 0)
    assert.is_truthy(http.get(admin_port, "/admin/explain/r1?format=text").body:find("queue", 1, true))
  end)

  it("refuses with 429 who finds it full; who leaves makes room", function()
    start_one("--queue-size", "1")
    local first = ask("r0")
    local running = take("r0")
    local second = ask("r1")
    wait_queued(1)
    local refused = ask("r2"):wait()
    assert.equal(429, refused.status)
    assert.equal("1", refused:header("retry-after"))
    assert.is_truthy(refused.body:find("--queue-size", 1, true))
    assert.equal(1, metric("baton_queue_full_total"))
    assert.equal("queue_full", explain("r2").error)
    second:close()
    wait_queued(0)
    assert.equal(1, metric("baton_client_gone_total"))
    local third = ask("r3")
    wait_queued(1)
    serve(running, first)
    serve(take("r3"), third)
    assert.is_nil(worker:poll(PATH))
  end)

  it("is not there without the flag, and never entered with 0", function()
    for want, words in pairs({ [503] = {}, [429] = { "--queue-size", "0" } }) do
      start_one(unpack(words))
      local first = ask("r0")
      local running = take("r0")
      local refused = ask("r1"):wait()
      assert.equal(want, refused.status)
      assert.equal("1", refused:header("retry-after"))
      serve(running, first)
      fleet.stop_gateway(process)
    end
  end)

  it("refuses with 408 who has waited too long; the one that runs goes on", function()
    start_one("--queue-size", "5", "--queue-timeout-secs", "1")
    local first = ask("r0")
    local running = take("r0")
    local late = ask("r1"):wait()
    assert.equal(408, late.status)
    assert.equal("1", late:header("retry-after"))
    assert.equal(1, metric("baton_queue_timeouts_total"))
    local record = explain("r1")
    assert.equal("queue_timeout", record.error)
    assert.is_true(record.phases_ms.queue >= 1000)
    serve(running, first)
    local next_one = ask("r2")
    serve(take("r2"), next_one)
  end)

  it("is each pool's own", function()
    start({ proc.write("baton.lua", config_of(worker, other)) }, { "--queue-size", "5" })
    local a = ask("a0", "a")
    local running = take("a0")
    local waiting = ask("a1", "a")
    wait_queued(1, "a")
    local b = ask("b0", "b")
    serve(take("b0", other), b)
    assert.equal(1, queued("a"))
    serve(running, a)
    serve(take("a1"), waiting)
  end)

  it("outlives a reload: who waits goes to today's workers", function()
    local path = proc.write("baton.lua", config_of(worker, other))
    start({ path }, { "--queue-size", "5" })
    local a = ask("a0", "a")
    local running = take("a0")
    local waiting = ask("a1", "a")
    wait_queued(1, "a")
    local file = assert(io.open(path, "w"))
    file:write(config_of(other, worker))
    file:close()
    process:kill(proc.SIGHUP)
    eventually(function()
      local b = ask("b", "b") -- until the loop has heard of it
      local x, i = puppet.take_any({ worker, other }, PATH)
      serve(x, b)
      return i == 1, "pool b still has its old worker"
    end, 10, "the workers have changed pools")
    serve(running, a)
    serve(take("a1", other), waiting)
  end)

  it("is emptied by SIGTERM before the gateway ends", function()
    start_one("--queue-size", "5", "--loops", "2")
    local first = ask("r0")
    local running = take("r0")
    local second = ask("r1")
    wait_queued(1)
    process:kill(proc.SIGTERM)
    eventually(function()
      return process:stderr():find("draining", 1, true) ~= nil, process:stderr()
    end, 10, "it drains")
    serve(running, first)
    serve(take("r1"), second)
    assert.equal(0, (process:wait(10)))
    process = nil
  end)

  it("ends with the gateway, when the time to drain is over", function()
    start_one("--queue-size", "5", "--drain-timeout-secs", "0.2", "--loops", "2")
    ask("r0")
    take("r0")
    for i = 1, 3 do
      ask("r" .. i)
      wait_queued(i)
    end
    process:kill(proc.SIGTERM)
    assert.is_truthy(process:wait(10))
    assert.is_nil(process:stderr():find("Sanitizer", 1, true))
    process = nil
  end)
end)
