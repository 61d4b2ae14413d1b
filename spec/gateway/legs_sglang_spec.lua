-- The bytes of both legs of SGLang, by the reference of its HTTP injection: the same three bootstrap fields on both,
-- sent at once; lists for lists of prompts; our own rid, since /abort_request knows requests by nothing else.

local common = require("gateway.support.common")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local ODD = '  "temperature" : 0.7000 ,\n\t"big":12345678901234567890123, "deep" : {"z":1.0,"a":[ 1 ,2 ],'
  .. ' "\\u006b\\/":"\\u00e9é"},'
  .. ' "x-unknown":null , "neg":-0.0,"exp":1E+2'

local PROMPT = "The gateway takes the words and hands them on, one two three four five six seven eight nine ten."

local ROUTES = {
  {
    path = "/generate",
    prompt = '"text":"' .. PROMPT .. '"',
    tokens = '"sampling_params" : {"max_new_tokens" : 6,"top_p":0.90 }',
    chat = false,
  },
  {
    path = "/v1/completions",
    prompt = '"prompt":"' .. PROMPT .. '"',
    tokens = '"max_tokens" : 6',
    chat = false,
  },
  {
    path = "/v1/chat/completions",
    prompt = '"messages":[ {"role":"user", "content":"' .. PROMPT .. '","cache_control":{"t":1.50}} ]',
    tokens = '"max_tokens":6,"max_completion_tokens":6',
    chat = true,
  },
  {
    path = "/v1/responses",
    prompt = '"input":"' .. PROMPT .. '"',
    tokens = '"max_output_tokens":6',
    chat = true,
  },
}

local RID = '^"' .. ("%x"):rep(32) .. '"$'
local MAX_ROOM = "9223372036854775807"

-- A room is a decimal integer in [1, 2^63 - 1], as text: doubles cannot hold it.
local function assert_room(raw)
  assert.truthy(raw:match("^[1-9]%d*$"), "room " .. raw)
  assert.is_true(#raw < #MAX_ROOM or (#raw == #MAX_ROOM and raw <= MAX_ROOM), "room " .. raw)
end

-- raw % divisor by long division over the digits.
local function remainder(raw, divisor)
  local rest = 0
  for digit in raw:gmatch("%d") do
    rest = (rest * 10 + tonumber(digit)) % divisor
  end
  return rest
end

local function body_of(route, more)
  return '{ "model" : "sim",' .. route.prompt .. "," .. ODD .. "," .. route.tokens .. (more and "," .. more or "")
    .. " }"
end

local f

-- Members that both legs must carry, from what the prefill leg says; room and rid are the gateway's to choose.
local function bootstrap_of(e)
  return {
    bootstrap_host = '"127.0.0.1"',
    bootstrap_port = tostring(f.workers.p0.second),
    bootstrap_room = json.raw(e.body, "bootstrap_room"),
    rid = json.raw(e.body, "rid"),
  }
end

-- A prefill leg is not streamed: a failed prefill then says so in its status line. The reference allows both.
local function prefill_change(client, added)
  local change = { removed = { "stream_options" }, set = {}, added = added }
  if client:find('"stream"%s*:%s*true') then
    change.set.stream = "false"
  else
    change.removed = {}
  end
  return change
end

describe("legs of sglang", function()
  setup(function()
    f = fleet.start({
      workers = {
        "role=prefill,engine=sglang,ttft=1", "role=decode,engine=sglang,ttft=1,itl=1",
        "role=hybrid,engine=sglang,name=plain,ttft=1,itl=1",
      },
      config = function(w)
        return ([[return { connector = "sglang", pools = { { workers = {
          { url = "%s", role = "prefill", bootstrap_port = %d }, { url = "%s", role = "decode" } } } } }]]):format(
          w.p0.url, w.p0.second, w.d0.url)
      end,
      ready = false,
    })
    eventually(function()
      return f:get("/readiness").status == 200
    end)
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  local rooms, rids = {}, {}
  for _, route in ipairs(ROUTES) do
    for _, stream in ipairs({ false, '"stream":false', '"stream" : true' }) do
      it(route.path .. " with " .. (stream or "no stream member"), function()
        local body = body_of(route, stream or nil)
        local answer, seen = f:exchange(route.path, body)
        assert.equal(200, answer.status, answer.body)
        local p, d = legs.one(seen.prefill), legs.one(seen.decode)
        local wanted = bootstrap_of(p)
        assert_room(wanted.bootstrap_room)
        assert.truthy(wanted.rid:match(RID), wanted.rid)
        assert.is_nil(rooms[wanted.bootstrap_room])
        assert.is_nil(rids[wanted.rid])
        rooms[wanted.bootstrap_room], rids[wanted.rid] = true, true
        legs.check(body, p.body, prefill_change(body, wanted))
        legs.check(body, d.body, { added = wanted })
        assert.truthy(p.body:find(ODD, 1, true), p.body)
        assert.equal(body:sub(1, -3), d.body:sub(1, #body - 2))
        assert.equal(p.headers["x-request-id"], d.headers["x-request-id"])
        assert.same({ fleet.expect(PROMPT, 6, { chat = route.chat }) }, texts.of(route.path, answer))
      end)
    end
  end

  it("changes nothing of the stream's bytes", function()
    for _, route in ipairs(ROUTES) do
      for _, stream in ipairs({ "true", "false" }) do
        local body = body_of(route, '"stream":' .. stream .. ',"stream_options":{"include_usage":true}')
        local ours = f:post(route.path, body)
        local plain = http.post(f.workers.plain.port, route.path, body)
        local function same_names(text)
          text = text:gsub('"created":%d+', '"created":0'):gsub('"created_at":%d+', '"created_at":0')
          return (text:gsub("%x+", function(hex)
            return #hex == 32 and "ID" or nil
          end))
        end
        assert.equal(same_names(plain.body), same_names(ours.body), route.path)
        assert.equal(plain:header("content-type"), ours:header("content-type"))
      end
    end
  end)

  it("gives a list of prompts lists: one room, one rid each, hosts and ports repeated", function()
    for _, case in ipairs({
      { "/generate", '"text":["first prompt" , "second",\n"3rd"],"sampling_params":{"max_new_tokens":4}' },
      { "/v1/completions", '"prompt":["first prompt" , "second",\n"3rd"],"max_tokens":4' },
    }) do
      for _, stream in ipairs({ "false", "true" }) do
        local body = '{"model":"sim",' .. case[2] .. ',"stream":' .. stream .. "}"
        local answer, seen = f:exchange(case[1], body)
        assert.equal(200, answer.status, answer.body)
        local p, d = legs.one(seen.prefill), legs.one(seen.decode)
        local port = f.workers.p0.second
        local wanted = {
          bootstrap_host = '["127.0.0.1","127.0.0.1","127.0.0.1"]',
          bootstrap_port = ("[%d,%d,%d]"):format(port, port, port),
          bootstrap_room = json.raw(p.body, "bootstrap_room"),
          rid = json.raw(p.body, "rid"),
        }
        legs.check(body, p.body, prefill_change(body, wanted))
        legs.check(body, d.body, { added = wanted })
        local seen_rooms, prefix = {}, nil
        for i, room in ipairs(json.elements(wanted.bootstrap_room)) do
          assert_room(room)
          assert.is_nil(seen_rooms[room])
          seen_rooms[room] = true
          local rid = json.decode(wanted.rid)[i]
          prefix = prefix or rid:sub(1, 32)
          assert.equal(prefix .. ("_%02d"):format(i - 1), rid)
        end
        assert.equal(3, #json.elements(wanted.bootstrap_room))
        assert.same({ fleet.expect("first prompt", 4), fleet.expect("second", 4), fleet.expect("3rd", 4) },
          texts.of(case[1], answer))
        if stream == "true" then
          assert.equal(1, texts.dones(answer))
        end
      end
    end
  end)

  it("gives a list of id lists rooms too, and scalars to a prompt of ids", function()
    local answer, seen = f:exchange("/generate", '{"input_ids":[[1,2,3],[4,5]],"sampling_params":{"max_new_tokens":3}}')
    assert.equal(200, answer.status, answer.body)
    assert.equal(2, #json.elements(json.raw(legs.one(seen.decode).body, "bootstrap_room")))
    assert.same({ fleet.expect("1,2,3", 3, { ids = true }), fleet.expect("4,5", 3, { ids = true }) },
      texts.of("/generate", answer))
    answer, seen = f:exchange("/generate", '{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":3}}')
    assert.equal(200, answer.status, answer.body)
    assert_room(json.raw(legs.one(seen.decode).body, "bootstrap_room"))
    assert.same({ fleet.expect("1,2,3", 3, { ids = true }) }, texts.of("/generate", answer))
  end)

  it("gives a list of one prompt what fits a list of one", function()
    local answer, seen = f:exchange("/v1/completions", '{"model":"sim","prompt":["alone"],"max_tokens":3}')
    assert.equal(200, answer.status, answer.body)
    local room = json.raw(legs.one(seen.decode).body, "bootstrap_room")
    if room:sub(1, 1) == "[" then
      assert.equal(1, #json.elements(room))
    else
      assert_room(room)
    end
    assert.same({ fleet.expect("alone", 3) }, texts.of("/v1/completions", answer))
  end)

  local function by_child(list, id)
    local out = {}
    for _, e in ipairs(list) do
      out[tonumber(e.headers["x-request-id"]:match("^" .. id .. "%-(%d+)$")) + 1] = e
    end
    return out
  end

  for _, case in ipairs({
    {
      path = "/v1/chat/completions",
      body = '"messages":[{"role":"user","content":"sample me"}],"n":2,"seed":9,"max_tokens":5,"temperature":1.0',
      expect = { chat = true },
    },
    { path = "/v1/completions", body = '"prompt":"sample me","n":2,"seed":9,"max_tokens":5,"temperature":1.0' },
    {
      path = "/generate",
      body = '"text":"sample me","sampling_params":{"n":2,"sampling_seed":9,"max_new_tokens":5,"temperature":1.0}',
    },
  }) do
    for _, stream in ipairs({ false, true }) do
      it("splits n = 2 on " .. case.path .. (stream and ", streamed" or ""), function()
        local options = case.path == "/generate" and ',"stream":true}'
          or ',"stream":true,"stream_options":{"include_usage":true}}'
        local body = '{"model":"sim",' .. case.body .. (stream and options or "}")
        local answer, seen = f:exchange(case.path, body, { ["X-Request-Id"] = "pair" })
        assert.equal(200, answer.status, answer.body)
        assert.equal(2, #seen.prefill)
        assert.equal(2, #seen.decode)
        local p, d = by_child(seen.prefill, "pair"), by_child(seen.decode, "pair")
        local nested = case.path == "/generate" and { "sampling_params" } or {}
        local wanted = {}
        for i = 1, 2 do
          assert.equal(json.raw(p[i].body, "bootstrap_room"), json.raw(d[i].body, "bootstrap_room"))
          assert.equal(json.raw(p[i].body, "rid"), json.raw(d[i].body, "rid"))
          assert_room(json.raw(d[i].body, "bootstrap_room"))
          for _, e in ipairs({ p[i], d[i] }) do
            local where = nested[1] and json.raw(e.body, nested[1]) or e.body
            assert.is_nil(json.raw(where, "n"))
            assert.equal(tostring(8 + i), json.raw(where, nested[1] and "sampling_seed" or "seed"))
            assert.equal("1.0", json.raw(where, "temperature"))
          end
          wanted[i] = fleet.expect("sample me", 5, { chat = case.expect and true, seed = 8 + i })
        end
        assert.not_equal(json.raw(p[1].body, "bootstrap_room"), json.raw(p[2].body, "bootstrap_room"))
        assert.not_equal(json.raw(p[1].body, "rid"), json.raw(p[2].body, "rid"))
        assert.same(wanted, texts.of(case.path, answer))
        if stream then
          assert.equal(1, texts.dones(answer))
        end
        if case.path ~= "/generate" then
          local usage = stream and texts.usages(answer)[1] or json.decode(answer.body).usage
          assert.equal(10, usage.completion_tokens)
          assert.equal(math.ceil(#(case.expect and "user\nsample me\n" or "sample me") / 4), usage.prompt_tokens)
          if stream then
            assert.equal(1, #texts.distinct(answer, "id"))
            assert.equal(1, #texts.usages(answer))
          end
        elseif not stream then
          assert.equal(2, #json.elements(answer.body), "a list, as the engine answers n = 2")
        end
      end)
    end
  end

  it("splits a list with n = 2 into prompts times samples", function()
    local body = '{"model":"sim","prompt":["aa","bb"],"n":2,"seed":1,"max_tokens":3,"temperature":1}'
    local answer, seen = f:exchange("/v1/completions", body)
    assert.equal(200, answer.status, answer.body)
    assert.equal(4, #seen.decode)
    for _, e in ipairs(seen.decode) do
      assert_room(json.raw(e.body, "bootstrap_room"))
      assert.equal('"', json.raw(e.body, "prompt"):sub(1, 1), "a string again")
    end
    assert.same({
      fleet.expect("aa", 3, { seed = 1 }), fleet.expect("aa", 3, { seed = 2 }),
      fleet.expect("bb", 3, { seed = 1 }), fleet.expect("bb", 3, { seed = 2 }),
    }, texts.of("/v1/completions", answer))
    assert.equal(2, json.decode(answer.body).usage.prompt_tokens)
  end)

  it("never splits a route that the engine takes no room on", function()
    local answer, seen = f:exchange("/v1/messages",
      '{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"x"}]}')
    assert.equal(400, answer.status, answer.body)
    assert.equal("error", json.decode(answer.body).type)
    assert.truthy(answer.body:find("route", 1, true), answer.body)
    assert.equal(0, #seen.prefill + #seen.decode)
  end)

  it("uses no room twice while 64 requests run at once", function()
    local asks = {}
    for i = 1, 64 do
      asks[i] = { path = "/v1/completions",
        body = ('{"model":"sim","prompt":"number %d","max_tokens":3,"stream":true}'):format(i) }
    end
    f:mark()
    local answers = http.together(f.port, asks)
    local seen = f:legs("/v1/completions")
    local used = {}
    for _, e in ipairs(seen.decode) do
      local room = json.raw(e.body, "bootstrap_room")
      assert.is_nil(used[room])
      used[room] = true
    end
    for i, answer in ipairs(answers) do
      assert.equal(200, answer.status)
      assert.same({ fleet.expect("number " .. i, 3) }, texts.of("/v1/completions", answer))
    end
    assert.equal(0, f:state("p0").rooms)
  end)

  local ORDINARY = common.ORDINARY
  local OURS = { "bootstrap_host", "bootstrap_port", "bootstrap_room", "rid" }
  local function get()
    return f
  end
  common.headers(get, ORDINARY)
  common.ids(get, ORDINARY)
  common.forged(get, ORDINARY, { prefill = OURS, decode = OURS })
end)

describe("data-parallel ranks of sglang", function()
  setup(function()
    f = fleet.start({
      workers = { "role=prefill,engine=sglang,dp=4,ttft=1", "role=decode,engine=sglang,ttft=1,itl=1" },
      config = function(w)
        return ([[return { pools = { { connector = "sglang", workers = {
          { url = "%s", role = "prefill", bootstrap_port = %d, dp_size = 4 },
          { url = "%s", role = "decode" } } } } }]]):format(w.p0.url, w.p0.second, w.d0.url)
      end,
    })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  it("are chosen in turn, and room and both legs agree", function()
    local counts = { [0] = 0, 0, 0, 0 }
    f:mark()
    for i = 1, 60 do
      local answer = f:post("/generate", ('{"text":"rank %d","sampling_params":{"max_new_tokens":1}}'):format(i))
      assert.equal(200, answer.status, answer.body)
    end
    local seen = f:legs("/generate")
    for _, e in ipairs(seen.prefill) do
      local rank = remainder(json.raw(e.body, "bootstrap_room"), 4)
      counts[rank] = counts[rank] + 1
      assert.equal(tostring(rank), json.raw(e.body, "routed_dp_rank"))
    end
    for _, e in ipairs(seen.decode) do
      assert.equal(tostring(remainder(json.raw(e.body, "bootstrap_room"), 4)),
        json.raw(e.body, "disagg_prefill_dp_rank"))
      assert.is_nil(json.raw(e.body, "routed_dp_rank")) -- decode has one rank
    end
    for rank = 0, 3 do
      assert.is_true(counts[rank] >= 12, "in turn: " .. counts[rank] .. " at rank " .. rank)
      assert.equal(counts[rank], f:state("p0").rank_requests[rank + 1])
    end
  end)
end)

describe("aborts over sglang", function()
  setup(function()
    f = fleet.start({
      workers = { "role=prefill,engine=sglang,ttft=1", "role=decode,engine=sglang,ttft=1,itl=20" },
      flags = { "--pd-disaggregation" },
    })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  local function runs(count)
    eventually(function()
      return f:state("d0").live == count, f:state("d0").live
    end, 5, count .. " requests on the decode worker")
  end

  local function told(rid_of)
    eventually(function()
      local seen = f:legs("/abort_request")
      return #seen.decode > 0 and json.decode(seen.decode[1].body).rid == rid_of
    end, 5, "decode was told to abort by our rid")
  end

  for _, how in ipairs({ "close", "reset" }) do
    it("tells both engines by our rid when the client is gone (" .. how .. ")", function()
      f:mark()
      local c = http.start(f.port, { path = "/generate",
        body = '{"text":"leave me","stream":true,"sampling_params":{"max_new_tokens":400}}' })
      c:wait_events(1)
      local rid = json.decode(json.raw(legs.one(f:legs("/generate").decode).body, "rid"))
      c[how](c)
      runs(0)
      told(rid)
      assert.equal(0, f:state("p0").rooms)
    end)
  end

  it("aborts a list by the prefix that all its rids share", function()
    f:mark()
    local c = http.start(f.port, { path = "/generate",
      body = '{"text":["a","b"],"stream":true,"sampling_params":{"max_new_tokens":400}}' })
    c:wait_events(1)
    local rids = json.decode(json.raw(legs.one(f:legs("/generate").decode).body, "rid"))
    c:close()
    runs(0)
    eventually(function()
      local seen = f:legs("/abort_request")
      local rid = #seen.decode > 0 and json.decode(seen.decode[1].body).rid
      return rid and #rid == 32 and rids[1]:sub(1, 32) == rid and rids[2]:sub(1, 32) == rid
    end, 5, "one abort that covers both")
  end)

  it("ends a request that /abort_request names by the client's rid", function()
    f:mark()
    local c = http.start(f.port, { path = "/generate",
      body = '{"rid":"the-clients-own","text":"stop me","stream":true,"sampling_params":{"max_new_tokens":400}}' })
    c:wait_events(1)
    local rid = json.decode(json.raw(legs.one(f:legs("/generate").decode).body, "rid"))
    assert.not_equal("the-clients-own", rid)
    local answer = f:post("/abort_request", '{"rid":"the-clients-own"}')
    assert.equal(200, answer.status, answer.body)
    assert.equal("", answer.body)
    runs(0)
    told(rid)
    c:wait(nil, 5)
    c:close()
  end)

  it("aborts by X-Request-Id too, and nothing for a name it does not know", function()
    f:mark()
    local c = http.start(f.port, { path = "/generate", headers = { ["X-Request-Id"] = "by-id" },
      body = '{"text":"stop me","stream":true,"sampling_params":{"max_new_tokens":400}}' })
    c:wait_events(1)
    assert.equal(200, f:post("/abort_request", '{"rid":"nobody"}').status)
    assert.equal(200, f:post("/abort_request", '{"rid":"by-i"}').status, "no prefix")
    assert.equal(1, f:state("d0").live)
    for _, body in ipairs({ "{}", '{"abort_all":true}', '{"rid":5}', '{"rid":""}', "[]", "" }) do
      assert.equal(400, f:post("/abort_request", body).status, body)
    end
    assert.equal(1, f:state("d0").live)
    assert.equal(200, f:post("/abort_request", '{"rid":"by-id"}').status)
    runs(0)
    c:close()
  end)

  -- A long body is read off the loop. When it has come is not seen from here, so the word comes again and again.
  it("aborts a request whose body is being read", function()
    local body = '{"text":"' .. ("w"):rep(24 * 1024 * 1024) .. '","sampling_params":{"max_new_tokens":1}}'
    local other = http.connect(f.port)
    eventually(function()
      local c = http.connect(f.port)
      c:expect_answer()
      assert(c:send(http.head_of({ path = "/generate", headers = { ["X-Request-Id"] = "read" }, body = body }, f.port)
        .. body))
      repeat
        other:ask({ path = "/abort_request", body = '{"rid":"read"}' })
        other:wait()
        assert.equal(200, other.answer.status)
        c:pump()
      until c.answer.done
      c:close()
      assert.is_true(c.answer.status == 400 or c.answer.status == 499, c.answer.body) -- 400: the engine's, read before
      return c.answer.status == 499, c.answer.body
    end, 20, "one is aborted while it is read")
    other:close()
    assert.equal(200, f:post("/generate", '{"text":"go on","sampling_params":{"max_new_tokens":1}}').status)
  end)
end)
