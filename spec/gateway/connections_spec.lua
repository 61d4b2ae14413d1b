-- How many connections there may be, and who goes for another one: clients, the admin port and workers share a limit of
-- open files, and none takes what the others need.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local socket = require("socket")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":4}'
-- Held open by the simulator, which takes its time over each token.
local SLOW = '{"model":"sim","prompt":"hello there","max_tokens":2000,"stream":true}'
local HYBRID = { "role=hybrid,ttft=1,itl=50" }

local f
local streams = {} -- that the gateway would wait for at its end

local function start(ask)
  f = fleet.start(ask)
end

local function stop()
  for _, c in ipairs(streams) do
    c:close()
  end
  streams = {}
  f:stop()
end

-- Connections end up on any loop; where an order matters there is one.
local function start_limited(flags, files)
  local all = { "--loops", "1" }
  proc.append(all, flags)
  start({ workers = HYBRID, flags = all, proc = { limits = { files = files } } })
  eventually(function()
    return f:metric('baton_client_connections{loop="0"}') == 0
  end, 10, "who asked whether it is ready has gone")
end

local function answered(c, ask)
  c:ask(ask or { path = "/health" })
  return c:wait()
end

-- A connection that has had an answer and waits for its next request. From: an address of this host.
local function idle(from)
  local c
  if from then
    local s = assert(socket.tcp())
    assert(s:bind(from, 0))
    s:settimeout(10)
    assert(s:connect("127.0.0.1", f.port))
    s:settimeout(0)
    c = setmetatable({ socket = s, port = f.port, backlog = "" }, getmetatable(http.connect(f.admin_port)))
  else
    c = http.connect(f.port)
  end
  assert.equal(200, answered(c).status)
  return c
end

local function wait_closed(c)
  eventually(function()
    return not c:pump()
  end, 10, "the connection is closed")
end

local function count(name, reason)
  return f:metric(('baton_%s_total{listener="client",reason="%s"}'):format(name, reason))
end

local function expect_refusal(answer, words)
  assert.equal(503, answer.status, answer.body)
  assert.truthy(tonumber(answer:header("retry-after")))
  assert.equal("close", answer:header("connection"))
  local told = json.decode(answer.body).error
  assert.equal(503, told.code)
  assert.truthy(told.message:find(words, 1, true), told.message)
end

local function open_streams(n)
  for _ = 1, n do
    local c = http.start(f.port, { path = "/v1/completions", body = SLOW })
    c:wait_events(1)
    table.insert(streams, c)
  end
end

describe("a limit of 64 open files", function()
  teardown(proc.clean)
  after_each(stop)

  -- Workers are blamed for nothing that was our own shortage.
  local function workers_are_well()
    for _, w in ipairs(json.decode(http.get(f.admin_port, "/workers").body).workers) do
      assert.equal("up", w.health)
      assert.equal("closed", w.breaker.state)
    end
  end

  it("serves those who ask while a hundred are idle, and the operator", function()
    local pair = { "role=prefill", "role=decode" }
    start({ workers = pair, flags = { "--vllm-pd-disaggregation" }, proc = { limits = { files = 64 } } })
    local idlers = {}
    for i = 1, 100 do
      idlers[i] = http.connect(f.port)
      if i % 2 == 0 then -- the others never say a word
        answered(idlers[i])
      end
    end
    for _ = 1, 30 do
      -- Those who have just come are not idle yet.
      eventually(function()
        local answer = f:post("/v1/completions", BODY)
        if answer.status == 503 then
          expect_refusal(answer, "too many connections")
          return false, answer.body
        end
        assert.equal(200, answer.status, answer.body)
        return true
      end)
      assert.equal(200, http.get(f.admin_port, "/workers").status)
    end
    assert.is_true(count("connections_closed", "max_connections") > 0)
    workers_are_well()
  end)

  it("answers 503 when all are busy, and the operator all the same", function()
    start_limited({}, 64)
    local most = f:metric('baton_connections_max{listener="client"}')
    open_streams(most)
    for _ = 1, 30 do
      expect_refusal(f:post("/v1/completions", BODY), "too many connections")
      assert.equal(200, http.get(f.admin_port, "/workers").status)
    end
    assert.is_true(count("connections_refused", "max_connections") >= 30)
    streams[1]:close()
    eventually(function()
      return f:post("/v1/completions", BODY).status == 200
    end, 10, "there is a place again")
    workers_are_well()
  end)

  it("keeps a place for the operator whom others' idle admin connections would shut out", function()
    start_limited({}, 64)
    local idlers = {}
    for i = 1, 60 do
      idlers[i] = http.connect(f.admin_port)
    end
    eventually(function()
      return http.get(f.admin_port, "/workers").status == 200
    end, 10, "the operator is served")
    for _, c in ipairs(idlers) do
      c:close()
    end
    assert.equal(200, f:post("/v1/completions", BODY).status)
  end)

  it("never says 502 when no descriptor is left for workers", function()
    start({ workers = { "role=prefill,ttft=20", "role=decode,ttft=20,itl=50" }, proc = { limits = { files = 64 } },
      flags = { "--loops", "1", "--vllm-pd-disaggregation" } })
    -- Each of these is split: it takes as many connections to workers as it has prompts.
    local prompts = ('"a",'):rep(32):sub(1, -2)
    local asks = {}
    for i = 1, 4 do
      asks[i] = { path = "/v1/completions", body = ('{"model":"sim","prompt":[%s],"max_tokens":4}'):format(prompts) }
    end
    local refused = 0
    for _, answer in ipairs(http.together(f.port, asks)) do
      if answer.status ~= 200 then
        assert.equal(503, answer.status, answer.body)
        assert.truthy(tonumber(answer:header("retry-after")))
        refused = refused + 1
      end
    end
    assert.is_true(refused > 0)
    assert.is_true(f:metric("baton_worker_connections_refused_total") > 0)
    workers_are_well()
    assert.equal(200, f:post("/v1/completions", BODY).status)
  end)

  it("refuses a limit that it cannot hold", function()
    local argv = { fleet.binary("BATON_BIN", "baton"), "run", "--port", "0", "--admin-port", "0", "--worker-urls",
      "http://127.0.0.1:9" }
    local function refusal(files, ...)
      local words = { unpack(argv) }
      for _, word in ipairs({ ... }) do
        words[#words + 1] = word
      end
      local code, _, err = proc.run(words, { limits = { files = files } })
      assert.equal(2, code)
      return err
    end
    start_limited({ "--max-connections", "4" }, 64)
    local err = refusal(64, "--max-connections", "5000")
    local most, need = err:match(
      "%-%-max%-connections 5000: the limit of open files is 64, which holds (%d+): lower the flag, or raise the limit "
        .. "to (%d+) %(ulimit %-n, LimitNOFILE=%)")
    assert.is_true(tonumber(most) >= 4 and tonumber(need) > 10000, err)
    assert.truthy(refusal(24):find("the limit of open files is 24: too few to serve clients, raise it to %d+ "), err)
  end)
end)

describe("--max-connections", function()
  teardown(proc.clean)
  after_each(stop)

  it("closes the oldest idle connection first, and no busy one", function()
    start_limited({ "--max-connections", "4" })
    open_streams(1)
    local a, b, c = idle(), idle(), idle()
    answered(a) -- b is the oldest now
    local d = idle()
    wait_closed(b)
    local e = idle()
    wait_closed(c)
    assert.equal(200, answered(a).status)
    assert.equal(200, answered(d).status)
    assert.equal(200, answered(e).status)
    streams[1]:wait_events(3)
    assert.equal(2, count("connections_closed", "max_connections"))
    assert.equal(0, count("connections_refused", "max_connections"))
  end)

  it("closes idle ones of other event threads", function()
    start({ workers = HYBRID, flags = { "--loops", "4", "--max-connections", "8" } })
    local all = {}
    for i = 1, 40 do
      all[i] = idle()
    end
    local open = all
    eventually(function()
      open = {}
      for _, c in ipairs(all) do
        open[#open + 1] = c:pump() and c or nil
      end
      return #open == 8, #open .. " are open"
    end, 10, "eight are left")
    assert.falsy(all[1]:pump())
    assert.truthy(all[40]:pump())
    for _, c in ipairs(open) do
      assert.equal(200, answered(c).status)
    end
    assert.equal(32, count("connections_closed", "max_connections"))
  end)

  it("does not close one whose request is on its way", function()
    start_limited({ "--max-connections", "2" })
    local a, b = idle(), idle()
    f.gateway:kill(proc.SIGSTOP) -- everything below is there at once
    a:ask({ path = "/health" })
    local c = http.connect(f.port)
    c:ask({ path = "/health" })
    f.gateway:kill(proc.SIGCONT)
    assert.equal(200, a:wait().status)
    assert.equal(200, c:wait().status)
    wait_closed(b)
  end)

  it("a refused client is gone by itself when it says nothing", function()
    start_limited({ "--max-connections", "1" })
    open_streams(1)
    local silent = {}
    for i = 1, 300 do -- more than are ever told at a time
      silent[i] = http.connect(f.port)
      silent[i]:expect_answer()
    end
    wait_closed(silent[1])
    expect_refusal(answered(silent[300], { path = "/v1/completions", body = BODY }), "too many connections")
  end)
end)

describe("--max-connections-per-peer", function()
  teardown(proc.clean)
  after_each(stop)

  it("closes the oldest idle connection of the same address, else answers 503", function()
    start_limited({ "--max-connections-per-peer", "2" })
    local other = idle("127.0.0.2")
    local a, b = idle(), idle()
    local c = idle()
    wait_closed(a)
    assert.equal(200, answered(other).status) -- the oldest of all, of another address
    assert.equal(200, answered(b).status)
    c:close()
    eventually(function()
      return f:metric('baton_client_connections{loop="0"}') == 2
    end, 10, "c is gone")
    b:close()
    open_streams(2)
    expect_refusal(f:post("/v1/completions", BODY), "too many connections from this address")
    assert.equal(200, answered(other).status)
    assert.equal(200, answered(idle("127.0.0.2")).status)
    streams[1]:close()
    eventually(function()
      return f:post("/v1/completions", BODY).status == 200
    end, 10, "there is a place again")
    assert.equal(1, count("connections_closed", "max_connections_per_peer"))
  end)
end)
