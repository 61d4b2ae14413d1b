-- otlp.lua - an OpenTelemetry collector (otlp.py) that is strict about what it gets.
--
--   local c = otlp.start()                  -- c.url for --trace-endpoint
--   local trace = c:trace(trace_id)         -- waits for it: { spans = list, by_name = ..., root = ... }

local eventually = require("gateway.support.eventually")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local otlp = {}

local Collector = {}
Collector.__index = Collector

-- certs: { cert, key }: over TLS.
function otlp.start(certs)
  local ready = proc.path("otlp.ready")
  local argv = { "/usr/bin/env", "python3", "-B", "spec/gateway/support/otlp.py", ready }
  proc.append(argv, certs)
  local process = proc.start(argv, { name = "otlp" })
  local text = eventually(function()
    return proc.read(ready), process:stderr()
  end, 20, "the collector listens")
  local port, control = text:match("otlp (%d+) control (%d+)")
  return setmetatable({
    process = process, port = tonumber(port), control = tonumber(control), spans = {}, calls = {}, ids = {},
    url = (certs and "https" or "http") .. "://127.0.0.1:" .. port,
  }, Collector)
end

function Collector:order(order)
  local answer = http.post(self.control, "/control", json.encode(order))
  assert(answer.status == 200, answer.body)
  return json.decode(answer.body)
end

-- ---- what OTLP asks ----

local VALUE = { stringValue = "string", intValue = "string", doubleValue = "number", boolValue = "boolean" }

local function check(ok, what, span)
  if not ok then
    error(("%s: %s"):format(what, json.encode(span)), 0)
  end
end

local function attributes_of(list, span)
  local out = {}
  for _, a in ipairs(list) do
    local kind, value = next(a.value)
    check(type(a.key) == "string" and out[a.key] == nil, "an attribute twice", span)
    check(VALUE[kind] == type(value) and next(a.value, kind) == nil, "a value of no type", span)
    out[a.key] = kind == "intValue" and assert(tonumber(value)) or value
  end
  return out
end

local function nanoseconds(text, span)
  check(type(text) == "string" and text:match("^%d+$"), "a time that is no string of digits", span)
  return tonumber(text)
end

local MEMBERS = {
  traceId = true, spanId = true, parentSpanId = true, name = true, kind = true, startTimeUnixNano = true,
  endTimeUnixNano = true, attributes = true, events = true, status = true,
}

local function read_span(span)
  for member in pairs(span) do
    check(MEMBERS[member], "an unknown member " .. member, span)
  end
  check(span.traceId:match("^%x+$") and #span.traceId == 32 and not span.traceId:match("%u"), "its trace", span)
  check(span.spanId:match("^%x+$") and #span.spanId == 16 and span.spanId ~= ("0"):rep(16), "its id", span)
  check(span.parentSpanId == nil or #span.parentSpanId == 16, "its parent", span)
  check(span.kind == 1 or span.kind == 2 or span.kind == 3, "its kind", span)
  check(#span.name > 0, "its name", span)
  local out = {
    trace = span.traceId, id = span.spanId, parent = span.parentSpanId, name = span.name, kind = span.kind,
    from = nanoseconds(span.startTimeUnixNano, span), to = nanoseconds(span.endTimeUnixNano, span), events = {},
    a = attributes_of(span.attributes, span), error = span.status.code == 2 and span.status.message or nil,
  }
  check(out.from <= out.to, "it ends before it begins", span)
  for _, e in ipairs(span.events or {}) do
    out.events[e.name] = nanoseconds(e.timeUnixNano, span)
  end
  return out
end

function Collector:read(call)
  local body = json.decode(call.body)
  assert(call.path == (self.path or "/v1/traces"), call.path)
  assert(call.headers["content-type"] == "application/json", call.headers["content-type"])
  for _, r in ipairs(body.resourceSpans) do
    self.resource = attributes_of(r.resource.attributes, r)
    for _, s in ipairs(r.scopeSpans) do
      assert(s.schemaUrl:match("^https://opentelemetry%.io/schemas/1%.%d+%.0$"), s.schemaUrl)
      for _, raw in ipairs(s.spans) do
        local span = read_span(raw)
        check(not self.ids[span.trace .. span.id], "an id twice", raw)
        self.ids[span.trace .. span.id] = true
        self.spans[#self.spans + 1] = span
      end
    end
  end
end

function Collector:pump()
  for _, call in ipairs(self:order({ op = "take" }).calls) do
    self.calls[#self.calls + 1] = call
    self:read(call)
  end
end

-- ---- trees ----

-- Whether all of them hang on one root, whose parent (of the client's) is nobody here.
local function tree_of(spans)
  local by_id, by_name, root = {}, {}, nil
  for _, s in ipairs(spans) do
    by_id[s.id] = s
    by_name[s.name] = by_name[s.name] or {}
    table.insert(by_name[s.name], s)
  end
  for _, s in ipairs(spans) do
    if not by_id[s.parent] then
      assert(root == nil, "two roots")
      root = s
    end
  end
  return { spans = spans, by_id = by_id, by_name = by_name, root = root }
end

-- The trace, once its root is there.
function Collector:trace(id, seconds)
  return eventually(function()
    self:pump()
    local spans, is_whole = {}, false
    for _, s in ipairs(self.spans) do
      if s.trace == id then
        spans[#spans + 1] = s
        is_whole = is_whole or s.kind == 2
      end
    end
    return is_whole and tree_of(spans), #self.spans .. " spans in all"
  end, seconds or 10, "trace " .. id)
end

function Collector:stop()
  self.process:kill()
end

return otlp
