-- Decision records: GET /admin/explain/<id>, and the file of sampled ones.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local MARKER = "xyzzy-marker-of-the-prompt"

-- Which worker serves is chosen by headers; what it thinks of the others is noted by hand and by a native function.
local CHOOSE = [[
local function named(rows, name)
  for _, w in ipairs(rows) do
    if w.name == name then
      return w.id
    end
  end
end
return {
  api = 2,
  name = "by_header",
  version = "7",
  plan = function(req, view)
    for i, w in ipairs(view.prefill) do
      baton.note_score(w, i + 0.5)
    end
    baton.argmin(#view.decode > 0 and view.decode or view.hybrid, "requests")
    if req.headers["x-wrong"] then
      return { prefill = 4711, decode = 4712 }
    end
    local p = named(view.prefill, req.headers["x-p"] or "p0") or view.prefill[1]
    local d = named(view.decode, req.headers["x-d"] or "d0") or view.decode[1]
    if p and d then
      return { prefill = p, decode = d }
    end
    return { kind = "single", worker = view.hybrid[1].id }
  end,
}
]]

local f

local function start(workers, flags)
  local words = { "--policy", proc.write("by_header.lua", CHOOSE) }
  proc.append(words, flags)
  f = fleet.start({ workers = workers, flags = words, sim = { "--time-scale", "0.05" } })
end

local function start_pairs(engine, flags)
  local tail = (",engine=%s,count=2,itl=1,ttft=1"):format(engine)
  local words = { engine == "sglang" and "--pd-disaggregation" or "--vllm-pd-disaggregation" }
  proc.append(words, flags)
  start({ "role=prefill" .. tail, "role=decode" .. tail }, words)
end

local function ask(id, headers, opts)
  local all = { ["X-Request-Id"] = id }
  for name, value in pairs(headers or {}) do
    all[name] = value
  end
  return f:post(PATH, faults.body(opts), all)
end

-- The request may end a moment after its client has the last byte.
local function explain(id, query)
  local answer = eventually(function()
    local a = http.get(f.admin_port, "/admin/explain/" .. id .. (query or ""))
    return a.status == 200 and a, a.body
  end, 5, "a record of " .. id)
  return query and answer.body or json.decode(answer.body), answer
end

local function assert_members(names, object)
  for name in names:gmatch("%S+") do
    assert.is_not_nil(object[name], name)
  end
end

local function assert_in_order(times)
  for i = 2, #times do
    assert.is_true(times[i - 1] <= times[i], ("%g before %g"):format(times[i - 1], times[i]))
  end
end

local function row_of(record, role, name)
  for _, row in ipairs(record.candidates[role].rows) do
    if row.name == name then
      return row
    end
  end
end

local function lines_of(path)
  local lines = {}
  for line in (proc.read(path) or ""):gmatch("([^\n]*)\n") do
    lines[#lines + 1] = line
  end
  return lines
end

local function records_of(path)
  local records = {}
  for i, line in ipairs(lines_of(path)) do
    records[i] = json.decode(line)
  end
  return records
end

describe("GET /admin/explain", function()
  after_each(function()
    f:stop()
  end)

  it("tells all of a hand-off", function()
    start_pairs("vllm", { "--record-sample", "1" })
    local answer = ask("hand-1", { ["X-P"] = "p1", ["X-D"] = "d1", ["X-Tenant-Id"] = "acme", ["X-Session-Id"] = "s-1" },
      { stream = true })
    assert.equal(200, answer.status, answer.body)
    local r = explain("hand-1")
    assert_members("v id at route path model stream n prompt_tokens prompt_bytes session tenant pool policy "
      .. "policy_version generation decided_by candidates plan attempts phases_ms status bytes_in bytes_out events", r)
    assert.same({ 1, "hand-1", "completions", PATH, "sim", true, 1, faults.PROMPT_TOKENS },
      { r.v, r.id, r.route, r.path, r.model, r.stream, r.n, r.prompt_tokens })
    assert.truthy(r.at:match("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$"))
    assert.same({ "s-1", "acme", "default", "by_header", "7", "policy" },
      { r.session, r.tenant, r.pool, r.policy, r.policy_version, r.decided_by })
    assert.same({ kind = "handoff", prefill = "p1", decode = "d1" }, r.plan)
    assert.equal(1, #r.attempts)
    local a = r.attempts[1]
    assert.same({ 1, "handoff", "p1", "d1" }, { a.n, a.kind, a.prefill, a.decode })
    assert.is_nil(a.failure)
    assert_in_order({ a.start_ms, a.prefill_ms, a.first_byte_ms, a.end_ms })
    assert_members("plan prefill kv_wait first_byte last_byte", r.phases_ms)
    assert_in_order({ r.phases_ms.prefill, r.phases_ms.first_byte, r.phases_ms.last_byte })
    assert.same({ 200, #answer.body }, { r.status, r.bytes_out })
    assert.is_true(r.events >= faults.TOKENS)
    assert.equal(#faults.body({ stream = true }), r.bytes_in)
    assert.is_nil(r.error)
  end)

  it("tells the candidates of a sampled request as its policy saw them", function()
    start_pairs("vllm", { "--record-sample", "1" })
    ask("cand-1")
    local r = explain("cand-1")
    assert.same({ 2, 2, 0, 4 }, { r.candidates.prefill.total, r.candidates.decode.total, r.candidates.hybrid.total,
      r.candidates.single.total }) -- vLLM's workers serve alone too
    local p1, d0 = row_of(r, "prefill", "p1"), row_of(r, "decode", "d0")
    assert_members("id name role dialect prefill_tokens decode_tokens requests score", p1)
    assert.same({ "prefill", "nixl", 0, 2.5 }, { p1.role, p1.dialect, p1.requests, p1.score })
    assert.same({ "decode", 0, 0 }, { d0.role, d0.requests, d0.score })
  end)

  it("knows the session of the body, where no header names one", function()
    start_pairs("vllm")
    local body = '{"model":"sim","prompt":"hello there","max_tokens":2,"session_id":"from-body"}'
    f:post(PATH, body, { ["X-Request-Id"] = "body-1" })
    f:post(PATH, body, { ["X-Request-Id"] = "head-1", ["X-Session-Id"] = "from-head" })
    assert.equal("from-body", explain("body-1").session)
    assert.equal("from-head", explain("head-1").session)
  end)

  it("tells both attempts of a request that was tried again, and whom it blames", function()
    start_pairs("vllm")
    f.sim:fault("d0", { kind = "rst", times = 1 })
    local answer = ask("twice-1")
    assert.equal(200, answer.status, answer.body)
    local r = explain("twice-1")
    assert.equal(2, #r.attempts)
    local first, second = r.attempts[1], r.attempts[2]
    assert.same({ 1, "d0", "reset", "decode", 0, { "d0" } },
      { first.n, first.decode, first.failure, first.leg, first.status, first.guilty })
    assert.same({ 2, "d1" }, { second.n, second.decode })
    assert.is_nil(second.failure)
    assert.is_true(first.end_ms <= second.start_ms)
    assert.equal("d0", r.plan.decode) -- the first one
    assert.equal(200, r.status)
    assert.is_nil(r.candidates) -- not sampled
    local story = explain("twice-1", "?format=text")
    assert.truthy(story:find("failed at decode: reset; blamed: d0", 1, true), story)
    assert.truthy(story:find("attempt 2: handoff", 1, true), story)
    assert.truthy(story:find("not sampled (--record-sample)", 1, true), story)
  end)

  it("tells of a bootstrap pair", function()
    start_pairs("sglang")
    local answer = ask("boot-1")
    assert.equal(200, answer.status, answer.body)
    local r = explain("boot-1")
    assert.same({ kind = "bootstrap", prefill = "p0", decode = "d0" }, r.plan)
    assert.same({ "bootstrap", "p0", "d0" },
      { r.attempts[1].kind, r.attempts[1].prefill, r.attempts[1].decode })
    assert_members("start_ms first_byte_ms end_ms", r.attempts[1])
    assert.is_false(r.stream)
  end)

  it("tells of a single worker, in words too", function()
    start({ "role=hybrid,itl=1,ttft=1,name=w0" }, { "--record-sample", "1" })
    ask("one-1")
    local r = explain("one-1")
    assert.same({ kind = "single", worker = "w0" }, r.plan)
    assert.same({ "single", "w0" }, { r.attempts[1].kind, r.attempts[1].worker })
    assert.equal("hybrid", row_of(r, "hybrid", "w0").role)
    local story, answer = explain("one-1", "?format=text")
    assert.equal("text/plain; charset=utf-8", answer:header("content-type"))
    for _, part in ipairs({ "request one-1\n", "decided by policy by_header 7", "chosen: single w0\n", "* w0",
      "hybrid candidates: 1 usable, 1 kept", "attempt 1: single w0; started at " }) do
      assert.truthy(story:find(part, 1, true), part .. " is not in\n" .. story)
    end
  end)

  it("tells the attempts of all children of a request that was split", function()
    start_pairs("vllm", { "--record-sample", "1" })
    local body = '{"model":"sim","prompt":"a b c d","max_tokens":2,"n":3}'
    local answer = f:post(PATH, body, { ["X-Request-Id"] = "split-1" })
    assert.equal(200, answer.status, answer.body)
    local r, children = explain("split-1"), {}
    assert.equal(3, r.n)
    for _, a in ipairs(r.attempts) do
      children[a.child] = a.decode
    end
    assert.same({ [0] = "d0", "d0", "d0" }, children)
    assert.equal(2.5, row_of(r, "prefill", "p1").score) -- of the first plan
    assert.is_nil(r.phases_ms.prefill)
  end)

  it("tells of a client that left", function()
    start_pairs("vllm")
    local c = http.start(f.port, { path = PATH, body = faults.body(),
      headers = { ["X-Request-Id"] = "left-1", ["X-Sim-Fault"] = "hang@decode" } })
    eventually(function()
      return faults.state(f, "d0").live == 1
    end, 5, "decode has it")
    c:close()
    local r = explain("left-1")
    assert.same({ 0, "client_gone" }, { r.status, r.error })
    assert.equal("d0", r.attempts[1].decode)
    assert.is_nil(r.attempts[1].first_byte_ms)
    local story = explain("left-1", "?format=text")
    assert.truthy(story:find("the client left before it had an answer (client_gone)", 1, true), story)
  end)

  it("says why the default choice was taken", function()
    start_pairs("vllm")
    assert.equal(200, ask("wrong-1", { ["X-Wrong"] = "1" }).status)
    local r = explain("wrong-1")
    assert.equal("default", r.decided_by)
    assert.equal("by_header", r.policy)
    assert.is_string(r.why)
    assert.equal("handoff", r.plan.kind)
  end)

  it("keeps the newest of an id, and knows errors", function()
    start_pairs("vllm")
    ask("same-1")
    explain("same-1")
    f:post(PATH, "{broken", { ["X-Request-Id"] = "same-1" })
    eventually(function()
      local r = explain("same-1")
      return r.status == 400 and r.decided_by == "nobody" and #r.attempts == 0
    end, 5, "the newest one")
  end)

  it("lists the last ones, the newest first", function()
    start_pairs("vllm")
    for i = 1, 4 do
      ask("list-" .. i)
      explain("list-" .. i)
    end
    local list = json.decode(http.get(f.admin_port, "/admin/explain?limit=3").body)
    assert.equal(0, list.late_loops)
    assert.equal(3, #list.requests)
    for i, row in ipairs(list.requests) do
      assert.equal("list-" .. 5 - i, row.id)
      assert.equal(200, row.status)
      assert.equal("handoff", row.plan.kind)
    end
    local text = http.get(f.admin_port, "/admin/explain?format=text").body
    assert.truthy(text:match("^%S+Z  list%-4  /v1/completions[^\n]*  200 after [%d.]+ ms  "
      .. "decided by [^\n]*: handoff p%d > d%d\n"), text)
    assert.equal(4, select(2, text:gsub("\n", "")))
  end)

  it("answers 404 with a sentence for an id that nobody knows, 400 for a form that is none", function()
    start_pairs("vllm")
    local answer = http.get(f.admin_port, "/admin/explain/nobody-knows")
    assert.equal(404, answer.status)
    local message = json.decode(answer.body).error.message
    assert.truthy(message:find("no record of request nobody-knows: each of the 2 loops keeps the last 1024", 1, true),
      message)
    assert.equal(400, http.get(f.admin_port, "/admin/explain/x?format=xml").status)
    assert.equal(404, http.get(f.port, "/admin/explain/x").status) -- not for clients
  end)

  it("keeps headers only when asked, and no prompt ever", function()
    local file = proc.path("records.jsonl")
    start_pairs("vllm", { "--record-file", file, "--record-sample", "1", "--record-header", "X-Tier" })
    local body = ('{"model":"sim","prompt":"%s","max_tokens":3}'):format(MARKER)
    local headers = { ["X-Tier"] = "gold", ["X-Other"] = "other-value", Authorization = "Bearer k-secret" }
    for i = 1, 3 do
      headers["X-Request-Id"] = "quiet-" .. i
      assert.equal(200, f:post(PATH, body, headers).status)
      assert.same({ ["x-tier"] = "gold" }, explain("quiet-" .. i).headers)
    end
    headers["X-Request-Id"] = "quiet-4"
    f:post("/v1/chat/completions", ('{"model":"sim","messages":[{"role":"user","content":"%s"}],"max_tokens":3}')
      :format(MARKER), headers)
    headers["X-Request-Id"] = "quiet-5"
    f:post(PATH, ('{"model":"sim","prompt":"%s"'):format(MARKER), headers) -- broken
    local _, raw = explain("quiet-4")
    local _, broken = explain("quiet-5")
    eventually(function()
      return #lines_of(file) >= 4, #lines_of(file)
    end, 5, "all lines of those that were not refused")
    local text = proc.read(file) .. raw.body .. broken.body .. explain("quiet-4", "?format=text")
    for _, word in ipairs({ MARKER, "k-secret", "other-value", fleet.expect(MARKER, 3) }) do
      assert.is_nil(text:find(word, 1, true), word)
    end
    assert.truthy(text:find('"gold"', 1, true))
  end)
end)

describe("a request that nobody can serve", function()
  it("is decided by nobody, with the reason", function()
    local gateway, port, admin_port = fleet.start_gateway({ "--worker-urls", "http://127.0.0.1:9" })
    local answer = http.post(port, PATH, faults.body(), { ["X-Request-Id"] = "none-1" })
    assert.equal(503, answer.status)
    local r = eventually(function()
      local a = http.get(admin_port, "/explain/none-1")
      return a.status == 200 and json.decode(a.body)
    end, 5, "its record")
    assert.same({ "nobody", 503, "no_worker", {} }, { r.decided_by, r.status, r.error, r.attempts })
    assert.truthy(#r.why > 0)
    assert.is_nil(r.plan)
    assert.equal(0, (gateway:stop(10)))
  end)
end)

describe("--record-file", function()
  it("gets a line of each sampled request, all of them at the end", function()
    local file = proc.path("records.jsonl")
    start_pairs("vllm", { "--record-file", file, "--record-sample", "1" })
    local asks = {}
    for i = 1, 40 do
      asks[i] = { path = PATH, body = faults.body(), headers = { ["X-Request-Id"] = "file-" .. i } }
    end
    for _, answer in ipairs(http.together(f.port, asks)) do
      assert.equal(200, answer.status)
    end
    eventually(function()
      return f:metric("baton_records_written_total") == 40
    end, 5, "the counter")
    assert.equal(0, f:metric("baton_records_dropped_total"))
    assert.equal(0, f:metric("baton_record_errors_total"))
    ask("file-41")
    f:stop()
    local seen, records = {}, records_of(file)
    assert.equal(41, #records)
    for _, r in ipairs(records) do
      assert.is_nil(seen[r.id])
      seen[r.id] = true
      assert.equal(1, r.v)
      assert.equal(2, r.candidates.prefill.total)
      assert.equal("handoff", r.plan.kind)
    end
  end)

  it("gets some of them by default", function()
    local file = proc.path("records.jsonl")
    start_pairs("vllm", { "--record-file", file })
    for i = 1, 20 do
      ask("some-" .. i)
    end
    explain("some-20")
    f:stop()
    assert.is_true(#records_of(file) < 20) -- one in a hundred
  end)

  it("becomes FILE.1 at --record-max-bytes", function()
    local file = proc.path("records.jsonl")
    start_pairs("vllm", { "--record-file", file, "--record-sample", "1", "--record-max-bytes", "8192" })
    for i = 1, 20 do
      ask("turn-" .. i)
    end
    eventually(function()
      return f:metric("baton_records_written_total") == 20
    end, 5, "all are written")
    f:stop()
    local old, new = proc.read(file .. ".1"), proc.read(file)
    assert.is_true(#old > 0 and #old <= 8192)
    assert.is_true(#new > 0 and #new <= 8192)
    assert.is_true(#records_of(file .. ".1") > 0 and #records_of(file) > 0)
    local last = records_of(file)
    assert.equal("turn-20", last[#last].id)
  end)

  it("begins anew with --log-file on SIGUSR1, and no line is lost", function()
    local records, log = proc.path("records.jsonl"), proc.path("baton.log")
    start_pairs("vllm", { "--record-file", records, "--record-sample", "1", "--log-file", log,
      "--log-format", "json", "--access-log" })
    for i = 1, 60 do
      ask("kept-" .. i)
      if i % 20 == 0 then
        for _, path in ipairs({ records, log }) do
          assert(os.rename(path, path .. i))
        end
        f.gateway:kill(proc.SIGUSR1)
        eventually(function()
          return proc.read(records) and proc.read(log)
        end, 5, "new files")
      end
    end
    ask("kept-61")
    f:stop()
    for path, member in pairs({ [records] = "id", [log] = "request" }) do
      local seen, count = {}, 0
      for _, part in ipairs({ path .. 20, path .. 40, path .. 60, path }) do
        local text = proc.read(part)
        assert.truthy(text:find('"kept-', 1, true), part)
        for line in text:gmatch("[^\n]+") do
          local id = json.decode(line)[member]
          if id and id:find("^kept%-") then
            assert.is_nil(seen[id], id)
            seen[id], count = true, count + 1
          end
        end
      end
      assert.equal(61, count)
    end
    assert.equal("", f.gateway:stderr())
  end)

  it("that cannot be written stops the start, and a header of keys too", function()
    for flag, value in pairs({ ["--record-file"] = "/nonexistent/r.jsonl", ["--log-file"] = "/nonexistent/b.log",
      ["--record-header"] = "Authorization" }) do
      local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "run", "--port", "0", "--admin-port", "0",
        "--worker-urls", "http://127.0.0.1:9", flag, value })
      assert.equal(2, code)
      assert.truthy(err:find(flag .. ": ", 1, true), err)
      assert.truthy(err:lower():find(value:lower(), 1, true), err)
    end
  end)
end)
