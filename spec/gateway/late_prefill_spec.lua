-- A trigger whose plan leaves prefill open: plan_prefill is asked when decode's engine calls, and sees the fleet as it
-- is then.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local rig = require("gateway.support.rig")

local CONNECTOR = "MooncakeLayerwiseConnector"
local PATH = "/v1/completions"
local WHOLE = '{"id":"x","object":"text_completion","choices":[{"index":0,"text":"fine","finish_reason":"length"}],'
  .. '"usage":{"prompt_tokens":16,"completion_tokens":8}}'

local LATE = [[
return {
  api = 2,
  name = "late",
  version = "1",
  plan = function(req, view)
    if #view.decode == 0 then
      return nil -- and no prefill serves alone
    end
    return { decode = baton.argmin(view.decode, "decode_tokens", "id") }
  end,
  plan_prefill = function(req, view, decode, ctx)
    local wish = req.headers["x-wish"]
    if wish == "nobody" then
      return nil
    end
    if wish == "error" then
      error("no prefill today")
    end
    local list = baton.compatible(view.prefill, decode)
    return { prefill = wish == "last" and list[#list] or baton.argmin(list, "prefill_tokens", "id") }
  end,
}
]]

local function policy_flags(more)
  local flags = { "--policy", proc.write("late.lua", LATE), "--metaserver-port", "0" }
  proc.append(flags, more)
  return flags
end

describe("a plan that leaves prefill open", function()
  local r

  local function start(ask)
    ask.connector, ask.flags = CONNECTOR, policy_flags(ask.flags)
    r = rig.start(ask)
  end

  -- As decode's engine: asks the URL that its leg was told.
  local function call(leg)
    local url = json.decode(json.raw(leg.body, "kv_transfer_params")).metaserver
    local port, path = url:match("^http://[^/:]+:(%d+)(/.*)$")
    return http.start(tonumber(port), { path = path, body = json.encode({
      request_id = "cmpl-" .. leg.headers["x-request-id"] .. "-0", do_remote_decode = true, do_remote_prefill = false,
      remote_engine_id = "e", remote_host = "127.0.0.1", remote_port = 5600, remote_block_ids = { { 1 } },
    }) })
  end

  local function explain(answer, form)
    return http.get(r.admin_port, "/explain/" .. answer:header("x-request-id") .. (form or "")).body
  end

  after_each(function()
    if r then
      local ended = r
      r = nil
      faults.wait_idle(ended)
      ended:stop()
    end
  end)

  teardown(proc.clean)

  it("takes whom it finds at the call, and puts nothing on a prefill worker before", function()
    start({ prefills = 2, decodes = 1 })
    local c = r:ask(PATH, faults.body())
    local d = r.d[1]:take(PATH)
    assert.same({ ["d0 decode"] = faults.PROMPT_TOKENS }, faults.ledger(r))
    assert.equal(200, http.post(r.admin_port, "/workers/p0/drain", "").status)
    local called = call(d)
    r.p[2]:take(PATH):answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(called).status)
    d:answer(200, {}, WHOLE)
    local answer = r:answer_of(c)
    assert.equal(200, answer.status)
    assert.equal("p1", answer:header("x-baton-prefill"))
    assert.equal("late@1", answer:header("x-baton-policy"))
    assert.equal(0, #r.p[1].seen)
    local record = json.decode(explain(answer))
    assert.same({ kind = "trigger", decode = "d0" }, record.plan)
    assert.equal("p1", record.attempts[1].prefill)
    local story = explain(answer, "?format=text")
    assert.truthy(story:find("chosen: trigger d0, prefill open", 1, true), story)
    assert.equal(0, faults.number(r, "baton_policy_errors_total") + faults.number(r, "baton_policy_invalid_total"))
  end)

  -- The decode that calls has begun: it stays, whatever has become of it.
  local function serves(c, d)
    local called = call(d)
    r.p[1]:take(PATH):answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(called).status)
    d:answer(200, {}, WHOLE)
    local answer = r:answer_of(c)
    assert.equal(200, answer.status, answer.body)
    assert.equal("late@1", answer:header("x-baton-policy"))
  end

  it("chooses beside the only decode, which its own request has filled", function()
    start({ prefills = 1, decodes = 1, flags = { "--engine-request-limit", "1" } })
    for _ = 1, 2 do
      local c = r:ask(PATH, faults.body())
      serves(c, r.d[1]:take(PATH))
      faults.wait_idle(r)
    end
  end)

  it("chooses beside the only decode, which is drained before its call", function()
    start({ prefills = 1, decodes = 1 })
    local c = r:ask(PATH, faults.body())
    local d = r.d[1]:take(PATH)
    assert.equal(200, http.post(r.admin_port, "/workers/d0/drain", "").status)
    serves(c, d)
  end)

  it("chooses beside the only decode, which this request proves", function()
    start({ prefills = 1, decodes = 1,
      flags = { "--disable-retries", "--breaker-failures", "1", "--breaker-open-secs", "0.2" } })
    local function state()
      return faults.number(r, "baton_worker_breaker_state", { worker = "d0" })
    end
    local c = r:ask(PATH, faults.body())
    r.d[1]:take(PATH):rst()
    assert.equal(502, r:answer_of(c).status)
    local seen = #r.d[1].seen
    r:until_so(function() -- candidates are looked at once a second
      if c.answer.done or c.answer.broken then
        c = r:ask(PATH, faults.body())
      end
      c:pump()
      return #r.d[1].seen > seen, c.answer.status
    end, "the probe is let in")
    assert.equal(2, state())
    serves(c, r.d[1]:take(PATH))
    assert.equal(0, state())
  end)

  it("ends the request when nobody shall prefill, and blames nobody", function()
    start({ prefills = 1, decodes = 1 })
    local c = r:ask(PATH, faults.body(), { ["x-wish"] = "nobody" })
    local d = r.d[1]:take(PATH)
    local called = r:answer_of(call(d))
    assert.equal(502, called.status)
    local answer = r:answer_of(c)
    assert.equal(503, answer.status)
    assert.truthy(answer.body:find("the policy chose no prefill worker", 1, true), answer.body)
    assert.equal(0, #r.p[1].seen)
    assert.same({}, faults.guilt(r))
  end)

  it("leaves it to the least load when plan_prefill fails, and says so", function()
    start({ prefills = 1, decodes = 1 })
    local c = r:ask(PATH, faults.body(), { ["x-wish"] = "error" })
    local d = r.d[1]:take(PATH)
    local called = call(d)
    r.p[1]:take(PATH):answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(called).status)
    d:answer(200, {}, WHOLE)
    local answer = r:answer_of(c)
    assert.equal(200, answer.status)
    assert.equal("default", answer:header("x-baton-policy"))
    assert.equal(1, faults.number(r, "baton_policy_errors_total"))
    r.gateway:says("no prefill today")
  end)

  it("asks again, for another, when the chosen one refuses the connection", function()
    start({ prefills = 2, decodes = 1 })
    r.p[2]:refuse()
    local c = r:ask(PATH, faults.body(), { ["x-wish"] = "last" })
    local d = r.d[1]:take(PATH)
    local called = call(d)
    r.p[1]:take(PATH):answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(called).status)
    d:answer(200, {}, WHOLE)
    local answer = r:answer_of(c)
    assert.equal(200, answer.status)
    assert.equal("p0", answer:header("x-baton-prefill"))
    assert.equal("2", answer:header("x-baton-attempts"))
    assert.same({ p1 = 1 }, faults.guilt(r))
    assert.equal(1, #r.d[1].seen, "decode waits meanwhile")
  end)
end)

describe("such plans with engines", function()
  local f

  after_each(function()
    f:stop()
    proc.clean()
  end)

  it("serve streams, lists and samples, and are replayed to the same", function()
    local records = proc.path("records.jsonl")
    local tail = ",count=2,itl=1,ttft=1,connector=" .. CONNECTOR
    f = fleet.start({ workers = { "role=prefill" .. tail, "role=decode" .. tail },
      flags = policy_flags({ "--connector", CONNECTOR, "--record-file", records, "--record-sample", "1" }) })
    for i = 1, 20 do
      local stream = i % 2 == 0
      local answer = f:post(PATH, faults.body({ stream = stream }))
      assert.equal(200, answer.status, answer.body)
      assert.equal(faults.expected(), faults.text_of(answer, stream))
      assert.equal("late@1", answer:header("x-baton-policy"))
    end
    for _, body in ipairs({ '{"model":"sim","prompt":["one","two"],"max_tokens":2}',
      '{"model":"sim","prompt":"one","max_tokens":2,"n":2,"temperature":1}' }) do
      local answer = f:post(PATH, body)
      assert.equal(200, answer.status, answer.body)
      assert.equal(2, #json.decode(answer.body).choices)
    end
    faults.wait_idle(f)
    assert.equal(0, faults.number(f, "baton_policy_errors_total") + faults.number(f, "baton_policy_invalid_total"))
    eventually(function()
      local file = assert(io.open(records))
      local _, lines = file:read("*a"):gsub("\n", "")
      file:close()
      return lines == 22, lines
    end, 10, "all requests are recorded")
    local baton = fleet.binary("BATON_BIN", "baton")
    local code, out, err = proc.run({ baton, "replay", "--policy", proc.write("late.lua", LATE), "--fail-on-difference",
      records })
    assert.equal(0, code, out .. err)
    assert.truthy(out:find("22", 1, true), out)
    code, out = proc.run({ baton, "replay", "--policy", "least_load", "--fail-on-difference", records })
    assert.not_equal(0, code)
    assert.truthy(out:find("open / d", 1, true), out)
  end)
end)
