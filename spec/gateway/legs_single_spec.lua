-- The bytes of an unsplit request: the client's own, less what only a gateway may say. Lists and samples stay in one
-- piece.

local common = require("gateway.support.common")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local BODIES = {
  { "/v1/completions", '{ "model":"sim" ,"prompt":["a b c","d"], "n":2,"seed":3,"temperature":0.7000,"max_tokens":3,'
    .. '"best_of":2,'
    .. '"big":12345678901234567890123 }' },
  { "/v1/chat/completions",
    '{"messages":[{"role":"user","content":"\\u00e9 hello","x":1.0}],"max_tokens":4,\t"model":"sim","n":2,"seed":1}' },
  -- vLLM reads no header here: the id is the body's.
  { "/v1/responses", '{"input":"hello","model":"sim","max_output_tokens":4,"request_id":"resp_same"}' },
  { "/v1/messages", '{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}' },
  { "/inference/v1/generate", '{"token_ids":[1,2,3],"sampling_params":{"max_tokens":3,"n":1},"model":"sim"}' },
  { "/v1/embeddings", '{"model":"sim","input":["a","b"] ,"dimensions":4.0}' },
  { "/v1/rerank", '{"model":"sim","query":"q","documents":["a","b"],"top_n":2}' },
  { "/rerank", '{"model":"sim","query":"q","documents":["a","b"],"top_n":2}' },
  { "/classify", '{"model":"sim","input":["a","b"]}' },
}

local f

local function timeless(text)
  return (text:gsub('"created":%d+', '"created":0'):gsub('"created_at":%d+', '"created_at":0'))
end

describe("an unsplit request to vLLM", function()
  setup(function()
    f = fleet.start({ workers = { "role=hybrid,count=2,ttft=1,itl=1" }, flags = { "--policy", "round_robin",
      "--engine", "vllm" } })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  for _, case in ipairs(BODIES) do
    for _, stream in ipairs({ false, true }) do
      if not stream or case[1]:find("completions") or case[1]:find("responses$") or case[1]:find("messages$") then
        it(case[1] .. (stream and ", streamed" or ""), function()
          local body = stream and case[2]:gsub("}%s*$", ', "stream" : true}') or case[2]
          local answer, seen = f:exchange(case[1], body, { ["X-Request-Id"] = "same" })
          assert.equal(200, answer.status, answer.body)
          local e = legs.one(seen.hybrid)
          assert.equal(body, e.body)
          assert.equal("same", e.headers["x-request-id"])
          local direct = http.post(f.workers[e.worker].port, case[1], body, { ["X-Request-Id"] = "same" })
          local function warm(text) -- the direct request comes second and finds its prompt cached
            return (timeless(text):gsub('"prompt_tokens_details":[^,]*,', ""):gsub('"cached_tokens":%d+', ""))
          end
          assert.equal(warm(direct.body), warm(answer.body))
          assert.equal("single", answer:header("x-baton-plan"))
          assert.equal(e.worker == "h0" and "w0" or "w1", answer:header("x-baton-worker"))
        end)
      end
    end
  end

  it("keeps the query, and sends what has no body without one", function()
    f:mark()
    assert.equal(200, f:post("/tokenize?a=1&b=%20x", '{"prompt":"hello"}').status)
    local e = legs.one(f:legs("/tokenize").hybrid)
    assert.equal("/tokenize?a=1&b=%20x", e.target)
    f:mark()
    assert.equal(404, f:get("/v1/models/nothing-here?q").status)
    e = legs.one(f:legs("/v1/models/nothing-here").hybrid)
    assert.equal("/v1/models/nothing-here?q", e.target)
    assert.equal("GET", e.method)
    assert.is_nil(e.headers["content-length"])
  end)

  it("numbers a retry -a2 and tries the other worker", function()
    f.sim:fault("h0", { kind = "status", status = 500, path = "/v1/completions", times = 1 })
    local retried
    for i = 1, 2 do
      local answer, seen = f:exchange("/v1/completions", '{"model":"sim","prompt":"again","max_tokens":2}',
        { ["X-Request-Id"] = "try" .. i })
      assert.equal(200, answer.status, answer.body)
      if #seen.hybrid == 2 then
        retried = {}
        for _, e in ipairs(seen.hybrid) do
          retried[e.worker] = e.headers["x-request-id"]
        end
        assert.same({ h0 = "try" .. i, h1 = "try" .. i .. "-a2" }, retried)
      end
    end
    assert.is_not_nil(retried)
  end)

  it("keeps status, body and Retry-After of the engine, and names the leg", function()
    for _, name in ipairs({ "h0", "h1" }) do
      f.sim:fault(name, { kind = "status", status = 429, path = "/v1/completions", times = 1 })
    end
    local answer = f:post("/v1/completions", '{"model":"sim","prompt":"x","max_tokens":2}')
    assert.equal(429, answer.status)
    assert.equal("7", answer:header("retry-after"))
    assert.equal("single", answer:header("x-baton-leg"))
    assert.equal("simulated error 429", json.decode(answer.body).error.message)
  end)

  it("never retries a 4xx", function()
    f:mark()
    local answer = f:post("/v1/completions", '{"model":"sim","prompt":"x","max_tokens":99999999}')
    assert.equal(400, answer.status)
    assert.equal(1, #f:legs("/v1/completions").hybrid)
    local direct = http.post(f.workers.h0.port, "/v1/completions", '{"model":"sim","prompt":"x","max_tokens":99999999}')
    assert.equal(direct.body, answer.body)
  end)

  local ORDINARY = {
    path = "/v1/completions",
    body = '{"model":"sim","prompt":"ordinary words","max_tokens":3}',
    bare = '{"prompt":"ordinary words"}',
    slow_role = "hybrid",
  }
  local function get()
    return f
  end
  common.headers(get, ORDINARY)
  common.ids(get, ORDINARY)
  common.forged(get, ORDINARY, {})
end)

describe("an unsplit request to SGLang", function()
  setup(function()
    f = fleet.start({ workers = { "role=hybrid,engine=sglang,ttft=1,itl=1" }, flags = { "--engine", "sglang" } })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  it("gets a rid of ours, so that it can be aborted, and nothing else", function()
    for _, case in ipairs({
      { "/generate", '{"text":"hello" , "sampling_params":{"max_new_tokens":3}, "rid":"theirs"}', false },
      { "/v1/completions", '{"model":"sim","prompt":"hello","max_tokens":3}', false },
      { "/v1/chat/completions", '{"model":"sim","messages":[{"role":"user","content":"hello"}],"max_tokens":3}', true },
    }) do
      local answer, seen = f:exchange(case[1], case[2])
      assert.equal(200, answer.status, answer.body)
      local e = legs.one(seen.hybrid)
      local rid = json.raw(e.body, "rid")
      assert.truthy(rid:match('^"' .. ("%x"):rep(32) .. '"$'), rid)
      if case[2]:find("theirs", 1, true) then
        legs.check(case[2], e.body, { set = { rid = rid } })
      else
        legs.check(case[2], e.body, { added = { rid = rid } })
      end
      assert.same({ fleet.expect("hello", 3, { chat = case[3] }) }, texts.of(case[1], answer))
    end
  end)

  it("leaves lists alone", function()
    local body = '{"text":["a", "b"],"sampling_params":{"max_new_tokens":3,"n":2}}'
    local answer, seen = f:exchange("/generate", body)
    assert.equal(200, answer.status, answer.body)
    assert.equal(body, legs.one(seen.hybrid).body)
    assert.equal(4, #json.elements(answer.body))
  end)
end)

describe("conditional_disagg", function()
  it("computes short prompts on decode alone, long ones by two, and nobody's text differs", function()
    f = fleet.start({ workers = { "role=prefill,ttft=1,itl=1", "role=decode,ttft=1,itl=1" },
      flags = { "--vllm-pd-disaggregation", "--policy", "conditional_disagg" } })
    for words, plan in pairs({ ["a few words"] = "single", [("many words "):rep(400)] = "handoff" }) do
      local body = json.encode({ model = "sim", prompt = words, max_tokens = 3 })
      local answer, seen = f:exchange("/v1/completions", body)
      assert.equal(200, answer.status, answer.body)
      assert.equal(plan, answer:header("x-baton-plan"))
      assert.same({ fleet.expect(words, 3) }, texts.of("/v1/completions", answer))
      assert.equal(plan == "single" and 0 or 1, #seen.prefill)
      if plan == "single" then
        assert.equal(body, legs.one(seen.decode).body)
      end
    end
    f:stop()
  end)

  it("is no way round a prefill side that SGLang's decode needs", function()
    f = fleet.start({ workers = { "role=prefill,engine=sglang", "role=decode,engine=sglang" },
      flags = { "--pd-disaggregation", "--policy", "conditional_disagg" } })
    local answer, seen = f:exchange("/generate", '{"text":"hello","sampling_params":{"max_new_tokens":2}}')
    assert.equal(200, answer.status, answer.body)
    assert.equal("bootstrap", answer:header("x-baton-plan"))
    assert.equal(1, #seen.prefill)
    f:stop()
  end)
end)

describe("prefill workers alone", function()
  it("serve on vLLM, and the answer says that it is degraded", function()
    f = fleet.start({ workers = { "role=prefill,ttft=1,itl=1" }, flags = { "--vllm-pd-disaggregation" } })
    local body = '{"model":"sim","prompt":"hello","max_tokens":3}'
    local answer, seen = f:exchange("/v1/completions", body)
    assert.equal(200, answer.status, answer.body)
    assert.equal(body, legs.one(seen.prefill).body)
    assert.equal("prefill-alone", answer:header("x-baton-degraded"))
    assert.equal("single", answer:header("x-baton-plan"))
    assert.same({ fleet.expect("hello", 3) }, texts.of("/v1/completions", answer))
    f:stop()
  end)

  it("are not enough on SGLang", function()
    f = fleet.start({ workers = { "role=prefill,engine=sglang" }, flags = { "--pd-disaggregation" }, ready = false })
    local answer = f:post("/generate", '{"text":"hello"}')
    assert.equal(503, answer.status)
    assert.truthy(answer:header("retry-after"))
    f:stop()
    proc.clean()
  end)
end)
