-- The bytes of both legs of MooncakeLayerwiseConnector, typed from vLLM-Ascend's layer-wise proxy and MindIE's PyMotor:
-- decode first with a metaserver, its call to there, then prefill with one token and what the call said.

local common = require("gateway.support.common")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local with_id = legs.with_id

local CALL_KEYS = {
  "token_ids", "request_id", "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_block_size",
  "remote_engine_id", "remote_host", "remote_port", "remote_tp_size", "remote_pcp_size", "remote_dcp_size",
  "remote_cached_tokens",
}

-- White space, a 23-digit integer, 0.7000, key order, escapes and unknown members: none of it is the gateway's
-- business.
local ODD = '  "temperature" : 0.7000 ,\n\t"big":12345678901234567890123, "deep" : {"z":1.0,"a":[ 1 ,2 ],'
  .. ' "\\u006b\\/":"\\u00e9é"},'
  .. ' "x-unknown":null , "neg":-0.0,"exp":1E+2'

local PROMPT = "The gateway takes the words and hands them on, one two three four five six seven eight nine ten."

local ROUTES = {
  {
    path = "/v1/completions",
    prompt = '"prompt":"' .. PROMPT .. '"',
    tokens = '"max_tokens" : 6, "min_tokens":2',
    chat = false,
    engine_id = "cmpl-%s-0",
  },
  {
    path = "/v1/chat/completions",
    prompt = '"messages":[ {"role":"user", "content":"' .. PROMPT .. '","cache_control":{"t":1.50}} ]',
    tokens = '"max_tokens":6,"max_completion_tokens":6',
    chat = true,
    engine_id = "chatcmpl-%s",
  },
  {
    path = "/v1/responses",
    prompt = '"input":"' .. PROMPT .. '"',
    tokens = '"max_output_tokens":6',
    chat = true,
    engine_id = "resp_%s_0",
  },
  {
    path = "/v1/messages",
    prompt = '"messages":[{"role":"user","content":[{"type":"text","text":"' .. PROMPT .. '"}]}]',
    tokens = '"max_tokens":6',
    chat = true,
  },
}

local DIALECTS = {
  { engine = "vllm_ascend", prefill = {} },
  { engine = "mindie", prefill = { min_tokens = "1" }, only = { ["/v1/completions"] = true,
    ["/v1/chat/completions"] = true } },
}

local function body_of(route, more)
  return '{ "model" : "sim",' .. route.prompt .. "," .. ODD .. "," .. route.tokens .. (more and "," .. more or "")
    .. " }"
end

local function start(engine, workers, flags)
  local f = fleet.start({
    workers = workers,
    config = function(w)
      local rows = {}
      for name, one in pairs(w) do
        rows[#rows + 1] = ('{ name = "%s", url = "%s", role = "%s" }'):format(name, one.url, one.role)
      end
      return ([[return { connector = "MooncakeLayerwiseConnector", engine = "%s", policy = "round_robin",
        pools = { { workers = { %s } } } }]]):format(engine, table.concat(rows, ", "))
    end,
    flags = flags or { "--metaserver-port", "0", "--no-replay-recomputed" },
    ready = false,
  })
  eventually(function()
    return f:get("/readiness").status == 200
  end)
  return f
end

local TAIL = ",connector=MooncakeLayerwiseConnector,ttft=1,itl=1"

for _, dialect in ipairs(DIALECTS) do
  describe("legs of MooncakeLayerwiseConnector on " .. dialect.engine, function()
    local f

    setup(function()
      f = start(dialect.engine, { "role=prefill" .. TAIL, "role=decode" .. TAIL })
    end)

    teardown(function()
      f:stop()
      proc.clean()
    end)

    -- What decode was told, and what it then said to the metaserver, as prefill got it.
    local function check_decode(route, client, d)
      local raw = json.raw(d.body, "kv_transfer_params")
      legs.check(client, d.body, { added = with_id(route, d.headers["x-request-id"], { kv_transfer_params = raw }) })
      assert.same({ "do_remote_decode", "do_remote_prefill", "metaserver" }, json.keys(raw))
      assert.equal("false", json.raw(raw, "do_remote_decode"))
      assert.equal("true", json.raw(raw, "do_remote_prefill"))
      assert.truthy(json.decode(raw).metaserver:find("^http://127%.0%.0%.1:%d+/v1/metaserver%?attempt=%d+$"), raw)
      assert.truthy(d.body:sub(1, #client - 2) == client:sub(1, -3), "the client's bytes, then ours: " .. d.body)
    end

    local function check_prefill(route, client, p, d)
      local raw = json.raw(p.body, "kv_transfer_params")
      local id = p.headers["x-request-id"]
      local change = legs.one_token(route.path, client, with_id(route, id, { kv_transfer_params = raw }))
      if dialect.only == nil or dialect.only[route.path] then
        for key, value in pairs(dialect.prefill) do
          local is_there = json.raw(client, key) ~= nil
          change[is_there and "set" or "added"][key] = value
          for i, removed in ipairs(change.removed) do
            if removed == key then
              table.remove(change.removed, i)
              break
            end
          end
        end
      end
      legs.check(client, p.body, change)
      assert.same(CALL_KEYS, json.keys(raw))
      assert.equal("true", json.raw(raw, "do_remote_decode"))
      assert.equal("false", json.raw(raw, "do_remote_prefill"))
      assert.equal("[]", json.raw(raw, "token_ids"))
      assert.equal('"d0"', json.raw(raw, "remote_engine_id"))
      assert.equal('"127.0.0.1"', json.raw(raw, "remote_host"))
      assert.equal(tostring(f.workers.d0.second), json.raw(raw, "remote_port"))
      assert.equal(d.headers["x-request-id"], id)
      if route.engine_id then
        assert.equal(json.encode(route.engine_id:format(id)), json.raw(raw, "request_id"))
      end
    end

    for _, route in ipairs(ROUTES) do
      for _, stream in ipairs({ false, '"stream":false', '"stream" : true' }) do
        it(route.path .. " with " .. (stream or "no stream member"), function()
          local body = body_of(route, stream or nil)
          local answer, seen = f:exchange(route.path, body)
          assert.equal(200, answer.status, answer.body)
          assert.equal("trigger", answer:header("x-baton-plan"))
          local p, d = legs.one(seen.prefill), legs.one(seen.decode)
          check_decode(route, body, d)
          check_prefill(route, body, p, d)
          assert.same({ fleet.expect(PROMPT, 6, { chat = route.chat }) }, texts.of(route.path, answer))
          assert.equal(200, f:state("d0").callback_status)
          assert.equal(f:state("d0").callbacks_sent, f:state("d0").callbacks_answered)
          assert.equal(0, f:state("p0").failed_transfers)
        end)
      end
    end

    it("adds what is absent to the smallest body", function()
      local answer, seen = f:exchange("/v1/completions", '{"prompt":"x"}')
      assert.equal(200, answer.status, answer.body)
      local added = { stream = "false", max_tokens = "1",
        kv_transfer_params = json.raw(seen.prefill[1].body, "kv_transfer_params") }
      for key, value in pairs(dialect.prefill) do
        added[key] = value
      end
      legs.check('{"prompt":"x"}', seen.prefill[1].body, { added = added })
    end)

    it("tells of a trigger in record and metrics", function()
      local before = f:metric("baton_callbacks_total")
      local waits = f:metric("baton_callback_wait_seconds_count")
      local answer = f:post("/v1/completions", '{"model":"sim","prompt":"told","max_tokens":2}')
      assert.equal(200, answer.status, answer.body)
      assert.equal(before + 1, f:metric("baton_callbacks_total"))
      assert.equal(waits + 1, f:metric("baton_callback_wait_seconds_count"))
      local record = json.decode(http.get(f.admin_port, "/explain/" .. answer:header("x-request-id")).body)
      local attempt = record.attempts[1]
      assert.equal("trigger", record.plan.kind)
      assert.equal("trigger", attempt.kind)
      assert.is_true(attempt.callback_ms > attempt.start_ms)
      assert.is_true(attempt.prefill_ms > attempt.callback_ms)
      assert.is_true(attempt.first_byte_ms > attempt.callback_ms)
      local story = http.get(f.admin_port, "/explain/" .. answer:header("x-request-id") .. "?format=text").body
      assert.truthy(story:find("decode called at ", 1, true), story)
    end)

    local ORDINARY = common.ORDINARY
    local OURS = { prefill = { "kv_transfer_params" }, decode = { "kv_transfer_params" } }
    local function get()
      return f
    end
    common.headers(get, ORDINARY)
    common.ids(get, ORDINARY)
    common.forged(get, ORDINARY, OURS)
  end)
end

describe("lists and samples over MooncakeLayerwiseConnector", function()
  local f

  setup(function()
    f = start("vllm_ascend", { "role=prefill,count=2" .. TAIL, "role=decode,count=2" .. TAIL })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  -- Each child has a call, an attempt and a prefill of its own.
  local function check_children(seen, count, id)
    assert.equal(count, #seen.prefill)
    assert.equal(count, #seen.decode)
    local rooms, ids = {}, {}
    for _, d in ipairs(seen.decode) do
      local url = json.raw(d.body, "kv_transfer_params", "metaserver")
      assert.is_nil(rooms[url], "one attempt for each child")
      rooms[url] = true
      ids[d.headers["x-request-id"]] = true
      assert.is_nil(json.raw(d.body, "n"))
    end
    for _, p in ipairs(seen.prefill) do
      assert.is_true(ids[p.headers["x-request-id"]] or false)
    end
    for i = 0, count - 1 do
      assert.is_true(ids[id .. "-" .. i] or false, "child " .. i)
    end
  end

  for _, stream in ipairs({ false, true }) do
    local how = stream and ", streamed" or ""
    local tail = stream and ',"stream":true,"stream_options":{"include_usage":true}}' or "}"

    it("splits a list of prompts" .. how, function()
      local body = '{"model":"sim","prompt":["first prompt", "the second one" ,"3rd"],"max_tokens":4' .. tail
      local answer, seen = f:exchange("/v1/completions", body, { ["X-Request-Id"] = "list" })
      assert.equal(200, answer.status, answer.body)
      check_children(seen, 3, "list")
      assert.same({ fleet.expect("first prompt", 4), fleet.expect("the second one", 4), fleet.expect("3rd", 4) },
        texts.of("/v1/completions", answer))
    end)

    it("splits n samples" .. how, function()
      local body = '{"model":"sim","messages":[{"role":"user","content":"sample me"}],"n" : 3,"seed":40,'
        .. '"max_tokens":5,"temperature":1.0' .. tail
      local answer, seen = f:exchange("/v1/chat/completions", body, { ["X-Request-Id"] = "samples" })
      assert.equal(200, answer.status, answer.body)
      check_children(seen, 3, "samples")
      local wanted = {}
      for i = 0, 2 do
        wanted[i + 1] = fleet.expect("sample me", 5, { chat = true, seed = 40 + i })
      end
      assert.same(wanted, texts.of("/v1/chat/completions", answer))
    end)
  end

  it("serves many at once over all loops", function()
    local asks = {}
    for i = 1, 40 do
      asks[i] = { path = "/v1/completions",
        body = ('{"model":"sim","prompt":"one of many, the %dth","max_tokens":3,"stream":%s}'):format(i,
          i % 2 == 0 and "true" or "false") }
    end
    for i, answer in ipairs(http.together(f.port, asks)) do
      assert.equal(200, answer.status, answer.body)
      assert.same({ fleet.expect(("one of many, the %dth"):format(i), 3) }, texts.of("/v1/completions", answer))
    end
  end)
end)
