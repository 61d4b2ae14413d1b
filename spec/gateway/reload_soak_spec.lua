-- 1,000 reloads, good and broken alternating, while 500 streams are open and short requests go on:
-- nobody fails, nothing breaks.
-- Smaller by BATON_SOAK_RELOADS and BATON_SOAK_STREAMS.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")

local RELOADS = tonumber(os.getenv("BATON_SOAK_RELOADS") or 1000)
local STREAMS = tonumber(os.getenv("BATON_SOAK_STREAMS") or 500)
local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":1}'
local ENDLESS = '{"model":"sim","prompt":"hello there","max_tokens":100000,"stream":true}'

local f, folder

local function policy(version)
  return ([[
return {
  api = 1, name = "mine", version = "%s",
  plan = function(req, view, ctx)
    return { worker = view.single[1].id }
  end,
}
]]):format(version)
end

local BROKEN = { "return {", "return { api = 1, name = 'mine', version = '0' }", "error('no')",
  (policy("0"):gsub("view.single", "view.singel")) }

local function replace(text)
  local path = folder .. "/mine.lua"
  local file = assert(io.open(path .. ".tmp", "w"))
  file:write(text)
  file:close()
  assert(os.rename(path .. ".tmp", path))
end

-- Milliseconds of one request over a kept connection; its policy.
local function short_request(c, out)
  local began = clock.now()
  c:ask({ path = PATH, body = BODY })
  c:wait()
  assert.equal(200, c.answer.status, c.answer.body)
  out[#out + 1] = (clock.now() - began) * 1000
  return c.answer:header("x-baton-policy")
end

local function by_admin(text, is_good)
  local answer = http.request(f.admin_port, { method = "PUT", path = "/policies/mine", body = text, seconds = 30 })
  assert.equal(is_good and 200 or 400, answer.status, answer.body)
end

-- The file counts again once nothing is put; a broken one is only known by what does not happen.
local function by_file(text, wanted, c, out)
  http.request(f.admin_port, { method = "DELETE", path = "/policies/mine" })
  local before = f:metric('baton_policy_reloads_total{result="refused"}')
  replace(text)
  eventually(function()
    local seen = short_request(c, out)
    return seen == wanted or (not wanted and f:metric('baton_policy_reloads_total{result="refused"}') > before), seen
  end, 10, "the file was read")
end

local function percentile(list, p)
  table.sort(list)
  return list[math.max(1, math.ceil(#list * p))]
end

-- Its text is forgotten, or it would be all that this process does.
local function look(c)
  c:pump()
  assert.is_nil(c.answer.broken)
  assert.is_nil(c.answer.done)
  c.answer.pieces, c.answer.body = {}, ""
end

describe("1,000 reloads under 500 open streams", function()
  setup(function()
    folder = proc.path("policies")
    assert(os.execute("mkdir " .. folder) == 0)
    replace(policy("first"))
    local worker = "role=hybrid,ttft=1,itl=500"
    f = fleet.start({ workers = { worker .. ",name=w0", worker .. ",name=w1" },
      flags = { "--policy-dir", folder, "--policy", "mine", "--no-access-log" } })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  it("fail no request and break no stream", function()
    local streams, calm, busy, versions = {}, {}, {}, {}
    for i = 1, STREAMS do
      streams[i] = http.start(f.port, { path = PATH, body = ENDLESS })
    end
    for _, c in ipairs(streams) do
      c:wait_head(60)
    end
    local short = http.connect(f.port)
    for _ = 1, 100 do
      short_request(short, calm)
    end
    local began = clock.now()
    for i = 1, RELOADS do
      local is_good = i % 2 == 0
      local text = is_good and policy(tostring(i)) or BROKEN[i % #BROKEN + 1]
      if i % 10 < 2 then
        by_file(text, is_good and "mine@" .. i, short, busy)
      else
        by_admin(text, is_good)
      end
      versions[short_request(short, busy)] = true
      look(streams[i % STREAMS + 1])
    end
    local seconds = clock.now() - began
    assert.is_nil(versions["mine@0"])
    for _, c in ipairs(streams) do
      assert.equal(200, c.answer.status)
      c:wait(function(answer)
        return #answer.pieces > 0
      end)
      c:close()
    end
    short:close()
    assert.equal(0, f:metric("baton_policy_errors_total"))
    assert.equal(0, f:metric("baton_policy_rollbacks_total"))
    assert.is_true(f:metric('baton_policy_reloads_total{result="ok"}') >= RELOADS / 2)
    print(("\n%d reloads in %.1f s; a short request: p50 %.2f p99 %.2f ms before, p50 %.2f p99 %.2f ms meanwhile; "
      .. "last swap %.3f ms, longest stall of a loop %.3f ms"):format(RELOADS, seconds, percentile(calm, 0.5),
      percentile(calm, 0.99), percentile(busy, 0.5), percentile(busy, 0.99),
      f:metric("baton_policy_swap_seconds") * 1000,
      f:metric("baton_policy_stall_seconds_max") * 1000))
  end)
end)
