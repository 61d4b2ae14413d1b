-- /v1/models asks every worker: seldom, once for all who ask at the same time, and never for one client with another's
-- key.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

local PATH = "/v1/models"

local gateway, port, admin_port, workers

local function list_of(...)
  local rows = {}
  for i, id in ipairs({ ... }) do
    rows[i] = ('{"id":"%s","object":"model"}'):format(id)
  end
  return '{"object":"list","data":[' .. table.concat(rows, ",") .. "]}"
end

-- Workers whose answers are functions of the request; one event thread, so one cache.
local function start(answers, ...)
  workers = {}
  local words = { "--loops", "1", "--worker-urls" }
  for i, answer in ipairs(answers) do
    workers[i] = stub.start(answer)
    words[#words + 1] = workers[i].url
  end
  for _, word in ipairs({ ... }) do
    words[#words + 1] = word
  end
  gateway, port, admin_port = fleet.start_gateway(words)
  eventually(function()
    local told = http.get(admin_port, "/workers").body
    return not told:find('"health":"unknown"', 1, true) and http.get(port, "/readiness").status == 200
  end)
end

local function stop()
  http.hang_up(port)
  assert.equal(0, gateway:stop())
  for _, w in ipairs(workers) do
    w:stop()
  end
end

local function ids(answer)
  assert.equal(200, answer.status, answer.body)
  local out = {}
  for i, model in ipairs(json.decode(answer.body).data) do
    out[i] = model.id
  end
  table.sort(out)
  return out
end

local function ask(headers)
  return http.start(port, { path = PATH, headers = headers })
end

-- Everything that was sent before is read: there is one event thread.
local function all_is_read()
  assert.equal(200, http.get(port, "/health").status)
end

-- Answers what the worker was asked last.
local function release(worker, ...)
  table.insert(worker.last_peer.queue, stub.reply(200, list_of(...)))
end

local function silence() end

local function until_asked(worker, times)
  eventually(function()
    http.get(port, "/health") -- stubs are served meanwhile
    return #worker.requests == times, #worker.requests
  end)
end

describe("/v1/models", function()
  after_each(stop)
  teardown(proc.clean)

  it("asks the workers once for fifty who ask at the same time", function()
    start({ silence, silence })
    local all = {}
    for i = 1, 50 do
      all[i] = ask()
    end
    all_is_read()
    until_asked(workers[1], 1)
    until_asked(workers[2], 1)
    release(workers[1], "a", "b")
    release(workers[2], "b", "c")
    for i = 1, 50 do
      assert.same({ "a", "b", "c" }, ids(all[i]:wait()))
    end
    assert.equal(1, #workers[1].requests)
    assert.equal(1, #workers[2].requests)
  end)

  it("does not ask again for those who come right after", function()
    start({ function()
      return stub.reply(200, list_of("a"))
    end })
    local c = http.connect(port)
    c:send(http.head_of({ path = PATH }, port):rep(20))
    local rest = ""
    for _ = 1, 20 do
      local answer = c:expect_answer("GET")
      answer:feed(rest)
      assert.same({ "a" }, ids(c:wait()))
      rest = answer.buffer
    end
    assert.equal(1, #workers[1].requests)
  end)

  it("asks again when a second is over", function()
    local model = "old"
    start({ function()
      return stub.reply(200, list_of(model))
    end })
    assert.same({ "old" }, ids(http.get(port, PATH)))
    model = "new"
    eventually(function()
      return ids(http.get(port, PATH))[1] == "new"
    end, 5)
  end)

  it("asks again when the workers have changed", function()
    local function answer_with(id)
      return function()
        return stub.reply(200, list_of(id))
      end
    end
    start({ answer_with("a"), answer_with("b") })
    assert.same({ "a", "b" }, ids(http.get(port, PATH)))
    local name = json.decode(http.get(admin_port, "/workers").body).workers[2].name
    assert.equal(200, http.request(admin_port, { method = "POST", path = "/workers/" .. name .. "/drain" }).status)
    assert.same({ "a" }, ids(http.get(port, PATH)))
  end)

  it("does not show one client what another one's key has got", function()
    start({ function(request)
      local key = request.headers.authorization
      return stub.reply(200, key and list_of("of-" .. key:match("Bearer (%S+)")) or list_of("public"))
    end })
    local all = {}
    for i = 1, 12 do
      local key = ({ "red", "blue", false })[i % 3 + 1]
      all[i] = { key = key, c = ask(key and { Authorization = "Bearer " .. key }) }
    end
    for _, one in ipairs(all) do
      assert.same({ one.key and "of-" .. one.key or "public" }, ids(one.c:wait()))
    end
    assert.equal(3, #workers[1].requests)
  end)

  it("answers 503 to more keys than it asks for at a time, and serves them later", function()
    start({ silence })
    local all = {}
    for i = 1, 9 do
      all[i] = ask({ Authorization = "Bearer key-" .. i })
    end
    local refused = all[9]:wait()
    assert.equal(503, refused.status)
    assert.truthy(tonumber(refused:header("retry-after")))
    until_asked(workers[1], 8)
    for peer in pairs(workers[1].peers) do
      table.insert(peer.queue, stub.reply(200, list_of("a")))
    end
    for i = 1, 8 do
      assert.same({ "a" }, ids(all[i]:wait()))
    end
    workers[1].answer = function()
      return stub.reply(200, list_of("b"))
    end
    assert.same({ "b" }, ids(http.get(port, PATH, { Authorization = "Bearer key-9" })))
  end)

  it("asks once for all keys where workers have a key of their own", function()
    start({ silence }, "--api-key", "for-the-workers")
    local all = {}
    for i = 1, 12 do
      all[i] = ask({ Authorization = "Bearer key-" .. i })
    end
    all_is_read()
    until_asked(workers[1], 1)
    assert.equal("Bearer for-the-workers", workers[1].requests[1].headers.authorization)
    release(workers[1], "a")
    for _, c in ipairs(all) do
      assert.same({ "a" }, ids(c:wait()))
    end
    assert.equal(1, #workers[1].requests)
  end)

  it("takes long keys", function()
    start({ function(request)
      return stub.reply(200, list_of("of-" .. #request.headers.authorization))
    end })
    assert.same({ "of-8007" }, ids(http.get(port, PATH, { Authorization = "Bearer " .. ("k"):rep(8000) })))
  end)

  it("goes on for those who stay", function()
    start({ silence })
    local first, second, third = ask(), ask(), ask()
    all_is_read()
    until_asked(workers[1], 1)
    first:close()
    second:reset()
    all_is_read()
    release(workers[1], "a")
    assert.same({ "a" }, ids(third:wait()))
    assert.equal(1, #workers[1].requests)
  end)

  it("ends with nobody waiting any more", function()
    start({ silence })
    local c = ask()
    until_asked(workers[1], 1)
    c:close() -- stop() sees the end
  end)

  it("keeps no failure for a success", function()
    local status = 500
    start({ function()
      return stub.reply(status, status == 200 and list_of("a") or "{}")
    end })
    local answer = http.get(port, PATH)
    assert.equal(503, answer.status)
    assert.truthy(tonumber(answer:header("retry-after")))
    assert.truthy(answer.body:find("no worker could say which models it serves", 1, true))
    status = 200
    eventually(function()
      return http.get(port, PATH).status == 200
    end, 5)
    assert.same({ "a" }, ids(http.get(port, PATH)))
  end)
end)
