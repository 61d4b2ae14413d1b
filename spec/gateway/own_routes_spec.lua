-- What clients may ask for and what the gateway itself answers: paths, keys, models, follow-ups, its headers, the
-- access log.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local PAIR = { "role=prefill,ttft=1", "role=decode,ttft=1,itl=1" }
local COMPLETION = '{"model":"sim","prompt":"hello","max_tokens":3}'

local f

local function start(ask)
  f = fleet.start(ask)
end

local function stop()
  f:stop()
  proc.clean()
end

local function everything(e)
  return e.path ~= "/health" and e.path ~= "/metrics"
end

local function nothing_was_sent()
  local seen = f:legs(everything)
  assert.equal(0, #seen.prefill + #seen.decode + #seen.hybrid)
end

describe("paths of a prefill/decode fleet", function()
  setup(function()
    start({ workers = PAIR, flags = { "--vllm-pd-disaggregation", "--proxy-path", "/custom" } })
  end)

  teardown(stop)

  it("answers /health and /liveness itself", function()
    f:mark()
    for _, path in ipairs({ "/health", "/liveness", "/readiness" }) do
      local answer = f:get(path)
      assert.equal(200, answer.status, path)
      local head = http.request(f.port, { method = "HEAD", path = path })
      assert.equal(200, head.status)
      assert.equal("", head.body)
      assert.equal(answer:header("content-length"), head:header("content-length"))
    end
    local body = json.decode(f:get("/readiness").body)
    assert.is_true(body.ready)
    assert.is_false(body.draining)
    assert.equal("pair", body.pools[1].topology)
    nothing_was_sent()
  end)

  it("answers 404 to what is no client's business, and sends nothing on", function()
    f:mark()
    for _, path in ipairs({
      "/", "/...", "/flush_cache", "/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache",
      "/update_weights_from_disk", "/metrics",
      "/start_profile", "/stop_profile", "/pause_generation", "/release_memory_occupation", "/set_internal_state",
      "/shutdown",
      "/v1", "/v2/completions", "/custom2", "/scale_elastic_ep", "/sim/state",
      "/v1/odd/one", "/v1/load_lora_adapter", "/v1/realtime",
    }) do
      for _, method in ipairs({ "GET", "POST" }) do
        local answer = http.request(f.port, { method = method, path = path, body = method == "POST" and "{}" or nil })
        assert.equal(404, answer.status, method .. " " .. path)
      end
    end
    nothing_was_sent()
  end)

  it("proxies tokenize and its kin, and --proxy-path, to a decode worker as they are", function()
    for _, case in ipairs({
      { "/tokenize", '{"prompt":"hello" }' },
      { "/detokenize", '{"tokens":[1,2]}' },
      { "/v1/embeddings", '{"model":"sim","input":["a"] , "x":1.0}' },
      { "/v1/rerank", '{"model":"sim","query":"q","documents":["a"]}' },
      { "/rerank", '{"model":"sim","query":"q","documents":["a"]}' },
      { "/classify", '{"model":"sim","input":"a"}' },
      { "/custom", "x" },
      { "/custom/deeper?q=1", "x" },
    }) do
      f:mark()
      local answer = f:post(case[1], case[2])
      local seen = f:legs(case[1]:match("^[^?]*"))
      assert.equal(0, #seen.prefill, case[1])
      assert.equal(case[2], legs.one(seen.decode).body)
      assert.equal(case[1], seen.decode[1].target)
      local direct = http.post(f.workers.d0.port, case[1], case[2])
      assert.equal(direct.status, answer.status)
      assert.equal(direct.body, answer.body)
      assert.equal("d0", answer:header("x-baton-worker"))
    end
  end)

  it("answers 415 to a coded body and reads plain ones", function()
    f:mark()
    for _, coding in ipairs({ "gzip", "deflate", "br", "zstd", "gzip, identity", "x-gzip" }) do
      local answer = f:post("/v1/completions", COMPLETION, { ["Content-Encoding"] = coding })
      assert.equal(415, answer.status, coding)
      assert.is_not_nil(json.decode(answer.body).error.message)
    end
    nothing_was_sent()
    assert.equal(200, f:post("/v1/completions", COMPLETION, { ["Content-Encoding"] = "identity" }).status)
    local twice = { { "Content-Encoding", "identity" }, { "Content-Encoding", "gzip" } }
    assert.equal(415, f:post("/v1/completions", COMPLETION, twice).status)
  end)

  it("answers 400 to what is no JSON object, has a BOM or is no UTF-8", function()
    f:mark()
    for _, body in ipairs({
      "", "x", "[]", '"text"', "null", "{", '{"a":1,}', "{'a':1}", '{"a":01}', '{"a":1} x', '{"a":1}{}',
      '{"a":"\1"}', '{"a":"\\x"}',
      "\239\187\191" .. COMPLETION, '{"prompt":"\255"}', '{"prompt":"\192\175"}', '{"prompt":"\237\160\128"}',
      '{"a":NaN}', '{"a":1.}', '{"a":+1}', "{\"a\":\"\0\"}",
    }) do
      local answer = f:post("/v1/completions", body)
      assert.equal(400, answer.status, ("%q"):format(body))
      assert.equal("invalid_request_error", json.decode(answer.body).error.type, ("%q"):format(body))
    end
    nothing_was_sent()
  end)

  it("tells errors in the form of the route's protocol", function()
    local answer = f:post("/v1/messages", "{")
    assert.equal(400, answer.status)
    assert.equal("error", json.decode(answer.body).type)
    assert.equal("invalid_request_error", json.decode(answer.body).error.type)
    answer = f:post("/generate", "{")
    assert.equal(400, answer.status)
    assert.equal(400, json.decode(answer.body).error.code)
    answer = f:post("/v1/chat/completions", "{")
    assert.equal(400, json.decode(answer.body).error.code)
    assert.equal(json.null, json.decode(answer.body).error.param)
  end)

  it("answers 405 to a method that a route does not take", function()
    f:mark()
    for _, path in ipairs({ "/v1/completions", "/v1/chat/completions", "/v1/messages", "/generate",
      "/v1/embeddings" }) do
      assert.equal(405, f:get(path).status, path)
      assert.equal(405, http.request(f.port, { method = "DELETE", path = path }).status, path)
    end
    nothing_was_sent()
  end)

  it("asks one engine for /get_model_info and /get_server_info", function()
    f:mark()
    local answer = f:get("/get_server_info")
    local seen = f:legs("/get_server_info")
    assert.equal(1, #seen.prefill + #seen.decode)
    assert.equal(404, answer.status, "this simulated vLLM has no such route")
    assert.equal(200, f:get("/server_info").status)
  end)

  it("shows workers by name in x-baton-* headers, never by address", function()
    local answer = f:post("/v1/completions", COMPLETION)
    assert.equal("handoff", answer:header("x-baton-plan"))
    assert.equal("p0", answer:header("x-baton-prefill"))
    assert.equal("d0", answer:header("x-baton-decode"))
    assert.truthy(answer:header("x-baton-policy"):find("^least_load"))
    for _, h in ipairs(answer.headers) do
      for _, w in pairs(f.workers) do
        assert.is_nil(h[2]:find(tostring(w.port), 1, true), h[1])
      end
    end
    answer = f:post("/v1/completions", '{"model":"nobody","prompt":"x","max_tokens":1}')
    assert.equal(404, answer.status)
    assert.equal("prefill", answer:header("x-baton-leg"))
    assert.is_not_nil(answer:header("x-baton-error"))
  end)

  it("never stores an id twice: a follow-up by an unknown id is a 404", function()
    f:mark()
    assert.equal(404, f:get("/v1/responses/resp_nobody").status)
    nothing_was_sent()
  end)

  it("writes one access-log line a request", function()
    local id = "logged-1"
    f:post("/v1/completions", COMPLETION, { ["X-Request-Id"] = id })
    f:post("/v1/completions", "{", { ["X-Request-Id"] = id .. "-bad" })
    local function lines_of(word)
      local out = {}
      for line in f.gateway:stderr():gmatch("[^\n]+") do
        if line:find(" access " .. word .. " ", 1, true) then
          out[#out + 1] = line
        end
      end
      return out
    end
    eventually(function()
      return #lines_of(id) == 1 and #lines_of(id .. "-bad") == 1
    end, 5, "both lines")
    assert.truthy(lines_of(id)[1]:find("/v1/completions 200 handoff p0>d0 attempts 1", 1, true), lines_of(id)[1])
    assert.truthy(lines_of(id .. "-bad")[1]:find(" 400 ", 1, true))
  end)

end)

describe("--no-debug-headers and a JSON access log", function()
  setup(function()
    start({ workers = PAIR, flags = { "--vllm-pd-disaggregation", "--no-debug-headers", "--log-format", "json" } })
  end)

  teardown(stop)

  it("leave x-baton-* out and X-Request-Id in", function()
    for _, body in ipairs({ COMPLETION, '{"model":"nobody","prompt":"x"}', "{" }) do
      local answer = f:post("/v1/completions", body, { ["X-Request-Id"] = "quiet" })
      for _, h in ipairs(answer.headers) do
        assert.is_nil(h[1]:lower():find("^x%-baton"), h[1])
      end
      assert.equal("quiet", answer:header("x-request-id"))
    end
    f.sim:fault("p0", { kind = "rst", path = "/v1/completions", times = 10 })
    local answer = f:post("/v1/completions", COMPLETION)
    assert.equal(502, answer.status)
    assert.is_nil(answer.body:find("p0", 1, true), answer.body)
    http.request(f.workers.p0.port, { method = "DELETE", path = "/sim/fault" })
  end)

  it("write an object a request", function()
    f:post("/v1/completions", COMPLETION, { ["X-Request-Id"] = "as-json" })
    local entry = eventually(function()
      for line in f.gateway:stderr():gmatch("[^\n]+") do
        local object = json.decode(line)
        if object.request == "as-json" then
          return object
        end
      end
    end)
    assert.equal("completions", entry.route)
    assert.equal("/v1/completions", entry.path)
    assert.equal("sim", entry.model)
    assert.equal(200, entry.status)
    assert.equal("handoff", entry.plan)
    assert.equal("p0", entry.prefill)
    assert.equal("d0", entry.decode)
    assert.equal(1, entry.attempts)
    assert.equal(#COMPLETION, entry.bytes_in)
    assert.is_true(entry.bytes_out > 0)
    assert.equal("", entry.error)
  end)

  it("say when, for whom, by which pool and how many tokens", function()
    local function line_of(id)
      return eventually(function()
        for line in f.gateway:stderr():gmatch("[^\n]+") do
          local object = json.decode(line)
          if object.request == id then
            return object
          end
        end
      end)
    end
    local body = '{"model":"sim","prompt":[1,2,3,4,5],"max_tokens":7%s}'
    for id, more in pairs({ whole = "", streamed = ',"stream":true' }) do
      local headers = { ["X-Request-Id"] = id, ["X-Tenant-Id"] = "acme" }
      assert.equal(200, f:post("/v1/completions", body:format(more), headers).status)
      local entry = line_of(id)
      local output = id == "whole" and 7 or entry.events
      assert.truthy(entry.time:find("^20%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$"), entry.time)
      assert.same({ "info", "127.0.0.1", "acme", "default", { prompt = 5, output = output } },
        { entry.level, entry.client, entry.tenant, entry.pool, entry.tokens })
      assert.is_true(entry.tokens.output >= 7)
    end
    f:post("/v1/completions", "{", { ["X-Request-Id"] = "no-json" })
    local entry = line_of("no-json")
    assert.same({ "127.0.0.1", "", "", { prompt = 0, output = 0 } },
      { entry.client, entry.tenant, entry.pool, entry.tokens })
  end)
end)

describe("a fleet with hybrid workers and models", function()
  setup(function()
    start({
      workers = {
        "role=prefill,model=big,ttft=1", "role=decode,model=big,ttft=1,itl=1",
        "role=hybrid,model=big,name=h0,ttft=1,itl=1",
        "role=hybrid,model=small,name=s0,ttft=1,itl=1", "role=hybrid,model=small,name=s1,ttft=1,itl=1",
      },
      config = function(w)
        return ([[return { engine = "vllm", connector = "nixl", pools = {
          { name = "big", models = { "big" }, workers = {
            { url = "%s", role = "prefill" }, { url = "%s", role = "decode" }, { url = "%s", role = "hybrid" } } },
          { name = "small", models = { "small" }, policy = "round_robin", workers = {
            { url = "%s" }, { url = "%s" } } } } }]]):format(w.p0.url, w.d0.url, w.h0.url, w.s0.url, w.s1.url)
      end,
    })
  end)

  teardown(stop)

  it("merges /v1/models", function()
    local answer = f:get("/v1/models")
    assert.equal(200, answer.status)
    local body = json.decode(answer.body)
    assert.equal("list", body.object)
    local ids = {}
    for i, model in ipairs(body.data) do
      ids[i] = model.id
      assert.equal("model", model.object)
    end
    table.sort(ids)
    assert.same({ "big", "small" }, ids)
    for _, element in ipairs(json.elements(json.raw(answer.body, "data"))) do
      local name = json.decode(element).id == "big" and "p0" or "s0"
      assert.equal(json.raw(http.get(f.workers[name].port, "/v1/models").body, "data", 1), element,
        "as the engine says it")
    end
  end)

  it("routes by model, and answers 404 for one that no pool serves", function()
    for model, worker in pairs({ big = "p0", small = "s" }) do
      local answer = f:post("/v1/completions", ('{"model":"%s","prompt":"x","max_tokens":2}'):format(model))
      assert.equal(200, answer.status, answer.body)
      local by = answer:header("x-baton-prefill") or answer:header("x-baton-worker")
      assert.is_not_nil(by)
      assert.equal(worker == "s" and "single" or "handoff", answer:header("x-baton-plan"))
    end
    f:mark()
    local answer = f:post("/v1/completions", '{"model":"medium","prompt":"x"}')
    assert.equal(404, answer.status)
    assert.truthy(answer.body:find("medium", 1, true))
    nothing_was_sent()
  end)

  it("sends what generates nothing to the hybrid worker", function()
    for _, case in ipairs({
      { "/v1/embeddings", '{"model":"big","input":"a"}' }, { "/tokenize", '{"model":"big","prompt":"a"}' },
      { "/v1/rerank", '{"model":"big","query":"q","documents":["a"]}' },
    }) do
      for _ = 1, 3 do
        f:mark()
        assert.equal(200, f:post(case[1], case[2]).status)
        local seen = f:legs(case[1])
        assert.equal(0, #seen.prefill + #seen.decode)
        assert.equal(1, #seen.hybrid)
      end
    end
  end)

  it("sends what no pair can do to the hybrid worker in one piece", function()
    for _, more in ipairs({
      '"best_of":2', '"use_beam_search":true', '"echo":true,"logprobs":1', '"prompt_logprobs":1',
    }) do
      local body = '{"model":"big","prompt":["a","b"],"max_tokens":2,' .. more .. "}"
      local answer, seen = f:exchange("/v1/completions", body)
      assert.equal(200, answer.status, answer.body)
      assert.equal(body, legs.one(seen.hybrid).body)
      assert.equal("h0", legs.one(seen.hybrid).worker)
      assert.equal(0, #seen.prefill)
    end
  end)

  it("brings follow-ups of a response to the worker that made it", function()
    for _, stream in ipairs({ "false", "true" }) do
      for _ = 1, 4 do
        local answer, seen = f:exchange("/v1/responses",
          '{"model":"small","input":"remember me","max_output_tokens":3,"stream":' .. stream .. "}")
        assert.equal(200, answer.status, answer.body)
        local owner = legs.one(seen.hybrid).worker
        local id = stream == "true" and json.decode(answer:data()[1]).response.id or json.decode(answer.body).id
        for _ = 1, 3 do
          f:mark()
          local stored = f:get("/v1/responses/" .. id)
          assert.equal(200, stored.status, stored.body)
          assert.equal(owner, legs.one(f:legs("/v1/responses/" .. id).hybrid).worker)
          if stream == "false" then
            assert.equal(answer.body, stored.body)
          end
          local next_answer, next_seen = f:exchange("/v1/responses",
            ('{"model":"small","previous_response_id":"%s","input":"and again","max_output_tokens":3}'):format(id))
          assert.equal(200, next_answer.status, next_answer.body)
          assert.equal(owner, legs.one(next_seen.hybrid).worker)
        end
      end
    end
  end)

  it("keeps a follow-up in a prefill/decode pool with its decode worker", function()
    local answer = f:post("/v1/responses", '{"model":"big","input":"remember me","max_output_tokens":3}')
    assert.equal(200, answer.status, answer.body)
    assert.equal("handoff", answer:header("x-baton-plan"))
    local id = json.decode(answer.body).id
    f:mark()
    assert.equal(200, f:get("/v1/responses/" .. id).status)
    assert.equal("d0", legs.one(f:legs("/v1/responses/" .. id).decode).worker)
    -- Prefill does not know the first turn: it would make other KV of the same body.
    local body = ('{"model":"big","previous_response_id":"%s","input":"and again","max_output_tokens":3}'):format(id)
    local next_answer, seen = f:exchange("/v1/responses", body)
    assert.equal(200, next_answer.status, next_answer.body)
    assert.equal("single", next_answer:header("x-baton-plan"))
    assert.equal("d0", legs.one(seen.decode).worker)
    assert.equal(body, seen.decode[1].body)
    assert.equal(0, #seen.prefill)
  end)

  it("leaves a worker that is down out of /v1/models", function()
    for _, name in ipairs({ "s0", "s1" }) do
      f.sim:fault(name, { kind = "die" })
    end
    eventually(function()
      local body = json.decode(f:get("/v1/models").body)
      return #body.data == 1 and body.data[1].id == "big"
    end)
  end)
end)

describe("client keys", function()
  setup(function()
    local keys = proc.write("keys.txt", "# of the spec\nkey-one\n\nkey-two\n")
    start({ workers = PAIR, flags = { "--vllm-pd-disaggregation", "--client-api-keys-file", keys, "--api-key",
      "for-the-workers" } })
  end)

  teardown(stop)

  it("are asked of everything that reaches a worker", function()
    f:mark()
    for _, headers in ipairs({
      {}, { Authorization = "Bearer wrong" }, { Authorization = "key-one" }, { Authorization = "Bearer key-on" },
      { Authorization = "Bearer key-onee" }, { Authorization = "Bearer " }, { Authorization = "Basic key-one" },
      { ["X-Api-Key"] = "" },
      { Authorization = "Bearer # of the spec" },
    }) do
      for _, ask in ipairs({
        { path = "/v1/completions", body = COMPLETION }, { path = "/v1/models" }, { path = "/tokenize", body = "{}" },
        { path = "/abort_request", body = '{"rid":"x"}' }, { path = "/v1/responses/x" }, { path = "/get_server_info" },
      }) do
        local answer = http.request(f.port, { path = ask.path, body = ask.body, headers = headers })
        assert.equal(401, answer.status, ask.path .. " " .. json.encode(headers))
        assert.truthy(json.decode(answer.body).error.message:find("key", 1, true))
      end
    end
    nothing_was_sent()
  end)

  it("are not asked by probes", function()
    for _, path in ipairs({ "/health", "/liveness", "/readiness" }) do
      assert.equal(200, f:get(path).status)
    end
  end)

  it("open the door in either form, and never go on to a worker", function()
    for _, headers in ipairs({
      { Authorization = "Bearer key-one" }, { authorization = "bearer key-two" }, { ["X-Api-Key"] = "key-two" },
    }) do
      local answer, seen = f:exchange("/v1/completions", COMPLETION, headers)
      assert.equal(200, answer.status, answer.body)
      assert.same({ fleet.expect("hello", 3) }, texts.of("/v1/completions", answer))
      for _, e in ipairs({ legs.one(seen.prefill), legs.one(seen.decode) }) do
        assert.equal("Bearer for-the-workers", e.headers.authorization)
        assert.is_nil(e.headers["x-api-key"])
      end
      assert.equal(200, http.get(f.port, "/v1/models", headers).status)
    end
  end)
end)
