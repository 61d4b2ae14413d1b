-- A worker's checks fail while a leg of it hangs: nobody waits for the dead. Over the dialects of the fault specs,
-- before prefill's answer, between the legs, before decode's first byte and after it. All deadlines are minutes: what
-- is answered in time was ended by the loss.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local gateway_managed = require("gateway.support.gateway_managed")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local kv_peer = require("gateway.support.kv_peer")
local proc = require("gateway.support.proc")

local FOR_EVER = 4294967295
local INTERVAL, TIMEOUT, FAILURES = 0.1, 0.5, 3
local IN_TIME = FAILURES * INTERVAL + TIMEOUT + 1
local DEAD = { kind = "status", status = 503, path = "/health", times = FOR_EVER }
local SILENT = { kind = "hang", path = "/health", times = FOR_EVER }

local function push_config(workers)
  local lines = {}
  for _, w in pairs(workers) do
    local more = w.role == "prefill" and (', engine_id = "%s", bootstrap_port = %d'):format(w.name, w.second) or ""
    local line = '{ name = "%s", role = "%s", url = "%s", connector = "NixlPushConnector"%s },'
    lines[#lines + 1] = line:format(w.name, w.role, w.url, more)
  end
  return 'return { pools = { { name = "push", workers = {\n' .. table.concat(lines, "\n") .. "\n} } } }\n"
end

local function pair(tail)
  return { "role=prefill,itl=1,ttft=1,count=2" .. tail, "role=decode,itl=1,ttft=1,count=2" .. tail }
end

local FLEETS = {
  nixl = { workers = pair(",connector=NixlConnector"), is_vllm = true, is_handoff = true,
    flags = { "--vllm-pd-disaggregation", "--kv-connector", "NixlConnector" } },
  shared_cache = { workers = pair(",connector=ExampleConnector"), is_vllm = true, is_handoff = true,
    flags = { "--vllm-pd-disaggregation", "--kv-connector", "ExampleConnector" } },
  nixl_push = { workers = pair(",connector=NixlPushConnector"), is_vllm = true, flags = {}, config = push_config },
  ["gateway-managed"] = { managed = { p0 = "ttft=1,itl=1", p1 = "ttft=1,itl=1", d0 = "ttft=1,itl=1",
    d1 = "ttft=1,itl=1" }, is_vllm = true, flags = {} },
  sglang = { workers = pair(",engine=sglang"), flags = { "--pd-disaggregation" } },
  ["vllm alone"] = { workers = { "role=hybrid,name=w,engine=vllm,count=2,itl=1,ttft=1" }, is_single = true,
    is_vllm = true, flags = { "--engine", "vllm" } },
  ["sglang alone"] = { workers = { "role=hybrid,name=w,engine=sglang,count=2,itl=1,ttft=1" }, is_single = true,
    flags = { "--engine", "sglang" } },
}

-- Of each kind one is enough for ThreadSanitizer: who checks and who cuts meet on one path, whatever the legs say.
if os.getenv("BATON_SANITIZE") == "thread" then
  FLEETS.shared_cache, FLEETS.nixl_push, FLEETS["sglang alone"] = nil, nil, nil
end

-- As a fleet of one simulator's workers is asked.
local function start_managed(workers, ask)
  local f = gateway_managed.start(workers, ask)
  function f.sim.fault(_, name, fault)
    f:fault(name, fault)
  end
  function f.sim.reset(_, name)
    http.request(f.workers[name].port, { method = "DELETE", path = "/sim/fault" })
  end
  return f
end

local function start(which, flags)
  local words = { "--health-check-interval-secs", tostring(INTERVAL), "--health-check-timeout-secs", tostring(TIMEOUT),
    "--health-failure-threshold", tostring(FAILURES) }
  for _, list in ipairs({ which.flags, flags or {} }) do
    proc.append(words, list)
  end
  if which.managed then
    return start_managed(which.managed, { flags = words })
  end
  return fleet.start({ workers = which.workers, flags = words, config = which.config })
end

-- Asks until a request has met the fault; all others are served.
local function hang_one(f, name, fault, stream)
  local before = faults.state(f, name).faults
  f.sim:fault(name, fault)
  for _ = 1, 60 do
    local c = http.start(f.port, { path = "/v1/completions", body = faults.body({ stream = stream }),
      headers = { ["X-Request-Id"] = faults.new_id() } })
    local has_met = eventually(function()
      c:pump()
      return faults.state(f, name).faults == before and "met" or c.answer.done and "served"
    end) == "met"
    if has_met then
      return c
    end
    c:close()
  end
  error("no request met the fault")
end

local function wait_back(f, name)
  f.sim:reset(name)
  eventually(function()
    return faults.number(f, "baton_worker_usable", { worker = name }) == 1
  end, 10, name .. " is back")
  faults.wait_quiet(f)
end

local slowest = 0

-- The client's answer. How long it took is told at the end: a machine that is away for a second is no defect.
local function in_time(c)
  local from = clock.now()
  local answer = c:wait(nil, IN_TIME + 20)
  c:close()
  slowest = math.max(slowest, clock.now() - from)
  return answer
end

local function check_loss(f, name, fault, sign, stream)
  local legs = faults.number(f, "baton_lost_legs_total")
  local losses = faults.number(f, "baton_worker_losses_total", { worker = name })
  local before = faults.outcomes(f)
  local c = hang_one(f, name, fault, stream)
  f.sim:fault(name, sign)
  local answer = in_time(c)
  assert.equal(losses + 1, faults.number(f, "baton_worker_losses_total", { worker = name }))
  assert.equal(legs + 1, faults.number(f, "baton_lost_legs_total"))
  assert.equal(1, faults.guilt(f, before)[name])
  wait_back(f, name)
  return answer
end

local function check_retried(f, name, fault, sign, stream)
  local answer = check_loss(f, name, fault, sign, stream)
  assert.equal(200, answer.status, answer.body)
  assert.equal("2", answer:header("x-baton-attempts"))
  assert.equal(faults.expected(), faults.text_of(answer, stream))
end

for title, which in pairs(FLEETS) do
  describe("a lost worker, " .. title, function()
    local f

    setup(function()
      f = start(which)
    end)

    teardown(function()
      f:stop()
    end)

    local first, second = "p0", "d0"
    if which.is_single then
      first, second = "w0", "w0"
    end

    it("is silent before the first leg's answer: another one answers", function()
      check_retried(f, first, { kind = "hang" }, SILENT, false)
    end)

    it("is silent before decode's first byte: another one answers", function()
      check_retried(f, second, { kind = "hang" }, SILENT, true)
    end)

    it("is silent behind its headers: another one answers", function()
      check_retried(f, second, { kind = "hang_after_headers" }, SILENT, true)
    end)

    it("stops in the middle of a stream: the client is told", function()
      local answer = check_loss(f, second, { kind = "stall", after_chunks = 3 }, SILENT, true)
      assert.equal(200, answer.status)
      faults.assert_not_whole(answer)
    end)

    if which.is_vllm then
      it("says that its engine is dead: another one answers at once", function()
        check_retried(f, first, { kind = "hang" }, DEAD, true)
        check_retried(f, second, { kind = "hang" }, DEAD, false)
      end)
    end

    if which.is_handoff then
      it("is the decode of a hand-off that prefill still computes: it is not asked any more", function()
        for _, name in ipairs({ "p0", "p1" }) do
          f.sim:fault(name, { kind = "slow_first_byte", ms = 1500 * clock.slowness() })
        end
        f:mark()
        local id = faults.new_id()
        local c = http.start(f.port, { path = "/v1/completions", body = faults.body(),
          headers = { ["X-Request-Id"] = id } })
        local decode = eventually(function()
          local row = json.decode(http.get(f.admin_port, "/requests").body).requests[1]
          return row and row.decode
        end)
        f.sim:fault(decode, DEAD)
        local answer = in_time(c)
        assert.equal(200, answer.status, answer.body)
        assert.equal(faults.expected(), faults.text_of(answer))
        local legs = faults.legs_of(f, id)
        assert.equal(1, #legs.prefill, "what it has computed is kept")
        assert.equal(1, #legs.decode)
        assert.not_equal(decode, legs.decode[1].worker)
        for _, name in ipairs({ "p0", "p1" }) do
          f.sim:reset(name)
        end
        wait_back(f, decode)
      end)
    end
  end)
end

describe("a lost worker", function()
  it("has its name in the error where nobody may try again", function()
    local f = start(FLEETS.nixl, { "--disable-retries" })
    local answer = check_loss(f, "p0", { kind = "hang" }, DEAD, false)
    assert.equal(502, answer.status)
    assert.equal("lost", answer:header("x-baton-error"))
    assert.equal("prefill", answer:header("x-baton-leg"))
    f:stop()
  end)

  it("may have hundreds of requests: all are answered elsewhere, and its breaker hears of one failure", function()
    local f = start(FLEETS["vllm alone"], { "--policy", "round_robin" })
    f.sim:fault("w0", { kind = "hang", times = 200 })
    local clients = {}
    for i = 1, 400 do
      clients[i] = http.start(f.port, { path = "/v1/completions", body = faults.body() })
    end
    eventually(function()
      return faults.state(f, "w0").live == 200
    end, 20, "half of them hang")
    f.sim:fault("w0", DEAD)
    for _, c in ipairs(clients) do
      assert.equal(200, c:wait(nil, 20).status)
      c:close()
    end
    assert.equal(200, faults.number(f, "baton_lost_legs_total"))
    assert.equal(0, faults.number(f, "baton_worker_breaker_opened_total", { worker = "w0" }))
    f:stop()
  end)

  it("may have more requests than the pool may try again: the others are told why not", function()
    local f = start(FLEETS["vllm alone"], { "--policy", "round_robin", "--retry-budget-percent", "20" })
    f.sim:fault("w0", { kind = "hang", times = 30 })
    local clients = {}
    for i = 1, 60 do
      clients[i] = http.start(f.port, { path = "/v1/completions", body = faults.body() })
    end
    eventually(function()
      return faults.state(f, "w0").live == 30
    end, 20, "half of them hang")
    f.sim:fault("w0", DEAD)
    local served, refused = 0, 0
    for _, c in ipairs(clients) do
      local answer = c:wait(nil, 20)
      c:close()
      served = served + (answer.status == 200 and 1 or 0)
      if answer.status ~= 200 then
        refused = refused + 1
        local path = "/explain/" .. answer:header("x-request-id")
        assert.equal("lost", answer:header("x-baton-error"))
        assert.is_true(json.decode(http.get(f.admin_port, path).body).over_budget)
        assert.truthy(http.get(f.admin_port, path .. "?format=text").body:find("retry budget is spent", 1, true))
      end
    end
    assert.is_true(refused >= 18, served .. " were served") -- 60 requests: 12 may be tried again
    assert.equal(refused, faults.number(f, "baton_retries_over_budget_total"))
    assert.equal(30 - refused, faults.number(f, "baton_retries_total"))
    f:stop()
  end)

  it("keeps the stream that its client holds up: what it has sent already is not lost", function()
    local f = start({ workers = { "role=hybrid,name=w0,engine=vllm,latency=0" }, flags = { "--engine", "vllm" } })
    local c = http.start(f.port, { path = "/v1/completions", body = faults.body({ stream = true, tokens = 60000 }) })
    local last, since
    eventually(function()
      local events = faults.ledger(f)["w0 decode"] or 0
      if events ~= last then
        last, since = events, clock.now()
      end
      return last > faults.PROMPT_TOKENS and clock.now() - since > 0.15
    end, 10, "the stream has come to a stop")
    f.sim:fault("w0", DEAD)
    eventually(function()
      return faults.number(f, "baton_worker_losses_total") == 1
    end)
    clock.nap(0.6)
    assert.equal(0, faults.number(f, "baton_lost_legs_total"))
    local answer = c:wait(nil, 60)
    c:close()
    assert.is_truthy(answer.body:find("data: [DONE]\n\n", -20, true), "whole")
    f:stop()
  end)

  it("is one of most of its role: nothing is cut", function()
    local f = start({ workers = { "role=hybrid,name=w,engine=vllm,count=4,itl=1,ttft=1" },
      flags = { "--engine", "vllm", "--policy", "round_robin" } })
    for i = 0, 3 do
      f.sim:fault("w" .. i, { kind = "slow_first_byte", ms = 6000 }) -- the checks need two, however slow we are
    end
    local clients = {}
    for i = 1, 4 do
      clients[i] = http.start(f.port, { path = "/v1/completions", body = faults.body() })
    end
    eventually(function()
      local met = 0
      for i = 0, 3 do
        met = met + 1 - faults.state(f, "w" .. i).faults
      end
      return met == 4
    end)
    for i = 0, 3 do
      f.sim:fault("w" .. i, SILENT)
    end
    for _, c in ipairs(clients) do
      local answer = c:wait(nil, 10)
      assert.equal(200, answer.status, answer.body)
      assert.equal("1", answer:header("x-baton-attempts") or "1")
      c:close()
    end
    assert.equal(0, faults.number(f, "baton_worker_losses_total"))
    assert.is_true(faults.number(f, "baton_losses_withheld_total", { reason = "role" }) >= 3)
    f.gateway:says("and so is most of its role (hybrid)")
    f:stop()
  end)

  -- p0's agent is the spec itself. Its room ends by that, and p0 with it.
  it("has lost its transfer agent while its checks are good: what waits on it ends, and nobody asks it", function()
    local f = start_managed({ p0 = "ttft=1", d0 = "itl=1" }, { late = { p0 = true } })
    local agent = kv_peer.dial(f.transfer_port)
    agent:say_gateway({ worker = "p0", rank = 0, ranks = 1 })
    f:wait_usable("p0")
    f.sim:fault("p0", { kind = "hang" })
    local c = f:start("/v1/completions", faults.body(), { ["X-Request-Id"] = faults.new_id() })
    eventually(function()
      return faults.state(f, "p0").faults == 0
    end, 10, "prefill hangs")
    agent:close()
    local answer = in_time(c)
    assert.equal(502, answer.status, answer.body)
    assert.equal("prefill", answer:header("x-baton-leg"))
    assert.same({ p0 = 1 }, faults.guilt(f))
    assert.equal(1, faults.number(f, "baton_worker_losses_total", { worker = "p0" }))
    f.gateway:says("worker p0 is lost (its transfer agent is gone)")
    f:stop()
  end)

  it("is not believed lost by a gateway that stood still itself", function()
    local f = start(FLEETS["vllm alone"])
    clock.nap(1.2) -- a heartbeat
    f.gateway:kill(proc.SIGSTOP)
    clock.nap(3)
    f.gateway:kill(proc.SIGCONT)
    eventually(function()
      return faults.number(f, "baton_losses_withheld_total", { reason = "stall" }) >= 1
    end)
    assert.equal(0, faults.number(f, "baton_worker_losses_total"))
    f:stop()
  end)
end)

teardown(function()
  print(("    [the slowest answer beside a lost worker: %.2f s; wanted: %.1f s]"):format(slowest, IN_TIME))
  proc.clean()
end)
