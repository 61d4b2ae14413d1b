-- What the prefix index takes for one prompt, and what engines say that they had: through the real gateway.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local POLICY = [[
return { api = 2, name = "mine", version = "1",
  plan = function(req, view)
    local known = baton.prefix_match(view.prefill, req, 4)
    baton.prefix_insert(req, view.prefill[1], 4)
    local prefill = known and req.headers["x-tell"] and view.prefill[2] or view.prefill[1]
    return { prefill = prefill, decode = view.decode[1] }
  end,
  observe = function(events)
    for _, e in ipairs(events) do
      if e.cached_tokens then baton.log("info", "cached " .. e.cached_tokens) end
    end
  end }
]]

local function words(count)
  local list = {}
  for i = 1, count do
    list[i] = "word" .. i
  end
  return table.concat(list, " ")
end

describe("the prefix cache of a pair that starts both at once", function()
  teardown(proc.clean)

  it("is what prefill says it had, on SGLang's own route too", function()
    local tail = ",engine=sglang,ttft=1,itl=1"
    local f = fleet.start({ workers = { "role=prefill,name=p0" .. tail, "role=decode,name=d0" .. tail },
      flags = { "--pd-disaggregation" } })
    local PREFILL = 'baton_worker_prefill_%s_tokens_total{worker="p0"'
    local bodies = {
      [PATH] = { model = "sim", prompt = words(200), max_tokens = 2 },
      ["/generate"] = { text = "other " .. words(200), sampling_params = { max_new_tokens = 2 } },
    }
    local cached, prompt = 0, 0
    local function check(path, body)
      for _ = 1, 2 do
        local answer = f:post(path, json.encode(body))
        assert.equal(200, answer.status, answer.body)
        eventually(function()
          return f:metric(PREFILL:format("prompt")) > prompt
        end, 10, path .. ": prefill's words are read")
        prompt = f:metric(PREFILL:format("prompt"))
      end
      assert.is_true(f:metric(PREFILL:format("cached")) > cached)
      cached = f:metric(PREFILL:format("cached"))
    end
    for path, body in pairs(bodies) do
      check(path, body)
    end
    local one = cached
    check("/generate", { text = { "first " .. words(200), "second " .. words(200), "third " .. words(200) },
      sampling_params = { max_new_tokens = 2 } })
    assert.is_true(cached - one > one, "of each prompt of the list")
    assert.is_nil(f:metric('baton_worker_prefill_cached_tokens_total{worker="d0"'))
    f:stop()
  end)
end)

-- As SGLang with --radix-eviction-policy priority: a session's prefix outlives what has none, which comes later.
describe("a session's prefix where engines evict by priority", function()
  teardown(proc.clean)

  local function cached_after_a_flood(params)
    local f = fleet.start({
      workers = { "role=hybrid,name=w,engine=sglang,ttft=1,itl=1,blocks=64,evicts_by_priority=1" },
      config = function(workers)
        return ([[return { policy = "session_affinity", params = { %s }, pools = { { workers = {
          { name = "w", url = "%s", engine = "sglang", role = "hybrid" } } } } }]]):format(params, workers.w.url)
      end,
    })
    local function ask(prompt, session)
      local answer = f:post(PATH, json.encode { model = "sim", prompt = prompt, max_tokens = 2 },
        { ["X-Session-ID"] = session })
      assert.equal(200, answer.status, answer.body)
      return answer
    end
    ask("mine " .. words(200), "s")
    for i = 1, 20 do
      ask("flood " .. i .. " " .. words(200))
    end
    local answer = ask("mine " .. words(200), "s")
    local id = answer:header("x-request-id")
    local record = fleet.explain(f.admin_port, id)
    local story = http.get(f.admin_port, "/admin/explain/" .. id .. "?format=text").body
    f:stop()
    return tonumber(answer.body:match('"cached_tokens":(%d+)') or 0), record, story
  end

  it("stays with a priority, and goes without", function()
    assert.equal(0, (cached_after_a_flood("")))
    local cached, record, story = cached_after_a_flood("priority = 10")
    assert.is_true(cached > 100, cached)
    assert.equal(10, record.plan.hints.priority)
    assert.truthy(story:find("was told: priority", 1, true), story)
  end)
end)

describe("the prefix cache of a worker that serves alone", function()
  teardown(proc.clean)

  it("is what the end of its answer says, streamed or not", function()
    local plan = "plan = function(req, view) return { worker = view.hybrid[1] } end,"
    local policy = POLICY:gsub("plan = function.-\n  end,", plan)
    local f = fleet.start({ workers = { "role=hybrid,engine=vllm,ttft=1,itl=1" },
      flags = { "--engine", "vllm", "--policy", proc.write("mine.lua", policy) } })
    for i, more in ipairs({ { stream = false }, { stream = true, stream_options = { include_usage = true } } }) do
      local body = { model = "sim", prompt = ("%d "):format(i) .. words(200 + 20 * i), max_tokens = 40 }
      for key, value in pairs(more) do
        body[key] = value
      end
      local answer = f:post(PATH, json.encode(body))
      assert.equal(200, answer.status, answer.body)
      answer = f:post(PATH, json.encode(body))
      local hit = answer.body:match('"cached_tokens":(%d+)')
      assert.is_truthy(hit, answer.body)
      f.gateway:says("mine: cached " .. hit .. "\n")
    end
    f:stop()
  end)
end)

describe("the prefix cache", function()
  local f

  setup(function()
    local tail = ",ttft=1,itl=1,connector=NixlConnector"
    f = fleet.start({
      workers = { "role=prefill,name=p0" .. tail, "role=prefill,name=p1" .. tail, "role=decode,name=d0" .. tail },
      flags = { "--vllm-pd-disaggregation", "--policy", proc.write("mine.lua", POLICY) },
    })
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  local function ask(more, headers)
    local body = { model = "sim", prompt = words(200), max_tokens = 2 }
    for key, value in pairs(more or {}) do
      body[key] = value
    end
    local answer = f:post(PATH, json.encode(body), headers)
    assert.equal(200, answer.status, answer.body)
    return answer:header("x-baton-prefill")
  end

  local function is_known(more)
    return ask(more, { ["x-tell"] = "1" }) == "p1"
  end

  it("is one for each salt, key and adapter", function()
    for _, member in ipairs({ "cache_salt", "extra_key", "lora_path" }) do
      assert.is_false(is_known({ [member] = "a" }))
      assert.is_false(is_known({ [member] = "b" }))
      assert.is_true(is_known({ [member] = "a" }))
    end
    assert.is_false(is_known())
    assert.is_true(is_known())
  end)

  it("is what prefill says it had, not what decode got", function()
    local before = f:metric('baton_worker_prefill_cached_tokens_total{worker="p0"')
    local own = { prompt = "another " .. words(150) }
    ask(own)
    local text = f.gateway:stderr()
    assert.equal(before, f:metric('baton_worker_prefill_cached_tokens_total{worker="p0"'))
    ask(own)
    local hit = f:metric('baton_worker_prefill_cached_tokens_total{worker="p0"') - before
    assert.is_true(hit > 0)
    assert.is_true(f:metric('baton_worker_prefill_prompt_tokens_total{worker="p0"') > 2 * hit)
    assert.is_nil(f:metric('baton_worker_prefill_cached_tokens_total{worker="d0"'))
    eventually(function()
      return f.gateway:stderr():sub(#text):find(("mine: cached %d\n"):format(hit), 1, true),
        f.gateway:stderr():sub(#text)
    end, 10, "observe hears of it")
  end)
end)
