-- faults.lua - what every fault spec looks at: the ledger, whom the breakers were told of, what engines still hold,
-- and one
-- check for a whole row of the fault matrix.

local assert = require("luassert")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")

local faults = {}

-- 64 bytes: 16 tokens by the gateway's count and by the simulator's.
faults.PROMPT = "The baton is handed on at full speed, and nobody may drop it now"
faults.PROMPT_TOKENS = 16
faults.TOKENS = 8

-- ---- the gateway's own numbers ----

local function parse_labels(text)
  local labels = {}
  for name, value in text:gmatch('([%w_]+)="([^"]*)"') do
    labels[name] = value
  end
  return labels
end

-- All samples of a family: { { labels, value } ... }.
function faults.samples(f, family)
  local answer = http.request(f.admin_port, { path = "/metrics" })
  assert.equal(200, answer.status)
  local out = {}
  for line in answer.body:gmatch("[^\n]+") do
    local name, labels, value = line:match("^([%w_:]+)(%b{}) (%S+)$")
    if not name then
      name, value = line:match("^([%w_:]+) (%S+)$")
      labels = "{}"
    end
    if name == family then
      out[#out + 1] = { labels = parse_labels(labels), value = tonumber(value) }
    end
  end
  return out
end

-- Sum over the samples that have these labels.
function faults.number(f, family, labels)
  local sum = 0
  for _, s in ipairs(faults.samples(f, family)) do
    local fits = true
    for name, value in pairs(labels or {}) do
      fits = fits and s.labels[name] == value
    end
    sum = sum + (fits and s.value or 0)
  end
  return sum
end

-- What the gateway itself has put on workers, what is not 0: { ["p0 prefill"] = tokens, ... }.
function faults.ledger(f)
  local out = {}
  for _, s in ipairs(faults.samples(f, "baton_worker_ledger_tokens")) do
    if s.value ~= 0 then
      out[s.labels.worker .. " " .. s.labels.phase] = s.value
    end
  end
  for _, s in ipairs(faults.samples(f, "baton_worker_ledger_requests")) do
    if s.value < 0 then
      error("the ledger of " .. s.labels.worker .. " is below 0")
    end
  end
  return out
end

-- Legs by worker and outcome: { p0 = { ok =, guilty =, innocent =, cancelled = } }.
function faults.outcomes(f)
  local out = {}
  for _, s in ipairs(faults.samples(f, "baton_worker_legs_total")) do
    local w = out[s.labels.worker] or { ok = 0, guilty = 0, innocent = 0, cancelled = 0 }
    w[s.labels.outcome] = w[s.labels.outcome] + s.value
    out[s.labels.worker] = w
  end
  return out
end

-- Whom the breakers were told of since `before` (an outcomes()): { p0 = times }.
function faults.guilt(f, before)
  local out = {}
  for name, now in pairs(faults.outcomes(f)) do
    local times = now.guilty - (before and before[name] and before[name].guilty or 0)
    if times ~= 0 then
      out[name] = times
    end
  end
  return out
end

-- ---- engines ----

-- State of a simulated worker, also of one whose ports are closed.
function faults.state(f, name)
  for _, w in ipairs(f.sim.list) do
    local ok, answer = pcall(http.get, w.port, "/sim/state?worker=" .. name)
    if ok and answer.status == 200 then
      return json.decode(answer.body)
    end
  end
  error("no worker of the simulator can be asked", 2)
end

local function engine_rest(f, with_kv)
  for _, w in ipairs(f.sim and f.sim.list or {}) do
    local s = faults.state(f, w.name)
    if s.live > 0 or (with_kv and s.held_kv_requests > 0) or s.rooms > 0 then
      return ("%s: live %d, held KV %d, rooms %d"):format(w.name, s.live, s.held_kv_requests, s.rooms)
    end
  end
end

local function gateway_rest(f)
  local what, tokens = next(faults.ledger(f))
  if what then
    return ("ledger %s: %d"):format(what, tokens)
  end
  local gauges =
    { "baton_live_requests", "baton_live_rooms", "baton_background_calls", "baton_concurrent_requests" }
  for _, gauge in ipairs(gauges) do
    local value = faults.number(f, gauge)
    if value ~= 0 then
      return ("%s %d"):format(gauge, value)
    end
  end
end

local function wait_idle(f, with_kv)
  eventually(function()
    local rest = gateway_rest(f) or engine_rest(f, with_kv)
    return rest == nil, rest
  end, 8, "nothing is held any more")
end

-- Nothing is held any more: by engines (requests, KV, rooms) and by the gateway (ledger, requests, rooms, calls).
function faults.wait_idle(f)
  wait_idle(f, true)
end

-- The same without prefill's KV: a simulated fault of decode hides the request from its engine, which then tells
-- prefill
-- nothing, so that the lease must free it.
function faults.wait_quiet(f)
  wait_idle(f, false)
end

-- ---- requests ----

function faults.body(opts)
  opts = opts or {}
  return ('{"model":"sim","prompt":"%s","max_tokens":%d,"stream":%s}'):format(
    opts.prompt or faults.PROMPT, opts.tokens or faults.TOKENS, opts.stream and "true" or "false")
end

local numbered = 0
function faults.new_id()
  numbered = numbered + 1
  return ("fault-%d"):format(numbered)
end

-- Legs of one client request: all its attempts, by its X-Request-Id.
function faults.legs_of(f, id, path)
  return f:legs(function(e)
    local sent = e.headers["x-request-id"] or ""
    return e.path == (path or "/v1/completions") and (sent == id or sent:sub(1, #id + 2) == id .. "-a")
  end)
end

-- How often an engine was told to abort each rid: { worker .. " " .. rid = times }.
function faults.aborts(f)
  local out = {}
  for _, list in pairs(f:legs("/abort_request")) do
    for _, e in ipairs(list) do
      local key = e.worker .. " " .. tostring(json.decode(e.body).rid)
      out[key] = (out[key] or 0) + 1
    end
  end
  return out
end

-- Text of all events; the stream may have ended early.
function faults.text_of(answer, stream)
  if not stream then
    return json.decode(answer.body).choices[1].text
  end
  local text = ""
  for _, data in ipairs(answer:data()) do
    local event = data ~= "[DONE]" and json.decode(data)
    if event and event.choices and event.choices[1] then
      text = text .. (event.choices[1].text or "")
    end
  end
  return text
end

function faults.expected(tokens)
  return fleet.expect(faults.PROMPT, tokens or faults.TOKENS)
end

-- An ordinary request is served, with the right text.
function faults.assert_serves(f, stream, headers)
  local answer = f:post("/v1/completions", faults.body({ stream = stream }), headers)
  assert.equal(200, answer.status, answer.body)
  assert.equal(faults.expected(), faults.text_of(answer, stream))
  return answer
end

-- Error objects of an event stream (OpenAI's form and SGLang's).
function faults.error_events(answer)
  local out = {}
  for _, data in ipairs(answer:data()) do
    local event = data ~= "[DONE]" and json.decode(data)
    if event and event.error and event.error ~= json.null then
      out[#out + 1] = event.error
    end
  end
  return out
end

-- A stream that was begun must not look whole: an error event, or no last chunk.
function faults.assert_not_whole(answer)
  if answer.broken then
    return "broken"
  end
  assert.equal(1, #faults.error_events(answer), "neither broken nor an error event: " .. answer.body)
  return "event"
end

-- ---- a row of the matrix ----

-- What a spec of this row is called.
function faults.title(row)
  return ("%s of the %s leg%s"):format(row.fault, row.leg, row.stream and ", streamed" or "")
end

-- Adds the row twice, of this plan: streamed and not.
function faults.add_both_ways(rows, plan, row)
  for _, stream in ipairs({ false, true }) do
    local copy = { plan = plan, stream = stream }
    for key, value in pairs(row) do
      copy[key] = value
    end
    rows[#rows + 1] = copy
  end
end

local function count(map)
  local n = 0
  for _ in pairs(map) do
    n = n + 1
  end
  return n
end

local function check_abort_once(legs, aborts, partner)
  for _, e in ipairs(partner and legs[partner] or {}) do
    local rid = json.decode(e.body).rid
    assert.equal(1, aborts[e.worker .. " " .. rid], "aborts of the " .. partner .. " leg on " .. e.worker)
  end
  for key, times in pairs(aborts) do
    assert.equal(1, times, key)
  end
end

local function check_partner(f, row, legs, before)
  local partner = row.leg == "prefill" and "decode" or "prefill"
  if row.plan == "handoff" then
    if row.leg == "prefill" then
      assert.equal(0, #legs.decode, "decode is not asked when prefill has failed")
    end
    return
  end
  if row.plan == "trigger" and row.leg == "decode" then
    assert.equal(0, #legs.prefill, "prefill is not asked before decode has called for it")
    return
  end
  if row.aborts then
    check_abort_once(legs, faults.aborts(f), not row.any_partner and partner or nil)
  end
  if row.any_partner then
    return
  end
  local cancelled = 0
  for name, now in pairs(faults.outcomes(f)) do
    cancelled = cancelled + now.cancelled - before[name].cancelled
  end
  assert.equal(row.attempts, cancelled, "partner legs that were cancelled")
end

local function workers_of(list)
  local out = {}
  for _, e in ipairs(list) do
    out[e.worker] = 1
  end
  return out
end

-- row: leg, fault (the header's words), stream, plan, status, [error], [attempts], [engine (the body is the engine's
-- own)],
--      [retry_after], [guilty ("leg": its worker, once an attempt; "either": not looked at here; nil: nobody)],
--      [aborts (engine has an abort route)], [any_partner (the other leg may be over already)],
--      [may_be_stale (no answer byte on a pooled connection: one attempt more, and nobody is blamed for that one)].
function faults.check_row(f, row)
  local before = faults.outcomes(f)
  local id = faults.new_id()
  local body = faults.body({ stream = row.stream })
  local word = row.fault .. "@" .. row.leg
  f:mark()
  local answer = http.request(f.port, {
    path = "/v1/completions", body = body, headers = { ["X-Sim-Fault"] = word, ["X-Request-Id"] = id },
  })
  assert.equal(row.status, answer.status, answer.body)
  assert.equal(row.leg, answer:header("x-baton-leg"))
  if row.error then
    assert.equal(row.error, answer:header("x-baton-error"))
  end
  assert.equal(row.retry_after, answer:header("retry-after"))
  if row.engine == "event" then
    local own = http.post(f.workers[row.leg:sub(1, 1) .. "0"].port, "/v1/completions", body,
      { ["X-Sim-Fault"] = row.fault })
    assert.equal(own:data()[1], answer.body)
  elseif row.engine then
    local own = http.post(f.workers[row.leg:sub(1, 1) .. "0"].port, "/v1/completions", body,
      { ["X-Sim-Fault"] = row.fault })
    assert.equal(own.body, answer.body)
    assert.equal(own:header("content-type"), answer:header("content-type"))
  else
    assert.equal(row.status, json.decode(answer.body).error.code)
  end
  faults.wait_quiet(f)
  local legs = faults.legs_of(f, id)
  local asked, guilt = workers_of(legs[row.leg]), faults.guilt(f, before)
  check_partner(f, row, legs, before)
  if row.may_be_stale then
    assert.is_true(#legs[row.leg] >= row.attempts and #legs[row.leg] <= row.attempts + 1)
    for name, times in pairs(guilt) do
      assert.is_truthy(asked[name])
      assert.equal(1, times)
    end
    return
  end
  if row.guilty == "either" then -- blame_spec looks at those; a decode may be tried again beside another prefill
    assert.is_true(#legs[row.leg] >= row.attempts and #legs[row.leg] <= row.attempts + 1)
    return
  end
  assert.equal(row.attempts, #legs[row.leg], "attempts of the " .. row.leg .. " leg")
  assert.equal(row.attempts, count(asked), "each attempt goes to another worker")
  assert.same(row.guilty and asked or {}, guilt)
end

-- Decode's stream breaks after its first event, by rst or fin: the client is told, and only that worker is blamed.
-- wait: faults.wait_idle or wait_quiet. Returns what the client got of the text.
function faults.check_broken_stream(f, fault, wait)
  local before = faults.outcomes(f)
  local id = faults.new_id()
  f:mark()
  local answer = f:post("/v1/completions", faults.body({ stream = true }),
    { ["X-Sim-Fault"] = fault .. ":3@decode", ["X-Request-Id"] = id })
  assert.equal(200, answer.status)
  faults.assert_not_whole(answer)
  local text = faults.text_of(answer, true)
  assert.equal(faults.expected():sub(1, #text), text)
  wait(f)
  local legs = faults.legs_of(f, id)
  assert.equal(1, #legs.prefill, "never tried again after the first byte")
  assert.equal(1, #legs.decode)
  assert.same({ [legs.decode[1].worker] = 1 }, faults.guilt(f, before))
  return text
end

-- One worker is sick three times, a dozen clients at once: all are served, with as many more attempts as faults.
function faults.check_sick_worker(f, order, stream)
  local sick = order.role .. "0"
  f.sim:fault(sick, { kind = order.kind, status = order.status, times = 3 })
  local asks = {}
  for i = 1, 12 do
    asks[i] = { path = "/v1/completions", body = faults.body({ stream = stream }) }
  end
  local retried = 0
  for _ = 1, 4 do
    for _, answer in ipairs(http.together(f.port, asks)) do
      assert.equal(200, answer.status, answer.body)
      assert.equal(faults.expected(), faults.text_of(answer, stream))
      retried = retried + tonumber(answer:header("x-baton-attempts") or 1) - 1
    end
    if faults.state(f, sick).faults == 0 then
      break
    end
  end
  assert.equal(0, faults.state(f, sick).faults, "the faults have met their requests")
  assert.equal(3, retried)
  faults.wait_quiet(f)
end

return faults
