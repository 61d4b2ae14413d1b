-- A ladder of ways to be served (a hand-off, then both at once, then a decode worker alone), each for the workers of
-- the request's tenant only: whatever goes wrong where, no leg is ever seen at another tenant's worker.
--
-- BATON_LADDER_REQUESTS and BATON_LADDER_SEED say how many and which (1,000).

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")

local COUNT = tonumber(os.getenv("BATON_LADDER_REQUESTS") or 1000)
local SEED = tonumber(os.getenv("BATON_LADDER_SEED") or os.time())
local AT_ONCE = 16
local PATH = "/v1/completions"

-- What a user would write: twenty lines.
local LADDER = [[
local function own(list, req)
  return baton.where(list, "zone", req.tenant)
end
local function pair(req, view, kind)
  local prefill = baton.argmin(baton.pairable(own(view.prefill, req), own(view.decode, req)), "prefill_tokens")
  local decode = prefill and baton.argmin(baton.compatible(own(view.decode, req), prefill), "decode_tokens")
  return decode and { kind = kind, prefill = prefill, decode = decode }
end
local function alone(req, view)
  local worker = baton.argmin(own(view.single, req), "decode_tokens")
  return worker and { kind = "single", worker = worker }
end
return { api = 2, name = "ladder", version = "1", plan = function(req, view, ctx)
  if ctx.failure and ctx.failure.keep then
    return pair(req, view)
  end
  return (ctx.attempt == 1 and pair(req, view, "handoff")) or (ctx.attempt == 2 and pair(req, view, "bootstrap"))
    or alone(req, view) or nil
end }
]]

local KINDS = {
  { kind = "status", status = 500 }, { kind = "status", status = 503 }, { kind = "status", status = 429 },
  { kind = "error_body" }, { kind = "rst", after_chunks = 0 }, { kind = "fin", after_chunks = 0 }, { kind = "hang" },
}

local function workers_of(w)
  local out = {}
  for i = 0, 3 do
    local zone = i < 2 and "a" or "b"
    out[#out + 1] = ('{ url = "%s", role = "prefill", zone = "%s", engine_id = "p%d", bootstrap_port = %d },'):format(
      w["p" .. i].url, zone, i, w["p" .. i].second)
    out[#out + 1] = ('{ url = "%s", role = "decode", zone = "%s" },'):format(w["d" .. i].url, zone)
  end
  return table.concat(out, "\n")
end

describe("a ladder of constraints", function()
  it("holds under faults of every kind", function()
    math.randomseed(SEED)
    local policy = proc.write("ladder.lua", LADDER)
    local f = fleet.start({
      workers = { "role=prefill,connector=NixlPushConnector,count=4,ttft=1",
        "role=decode,connector=NixlPushConnector,count=4,ttft=1,itl=1" },
      config = function(w)
        return "return { connector = \"NixlPushConnector\", pools = { { workers = {\n" .. workers_of(w) .. "} } } }"
      end,
      sim = { "--time-scale", "0.05" },
      flags = { "--policy", policy, "--disable-circuit-breaker", "--max-attempts", "5", "--prefill-timeout-secs", "1",
        "--answer-timeout-secs", "1" },
    })
    local live, seen, begun = {}, {}, 0
    local started_at = clock.now()
    while begun < COUNT or #live > 0 do
      while #live < AT_ONCE and begun < COUNT do
        begun = begun + 1
        local tenant = math.random(2) == 1 and "a" or "b"
        local fault = { times = 1, path = PATH }
        for key, value in pairs(KINDS[math.random(#KINDS)]) do
          fault[key] = value
        end
        f.sim:fault((math.random(2) == 1 and "p" or "d") .. math.random(0, 3), fault)
        live[#live + 1] = http.start(f.port, { method = "POST", path = PATH, headers = { ["X-Tenant-Id"] = tenant },
          body = ('{"model":"sim","prompt":"%s %d","max_tokens":2}'):format(tenant, begun) })
      end
      for i = #live, 1, -1 do
        live[i]:pump()
        if live[i].answer.done or live[i].answer.broken then
          local status = live[i].answer.status or "none"
          seen[status] = (seen[status] or 0) + 1
          live[i]:close()
          table.remove(live, i)
        end
      end
      assert.is_true(clock.now() - started_at < 300 * clock.slowness(), "a request hangs")
    end
    local legs, strays = 0, {}
    for _, kind in ipairs({ "p", "d" }) do
      for i = 0, 3 do
        for _, e in ipairs((f.sim:requests(kind .. i))) do
          local tenant = e.path == PATH and e.body:match('"prompt":"([ab]) ')
          legs = legs + (tenant and 1 or 0)
          if tenant and tenant ~= (i < 2 and "a" or "b") then
            strays[#strays + 1] = kind .. i .. ": " .. e.body
          end
        end
      end
    end
    print(("\n%d requests, seed %d, %d legs, 200: %d"):format(COUNT, SEED, legs, seen[200] or 0))
    assert.same({}, strays)
    assert.is_nil(seen.none)
    assert.is_true(legs > COUNT and (seen[200] or 0) > COUNT / 2)
    eventually(function()
      return next(faults.ledger(f)) == nil
    end, 10, "nothing is held")
    f:stop()
    proc.clean()
  end)
end)
