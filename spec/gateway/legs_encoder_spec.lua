-- The bytes of all legs where vLLM's encoders stand apart (E->P->D), typed from the wire notes of its proxies: one part
-- an encoder, without text, uuid, stream and max_tokens; what the encoders say goes to whoever computes the prompt, and
-- to nobody else.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

local CHAT = "/v1/chat/completions"
local IMAGE = '{ "type":"image_url", "image_url" : {"url":"data:image/png;base64,AA\\u002b%d","detail":"low"},"x":1.5}'
local AUDIO = '{"type":"input_audio","input_audio":{"data":"UklGRg==%d","format":"wav"}}'
local VIDEO = '{"typ\\u0065":"video_url","video_url":{"url":"http://media/%d.mp4"}}'
local TEXT = '{"type":"text","text":"what is this?"}'

local next_part = 0
local function part(form)
  next_part = next_part + 1
  return form:format(next_part)
end

local function body_of(parts, more)
  return '{ "model" : "sim","messages":[{"role":"system","content":"short"},{"role":"user","content":['
    .. table.concat(parts, " , ") .. ']}],"max_tokens":5, "temperature":0.70' .. (more and "," .. more or "") .. " }"
end

-- What an encoder must be sent for this part, however its members stand.
local function asked_for(item, more)
  return '{"model":"sim","messages":[{"role":"user","content":[' .. item .. ']}],"stream":false' .. (more or "") .. "}"
end

local function bodies(entries)
  local out = {}
  for i, e in ipairs(entries) do
    out[i] = e.body
  end
  table.sort(out)
  return out
end

local function sorted(list)
  table.sort(list)
  return list
end

local f

local function start(workers, flags)
  f = fleet.start({ workers = workers, flags = flags })
end

local function stop()
  f:stop()
  proc.clean()
end

local function sum(counter, ...)
  local n = 0
  for _, name in ipairs({ ... }) do
    n = n + f:state(name)[counter]
  end
  return n
end

describe("legs of encoders before a pair", function()
  setup(function()
    start({ "role=encode,count=2,ttft=1", "role=prefill,ttft=1", "role=decode,ttft=1,itl=1" },
      { "--vllm-pd-disaggregation" })
  end)
  teardown(stop)

  for _, stream in ipairs({ false, true }) do
    it("one a part, all at once, then prefill is told, and decode is not" .. (stream and ", streamed" or ""), function()
      local parts = { part(IMAGE), TEXT, part(AUDIO), part(VIDEO) }
      local body = body_of(parts, stream and '"stream":true,"stream_options":{"include_usage":true}' or nil)
      local encoded, fetched = sum("media_encoded", "e0", "e1"), sum("media_fetched", "p0")
      local answer, seen = f:exchange(CHAT, body, { ["X-Request-Id"] = "chat" .. tostring(stream) })
      assert.equal(200, answer.status, answer.body)
      assert.same(sorted({ asked_for(parts[1]), asked_for(parts[3]), asked_for(parts[4]) }), bodies(seen.encode))
      local ids = {}
      for _, e in ipairs(seen.encode) do
        assert.equal("POST", e.method)
        ids[#ids + 1] = e.headers["x-request-id"]:match("^chat" .. tostring(stream) .. ":(%d):%x%x%x%x%x%x$")
      end
      assert.same({ "0", "1", "2" }, sorted(ids))
      local p, d = legs.one(seen.prefill), legs.one(seen.decode)
      local told = json.raw(p.body, "ec_transfer_params")
      assert.equal(3, #json.keys(told))
      for _, m in ipairs(json.members(told)) do
        assert.same({ "peer_host", "peer_port", "size_bytes", "nixl_agent_metadata_b64" }, json.keys(m.raw))
      end
      legs.check(body, p.body, legs.one_token(CHAT, body, { ec_transfer_params = told,
        kv_transfer_params = json.raw(p.body, "kv_transfer_params") }))
      legs.check(body, d.body, { added = { kv_transfer_params = json.raw(d.body, "kv_transfer_params") } })
      assert.equal(3, sum("media_encoded", "e0", "e1") - encoded)
      assert.equal(3, sum("media_fetched", "p0") - fetched)
      assert.equal(0, sum("media_local", "p0", "d0"))
      assert.equal("e0,e1", table.concat(sorted({ answer:header("x-baton-encode"):match("^(e%d),(e%d)$") }), ","))
      assert.equal("handoff", answer:header("x-baton-plan"))
      assert.equal(0, f:state("p0").held_kv_requests)
    end)
  end

  for _, stream in ipairs({ false, true }) do
    it("encode images of /v1/responses as parts of a chat" .. (stream and ", streamed" or ""), function()
      local url = '"data:image/png;base64,AA\\u002b' .. tostring(stream) .. '"'
      local body = '{"model":"sim","input":[{"role":"user","content":[{"type":"input_text","text":"look"},'
        .. '{"type":"input_image","detail":"low", "image_url":' .. url .. '}]}],"max_output_tokens":5'
        .. (stream and ',"stream":true}' or "}")
      local fetched = sum("media_fetched", "p0")
      local answer, seen = f:exchange("/v1/responses", body, { ["X-Request-Id"] = "resp" .. tostring(stream) })
      assert.equal(200, answer.status, answer.body)
      local e = legs.one(f:legs(CHAT).encode)
      assert.equal("POST", e.method)
      assert.equal(asked_for('{"type":"image_url","image_url":{"url":' .. url .. "}}"), e.body)
      assert.equal("resp" .. tostring(stream) .. ":0:", e.headers["x-request-id"]:sub(1, -7))
      assert.equal(1, #json.keys(json.raw(legs.one(seen.prefill).body, "ec_transfer_params")))
      assert.is_nil(json.raw(legs.one(seen.decode).body, "ec_transfer_params"))
      assert.equal(1, sum("media_fetched", "p0") - fetched)
      assert.equal(0, sum("media_local", "p0", "d0"))
      assert.equal("handoff", answer:header("x-baton-plan"))
    end)
  end

  for what, case in pairs({
    ["an image of /v1/messages"] = { "/v1/messages", '"messages":[{"role":"user","content":[{"type":"image",'
      .. '"source":{"type":"base64","media_type":"image/png","data":"AA=="}}]}],"max_tokens":3',
      "/v1/chat/completions or /v1/responses" },
    ["a file of /v1/responses"] = { "/v1/responses",
      '"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]', "file_id" },
  }) do
    it("refuse what they cannot encode, with the remedy: " .. what, function()
      local answer, seen = f:exchange(case[1], '{"model":"sim",' .. case[2] .. "}")
      assert.equal(400, answer.status, answer.body)
      assert.truthy(json.decode(answer.body).error.message:find(case[3], 1, true), answer.body)
      assert.equal(0, #seen.prefill + #seen.decode + #f:legs(CHAT).encode)
    end)
  end

  it("go nowhere for a request without media", function()
    for _, body in ipairs({ body_of({ TEXT }),
      body_of({ '"words"', '{"type":"image_embeds","image_embeds":{}}', "{}" }),
      '{"model":"sim","messages":[{"role":"user","content":"an image_url"}],"max_tokens":2}' }) do
      local answer, seen = f:exchange(CHAT, body)
      assert.equal(200, answer.status, answer.body)
      assert.equal(0, #seen.encode)
      assert.is_nil(answer:header("x-baton-encode"))
      assert.is_nil(json.raw(legs.one(seen.prefill).body, "ec_transfer_params"))
    end
  end)

  it("encode the same part once, and with what goes into its hash", function()
    local same = part(IMAGE)
    local kwargs = '"mm_processor_kwargs":{ "min_pixels":64 },"media_io_kwargs":{"video":{"fps":2.0}}'
    local local_before = sum("media_local", "p0")
    local answer, seen = f:exchange(CHAT, body_of({ same, TEXT, same }, kwargs))
    assert.equal(200, answer.status, answer.body)
    assert.equal(asked_for(same, "," .. kwargs), legs.one(seen.encode).body)
    assert.equal(0, sum("media_local", "p0") - local_before)
  end)

  it("are for no client to speak of", function()
    local answer, seen = f:exchange(CHAT,
      body_of({ part(IMAGE) }, '"ec_transfer_params":{"evil":7},"encoder_urls":["http://evil"]'))
    assert.equal(200, answer.status, answer.body)
    for _, list in pairs(seen) do
      for _, e in ipairs(list) do
        assert.is_nil(e.body:find("evil", 1, true), e.body)
      end
    end
  end)

  it("are told of by explain, records and metrics", function()
    local before = f:metric("baton_encode_seconds_count")
    local answer = f:exchange(CHAT, body_of({ part(IMAGE), part(AUDIO) }), { ["X-Request-Id"] = "told" })
    assert.equal(200, answer.status, answer.body)
    assert.equal(1, f:metric("baton_encode_seconds_count") - before)
    local text = http.get(f.admin_port, "/admin/explain/told?format=text").body
    assert.truthy(text:find("part 0: encoded by e%d at [%d.]+ ms\npart 1: encoded by e%d"), text)
    assert.truthy(text:find("times in ms:.* encode [%d.]+ plan"), text)
    local told = json.decode(http.get(f.admin_port, "/admin/explain/told").body)
    assert.equal(2, #told.encode.parts)
    assert.is_true(told.encode.end_ms >= told.encode.start_ms)
    assert.is_true(faults.outcomes(f).e0.ok + faults.outcomes(f).e1.ok >= 2)
  end)

  it("are as many as a request may be split into", function()
    local parts = {}
    for i = 1, 65 do
      parts[i] = part(AUDIO)
    end
    local answer, seen = f:exchange(CHAT, body_of(parts))
    assert.equal(400, answer.status)
    assert.truthy(answer.body:find("max_fanout", 1, true), answer.body)
    assert.equal(0, #seen.encode + #seen.prefill)
  end)
end)

describe("legs of encoders before a worker alone", function()
  teardown(stop)

  it("tell it, with words that its own policy chose them by", function()
    local policy = proc.write("second.lua", [[return { api = 2, name = "second", version = "1",
      plan = function(_, view)
        local list = view.single
        if #list == 0 then
          return nil
        end
        return { worker = list[#list] }
      end }]])
    start({ "role=encode,count=2,ttft=1", "role=encode,ec=store,ttft=1,name=e9", "role=hybrid,ttft=1,itl=1" },
      { "--policy", policy })
    local answer, seen = f:exchange(CHAT, body_of({ part(IMAGE), part(IMAGE) }))
    assert.equal(200, answer.status, answer.body)
    assert.equal("e2", answer:header("x-baton-encode")) -- the last of three; a store says nothing
    assert.is_nil(json.raw(legs.one(seen.hybrid).body, "ec_transfer_params"))
    assert.equal(2, sum("media_fetched", "h0"))
    assert.equal("single", answer:header("x-baton-plan"))
  end)
end)

describe("what encoders say", function()
  local encoders, answers = {}, {}

  setup(function()
    for i = 1, 2 do
      encoders[i] = stub.start(function(request)
        return answers[i](request)
      end)
    end
    start({ "role=hybrid,ttft=1,itl=1" },
      { "--disable-retries", "--encode", encoders[1].url, "--encode", encoders[2].url })
    eventually(function()
      return (f:told("e0") or {}).usable and f:told("e1").usable
    end, 5, "both are up")
  end)

  teardown(function()
    stop()
    encoders[1]:stop()
    encoders[2]:stop()
  end)

  local function says(params)
    return function()
      return stub.reply(200, '{"choices":[],"ec_transfer_params":' .. params .. "}")
    end
  end

  it("is put together: by hash, and lists one after the other; hosts made reachable, nulls left out", function()
    answers[1] = says('{"aa":{"peer_host":"localhost","n":1.50},"ec_items":[{"mm_hash":"aa","grid":[[1,2,3]]}]}')
    answers[2] = says('{"ec_items":[{"mm_hash":"bb"}],"bb":{"peer_host":"10.0.0.9"},"cc":null,"aa":{"late":1}}')
    local _, seen = f:exchange(CHAT, body_of({ part(IMAGE), part(IMAGE) }))
    local told = json.raw(legs.one(seen.hybrid).body, "ec_transfer_params")
    assert.truthy(told:find('"bb":{"peer_host":"10.0.0.9"}', 1, true), told)
    local first, second = '"aa":{"peer_host":"127.0.0.1","n":1.50}', '"aa":{"late":1}' -- either has the part
    assert.truthy(told:find(first, 1, true) or told:find(second, 1, true), told)
    assert.equal(2, #json.elements(json.raw(told, "ec_items")))
    assert.same({ "aa", "bb", "ec_items" }, sorted(json.keys(told)))
  end)

  it("names no machine but those that legs can reach, in each of its hosts", function()
    answers[1] = says('{"aa":{"remote_host":"0.0.0.0","p":1,"peer_host":"localhost"}}')
    answers[2] = says('{"aa":{"remote_host":"10.0.0.9","p":1,"peer_host":"[::]"}}')
    local _, seen = f:exchange(CHAT, body_of({ part(IMAGE), part(IMAGE) }))
    local told = json.raw(legs.one(seen.hybrid).body, "ec_transfer_params")
    local first = '{"aa":{"remote_host":"127.0.0.1","p":1,"peer_host":"127.0.0.1"}}'
    local second = '{"aa":{"remote_host":"10.0.0.9","p":1,"peer_host":"127.0.0.1"}}'
    assert.truthy(told == first or told == second, told)
  end)

  for _, wrong in ipairs({ "7", "[]", '{"aa":7}', '{"aa":[]}', '{"ec_items":{}}', '{"ec_items":[7]}' }) do
    it("is refused where an engine would end by it: " .. wrong, function()
      local before = faults.outcomes(f)
      answers[1], answers[2] = says(wrong), says(wrong)
      local answer, seen = f:exchange(CHAT, body_of({ part(IMAGE) }))
      assert.equal(502, answer.status, answer.body)
      assert.truthy(answer.body:find("ec_transfer_params", 1, true), answer.body)
      assert.equal("encode", answer:header("x-baton-leg"))
      assert.equal("handoff", answer:header("x-baton-error"))
      assert.equal(0, #seen.hybrid)
      local _, times = next(faults.guilt(f, before))
      assert.equal(1, times)
    end)
  end
end)

describe("an encode worker", function()
  it("is vLLM's", function()
    local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "check", "--pd-disaggregation", "--prefill",
      "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--encode", "http://127.0.0.1:3" })
    assert.equal(2, code)
    assert.truthy(err:find('role "encode" is for vLLM', 1, true), err)
  end)
end)
