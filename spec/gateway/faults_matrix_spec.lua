-- Every dialect x leg x fault x streamed or not, each in the phase where it strikes, and the same of encoders before a
-- pair (E->P->D): whatever breaks, the client has an end in time (its own text, whole, or an error that names the leg),
-- no engine keeps anything, the ledger is empty, and only a worker of the leg that broke is blamed, and only for what
-- a worker can be blamed for. Faults that end by a deadline strike at once, all of a leg's. `make faults` prints the
-- table: status, who was blamed (of those at once: by any), milliseconds until the client's end, and how far behind a
-- deadline the latest came. What is tried again, and engines' own words: faults_*_spec.

local clock = require("gateway.support.clock")
local dialects = require("gateway.support.dialects")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

-- Longer than a machine stands still now and then: a fault that needs no deadline must meet none.
local SECONDS = clock.slowness() > 1 and 4 or 2
-- Behind its deadline a client waits at most so long, beside what such a request takes: 50 ms with `make faults`, on a
-- machine of its own; elsewhere less than one more deadline.
local MARGIN = (tonumber(os.getenv("BATON_FAULTS_MARGIN_MS")) or SECONDS * 1000) / 1000

-- status: what the client may get before its first byte (a set); nobody: it is no worker's fault; begun: decode's
-- stream has begun when it strikes; may_serve: the right text is an end too; waits: a deadline ends it.
local function status_of(number, more)
  local fault = { phase = "answer", word = "status:" .. number, status = { [number] = true } }
  for key, value in pairs(more or {}) do
    fault[key] = value
  end
  return fault
end

local KINDS = {
  { phase = "connect", word = "refuse:150", status = { [502] = true, [503] = true } },
  { phase = "head", word = "hang", waits = true, status = { [504] = true } },
  { phase = "head", word = "rst:0", status = { [502] = true } },
  { phase = "head", word = "fin:0", status = { [502] = true } },
  { phase = "head", word = "slow_first_byte:150", may_serve = true, nobody = true },
  { phase = "body", word = "hang_after_headers", waits = true, status = { [504] = true } },
  -- may_serve: decode may have all that it needs
  { phase = "body", word = "stall:0", waits = true, status = { [504] = true }, may_serve = true },
  { phase = "body", word = "no_params", may_serve = true, leg = "prefill", nobody = true },
  status_of(400, { nobody = true }), status_of(401, { nobody = true }), status_of(403, { nobody = true }),
  status_of(404, { nobody = true }), status_of(408, { nobody = true }), status_of(409, { nobody = true }),
  status_of(413, { nobody = true }), status_of(422, { nobody = true }), status_of(429, { nobody = true }),
  status_of(500), status_of(501), status_of(502), status_of(503, { nobody = true }), status_of(504),
  { phase = "answer", word = "error_body", status = { [500] = true } },
  { phase = "answer", word = "sse_error", status = { [500] = true }, leg = "decode", stream = true },
  { phase = "stream", word = "rst:3", begun = true, leg = "decode", stream = true },
  { phase = "stream", word = "fin:3", begun = true, leg = "decode", stream = true },
  { phase = "stream", word = "stall:3", waits = true, begun = true, leg = "decode", stream = true },
  { phase = "engine", word = "die", status = { [502] = true, [503] = true, [500] = true, [504] = true }, kills = true },
}

local COMPLETIONS = {
  path = "/v1/completions",
  body = function(stream)
    return faults.body({ stream = stream })
  end,
  text = faults.text_of,
  expected = faults.expected,
}

local IMAGE = '{"type":"image_url","image_url":{"url":"http://media/1"}}'
local CHAT = {
  path = "/v1/chat/completions",
  body = function(stream)
    return ('{"model":"sim","messages":[{"role":"user","content":[{"type":"text","text":"look"},%s]}],'
      .. '"max_tokens":%d,"stream":%s}'):format(IMAGE, faults.TOKENS, tostring(stream))
  end,
  text = function(answer, stream)
    if not stream then
      return json.decode(answer.body).choices[1].message.content
    end
    local text = ""
    for _, data in ipairs(answer:data()) do
      local event = data ~= "[DONE]" and json.decode(data)
      local content = event and event.choices and event.choices[1] and event.choices[1].delta.content
      text = text .. (type(content) == "string" and content or "")
    end
    return text
  end,
  expected = function()
    return fleet.expect("look" .. IMAGE, faults.TOKENS, { chat = true })
  end,
}

-- dialect, with vLLM's encoders before it.
local function behind_encoders(dialect)
  local row = { name = "encoder, " .. dialect.name, ask = CHAT, legs = { "encode", "prefill", "decode" } }
  for key, value in pairs(dialect) do
    row[key] = row[key] or value
  end
  return row
end

local plans = {}
for _, dialect in ipairs(dialects) do
  plans[#plans + 1] = dialect
  if dialect.name == "nixl" then
    plans[#plans + 1] = behind_encoders(dialect)
  end
end

local printed = {}
local latest = { beyond = -math.huge }

local function names(set)
  local out = {}
  for name in pairs(set) do
    out[#out + 1] = name
  end
  table.sort(out)
  return #out > 0 and table.concat(out, "+") or "nobody"
end

local function print_table()
  print(("\n%-18s %-8s %-8s %-20s %-28s %s"):format("dialect", "leg", "phase", "fault", "JSON", "stream"))
  for _, row in ipairs(printed) do
    print(("%-18s %-8s %-8s %-20s %-28s %s"):format(row.dialect, row.leg, row.kind.phase, row.kind.word,
      row[false] or "-", row[true] or "-"))
  end
  print(("the latest: %.0f ms behind its deadline (%s)"):format(latest.beyond * 1000, latest.row))
end

local function check_end(row, stream, answer)
  local kind = row.kind
  if kind.begun then
    assert.equal(200, answer.status)
    faults.assert_not_whole(answer)
    local text = row.ask.text(answer, true)
    assert.equal(row.ask.expected():sub(1, #text), text)
  elseif answer.status == 200 then
    local is_pushed = row.pushes and row.leg == "prefill" and kind.word:find(":0", 1, true)
    assert.is_true(kind.may_serve or is_pushed or false, "nobody noticed: " .. answer.body)
    assert.equal(row.ask.expected(), row.ask.text(answer, stream))
  else
    local status = kind.word == "no_params" and row.without_params or kind.status
    assert.is_true(status ~= nil and status[answer.status] or false, answer.status .. " " .. answer.body)
    assert.is_not_nil(answer:header("x-baton-leg"))
  end
end

local function check_blame(row, blamed)
  local is_guilty = row.kind.word == "no_params" and row.guilty_without_params
  for name in pairs(blamed) do
    assert.is_false(not is_guilty and row.kind.nobody or false, name .. " is blamed")
    assert.equal(row.leg:sub(1, 1), name:sub(1, 1), name .. " is blamed for the " .. row.leg .. " leg")
  end
end

-- usual: seconds of such a request without a fault. What an engine's death takes is the engine's affair.
local function check_wait(row, answer, waited, usual)
  local kind = row.kind
  local waits = kind.waits or (kind.word == "no_params" and answer.status == 504)
  if kind.kills or (answer.status == 200 and not kind.begun) then
    return
  end
  local beyond = waited - usual - (waits and SECONDS or 0)
  if beyond > latest.beyond then
    latest = { beyond = beyond, row = ("%s: %s of the %s leg"):format(row.dialect, kind.word, row.leg) }
  end
  assert.is_true(beyond <= MARGIN, ("it waited %.0f ms"):format(waited * 1000))
end

-- A dead engine lives again, whoever refused connections takes them, and both are given legs again.
local function heal(f, row)
  if row.kind.kills then
    f.sim:reset(row.leg:sub(1, 1) .. "0")
  end
  eventually(function()
    local answer, legs = f:exchange(row.ask.path, row.ask.body(false))
    return answer.status == 200 and #legs.prefill > 0 and #legs.decode > 0, answer.body
  end, 10, "the pair serves again")
end

-- check_end, with the row's name before what it finds.
local function check_end_of(row, stream, answer)
  local ok, why = pcall(check_end, row, stream, answer)
  if not ok then
    error(("%s%s: %s"):format(row.kind.word, stream and ", streamed" or "",
      tostring(type(why) == "table" and why.message or why)), 0)
  end
end

-- asks: { row, stream } of one leg, at once.
local function check(f, asks, usual)
  local before = faults.outcomes(f)
  local requests = {}
  for i, ask in ipairs(asks) do
    local row, stream = ask.row, ask.stream
    row[stream] = "FAIL"
    requests[i] = { path = row.ask.path, body = row.ask.body(stream),
      headers = { ["X-Sim-Fault"] = row.kind.word .. "@" .. row.leg } }
  end
  local answers = http.together(f.port, requests, SECONDS + 10)
  for i, ask in ipairs(asks) do
    check_end_of(ask.row, ask.stream, answers[i])
  end
  if asks[1].row.leg == "encode" then
    faults.wait_idle(f) -- before prefill, or whole
  else
    faults.wait_quiet(f)
  end
  local blamed = faults.guilt(f, before)
  for i, ask in ipairs(asks) do
    local row, answer = ask.row, answers[i]
    check_blame(row, blamed)
    local waited = (answer.ended_at or clock.now()) - answer.asked_at
    check_wait(row, answer, waited, usual[ask.stream])
    row[ask.stream] = ("%d %s %.0f ms"):format(answer.status, names(blamed), waited * 1000)
  end
  local kind = asks[1].row.kind
  if kind.kills or kind.phase == "connect" then
    heal(f, asks[1].row)
  end
end

local function rows_of(dialect)
  local rows = {}
  for _, leg in ipairs(dialect.legs or { "prefill", "decode" }) do
    for _, kind in ipairs(KINDS) do
      if not kind.leg or kind.leg == leg or (kind.word == "no_params" and leg == "encode") then
        rows[#rows + 1] = { dialect = dialect.name, pushes = dialect.pushes, leg = leg, kind = kind,
          ask = dialect.ask or COMPLETIONS,
          without_params = dialect.without_params, guilty_without_params = dialect.guilty_without_params }
      end
    end
  end
  return rows
end

-- What is asked at once: { name =, { row, stream } ... }. Faults of a leg that end by a deadline wait for it together.
local function turns_of(rows)
  local turns, waiting = {}, {}
  for _, row in ipairs(rows) do
    for _, stream in ipairs(row.kind.stream and { true } or { false, true }) do
      local waits = row.kind.waits
      local turn = waits and waiting[row.leg]
      if not turn then
        local name = waits and "all that waits" or row.kind.phase .. ": " .. row.kind.word
        local how = not waits and stream and ", streamed" or ""
        turn = { name = ("%s of the %s leg%s"):format(name, row.leg, how) }
        turns[#turns + 1] = turn
        waiting[row.leg] = waits and turn or waiting[row.leg]
      end
      turn[#turn + 1] = { row = row, stream = stream }
    end
  end
  return turns
end

-- Seconds of a request without a fault; the second one of each kind, whose connections are there.
local function measure(f, ask)
  local usual = {}
  for _, stream in ipairs({ false, true }) do
    for _ = 1, 2 do
      local from = clock.now()
      assert.equal(200, f:post(ask.path, ask.body(stream)).status)
      usual[stream] = clock.now() - from
    end
  end
  return usual
end

for _, dialect in ipairs(plans) do
  describe("faults of " .. dialect.name, function()
    local f, usual

    setup(function()
      local s = tostring(SECONDS)
      local flags = { "--disable-circuit-breaker", "--disable-retries", "--prefill-timeout-secs", s,
        "--first-event-timeout-secs", s, "--answer-timeout-secs", s, "--stall-timeout-secs", s }
      for i, flag in ipairs(dialect.flags) do
        table.insert(flags, i, flag)
      end
      f = fleet.start({ workers = { "role=prefill," .. dialect.worker, "role=decode," .. dialect.worker,
        dialect.legs and "role=encode,ttft=1" or nil }, sim = { "--time-scale", "0.05" }, flags = flags,
        registers = dialect.registers })
      usual = measure(f, dialect.ask or COMPLETIONS)
    end)

    teardown(function()
      f:stop()
      proc.clean()
    end)

    local rows = rows_of(dialect)
    proc.append(printed, rows)
    for _, turn in ipairs(turns_of(rows)) do
      it(turn.name, function()
        check(f, turn, usual)
      end)
    end

    it("holds nothing afterwards, and serves", function()
      faults.wait_idle(f)
      faults.assert_serves(f, true)
      faults.wait_idle(f)
    end)
  end)
end

describe("the table", function()
  it("is printed", print_table)
end)
