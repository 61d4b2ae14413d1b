-- Who comes from vllm-router or sglang-router keeps the command line: one case for each behaviour that their own
-- black-box tests promise, by the flags that they give. Prompts are longer than theirs where prefixes are compared,
-- which is done by blocks here. Adding workers on the client port needs --client-worker-api besides.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH, CHAT = "/v1/completions", "/v1/chat/completions"
local LONG = ("a sentence that many prompts begin with "):rep(40)

describe("drop-in:", function()
  local f

  after_each(function()
    f:stop()
  end)

  teardown(proc.clean)

  local function start(workers, ...)
    local words = {}
    for word in table.concat({ ... }, " "):gmatch("%S+") do
      words[#words + 1] = word
    end
    f = fleet.start({ workers = workers, flags = words })
  end

  local function body(prompt)
    return ('{"model":"sim","prompt":"%s","max_tokens":1,"stream":false}'):format(prompt or "x")
  end

  local function post(prompt, headers)
    return f:post(PATH, body(prompt), headers)
  end

  -- Of these prompts, all at once.
  local function post_all(count, prompt_of)
    local asks = {}
    for i = 1, count do
      asks[i] = { path = PATH, body = body(prompt_of and prompt_of(i) or "p" .. i) }
    end
    return http.together(f.port, asks)
  end

  local function statuses(answers)
    local out = {}
    for _, a in ipairs(answers) do
      out[a.status] = (out[a.status] or 0) + 1
    end
    return out
  end

  -- Requests that each worker got since the start, most first; by its name too.
  local function shares()
    local out, list = {}, {}
    for _, w in ipairs(f.sim.list) do
      local count = 0
      for _, e in ipairs((f.sim:requests(w.name))) do
        if e.path == PATH or e.path == CHAT then
          count = count + 1
        end
      end
      out[w.name] = count
      list[#list + 1] = count
    end
    table.sort(list, function(a, b)
      return a > b
    end)
    return out, list
  end

  -- A burst that the slow worker is still at while the next ones come: who gets them.
  local function prefer_fast()
    local held = {}
    for i = 1, 16 do
      held[i] = http.start(f.port, { path = PATH, body = body("held " .. i) })
    end
    eventually(function()
      local by_name = shares()
      return by_name.slow > 0 and by_name.slow + by_name.fast == 16
    end, 10, "all of them are there")
    local before = shares()
    for i = 1, 30 do
      assert.equal(200, post("p" .. i).status)
    end
    local after = shares()
    assert.equal(before.slow, after.slow)
    assert.equal(before.fast + 30, after.fast)
    for _, c in ipairs(held) do
      c:close()
    end
  end

  local function fails(name, times)
    f.sim:fault(name, { kind = "status", status = 500, path = PATH, times = times or 1000 })
  end

  -- Seconds that the breaker stays open, and a moment more.
  local function wait_half_open(seconds)
    local until_s = clock.now() + seconds + 0.1
    eventually(function()
      return clock.now() > until_s
    end, seconds + 5, "the time out is over")
  end

  describe("load balancing", function()
    it("round_robin is even", function()
      start({ "role=hybrid,count=3,latency=0" }, "--policy round_robin")
      for i = 1, 30 do
        assert.equal(200, post("hello " .. i).status)
      end
      local _, list = shares()
      assert.same({ 10, 10, 10 }, list)
    end)

    it("random reaches everybody", function()
      start({ "role=hybrid,count=3,latency=0" }, "--policy random")
      for i = 1, 60 do
        assert.equal(200, post("hello " .. i).status)
      end
      local _, list = shares()
      assert.is_true(list[3] > 0)
    end)

    it("power_of_two prefers who has less", function()
      start({ "role=hybrid,name=slow,ttft=5000,itl=1", "role=hybrid,name=fast,latency=0" },
        "--policy power_of_two --worker-startup-check-interval 1")
      prefer_fast()
    end)

    it("cache_aware: a prompt stays where it was", function()
      start({ "role=hybrid,count=2,latency=0" }, "--policy cache_aware")
      for _ = 1, 12 do
        assert.equal(200, post(LONG).status)
      end
      local _, list = shares()
      assert.is_true(list[1] >= 10, list[1])
    end)

    it("cache_aware: so does a chat with the same beginning", function()
      start({ "role=hybrid,count=2,latency=0" }, "--policy cache_aware")
      for i = 1, 12 do
        assert.equal(200, f:post(CHAT, json.encode({ model = "sim", max_tokens = 1, messages = {
          { role = "system", content = LONG }, { role = "user", content = "task " .. i } } })).status)
      end
      local _, list = shares()
      assert.is_true(list[1] >= 10, list[1])
    end)

    it("cache_aware: prompts that differ are spread by load", function()
      start({ "role=hybrid,count=3,ttft=30,itl=1" },
        "--policy cache_aware --cache-threshold 0.99 --balance-abs-threshold 0 --balance-rel-threshold 1.0")
      assert.same({ [200] = 40 }, statuses(post_all(40, function(i)
        return ("%d "):format(i * 7919):rep(400)
      end)))
      local _, list = shares()
      assert.is_true(list[2] > 0)
    end)
  end)

  describe("prefill and decode", function()
    local PD = "--vllm-pd-disaggregation --policy power_of_two --worker-startup-check-interval 1"

    it("each answer is decode's, and decodes share", function()
      start({ "role=prefill,count=2,latency=0", "role=decode,count=3,latency=0" }, PD)
      for i = 1, 30 do
        local answer = post("p" .. i)
        assert.equal(200, answer.status)
        assert.is_truthy(answer:header("x-baton-decode"):find("^d%d$"))
      end
      local by_name, used = shares(), 0
      for _, name in ipairs({ "d0", "d1", "d2" }) do
        used = used + (by_name[name] > 0 and 1 or 0)
      end
      assert.is_true(used >= 2)
    end)

    it("the faster decode gets more", function()
      start({ "role=prefill,count=2,latency=0", "role=decode,name=slow,transfer_ms=5000,itl=1",
        "role=decode,name=fast,latency=0" }, PD)
      prefer_fast()
    end)
  end)

  describe("the circuit breaker", function()
    local SOME = "--policy round_robin --cb-success-threshold 2 --disable-retries --cb-window-duration-secs 60"

    local function open(tries)
      for _ = 1, tries do
        if post().status == 503 then
          return true
        end
      end
    end

    it("opens, and lets requests through again", function()
      start({ "role=hybrid,name=h0,latency=0" }, SOME, "--cb-failure-threshold 3 --cb-timeout-duration-secs 1")
      fails("h0", 3)
      assert.is_true(open(8))
      wait_half_open(1)
      assert.equal(200, post().status)
      assert.equal(200, post().status)
    end)

    it("opens again when the probe fails", function()
      start({ "role=hybrid,name=h0,latency=0" }, SOME, "--cb-failure-threshold 2 --cb-timeout-duration-secs 1")
      fails("h0")
      assert.is_true(open(8))
      wait_half_open(1)
      assert.equal(500, post().status)
      assert.equal(503, post().status)
    end)

    it("is off with --disable-circuit-breaker", function()
      start({ "role=hybrid,name=h0,latency=0" }, "--policy round_robin --disable-retries --disable-circuit-breaker")
      fails("h0")
      for _ = 1, 20 do
        assert.equal(500, post().status)
      end
    end)

    it("is each worker's own", function()
      start({ "role=hybrid,count=2,latency=0" }, SOME, "--cb-failure-threshold 2 --cb-timeout-duration-secs 60")
      fails("h0")
      local failures = 0
      for _ = 1, 30 do
        failures = failures + (post().status == 500 and 1 or 0)
      end
      assert.equal(2, failures)
    end)

    it("goes together with retries", function()
      start({ "role=hybrid,count=2,latency=0" }, "--policy round_robin --retry-max-retries 3",
        "--retry-initial-backoff-ms 10 --retry-max-backoff-ms 50 --cb-failure-threshold 2 --cb-success-threshold 1",
        "--cb-timeout-duration-secs 2 --cb-window-duration-secs 10")
      fails("h0")
      for _ = 1, 6 do
        assert.equal(200, post().status)
      end
    end)
  end)

  describe("retries", function()
    local THREE = "--policy round_robin --retry-max-retries 3 --retry-initial-backoff-ms 10 --retry-max-backoff-ms 50"

    it("go to a worker that is well", function()
      start({ "role=hybrid,count=3,latency=0" }, THREE)
      fails("h0")
      for _ = 1, 3 do
        assert.equal(200, post().status)
      end
    end)

    it("hide a worker that crashes", function()
      start({ "role=hybrid,count=2,latency=0" }, THREE)
      f.sim:fault("h0", { kind = "die", path = PATH, times = 1 })
      assert.equal(200, post().status)
      assert.equal(200, post().status)
    end)

    it("are off with --disable-retries", function()
      start({ "role=hybrid,name=h0,latency=0" }, "--policy round_robin --disable-retries")
      fails("h0")
      assert.equal(500, post().status)
    end)
  end)

  describe("limits", function()
    it("--queue-size 0: some are served, the others get 429 and Retry-After", function()
      start({ "role=hybrid,count=1,ttft=300,itl=1" }, "--policy round_robin --max-concurrent-requests 2 --queue-size 0")
      local answers = post_all(16)
      local seen = statuses(answers)
      assert.is_true((seen[200] or 0) >= 2)
      assert.equal(16, seen[200] + seen[429])
      for _, a in ipairs(answers) do
        assert.is_true(a.status == 200 or tonumber(a:header("retry-after")) >= 1)
      end
    end)

    it("--queue-size 1: one runs, one waits too long, the others find it full", function()
      start({ "role=hybrid,count=1,ttft=2500,itl=1" },
        "--policy round_robin --max-concurrent-requests 1 --queue-size 1 --queue-timeout-secs 1")
      assert.same({ [200] = 1, [408] = 1, [429] = 2 }, statuses(post_all(4)))
    end)

    it("--max-payload-size: 413 above it", function()
      start({ "role=hybrid,count=1,latency=0,context=1000000" }, "--policy round_robin --max-payload-size 1048576")
      assert.equal(200, post(("x"):rep(524288)).status)
      assert.equal(413, post(("x"):rep(1258291)).status)
    end)
  end)

  it("a client's key goes through to the worker, whose word counts", function()
    start({ "role=hybrid,name=h0,latency=0" }, "--policy round_robin")
    f.sim:fault("h0", { kind = "status", status = 401, path = PATH, times = 1 })
    assert.equal(401, post("x", { Authorization = "Bearer wrong" }).status)
    assert.equal(200, post("x", { Authorization = "Bearer right" }).status)
    local seen = {}
    for _, e in ipairs((f.sim:requests("h0"))) do
      seen[#seen + 1] = e.path == PATH and e.headers.authorization or nil
    end
    assert.same({ "Bearer wrong", "Bearer right" }, seen)
  end)

  describe("workers", function()
    local sim, process, port

    local function call(method, path)
      return http.request(port, { method = method, path = path, body = method == "POST" and "" or nil })
    end

    local function listed()
      return json.decode(call("GET", "/list_workers").body).urls
    end

    local function served()
      return http.post(port, PATH, body()).status == 200
    end

    before_each(function()
      sim = fleet.start_sim({ "role=hybrid,count=2,latency=0" })
      f = { stop = function()
        process:stop(10)
        sim.process:stop(5)
      end }
    end)

    it("come and go by /add_worker and /remove_worker, as a discovery does it", function()
      process, port = fleet.start_gateway({ "--policy", "round_robin", "--client-worker-api" })
      assert.same({}, listed())
      local url = sim.list[1].url
      assert.equal(200, call("POST", "/add_worker?url=" .. url).status)
      assert.same({ url }, listed())
      eventually(served, 10, "it serves")
      assert.equal(200, call("POST", "/remove_worker?url=" .. url).status)
      eventually(function()
        return #listed() == 0
      end, 10, "it has gone")
    end)

    it("added ones serve beside the others, removed ones no more", function()
      local one, two = sim.list[1], sim.list[2]
      process, port = fleet.start_gateway({ "--policy", "round_robin", "--client-worker-api", "--worker-urls",
        one.url })
      eventually(served, 10, "the first serves")
      assert.equal(200, call("POST", "/add_worker?url=" .. two.url).status)
      eventually(function()
        return served() and #(sim:requests(two.name)) > 0
      end, 10, "the second serves")
      assert.equal(200, call("POST", "/remove_worker?url=" .. two.url).status)
      eventually(function()
        return #listed() == 1
      end, 10, "the second has gone")
      local function legs()
        local count = 0
        for _, e in ipairs((sim:requests(two.name))) do
          count = count + (e.path == PATH and 1 or 0)
        end
        return count
      end
      local before = legs()
      for _ = 1, 10 do
        assert.is_true(served())
      end
      assert.equal(before, legs())
    end)
  end)
end)
