-- baton sim: policies before a modelled fleet.

local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BATON = fleet.binary("BATON_BIN", "baton")
local TRACE = "conversations:requests=400,rate=6"

-- Exit code, stdout, stderr.
local function sim(...)
  return proc.run({ BATON, "sim", ... }, { name = "sim", seconds = 120 })
end

-- One object a line, of runs that went well.
local function run(...)
  local code, out, err = sim("--json", ...)
  assert.equal(0, code, err)
  local objects = {}
  for line in out:gmatch("[^\n]+") do
    objects[#objects + 1] = json.decode(line)
  end
  return objects
end

describe("baton sim", function()
  teardown(proc.clean)

  it("gives the same for the same seed, whatever runs beside it", function()
    local alone = run("dynamo_kv", "--trace", TRACE, "--seed", "5")[1]
    local beside = run("random", "dynamo_kv", "--trace", TRACE, "--seed", "5")[2]
    for _, key in ipairs({ "goodput", "ttft_ms", "tpot_ms", "hit_ratio", "served", "virtual_s" }) do
      assert.same(alone[key], beside[key], key)
    end
    local other = run("dynamo_kv", "--trace", TRACE, "--seed", "6")[1]
    assert.is_false(other.ttft_ms.mean == alone.ttft_ms.mean)
  end)

  it("serves everybody, and hits at most what can be hit", function()
    for _, ask in ipairs({ { "--engines", "4" }, { "--prefill", "3", "--decode", "2" }, { "--concurrency", "8" } }) do
      local rows = run("sglang_cache_aware", "round_robin", "--trace", TRACE, ask[1], ask[2], ask[3], ask[4])
      for i = 1, 2 do
        assert.equal(400, rows[i].served)
        assert.equal(0, rows[i].policy_errors)
        assert.is_true(rows[i].hit_ratio > 0 and rows[i].hit_ratio <= rows[i].hit_ceiling)
        assert.is_true(rows[i].ttft_ms.p50 <= rows[i].ttft_ms.p99)
      end
      assert.equal("sglang_cache_aware@1.0", rows[3].less)
      assert.is_true(rows[3].cached.low <= rows[3].cached.mean and rows[3].cached.mean <= rows[3].cached.high)
    end
  end)

  it("says what one cache with the fleet's memory would hit", function()
    local small = proc.write("small.lua", "return { kv_tokens = 20000 }")
    local ask = { "random", "--trace", TRACE, "--engine-model", small, "--prefill", "2", "--decode", "3" }
    local row = run(unpack(ask))[1]
    local two, all = row.ceilings[1], row.ceilings[2]
    assert.same({ 2500, 6250 }, { two.blocks, all.blocks })
    assert.is_true(0 < two.lru and two.lru < two.best and two.best < all.best)
    assert.is_true(two.lru < all.lru and all.lru < all.best and all.best <= row.hit_ceiling)
    local _, out = sim(unpack(ask))
    assert.matches("one cache of prefill's 2500 blocks: [%d.]+ %% as engines forget, [%d.]+ %% if it knew", out)
    assert.matches("one cache of all 6250 blocks: ", out)
    _, out = sim("advise", "random", "--engines", "2", "--trace", "conversations:requests=20")
    assert.falsy(out:find("prefill's", 1, true))
    assert.matches("one cache of all %d+ blocks: ", out)
  end)

  it("shows that a policy which knows prefixes hits more than one which does not", function()
    local rows = run("round_robin", "sglang_cache_aware", "--trace", "conversations:requests=1500,rate=8,turns=8",
      "--engines", "4")
    assert.is_true(rows[2].hit_ratio > 1.25 * rows[1].hit_ratio)
    assert.is_true(rows[3].cached.low > 0)
  end)

  it("tells policies what engines hold, or what they were sent", function()
    local file = proc.write("knows.lua", [[
return { api = 2, name = "knows", version = "1.0",
  plan = function(req, view)
    baton.prefix_match(view.hybrid, req, 16)
    local best
    for _, w in ipairs(view.hybrid) do
      if assert(w.kv_hit_tokens, "no exact hits") > 0 then baton.shared_local.add("hits") end
      if not best or (w.kv_hit_tokens or 0) > (best.kv_hit_tokens or 0) then best = w end
    end
    assert(baton.shared_local.add("plans") < 200 or baton.shared_local.get("hits") > 100)
    return { worker = best }
  end }]])
    local row = run(file, "--trace", TRACE, "--engines", "3")[1]
    assert.equal(0, row.policy_errors)
    row = run(file, "--trace", TRACE, "--engines", "3", "--prefix-index", "approximate")[1]
    assert.equal(400, row.policy_errors)
  end)

  it("tells a policy what it has just sent, before engines tell that they have it", function()
    local file = proc.write("just_sent.lua", [[
return { api = 2, name = "just_sent", version = "1.0",
  plan = function(req, view)
    local w = view.hybrid[1]
    baton.prefix_match(view.hybrid, req, 16)
    assert(w.kv_hit_tokens == 0, "told")
    if w.prefix_blocks > 0 then baton.shared_local.add("sent") end
    baton.prefix_insert(req, w, 16)
    assert(baton.shared_local.add("plans") < 40 or baton.shared_local.get("sent") > 20, "not sent")
    return { worker = w }
  end }]])
    local row = run(file, "--trace", "conversations:requests=40,turns=1,systems=1,burst=40", "--engines", "1",
      "--event-delay-ms", "1000000")[1]
    assert.equal(0, row.policy_errors)
  end)

  it("lets a policy see loads, sessions and ends, in virtual time", function()
    local file = proc.write("sees.lua", [[
local ended, sessions = 0, 0
return { api = 2, name = "sees", version = "1.0",
  plan = function(req, view)
    assert(req.session and req.prompt_tokens > 0)
    local best
    for _, w in ipairs(view.hybrid) do
      assert(not w.age_ms or w.age_ms <= 1000)
      if not best or w.tokens < best.tokens then best = w end
    end
    assert(ended > 0 or baton.shared_local.add("plans") < 100, "nothing has ended")
    return { kind = "single", worker = best }
  end,
  observe = function(events) ended = ended + #events end,
}]])
    local row = run(file, "--trace", TRACE, "--engines", "2")[1]
    assert.equal(0, row.policy_errors)
    assert.equal(400, row.served)
  end)

  it("has workers that serve alone, as a gateway's pairs do", function()
    local file = proc.write("alone.lua", [[
return { api = 2, name = "alone", version = "1.0",
  plan = function(_, view) return { kind = "single", worker = view.single[#view.single] } end }]])
    local row = run(file, "--trace", "conversations:requests=20")[1]
    assert.equal(20, row.served)
  end)

  it("calls admit, route and plan_decode as the gateway does", function()
    local file = proc.write("hooks.lua", [[
return { api = 2, name = "hooks", version = "1.0",
  admit = function(req, ctx)
    ctx.vars.turn = baton.shared_local.add("admitted")
    ctx.vars.kept = { ctx.vars.turn }
    local value, why = baton.shared.get("quota")
    assert(not value and why)
    if ctx.vars.turn % 10 == 0 then return { status = 429 } end
  end,
  route = function(req, ctx)
    assert(baton.sleep(250))
    return { class = "c" .. ctx.vars.turn % 2, key = "k" .. ctx.vars.turn % 7 }
  end,
  plan = function(req, view, ctx)
    assert(req.class == "c" .. ctx.vars.turn % 2 and req.session == "k" .. ctx.vars.turn % 7)
    return { kind = "handoff", prefill = view.prefill[1] }
  end,
  plan_decode = function(req, view, prefill, ctx)
    assert(prefill.id == view.prefill[1].id and ctx.vars.turn)
    return { decode = view.decode[ctx.vars.turn % 2 + 1] }
  end,
  observe = function(events)
    for _, e in ipairs(events) do
      assert(e.ttft_ms > 250 and e.kept[1] % 2 + 1 == (e.decode == 2 and 1 or 2), "decode")
      baton.shared_local.add("seen")
    end
  end }]])
    local row = run(file, "--trace", TRACE, "--prefill", "1", "--decode", "2")[1]
    assert.equal(0, row.policy_errors)
    assert.equal(360, row.served)
    assert.equal(0, row.failed)
    assert.equal(400, row.unserved_waits)
    assert.is_true(row.ttft_ms.p50 > 250)
  end)

  it("tells what an engine's end has cost, and when the fleet was as good as before", function()
    local file = proc.write("fails.lua", [[
local failed = 0
return { api = 2, name = "fails", version = "1.0",
  plan = function(_, view, ctx)
    local again = ctx.failure
    if again then assert(#again.tried > 0 and ctx.attempt > 1 and again.leg == "single") end
    assert(failed > 0 or baton.shared_local.add("plans") < 300, "nothing has failed")
    return { worker = view.hybrid[(baton.shared_local.add("turn") - 1) % #view.hybrid + 1] }
  end,
  observe = function(events)
    for _, e in ipairs(events) do if e.kind == "failed" then failed = failed + 1 end end
  end }]])
    local args =
      { file, "--trace", "conversations:requests=400,rate=60,think_s=1", "--engines", "3", "--fail", "w1@4-8.5" }
    local row = run(unpack(args))[1]
    local w1 = row.failures[1]
    assert.equal(0, row.policy_errors)
    assert.equal("w1", w1.engine)
    assert.is_true(w1.lost > 0 and w1.failed > 0)
    assert.equal(400, row.served + row.failed)
    assert.equal(row.failed, w1.failed)
    assert.is_true(w1.known_s >= 4 and w1.known_s <= 5)
    assert.is_true(w1.usable_s > 9.5 and w1.usable_s <= 10.5) -- with the second good answer
    assert.is_true(w1.recovery_s >= 0)
    local code, out = sim(unpack(args))
    assert.equal(0, code)
    assert.matches("w1 down at 4 s: known after [%d.]+ s, used again after [56]%.%d s; legs lost %d+", out)
  end)

  it("has no price of a good request where none was good", function()
    local ask = { "least_load", "--trace", "conversations:requests=5", "--fail", "prefill@0,decode@0" }
    assert.equal(json.null, run(unpack(ask))[1].gpu_s_per_good)
    local _, out = sim(unpack(ask))
    assert.truthy(out:find("least_load@1.0 .* %- +0 +5\n"), out)
  end)

  it("advises how many engines should prefill", function()
    local code, out, err = sim("advise", "least_load", "--engines", "4", "--trace", TRACE)
    assert.equal(0, code, err)
    for _, fleet_of in ipairs({ "1P %+ 3D", "2P %+ 2D", "3P %+ 1D", "4 alone" }) do
      assert.matches("\n" .. fleet_of, out)
    end
    assert.matches("\n2P %+ 2D, switching ", out)
    assert.matches("\nmost good requests: ", out)
  end)

  it("says which engine takes the other role, and when", function()
    local row = run("least_load", "--trace", "conversations:requests=100", "--prefill", "2", "--decode", "2",
      "--switch", "p1@10,p0@20")[1]
    assert.equal(2, #row.switches)
    local p1 = row.switches[1]
    assert.same({ "p1", "decode", 10 }, { p1.engine, p1.to, p1.asked_s })
    assert.is_true(p1.done_s > 11 and p1.done_s < 60)
    assert.equal(json.null, row.switches[2].done_s) -- the last
    assert.equal(100, row.served)
  end)

  it("knows agents, whose prompts grow by what their tools say", function()
    local rows = run("round_robin", "sglang_cache_aware", "--trace", "agents:requests=300,rate=8", "--engines", "3")
    assert.equal(300, rows[1].served)
    assert.is_true(rows[1].hit_ceiling > 0.9)
    assert.is_true(rows[2].hit_ratio > rows[1].hit_ratio)
  end)

  it("reads a gateway's records, and says what they cannot tell", function()
    local lines = {}
    for i = 1, 20 do
      lines[i] = json.encode({ v = 1, id = "r" .. i, at = ("2026-01-31T12:00:%02d.000Z"):format(i),
        prompt_tokens = 100 * i, session = "s" .. i % 2, decided_by = "policy", status = 200, events = 9 })
    end
    local rows = run("least_load", "--trace", proc.write("records.jsonl", table.concat(lines, "\n")))
    assert.equal(20, rows[1].served)
    assert.is_true(rows[1].hit_ceiling > 0.5)
    assert.matches("^records have no prompts", rows[1].trace_note)
  end)

  it("draws both latencies", function()
    local path = proc.write("plot.svg", "")
    local code, _, err = sim("compare", "random", "least_load", "--trace", TRACE, "--plot", path)
    assert.equal(0, code, err)
    local file = assert(io.open(path))
    local svg = file:read("*a")
    file:close()
    assert.matches("^<svg .*</svg>\n$", svg)
    local _, lines = svg:gsub("<polyline", "")
    assert.equal(4, lines) -- two for each policy
    assert.matches("prefers%-color%-scheme", svg)
    assert.matches(">least_load@1.0, 2 prefill, 2 decode, 0 alone: ", svg)
  end)

  it("has the gateway's line before its pool, by the policy's enqueue", function()
    local classes = proc.write("classes.lua", [[
      return { api = 2, name = "classes", version = "1",
        enqueue = function(req) return { class = req.prompt_tokens > 1500 and "low" or nil } end,
        plan = function(_, view) return { kind = "single", worker = view.hybrid[1] } end }]])
    local ask = { classes, "--engines", "1", "--trace", TRACE, "--max-concurrent-requests", "2", "--queue-size", "30" }
    local row, counted, called = run(unpack(ask))[1], 0, 0
    assert.same({ "normal", "low" }, { row.queue[1].class, row.queue[2].class })
    for _, class in ipairs(row.queue) do
      called = called + class.at_once + class.called
      counted = counted + class.full + class.put_out + class.too_long + class.timeout
    end
    assert.equal(row.served, called)
    assert.equal(400, called + counted)
    assert.is_true(row.queue[2].put_out > 0 and row.queue[2].waited_s > row.queue[1].waited_s)
    local _, text = sim(unpack(ask))
    assert.matches("classes@%S+, queue, class low: %d+ at once; %d+ waited", text)
  end)

  it("refuses what it cannot do, and names it", function()
    local bad = proc.write("bad.lua", "return { api = 2, name = \"bad\" ")
    local model = proc.write("model.lua", "return { prefil_ms = { 1, 2, 3 } }")
    local wide = proc.write("wide.lua", "return { max_seqs = 4294967296 }")
    for words, why in pairs({
      ["--trace " .. TRACE] = "which policy",
      ["random"] = "which load",
      ["random --trace /nowhere"] = "/nowhere: No such file",
      ["random --trace conversations:rate=x"] = "rate: expected a number",
      ["random --trace conversations --prefil 2"] = "did you mean %-%-prefill",
      ["random --trace conversations --prefix-index full"] = "%-%-prefix%-index: expected one of exact, approximate",
      ["random --trace conversations --prefill 0"] = "%-%-prefill: expected a whole number from 1 to 2048",
      ["random --trace conversations --skip 1.5"] = "%-%-skip: expected a whole number",
      ["random --trace conversations --speed 0"] = "%-%-speed: expected a number from 1e%-06",
      ["random --trace conversations --json=1"] = "%-%-json has no value",
      ["random --trace"] = "%-%-trace needs a value",
      ["random --trace conversations --engines 2 --decode 1"] = "either",
      ["randm --trace conversations"] = "random",
      [bad .. " --trace conversations"] = "bad.lua",
      ["advise random --trace conversations"] = "how many engines",
      ["random --trace conversations --engine-model " .. model] = "did you mean prefill_ms",
      ["random --trace conversations --plot /nowhere/a.svg"] = "%-%-plot /nowhere/a.svg: No such file",
      ["random --trace conversations --engine-model " .. wide] = "max_seqs: expected 1 number from 1 to 100000",
      ["random --trace conversations --fail p2@10"] = "%-%-fail: p2@10: there is no such engine",
      ["advise random --engines 4 --trace conversations --fail p0@10"] = "advise: %-%-fail",
      ["random --trace conversations --switch w0@10"] = "%-%-switch: w0@10: expected a prefill or decode engine",
      ["random --engines 4 --trace conversations --switch-auto"] = "%-%-switch%-auto: %-%-engines do both",
      ["random --trace conversations --queue-size 8"] = "%-%-queue%-size: for how many places",
      ["random --trace conversations --queue-aging-secs 8"] = "%-%-queue%-aging%-secs: for how many places",
      ["weight=1 random --trace conversations"] = "of which policy",
    }) do
      local argv = {}
      for word in words:gmatch("%S+") do
        argv[#argv + 1] = word
      end
      local code, out, err = sim(unpack(argv))
      assert.equal(2, code, words)
      assert.equal("", out)
      assert.matches(why, err)
    end
  end)
end)
