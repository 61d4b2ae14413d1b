-- A pair whose transfers keep failing, while both workers are well with others, rests: others serve, no breaker opens,
-- and it comes back by one request that tries it.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"a baton","max_tokens":2}'
local FOR_EVER = 4294967295

-- The pair that the headers name, else the first two.
local POLICY = [[
local function named(rows, name)
  for _, w in ipairs(rows) do
    if w.name == name then
      return w
    end
  end
  return rows[1]
end
return {
  api = 2,
  name = "by_header",
  version = "1",
  plan = function(req, view)
    return { prefill = named(view.prefill, req.headers["x-p"]), decode = named(view.decode, req.headers["x-d"]) }
  end,
}
]]

local BROKEN = [[
return {
  api = 2,
  name = "broken",
  version = "1",
  plan = function(req, view)
    if req.model == "sim" then
      error("broken")
    end
    return { prefill = view.prefill[1], decode = view.decode[1] }
  end,
}
]]

local SHAPES = {
  nixl = {
    workers = {
      "role=prefill,connector=NixlConnector,count=2,latency=0",
      "role=decode,connector=NixlConnector,count=2,latency=0",
    },
    family = "--vllm-pd-disaggregation",
    -- What d1 says to legs that come from p0.
    fault = function()
      return { kind = "status", status = 500, path = PATH, times = FOR_EVER, with = '"p0"' }
    end,
  },
  sglang = {
    workers = { "role=prefill,engine=sglang,count=2,latency=0", "role=decode,engine=sglang,count=2,latency=0" },
    family = "--pd-disaggregation",
    fault = function(f)
      return { kind = "kv_lost", path = PATH, times = FOR_EVER, with = tostring(f.workers.p0.second) }
    end,
  },
}

describe("a pair whose transfers keep failing", function()
  local f

  local function start(shape, flags, policy)
    local words = { shape.family, "--load-interval-secs", "0" }
    if policy then
      words[#words + 1] = "--policy"
      words[#words + 1] = proc.write("by_header.lua", policy)
    end
    proc.append(words, flags)
    f = fleet.start({ workers = shape.workers, flags = words })
  end

  local function ask(p, d)
    return f:post(PATH, BODY, { ["x-p"] = p, ["x-d"] = d })
  end

  local function clear()
    http.request(f.workers.d1.port, { method = "DELETE", path = "/sim/fault" })
  end

  local function pair()
    for _, p in ipairs(json.decode(http.get(f.admin_port, "/workers/p0").body).pairs) do
      if p.with == "d1" then
        return p
      end
    end
  end

  local function nobody_is_blamed()
    for _, w in ipairs(f.sim.list) do
      local told = f:told(w.name)
      assert.equal("closed", told.breaker.state, w.name)
      assert.equal(0, told.legs.prefill.guilty + told.legs.decode.guilty, w.name)
    end
  end

  -- Pairs that got a leg of decode's since the mark, as "p0 d1".
  local function pairs_served()
    local seen, prefill = {}, {}
    local legs = f:legs(PATH)
    for _, leg in ipairs(legs.prefill) do
      prefill[leg.headers["x-request-id"]] = leg.worker
    end
    for _, leg in ipairs(legs.decode) do
      seen[(prefill[leg.headers["x-request-id"]] or "?") .. " " .. leg.worker] = true
    end
    return seen
  end

  after_each(function()
    if f then
      local ended = f
      f = nil
      ended:stop()
    end
  end)

  for name, shape in pairs(SHAPES) do
    it("rests, and is left out where a policy names it: " .. name, function()
      start(shape, { "--breaker-open-secs", "60" }, POLICY)
      f.sim:fault("d1", shape.fault(f))
      for _ = 1, 3 do
        assert.equal(200, ask("p0", "d1").status) -- by another pair
      end
      eventually(function()
        return f:metric("baton_pairs_resting") == 1
      end, 5, "it rests")
      assert.equal(1, f:metric("baton_pair_rests_total"))
      assert.is_true(pair().rests_ms > 0)
      nobody_is_blamed()
      f:mark()
      local answer = ask("p0", "d1")
      assert.equal(200, answer.status)
      assert.same({ ["p0 d0"] = true }, pairs_served())
      local id = answer:header("x-request-id")
      local told = json.decode(http.get(f.admin_port, "/explain/" .. id).body)
      assert.same({ prefill = "p0", decode = "d1" }, told.rests)
      assert.same({ "p0", "d0" }, { told.plan.prefill, told.plan.decode })
      assert.equal(1, #told.attempts)
      local story = http.get(f.admin_port, "/explain/" .. id .. "?format=text").body
      assert.matches("not the pair p0, d1, which rests", story)
      f:mark()
      assert.equal(200, ask("p1", "d1").status) -- each of the two serves with others
      assert.same({ ["p1 d1"] = true }, pairs_served())
      assert.matches("pair p0, d1 rests for 60000 ms", f.gateway:stderr())
      nobody_is_blamed()
    end)
  end

  for who, policy in pairs({ ["least_load"] = false, ["the default choice"] = BROKEN }) do
    it("is passed over by " .. who, function()
      start(SHAPES.nixl, { "--breaker-open-secs", "60", "--policy-on-error", "default" }, policy)
      f.sim:fault("d1", SHAPES.nixl.fault())
      eventually(function()
        assert.equal(200, ask().status)
        return f:metric("baton_pair_rests_total") == 1
      end, 10, "it rests")
      f:mark()
      local asks = {}
      for i = 1, 8 do
        asks[i] = { path = PATH, body = BODY }
      end
      for _ = 1, 4 do
        for _, answer in ipairs(http.together(f.port, asks)) do
          assert.equal(200, answer.status)
        end
      end
      local served = pairs_served()
      assert.is_nil(served["p0 d1"])
      assert.is_true(served["p0 d0"] and served["p1 d1"], json.encode(served))
      nobody_is_blamed()
    end)
  end

  it("serves again when one request has found that it works", function()
    start(SHAPES.nixl, { "--breaker-open-secs", "1" })
    f.sim:fault("d1", SHAPES.nixl.fault())
    eventually(function()
      for _ = 1, 4 do
        assert.equal(200, ask().status)
      end
      return f:metric("baton_pair_rests_total") >= 1
    end, 10, "it rests")
    nobody_is_blamed()
    clear()
    eventually(function()
      f:mark()
      for _ = 1, 8 do
        assert.equal(200, ask().status)
      end
      return pairs_served()["p0 d1"]
    end, 10, "it serves again")
    eventually(function()
      return f.gateway:stderr():find("pair p0, d1 works again", 1, true)
    end, 5, "and is said to")
    assert.equal(0, f:metric("baton_pairs_resting"))
    nobody_is_blamed()
  end)

  it("is tried once a rest, and rests longer each time", function()
    start(SHAPES.nixl, { "--breaker-open-secs", "0.3", "--breaker-open-max-secs", "60" }, POLICY)
    f.sim:fault("d1", SHAPES.nixl.fault())
    eventually(function()
      assert.equal(200, ask("p0", "d1").status)
      return f:metric("baton_pair_rests_total") >= 3
    end, 20, "it has rested three times")
    assert.matches("rests for 300 ms.*rests for 600 ms.*rests for 1200 ms", f.gateway:stderr())
    local failed = 0
    for _, leg in ipairs(f:requests("d1")) do
      failed = failed + (leg.path == PATH and 1 or 0)
    end
    assert.equal(5, failed) -- three before the first rest, one after each of two
    nobody_is_blamed()
  end)

  it("serves where it is the only one", function()
    start({
      workers = { "role=prefill,connector=NixlConnector,latency=0", "role=decode,connector=NixlConnector,latency=0" },
      family = "--vllm-pd-disaggregation",
    }, { "--breaker-open-secs", "60", "--disable-retries" })
    f.sim:fault("d0", { kind = "status", status = 500, path = PATH, times = 3 })
    for _ = 1, 3 do
      assert.equal(500, ask().status)
    end
    assert.equal(1, f:metric("baton_pairs_resting"))
    assert.equal(200, ask().status)
    assert.equal(0, f:metric("baton_pairs_resting"), "and that it works is heard")
  end)

  it("does not rest without breakers", function()
    start(SHAPES.nixl, { "--disable-circuit-breaker" }, POLICY)
    f.sim:fault("d1", SHAPES.nixl.fault())
    for _ = 1, 5 do
      assert.equal(200, ask("p0", "d1").status)
    end
    assert.equal(0, f:metric("baton_pair_rests_total"))
  end)

  it("is tried by a warm-up, not by a client, where pairs are warmed", function()
    start(SHAPES.nixl, { "--warm-pairs", "--breaker-open-secs", "0.5" }, POLICY)
    eventually(function()
      return f:metric('baton_pool_pairs{pool="default",warm="true"}') == 4
    end, 10, "all are warm")
    f.sim:fault("d1", SHAPES.nixl.fault())
    for _ = 1, 3 do
      assert.equal(200, ask("p0", "d1").status)
    end
    assert.is_false(pair().warm)
    eventually(function()
      return f:metric("baton_warmups_failed_total") >= 1
    end, 10, "a warm-up tries it")
    clear()
    eventually(function()
      return pair().warm and pair().rests_ms == 0, json.encode(pair())
    end, 20, "another finds it well")
    nobody_is_blamed()
  end)
end)
