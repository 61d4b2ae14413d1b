-- --warm-pairs: every pair gets a request of the gateway's own before clients' requests are preferred there, and again
-- after a restart; what fails is tried again, blames nobody and holds nothing.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"one two three","max_tokens":2}'
local LONG = '{"model":"sim","prompt":"four five six","max_tokens":2000,"stream":true}'
local NIXL = {
  "role=prefill,connector=NixlConnector,count=2,latency=0,lease_ms=700",
  "role=decode,connector=NixlConnector,count=2,latency=0",
}

-- Its load is no reason: the first of those that are warm.
local POLICY = [[
return {
  api = 2,
  name = "warm_first",
  version = "1",
  plan = function(_, view)
    local prefill = baton.argmin(baton.warm(view.prefill), "id")
    local partners = baton.warm(view.decode, prefill)
    return { prefill = prefill, decode = baton.argmin(partners, "id") }
  end,
}
]]

-- Fails for requests that say so.
local BROKEN = [[
return {
  api = 2,
  name = "broken",
  version = "1",
  plan = function(req, view)
    if req.headers["x-break"] then
      error("broken")
    end
    return { prefill = view.prefill[1], decode = view.decode[1] }
  end,
}
]]

describe("--warm-pairs", function()
  local f

  local function start(workers, flags, more)
    local family = workers[1]:find("sglang", 1, true) and "--pd-disaggregation" or "--vllm-pd-disaggregation"
    local words = { family, "--warm-pairs", "--breaker-failures", "1" }
    proc.append(words, flags)
    local ask = { workers = workers, flags = words }
    for key, value in pairs(more or {}) do
      ask[key] = value
    end
    f = fleet.start(ask)
  end

  local function pool()
    return json.decode(http.get(f.port, "/readiness").body).pools[1]
  end

  local function until_warm(count, seconds)
    eventually(function()
      local p = pool()
      return p.warm_pairs == count, json.encode(p)
    end, seconds or 5, count .. " pairs are warm")
  end

  -- Requests of the gateway's own that a worker got.
  local function warmups(name)
    local out = {}
    for _, e in ipairs(f:requests(name)) do
      if e.path == PATH and (e.headers["x-request-id"] or ""):find("warmup-", 1, true) then
        out[#out + 1] = e
      end
    end
    return out
  end

  local function nothing_is_held()
    eventually(function()
      for _, w in ipairs(f.sim.list) do
        local s, told = f:state(w.name), f:told(w.name).ledger
        local load = told.prefill.tokens + told.prefill.requests + told.decode.tokens + told.decode.requests
        if s.held_kv_blocks + load ~= 0 then
          return false, json.encode({ s, told })
        end
      end
      return true
    end, 5, "no KV is held and no load is counted")
  end

  local function nobody_is_blamed()
    for _, w in ipairs(f.sim.list) do
      assert.equal("closed", f:told(w.name).breaker.state, w.name)
    end
  end

  local function ask()
    local answer, legs = f:exchange(PATH, BODY)
    assert.equal(200, answer.status, answer.body)
    return legs
  end

  after_each(function()
    if f then
      local ended = f
      f = nil
      ended:stop()
    end
  end)

  it("sends each pair one prompt of its own through both legs, and clients' figures do not show it", function()
    start(NIXL)
    until_warm(4)
    local pairs_seen, prompts = {}, {}
    for _, p in ipairs({ "p0", "p1" }) do
      local legs = warmups(p)
      assert.equal(2, #legs)
      for _, leg in ipairs(legs) do
        prompts[json.decode(leg.body).prompt] = true
      end
    end
    for _, d in ipairs({ "d0", "d1" }) do
      local legs = warmups(d)
      assert.equal(2, #legs)
      for _, leg in ipairs(legs) do
        local params = json.decode(leg.body).kv_transfer_params
        assert.is_true(params.do_remote_prefill)
        assert.is_true(#params.remote_block_ids > 0)
        pairs_seen[d .. params.remote_engine_id] = true
      end
    end
    local seen, own = 0, 0
    for _ in pairs(pairs_seen) do
      seen = seen + 1
    end
    for _ in pairs(prompts) do
      own = own + 1
    end
    assert.same({ 4, 4, 4 }, { seen, own, pool().pairs })
    assert.equal(4, f:metric("baton_warmups_total"))
    assert.equal(0, f:metric("baton_warmups_failed_total"))
    assert.equal(4, f:metric('baton_pool_pairs{pool="default",warm="true"}'))
    assert.is_true(json.decode(http.get(f.admin_port, "/workers/d1").body).pairs[1].warm)
    assert.equal(4, f:metric("baton_attempts_total"))
    assert.is_nil(f:metric('baton_requests_total{route="completions"'))
    assert.equal(0, f:metric("baton_request_seconds_count") or 0)
    assert.equal(0, f:metric("baton_handoff_wait_seconds_count"))
    nothing_is_held()
  end)

  it("warms pairs whose legs are joined by rooms", function()
    start({ "role=prefill,engine=sglang,latency=0", "role=decode,engine=sglang,count=2,latency=0" })
    until_warm(2)
    local legs = warmups("p0")
    assert.equal(2, #legs)
    assert.not_equal(json.raw(legs[1].body, "bootstrap_room"), json.raw(legs[2].body, "bootstrap_room"))
    nothing_is_held()
  end)

  it("does nothing without the flag", function()
    f = fleet.start({ workers = NIXL, flags = { "--vllm-pd-disaggregation" } })
    for _ = 1, 4 do
      ask()
    end
    assert.is_nil(pool().warm_pairs)
    assert.equal(0, #warmups("p0") + #warmups("p1"))
    assert.equal(0, f:metric("baton_warmups_total"))
  end)

  for who, policy in pairs({ ["least_load"] = "", ["a policy"] = POLICY, ["the default choice"] = BROKEN }) do
    it("gives no request to a pair that cannot be warmed while another can: " .. who, function()
      local flags = policy ~= "" and { "--policy", proc.write("own.lua", policy), "--policy-on-error", "default" } or {}
      start(NIXL, flags, {
        before = function(sim)
          sim:fault("d0", { kind = "status", status = 500, path = PATH, times = 1000 })
        end,
      })
      until_warm(2)
      eventually(function()
        return f:metric("baton_warmups_failed_total") >= 2
      end, 5, "both fail")
      f:mark()
      for _ = 1, 6 do
        local answer = f:post(PATH, BODY, { ["x-break"] = "1" })
        assert.equal(200, answer.status, answer.body)
      end
      for _, leg in ipairs(f:legs(PATH).decode) do
        assert.is_true(leg.worker == "d1" or leg.headers["x-request-id"]:find("warmup-", 1, true) ~= nil)
      end
      nobody_is_blamed()
      if who == "least_load" then -- once is enough: it waits for the next try
        http.request(f.workers.d0.port, { method = "DELETE", path = "/sim/fault" })
        until_warm(4, 8)
        nothing_is_held()
      end
    end)
  end

  -- A prefill that fails with two decodes in a row is blamed: a warm-up must not be the first of them.
  it("leaves no suspicion behind", function()
    start(NIXL, { "--disable-retries" }, {
      before = function(sim)
        sim:fault("d0", { kind = "status", status = 500, path = PATH, times = 1000 })
      end,
    })
    until_warm(2)
    eventually(function()
      return f:metric("baton_warmups_failed_total") >= 4
    end, 5, "both fail again") -- what went well with d1 had cleared them
    assert.equal(500, f:post(PATH, BODY, { ["x-sim-fault"] = "status:500@decode" }).status)
    nobody_is_blamed()
  end)

  it("serves from cold pairs where no pair is warm", function()
    start({ "role=prefill,connector=NixlConnector,latency=0", "role=decode,connector=NixlConnector,latency=0" }, {},
      {
        before = function(sim)
          sim:fault("p0", { kind = "status", status = 500, path = PATH, times = 1000 })
        end,
      })
    eventually(function()
      return f:metric("baton_warmups_failed_total") >= 1
    end, 5, "a warm-up fails")
    http.request(f.workers.p0.port, { method = "DELETE", path = "/sim/fault" })
    ask()
    until_warm(1)
    nobody_is_blamed()
  end)

  -- Ten retries, or half of the requests of the last 10 s: with twenty warm-ups among them it would be thirteen.
  it("earns clients no retries", function()
    start({ "role=prefill,connector=NixlConnector,count=4,latency=0",
      "role=decode,connector=NixlConnector,count=5,latency=0" },
      { "--retry-budget-percent", "50", "--disable-circuit-breaker" })
    until_warm(20, 9)
    local wanted = 0
    for _ = 1, 6 do
      local answer = f:post(PATH, BODY, { ["x-sim-fault"] = "status:500@decode" })
      assert.equal(500, answer.status)
      wanted = wanted + tonumber(answer:header("x-baton-attempts") or 1) - 1
    end
    assert.equal(10, wanted)
    assert.equal(1, f:metric("baton_retries_over_budget_total"))
  end)

  it("counts each pair's failures by itself", function()
    start({ "role=prefill,connector=NixlConnector,latency=0", "role=decode,connector=NixlConnector,count=2,latency=0" },
      {}, {
        before = function(sim)
          sim:fault("p0", { kind = "status", status = 500, path = PATH, times = 1000 })
        end,
      })
    for _, d in ipairs({ "d0", "d1" }) do
      eventually(function()
        local log = f.gateway:stderr()
        return log:find("pair p0, " .. d .. " cannot be warmed[^\n]+%(3 times%)") ~= nil, log
      end, 9, "a third failure with " .. d)
    end
  end)

  -- Its breaker is open, and no client's request goes to cold pairs that could be its probe.
  it("warms anew what has restarted", function()
    start(NIXL)
    until_warm(4)
    f.sim:fault("d1", { kind = "status", status = 503, path = "/health", times = 1000 })
    until_warm(2)
    http.request(f.workers.d1.port, { method = "DELETE", path = "/sim/fault" })
    until_warm(4)
    assert.equal(6, f:metric("baton_warmups_total"))
    assert.equal(4, #warmups("d1"))
  end)

  it("keeps to two partners of a worker at a time, and ends what hangs when the gateway ends", function()
    start({ "role=prefill,connector=NixlConnector,latency=0", "role=decode,connector=NixlConnector,count=4,itl=50" },
      { "--engine-request-limit", "2" }, {
        before = function(sim)
          sim:fault("p0", { kind = "hang", path = PATH, times = 1000 })
        end,
      })
    eventually(function()
      return #warmups("p0") >= 2, #warmups("p0")
    end, 5, "two warm-ups hang")
    assert.equal(2, #warmups("p0"))
    assert.equal(2, f:told("p0").ledger.prefill.requests)
    -- They are no clients' legs: the worker's places are free, and their end is no client's that left.
    http.request(f.workers.p0.port, { method = "DELETE", path = "/sim/fault" })
    local stream = http.start(f.port, { path = PATH, body = LONG })
    stream:wait_events(1)
    assert.equal(2, f:told("p0").ledger.prefill.requests)
    local began = f.gateway
    began:kill(proc.SIGTERM)
    eventually(function()
      local told = f:told("p0").ledger
      return told.prefill.requests == 0, json.encode(told)
    end, 5, "the warm-ups have ended")
    assert.equal(0, f:metric("baton_client_gone_total"))
    stream:close()
    assert.equal(0, began:wait(9))
    f:stop()
    f = nil
    assert.is_false(began:is_alive())
  end)
end)
