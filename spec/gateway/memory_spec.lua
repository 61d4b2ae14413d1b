-- What clients can make the gateway hold, and who pays when it is too much: nobody else.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local rig = require("gateway.support.rig")

local PATH = "/v1/completions"
local MIB = 1048576
local STREAMS, STREAM_BYTES = 800, 5500

local f
local admin_port

local function start(flags)
  f = fleet.start({ workers = { "role=hybrid,latency=0" }, flags = flags })
  admin_port = f.admin_port
end

-- A whole request of this size; what fills it is no work for the worker.
local function body_of(bytes)
  local text = '{"model":"sim","prompt":"a","max_tokens":1,"metadata":"%s"}'
  return text:format(("a"):rep(bytes - #text + 2))
end

-- A connection that announces a body and sends its beginning.
local function begin(length, bytes, from, headers)
  local c = http.connect(f.port, nil, from)
  local ask = { method = "POST", path = PATH, headers = { ["Content-Length"] = length } }
  for name, value in pairs(headers or {}) do
    ask.headers[name] = value
  end
  c:expect_answer("POST")
  c:send(http.head_of(ask, f.port))
  c:send(bytes)
  return c
end

local function close_all(list)
  for _, c in ipairs(list) do
    c:close()
  end
end

local function held()
  return fleet.metric(admin_port, "baton_buffered_bytes ")
end

local function wait_held(bytes)
  eventually(function()
    return held() >= bytes, held()
  end, 10, "the gateway holds what was sent")
end

describe("a client that holds memory", function()
  after_each(function()
    if f then
      f:stop()
    end
    f = nil
    proc.clean()
  end)

  it("costs what it has sent, not what it promises", function()
    start({ "--max-payload-size", "536870912" })
    local open = {}
    for i, length in ipairs({ 536870912, 536800000, 536000000, 400000000 }) do -- the default limit is 1 GiB
      open[i] = begin(length, "{")
    end
    for _, bytes in ipairs({ 200, 20000, 300000 }) do
      for _ = 1, 3 do
        assert.equal(200, http.request(f.port, { path = PATH, body = body_of(bytes) }).status)
      end
    end
    assert.is_true(held() < 8 * MIB, held())
    close_all(open)
    eventually(function()
      return held() < MIB, held()
    end)
  end)

  it("loses its largest request when the others need room", function()
    start({ "--max-buffered-bytes", 16 * MIB })
    local text = body_of(12 * MIB)
    local small = body_of(MIB)
    local other = begin(#small, small:sub(1, 500000), "127.0.0.3")
    local one = begin(#text, text:sub(1, 7 * MIB), "127.0.0.2")
    local two = begin(#small, small:sub(1, 100000), "127.0.0.2")
    wait_held(7.5 * MIB)
    local honest = {}
    for i = 1, 10 do
      honest[i] = begin(#small, small:sub(1, 900000), "127.0.0." .. 10 + i)
    end
    local refused = one:wait(nil, 10)
    assert.equal(503, refused.status)
    assert.equal("1", refused:header("retry-after"))
    assert.truthy(refused.body:find("largest unfinished request", 1, true))
    for _, c in ipairs(honest) do
      c:send(small:sub(900001))
      assert.equal(200, c:wait(nil, 10).status)
    end
    other:send(small:sub(500001))
    assert.equal(200, other:wait(nil, 10).status)
    two:send(small:sub(100001))
    assert.equal(200, two:wait(nil, 10).status)
    assert.equal(1, f:metric("baton_requests_evicted_total "))
    one:close()
    two:close()
    other:close()
    close_all(honest)
  end)

  it("is known by its key where keys are asked for", function()
    local keys = proc.write("keys.txt", "greedy\nmodest\n")
    start({ "--max-buffered-bytes", 16 * MIB, "--client-api-keys-file", keys })
    local key = { Authorization = "Bearer greedy" }
    local open = {}
    for i = 1, 12 do -- many of a MiB each: none is large, together they are
      open[i] = begin(2 * MIB, ("a"):rep(MIB), nil, key)
    end
    wait_held(10 * MIB)
    local text = body_of(6 * MIB)
    for _ = 1, 3 do
      local answer = http.request(f.port,
        { path = PATH, body = text, headers = { Authorization = "Bearer modest" } })
      assert.equal(200, answer.status, answer.body)
    end
    assert.is_true(f:metric("baton_requests_evicted_total ") > 0)
    close_all(open)
  end)

  it("is refused when it would hold more than all others", function()
    start({ "--max-buffered-bytes", 16 * MIB })
    local never = begin(60 * MIB, "a")
    assert.equal(413, never:wait(nil, 10).status) -- 503 would promise that it fits later
    never:close()
    local other = begin(8 * MIB, ("a"):rep(4 * MIB), "127.0.0.2")
    wait_held(4 * MIB)
    local c = begin(15 * MIB, ("a"):rep(15 * MIB - 1))
    assert.equal(503, c:wait(nil, 10).status)
    other:close()
    assert.equal(200, http.request(f.port, { path = PATH, body = body_of(MIB) }).status)
    c:close()
    eventually(function()
      return held() < MIB, held()
    end)
  end)

  -- The large one's answer, an error at its last byte, needs all of it to be read.
  it("does not keep others waiting while a large body is read", function()
    start({ "--loops", "1" })
    local text = '{"prompt":[' .. ("[],"):rep(20 * MIB / clock.slowness()) .. "]}"
    local function is_overtaken()
      local large = begin(#text, text:sub(1, -2))
      wait_held(#text - MIB)
      large:send(text:sub(-1))
      assert.equal(200, http.request(f.port, { path = PATH, body = body_of(1000) }).status)
      large:pump()
      local overtaken = large.answer.status == nil
      assert.equal(400, large:wait(nil, 30).status)
      assert.truthy(large.answer.body:find("no valid JSON", 1, true), large.answer.body)
      large:close()
      return overtaken
    end
    local tries = 1
    while not is_overtaken() do
      tries = tries + 1
      assert.is_true(tries <= 5)
    end
  end)

  -- Its bytes are a pool thread's until that is done with them.
  it("may leave while its large body is read", function()
    start({})
    local text = '{"model":"sim","prompt":[' .. ("[],"):rep(10 * MIB / clock.slowness()) .. "[]]}"
    for i = 1, 6 do
      local large = begin(#text, text)
      if i % 2 == 0 then
        large:reset()
      else
        large:close()
      end
    end
    eventually(function()
      return held() < MIB and f:metric("baton_live_requests") == 0, held()
    end, 20, "nothing is held")
    assert.equal(200, http.request(f.port, { path = PATH, body = body_of(400000) }).status)
  end)

  it("has its large body off our hands once its answer has begun", function()
    for _, workers in ipairs({ { "role=hybrid,itl=20" }, { "role=prefill", "role=decode,itl=20" },
      { "role=prefill,engine=sglang", "role=decode,engine=sglang,itl=20" } }) do
      local pairing = #workers == 1 and {} or { workers[1]:find("sglang") and "--pd-disaggregation"
        or "--vllm-pd-disaggregation" }
      f = fleet.start({ workers = workers, flags = pairing })
      admin_port = f.admin_port
      local text = body_of(20 * MIB):gsub('"max_tokens":1,', '"max_tokens":5000,"stream":true,')
      local c = http.start(f.port, { path = PATH, body = text })
      c:wait_events(2)
      eventually(function()
        c:pump()
        return held() < MIB, held()
      end, 10, "the body is gone")
      c:wait_events(5)
      c:close()
      f:stop()
    end
    f = nil
  end)

  -- By what is counted as taken, free lists excluded; sockets are the kernel's.
  -- Idle connections to workers, as many as were open at once, are among it.
  -- A loop hands its counts over in steps of 64 KiB: 82 bytes a stream and kind.
  it("costs little while its stream goes on", function()
    local text = '{"model":"sim","prompt":"%s","max_tokens":50,"stream":true}'
    for _, engine in ipairs({ "", "vllm", "sglang" }) do
      local workers = engine == "" and { "role=hybrid,itl=3000" }
        or { "role=prefill,engine=" .. engine, "role=decode,itl=3000,engine=" .. engine }
      local pairing = ({ vllm = "--vllm-pd-disaggregation", sglang = "--pd-disaggregation" })[engine]
      f = fleet.start({ workers = workers, flags = { "--loops", "1", pairing } })
      local open = {}
      for i = 1, STREAMS do
        open[i] = http.start(f.port, { path = PATH, body = text:format(("a"):rep(2000)) })
      end
      for _, c in ipairs(open) do
        c:wait_events(1, 20)
      end
      local bytes = 0
      for _, kind in ipairs({ "buffers", "arenas", "texts", "objects" }) do
        bytes = bytes + fleet.metric(f.admin_port, ('baton_memory_bytes{kind="%s"} '):format(kind))
      end
      assert.is_true(bytes / STREAMS < STREAM_BYTES, engine .. ": " .. bytes / STREAMS)
      close_all(open)
      f:stop()
    end
    f = nil
  end)

  it("has half of all memory at most, however complete its requests are", function()
    f = fleet.start({ workers = { "role=hybrid,ttft=600000" }, flags = { "--max-buffered-bytes", 32 * MIB } })
    admin_port = f.admin_port
    local text = body_of(7 * MIB)
    local open = {}
    for i = 1, 2 do
      open[i] = begin(#text, text, "127.0.0.2")
      wait_held(i * 7 * MIB)
    end
    local third = begin(#text, text, "127.0.0.2")
    assert.equal(503, third:wait(nil, 10).status)
    assert.truthy(third.answer.body:find("this client's requests hold most", 1, true))
    third:close()
    open[3] = begin(#text, text, "127.0.0.3")
    wait_held(21 * MIB)
    open[1]:close()
    eventually(function()
      return held() < 16 * MIB, held()
    end)
    open[4] = begin(#text, text, "127.0.0.2") -- has room again
    wait_held(21 * MIB)
    close_all(open)
    eventually(function()
      return held() < MIB, held()
    end)
  end)

  it("has to send all of it in time", function()
    start({ "--client-body-min-rate", "0", "--client-body-timeout-secs", "0.3" })
    local c = begin(MIB, "{")
    eventually(function()
      if not c.answer.status then
        c:send("a")
        c:pump()
      end
      return c.answer.status == 408, c.answer.status
    end, 20, "408")
    c:close()
  end)
end)

-- Four samples: a prefill and a decode leg each.
describe("what workers say at length", function()
  local r

  local function ask(flags, more)
    r = rig.start({ connector = "ExampleConnector", prefills = 1, decodes = 1, flags = flags })
    admin_port = r.admin_port
    return r:ask(PATH, '{"model":"m","prompt":"a baton","n":4' .. more .. "}")
  end

  local function whole(text)
    return ('{"id":"x","object":"text_completion","choices":[{"index":0,"text":"%s","finish_reason":"length"}],'
      .. '"usage":{"prompt_tokens":16,"completion_tokens":8}}'):format(text)
  end

  local function serve_prefills()
    for _ = 1, 4 do
      r.p[1]:take(PATH):answer(200, {}, whole("a"))
    end
  end

  local function serves_again()
    local c = r:ask(PATH, '{"model":"m","prompt":"a baton"}')
    r.p[1]:take(PATH):answer(200, {}, whole("a"))
    r.d[1]:take(PATH):answer(200, {}, whole("fine"))
    assert.equal(200, r:answer_of(c).status)
    eventually(function()
      return held() < MIB, held()
    end)
  end

  after_each(function()
    r:stop()
    proc.clean()
  end)

  it("is merged without a change", function()
    local c = ask({}, "")
    serve_prefills()
    local texts = {}
    for i = 1, 4 do
      local leg = r.d[1]:take(PATH)
      texts[i] = (string.char(96 + i)):rep(i % 2 == 0 and 3 * MIB or 100)
      leg:answer(200, {}, whole(texts[i]))
    end
    local answer = r:answer_of(c)
    assert.equal(200, answer.status)
    local choices = json.elements(json.raw(answer.body, "choices"))
    assert.equal(4, #choices)
    local seen = {}
    for i, raw in ipairs(choices) do
      local choice = json.decode(raw)
      assert.equal(i - 1, choice.index)
      seen[choice.text] = true
    end
    for i = 1, 4 do
      assert.is_true(seen[texts[i]])
    end
    assert.equal("32", json.raw(json.raw(answer.body, "usage"), "completion_tokens"))
    assert.equal("16", json.raw(json.raw(answer.body, "usage"), "prompt_tokens"))
  end)

  it("is added up only where it can be a number of tokens", function()
    local c = ask({}, "")
    serve_prefills()
    for _ = 1, 4 do
      local text = whole("a"):gsub('"completion_tokens":8', '"completion_tokens":9223372036854775807')
      r.d[1]:take(PATH):answer(200, {}, text)
    end
    local answer = r:answer_of(c)
    assert.equal(200, answer.status)
    assert.equal("0", json.raw(json.raw(answer.body, "usage"), "completion_tokens"))
  end)

  it("fails its own request when there is no room for it", function()
    local c = ask({ "--max-buffered-bytes", 8 * MIB }, "")
    serve_prefills()
    for _ = 1, 4 do
      r.d[1]:take(PATH):answer(200, {}, whole(("a"):rep(3 * MIB)))
    end
    local answer = r:answer_of(c)
    assert.equal(503, answer.status)
    assert.equal("1", answer:header("retry-after"))
    assert.truthy(answer.body:find("memory is short", 1, true), answer.body)
    serves_again()
  end)

  it("fails its own stream when there is no room for its events", function()
    local c = ask({ "--max-buffered-bytes", 4 * MIB }, ',"stream":true')
    serve_prefills()
    for _ = 1, 4 do
      local leg = r.d[1]:take(PATH)
      leg:begin()
      leg:event('{"id":"x","choices":[{"index":0,"text":"a"}]}')
      leg:chunk('data: {"id":"x","choices":[{"index":0,"text":"' .. ("a"):rep(3 * MIB))
    end
    local answer = r:answer_of(c)
    assert.equal(200, answer.status)
    assert.equal(1, #faults.error_events(answer), #answer.body)
    assert.truthy(answer.body:find("memory is short", 1, true))
    serves_again()
  end)

  it("fails its own request as an error or a reply of prefill's, and blames nobody", function()
    local c = ask({ "--max-buffered-bytes", 2 * MIB }, "")
    for _ = 1, 4 do
      r.p[1]:take(PATH):answer(200, {}, whole(("a"):rep(3 * MIB)))
    end
    assert.equal(503, r:answer_of(c).status)
    serves_again()
    c = r:ask(PATH, '{"model":"m","prompt":"a baton"}')
    r.p[1]:take(PATH):answer(200, {}, whole("a"))
    r.d[1]:take(PATH):answer(400, {}, whole(("a"):rep(3 * MIB)))
    assert.equal(503, r:answer_of(c).status)
    serves_again()
  end)
end)

local WORDS = { data = "data (ulimit -d, LimitDATA=)", space = "address space (ulimit -v, LimitAS=)" }

-- AddressSanitizer's shadow alone is terabytes.
local limited = os.getenv("BATON_SANITIZE") == "" and it or pending

describe("an idle gateway", function()
  after_each(function()
    if f then
      f:stop()
    end
    f = nil
    proc.clean()
  end)

  it("has loaded no library that nobody asked for", function()
    start({})
    local maps = assert(io.open(("/proc/%d/maps"):format(f.gateway.pid)))
    local text = maps:read("*a")
    maps:close()
    assert.truthy(text:find("libluajit", 1, true))
    for _, name in ipairs({ "libcurl", "libzmq", "libgnutls", "libkrb5" }) do
      assert.falsy(text:find(name, 1, true), name)
    end
  end)

  limited("has given back what its start took", function()
    start({ "--loops", "1" })
    local status = assert(io.open(("/proc/%d/status"):format(f.gateway.pid)))
    local kib = tonumber(status:read("*a"):match("RssAnon:%s*(%d+)"))
    status:close()
    assert.is_true(kib < 3 * 1024, kib)
  end)
end)

describe("a limit of the process", function()
  local argv = { fleet.binary("BATON_BIN", "baton"), "run", "--port", "0", "--admin-port", "0", "--worker-urls",
    "http://127.0.0.1:9", "--loops", "2", "--max-buffered-bytes", tostring(128 * MIB) }

  after_each(function()
    if f then
      f:stop()
    end
    f = nil
    proc.clean()
  end)

  -- What it says is needed, in bytes.
  local function needed(name, words)
    local code, _, err = proc.run(argv, { limits = { [name] = (name == "data" and 200 or 600) * MIB } })
    assert.equal(2, code, err)
    local need = err:match("%-%-max%-buffered%-bytes 134217728: the limit of " .. words:gsub("%p", "%%%0")
      .. " is %d+ MiB, .*raise the limit to (%d+) MiB\n$")
    return assert(need, err) * MIB
  end

  limited("is refused when it cannot hold what is promised", function()
    for name, words in pairs(WORDS) do
      needed(name, words)
    end
  end)

  limited("fails requests, never the process", function()
    local text = body_of(60 * MIB)
    for name, words in pairs(WORDS) do
      local need = needed(name, words)
      f = fleet.start({ workers = { "role=hybrid" }, proc = { limits = { [name] = need } },
        flags = { "--max-buffered-bytes", 128 * MIB } })
      admin_port = f.admin_port
      local open = {}
      for i = 1, 6 do
        open[i] = begin(#text, text, "127.0.0." .. i)
      end
      local served = 0
      for _, c in ipairs(open) do
        local status = c:wait(nil, 60).status
        assert.is_true(status == 200 or status == 503, status)
        served = served + (status == 200 and 1 or 0)
      end
      assert.is_true(served > 0)
      close_all(open)
      assert.equal(200, http.request(f.port, { path = PATH, body = text }).status)
      f:stop()
      f = nil
    end
  end)
end)
