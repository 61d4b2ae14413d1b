-- A plan that leaves decode open: plan_decode is asked when prefill has the prompt, and sees the fleet as it is then.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local rig = require("gateway.support.rig")

local PATH = "/v1/completions"
local WHOLE = '{"id":"x","object":"text_completion","choices":[{"index":0,"text":"fine","finish_reason":"length"}],'
  .. '"usage":{"prompt_tokens":16,"completion_tokens":8}}'

-- The first decode worker that is there; headers say what else may become of it.
local LATE = [[
return {
  api = 2,
  name = "late",
  version = "1",
  plan = function(req, view)
    local decode = req.headers["x-pair"] and view.decode[1]
    return { prefill = view.prefill[1], decode = decode or nil, kind = req.headers["x-kind"] }
  end,
  plan_decode = function(req, view, prefill, ctx)
    local wish = req.headers["x-wish"]
    if wish == "nobody" then
      return nil
    end
    if wish == "error" then
      error("no decode today")
    end
    if wish == "prefill" then
      return { prefill = view.prefill[2], decode = view.decode[1] }
    end
    if wish == "second" and ctx.attempt ~= 2 then
      return { decode = view.decode[1] }
    end
    return { decode = baton.argmin(baton.compatible(view.decode, prefill), "id") }
  end,
  observe = function(events)
    for _, e in ipairs(events) do
      baton.log("info", ("%s prefill %s decode %s"):format(e.kind, tostring(e.prefill), tostring(e.decode)))
    end
  end,
}
]]

local function reply(leg)
  return ('{"id":"p","choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":16},"kv_transfer_params":'
    .. '{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_engine_id":"e",'
    .. '"remote_request_id":"cmpl-%s-0-bd83aa8a","remote_host":"127.0.0.1","remote_port":41}}'):format(
    leg.headers["x-request-id"])
end

describe("a plan that leaves decode open", function()
  local r

  local function start(ask)
    ask.connector = ask.connector or "NixlConnector"
    ask.flags = ask.flags or {}
    table.insert(ask.flags, "--policy")
    table.insert(ask.flags, proc.write("late.lua", LATE))
    r = rig.start(ask)
  end

  local function explain(answer, form)
    return http.get(r.admin_port, "/explain/" .. answer:header("x-request-id") .. (form or "")).body
  end

  local function prefilled(headers)
    local c = r:ask(PATH, faults.body(), headers)
    local p = r.p[1]:take(PATH)
    p:answer(200, {}, reply(p))
    return c
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

  it("takes who is there when prefill has finished, not who was there before", function()
    start({ prefills = 1, decodes = 2 })
    local c = r:ask(PATH, faults.body())
    local p = r.p[1]:take(PATH)
    assert.same({ ["p0 prefill"] = faults.PROMPT_TOKENS }, faults.ledger(r), "nothing is put on a decode worker yet")
    assert.equal(200, http.post(r.admin_port, "/workers/d0/drain", "").status)
    p:answer(200, {}, reply(p))
    r.d[2]:take(PATH):answer(200, {}, WHOLE)
    local answer = r:answer_of(c)
    assert.equal(200, answer.status)
    assert.equal("d1", answer:header("x-baton-decode"))
    assert.equal("late@1", answer:header("x-baton-policy"))
    assert.equal(0, #r.d[1].seen)
    local record = json.decode(explain(answer))
    assert.same({ kind = "handoff", prefill = "p0" }, record.plan)
    assert.equal("d1", record.attempts[1].decode)
    assert.truthy(explain(answer, "?format=text"):find("chosen: handoff p0, decode open", 1, true))
    assert.equal(0, faults.number(r, "baton_policy_errors_total") + faults.number(r, "baton_policy_invalid_total"))
  end)

  it("takes a decode beside the only prefill, which is drained while it computes", function()
    start({ prefills = 1, decodes = 1 })
    local c = r:ask(PATH, faults.body())
    local p = r.p[1]:take(PATH)
    assert.equal(200, http.post(r.admin_port, "/workers/p0/drain", "").status)
    p:answer(200, {}, reply(p))
    r.d[1]:take(PATH):answer(200, {}, WHOLE)
    local answer = r:answer_of(c)
    assert.equal(200, answer.status, answer.body)
    assert.equal("late@1", answer:header("x-baton-policy"))
  end)

  it("releases the KV of the only prefill too, which was drained meanwhile", function()
    start({ prefills = 1, decodes = 1 })
    local c = r:ask(PATH, faults.body(), { ["x-wish"] = "nobody" })
    local p = r.p[1]:take(PATH)
    assert.equal(200, http.post(r.admin_port, "/workers/p0/drain", "").status)
    p:answer(200, {}, reply(p))
    local release = r.d[1]:take(PATH)
    assert.equal('"baton-release-no-such-model"', json.raw(release.body, "model"))
    release:answer(404, {}, "{}")
    assert.equal(503, r:answer_of(c).status)
    assert.equal(1, faults.number(r, "baton_releases_total"))
  end)

  it("releases prefill's KV and answers 503 when nobody shall decode it", function()
    start({ prefills = 1, decodes = 1 })
    local c = prefilled({ ["x-wish"] = "nobody" })
    local release = r.d[1]:take(PATH)
    assert.equal('"baton-release-no-such-model"', json.raw(release.body, "model"))
    release:answer(404, {}, "{}")
    local answer = r:answer_of(c)
    assert.equal(503, answer.status)
    assert.truthy(answer.body:find("the policy chose no decode worker", 1, true), answer.body)
    assert.equal(1, faults.number(r, "baton_releases_total"))
    assert.same({}, faults.guilt(r))
    assert.equal(1, #r.p[1].seen, "nobody computes the prompt again")
    eventually(function()
      local told = r.gateway:stderr()
      return told:match("failed prefill %d+ decode nil"), told
    end, 10, "the policy hears which prefill has worked")
  end)

  it("leaves it to the least load when plan_decode fails, and says so", function()
    local wishes = { error = "no decode today", prefill = "prefill = worker p1, but worker p0 has the prompt" }
    for wish, text in pairs(wishes) do
      start({ prefills = 2, decodes = 1 })
      local c = prefilled({ ["x-wish"] = wish })
      r.d[1]:take(PATH):answer(200, {}, WHOLE)
      local answer = r:answer_of(c)
      assert.equal(200, answer.status)
      assert.equal("default", answer:header("x-baton-policy"))
      assert.equal(1, faults.number(r, "baton_policy_errors_total"))
      r.gateway:says(text)
      r:stop()
      r = nil
    end
  end)

  it("ends the request instead under --policy-on-error end", function()
    start({ prefills = 1, decodes = 1, flags = { "--policy-on-error", "end" } })
    local c = prefilled({ ["x-wish"] = "error" })
    r.d[1]:take(PATH):answer(404, {}, "{}") -- the release
    local answer = r:answer_of(c)
    assert.equal(503, answer.status)
    assert.truthy(answer.body:find("the policy failed", 1, true), answer.body)
  end)

  it("is asked once more, for another, when the first refused the connection", function()
    start({ prefills = 1, decodes = 2 })
    r.d[1]:refuse()
    local c = prefilled({ ["x-wish"] = "second" })
    r.d[2]:take(PATH):answer(200, {}, WHOLE)
    local answer = r:answer_of(c)
    assert.equal(200, answer.status)
    assert.equal("d1", answer:header("x-baton-decode"))
    assert.equal("2", answer:header("x-baton-attempts"))
    assert.equal(1, #r.p[1].seen, "prefill's work stays good")
    assert.same({ d0 = 1 }, faults.guilt(r))
    assert.equal(0, faults.number(r, "baton_policy_errors_total"))
  end)

  it("is asked for each prompt of a list", function()
    start({ prefills = 1, decodes = 1 })
    local c = r:ask(PATH, '{"model":"sim","prompt":["one","two"],"max_tokens":2}')
    local first, second = r.p[1]:take(PATH), r.p[1]:take(PATH)
    second:answer(200, {}, reply(second))
    first:answer(200, {}, reply(first))
    r.d[1]:take(PATH):answer(200, {}, WHOLE)
    r.d[1]:take(PATH):answer(200, {}, WHOLE)
    local answer = r:answer_of(c)
    assert.equal(200, answer.status, answer.body)
    assert.equal(2, #json.decode(answer.body).choices)
    assert.equal(0, faults.number(r, "baton_policy_errors_total"))
  end)

  it("gives all back when the client leaves before prefill has finished", function()
    start({ prefills = 1, decodes = 1 })
    local c = r:ask(PATH, faults.body())
    local p = r.p[1]:take(PATH)
    c:close()
    r:until_so(function()
      return p:is_gone()
    end, "prefill's leg is closed")
    faults.wait_idle(r)
    assert.equal(0, #r.d[1].seen)
    assert.same({}, faults.guilt(r))
  end)

  it("ends with the prefill, and leaves no decode worker blamed", function()
    start({ prefills = 1, decodes = 1, flags = { "--disable-retries" } })
    local c = r:ask(PATH, faults.body())
    r.p[1]:take(PATH):rst()
    local answer = r:answer_of(c)
    assert.equal(502, answer.status)
    assert.equal("prefill", answer:header("x-baton-leg"))
    assert.same({ p0 = 1 }, faults.guilt(r))
    assert.equal(0, #r.d[1].seen)
  end)

  it("takes another prefill when the first had no place for it", function()
    start({ prefills = 2, decodes = 1 })
    local c = r:ask(PATH, faults.body())
    r.p[1]:take(PATH):answer(503, {}, "{}")
    local p = r.p[2]:take(PATH)
    p:answer(200, {}, reply(p))
    r.d[1]:take(PATH):answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
  end)

  it("keeps what was learned of a prefill whose prompt nobody decodes", function()
    start({ connector = "NixlPushConnector", prefills = 1, decodes = 1 })
    local c = prefilled({ ["x-kind"] = "handoff", ["x-wish"] = "nobody" })
    assert.equal(503, r:answer_of(c).status)
    c = r:ask(PATH, faults.body(), { ["x-kind"] = "bootstrap", ["x-pair"] = "1" })
    local d = r.d[1]:take(PATH) -- at once, before prefill has answered
    r.p[1]:take(PATH):answer(200, {}, WHOLE)
    d:answer(200, {}, WHOLE)
    assert.equal(200, r:answer_of(c).status)
    assert.equal(0, faults.number(r, "baton_policy_invalid_total"))
  end)

  it("is no plan where decode must be known before", function()
    start({ connector = "NixlPushConnector", prefills = 1, decodes = 1 })
    local c = r:ask(PATH, faults.body(), { ["x-kind"] = "bootstrap" })
    local p = r.p[1]:take(PATH)
    p:answer(200, {}, reply(p))
    r.d[1]:take(PATH):answer(200, {}, WHOLE)
    local answer = r:answer_of(c)
    assert.equal(200, answer.status)
    assert.equal("default", answer:header("x-baton-policy"))
    assert.equal(1, faults.number(r, "baton_policy_invalid_total"))
    assert.truthy(explain(answer):find("left decode open", 1, true))
  end)
end)
