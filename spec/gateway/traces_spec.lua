-- Traces: W3C Trace Context in and out, spans at a collector, what is kept, a collector that is away.

local certs = require("gateway.support.certs")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local otlp = require("gateway.support.otlp")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
local PARENT = "00f067aa0ba902b7"
local SAMPLED = "00-" .. TRACE .. "-" .. PARENT .. "-01"
local MS = 1e6

local f, collector

local function start(flags, ask)
  local words = { "--vllm-pd-disaggregation", "--log-format", "json" }
  proc.append(words, flags)
  if collector then
    words[#words + 1] = "--trace-endpoint"
    words[#words + 1] = collector.url
  end
  f = fleet.start({
    workers = ask and ask.workers or { "role=prefill,engine=vllm,count=2,itl=1,ttft=1",
      "role=decode,engine=vllm,count=2,itl=1,ttft=1" },
    flags = words, sim = { "--time-scale", "0.05" }, ready = ask and ask.ready,
  })
end

local function ask(headers, opts)
  return f:post(PATH, faults.body(opts), headers)
end

local function counter(name, labels)
  return faults.number(f, name, labels)
end

-- What a leg was told: trace, span, flags.
local function told(leg)
  return leg.headers.traceparent:match("^00%-(%x+)%-(%x+)%-(%x%x)$")
end

local function legs_by_role()
  local out = {}
  for _, list in pairs(f:legs()) do
    for _, leg in ipairs(list) do
      out[#out + 1] = leg
      out[leg.worker:sub(1, 1)] = leg
    end
  end
  assert.is_true(#out > 0)
  return out
end

local function one(tree, name)
  assert.equal(1, tree.by_name[name] and #tree.by_name[name] or 0, name)
  return tree.by_name[name][1]
end

local function assert_within(outer, inner)
  assert.is_true(inner.from >= outer.from - MS, inner.name .. " begins before " .. outer.name)
  assert.is_true(inner.to <= outer.to + MS, inner.name .. " ends after " .. outer.name)
end

local function assert_one_tree(tree)
  for _, s in ipairs(tree.spans) do
    if s ~= tree.root then
      assert.truthy(tree.by_id[s.parent], s.name .. " has no parent")
      assert_within(tree.by_id[s.parent], s)
    end
  end
end

after_each(function()
  if f then
    f:stop()
  end
  if collector then
    collector:stop()
  end
  f, collector = nil, nil
end)

describe("a trace", function()
  it("of a hand-off is one tree with both legs inside", function()
    collector = otlp.start()
    start()
    local answer = ask({ traceparent = SAMPLED, tracestate = "vendor=1,t@sys=a b", ["X-Request-Id"] = "hand-1" },
      { stream = true })
    assert.equal(200, answer.status, answer.body)
    local legs = legs_by_role()
    local tree = collector:trace(TRACE)
    assert_one_tree(tree)
    local root, attempt = tree.root, one(tree, "attempt")
    assert.equal(PARENT, root.parent)
    assert.equal("text_completion sim", root.name)
    assert.equal(2, root.kind)
    assert.same({ "text_completion", "vllm", "sim", "hand-1", "default", "handoff", "sampled", 200 },
      { root.a["gen_ai.operation.name"], root.a["gen_ai.provider.name"], root.a["gen_ai.request.model"],
        root.a["baton.request.id"], root.a["baton.pool"], root.a["baton.plan.kind"], root.a["baton.trace.kept"],
        root.a["http.response.status_code"] })
    assert.equal(faults.PROMPT_TOKENS, root.a["gen_ai.usage.input_tokens"])
    assert.is_true(root.a["gen_ai.usage.output_tokens"] >= faults.TOKENS)
    assert.same({ "baton" }, { collector.resource["service.name"] })
    local prefill, decode, transfer = one(tree, "prefill"), one(tree, "decode"), one(tree, "transfer")
    for _, s in ipairs({ prefill, decode, transfer }) do
      assert.equal(attempt.id, s.parent)
    end
    assert.equal(root.id, one(tree, "policy").parent)
    assert.same({ 3, 3, 1 }, { prefill.kind, decode.kind, transfer.kind })
    assert.is_true(math.abs(transfer.from - prefill.to) <= MS)
    assert.is_true(math.abs(transfer.to - decode.events["first token"]) <= MS)
    assert.is_true(decode.from >= prefill.to - MS)
    for role, span in pairs({ p = prefill, d = decode }) do
      local trace, id, flags = told(legs[role])
      assert.same({ TRACE, span.id, "01" }, { trace, id, flags })
      assert.equal("vendor=1,t@sys=a b", legs[role].headers.tracestate)
      assert.equal(legs[role].worker, span.a["baton.worker"])
    end
  end)

  it("of a request that is tried again has both attempts", function()
    collector = otlp.start()
    start({ "--trace-sample", "0" })
    f.sim:fault("d0", { kind = "rst", times = 1 })
    local count = 0
    local record = eventually(function() -- until one has chosen it
      count = count + 1
      local answer = ask({ ["X-Request-Id"] = "twice-" .. count })
      assert.equal(200, answer.status, answer.body)
      local r = json.decode(http.get(f.admin_port, "/admin/explain/twice-" .. count).body)
      return #(r.attempts or {}) == 2 and r
    end, 10, "a second attempt")
    local tree = collector:trace(record.trace_id)
    assert_one_tree(tree)
    assert.equal("retried", tree.root.a["baton.trace.kept"])
    assert.is_nil(tree.root.parent)
    assert.equal("reset", one(tree, "attempt").error)
    assert.is_true(#tree.by_name.failover >= 1)
    local first, second = tree.by_name.decode[1], tree.by_name.decode[2]
    assert.equal("reset", first.error or second.error)
    assert.is_true(first.parent ~= second.parent)
    assert.equal(0, counter("baton_traces_kept_total", { why = "sampled" }))
  end)

  it("of a prefill that served another decode tells whom it was for", function()
    collector = otlp.start()
    start({ "--disable-health-check", "--decode", "http://127.0.0.1:1", "--trace-sample", "0" }, { ready = false })
    local count = 0
    local record = eventually(function() -- until one has chosen the worker that is not there
      count = count + 1
      assert.equal(200, ask({ ["X-Request-Id"] = "to-" .. count }).status)
      local r = json.decode(http.get(f.admin_port, "/admin/explain/to-" .. count).body)
      return r.attempts and r.attempts[1].replaced and r
    end, 10, "a decode in the place of another")
    local tree = collector:trace(record.trace_id)
    assert_one_tree(tree)
    assert.equal(2, #tree.by_name.decode)
    local missed, served = tree.by_name.decode[1], tree.by_name.decode[2]
    assert.same({ "connect", nil }, { missed.error, served.error })
    assert.equal(missed.a["baton.worker"], served.a["baton.replaces"])
    assert.equal(missed.parent, served.parent)
    assert.equal(1, #tree.by_name.prefill)
  end)

  it("of a request that fails is kept, and one of a client's mistake is not", function()
    collector = otlp.start()
    start({ "--trace-sample", "0", "--disable-retries" })
    assert.equal(400, f:post(PATH, "{broken").status)
    f.sim:fault("p0", { kind = "status", status = 500, times = 9 })
    f.sim:fault("p1", { kind = "status", status = 500, times = 9 })
    local answer = ask({ ["X-Request-Id"] = "bad" })
    assert.is_true(answer.status >= 500, answer.body)
    local record = json.decode(http.get(f.admin_port, "/admin/explain/bad").body)
    local tree = collector:trace(record.trace_id)
    assert.equal("failed", tree.root.a["baton.trace.kept"])
    assert.is_string(tree.root.error)
    assert.is_string(one(tree, "prefill").error)
    assert.equal(1, counter("baton_traces_kept_total"))
  end)

  it("of a slow request is kept", function()
    collector = otlp.start()
    start({ "--trace-sample", "0", "--trace-slow-ms", "1" },
      { workers = { "role=prefill,engine=vllm,itl=1,ttft=400", "role=decode,engine=vllm,itl=1,ttft=400" } })
    assert.equal(200, ask({ ["X-Request-Id"] = "slow" }).status)
    local record = json.decode(http.get(f.admin_port, "/admin/explain/slow").body)
    assert.equal("slow", collector:trace(record.trace_id).root.a["baton.trace.kept"])
  end)

  it("is in the lines of the log", function()
    collector = otlp.start()
    start()
    ask({ traceparent = SAMPLED })
    eventually(function()
      return f.gateway:stderr():find('"trace_id":"' .. TRACE .. '"', 1, true)
    end, 10, "the access log has the trace")
  end)
end)

describe("traceparent", function()
  local wrong = {
    ["00-" .. TRACE .. "-" .. PARENT .. "-1"] = "too short",
    ["00-" .. TRACE:upper() .. "-" .. PARENT .. "-01"] = "upper case",
    ["ff-" .. TRACE .. "-" .. PARENT .. "-01"] = "version ff",
    ["00-" .. ("0"):rep(32) .. "-" .. PARENT .. "-01"] = "no trace",
    ["00-" .. TRACE .. "-" .. ("0"):rep(16) .. "-01"] = "no parent",
    ["00-" .. TRACE .. "-" .. PARENT .. "-01-x"] = "more than version 00 has",
    ["nonsense"] = "nonsense",
  }

  it("that is malformed counts as none, and its tracestate too", function()
    collector = otlp.start()
    start()
    for value, why in pairs(wrong) do
      f:mark()
      assert.equal(200, ask({ traceparent = value, tracestate = "vendor=1" }).status)
      for _, leg in ipairs(legs_by_role()) do
        local trace, _, flags = told(leg)
        assert.not_equal(TRACE, trace, why)
        assert.truthy(flags == "00" or flags == "01", why)
        assert.is_nil(leg.headers.tracestate, why)
      end
    end
  end)

  it("keeps the trace where only tracestate is malformed, and says what was decided", function()
    collector = otlp.start()
    start({ "--trace-sample", "1" })
    assert.equal(200, ask({ traceparent = SAMPLED:gsub("01$", "00"), tracestate = "Upper=1" }).status)
    for _, leg in ipairs(legs_by_role()) do
      local trace, _, flags = told(leg)
      assert.same({ TRACE, "00" }, { trace, flags })
      assert.is_nil(leg.headers.tracestate)
    end
  end)

  it("goes through as it is where there are no traces", function()
    start()
    assert.equal(200, ask({ traceparent = "nonsense", tracestate = "Upper=1" }).status)
    for _, leg in ipairs(legs_by_role()) do
      assert.same({ "nonsense", "Upper=1" }, { leg.headers.traceparent, leg.headers.tracestate })
    end
  end)
end)

describe("the collector", function()
  it("may be away: requests go on, and spans come when it is back", function()
    collector = otlp.start()
    collector:order({ op = "answer", answers = { { 503, {}, "{}" }, { 429, { ["Retry-After"] = "1" }, "{}" } } })
    start()
    for _ = 1, 3 do
      assert.equal(200, ask({ traceparent = SAMPLED }).status)
    end
    local function whole()
      collector:pump()
      local roots = 0
      for _, s in ipairs(collector.spans) do
        roots = roots + (s.kind == 2 and 1 or 0)
      end
      return roots == 3, roots
    end
    eventually(whole, 30, "all three traces")
    assert.equal(2, collector:order({ op = "look" }).refused)
    eventually(function()
      return counter("baton_trace_spans_total", { outcome = "exported" }) == #collector.spans
    end, 5, "all are counted")
    assert.equal(2, counter("baton_trace_export_errors_total"))
    assert.equal(0, counter("baton_trace_spans_total", { outcome = "dropped" }))
  end)

  it("that refuses spans is believed", function()
    collector = otlp.start()
    collector:order({ op = "answer", answers = {
      { 200, {}, '{"partialSuccess":{"rejectedSpans":"2","errorMessage":"no"}}' }, { 400, {}, "{}" } } })
    start()
    ask({ traceparent = SAMPLED })
    eventually(function()
      return counter("baton_trace_spans_total", { outcome = "rejected" }) == 2
    end, 10, "two are rejected")
    ask({ traceparent = SAMPLED })
    eventually(function()
      return counter("baton_trace_spans_total", { outcome = "rejected" }) > 2
    end, 10, "a batch is rejected")
  end)

  it("gets the rest at the end", function()
    collector = otlp.start()
    start()
    ask({ traceparent = SAMPLED })
    f:stop()
    f = nil
    collector:pump()
    assert.truthy(collector:trace(TRACE, 1).root)
  end)

  it("is spoken to by TLS, with headers from a file", function()
    local ca = certs.new()
    local cert, key = ca:make("collector", { san = "IP:127.0.0.1" })
    collector = otlp.start({ cert, key })
    start({ "--trace-ca-file", ca.ca, "--trace-service-name", "edge", "--trace-headers-file",
      proc.write("headers", "# of the collector\nX-Key: k-1\n") })
    ask({ traceparent = SAMPLED })
    collector:trace(TRACE)
    assert.equal("k-1", collector.calls[1].headers["x-key"])
    assert.equal("edge", collector.resource["service.name"])
  end)
end)

describe("exemplars", function()
  it("stand behind buckets, where OpenMetrics is asked for", function()
    collector = otlp.start()
    start()
    ask({ traceparent = SAMPLED })
    local answer = http.request(f.admin_port,
      { path = "/metrics", headers = { Accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5" } })
    assert.equal("application/openmetrics-text; version=1.0.0; charset=utf-8", answer:header("content-type"))
    assert.equal("# EOF\n", answer.body:sub(-6))
    assert.truthy(answer.body:match('baton_ttft_seconds_bucket{le="[^"]+"} 1 # {trace_id="' .. TRACE
      .. '"} %d+%.%d+ %d+%.%d+\n'), answer.body:match("baton_ttft_seconds_bucket[^\n]*"))
    -- Its other times too, each in the bucket that has counted it.
    for _, name in ipairs({ "request_duration", "prefill", "handoff_wait", "decode", "decision" }) do
      local le, n, value = answer.body:match("baton_" .. name .. '_seconds_bucket{le="([^"]+)"} (%d+) # {trace_id="'
        .. TRACE .. '"} (%d+%.%d+) ')
      assert.truthy(le, name .. ": " .. tostring(answer.body:match("baton_" .. name .. "_seconds_bucket[^\n]*")))
      assert.equal("1", n, name)
      assert.is_true(le == "+Inf" or tonumber(value) <= tonumber(le), name)
    end
    assert.truthy(answer.body:find("# TYPE baton_attempts counter\n", 1, true))
    assert.truthy(answer.body:find("\nbaton_attempts_total 1\n", 1, true))
    local plain = http.request(f.admin_port, { path = "/metrics" }).body
    assert.is_nil(plain:find(TRACE, 1, true))
    assert.is_nil(plain:find("# EOF", 1, true))
  end)
end)

describe("what cannot be", function()
  it("is refused at the start, with the remedy", function()
    for _, row in ipairs({
      { { "--trace-endpoint", "collector:4317" }, "--trace-endpoint: expected http://HOST:PORT" },
      { { "--trace-ca-file", "x.pem" }, "traces go nowhere: add --trace-endpoint URL" },
      { { "--trace-endpoint", "http://127.0.0.1:1", "--trace-headers-file", proc.write("bad", "no colon\n") },
        ":1: expected \"name: value\"" },
    }) do
      local argv = { fleet.binary("BATON_BIN", "baton"), "run", "--port", "0", "--prometheus-port", "0",
        "--worker-urls", "http://127.0.0.1:1" }
      for _, word in ipairs(row[1]) do
        argv[#argv + 1] = word
      end
      local process = proc.start(argv, { name = "refused" })
      assert.equal(2, (process:wait(10)))
      assert.truthy(process:stderr():find(row[2], 1, true), process:stderr())
    end
  end)
end)
