-- Prefill's lease on its KV is a clock that the gateway keeps: decode is sent 5 s before it ends, or never. A decode
-- that comes
-- late may answer 200 with a wrong text, so nothing behind the gateway can notice.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local puppet = require("gateway.support.puppet")
local rig = require("gateway.support.rig")

local PATH = "/v1/completions"
local MARGIN_MS = 5000
-- Seconds in which decode may be sent: more than the second after which a kernel repeats a lost SYN.
local WINDOW = 2 * clock.slowness()
local LEASE = { "--lease-ms", tostring(MARGIN_MS + 1000 * WINDOW), "--disable-circuit-breaker" }
local WHOLE = '{"id":"x","choices":[{"index":0,"text":"fine","finish_reason":"length"}],"usage":{"prompt_tokens":16}}'

local REPLY = '{"id":"p","choices":[],"usage":{"prompt_tokens":16},"kv_transfer_params":{"do_remote_prefill":true,'
  .. '"remote_block_ids":[[1]],"remote_engine_id":"%s","remote_request_id":"cmpl-%s-0-aa",'
  .. '"remote_host":"127.0.0.1","remote_port":1}}'

local function reply(leg, engine)
  return REPLY:format(engine, leg.headers["x-request-id"])
end

local function engine_of(leg)
  return json.decode(leg.body).kv_transfer_params.remote_engine_id
end

-- The head and half of the body; the rest once decode would be too late.
local function answer_too_late(r, leg, engine)
  local body = reply(leg, engine)
  leg:answer_part(200, body:sub(1, 40), #body)
  local begun = clock.now()
  r:until_so(function()
    return clock.now() > begun + WINDOW + 0.2
  end, "the time in which decode may be sent passes")
  leg:send(body:sub(41))
end

-- The next leg that decode is asked to serve. Release legs carry the old parameters and a model that nobody has;
-- they are
-- refused, as an engine does.
local function take_real(list)
  while true do
    local d = puppet.take_any(list, PATH)
    if json.decode(d.body).model == "sim" then
      return d
    end
    assert.equal("old", engine_of(d))
    d:answer(404, {}, "{}")
  end
end

-- Release legs that are still on their way.
local function refuse_rest(r)
  r:until_so(function()
    for _, d in ipairs(r.d) do
      local late = d:poll(PATH)
      if late then
        assert.not_equal("sim", json.decode(late.body).model)
        late:answer(404, {}, "{}")
      end
    end
    return faults.number(r, "baton_background_calls") == 0
  end, "no background call is left")
end

describe("prefill's lease", function()
  local r

  after_each(function()
    if r then
      local ended = r
      r = nil
      faults.wait_idle(ended)
      ended:stop()
    end
  end)

  it("is counted from prefill's first byte; too late for decode means prefill again, with new parameters", function()
    r = rig.start({ connector = "NixlConnector", prefills = 1, decodes = 1, flags = LEASE })
    local c = r:ask(PATH, faults.body())
    answer_too_late(r, r.p[1]:take(PATH), "old")
    local again = r.p[1]:take(PATH)
    again:answer(200, {}, reply(again, "new"))
    local d = take_real(r.d)
    assert.equal("new", engine_of(d))
    d:answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    refuse_rest(r)
    assert.equal(1, faults.number(r, "baton_lease_expired_total"))
    assert.same({}, faults.guilt(r))
  end)

  it("is told as 503 when every attempt is too late, and decode is never asked", function()
    r = rig.start({ connector = "NixlConnector", prefills = 1, decodes = 1, flags = { LEASE[1], LEASE[2],
      "--max-attempts", "2" } })
    local c = r:ask(PATH, faults.body())
    answer_too_late(r, r.p[1]:take(PATH), "old")
    answer_too_late(r, r.p[1]:take(PATH), "old")
    local answer = r:answer_of(c)
    assert.equal(503, answer.status)
    assert.equal("lease", answer:header("x-baton-error"))
    assert.equal("prefill", answer:header("x-baton-leg"))
    -- while the lease itself runs, decode may still be told to let prefill free its blocks
    refuse_rest(r)
  end)

  it("also ends the second use of a finished prefill", function()
    r = rig.start({ connector = "NixlConnector", prefills = 1, decodes = 2,
      flags = { LEASE[1], LEASE[2], LEASE[3], "--connect-timeout-ms", tostring(1000 * (WINDOW + 0.3)) } })
    local free = { r.d[1]:fill_backlog(), r.d[2]:fill_backlog() }
    local c = r:ask(PATH, faults.body())
    local p = r.p[1]:take(PATH)
    p:answer(200, {}, reply(p, "old"))
    local again = r.p[1]:take(PATH)
    free[1]()
    free[2]()
    again:answer(200, {}, reply(again, "new"))
    local d = take_real(r.d)
    assert.equal("new", engine_of(d))
    d:answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    refuse_rest(r)
  end)

  it("does not bind connectors whose decode needs no parameters", function()
    r = rig.start({ connector = "ExampleConnector", prefills = 1, decodes = 1, flags = LEASE })
    local c = r:ask(PATH, faults.body())
    answer_too_late(r, r.p[1]:take(PATH), "any")
    r.d[1]:take(PATH):answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    assert.equal(1, #r.p[1].seen)
  end)
end)

describe("KV that an engine holds for a hand-off", function()
  it("is freed by the read, by a refusal, by a release and, at the last, by the engine's lease", function()
    local f = fleet.start({ workers = { "role=prefill,itl=1", "role=decode,itl=1" },
      flags = { "--vllm-pd-disaggregation" },
      sim = { "--time-scale", "0.05" } })
    faults.assert_serves(f)
    assert.equal(0, faults.state(f, "p0").held_kv_requests)
    assert.equal(1, faults.state(f, "p0").kv_read)
    -- decode refuses the request itself: its engine tells prefill
    local body = faults.body({ tokens = 10 }):gsub('"max_tokens":10', '"max_tokens":10,"min_tokens":11')
    assert.equal(400, f:post(PATH, body).status)
    faults.wait_idle(f)
    assert.equal(1, faults.state(f, "p0").kv_freed_unread)
    -- a silent decode: only the lease is left
    local c = http.start(f.port, { path = PATH, body = faults.body(), headers = { ["X-Sim-Fault"] = "hang@decode" } })
    eventually(function()
      return faults.state(f, "d0").live == 1
    end)
    assert.equal(1, faults.state(f, "p0").held_kv_requests)
    c:close()
    faults.wait_idle(f)
    assert.equal(1, faults.state(f, "p0").kv_expired)
    f:stop()
  end)
end)

teardown(function()
  proc.clean()
end)
