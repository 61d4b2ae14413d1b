-- Reloads, good and broken alternating, while streams are open that outlast them and short requests come at 70 % of
-- what the gateway can answer: nobody fails, nothing breaks. What it costs is printed, never judged.
--
-- BATON_SOAK=1 (`make soak`): 1,000 reloads under 500 streams. Else a smaller shape. BATON_SOAK_RELOADS,
-- BATON_SOAK_STREAMS and BATON_SOAK_PACE_MS (from one reload to the next) say it one by one.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local pace = require("gateway.support.pace")
local proc = require("gateway.support.proc")

local IS_WHOLE = (os.getenv("BATON_SOAK") or "") ~= ""
local RELOADS = tonumber(os.getenv("BATON_SOAK_RELOADS") or (IS_WHOLE and 1000 or 100))
local STREAMS = tonumber(os.getenv("BATON_SOAK_STREAMS") or (IS_WHOLE and 500 or 100))
local PACE_SECONDS = tonumber(os.getenv("BATON_SOAK_PACE_MS") or 50) / 1000
local CALIBRATION_SECONDS, CALM_SECONDS = 3, IS_WHOLE and 15 or 3
local SHARE = 0.7
local CONNECTIONS = 128
local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":1}'
local ENDLESS = '{"model":"sim","prompt":"hello there","max_tokens":100000,"stream":true}'

local f, folder
local streams = {}

local function policy(version)
  return ([[
return {
  api = 2, name = "mine", version = "%s",
  plan = function(req, view, ctx)
    return { worker = view.hybrid[1].id }
  end,
}
]]):format(version)
end

local BROKEN = { "return {", "return { api = 2, name = 'mine', version = '0' }", "error('no')",
  (policy("0"):gsub("view.hybrid", "view.singel")) }

local function replace(text)
  proc.replace(folder .. "/mine.lua", text)
end

-- The policy that decided about one request over a kept connection.
local function decided_by(c)
  c:ask({ path = PATH, body = BODY })
  c:wait()
  assert.equal(200, c.answer.status, c.answer.body)
  return c.answer:header("x-baton-policy")
end

local function by_admin(text, is_good)
  local answer = http.request(f.admin_port, { method = "PUT", path = "/policies/mine", body = text, seconds = 30 })
  assert.equal(is_good and 200 or 400, answer.status, answer.body)
end

-- The file counts again once nothing is put; a broken one is only known by what does not happen.
local function by_file(text, wanted, c)
  http.request(f.admin_port, { method = "DELETE", path = "/policies/mine" })
  local before = f:metric('baton_policy_reloads_total{result="refused"}')
  replace(text)
  eventually(function()
    local seen = decided_by(c)
    return seen == wanted or (not wanted and f:metric('baton_policy_reloads_total{result="refused"}') > before), seen
  end, 10, "the file was read")
end

-- Its text is forgotten, or it would be all that this process does.
local function look(c)
  c:pump()
  assert.is_nil(c.answer.broken)
  assert.is_nil(c.answer.done)
  c.answer.pieces, c.answer.body = {}, ""
end

local function wait_for_turn(at)
  for i = 1, math.huge do
    local left = at - clock.now()
    if left <= 0 then
      return
    end
    look(streams[i % #streams + 1])
    clock.nap(math.min(left, 0.01))
  end
end

local function percentile(list, p)
  table.sort(list)
  return list[math.max(1, math.ceil(#list * p))]
end

-- ---- reloads ----

local function reload(i, short)
  local is_good = i % 2 == 0
  local text = is_good and policy(tostring(i)) or BROKEN[(i - 1) / 2 % #BROKEN + 1]
  if i % 10 < 2 then
    by_file(text, is_good and "mine@" .. i or nil, short)
  else
    by_admin(text, is_good)
  end
  local seen = decided_by(short)
  assert.not_equal("mine@0", seen)
  if is_good then
    assert.equal("mine@" .. i, seen)
  end
end

-- Swap times in milliseconds, and how long it all took.
local function reload_all()
  local short, swaps = http.connect(f.port), {}
  local began = clock.now()
  for i = 1, RELOADS do
    wait_for_turn(began + i * PACE_SECONDS)
    reload(i, short)
    if i % 2 == 0 then
      swaps[#swaps + 1] = f:metric("baton_policy_commit_seconds") * 1000
    end
  end
  short:close()
  return swaps, clock.now() - began
end

describe("reloads under load", function()
  setup(function()
    folder = proc.path("policies")
    assert(os.execute("mkdir " .. folder) == 0)
    replace(policy("first"))
    local worker = "role=hybrid,ttft=0,itl=500" -- any time to the first token counts in steps of 8 ms
    f = fleet.start({
      workers = { worker .. ",name=w0", worker .. ",name=w1" },
      flags = { "--policy-dir", folder, "--policy", "mine", "--no-access-log" },
    })
  end)

  teardown(function()
    for _, c in ipairs(streams) do -- or a failure would wait for them
      c:close()
    end
    f:stop()
    proc.clean()
  end)

  it("fail no request and break no stream", function()
    for i = 1, STREAMS do
      streams[i] = http.start(f.port, { path = PATH, body = ENDLESS })
    end
    for _, c in ipairs(streams) do
      c:wait_head(60)
    end
    local most = pace.run(f.port, CONNECTIONS, 0, CALIBRATION_SECONDS)
    local calm = pace.run(f.port, CONNECTIONS, SHARE * most.rate, CALM_SECONDS)
    local load = pace.start(f.port, CONNECTIONS, SHARE * most.rate, 0)
    local swaps, seconds = reload_all()
    local busy = pace.stop(load)
    local after = pace.run(f.port, CONNECTIONS, SHARE * most.rate, CALM_SECONDS)
    for _, c in ipairs(streams) do
      look(c)
    end
    for _, c in ipairs(streams) do -- they go on
      c:wait(function(answer)
        return #answer.pieces > 0
      end)
      assert.equal(200, c.answer.status)
    end
    assert.equal(0, f:metric("baton_policy_errors_total"))
    assert.equal(0, f:metric("baton_policy_rollbacks_total"))
    assert.is_true(f:metric('baton_policy_reloads_total{result="ok"}') >= RELOADS / 2)
    assert.is_true(f:metric('baton_policy_reloads_total{result="refused"}') >= RELOADS / 2)
    print(("\n%d reloads in %.1f s under %d streams and short requests at %.0f %% of %.0f/s:"):format(
      RELOADS, seconds, STREAMS, SHARE * 100, most.rate))
    pace.say("at most", most)
    pace.say("calm", calm)
    pace.say("reloading", busy)
    pace.say("calm again", after)
    print(("  swap p50 %.3f ms, p99 %.3f ms, max %.3f ms"):format(
      percentile(swaps, 0.5), percentile(swaps, 0.99), swaps[#swaps]))
    print(("  longest stall of a loop %.3f ms by the clock, %.3f ms of its CPU time"):format(
      f:metric("baton_policy_stall_seconds_max") * 1000, f:metric("baton_policy_stall_cpu_seconds_max") * 1000))
  end)
end)
