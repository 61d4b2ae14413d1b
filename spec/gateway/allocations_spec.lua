-- What a request asks of malloc, once the gateway is warm: nothing. Memory of requests, connections, records and of Lua
-- is recycled; what is not is asked for again by each request, or by each turn of Lua's collector, and is seen here
-- with its stack.

local allocations = require("gateway.support.allocations")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local issuer = require("gateway.support.issuer")
local proc = require("gateway.support.proc")
local workers = require("gateway.support.mock")

-- Warm is who asks for nothing during this many requests. Until then Lua's heaps grow to what their collectors let be.
local QUIET_REQUESTS, REQUESTS_MAX, STEP = 3000, 40000, 1000
local QUIET = { "--loops", "1", "--disable-health-check", "--load-interval-secs", "0", "--policy", "round_robin" }
local JSON = ('{"model":"m","messages":[{"role":"user","content":"%s"}],"max_tokens":5}'):format(("a"):rep(950))
local STREAM = JSON:gsub('"content":"', '"content":"bench stream: '):gsub("}$", ',"stream":true}')

local function ask(c, body, count, headers)
  for _ = 1, count do
    c:ask({ path = "/v1/chat/completions", body = body, headers = headers })
    local answer = c:wait(nil, 10)
    assert.equal(200, answer.status, tostring(answer.broken) .. answer.buffer .. answer.body)
  end
end

describe("a request's allocations", function()
  local mock, prefill, decode

  before_each(function()
    mock, prefill, decode = workers.start()
  end)

  after_each(function()
    mock:stop()
    proc.clean()
  end)

  local function check(body, words, headers)
    if os.getenv("BATON_SANITIZE") ~= "" then
      pending("sanitizers have their own malloc")
      return
    end
    proc.append(words, QUIET)
    local counter = allocations.new()
    local gateway, port = fleet.start_gateway(words, { env = counter.env })
    eventually(function()
      local answer = http.get(port, "/readiness")
      return answer.status == 200, answer.body
    end, 10, "/readiness is 200")
    local c = http.connect(port)
    local quiet, asked, taken, freed = 0, 0, nil, nil
    while quiet < QUIET_REQUESTS and asked < REQUESTS_MAX do
      taken, freed = counter:count(function()
        ask(c, body, STEP, headers)
      end)
      quiet = taken + freed == 0 and quiet + STEP or 0
      asked = asked + STEP
    end
    c:close()
    gateway:stop()
    local text = "after %d requests the next %d take memory %d times and free some %d times\n%s"
    assert.equal(QUIET_REQUESTS, quiet, text:format(asked - STEP, STEP, taken, freed, counter:stacks()))
  end

  it("are none, with a key whose hash is known", function()
    local path = proc.path("keys.txt")
    local _, out = proc.run({ fleet.binary("BATON_BIN", "baton"), "key", "new", path, "--tenant", "acme" })
    check(JSON, { "--worker-urls", decode, "--client-api-keys-file", path },
      { Authorization = "Bearer " .. out:match("%S+") })
  end)

  it("are none, with a token that was verified", function()
    local one = issuer.new("one")
    check(JSON, { "--worker-urls", decode, "--jwt-jwks-file", proc.write("jwks.json", issuer.set(one)), "--jwt-issuer",
      "https://issuer", "--jwt-audience", "baton", "--jwt-claim", "plan" },
      { Authorization = "Bearer " .. one:token({ plan = "pro" }) })
  end)

  for what, body in pairs({ json = JSON, stream = STREAM }) do
    it("are none, hand-off " .. what, function()
      check(body, { "--vllm-pd-disaggregation", "--prefill", prefill, "--decode", decode })
    end)

    it("are none, bootstrap " .. what, function()
      check(body, { "--pd-disaggregation", "--prefill", prefill, prefill:match("%d+$"), "--decode", decode })
    end)

    it("are none, single " .. what, function()
      check(body, { "--worker-urls", decode })
    end)
  end
end)
