-- baton replay: old decisions, taken again by another policy.

local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BATON = fleet.binary("BATON_BIN", "baton")

-- Exit code, stdout, stderr.
local function replay(...)
  return proc.run({ BATON, "replay", ... }, { name = "replay", seconds = 60 })
end

-- ---- records ----

local function row(id, name, more)
  local r = { id = id, name = name, role = name:sub(1, 1) == "p" and "prefill" or "decode", dialect = "nixl",
    prefill_tokens = 0, decode_tokens = 0, requests = 0 }
  if name:sub(1, 1) == "h" then
    r.role, r.dialect = "hybrid", nil
  end
  for k, v in pairs(more or {}) do
    r[k] = v
  end
  return r
end

local function list(...)
  return { total = select("#", ...), rows = { ... } }
end

-- p1 and d2 are the least loaded.
local function record(id, more)
  local r = {
    v = 1, id = id, path = "/v1/completions", model = "sim", stream = true, n = 1,
    prompt_tokens = 12, prompt_bytes = 48, pool = "default", policy = "least_load", decided_by = "policy", status = 200,
    candidates = {
      prefill = list(
        row(1, "p1", { prefill_tokens = 10, score = 10 }), row(2, "p2", { prefill_tokens = 20, score = 20.5 })),
      decode = list(
        row(3, "d1", { decode_tokens = 40, score = 40 }), row(4, "d2", { decode_tokens = 30, score = 30 })),
    },
    plan = { kind = "handoff", prefill = "p1", decode = "d2" },
  }
  for k, v in pairs(more or {}) do
    r[k] = v ~= "nil" and v or nil
  end
  return r
end

local function file(...)
  local lines = {}
  for i, r in ipairs({ ... }) do
    lines[i] = type(r) == "table" and json.encode(r) or r
  end
  return proc.write("records.jsonl", table.concat(lines, "\n") .. "\n")
end

local function policy(body, more)
  return proc.write("new.lua", ([[
return { api = 2, name = "new", version = "3", %s plan = function(req, view, ctx)
%s
end }
]]):format(more or "", body))
end

local TAKE_FIRST = "return { prefill = view.prefill[1], decode = view.decode[1] }"
local TAKE_LAST = "return { prefill = view.prefill[#view.prefill], decode = view.decode[#view.decode] }"

-- The number behind a word of the table.
local function told(out, word)
  return tonumber(out:match("\n" .. word:gsub("%-", "%%-") .. " +(%d+)[ \n]") or "")
end

local function assert_told(out, wanted)
  for word, number in pairs(wanted) do
    assert.equal(number, told("\n" .. out, word), word .. " in\n" .. out)
  end
end

describe("baton replay", function()
  teardown(proc.clean)

  it("finds nothing to differ when the policy is the one that had decided", function()
    local path = file(record("a"), record("b"), record("c"))
    local code, out, err = replay("--policy", "least_load", "--fail-on-difference", path)
    assert.equal(0, code, err)
    assert_told(out, { records = 3, compared = 3, same = 3, different = 0, failed = 0, skipped = 0, malformed = 0 })
    assert.truthy(out:find("old: recorded, new: least_load@", 1, true), out)
    assert.truthy(out:find("us per plan +p50 %d+%.%d+ +p99 %d+%.%d+ +max %d+%.%d+"), out)
    assert.equal("", err)
  end)

  it("shows what differs, with the scores of then and now, and counts choices by worker", function()
    local path = file(record("a"), record("b"), record("c"))
    local mine = policy([[
    local prefill = baton.argmax(view.prefill, "prefill_tokens")
    return { prefill = prefill, decode = baton.argmin(view.decode, "decode_tokens") }]])
    local code, out = replay("--policy", mine, "--show", "2", path)
    assert.equal(0, code)
    assert_told(out, { compared = 3, same = 0, different = 3 })
    assert.truthy(out:find("different a: old p1 / d2 (score 10 / 30), new p2 / d2", 1, true), out)
    assert.truthy(out:find("different b:", 1, true), out)
    assert.is_nil(out:find("different c:", 1, true))
    assert.truthy(out:find("\n  p1 +3 +0\n"), out)
    assert.truthy(out:find("\n  p2 +0 +3\n"), out)
    assert.truthy(out:find("\n  d2 +3 +3\n"), out)
    assert.equal(1, (replay("--policy", mine, "--fail-on-difference", path)))
  end)

  it("draws how many were decided the same, and the load of the chosen ones", function()
    local records = {}
    for i = 1, 200 do
      -- The second half had taken the busier ones.
      records[i] = record("r" .. i, { plan = { kind = "handoff", prefill = i <= 100 and "p1" or "p2", decode = "d2" } })
    end
    local path, svg = file(unpack(records)), proc.write("plot.svg", "old")
    local named = proc.write("named.lua", [[
return { api = 2, name = "<b>&", version = "1", plan = function(_, view)
  return { prefill = view.prefill[1], decode = view.decode[2] }
end }
]])
    local code, _, err = replay("--policy", named, "--plot", svg, path)
    assert.equal(0, code, err)
    local drawn = proc.read(svg)
    assert.matches("^<svg .*</svg>\n$", drawn)
    assert.matches("new: &#60;b&#62;&#38;@1; 50.0 %% of 200 decided the same", drawn)
    local lines = {}
    for class, points in drawn:gmatch('<polyline class="l (s%d)" points="([^"]*)"') do
      lines[#lines + 1] = { class = class, first = points:match(",(%S+)"), last = points:match(",(%S+) $") }
    end
    assert.equal(5, #lines) -- the share, then old and new of both loads
    assert.same({ "40.0", "280.0" }, { lines[1].first, lines[1].last }) -- from all down to none
    assert.is_true(tonumber(lines[2].first) > tonumber(lines[2].last)) -- the old choice's load rises
    assert.equal(lines[3].first, lines[3].last) -- the new one's does not
    assert.equal(lines[4].last, lines[5].last)
    assert.equal(2, (replay("--policy", named, "--plot", "/nowhere/plot.svg", path)))
  end)

  it("compares what the policy said, where the pair rested and another served", function()
    local path = file(record("a", { rests = { prefill = "p1", decode = "d2" },
      plan = { kind = "handoff", prefill = "p1", decode = "d1" } }))
    local code, out = replay("--policy", "least_load", "--fail-on-difference", path)
    assert.equal(0, code, out)
    assert_told(out, { records = 1, compared = 1, same = 1, different = 0 })
  end)

  it("says what cannot be compared, and why", function()
    local path = file(record("a"), record("b", { decided_by = "default", why = "took too long" }),
      record("c", { decided_by = "nobody", plan = "nil", status = 503 }), record("d", { candidates = "nil" }),
      record("e", { candidates = { prefill = { total = 70 }, decode = { total = 70 } } }))
    local code, out = replay("--policy", "least_load", path)
    assert.equal(0, code)
    assert_told(out, { records = 5, compared = 1, same = 1, default = 2, skipped = 2 })
    assert.truthy(out:find("note: 2 records have no candidates", 1, true), out)
    -- A check that checks nothing must not pass.
    local none = file(record("d", { candidates = "nil" }))
    local again, _, err = replay("--policy", "least_load", none)
    assert.equal(0, again)
    assert.truthy(err:find("nothing was compared", 1, true), err)
    assert.equal(1, (replay("--policy", "least_load", "--fail-on-difference", none)))
  end)

  it("notes records that list a part of their candidates", function()
    local r = record("a")
    r.candidates.prefill.total = 900
    local _, out = replay("--policy", "least_load", file(r))
    assert.truthy(out:find("note: 1 records list a part of their candidates only", 1, true), out)
  end)

  it("counts bad lines, names the first ones, and goes on", function()
    local long = '{"id":"' .. ("x"):rep(2 ^ 20 + 10) .. '"}'
    local huge = ("y"):rep(3 * 2 ^ 20)
    local bad_role, bad_name, bad_dialect = record("r"), record("n"), record("d")
    bad_role.candidates.prefill.rows[1].role = "boss"
    bad_name.candidates.prefill.rows[1].name = "p 1"
    bad_dialect.candidates.prefill.rows[1].dialect = "esperanto"
    local path = file(record("a"), "{", '{"id":"x"', "[]", "null", "\0\1\255", long, huge, bad_role, bad_name,
      bad_dialect, '{"candidates":7}', '{"candidates":{"prefill":[]}}', '{"candidates":{"prefill":{"rows":[3]}}}',
      '{"plan":[]}', '{"n":-1}', '{"prompt_tokens":"12"}', '{"decided_by":3}', '{"headers":[]}',
      ("["):rep(9000), "", record("b"))
    local code, out, err = replay("--policy", "least_load", path)
    assert.equal(0, code, err)
    assert_told(out, { records = 21, same = 2, malformed = 19 })
    for i, why in ipairs({ "it is no JSON", "it is no JSON", "it is no JSON object", "it is no JSON object",
      "it is no JSON object" }) do
      assert.truthy(err:find(("%s:%d: %s"):format(path, i + 1, why), 1, true), err)
    end
    assert.equal(5, select(2, err:gsub("records.jsonl:", "")))
    for _, case in ipairs({ { bad_role, "role" }, { bad_name, 'worker name "p"' }, { bad_dialect, "unknown connector" },
      { long, "longer than 1 MiB" }, { huge, "longer than 1 MiB" }, { '{"n":-1}', '"n" must be a whole number' } }) do
      _, out, err = replay("--policy", "least_load", file(case[1], record("b")))
      assert.truthy(err:find("records.jsonl:1: ", 1, true) and err:find(case[2], 1, true), err)
      assert_told(out, { records = 2, same = 1, malformed = 1 })
    end
  end)

  it("takes a candidate without a role for a bad line, and lets nothing of a record steer the terminal", function()
    local bad = '{"candidates":{"prefill":{"rows":[{"id":1,"name":"p1"}]}}}'
    local other = record("r\27[2J\194\1552J", { plan = { prefill = "p2", decode = "d1" } })
    local code, out, err = replay("--policy", "least_load", file(bad, other))
    assert.equal(0, code)
    assert.truthy(err:find("a candidate's role is no prefill, decode or hybrid", 1, true), err)
    assert.truthy(out:find("different r?[2J??2J: ", 1, true), out)
    assert.is_nil(out:find("[\27\155]"))
  end)

  it("asks with the request as it was", function()
    local path = file(record("a", { path = "/v1/chat/completions", model = 'm"\\\195\164', n = 3, stream = false,
      prompt_tokens = 9000, prompt_bytes = 36000, tenant = "t", session = "s", key = "k", class = "long", pool = "west",
      headers = { ["x-tier"] = "gold" } }))
    local code, out = replay("--policy", policy([[
    local function is(a, b) if a ~= b then error(tostring(a) .. " is not " .. tostring(b)) end end
    is(req.path, "/v1/chat/completions") is(req.model, 'm"\\\195\164') is(req.n, 3) is(req.stream, false)
    is(req.prompt_tokens, 9000) is(req.prompt_bytes, 36000) is(req.tenant, "t")
    is(req.session, "k") -- what route had called it stands for the session
    is(req.class, "long") is(req.headers["X-Tier"], "gold") is(req.headers["x-other"], nil) is(view.pool, "west")
    return { prefill = view.prefill[1], decode = view.decode[2] }]]), path)
    assert.equal(0, code)
    assert_told(out, { same = 1, failed = 0 })
  end)

  it("shows workers as they were, and what was not known as nil", function()
    local r = record("a")
    local full = { zone = "east", labels = { weight = "3", spot = true }, prefill_tokens = 5, requests = 2, running = 3,
      waiting = 4, kv_free = 0.25, ttft_ema_ms = 20.5, tpot_ema_ms = 5.25, age_ms = 300, dialect = "nixl",
      engine = "vllm_ascend", connector = "NixlConnector", version = "0.22.1", dp_size = 2, tp_size = 4, pp_size = 8 }
    r.candidates = {
      prefill = list(row(7, "p7", full), row(8, "p8")),
      decode = list(row(9, "d9", { dialect = "sglang", decode_tokens = 11, age_ms = 60000 }), row(10, "d10"),
        row(12, "d12", { dialect = "baton", connector = "baton", transfer_bytes = 65536 })),
      hybrid = list(row(11, "h11"), row(7, "p7", full)),
      single = list({ id = 11 }, { id = 9 }),
    }
    r.plan = { kind = "handoff", prefill = "p7", decode = "d10" }
    local code, out = replay("--policy", policy([[
    local function is(a, b) if a ~= b then error(tostring(a) .. " is not " .. tostring(b)) end end
    local a, b, c = view.prefill[1], view.prefill[2], view.decode[1]
    is(a.id, 7) is(a.name, "p7") is(a.role, "prefill") is(a.zone, "east")
    is(a.labels.weight, "3") is(a.labels.spot, true) is(a.kinds.handoff, true)
    is(a.engine, "vllm_ascend") is(a.connector, "NixlConnector") is(a.version, "0.22.1")
    is(a.dp_size, 2) is(a.tp_size, 4) is(a.pp_size, 8) is(b.version, nil) is(b.dp_size, 1)
    is(c.connector, "sglang") is(c.engine, "sglang")
    is(a.dialects.nixl, true) is(a.prefill_tokens, 5) is(a.requests, 2) is(a.running, 3)
    is(a.waiting, 4) is(a.kv_free, 0.25) is(a.ttft_ema_ms, 20.5) is(a.tpot_ema_ms, 5.25)
    is(a.age_ms, 300)
    for _, field in ipairs { "zone", "running", "waiting", "kv_free", "ttft_ema_ms", "tpot_ema_ms", "age_ms" } do
      is(b[field], nil)
    end
    is(view.decode[3].transfer_bytes, 65536) is(a.transfer_bytes, nil)
    is(c.dialects.sglang, true) is(c.kv_free, nil) is(c.age_ms, 60000)
    is(#view.hybrid, 2) is(view.hybrid[1].role, "hybrid") is(view.hybrid[2], a)
    is(#view.single, 2) is(view.single[1].name, "h11") is(view.single[2], c)
    is(#baton.compatible(view.decode, a), 1)
    return { prefill = a, decode = baton.compatible(view.decode, a)[1] }]]), file(r))
    assert.equal(0, code)
    assert_told(out, { same = 1, failed = 0 })
  end)

  it("shows ages by the record's clock, wherever it stands in it", function()
    local r = record("a", { plan = { kind = "handoff", prefill = "p7", decode = "d8" } })
    r.candidates = { prefill = list(row(7, "p7", { running = 1, age_ms = 5000 })), decode = list(row(8, "d8")) }
    local text = json.encode(r)
    local path = file('{"clock_us":99000000,' .. text:sub(2), text:sub(1, -2) .. ',"clock_us":99000000}')
    local code, out = replay("--policy", policy([[
    local p = view.prefill[1]
    assert(p.age_ms == 5000 and p.running == 1, p.age_ms) ]] .. TAKE_FIRST), path)
    assert.equal(0, code)
    assert_told(out, { same = 2, failed = 0 })
  end)

  it("replays single workers", function()
    local function alone(id, plan)
      return record(id, { candidates = { hybrid = list(row(1, "h1", { requests = 2 }), row(2, "h2")),
        single = list({ id = 1 }, { id = 2 }) }, plan = plan })
    end
    local path = file(alone("a", { kind = "single", decode = "h2" }), alone("b", { kind = "single", worker = "h2" }))
    local code, out = replay("--policy", "least_load", "--fail-on-difference", path)
    assert.equal(0, code, out)
    assert_told(out, { same = 2 })
  end)

  it("keeps the policy's state and its workers from record to record, in order", function()
    local records = {}
    for i = 1, 20 do -- the load changes, the worker does not
      local plan = { prefill = i % 2 == 1 and "p1" or "p2", decode = "d2" }
      records[i] = record("r" .. i, { prompt_tokens = i, plan = plan })
      records[i].candidates.prefill.rows[1].prefill_tokens = i
    end
    local code, out = replay("--policy", policy([[
    local state = ctx.state
    state.seen = (state.seen or 0) + 1
    local count = baton.shared_local.add("replayed", 1)
    if req.prompt_tokens ~= state.seen or count ~= state.seen then error("out of order") end
    state.first = state.first or view.prefill[1]
    if state.first ~= view.prefill[1] or state.first.prefill_tokens ~= state.seen then error("another") end
    return { prefill = view.prefill[(state.seen - 1) % 2 + 1], decode = view.decode[2] }]]), file(unpack(records)))
    assert.equal(0, code)
    assert_told(out, { same = 20, failed = 0 })
  end)

  it("says when a policy learns from what no record holds", function()
    for hook, is_told in pairs({ observe = true, tick = true, start = false }) do
      local path = proc.write("learner.lua", ([[return { api = 2, name = "learner", version = "1.0",
        %s = function() end,
        plan = function(req, view) return { prefill = view.prefill[1], decode = view.decode[2] } end }]]):format(hook))
      local code, out = replay("--policy", path, file(record("a")))
      assert.equal(0, code)
      assert.equal(is_told, out:find("note: learner@1.0 learns between decisions", 1, true) ~= nil, out)
      out = select(2, replay("--policy", "least_load", "--against", path, "--json", file(record("a"))))
      assert.equal(is_told, out:find('"learns":true', 1, true) ~= nil, out)
    end
  end)

  it("hashes workers as the gateway did, by their addresses", function()
    local function two(id, a, b)
      local r = record(id)
      r.candidates.prefill = list(row(1, "p1", { url = a }), row(2, "p2", { url = b }))
      return r
    end
    local mine = policy([[
    return { prefill = baton.rendezvous(view.prefill, "key"), decode = view.decode[2] }]])
    local x, y = "http://10.0.0.1:8000", "http://10.0.0.2:8000"
    local function chosen(a, b)
      local _, out = replay("--policy", mine, "--json", file(two("a", a, b)))
      return out:find('"name":"p1","old":1,"new":1', 1, true) and a or b
    end
    assert.equal(chosen(x, y), chosen(y, x))
  end)

  it("tells workers of two gateways apart that have the same id", function()
    local one, two = file(record("a")), record("b", { plan = { prefill = "p9", decode = "d2" } })
    two.candidates.prefill = list(row(1, "p9"))
    local code, out = replay("--policy", "least_load", "--fail-on-difference", one, file(two), one)
    assert.equal(0, code, out)
    assert_told(out, { records = 3, same = 3 })
  end)

  it("counts failures of the policy and shows the first ones", function()
    local records = {}
    for i = 1, 9 do
      records[i] = record("r" .. i, { prompt_tokens = i })
    end
    local mine = policy("if req.prompt_tokens > 1 then error('no ' .. req.promt_tokens) end\n" .. TAKE_FIRST)
    local code, out = replay("--policy", mine, file(unpack(records)))
    assert.equal(0, code)
    assert_told(out, { failed = 8, different = 1 })
    assert.truthy(out:find("failed r2: new@3: " .. mine .. ":2: ", 1, true), out)
    assert.truthy(out:find("did you mean 'prompt_tokens'?", 1, true), out)
    assert.equal(5, select(2, out:gsub("\nfailed r", "")) + (out:find("^failed r") and 1 or 0))
    local last = policy("error('always')")
    assert.equal(1, (replay("--policy", last, "--fail-on-difference", file(record("a")))))
  end)

  it("compares two policies, each with counters of its own", function()
    local records = {}
    for i = 1, 30 do
      records[i] = record("r" .. i, { decided_by = "default" })
    end
    local path = file(unpack(records))
    local code, out = replay("--policy", "round_robin", "--against", "round_robin", "--fail-on-difference", path)
    assert.equal(0, code, out)
    assert_told(out, { compared = 30, same = 30 })
    code, out = replay("--policy", policy(TAKE_LAST), "--against", policy(TAKE_FIRST), "--show", "1", path)
    assert.equal(0, code)
    assert_told(out, { compared = 30, different = 30 })
    assert.truthy(out:find("different r1: old p1 / d1, new p2 / d2", 1, true), out)
  end)

  it("draws the same lots for the same seed", function()
    local records = {}
    for i = 1, 60 do
      records[i] = record("r" .. i)
    end
    local path = file(unpack(records))
    local function choices(...)
      local _, out = replay("--policy", "random", "--show", "1000", ...)
      return table.concat({ out:match("^(.-)\n\n"), out:match("prefill.*$") })
    end
    assert.equal(choices("--seed", "7", path), choices("--seed", "7", path))
    assert.not_equal(choices("--seed", "7", path), choices("--seed", "8", path))
    assert.equal(0, (replay("--policy", "random", "--against", "random", "--fail-on-difference", path)))
  end)

  it("sets parameters, by their types", function()
    local mine = policy([[
    local p = ctx.params
    if p.weight ~= 2.5 or p.on ~= true or p.text ~= "east=1" or p.digits ~= "12" or p.tags[2] ~= "b" then
      error("weight " .. tostring(p.weight))
    end
    return { prefill = view.prefill[1], decode = view.decode[2] }]], [[params = {
      weight = { type = "number" }, on = { type = "boolean" }, text = { type = "string" }, tags = { type = "list" },
      digits = { type = "string" } },]])
    local words = { "--params", "weight=2.5", "on=true", "text=east=1", 'tags=["a","b"]', 'digits="12"' }
    words[#words + 1] = file(record("a"))
    local code, out, err = replay("--policy", mine, unpack(words))
    assert.equal(0, code, err)
    assert_told(out, { same = 1 })
    code, out, err = replay("--policy", mine, "--params", "weight=heavy", words[#words])
    assert.equal(2, code)
    assert.truthy(err:find("params.weight", 1, true), err)
    assert.equal("", out)
    code, out, err = replay("--policy", mine, "--params", "wieght=1", words[#words])
    assert.equal(2, code)
    assert.equal("", out)
    assert.truthy(err:find("weight", 1, true), err)
  end)

  it("speaks JSON lines", function()
    local code, out = replay("--policy", policy(TAKE_LAST), "--json", file(record("a"), "{", record('q"uote')))
    assert.equal(0, code)
    local all = { difference = {}, worker = {}, summary = {} }
    for line in out:gmatch("[^\n]+") do
      local value = json.decode(line)
      table.insert(all[value.type], value)
    end
    assert.equal('q"uote', all.difference[2].id)
    assert.same({ prefill = "p1", decode = "d2", prefill_score = 10, decode_score = 30 }, all.difference[1].old)
    assert.equal("p2", all.difference[1].new.prefill)
    assert.equal(1, #all.summary)
    local s = all.summary[1]
    assert.equal("new@3", s.new)
    assert.same({ 3, 2, 0, 2, 1 }, { s.records, s.compared, s.same, s.different, s.malformed })
    assert.is_true(s.plan_us.max >= s.plan_us.p50 and s.plan_us.p50 > 0)
    local by_name = {}
    for _, w in ipairs(all.worker) do
      by_name[w.name] = w.leg .. " " .. w.old .. " " .. w.new
    end
    assert.same({ p1 = "prefill 2 0", p2 = "prefill 0 2", d2 = "decode 2 2" }, by_name)
  end)

  it("reads several files, and stdin", function()
    local one, two = file(record("a")), file(record("b"), record("c"))
    local command = ("%s replay --policy least_load %s - < %s"):format(BATON, one, two)
    local code, out, err = proc.run({ "/bin/sh", "-c", command }, { seconds = 60 })
    assert.equal(0, code, err)
    assert_told(out, { records = 3, same = 3 })
    -- a last line without its end counts as well
    local open = proc.write("open.jsonl", json.encode(record("a")) .. "\n" .. json.encode(record("b")))
    code, out = replay("--policy", "least_load", open)
    assert.equal(0, code)
    assert_told(out, { records = 2, same = 2 })
  end)

  it("reads what a gateway has recorded", function()
    local body = [[
    local prefill = view.prefill[1]
    if req.headers["x-tier"] == "%s" then return { prefill = prefill, decode = view.decode[1] } end
    return { prefill = prefill, decode = baton.rendezvous(view.decode, req.session or "nobody") }]]
    local records, serving = proc.path("records.jsonl"), policy(body:format("nobody"))
    local decode = "role=decode,ttft=1,itl=1"
    local f = fleet.start({ workers = { "role=prefill,ttft=1", decode, decode, decode }, flags = {
      "--vllm-pd-disaggregation", "--policy", serving, "--record-file", records, "--record-sample", "1",
      "--record-header", "x-tier" } })
    local chosen, gold = {}, 0
    for i = 1, 30 do
      local tier = i % 3 == 0 and "gold" or "iron"
      local answer = f:post("/v1/completions", '{"model":"sim","prompt":"hello","max_tokens":2}',
        { ["X-Session-Id"] = "s" .. i, ["X-Tier"] = tier })
      assert.equal(200, answer.status, answer.body)
      chosen[i] = answer:header("x-baton-decode")
      gold = gold + (tier == "gold" and 1 or 0)
    end
    f:stop() -- writes what waits
    local code, out, err = replay("--policy", serving, "--fail-on-difference", records)
    assert.equal(0, code, out .. err)
    assert_told(out, { records = 30, compared = 30, same = 30, malformed = 0 })
    -- Gold goes to the first decode worker, so all others of gold differ; which one is first, the records tell.
    local first = json.decode(proc.read(records):match("[^\n]+")).candidates.decode.rows[1].name
    local expected = 0
    for i = 3, 30, 3 do
      expected = expected + (chosen[i] ~= first and 1 or 0)
    end
    assert.is_true(expected > 0 and gold == 10)
    code, out = replay("--policy", policy(body:format("gold")), records)
    assert.equal(0, code)
    assert_told(out, { compared = 30, different = expected, same = 30 - expected })
  end)

  it("decides the same again, with its chance, its ties and its clock", function()
    local records, serving = proc.path("chance.jsonl"), policy([[
    if #view.prefill == 0 then return end
    local prefill = view.prefill[math.random(#view.prefill)]
    local spare = baton.take("spare", 40, 2)
    local decode = spare and baton.argmin(view.decode, "id", "requests") or baton.power_of_k(view.decode, 2, "requests")
    if math.random() < 0.5 then decode = baton.argmin(view.decode, "decode_tokens") end
    return { prefill = prefill, decode = decode }]])
    local prefill, decode = "role=prefill,ttft=1", "role=decode,ttft=1,itl=1"
    local f = fleet.start({ workers = { prefill, prefill, decode, decode, decode, decode, decode }, flags = {
      "--loops", "1", "--vllm-pd-disaggregation", "--policy", serving, "--record-file", records,
      "--record-sample", "1" } })
    local seen = {}
    for _ = 1, 60 do
      local answer = f:post("/v1/completions", '{"model":"sim","prompt":"hello","max_tokens":2}')
      assert.equal(200, answer.status, answer.body)
      seen[answer:header("x-baton-decode")] = true
    end
    f:stop() -- writes what waits
    assert.is_truthy(next(seen, next(seen)), "chance has chosen several")
    local code, out, err = replay("--policy", serving, "--fail-on-difference", records)
    assert.equal(0, code, out .. err)
    assert_told(out, { records = 60, compared = 60, same = 60 })
    local bad = file(record("a", { seed = "nothing" }))
    code, out, err = replay("--policy", serving, bad)
    assert.truthy((out .. err):find('"seed" must be 16 hex digits', 1, true), code .. out .. err)
  end)

  -- Half of the requests are in no record, but have moved all that the policy counts by.
  it("decides the same again, with what it read of counters, windows, turns and prefixes", function()
    local own = policy([[
    if #view.prefill == 0 then return end
    local turn = baton.shared_local.add("turn", 1) + baton.window("seen", 1, 3600)
    local key = baton.prefix_key(req)
    local best, blocks = baton.prefix_match(view.prefill, req)
    local prefill = turn % 3 == 0 and best or baton.smooth(view.prefill, "p", "weight")
    if turn % 5 == 0 then prefill = baton.argmin(view.prefill, "prefix_cached", "id") end
    if turn % 7 == 0 then prefill = baton.argmin_sum(view.prefill, "prefix_blocks", -1, "id", 0.1) end
    baton.prefix_insert(req, prefill)
    local at = (turn + blocks + (key and #key or 0)) % #view.decode
    return { prefill = prefill, decode = view.decode[at + 1] }]])
    for _, serving in ipairs({ own, "sglang_cache_aware", "dynamo_kv", "weighted" }) do
      local records = proc.path("reads-" .. serving:match("[%w_]+$"):gsub("lua$", "own") .. ".jsonl")
      local prefill, decode = "role=prefill,ttft=1,count=3", "role=decode,ttft=1,itl=1,count=3"
      local f = fleet.start({ workers = { prefill, decode }, flags = { "--loops", "2", "--vllm-pd-disaggregation",
        "--policy", serving, "--record-file", records, "--record-sample", "0.5" } })
      for i = 1, 80 do
        local prompt = ("word" .. i % 4 .. " "):rep(600 + 40 * (i % 5))
        local answer = f:post("/v1/completions", json.encode({ model = "sim", prompt = prompt, max_tokens = 2 }))
        assert.equal(200, answer.status, answer.body)
      end
      f:stop() -- writes what waits
      local code, out, err = replay("--policy", serving, "--fail-on-difference", records)
      assert.equal(0, code, serving .. ": " .. out .. err)
      local text, reads = proc.read(records), nil
      for line in text:gmatch("[^\n]+") do
        reads = reads or json.decode(line).reads
      end
      assert.equal("table", type(reads), serving .. " reads something")
      assert.is_nil(text:find('"reads_cut"', 1, true))
    end
  end)

  -- Each half reads a counter, draws lots and has ties, by the chance and in the order that it had.
  it("decides the same again, with a policy for each half", function()
    local function half(name, role)
      return proc.write(name .. ".lua", ([[return { api = 2, name = %q, version = "1",
        params = { every = { type = "integer", default = 3, doc = "" } },
        plan = function(req, view, ctx)
          if #view.%s == 0 then return end
          local worker = view.%s[math.random(#view.%s)]
          if baton.shared_local.add("turn", 1) %% ctx.params.every == 0 then
            worker = baton.power_of_k(view.%s, 2, "requests")
          end
          return { %s = worker }
        end }]]):format(name, role, role, role, role, role))
    end
    local records = proc.path("halves.jsonl")
    local prefill, decode = half("first", "prefill"), half("second", "decode")
    local sims = { "role=prefill,ttft=1,count=3", "role=decode,ttft=1,itl=1,count=3" }
    local f = fleet.start({ workers = sims, flags = { "--vllm-pd-disaggregation", "--prefill-policy", prefill,
      "--decode-policy", decode, "--record-file", records, "--record-sample", "0.5" } })
    for _ = 1, 80 do
      local answer = f:post("/v1/completions", '{"model":"sim","prompt":"hello","max_tokens":2}')
      assert.equal(200, answer.status, answer.body)
    end
    f:stop() -- writes what waits
    local function again(...)
      return replay("--prefill-policy", prefill, "--decode-policy", decode, "--fail-on-difference", records, ...)
    end
    local code, out, err = again()
    assert.equal(0, code, out .. err)
    assert.truthy(out:find("new: prefill first@1, decode second@1", 1, true), out)
    code, out, err = again("--prefill-params", "every=1")
    assert.equal(1, code, out .. err)
    assert.is_true(told("\n" .. out, "different") > 0 and told("\n" .. out, "failed") == 0, out)
    code, out, err = replay("--decode-policy", decode, "--fail-on-difference", records)
    assert.equal(1, code, out .. err) -- prefill's half is least_load's
    assert.truthy(out:find("new: prefill least_load@%S+, decode second@1"), out)
  end)

  it("takes no wrong command line", function()
    local path = file(record("a"))
    for _, case in ipairs({
      { {}, "which policy?" },
      { { "--policy", "least_load" }, "which records?" },
      { { "--policy" }, "--policy needs a value" },
      { { "--policy", "least_loda", path }, "least_load" },
      { { "--policy", policy("return {"), path }, "new.lua:" },
      { { "--policy", "least_load", "/no/such/file" }, "/no/such/file: " },
      { { "--polcy", "least_load", path }, "did you mean --policy?" },
      { { "--policy", "least_load", "--show", "some", path }, "--show: expected a whole number" },
      { { "--policy", "least_load", "--params", path }, "--params: expected NAME=VALUE" },
      { { "--policy", "least_load", "--decode-params", "a=1", path }, "--decode-params: of which policy?" },
      { { "--prefill-policy", "least_loda", path }, "least_load" },
      { { "--policy", "least_load", proc.folder() }, "directory" },
    }) do
      local code, out, err = replay(unpack(case[1]))
      assert.equal(2, code, out .. err)
      assert.truthy(err:find(case[2], 1, true), err)
    end
    local code, out = replay("--help")
    assert.equal(0, code)
    assert.truthy(out:find("admit and route are not called", 1, true), out)
    local _, same = proc.run({ BATON, "help", "replay" })
    assert.equal(out, same)
  end)
end)
