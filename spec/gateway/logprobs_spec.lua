-- Log probabilities of a prompt's own tokens: a pair's answer has what a plain engine's has, though only prefill knows
-- them; where they cannot be told exactly, the request is refused. Each answer is compared with one of a worker that
-- no gateway stands before.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

local f

local function stop()
  f:stop()
  proc.clean()
end

local function start(engine, flags, connector)
  f = fleet.start({
    workers = {
      "role=prefill,count=2,ttft=1,engine=" .. engine, "role=decode,count=2,ttft=1,itl=1,engine=" .. engine,
      "role=hybrid,name=plain,ttft=1,itl=1,engine=" .. engine,
    },
    flags = flags,
    config = function(w)
      local list = {}
      for _, name in ipairs({ "p0", "p1", "d0", "d1" }) do
        local p = name:sub(1, 1) == "p"
        list[#list + 1] = ('{ url = "%s", role = "%s"%s }'):format(w[name].url, p and "prefill" or "decode",
          p and engine == "sglang" and ", bootstrap_port = " .. w[name].second or "")
      end
      return ('return { engine = "%s"%s, pools = { { workers = { %s } } } }'):format(engine,
        connector and ', connector = "' .. connector .. '"' or "", table.concat(list, ", "))
    end,
    ready = false,
  })
  fleet.wait_up(f.port, f.admin_port)
end

-- What differs between two answers to one request: who made it, and when.
local function bare(value)
  if type(value) ~= "table" then
    return value
  end
  local out = {}
  for k, v in pairs(value) do
    if k ~= "id" and k ~= "request_id" and k ~= "created" and k ~= "cached_tokens" and k ~= "prompt_tokens_details" then
      out[k] = bare(v)
    end
  end
  return out
end

local function by_index(events)
  local out = {}
  for _, data in ipairs(events) do
    local e = data == "[DONE]" and data or bare(json.decode(data))
    local index = e ~= "[DONE]" and (e.index or (e.choices and e.choices[1] and e.choices[1].index)) or 0
    out[index] = out[index] or {}
    table.insert(out[index], e)
  end
  return out
end

-- A pair's stream of /generate has the prompt's lists in each answer's first and last event; an engine's repeats them.
local function without_repeats(by_answer)
  for _, events in pairs(by_answer) do
    for i = 2, #events do
      local meta = type(events[i]) == "table" and events[i].meta_info or {}
      for name, list in pairs(meta) do
        if name:find("^input_") and type(list) == "table" and meta.finish_reason == json.null then
          meta[name] = {}
        end
      end
    end
  end
  return by_answer
end

-- The pair's answer is the plain worker's.
local function expect_same(path, body, headers)
  local plain = http.post(f.workers.plain.port, path, body)
  local answer, seen = f:exchange(path, body, headers)
  assert.equal(200, plain.status, plain.body)
  assert.equal(200, answer.status, answer.body)
  assert.is_true(#seen.prefill > 0 and #seen.decode > 0)
  if body:find('"stream":true', 1, true) then
    assert.same(without_repeats(by_index(plain:data())), by_index(answer:data()))
  else
    assert.equal("application/json", answer:header("content-type"))
    local a, b = bare(json.decode(plain.body)), bare(json.decode(answer.body))
    for i = 1, path == "/generate" and #a or 0 do
      a[i].index, b[i].index = nil, nil -- only streams of a real engine have it
    end
    assert.same(a, b)
  end
  return answer, seen
end

local function counts_of(names)
  return eventually(function()
    for _, name in ipairs(names) do
      local s = f:state(name)
      if s.live ~= 0 or s.held_kv_requests ~= 0 then
        return false, s
      end
    end
    return true
  end, 5, "nothing runs, nothing is held")
end

-- Engines send the lists again with each event: of a long prompt, some megabytes a token.
describe("logprobs of a long prompt in a stream", function()
  after_each(stop)

  local BODY = ('{"text":"%s","sampling_params":{"max_new_tokens":%d},"return_logprob":true,"logprob_start_len":0,'
    .. '"top_logprobs_num":5,"stream":true}')

  it("come with its first and its last event only", function()
    start("sglang", { "--disable-circuit-breaker" })
    local body = BODY:format(("word "):rep(2000), 64)
    local plain = http.post(f.workers.plain.port, "/generate", body):data()[1]
    local lists = #json.raw(plain, "meta_info", "input_top_logprobs")
    local events = f:post("/generate", body):data()
    assert.equal(65, #events) -- with [DONE]
    for i = 1, 64 do
      local got = #json.raw(events[i], "meta_info", "input_top_logprobs")
      assert.equal((i == 1 or i == 64) and lists or #"[]", got)
    end
    counts_of({ "p0", "p1", "d0", "d1" })
  end)

  it("fail their own request when there is no room for them", function()
    local room = 6 * 2 ^ 20 -- for prefill's 3.8 MB, not for these and a copy
    start("sglang", { "--disable-circuit-breaker", "--max-buffered-bytes", tostring(room) })
    local answer = f:post("/generate", BODY:format(("word "):rep(24000), 64))
    assert.truthy(answer.body:find("memory is short", 1, true), answer.body:sub(1, 300))
    assert.is_true(#answer.body < room)
    assert.equal(200, f:post("/generate", BODY:format("a short one", 4)).status)
    counts_of({ "p0", "p1", "d0", "d1" })
  end)
end)

-- What is too long at one worker is so at all.
describe("an answer that is too long to be put together", function()
  local gateway, port, admin_port, stubs, seen, long

  before_each(function()
    seen, long = {}, nil
    local folder = proc.path("dialects")
    assert(os.execute("mkdir " .. folder) == 0)
    local file = assert(io.open(folder .. "/own.lua", "w"))
    file:write("return { name = 'own', connectors = { 'OwnConnector' }, kind = 'sequence', prompt_logprobs = 'vllm', "
      .. "prefill = function() end, decode = function() end }")
    file:close()
    stubs = {}
    local flags = { "--dialect-dir", folder, "--kv-connector", "OwnConnector", "--breaker-failures", "1" }
    for _, role in ipairs({ "prefill", "prefill", "decode", "decode" }) do
      local one = stub.start(function(request)
        if request.method ~= "POST" then
          return stub.reply(404, "{}")
        end
        seen[#seen + 1] = role
        local text = role == long and ("x"):rep((64 * 2 ^ 20) + 1) or "x"
        return stub.reply(200, '{"id":"x","choices":[{"index":0,"text":"' .. text
          .. '","finish_reason":"length","prompt_logprobs":[null]}]}')
      end)
      stubs[#stubs + 1] = one
      flags[#flags + 1] = "--" .. role
      flags[#flags + 1] = one.url
    end
    gateway, port, admin_port = fleet.start_gateway(flags)
    eventually(function()
      local text = http.get(admin_port, "/workers").body
      return select(2, text:gsub('"health":"up"', "")) == 4, text
    end, 10, "all workers are up")
  end)

  after_each(function()
    gateway:stop(10)
    for _, one in ipairs(stubs) do
      one:stop()
    end
    proc.clean()
  end)

  local function ask()
    return http.post(port, "/v1/completions", '{"model":"m","prompt":"a b","max_tokens":3,"prompt_logprobs":1}')
  end

  for _, role in ipairs({ "prefill", "decode" }) do
    it("is " .. role .. "'s, is not tried again and blames nobody", function()
      assert.equal(200, ask().status)
      long, seen = role, {}
      local answer = ask()
      assert.equal(502, answer.status)
      assert.matches("larger than", answer.body)
      assert.same(role == "prefill" and { "prefill" } or { "prefill", "decode" }, seen)
      local metrics = http.get(admin_port, "/metrics").body
      assert.equal(4, select(2, metrics:gsub("baton_worker_breaker_state{[^}]*} 0\n", "")), metrics)
      long = nil
      assert.equal(200, ask().status)
    end)
  end
end)

describe("logprobs of the prompt, SGLang", function()
  setup(function()
    start("sglang", { "--disable-circuit-breaker" })
  end)

  teardown(stop)

  after_each(function()
    counts_of({ "p0", "p1", "d0", "d1" })
  end)

  local GENERATE = '{"text":"one two three four five","sampling_params":{"max_new_tokens":4}%s}'
  local LIST = '{"text":["one two three","four","five six"],"sampling_params":{"max_new_tokens":3}%s}'
  local SAMPLES = '{"text":"one two three","sampling_params":{"max_new_tokens":3,"n":2,"temperature":1}%s}'

  for _, stream in ipairs({ "", ',"stream":true' }) do
    local kind = stream == "" and "" or ", streamed"
    it("/generate" .. kind, function()
      local answer = expect_same("/generate", GENERATE:format(',"return_logprob":true,"logprob_start_len":0' .. stream))
      local first = stream == "" and answer.body or answer:data()[1]
      assert.equal(6, #json.elements(json.raw(first, "meta_info", "input_token_logprobs")))
      expect_same("/generate", GENERATE:format(',"return_logprob":true,"logprob_start_len":3' .. stream))
      expect_same("/generate",
        GENERATE:format(',"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":2' .. stream))
      expect_same("/generate", GENERATE:format(',"return_logprob":true,"logprob_start_len":99' .. stream))
    end)

    it("/generate with a list" .. kind, function()
      local _, seen = expect_same("/generate", LIST:format(',"return_logprob":true,"logprob_start_len":0' .. stream))
      assert.equal(1, #seen.prefill) -- in one leg
      expect_same("/generate", LIST:format(
        ',"return_logprob":[true,false,true],"logprob_start_len":[0,0,1],"top_logprobs_num":[0,0,3]' .. stream))
    end)

    it("/generate with several samples" .. kind, function()
      local _, seen = expect_same("/generate", SAMPLES:format(',"return_logprob":true,"logprob_start_len":1' .. stream))
      assert.equal(2, #seen.prefill)
    end)

    it("/v1/completions with echo" .. kind, function()
      for _, more in ipairs({
        '"prompt":"say \\"it\\" again","logprobs":1', '"prompt":"a","logprobs":0',
        '"prompt":["one two three","four","five six"],"logprobs":2',
        '"prompt":["one two three","four"],"logprobs":1,"n":2,"temperature":1',
      }) do
        local answer = expect_same("/v1/completions",
          '{"model":"sim","max_tokens":3,"echo":true,' .. more .. stream .. "}")
        local logprobs = json.decode(stream == "" and answer.body or answer:data()[1]).choices[1].logprobs
        assert.is_true(#logprobs.tokens > (stream == "" and 3 or 1))
        assert.equal(json.null, logprobs.token_logprobs[1])
      end
    end)

    it("are refused in a form that is no list" .. kind, function()
      local answer, seen = f:exchange("/generate", GENERATE:format(
        ',"return_logprob":true,"logprob_start_len":0,"return_flat_raw_top_logprobs":true' .. stream))
      assert.equal(400, answer.status, answer.body)
      assert.truthy(answer.body:find("no hybrid worker", 1, true), answer.body)
      assert.equal(0, #seen.prefill + #seen.decode)
    end)

    it("are not waited for where only the answer's are asked for" .. kind, function()
      for i, more in ipairs({
        { "/generate", GENERATE:format(',"return_logprob":true' .. stream) },
        { "/v1/completions", '{"model":"sim","prompt":"a b c d e","max_tokens":3,"logprobs":1' .. stream .. "}" },
      }) do
        local answer = f:post(more[1], more[2], { ["X-Sim-Fault"] = "late_answer:2000@prefill" })
        assert.equal(200, answer.status, answer.body)
        assert.equal(i, f:state("p0").live + f:state("p1").live)
      end
    end)

    it("waits for a prefill that answers after decode" .. kind, function()
      local body = GENERATE:format(',"return_logprob":true,"logprob_start_len":0' .. stream)
      local plain = http.post(f.workers.plain.port, "/generate", body)
      local answer = f:post("/generate", body, { ["X-Sim-Fault"] = "late_answer:300@prefill" })
      assert.equal(200, answer.status, answer.body)
      if stream == "" then
        assert.same(bare(json.decode(plain.body)), bare(json.decode(answer.body)))
      else
        assert.same(without_repeats(by_index(plain:data())), by_index(answer:data()))
      end
    end)

    it("is given up when its client leaves while it waits" .. kind, function()
      local answered = f:state("d0").answered + f:state("d1").answered
      local c = http.start(f.port, { path = "/generate", headers = { ["X-Sim-Fault"] = "late_answer:60000@prefill" },
        body = GENERATE:format(',"return_logprob":true,"logprob_start_len":0' .. stream) })
      local function live(a, b)
        return f:state(a).live + f:state(b).live
      end
      eventually(function()
        c:pump()
        return live("p0", "p1") == 1 and live("d0", "d1") == 0
          and f:state("d0").answered + f:state("d1").answered > answered
      end, 10, "decode has answered, prefill has not")
      assert.equal("head", c.answer.state) -- nothing has come
      c:close()
      eventually(function()
        return live("p0", "p1") == 0
      end, 5, "prefill is told")
    end)

    it("asks another pair when prefill breaks off, though decode has answered" .. kind, function()
      local body = GENERATE:format(',"return_logprob":true,"logprob_start_len":0' .. stream)
      f.sim:fault("p0", { kind = "rst", times = 1 })
      local plain = http.post(f.workers.plain.port, "/generate", body)
      for _ = 1, 4 do
        local answer = f:post("/generate", body)
        assert.equal(200, answer.status, answer.body)
        assert.same(stream == "" and bare(json.decode(plain.body)) or without_repeats(by_index(plain:data())),
          stream == "" and bare(json.decode(answer.body)) or by_index(answer:data()))
      end
      assert.is_true(f:state("p0").requests > 0)
    end)

    it("is an error when every prefill breaks off, never an answer without them" .. kind, function()
      for _, more in ipairs({
        { "/generate", GENERATE:format(',"return_logprob":true,"logprob_start_len":0' .. stream) },
        { "/v1/completions",
          '{"model":"sim","prompt":"a b c","max_tokens":3,"echo":true,"logprobs":1' .. stream .. "}" },
      }) do
        local answer = f:post(more[1], more[2], { ["X-Sim-Fault"] = "rst@prefill" })
        assert.equal(502, answer.status, answer.body)
      end
    end)
  end
end)

describe("logprobs of the prompt, vLLM", function()
  setup(function()
    start("vllm", { "--disable-circuit-breaker" }, "nixl")
  end)

  teardown(stop)

  after_each(function()
    counts_of({ "p0", "p1", "d0", "d1" })
  end)

  local BODIES = {
    { "/v1/completions", '{"model":"sim","prompt":"one two three four","max_tokens":3,"prompt_logprobs":1}', 1 },
    { "/v1/completions", '{"model":"sim","prompt":["one two","three"],"prompt_logprobs":0,"max_tokens":3}', 2 },
    { "/v1/completions",
      '{"model":"sim","prompt":["one two","three"],"max_tokens":3,"n":2,"temperature":1,"prompt_logprobs":-1}', 4 },
    { "/v1/chat/completions",
      '{"model":"sim","messages":[{"role":"user","content":"hi there"}],"max_tokens":3,"prompt_logprobs":2}', 1 },
    { "/v1/chat/completions", '{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"n":2,'
      .. '"temperature":1,"prompt_logprobs":2}', 2 },
    { "/inference/v1/generate",
      '{"model":"sim","token_ids":[1,2,3],"sampling_params":{"max_tokens":3,"prompt_logprobs":1,"top_k":5}}', 1 },
  }

  it("are prefill's, and decode is not asked for them", function()
    for _, case in ipairs(BODIES) do
      local answer, seen = expect_same(case[1], case[2])
      assert.equal(case[3], #seen.prefill)
      assert.equal(case[3], #seen.decode)
      assert.is_nil(answer.body:find('"prompt_logprobs":null', 1, true))
      for _, e in ipairs(seen.prefill) do
        assert.truthy(e.body:find('"prompt_logprobs":', 1, true))
      end
      for _, e in ipairs(seen.decode) do
        assert.is_nil(e.body:find("prompt_logprobs", 1, true), e.body)
      end
    end
    local body = BODIES[1][2]
    local seen = select(2, f:exchange(BODIES[1][1], body))
    legs.check(body, legs.one(seen.decode).body, { removed = { "prompt_logprobs" },
      added = { kv_transfer_params = json.raw(legs.one(seen.decode).body, "kv_transfer_params") } })
  end)

  it("are refused where an engine tells none, or a pair cannot say them exactly", function()
    for _, more in ipairs({ '"stream":true,"prompt_logprobs":1', '"echo":true,"logprobs":1' }) do
      local answer, seen = f:exchange("/v1/completions", '{"model":"sim","prompt":"x","max_tokens":2,' .. more .. "}")
      assert.equal(400, answer.status, answer.body)
      assert.truthy(answer.body:find("no hybrid worker", 1, true), answer.body)
      assert.equal(0, #seen.prefill + #seen.decode)
    end
  end)

  it("are an error when prefill does not tell them", function()
    local answer = f:post(BODIES[1][1], BODIES[1][2], { ["X-Sim-Fault"] = "error_body@prefill" })
    assert.equal(500, answer.status, answer.body)
  end)

  it("end a decode engine that is asked for them", function()
    local id = "11111111-2222-3333-4444-555555555555"
    local stem = '{"model":"sim","prompt":"one two three four","max_tokens":%d%s,"kv_transfer_params":%s}'
    local p = http.post(f.workers.p0.port, "/v1/completions", stem:format(1, "", '{"do_remote_decode":true}'),
      { ["X-Request-Id"] = id })
    local params = json.raw(p.body, "kv_transfer_params")
    local d = http.post(f.workers.d0.port, "/v1/completions", stem:format(3, ',"prompt_logprobs":1', params),
      { ["X-Request-Id"] = id })
    assert.equal(500, d.status, d.body)
    assert.is_true(f.sim:state("d1") and http.get(f.workers.plain.port, "/sim/state?worker=d0").body
      :find('"engine_dead":true', 1, true) ~= nil)
    f.sim:reset("d0")
    f.sim:reset("p0")
  end)
end)
