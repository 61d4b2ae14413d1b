-- Engines publish what their KV caches hold: what the gateway predicts from it is what their answers say they had.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local free_port = require("gateway.support.port").free
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")

local BLOCK = 16
-- Whoever is predicted to have most, but a header may name another one. Predictions are the scores of the record. What
-- is sent to an engine that publishes is noted, too.
local POLICY = [[
return { api = 2, name = "mine", version = "1",
  plan = function(req, view)
    baton.prefix_match(view.hybrid, req, 16)
    local chosen = baton.argmax(view.hybrid, "kv_hit_tokens")
    for i = 1, #view.hybrid do
      local w = view.hybrid[i]
      if w.kv_hit_tokens then baton.note_score(w, w.kv_hit_tokens) end
      if w.name == req.headers["x-worker"] then chosen = w end
    end
    if chosen.kv_hit_tokens then baton.prefix_insert(req, chosen, 16) end
    return { kind = "single", worker = chosen }
  end }
]]

local RECORDS = { "--record-sample", "1" }

local f, ports
local count = 0

local function worker_words(i, more)
  return ("role=hybrid,name=w%d,engine=%s,by_ids=1,block_size=%d,blocks=%d,ttft=1,itl=1,kv_events=%d%s%s"):format(i,
    more.engine or "vllm", BLOCK, more.blocks or 400, ports[i].events,
    more.replay == false and "" or (",kv_events_replay=%d"):format(ports[i].replay),
    more.lose and (",kv_events_lose=%d"):format(more.lose) or "")
end

-- w1 and w2 publish, w3 does not.
local function start(more)
  ports = {}
  local words = {}
  for i = 1, 2 do
    ports[i] = { events = free_port(), replay = free_port() }
    words[i] = worker_words(i, more)
  end
  words[3] = ("role=hybrid,name=w3,engine=%s,ttft=1,itl=1"):format(more.engine or "vllm")
  local policy = proc.write("mine.lua", POLICY)
  f = fleet.start({ workers = words, config = function(workers)
    local list = { ('{ name = "w3", role = "hybrid", url = "%s", engine = "%s" },'):format(workers.w3.url,
      more.engine or "vllm") }
    for i = 1, 2 do
      local replay = (', kv_events_replay = "tcp://127.0.0.1:%d"'):format(ports[i].replay)
      local line = '{ name = "w%d", role = "hybrid", url = "%s", engine = "%s", kv_events = "tcp://127.0.0.1:%d"%s },'
      list[i + 1] = line:format(i, workers["w" .. i].url, more.engine or "vllm", ports[i].events,
        more.replay ~= false and replay or "")
    end
    return ('return { policy = "%s", pools = { { tokenize_timeout_ms = 20000, workers = { %s } } } }'):format(policy,
      table.concat(list))
  end, before = more.before, flags = more.flags or RECORDS })
end

local function prompt(shared, own, length)
  local ids = {}
  for i = 1, length do
    ids[i] = i <= shared and i or own * 1000 + i
  end
  return ids
end

-- Sends the ids, or a text, to a worker, or to whom the policy likes; returns what each worker was predicted to have,
-- in tokens (nil: not known), what the engine says that it had, its name, and who has counted the tokens. by: another
-- gateway.
local function ask(ids, worker, path, by)
  by = by or f
  count = count + 1
  local id = "kv-" .. count
  local is_chat = path == "/v1/chat/completions"
  local answer = http.post(by.port, path or "/v1/completions", json.encode({ model = "sim", max_tokens = 1,
    prompt = not is_chat and ids or nil, messages = is_chat and { { role = "user", content = ids } } or nil }),
    { ["x-worker"] = worker, ["x-request-id"] = id })
  assert.equal(200, answer.status, answer.body)
  local details = json.decode(answer.body).usage.prompt_tokens_details
  local record = eventually(function()
    local told = http.get(by.admin_port, "/admin/explain/" .. id)
    return told.status == 200 and json.decode(told.body)
  end, 10, "the decision is recorded")
  local predicted = {}
  for _, row in ipairs(record.candidates.hybrid.rows) do
    predicted[row.name] = row.score
  end
  local cached = type(details) == "table" and details.cached_tokens or 0
  return predicted, cached, record.plan.worker, record.token_source
end

-- Events are behind answers: asks until the prediction is so. That changes nothing for a prompt whose blocks are there.
local function until_predicted(ids, worker, wanted, path)
  eventually(function()
    return ask(ids, worker, path)[worker] == wanted
  end, 20, ("%s is predicted to have %d tokens"):format(worker, wanted))
end

local function until_followed(gateway)
  for i = 1, 2 do
    eventually(function()
      return (gateway or f.gateway):stderr():find(("w%d rank 0: its KV events are followed"):format(i), 1, true)
    end, 20, "events are followed")
  end
end

for _, engine in ipairs({ "vllm", "sglang" }) do
  describe("KV events of " .. engine, function()
    setup(function()
      start({ engine = engine, blocks = 60 })
      until_followed()
    end)

    teardown(function()
      f:stop()
      proc.clean()
    end)

    it("say what an engine will find in its cache", function()
      local ids = prompt(0, 1, 10 * BLOCK + 3)
      until_predicted(ids, "w1", 10 * BLOCK)
      local predicted, cached, name = ask(ids)
      assert.equal("w1", name, "who has it is chosen")
      assert.same({ w1 = cached, w2 = 0 }, predicted)
      assert.equal(0, ask(prompt(0, 2, 60), "w2").w2)
    end)

    it("are told to who operates the gateway", function()
      local rows = {}
      eventually(function()
        local told = json.decode(http.get(f.admin_port, "/kv").body)
        for _, row in ipairs(told.ranks) do
          rows[row.worker] = row
        end
        return told.index.blocks >= 10 and rows.w1 and rows.w1.blocks >= 10 and rows.w2 and rows.w2.followed
      end, 20, "what is known of the workers' caches is told")
      assert.is_true(rows.w1.followed and rows.w1.trusted and rows.w1.last >= 9 and rows.w1.batches >= 10)
      assert.equal(("tcp://127.0.0.1:%d"):format(ports[1].events), rows.w1.endpoint)
      assert.is_nil(rows.w3)
      local metrics = http.get(f.admin_port, "/metrics").body
      assert.truthy(metrics:find('\nbaton_kv_index_distrusted{worker="w1"} 0\n', 1, true))
      assert.truthy(metrics:find("\nbaton_kv_ranks_followed 2\n", 1, true))
      assert.is_true(tonumber(metrics:match("\nbaton_kv_events_total (%d+)\n")) >= 10)
    end)

    it("are right for a prompt of whole blocks, of which an engine computes the last anew", function()
      local ids = prompt(0, 4, 10 * BLOCK)
      until_predicted(ids, "w1", 9 * BLOCK)
      local predicted, cached = ask(ids)
      assert.same({ w1 = cached, w2 = 0 }, predicted)
    end)

    it("are right for text and chats, whose ids an engine tells", function()
      for i, path in ipairs({ "/v1/completions", "/v1/chat/completions" }) do
        local text = ("prompt %d, %s. "):format(i, engine):rep(40)
        local tokens = math.ceil((#text + (i == 2 and #"user\n\n" or 0)) / 4)
        until_predicted(text, "w2", math.floor((tokens - 1) / BLOCK) * BLOCK, path)
        local predicted, cached, name, source = ask(text, nil, path)
        assert.equal("w2", name, "who has it is chosen")
        assert.is_true(cached > 0)
        assert.same({ w1 = 0, w2 = cached }, predicted)
        assert.equal("engine", source)
      end
      local metrics = http.get(f.admin_port, "/metrics").body
      assert.is_true(tonumber(metrics:match("\nbaton_tokenized_total (%d+)")) >= 2)
      assert.truthy(metrics:match("\nbaton_tokenize_failed_total 0\n"))
    end)

    -- A prompt's events have come when it is predicted whole; only then the next prompt is sent.
    it("are right for prompts that share a beginning, while blocks are evicted", function()
      local sent, evicted = {}, 0
      for round = 1, 60 do
        local own, worker = round % 13, round % 3 == 0 and "w2" or "w1"
        local ids = prompt(5 * BLOCK, 10 + own, (8 + own % 7) * BLOCK + own % 3)
        local whole = math.floor((#ids - 1) / BLOCK) * BLOCK -- its last token is computed in any case
        local predicted, cached = ask(ids, worker)
        assert.equal(cached, predicted[worker], "round " .. round)
        if sent[worker .. own] and cached < whole then evicted = evicted + 1 end
        sent[worker .. own] = true
        eventually(function()
          return ask(ids, "w3")[worker] == whole
        end, 20, "its events have come")
      end
      assert.is_true(evicted > 0)
    end)
  end)
end

describe("four gateways over one Redis", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  teardown(proc.clean)

  -- Once one has been told by the engine of what another has sent, they decide alike.
  it("each know what engines hold, and write nothing of it", function()
    local server = redis.start()
    local words = { "--record-sample", "1", "--redis-url", server.url }
    start({ blocks = 40, flags = words })
    local gateways = { f }
    for i = 2, 4 do
      local process, port, admin_port = fleet.start_gateway({ f.config_path, unpack(words) })
      gateways[i] = { gateway = process, port = port, admin_port = admin_port }
      fleet.wait_up(port, admin_port)
    end
    for _, g in ipairs(gateways) do
      until_followed(g.gateway)
    end
    local evicted, seen = 0, {}
    for turn = 1, 32 do
      local talk = turn % 8
      local ids = prompt(4 * BLOCK, 100 + talk, (6 + 3 * math.ceil(turn / 8)) * BLOCK + 1)
      local worker = "w" .. (talk % 2 + 1)
      local predicted, cached, name = ask(ids, seen[talk] == nil and worker or nil, nil, gateways[turn % 4 + 1])
      assert.equal(cached, predicted[name], "turn " .. turn)
      if seen[talk] and cached < seen[talk] then evicted = evicted + 1 end
      seen[talk] = #ids - 1
      for i, g in ipairs(gateways) do
        eventually(function()
          return ask(ids, "w3", nil, g)[name] == #ids - 1
        end, 20, ("gateway %d knows what another has sent"):format(i))
      end
    end
    assert.is_true(evicted > 0)
    for _, g in ipairs(gateways) do
      local HEARTBEATS = "baton_fleet_heartbeats_total"
      local before = fleet.metric(g.admin_port, HEARTBEATS)
      eventually(function()
        return fleet.metric(g.admin_port, HEARTBEATS) >= before + 2
      end, 10, "what was to be told is told")
    end
    assert.equal(0, server:ask("EXISTS", "baton:{fleet}:prefix"))
    for i = 2, 4 do
      assert.equal(0, (gateways[i].gateway:stop(10)), gateways[i].gateway:stderr())
    end
    f:stop()
    server:kill()
  end)
end)

describe("KV events that are lost on their way", function()
  teardown(proc.clean)

  it("are asked for, and the prediction is whole; a restart begins with what was known", function()
    local snapshot = proc.path("kv-snapshot")
    local flags = { "--record-sample", "1", "--kv-snapshot", snapshot }
    start({ lose = 3, flags = flags })
    until_followed()
    local ids = prompt(0, 1, 20 * BLOCK + 1)
    ask(ids, "w1")
    ask(prompt(0, 2, 5 * BLOCK + 1), "w1") -- the last batches of the first may be among those that were lost
    until_predicted(ids, "w1", 20 * BLOCK)
    http.hang_up(f.port)
    assert.equal(0, (f.gateway:stop(10)), f.gateway:stderr())
    local kept = assert(proc.read(snapshot), "what is known is kept at the end")
    assert.truthy(kept:find(("tcp://127.0.0.1:%d"):format(ports[1].events), 1, true))
    f.gateway, f.port, f.admin_port = fleet.start_gateway({ f.config_path, unpack(flags) })
    fleet.wait_up(f.port, f.admin_port)
    f.gateway:says("blocks of the snapshot wait for its engine's word")
    until_followed()
    until_predicted(ids, "w1", 20 * BLOCK)
    assert.is_nil(f.gateway:stderr():find("snapshot's last batch", 1, true))
    f:stop()
  end)

  it("are lost for good without a replay endpoint: the worker's part is dropped, and told", function()
    start({ lose = 3, replay = false })
    until_followed()
    ask(prompt(0, 1, 20 * BLOCK + 1), "w1")
    eventually(function()
      return f.gateway:stderr():find("w1 rank 0: events were missed", 1, true)
    end, 20, "it is told")
    f:stop()
  end)
end)

describe("an engine that restarts", function()
  teardown(proc.clean)

  it("has nothing from then on", function()
    start({})
    until_followed()
    local ids = prompt(0, 1, 10 * BLOCK + 1)
    until_predicted(ids, "w1", 10 * BLOCK)
    local before = select(2, f.gateway:stderr():gsub("w1 rank 0: its KV events are followed", ""))
    local restarted = http.post(f.workers.w2.port, "/sim/restart?worker=w1", "{}")
    assert.equal(200, restarted.status, restarted.body)
    eventually(function()
      return select(2, f.gateway:stderr():gsub("w1 rank 0: its KV events are followed", "")) > before
    end, 20, "it is followed again")
    assert.truthy(f.gateway:stderr():find("w1 rank 0: the connection has ended", 1, true))
    eventually(function()
      return f:get("/v1/models").status == 200
    end, 20, "it is back")
    local other = prompt(0, 3, 6 * BLOCK + 1)
    until_predicted(other, "w1", 6 * BLOCK)
    f:stop()
  end)
end)

describe("an engine that ran before the gateway", function()
  teardown(proc.clean)

  it("is known by what its engine says again", function()
    local ids = prompt(0, 1, 10 * BLOCK + 1)
    start({ before = function(sim)
      local answer = http.post(sim.workers.w1.port, "/v1/completions",
        json.encode({ model = "sim", prompt = ids, max_tokens = 1 }))
      assert.equal(200, answer.status, answer.body)
    end })
    eventually(function()
      return ask(ids, "w3").w1 == 10 * BLOCK
    end, 20, "what was stored before the gateway was there is known")
    f:stop()
  end)
end)

describe("kv_events", function()
  teardown(proc.clean)

  local function check(worker)
    local text = 'return { engine = "vllm", pools = { { workers = { { role = "hybrid", url = "http://h:1", %s } } } } }'
    local path = proc.write("bad.lua", text:format(worker))
    local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "run", path }, { seconds = 20 })
    return code, err
  end

  it("is refused where it is nowhere to connect to", function()
    for words, wanted in pairs({
      ['kv_events = "tcp://*:5557"'] = 'kv_events "tcp://*:5557": that is where the engine listens',
      ['kv_events = "127.0.0.1:5557"'] = 'kv_events "127.0.0.1:5557": "tcp://host:port" is expected',
      ['kv_events = "tcp://h:1", kv_events_replay = "tcp://h"'] = 'kv_events_replay "tcp://h": "tcp://host:port" is',
      ['kv_events_replay = "tcp://h:1"'] = "kv_events is missing",
    }) do
      local code, err = check(words)
      assert.equal(2, code, words)
      assert.truthy(err:find(wanted, 1, true), err)
    end
  end)
end)
