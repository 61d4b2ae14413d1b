-- The simulator refuses what engines refuse: each leg field in turn is dropped, retyped or swapped for another's.
--
-- No gateway here: this file is the dispatcher, and its right legs are typed from the references of the engines' wire.
-- A gateway's specs against this simulator can fail only because these pass.
--
-- A row: field, how it was mutated, what stands there now (nil: nothing; a function: told of the exchange), and what
-- comes of it on p(refill) and d(ecode):
--   a number    that status, the engine lives
--   dies        the engine is dead, and its port is closed soon after
--   waits       no answer while other requests get theirs; dies_on_leave: the engine dies when the client gives up
--   wrong       200 with another text than that of the prompt that decode was asked
--   computes    200 and the right text, but decode has computed the prompt itself: nothing was handed on
--   strands     200 and the right text, but prefill does not learn that its KV was read, and holds it
--   right       200 and the right text: the reference says that engines take this
--   orphaned    no answer: its partner's engine is dead

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local TOKENS = 6

-- Two prompts of as many blocks each, no block the same; one of fewer and one of more.
local OURS = ("The runner before us keeps the baton until our hand is there. "):rep(4)
local THEIRS = ("Another team runs on another lane, and its baton is not ours. "):rep(4)
local SHORT = "A short run."
local LONG = ("A long way round, with many more legs than the other teams ran. "):rep(9)

local ASKED = '{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
  .. '"remote_host":null,"remote_port":null}'

local sim, numbered = nil, 0

-- ---- the simulator ----

-- plain takes no part in any exchange: it can be asked about workers that are dead.
local function control(route, name)
  local answer = http.request(sim.workers.plain.port, { path = route .. "?worker=" .. name, body = "{}" })
  assert.equal(200, answer.status, answer.body)
  return json.decode(answer.body)
end

local function state(name)
  return json.decode(http.get(sim.workers.plain.port, "/sim/state?worker=" .. name).body)
end

local function reset()
  for _, w in ipairs(sim.list) do
    control("/sim/reset", w.name)
  end
end

-- ---- legs ----

-- The object with this member changed, at its end when it is new; raw nil: without it.
local function with(object, key, raw)
  local out = {}
  for _, m in ipairs(json.members(object)) do
    if m.key ~= key then
      out[#out + 1] = m.raw_key .. ":" .. m.raw
    end
  end
  if raw then
    out[#out + 1] = json.encode(key) .. ":" .. raw
  end
  return "{" .. table.concat(out, ",") .. "}"
end

local function body_of(prompt, max_tokens)
  return ('{"model":"sim","prompt":%s,"max_tokens":%d,"stream":false}'):format(json.encode(prompt), max_tokens)
end

local function send(worker, body, id, more)
  local headers = { ["X-Request-Id"] = id }
  for name, value in pairs(more or {}) do
    headers[name] = value
  end
  return http.start(sim.workers[worker].port, { path = PATH, body = body, headers = headers })
end

-- A second port (side channel, bootstrap server) is known once the simulator runs, so rows hold a function.
local function second_port(name, format)
  return function()
    return (format or "%d"):format(sim.workers[name].second)
  end
end

local function new_exchange(prompt)
  numbered = numbered + 1
  return { prompt = prompt, id = "request-" .. numbered, room = "46116860184273" .. 87904 + numbered }
end

-- ---- nixl: prefill first, its reply's parameters to decode ----

local nixl = { name = "nixl", worker = "connector=NixlConnector,lease_ms=100000000" }

local function nixl_prefill(x, params)
  x.p = send("p0", with(body_of(x.prompt, 1), "kv_transfer_params", params), x.id)
  x.p:wait()
  return json.raw(x.p.answer.body, "kv_transfer_params")
end

-- Parameters of another request, whose KV prefill holds; one member of them when key is given.
local function params_of(prompt, key)
  return function()
    local params = nixl_prefill(new_exchange(prompt), ASKED)
    return key and json.raw(params, key) or params
  end
end

-- change(leg, object): the object that goes out.
function nixl.start(x, change)
  local asked = with("{}", "kv_transfer_params", change("prefill", ASKED))
  asked = change("prefill body", asked)
  local params = nixl_prefill(x, json.raw(asked, "kv_transfer_params"))
  local body = with(body_of(x.prompt, TOKENS), "kv_transfer_params", params and change("decode", params))
  x.d = send("d0", change("decode body", body), x.id)
end

nixl.rows = {
  prefill = {
    { "do_remote_decode", "dropped", nil, d = "computes" },
    { "do_remote_decode", "false", "false", d = "computes" },
    { "do_remote_decode", "an empty string", '""', d = "computes" },
    { "do_remote_decode", "a number", "0", d = "computes" },
  },
  ["prefill body"] = {
    { "kv_transfer_params", "dropped", nil, d = "computes" },
    { "kv_transfer_params", "a string", '"do_remote_decode"', p = 400, d = "computes" },
    { "kv_transfer_params", "a list", "[" .. ASKED .. "]", p = 400, d = "computes" },
  },
  decode = {
    { "do_remote_prefill", "dropped", nil, d = "computes" },
    { "do_remote_prefill", "false", "false", d = "computes" },
    { "do_remote_prefill", "a number", "0", d = "computes" },
    { "remote_block_ids", "dropped", nil, d = "dies" },
    { "remote_block_ids", "null", "null", d = "dies" },
    { "remote_block_ids", "empty", "[]", d = "dies" },
    { "remote_block_ids", "a number", "1", d = "dies" },
    { "remote_block_ids", "a string", '"1"', d = "dies" },
    { "remote_block_ids", "too few", "[[1]]", d = "dies" },
    { "remote_block_ids", "another request's", params_of(THEIRS, "remote_block_ids"), d = "wrong" },
    { "remote_block_ids", "a longer request's", params_of(LONG, "remote_block_ids"), d = "wrong" },
    { "remote_block_ids", "a shorter request's", params_of(SHORT, "remote_block_ids"), d = "dies" },
    { "remote_engine_id", "dropped", nil, d = "waits", dies_on_leave = true },
    { "remote_engine_id", "another worker's", '"p1"', d = 500 },
    { "remote_engine_id", "a number", "0", d = 500 },
    { "remote_engine_id", "a list", '["p0"]', d = 500 },
    { "remote_request_id", "dropped", nil, d = "waits", dies_on_leave = true },
    { "remote_request_id", "another request's", params_of(THEIRS, "remote_request_id"), d = "strands" },
    { "remote_request_id", "a number", "7", d = "strands" },
    { "remote_host", "dropped", nil, d = "waits", dies_on_leave = true },
    { "remote_host", "another host", '"127.0.0.2"', d = 500 },
    { "remote_host", "a number", "127", d = 500 },
    { "remote_host", "a list", '["127.0.0.1"]', d = 500 },
    { "remote_port", "dropped", nil, d = "waits", dies_on_leave = true },
    { "remote_port", "another worker's", second_port("p1"), d = 500 },
    { "remote_port", "a word", '"side"', d = 500 },
    { "remote_port", "a list", second_port("p0", "[%d]"), d = 500 },
    { "tp_size", "dropped", nil, d = "right" },
    { "tp_size", "another", "2", d = 500 },
  },
  ["decode body"] = {
    { "kv_transfer_params", "dropped", nil, d = "computes" },
    { "kv_transfer_params", "a string", '"do_remote_prefill"', d = 400 },
    { "kv_transfer_params", "a list", "[]", d = 400 },
    { "kv_transfer_params", "another request's", params_of(THEIRS), d = "wrong" },
    { "kv_transfer_params", "a shorter request's", params_of(SHORT), d = "dies" },
    { "prompt", "another", json.encode(THEIRS), asked = THEIRS, d = "wrong" },
    { "prompt", "a longer one", json.encode(LONG), d = "dies" },
  },
}

-- ---- nixl_push: both at once, joined by the X-Request-Id ----

local push = { name = "nixl_push", worker = "connector=NixlPushConnector,lease_ms=100000000" }

local function told(x)
  return ('{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":"p0","remote_host":"127.0.0.1",'
    .. '"remote_port":%d,"tp_size":1,"pp_size":1,"remote_request_id":"%s"}'):format(sim.workers.p0.second, x.id)
end

function push.start(x, change)
  local function leg(name, max_tokens, params)
    local body = with(body_of(x.prompt, max_tokens), "kv_transfer_params", change(name, params))
    body = change(name .. " body", body)
    local headers = change(name .. " headers", with("{}", "X-Request-Id", json.encode(x.id)))
    return body, json.decode(headers)["X-Request-Id"]
  end
  x.d = send("d0", leg("decode", TOKENS, told(x)))
  x.p = send("p0", leg("prefill", 1, ASKED))
end

push.rows = {
  prefill = {
    { "do_remote_decode", "dropped", nil, d = "waits" },
    { "do_remote_decode", "false", "false", d = "waits" },
    { "do_remote_decode", "a number", "0", d = "waits" },
  },
  ["prefill body"] = {
    { "kv_transfer_params", "dropped", nil, d = "waits" },
    { "kv_transfer_params", "a string", '"do_remote_decode"', p = 400, d = "waits" },
  },
  ["prefill headers"] = {
    { "X-Request-Id", "dropped", nil, d = "waits" },
    { "X-Request-Id", "another", '"somebody"', d = "waits" },
  },
  decode = {
    { "do_remote_prefill", "dropped", nil, d = "computes" },
    { "do_remote_prefill", "false", "false", d = "computes" },
    { "remote_engine_id", "dropped", nil, d = "dies" },
    { "remote_engine_id", "another worker's", '"p1"', d = "waits" },
    { "remote_engine_id", "a number", "0", d = "waits" },
    { "remote_host", "dropped", nil, d = "dies" },
    { "remote_host", "another host", '"127.0.0.2"', d = "waits" },
    { "remote_host", "a number", "127", d = "waits" },
    { "remote_host", "a list", '["127.0.0.1"]', d = "waits" },
    { "remote_port", "dropped", nil, d = "dies" },
    { "remote_port", "another worker's", second_port("p1"), d = "waits" },
    { "remote_port", "a word", '"side"', d = "waits" },
    { "tp_size", "dropped", nil, d = "dies" },
    { "tp_size", "another", "2", d = "waits" },
    { "remote_request_id", "dropped", nil, d = "dies" },
  },
  ["decode body"] = {
    { "kv_transfer_params", "dropped", nil, d = "computes" },
    { "kv_transfer_params", "a list", "[]", d = 400 },
  },
  ["decode headers"] = {
    { "X-Request-Id", "dropped", nil, d = "waits" },
    {
      "X-Request-Id",
      "another request's",
      function(x)
        return json.encode(x.other.id)
      end,
      crossed = true,
      d = "wrong",
    },
  },
}

-- ---- sglang: both at once, the same three members on both ----

local sglang = { name = "sglang", worker = "engine=sglang,waiting_ms=60000" }

function sglang.start(x, change)
  local function leg(name, body)
    body = with(body, "bootstrap_host", '"127.0.0.1"')
    body = with(body, "bootstrap_port", tostring(sim.workers.p0.second))
    body = with(body, "bootstrap_room", x.room)
    return change("both", change(name, body))
  end
  local prefill, decode = leg("prefill", body_of(x.prompt, TOKENS)), leg("decode", body_of(x.prompt, TOKENS))
  -- The waiting timers are short here (0.6 s): nothing stands between the two sends.
  x.p, x.d = http.connect(sim.workers.p0.port), http.connect(sim.workers.d0.port)
  x.p:ask({ path = PATH, body = prefill })
  x.d:ask({ path = PATH, body = decode })
end

local function room_in_list(x)
  return "[" .. x.room .. "]"
end

-- A leg whose partner never comes ends by its timer: 500.
sglang.rows = {
  prefill = {
    { "bootstrap_host", "a number", "127", p = 400, d = 500 },
    { "bootstrap_port", "a word", '"door"', p = 400, d = 500 },
    { "bootstrap_room", "dropped", nil, p = 400, d = 500 },
    { "bootstrap_room", "null", "null", p = 400, d = 500 },
    { "bootstrap_room", "another", "77", p = 500, d = 500 },
    { "bootstrap_room", "a word", '"abc"', p = 400, d = 500 },
    { "bootstrap_room", "a list", room_in_list, p = "dies", d = 500 },
    { "bootstrap_room", "2^63", "9223372036854775808", p = "dies", d = 500 },
    { "bootstrap_room", "2^64", "18446744073709551616", p = 400, d = 500 },
  },
  decode = {
    { "bootstrap_host", "dropped", nil, p = 500, d = "dies" },
    { "bootstrap_host", "null", "null", p = 500, d = "dies" },
    { "bootstrap_host", "another host", '"127.0.0.2"', p = 500, d = 500 },
    { "bootstrap_host", "the fake one", '"2.2.2.2"', p = 500, d = "wrong" },
    { "bootstrap_host", "a number", "127", p = 500, d = 400 },
    { "bootstrap_port", "dropped", nil, p = 500, d = "waits" },
    { "bootstrap_port", "a word", '"door"', p = 500, d = 400 },
    { "bootstrap_port", "another worker's", second_port("p1"), p = 500, d = 500 },
    {
      "bootstrap_port",
      "another server's",
      function()
        return tostring(sim.workers.p0.port)
      end,
      p = 500,
      d = 500,
    },
    { "bootstrap_room", "dropped", nil, p = 500, d = 400 },
    { "bootstrap_room", "null", "null", p = 500, d = 400 },
    { "bootstrap_room", "nobody's", "77", p = 500, d = 500 },
    { "bootstrap_room", "a word", '"abc"', p = 500, d = 400 },
    { "bootstrap_room", "2^64", "18446744073709551616", p = 500, d = 400 },
    { "bootstrap_room", "a list", room_in_list, p = 500, d = "dies" },
    {
      "bootstrap_room",
      "another request's",
      function(x)
        return x.other.room
      end,
      crossed = true,
      d = "wrong",
    },
  },
  both = {
    { "bootstrap_host", "dropped", nil, p = 500, d = "dies" },
    { "bootstrap_room", "dropped", nil, p = 400, d = 400 },
    { "bootstrap_room", "a list", room_in_list, p = "dies", d = "dies" },
    { "bootstrap_room", "2^63", "9223372036854775808", p = "dies", d = 500 },
    {
      "bootstrap_room",
      "its digits in a string",
      function(x)
        return '"' .. x.room .. '"'
      end,
      d = "right",
    },
  },
}

-- ---- trtllm: context_only first, its choice's parameters to decode as generation_only ----

local trtllm = { name = "trtllm", worker = "engine=trtllm" }

local function trtllm_prefill(x, params)
  x.p = send("p0", with(body_of(x.prompt, TOKENS), "disaggregated_params", params), x.id)
  x.p:wait()
  local choices = json.raw(x.p.answer.body, "choices")
  return choices and json.raw(json.elements(choices)[1], "disaggregated_params")
end

-- A member of another request's parameters, whose KV prefill holds.
local function trtllm_other(key)
  return function()
    local x = new_exchange(THEIRS)
    return json.raw(trtllm_prefill(x, '{"request_type":"context_only","disagg_request_id":' .. x.room .. "}"), key)
  end
end

function trtllm.start(x, change)
  local asked = '{"request_type":"context_only","disagg_request_id":' .. x.room .. "}"
  local body = change("prefill body", with("{}", "disaggregated_params", change("prefill", asked)))
  local given = trtllm_prefill(x, json.raw(body, "disaggregated_params"))
  given = given and given ~= "null" and with(given, "request_type", '"generation_only"')
  body = with(body_of(x.prompt, TOKENS), "disaggregated_params", given and change("decode", given))
  local ids = x.p.answer.status == 200 and json.raw(x.p.answer.body, "prompt_token_ids")
  body = with(body, "prompt", ids and ids ~= "null" and ids or json.encode(x.prompt))
  x.d = send("d0", change("decode body", body), x.id)
end

trtllm.rows = {
  prefill = {
    { "request_type", "dropped", nil, p = 400, d = "computes" },
    { "request_type", "unknown", '"prefill"', p = 400, d = "computes" },
    { "request_type", "generation_only", '"generation_only"', p = 400, d = "computes" },
    { "disagg_request_id", "a word", '"abc"', p = 400, d = "computes" },
    { "disagg_request_id", "dropped", nil, d = "right" }, -- prefill's own id then
    { "unheard_of", "added", "1", p = 400, d = "computes" },
  },
  ["prefill body"] = {
    { "disaggregated_params", "a list", "[]", p = 400, d = "computes" },
    { "disaggregated_params", "dropped", nil, d = "computes" },
  },
  decode = {
    { "request_type", "dropped", nil, d = 400 },
    { "request_type", "context_only", '"context_only"', d = "wrong" },
    { "first_gen_tokens", "dropped", nil, d = 400 },
    { "first_gen_tokens", "null", "null", d = 400 },
    { "first_gen_tokens", "empty", "[]", d = 400 },
    { "first_gen_tokens", "a number", "7", d = 400 },
    { "first_gen_tokens", "another request's", trtllm_other("first_gen_tokens"), d = "wrong" },
    { "disagg_request_id", "dropped", nil, d = "right" }, -- ctx_request_id is the same
    { "disagg_request_id", "nobody's", "1099511627777", d = "waits" },
    { "disagg_request_id", "a word", '"abc"', d = 400 },
    { "encoded_opaque_state", "dropped", nil, d = "dies" },
    { "encoded_opaque_state", "null", "null", d = "dies" },
    { "encoded_opaque_state", "another worker's", '"SimState/p1/"', d = "waits" },
    { "encoded_opaque_state", "not base64", '"abc"', d = 400 },
    { "encoded_opaque_state", "a list", "[]", d = 400 },
    { "ctx_usage", "with a member too many", '{"prompt_tokens":1,"odd":1}', d = 400 },
    { "kv_transfer_params", "added", "{}", d = 400 },
  },
  ["decode body"] = {
    { "disaggregated_params", "dropped", nil, d = "computes" },
    { "disaggregated_params", "a list", "[]", d = 400 },
    { "prompt", "another", json.encode(THEIRS), asked = THEIRS, d = "wrong" },
    { "prompt", "the words instead of the ids", json.encode(OURS), d = "right" },
    { "kv_transfer_params", "added", "{}", d = 400 },
    { "stream_options", "added", '{"include_usage":true}', d = 400 },
  },
}

-- ---- mooncake: both at once, joined by the transfer id ----

local mooncake = { name = "mooncake", worker = "connector=MooncakeConnector" }

-- The engine's id is another one after each reset, which comes before each row: as /query says.
local function engine_id()
  local raw = http.get(sim.workers.p0.second, "/query").body
  return json.raw(raw, "0", "engine_id")
end

function mooncake.start(x, change)
  local id = '"xfer-' .. x.id .. '"'
  local asked = '{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":' .. id .. "}"
  local given = ('{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":"http://127.0.0.1:%d",'
    .. '"remote_engine_id":%s,"transfer_id":%s}'):format(sim.workers.p0.second, engine_id(), id)
  local function leg(name, max_tokens, params, more)
    local body = with(body_of(x.prompt, max_tokens), "kv_transfer_params", change(name, params))
    return change(name .. " body", more and with(body, "ignore_eos", "true") or body)
  end
  x.d = send("d0", leg("decode", TOKENS, given), x.id)
  x.p = send("p0", leg("prefill", 1, asked, true), x.id, x.row and x.row.headers)
end

mooncake.rows = {
  prefill = {
    { "do_remote_decode", "dropped", nil, d = "waits" },
    { "do_remote_decode", "false", "false", d = "waits" },
    { "do_remote_prefill", "true", "true", p = "dies", d = "waits" },
    { "transfer_id", "dropped", nil, d = "waits" },
    { "transfer_id", "another", '"xfer-77"', d = "waits" },
  },
  ["prefill body"] = {
    { "kv_transfer_params", "dropped", nil, d = "waits" },
    { "kv_transfer_params", "a list", "[]", p = 400, d = "waits" },
    { "ignore_eos", "dropped, at an end of the text", nil, headers = { ["X-Sim-Fault"] = "eos@prefill" }, d = "waits" },
  },
  decode = {
    { "do_remote_prefill", "dropped", nil, d = "computes" },
    { "do_remote_prefill", "false", "false", d = "computes" },
    { "do_remote_decode", "true", "true", d = "dies" },
    { "transfer_id", "dropped", nil, d = "waits" },
    { "transfer_id", "another", '"xfer-77"', d = "waits" },
    {
      "transfer_id",
      "another request's",
      function(x)
        return '"xfer-' .. x.other.id .. '"'
      end,
      crossed = true,
      d = "wrong",
    },
    { "remote_engine_id", "dropped", nil, d = "waits" },
    { "remote_engine_id", "another worker's", '"p1"', d = "waits" },
    { "remote_engine_id", "that of an earlier life", '"p0"', d = "waits" },
    { "remote_bootstrap_addr", "dropped", nil, d = "waits" },
    { "remote_bootstrap_addr", "another worker's", second_port("p1", '"http://127.0.0.1:%d"'), d = "waits" },
    { "remote_bootstrap_addr", "without a scheme", second_port("p0", '"127.0.0.1:%d"'), d = "waits" },
  },
  ["decode body"] = {
    { "kv_transfer_params", "dropped", nil, d = "computes" },
    { "kv_transfer_params", "a list", "[]", d = 400 },
  },
}

-- ---- offloading_p2p: prefill first, decode told the id and the tier's address; what it misses it computes ----

local offloading = { name = "offloading_p2p", worker = "connector=OffloadingConnector" }

function offloading.start(x, change)
  local id = '"kv_request_id":"kv-' .. x.id .. '"'
  local asked = with("{}", "remote_decoder", change("prefill", "{" .. id .. "}"))
  local body = with(body_of(x.prompt, 1), "kv_transfer_params", change("prefill params", asked))
  x.p = send("p0", body, x.id)
  x.p:wait()
  local given = change("decode",
    ('{%s,"remote_host":"127.0.0.1","remote_port":%d}'):format(id, sim.workers.p0.second))
  body = with(body_of(x.prompt, TOKENS), "kv_transfer_params",
    change("decode params", with("{}", "remote_prefiller", given)))
  x.d = send("d0", change("decode body", body), x.id)
end

offloading.rows = {
  prefill = {
    { "kv_request_id", "dropped", nil, d = "computes" },
    { "kv_request_id", "another", '"kv-77"', d = "computes" },
    { "kv_request_id", "a number", "7", d = "computes" },
  },
  ["prefill params"] = { { "remote_decoder", "dropped", nil, d = "computes" } },
  decode = {
    { "kv_request_id", "dropped", nil, d = "computes" },
    { "kv_request_id", "another", '"kv-77"', d = "computes" },
    { "remote_host", "dropped", nil, d = "computes" },
    { "remote_host", "another host", '"127.0.0.2"', d = "computes" },
    { "remote_port", "dropped", nil, d = "computes" },
    { "remote_port", "another worker's", second_port("p1"), d = "computes" },
    { "remote_port", "a word", second_port("p0", '"%d"'), d = "computes" },
  },
  ["decode params"] = { { "remote_prefiller", "dropped", nil, d = "computes" } },
  ["decode body"] = {
    { "kv_transfer_params", "dropped", nil, d = "computes" },
    { "kv_transfer_params", "a list", "[]", d = 400 },
    { "prompt", "another", json.encode(THEIRS), asked = OURS, d = "wrong" },
  },
}

-- ---- p2p_nccl: joined by addresses in the X-Request-Id; either side may come first ----

local NOBODY = "127.0.0.1:1"

local function paired_id(prefill, decode, x)
  return ("___prefill_addr_%s___decode_addr_%s_%032x"):format(prefill, decode, x.number)
end

local function kv_address(name)
  return state(name).kv_address
end

-- A leg of x, with its headers and body as change leaves them.
local function paired_leg(worker, name, x, change, body)
  local headers = { ["X-Request-Id"] = paired_id(kv_address("p0"), kv_address("d0"), x) }
  if x.dialect_ranks then
    headers["X-data-parallel-rank"] = "1"
  end
  return http.start(sim.workers[worker].port, {
    path = PATH,
    body = change(name .. " body", body),
    headers = json.decode(change(name .. " headers", json.encode(headers))),
  })
end

local p2p = { name = "p2p_nccl", worker = "connector=P2pNcclConnector,lease_ms=100000000" }

function p2p.start(x, change)
  x.number = numbered
  x.d = paired_leg("d0", "decode", x, change, body_of(x.prompt, TOKENS))
  x.p = paired_leg("p0", "prefill", x, change, body_of(x.prompt, 1))
end

-- An id with these addresses, and with another request's number when that is given.
local function id_with(prefill, decode, number)
  return function(x)
    return json.encode(paired_id(prefill or kv_address("p0"), decode or kv_address("d0"),
      number and { number = number } or x))
  end
end

local function id_without(word)
  return function(x)
    return json.encode((paired_id(kv_address("p0"), kv_address("d0"), x):gsub(word, "___somewhere_")))
  end
end

p2p.rows = {
  ["prefill headers"] = {
    { "X-Request-Id", "dropped", nil, p = "dies", d = "orphaned" },
    { "X-Request-Id", "without decode's address", id_without("___decode_addr_"), p = "dies", d = "orphaned" },
    { "X-Request-Id", "with an address of nobody", id_with(nil, NOBODY), p = "waits", d = "waits" },
    { "X-Request-Id", "of another request", id_with(nil, nil, 9999), d = "waits" },
  },
  ["decode headers"] = {
    { "X-Request-Id", "dropped", nil, d = "dies" },
    { "X-Request-Id", "without prefill's address", id_without("___prefill_addr_"), d = "dies" },
    { "X-Request-Id", "with another prefill's address", function(x)
      return id_with(kv_address("p1"))(x)
    end, d = "waits" },
    { "X-Request-Id", "with an address of nobody", id_with(NOBODY), d = "waits" },
    { "X-Request-Id", "of another decode", id_with(nil, NOBODY), d = "waits" },
    { "X-Request-Id", "of another request", id_with(nil, nil, 9999), d = "waits" },
  },
  ["decode body"] = {
    { "prompt", "another", json.encode(THEIRS), asked = THEIRS, d = "wrong" },
  },
}

-- ---- moriio: the same id, a transfer id, sizes and the rank that both legs go to ----

local MORIIO = "connector=MoRIIOConnector,dp=2,tp=4,lease_ms=100000000"
local moriio_write = { name = "moriio, which writes", worker = MORIIO }
local moriio_read = { name = "moriio, which reads", worker = MORIIO .. ",read_mode=1" }

local function transfer_id(x)
  return ("tx-00000000-0000-4000-8000-%012d"):format(x.number)
end

local function asked_of_moriio(x)
  return ('{"remote_dp_size":2,"remote_tp_size":4,"transfer_id":"%s","do_remote_decode":true,'
    .. '"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null}'):format(transfer_id(x))
end

local function moriio_prefill(x, change)
  local body = with(body_of(x.prompt, 1), "kv_transfer_params", change("prefill", asked_of_moriio(x)))
  x.p = paired_leg("p0", "prefill", x, change, with(body, "ignore_eos", "true"))
end

local function moriio_decode(x, change, engine, block_ids)
  local params = ('{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":%s,"remote_block_ids":%s,'
    .. '"transfer_id":"%s","remote_dp_size":2,"remote_tp_size":4,"remote_dp_rank":1}'):format(engine, block_ids,
    transfer_id(x))
  local body = with(body_of(x.prompt, TOKENS), "kv_transfer_params", change("decode", params))
  x.d = paired_leg("d0", "decode", x, change, body)
end

function moriio_write.start(x, change)
  x.number, x.dialect_ranks = numbered, true
  moriio_decode(x, change, "null", "null")
  moriio_prefill(x, change)
end

function moriio_read.start(x, change)
  x.number, x.dialect_ranks = numbered, true
  moriio_prefill(x, change)
  local params = json.raw(x.p:wait().body, "kv_transfer_params")
  moriio_decode(x, change, json.raw(params, "remote_engine_id"), json.raw(params, "remote_block_ids"))
end

local MORIIO_DECODE = {
  { "do_remote_prefill", "dropped", nil, d = "computes" },
  { "do_remote_prefill", "false", "false", d = "computes" },
  { "do_remote_decode", "true", "true", d = "dies" },
  { "transfer_id", "dropped", nil, d = "dies" },
  { "transfer_id", "a number", "7", d = "dies" },
  { "transfer_id", "another request's", '"tx-other"', d = "waits" },
  { "remote_dp_size", "dropped", nil, d = "dies" },
  { "remote_dp_size", "another", "1", d = "waits" },
  { "remote_tp_size", "dropped", nil, d = "dies" },
  { "remote_tp_size", "another", "2", d = "waits" },
  { "remote_dp_rank", "dropped", nil, d = "waits" },
  { "remote_dp_rank", "another", "0", d = "waits" },
}

local MORIIO_DECODE_HEADERS = {
  { "X-Request-Id", "dropped", nil, d = "dies" },
  { "X-Request-Id", "without prefill's address", id_without("___prefill_addr_"), d = "dies" },
  { "X-Request-Id", "with an address of nobody", id_with("host:127.0.0.1,handshake:1,notify:1"), d = "waits" },
  { "X-Request-Id", "of another request", id_with(nil, nil, 9999), d = "waits" },
  { "X-data-parallel-rank", "dropped", nil, d = "waits" },
  { "X-data-parallel-rank", "another", '"0"', d = "waits" },
}

moriio_write.rows = {
  prefill = {
    { "do_remote_decode", "dropped", nil, d = "waits" },
    { "do_remote_prefill", "true", "true", p = "dies", d = "orphaned" },
    { "transfer_id", "dropped", nil, p = "dies", d = "orphaned" },
    { "transfer_id", "another request's", '"tx-other"', d = "waits" },
    { "remote_dp_size", "dropped", nil, p = "dies", d = "orphaned" },
    { "remote_dp_size", "another", "1", p = "waits", d = "waits" },
    { "remote_tp_size", "dropped", nil, p = "dies", d = "orphaned" },
    { "remote_tp_size", "another", "2", p = "waits", d = "waits" },
  },
  ["prefill body"] = {
    { "kv_transfer_params", "dropped", nil, d = "waits" },
    { "ignore_eos", "dropped", nil, d = "waits" },
    { "stop", "there", '["."]', d = "waits" },
    { "stop_token_ids", "there", "[2]", d = "waits" },
  },
  ["prefill headers"] = {
    { "X-Request-Id", "dropped", nil, p = "dies", d = "orphaned" },
    { "X-Request-Id", "without decode's address", id_without("___decode_addr_"), p = "dies", d = "orphaned" },
    { "X-Request-Id", "with an end that is no uuid", function(x)
      return json.encode(paired_id(kv_address("p0"), kv_address("d0"), x) .. "z")
    end, p = "dies", d = "orphaned" },
    { "X-Request-Id", "of another request", id_with(nil, nil, 9999), d = "waits" },
    { "X-data-parallel-rank", "dropped", nil, d = "waits" },
    { "X-data-parallel-rank", "another", '"0"', d = "waits" },
  },
  decode = MORIIO_DECODE,
  ["decode headers"] = MORIIO_DECODE_HEADERS,
  ["decode body"] = {
    { "kv_transfer_params", "dropped", nil, d = "computes" },
    { "prompt", "another", json.encode(THEIRS), asked = THEIRS, d = "wrong" },
  },
}

local READ_ONLY = {
  { "remote_engine_id", "dropped", nil, d = "waits" },
  { "remote_engine_id", "null", "null", d = "waits" },
  { "remote_engine_id", "another worker's", '"127.0.0.1:1"', d = "waits" },
  { "remote_block_ids", "dropped", nil, d = "dies" },
  { "remote_block_ids", "null", "null", d = "dies" },
  { "remote_block_ids", "empty", "[]", d = "dies" },
  { "remote_block_ids", "too few", "[1]", d = "dies" },
  { "remote_block_ids", "another order's", function(x)
    local ids = json.elements(json.raw(json.raw(x.p.answer.body, "kv_transfer_params"), "remote_block_ids"))
    ids[1], ids[2] = ids[2], ids[1]
    return "[" .. table.concat(ids, ",") .. "]"
  end, d = "wrong" },
}
proc.append(READ_ONLY, MORIIO_DECODE)
moriio_read.rows = { decode = READ_ONLY, ["decode headers"] = MORIIO_DECODE_HEADERS }

-- ---- what comes of it ----

local function as_it_is(_, object)
  return object
end

local function text_of(answer)
  assert.equal(200, answer.status, answer.body)
  return json.decode(answer.body).choices[1].text
end

local function is_dead(name)
  return state(name).engine_dead
end

local function assert_right(x, source)
  local answer = x.d:wait()
  assert.equal(fleet.expect(x.prompt, TOKENS), text_of(answer))
  assert.equal(source or "external", answer:header("x-sim-kv-source"))
end

-- A whole unmutated exchange on the same pair.
local function assert_pair_works(dialect)
  local x = new_exchange(LONG)
  dialect.start(x, as_it_is)
  assert_right(x)
  assert.equal(200, x.p:wait().status)
  x.p:close()
  x.d:close()
end

local outcomes = {}

function outcomes.dies(connection, worker)
  assert.not_equal(200, connection:wait().status)
  assert.is_true(is_dead(worker))
  eventually(function()
    local ok, c = pcall(http.connect, sim.workers[worker].port)
    if ok then
      c:close()
    end
    return not ok
  end, 5, worker .. " has closed its port")
end

function outcomes.waits(connection, worker, x)
  if x.row.p ~= "dies" then
    assert_pair_works(x.dialect)
  end
  connection:pump()
  assert.is_nil(connection.answer.status)
  assert.is_nil(connection.answer.broken)
  assert.is_false(is_dead(worker))
  connection:close()
  if x.row.dies_on_leave then
    eventually(function()
      return is_dead(worker)
    end, 5, worker .. " dies when its client leaves")
  end
end

function outcomes.wrong(connection, worker, x)
  local text = text_of(connection:wait())
  assert.not_equal(fleet.expect(x.row.asked or x.prompt, TOKENS), text)
  assert.is_false(is_dead(worker))
  if x.other then
    assert.equal(fleet.expect(x.other.prompt, TOKENS), text)
  end
end

function outcomes.right(_, _, x)
  assert_right(x)
end

function outcomes.computes(_, worker, x)
  assert_right(x, "local")
  assert.equal(0, state(worker).external_kv)
end

function outcomes.strands(_, _, x)
  assert_right(x)
  assert.equal(1, state("p0").held_kv_requests)
end

local function check(connection, worker, wanted, x)
  if type(wanted) == "number" then
    assert.equal(wanted, connection:wait().status)
    assert.is_false(is_dead(worker))
  else
    outcomes[wanted](connection, worker, x)
  end
end

-- Our exchange with the row's mutation; another one, mutated the other way round, where values are crossed.
local function run(dialect, leg, row)
  local x = new_exchange(OURS)
  local changed = false
  x.dialect, x.row = dialect, row
  local function changer(own)
    return function(name, object)
      if name ~= leg then
        return object
      end
      changed = true
      local raw = row[3]
      if type(raw) == "function" then
        raw = raw(own)
      end
      return with(object, row[1], raw)
    end
  end
  if row.crossed then
    x.other = new_exchange(THEIRS)
    x.other.other = x
    dialect.start(x.other, changer(x.other))
  end
  dialect.start(x, changer(x))
  assert.is_true(changed, "the row has a leg of this dialect")
  return x
end

function outcomes.orphaned(connection, worker)
  connection:pump()
  assert.is_nil(connection.answer.status)
  assert.is_false(is_dead(worker))
  connection:close()
end

for _, dialect in ipairs({ nixl, push, sglang, trtllm, mooncake, offloading, p2p, moriio_write, moriio_read }) do
  describe("the simulator against mutated legs of " .. dialect.name, function()
    setup(function()
      local tail = dialect.worker .. ",block_size=16,ttft=0,itl=0,transfer_ms=0"
      sim = fleet.start_sim({
        "role=prefill,count=2," .. tail, "role=decode," .. tail, "role=hybrid,name=plain," .. tail,
      }, { "--time-scale", "0.01" })
    end)

    before_each(reset)

    teardown(function()
      sim.process:stop(5)
      assert.is_nil(sim.process:stderr():find("Sanitizer", 1, true), sim.process:stderr())
      proc.clean()
    end)

    it("takes the right legs", function()
      for _ = 1, 2 do
        assert_pair_works(dialect)
      end
      local x = new_exchange(OURS)
      dialect.start(x, as_it_is)
      assert_right(x)
      check(x.p, "p0", 200, x)
      assert.equal(0, state("p0").held_kv_requests)
    end)

    for leg, rows in pairs(dialect.rows) do
      for _, row in ipairs(rows) do
        it(("%s: %s %s"):format(leg, row[1], row[2]), function()
          local x = run(dialect, leg, row)
          check(x.p, "p0", row.p or 200, x)
          check(x.d, "d0", row.d, x)
        end)
      end
    end
  end)
end
