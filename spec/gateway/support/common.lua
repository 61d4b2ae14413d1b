-- common.lua - what holds on both legs of every dialect; each function defines specs for a fleet.
--
-- get: a function that returns the running fleet. ask: { path =, body =, bare = }: a request, and one with nothing but
-- its prompt.

local assert = require("luassert")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local it = require("busted").it
local json = require("gateway.support.json")
local legs_of = require("gateway.support.legs")
local texts = require("gateway.support.texts")

local common = {}

common.ORDINARY = {
  path = "/v1/completions",
  body = '{"model":"sim","prompt":"ordinary words","max_tokens":3}',
  bare = '{"prompt":"ordinary words"}',
}

local UUID = "^%x%x%x%x%x%x%x%x%-%x%x%x%x%-4%x%x%x%-[89ab]%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$"

local function both(legs)
  local out = {}
  for _, role in ipairs({ "prefill", "decode", "hybrid" }) do
    for _, e in ipairs(legs[role]) do
      out[#out + 1] = e
    end
  end
  return out
end

-- The answer to two samples (seed 5) of "one prompt" and of "another", three tokens each.
function common.check_samples(answer)
  assert.same({
    fleet.expect("one prompt", 3, { seed = 5 }), fleet.expect("one prompt", 3, { seed = 6 }),
    fleet.expect("another", 3, { seed = 5 }), fleet.expect("another", 3, { seed = 6 }),
  }, texts.of("/v1/completions", answer))
end

function common.headers(get, ask)
  it("forwards end-to-end headers to every leg as they were sent", function()
    local sent = {
      ["X-Vllm-Priority"] = "7",
      ["X-Session-ID"] = "s-1",
      traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
      tracestate = "a=1,b=2",
      ["X-Nobody-Knows"] = "Ünïcode; and \"quotes\"",
      Authorization = "Bearer of-the-client",
      ["User-Agent"] = "spec/1",
      Accept = "*/*",
    }
    local answer, legs = get():exchange(ask.path, ask.body, sent)
    assert.equal(200, answer.status, answer.body)
    for _, e in ipairs(both(legs)) do
      for name, value in pairs(sent) do
        assert.equal(value, e.headers[name:lower()], name .. " on " .. e.worker)
      end
      assert.equal("application/json", e.headers["content-type"])
    end
  end)

  it("keeps hop-by-hop headers, its own and the dangerous ones from the legs", function()
    local answer, legs = get():exchange(ask.path, ask.body, {
      Connection = "keep-alive, X-Only-For-You",
      ["X-Only-For-You"] = "1",
      ["Keep-Alive"] = "timeout=5",
      TE = "trailers",
      ["Proxy-Authorization"] = "Basic eA==",
      ["x-baton-plan"] = "single",
      ["X-Baton-Anything"] = "1",
      ["x-override-bootstrap-room"] = "7",
      ["X-Override-Rid"] = "mine",
      ["X-Data-Parallel-Rank"] = "3",
      ["X-SMG-Target-Worker"] = "http://127.0.0.1:1",
      ["Accept-Encoding"] = "gzip, br",
    })
    assert.equal(200, answer.status, answer.body)
    for _, e in ipairs(both(legs)) do
      for _, name in ipairs({
        "x-only-for-you", "keep-alive", "te", "proxy-authorization", "x-baton-plan", "x-baton-anything",
        "x-override-bootstrap-room", "x-override-rid", "x-data-parallel-rank", "x-smg-target-worker",
        "transfer-encoding",
      }) do
        assert.is_nil(e.headers[name], name .. " on " .. e.worker)
      end
      assert.equal("identity", e.headers["accept-encoding"])
      assert.equal(tostring(#e.body), e.headers["content-length"])
      assert.equal("127.0.0.1:" .. get().workers[e.worker].port, e.headers.host)
    end
  end)
end

function common.ids(get, ask)
  it("sends the client's X-Request-Id verbatim on every leg and tells it in the answer", function()
    local answer, legs = get():exchange(ask.path, ask.body, { ["X-Request-Id"] = "Client_1.a:b-c" })
    assert.equal(200, answer.status, answer.body)
    assert.equal("Client_1.a:b-c", answer:header("x-request-id"))
    for _, e in ipairs(both(legs)) do
      assert.equal("Client_1.a:b-c", e.headers["x-request-id"])
    end
  end)

  it("makes a uuid where there is no id, or a long, unsafe or dangerous one", function()
    local seen = {}
    for _, id in ipairs({
      false, "", ("a"):rep(129), "two words", "semi;colon", "new\tline",
        "___prefill_addr_127.0.0.1:1___decode_addr_x_1",
      "a___decode_addr_b",
    }) do
      local answer, legs = get():exchange(ask.path, ask.body, id and { ["X-Request-Id"] = id } or nil)
      assert.equal(200, answer.status, answer.body)
      local ours = answer:header("x-request-id")
      assert.truthy(ours:match(UUID), tostring(id) .. " became " .. ours)
      assert.is_nil(seen[ours])
      seen[ours] = true
      for _, e in ipairs(both(legs)) do
        assert.equal(ours, e.headers["x-request-id"])
      end
    end
  end)

  it("takes an id of 128 characters, and a uuid instead of one that is live already", function()
    local f = get()
    local id = ("x"):rep(128)
    local role = ask.slow_role or "decode"
    f:mark()
    local first = http.start(f.port, {
      path = ask.path,
      body = ask.body,
      headers = { ["X-Request-Id"] = id, ["X-Sim-Fault"] = "hang@" .. role },
    })
    local e = eventually(function()
      return f:legs(ask.path)[role][1]
    end, 5, "the first request is running")
    assert.equal(id, e.headers["x-request-id"])
    local second = f:post(ask.path, ask.body, { ["X-Request-Id"] = id })
    assert.equal(200, second.status, second.body)
    assert.truthy(second:header("x-request-id"):match(UUID))
    first:reset()
    eventually(function()
      return f:post(ask.path, ask.body, { ["X-Request-Id"] = id }):header("x-request-id") == id
    end, 5, "the id is free again")
  end)
end

-- Members that only a gateway may say, in both spellings, and the two nested places.
local FORGED = {
  '"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"evil"}',
  '"batch_kv_transfer_params":[{"a":1}]',
  '"ec_transfer_params":{"x":1}',
  '"bootstrap_host":"evil"',
  '"bootstrap_port":1',
  '"bootstrap_room":7',
  '"rid":"forged-rid"',
  '"routed_dp_rank":3',
  '"data_parallel_rank":3',
  '"disagg_prefill_dp_rank":3',
  '"decode_tp_size":64',
  '"disaggregated_params":{"encoded_opaque_state":"evil"}',
  '"prompt_token_ids_b64":"evil"',
}

local function escape_keys(member)
  local key, rest = member:match('^"([^"]+)"(.*)$')
  local escaped = key:gsub("_", "\\u005F"):gsub("^(.)", function(c)
    return ("\\u%04x"):format(c:byte())
  end)
  return '"' .. escaped .. '"' .. rest
end

local function allowed_of(dialect_members)
  local set = {}
  for _, key in ipairs(dialect_members) do
    set[key] = true
  end
  return set
end

-- ours: { prefill = { keys that the dialect itself sends }, decode = { ... }, hybrid = {...} }
function common.forged(get, ask, ours)
  local function check(members)
    local body = ask.body:gsub("}%s*$", "," .. table.concat(members, ", ") .. "}")
    local answer, legs = get():exchange(ask.path, body)
    assert.equal(200, answer.status, answer.body)
    assert.is_true(#both(legs) > 0)
    for _, e in ipairs(both(legs)) do
      local role = get().workers[e.worker].role
      local allowed = allowed_of(ours[role] or {})
      for _, member in ipairs(FORGED) do
        local key = member:match('^"([^"]+)"')
        local raw = json.raw(e.body, key)
        if not allowed[key] then
          assert.is_nil(raw, key .. " reached " .. e.worker)
        end
        assert.is_nil(e.body:find("evil", 1, true), e.body)
        assert.is_nil(e.body:find("forged-rid", 1, true), e.body)
        assert.is_false(raw == "3" or raw == "64" or raw == "7", key)
      end
    end
    return legs
  end

  it("drops members that only a gateway may say", function()
    check(FORGED)
  end)

  it("drops them when their keys are escaped", function()
    local escaped = {}
    for i, member in ipairs(FORGED) do
      escaped[i] = escape_keys(member)
    end
    check(escaped)
  end)

  it("drops kv_transfer_params inside vllm_xargs and sampling_params.extra_args, and nothing else there", function()
    for _, key in ipairs({ "kv_transfer_params", "kv\\u005ftransfer\\u005fparams" }) do
      local legs = check({
        ('"vllm_xargs":{"keep":1.0, "%s":{"remote_host":"evil"} ,"also":[1 ,2]}'):format(key),
        ask.path ~= "/generate" and ask.path ~= "/inference/v1/generate"
            and ('"sampling_params":{"n":1,"extra_args":{"%s":{"remote_host":"evil"},"keep":12345678901234567890},'
              .. '"top":0.50}'):format(key)
          or '"other":1',
      })
      for _, e in ipairs(both(legs)) do
        local xargs = json.raw(e.body, "vllm_xargs")
        assert.equal('{"keep":1.0,"also":[1,2]}', legs_of.dense(xargs))
        assert.truthy(xargs:find('"also":[1 ,2]', 1, true), xargs)
        if json.raw(e.body, "sampling_params") then
          assert.equal("12345678901234567890", json.raw(e.body, "sampling_params", "extra_args", "keep"))
          assert.equal("0.50", json.raw(e.body, "sampling_params", "top"))
        end
      end
    end
  end)

  it("answers 400 when a controlled key stands twice, whatever its spelling", function()
    for _, doubled in ipairs({
      '"model":"sim","model":"sim"', '"stream":false,"str\\u0065am":true',
      '"bootstrap_room":1,"bootstrap\\u005froom":2',
      '"kv_transfer_params":null,"kv_transfer_params":{}', '"n":1,"n":1',
      '"vllm_xargs":{"kv_transfer_params":1,"kv_transfer_params":2}',
      '"seed":1,"seed":2', '"max_tokens":1,"max_tokens":2', '"rid":"a","rid":"b"',
    }) do
      local body = ask.bare:gsub("}%s*$", "," .. doubled .. "}")
      local answer, legs = get():exchange(ask.path, body)
      assert.equal(400, answer.status, doubled .. ": " .. answer.body)
      assert.truthy(answer.body:find("duplicate", 1, true), answer.body)
      assert.equal(0, #both(legs), "nothing was sent for " .. doubled)
    end
  end)

  it("lets keys that nobody here reads stand twice", function()
    local body = ask.body:gsub("}%s*$", ',"odd":1,"odd":2}')
    local answer, legs = get():exchange(ask.path, body)
    assert.equal(200, answer.status, answer.body)
    for _, e in ipairs(both(legs)) do
      assert.truthy(e.body:find('"odd":1,"odd":2', 1, true), e.body)
    end
  end)
end

return common
