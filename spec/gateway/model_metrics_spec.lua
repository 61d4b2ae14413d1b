-- Metrics by pool and model: tokens, goodput, how requests ended; names of models are bounded.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

local PATH = "/v1/completions"

local f

local function start(flags, workers)
  local words = { "--vllm-pd-disaggregation" }
  proc.append(words, flags)
  f = fleet.start({
    workers = workers or { "role=prefill,engine=vllm,itl=1,ttft=1", "role=decode,engine=vllm,itl=1,ttft=1" },
    flags = words, sim = { "--time-scale", "0.05" },
  })
end

local function number(name, labels)
  return faults.number(f, name, labels)
end

-- A request is counted a moment after its client has the last byte.
local function becomes(value, name, labels)
  eventually(function()
    return number(name, labels) == value, number(name, labels)
  end, 10, name)
end

-- Names of metrics in queries, without what histograms add.
local function named_in(text, into)
  for name in text:gmatch("%f[%w_]baton_[%w_]+") do
    into[#into + 1] = (name:gsub("_bucket$", ""))
  end
end

describe("examples/observability", function()
  after_each(function()
    f:stop()
  end)

  it("names only metrics that exist", function()
    start({ "--ttft-target-ms", "500" })
    f:post(PATH, faults.body())
    local there = {}
    for family in http.get(f.admin_port, "/metrics").body:gmatch("# TYPE (%S+)") do
      there[family] = true
    end
    local names, queries = {}, 0
    for _, panel in ipairs(json.decode(proc.read("examples/observability/grafana-dashboard.json")).panels) do
      for _, target in ipairs(panel.targets) do
        named_in(target.expr, names)
        queries = queries + 1
      end
    end
    for line in proc.read("examples/observability/alerts.yml"):gmatch("[^\n]+") do
      if not line:find("^#") then
        named_in(line, names)
      end
    end
    assert.is_true(queries >= 20 and #names > queries)
    for _, name in ipairs(names) do
      assert.is_true(there[name] or false, name .. " is no metric")
    end
  end)
end)

describe("metrics by pool and model", function()
  after_each(function()
    f:stop()
  end)

  it("count tokens in and out, streamed or not", function()
    start()
    local labels = { pool = "default", model = "sim" }
    assert.equal(200, f:post(PATH, faults.body()).status)
    becomes(1, "baton_model_requests_total", { pool = "default", model = "sim", outcome = "ok" })
    assert.equal(faults.PROMPT_TOKENS, number("baton_input_tokens_total", labels))
    assert.equal(faults.TOKENS, number("baton_output_tokens_total", labels))
    assert.equal(0, number("baton_model_ttft_seconds_count", labels)) -- of streams
    assert.equal(200, f:post(PATH, faults.body({ stream = true })).status)
    becomes(2, "baton_model_request_duration_seconds_count", labels)
    assert.equal(2 * faults.PROMPT_TOKENS, number("baton_input_tokens_total", labels))
    assert.is_true(number("baton_output_tokens_total", labels) >= 2 * faults.TOKENS)
    assert.equal(1, number("baton_model_ttft_seconds_count", labels))
    assert.equal(1, number("baton_model_tpot_seconds_count", labels))
    assert.equal(2, number("baton_decision_seconds_count"))
    assert.equal(2, number("baton_decode_seconds_count"))
    assert.equal(0, #faults.samples(f, "gen_ai_server_request_duration_seconds_count")) -- --metrics-gen-ai
  end)

  it("count tokens of a worker that serves alone", function()
    start({ "--log-format", "json" }, { "role=hybrid,itl=1,ttft=1" })
    assert.equal(200, f:post(PATH, faults.body()).status)
    becomes(faults.TOKENS, "baton_output_tokens_total", { model = "sim" })
  end)

  it("have the names of the GenAI conventions beside ours, an operation apart from the others", function()
    start({ "--metrics-gen-ai" })
    local messages = { { role = "user", content = faults.PROMPT } }
    local chat = json.encode({ model = "sim", max_tokens = 4, messages = messages })
    assert.equal(200, f:post("/v1/chat/completions", chat).status)
    assert.equal(200, f:post(PATH, faults.body({ stream = true })).status)
    local function labels(operation)
      return { gen_ai_operation_name = operation, gen_ai_provider_name = "baton", gen_ai_request_model = "sim",
        baton_pool = "default" }
    end
    becomes(1, "gen_ai_server_request_duration_seconds_count", labels("text_completion"))
    becomes(1, "gen_ai_server_request_duration_seconds_count", labels("chat"))
    assert.equal(1, number("gen_ai_server_time_to_first_token_seconds_count", labels("text_completion")))
    assert.equal(1, number("gen_ai_server_time_per_output_token_seconds_count", labels("text_completion")))
    assert.equal(0, number("gen_ai_server_time_to_first_token_seconds_count", labels("chat"))) -- of streams
    -- Ours are not split.
    assert.equal(2, number("baton_model_request_duration_seconds_count", { pool = "default", model = "sim" }))
    assert.equal(1, #faults.samples(f, "baton_model_request_duration_seconds_count"))
  end)

  it("know which streams are within the pool's targets", function()
    start({ "--ttft-target-ms", "80000000", "--itl-target-ms", "80000000" })
    f:post(PATH, faults.body({ stream = true }))
    f:post(PATH, faults.body()) -- is no stream
    becomes(2, "baton_model_requests_total", { outcome = "ok" })
    assert.equal(1, number("baton_slo_requests_total"))
    assert.equal(1, number("baton_slo_good_requests_total"))
  end)

  it("know which are not", function()
    start({ "--ttft-target-ms", "1" },
      { "role=prefill,engine=vllm,itl=1,ttft=400", "role=decode,engine=vllm,itl=1,ttft=400" })
    f:post(PATH, faults.body({ stream = true }))
    becomes(1, "baton_slo_requests_total")
    assert.equal(0, number("baton_slo_good_requests_total"))
  end)

  it("give no row to a name that no worker has answered", function()
    start()
    for i = 1, 70 do
      assert.equal(404, f:post(PATH, ('{"model":"made-up-%d","prompt":"x","max_tokens":1}'):format(i)).status)
    end
    for _, s in ipairs(faults.samples(f, "baton_model_requests_total")) do
      assert.truthy(s.labels.model == "sim" or s.labels.model == "other", s.labels.model)
    end
  end)
end)

-- Labels end at a NUL: there would be a row a request, and more parts of one model than there are loops.
describe("names of models with a NUL in them", function()
  it("have no rows of their own, and spoil nobody's", function()
    local worker = stub.start(function(request)
      if request.target == "/v1/embeddings" then
        return stub.reply(404, "{}")
      end
      return stub.reply(200, '{"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}')
    end)
    local gateway, port, admin_port = fleet.start_gateway({ "--loops", "1", "--worker-urls", worker.url,
      "--disable-health-check", "--load-interval-secs", "0" })
    local function ask(model)
      assert.equal(200, http.post(port, PATH, '{"model":"' .. model .. '","prompt":"x","max_tokens":2}').status)
    end
    for i = 1, 80 do
      ask("s\\u0000" .. i)
      ask("plain")
    end
    -- A model that has answered in one operation keeps its name in another.
    assert.equal(404, http.post(port, "/v1/embeddings", '{"model":"plain","input":"x"}').status)
    local function count(model, outcome)
      local line = ('baton_model_requests_total{pool="default",model="%s",outcome="%s"} (%%d+)'):format(model,
        outcome or "ok")
      return tonumber(http.get(admin_port, "/metrics").body:match((line:gsub("[{}]", "%%%0"))))
    end
    eventually(function()
      return count("plain") == 80 and count("other") == 80 and count("plain", "refused") == 1, tostring(count("plain"))
    end, 10, "both are counted")
    assert.is_nil(count("s"))
    gateway:stop()
    worker:stop()
    proc.clean()
  end)
end)
