-- The simulator's KV over libbaton_kv, before any gateway: prefill and decode are processes of their own, bytes really
-- move between them, and decode's text is made of what has arrived.
--
-- This file is the dispatcher: it sends both legs, with a room number, and tells decode where prefill's agents are
-- (sim_source, where a gateway would tell decode's agents).

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local gateway_managed = require("gateway.support.gateway_managed")

local PATH = "/v1/completions"
local TOKENS = 6
local BLOCK_BYTES = 32 * 4
local PAGE_BYTES, BUFFERS, AUX_BYTES = 1024, 4, 32

local rooms, numbered = 0, 0
local p, d -- simulator processes of one worker each: p0 and d0
local legs = {} -- a connection that nobody holds is collected, and so closed

-- No two prompts share a block.
local function new_prompt(blocks)
  numbered = numbered + 1
  local text = ("%06d carries the baton to where a hand is held out. "):format(numbered)
  return text:rep(blocks * 3):sub(1, blocks * BLOCK_BYTES - 5)
end

local function new_room()
  rooms = rooms + 1
  return "4611686018427387" .. ("%03d"):format(rooms) -- a number that no double holds
end

local function state(sim)
  return sim:state(sim.list[1].name)
end

local function start_pair(words_of_p, words_of_d, flags)
  p = fleet.start_sim({ "role=prefill,name=p0,connector=BatonConnector,ttft=1," .. words_of_p }, flags)
  d = fleet.start_sim({ "role=decode,name=d0,connector=BatonConnector,itl=1," .. (words_of_d or words_of_p) }, flags)
end

local function stop_pair()
  for _, sim in ipairs({ p, d }) do
    local code = sim.process:stop()
    assert.equal(0, code, sim.process:stderr())
  end
end

local function sources()
  local out = {}
  for i, agent in ipairs(state(p).kv.agents) do
    out[i] = "127.0.0.1:" .. agent.port
  end
  return table.concat(out, ",")
end

local function body_of(prompt, max_tokens, params, stream)
  return ('{"model":"sim","prompt":%s,"max_tokens":%d,"stream":%s,"kv_transfer_params":%s}'):format(json.encode(prompt),
    max_tokens, stream and "true" or "false", params)
end

local function send(sim, ask)
  legs[#legs + 1] = http.start(sim.list[1].port, ask)
  return legs[#legs]
end

local function ask_prefill(prompt, room, fault)
  return send(p, {
    path = PATH,
    headers = fault and { ["x-sim-fault"] = fault } or nil,
    body = body_of(prompt, 1, ('{"do_remote_decode":true,"do_remote_prefill":false,"baton_room":%s}'):format(room)),
  })
end

local function ask_decode(prompt, room, stream, source)
  local params = ('{"do_remote_decode":false,"do_remote_prefill":true,"baton_room":%s,"sim_source":"%s"}'):format(room,
    source or sources())
  return send(d, { path = PATH, body = body_of(prompt, TOKENS, params, stream) })
end

local function text_of(answer)
  assert.equal(200, answer.status, answer.body)
  return json.decode(answer.body).choices[1].text
end

local function settle(sim)
  eventually(function()
    local s = state(sim)
    local r = s.kv.rooms
    return s.used_blocks == 0 and s.held_kv_blocks == 0 and s.live == 0 and s.kv.agents[1].rooms_open == 0
      and r.releasing == 0, json.encode(s)
  end, 10, "nothing is held by " .. sim.list[1].name)
end

local function assert_right(prompt, answer)
  assert.equal(fleet.expect(prompt, TOKENS), text_of(answer))
  assert.equal("external", answer:header("x-sim-kv-source"))
end

-- Both legs at once, to the end.
local function exchange(prompt, fault)
  local room = new_room()
  local prefill, decode = ask_prefill(prompt, room, fault), ask_decode(prompt, room)
  return decode:wait(), prefill:wait()
end

local function works()
  local prompt = new_prompt(3)
  local decode, prefill = exchange(prompt)
  assert_right(prompt, decode)
  assert.equal(200, prefill.status)
end

-- Waits until some bytes of a room have come while prefill is still at it.
local function wait_moving()
  eventually(function()
    local s = state(d)
    return s.kv.rooms.transferring == 1 and s.kv.agents[1].bytes_received > 0, json.encode(s.kv)
  end, 10, "the first pages are there")
end

local function assert_failed(answer, pattern)
  assert.equal(500, answer.status, answer.body)
  local message = json.decode(answer.body).error.message
  assert.matches("^KV transfer failed: room %d+", message)
  assert.matches(pattern, message)
end

describe("the simulator's KV", function()
  after_each(function()
    proc.kill_all()
    legs = {}
  end)
  teardown(proc.clean)

  describe("moves", function()
    local function moves(words, back_end, ranks)
      start_pair(words)
      local prompt = new_prompt(11)
      local decode, prefill = exchange(prompt)
      assert_right(prompt, decode)
      assert.equal(200, prefill.status, prefill.body)
      assert.equal("null", json.raw(prefill.body, "kv_transfer_params"))
      settle(p)
      settle(d)
      local got, sent = state(d).kv, state(p).kv
      assert.equal((11 * BUFFERS * PAGE_BYTES + AUX_BYTES) * ranks, got.bytes)
      assert.equal(got.bytes, sent.bytes)
      assert.equal(1, got.rooms_succeeded)
      for _, agent in ipairs(got.agents) do
        assert.equal(1, agent.links[back_end], json.encode(agent))
      end
      assert.equal(0, state(d).local_compute)
      stop_pair()
    end

    it("over shared memory", function()
      moves("kv_backend=shm", "shm", 1)
    end)
    it("over shared memory, out of the worker's own memory", function()
      moves("kv_backend=shm,kv_private=1", "shm", 1)
    end)
    it("over TCP with check sums", function()
      moves("kv_backend=tcp,kv_crc=1", "tcp", 1)
    end)
    it("in two ranks", function()
      moves("ranks=2", "shm", 2)
    end)

    it("inside one process", function()
      local both = fleet.start_sim({
        "role=prefill,connector=BatonConnector,kv_backend=mem", "role=decode,connector=BatonConnector,kv_backend=mem",
      })
      p = setmetatable({ list = { both.workers.p0 }, process = both.process }, { __index = both })
      d = setmetatable({ list = { both.workers.d0 }, process = both.process }, { __index = both })
      works()
      assert.equal(1, state(d).kv.agents[1].links.mem)
      settle(p)
      settle(d)
    end)

    it("chunk by chunk while prefill computes, streamed answers too", function()
      start_pair("ttft=60000,kv_chunk_pages=1", "ttft=1")
      local prompt, room = new_prompt(200), new_room()
      local prefill = ask_prefill(prompt, room)
      local decode = ask_decode(prompt, room, true)
      wait_moving()
      assert.equal(1, state(p).computing)
      assert.equal(0, #decode.answer:data())
      prefill:close()
      decode:wait()
      assert.equal(200, decode.answer.status) -- the head has gone before
      assert.matches('"error": {"message": "KV transfer failed: room %d+', decode.answer.body)
      settle(d)
      settle(p)
      stop_pair()
    end)

    it("whichever leg comes first; prefill holds its blocks after its answer", function()
      start_pair("")
      local prompt, room = new_prompt(9), new_room()
      local prefill = ask_prefill(prompt, room):wait()
      assert.equal(200, prefill.status)
      local s = state(p)
      assert.equal(9, s.held_kv_blocks)
      assert.equal(1, s.held_kv_requests)
      assert.equal(0, s.live)
      assert_right(prompt, ask_decode(prompt, room):wait())
      settle(p)

      prompt, room = new_prompt(9), new_room()
      local decode = ask_decode(prompt, room)
      eventually(function()
        return state(d).kv.rooms.waiting_for_input == 1
      end, 10, "decode waits")
      assert.equal(1, state(d).waiting)
      ask_prefill(prompt, room):wait()
      assert_right(prompt, decode:wait())
      settle(p)
      settle(d)
      stop_pair()
    end)

    it("without the prefix that decode has", function()
      start_pair("")
      local prompt = new_prompt(8)
      assert_right(prompt, (exchange(prompt)))
      local before, hits = state(d).kv.bytes, state(d).local_cache_hit
      local longer = prompt .. "12345" .. new_prompt(2) -- of the first prompt seven blocks were full
      assert_right(longer, (exchange(longer)))
      assert.equal(3 * BUFFERS * PAGE_BYTES + AUX_BYTES, state(d).kv.bytes - before)
      assert.equal(7 * 32, state(d).local_cache_hit - hits)
      stop_pair()
    end)

    it("in many rooms at once, each prompt's own", function()
      start_pair("ttft=20")
      local all = {}
      for i = 1, 40 do
        local one = { prompt = new_prompt(1 + i % 7), room = new_room() }
        if i % 2 == 0 then
          one.prefill = ask_prefill(one.prompt, one.room)
          one.decode = ask_decode(one.prompt, one.room)
        else
          one.decode = ask_decode(one.prompt, one.room)
          one.prefill = ask_prefill(one.prompt, one.room)
        end
        all[i] = one
      end
      for _, one in ipairs(all) do
        assert_right(one.prompt, one.decode:wait())
        assert.equal(200, one.prefill:wait().status)
      end
      assert.equal(40, state(d).kv.rooms_succeeded)
      settle(p)
      settle(d)
      stop_pair()
    end)
  end)

  describe("is what the text is made of", function()
    before_each(function()
      start_pair("")
    end)

    it("one flipped byte in any page makes another text", function()
      for page = 0, 4 do
        local prompt = new_prompt(5)
        local decode = exchange(prompt, "kv_corrupt:" .. page)
        assert.not_equal(fleet.expect(prompt, TOKENS), text_of(decode))
      end
      works()
      settle(p)
      stop_pair()
    end)

    it("another prompt's room gives another prompt's text", function()
      local ours, theirs, room = new_prompt(4), new_prompt(4), new_room()
      ask_prefill(theirs, room)
      local answer = ask_decode(ours, room):wait()
      assert.equal(fleet.expect(theirs, TOKENS), text_of(answer))
      settle(p)
    end)

    it("a prompt of another length fails the room", function()
      local room = new_room()
      ask_prefill(new_prompt(4), room)
      assert_failed(ask_decode(new_prompt(6), room):wait(), "pages")
      settle(p)
      settle(d)
      works()
    end)
  end)

  describe("is freed", function()
    it("when decode's client leaves", function()
      start_pair("ttft=60000,kv_chunk_pages=1", "ttft=1")
      local prompt, room = new_prompt(100), new_room()
      local prefill = ask_prefill(prompt, room)
      local decode = ask_decode(prompt, room)
      wait_moving()
      decode:close()
      settle(d)
      eventually(function()
        return state(p).kv.rooms_failed == 1
      end, 10, "prefill's room has failed")
      assert.matches("aborted", state(p).kv.last_failure)
      prefill:close()
      settle(p)
      stop_pair()
    end)

    it("when prefill stalls and decode gives up", function()
      start_pair("")
      local prompt, room = new_prompt(7), new_room()
      local prefill = ask_prefill(prompt, room, "kv_stall:3")
      local decode = ask_decode(prompt, room)
      assert.equal(200, prefill:wait().status)
      wait_moving()
      assert.equal(3 * BUFFERS * PAGE_BYTES, state(d).kv.agents[1].bytes_received)
      assert.equal(7, state(p).held_kv_blocks)
      decode:close()
      settle(d)
      settle(p)
      works()
      stop_pair()
    end)

    it("when prefill stalls and nobody gives up but the agents", function()
      start_pair("kv_stall_ms=300")
      local prompt, room = new_prompt(7), new_room()
      ask_prefill(prompt, room, "kv_stall:3")
      assert_failed(ask_decode(prompt, room):wait(), "without progress")
      settle(d)
      settle(p)
      works()
      stop_pair()
    end)

    it("when nobody ever comes for it", function()
      start_pair("kv_bootstrap_ms=300")
      assert.equal(200, ask_prefill(new_prompt(7), new_room()):wait().status)
      settle(p)
      assert.equal(1, state(p).kv.rooms_failed)
      assert_failed(ask_decode(new_prompt(7), new_room()):wait(), "timed out")
      settle(d)
      works()
      stop_pair()
    end)

    it("when prefill's process is killed in the middle", function()
      start_pair("ttft=60000,kv_chunk_pages=1", "ttft=1")
      local prompt, room, at = new_prompt(100), new_room(), sources()
      ask_prefill(prompt, room)
      local decode = ask_decode(prompt, room, false, at)
      wait_moving()
      p.process:kill(proc.SIGKILL)
      assert_failed(decode:wait(), "p0/0")
      settle(d)
      p = fleet.start_sim({ "role=prefill,name=p0,connector=BatonConnector,ttft=1" })
      works()
      stop_pair()
    end)

    it("when decode's process is killed before it has all", function()
      start_pair("")
      local prompt, room = new_prompt(30), new_room()
      ask_prefill(prompt, room, "kv_stall:3"):wait()
      ask_decode(prompt, room)
      wait_moving()
      d.process:kill(proc.SIGKILL)
      settle(p)
      d = fleet.start_sim({ "role=decode,name=d0,connector=BatonConnector,ttft=1" })
      works()
      stop_pair()
    end)

    it("when prefill's process stands still in the middle, and works again when it goes on", function()
      -- Lost, but not dead: it may still reach for pages. Either side's wait for release_ms.
      local words = "kv_dead_ms=500,kv_release_ms=300,"
      start_pair(words .. "ttft=60000,kv_chunk_pages=1", words .. "ttft=1")
      local prompt, room = new_prompt(100), new_room()
      local prefill = ask_prefill(prompt, room)
      local decode = ask_decode(prompt, room)
      wait_moving()
      p.process:kill(proc.SIGSTOP)
      assert_failed(decode:wait(), "p0/0")
      p.process:kill(proc.SIGCONT)
      settle(d)
      prefill:close()
      settle(p)
      stop_pair()
    end)

    it("when the engine dies; a reset one is as new", function()
      start_pair("ttft=60000,kv_chunk_pages=1", "ttft=1")
      local prompt, room = new_prompt(100), new_room()
      local prefill = ask_prefill(prompt, room)
      local decode = ask_decode(prompt, room)
      wait_moving()
      p:fault("p0", { kind = "die" })
      assert.equal(500, prefill:wait().status)
      assert_failed(decode:wait(), "p0/0")
      settle(d)
      http.post(p.list[1].port, "/sim/reset", "{}")
      eventually(function()
        return state(p).kv ~= nil
      end, 10, "new agents")
      local again = ask_prefill(prompt, new_room())
      eventually(function()
        return state(p).computing == 1
      end, 10, "it computes again")
      again:close()
      settle(p)
      stop_pair()
    end)
  end)

  it("is computed by decode itself where that is wanted", function()
    start_pair("kv_recompute=1,kv_stall_ms=300")
    local prompt, room = new_prompt(7), new_room()
    ask_prefill(prompt, room, "kv_stall:3")
    local answer = ask_decode(prompt, room):wait()
    assert.equal(fleet.expect(prompt, TOKENS), text_of(answer))
    assert.equal("local", answer:header("x-sim-kv-source"))
    settle(d)
    settle(p)
    stop_pair()
  end)

  it("is not asked for by half a parameter", function()
    start_pair("")
    local rows = {
      { '{"do_remote_decode":true}', "baton_room" },
      { '{"do_remote_prefill":true}', "baton_room" },
      { '{"do_remote_decode":true,"baton_room":0}', "baton_room" },
      { '{"do_remote_decode":true,"baton_room":"7"}', "baton_room" },
      { '{"do_remote_decode":true,"baton_room":9223372036854775808}', "baton_room" },
      { '{"do_remote_decode":true,"do_remote_prefill":true,"baton_room":7}', "exclude" },
    }
    for _, row in ipairs(rows) do
      local answer = http.post(p.list[1].port, PATH, body_of("hello", 1, row[1]))
      assert.equal(400, answer.status, row[1])
      assert.matches(row[2], answer.body)
    end
    local two = '{"model":"sim","prompt":["a","b"],"kv_transfer_params":{"do_remote_decode":true,"baton_room":7}}'
    assert.equal(400, http.post(p.list[1].port, PATH, two).status)
    -- A room twice.
    local room = new_room()
    assert.equal(200, ask_prefill(new_prompt(2), room):wait().status)
    assert.equal(500, ask_prefill(new_prompt(2), room):wait().status)
    -- Without a room it is a worker like any other.
    local plain = http.post(d.list[1].port, PATH, body_of("hello", TOKENS, "null"))
    assert.equal(fleet.expect("hello", TOKENS), text_of(plain))
    assert.equal("local", plain:header("x-sim-kv-source"))
  end)

  it("goes rank to rank before a gateway, which tells each agent of its own peer", function()
    local f = gateway_managed.start({ p0 = "ttft=1,ranks=2", d0 = "itl=1,ranks=2" })
    for _, name in ipairs({ "p0", "d0" }) do
      eventually(function() -- the gateway knows before the agent has its answer
        local agents = f:state(name).kv.agents
        for rank, agent in ipairs(agents) do
          assert.equal(rank - 1, agent.rank)
          if not agent.gateways[1].registered then
            return false, agent.gateways[1].why
          end
        end
        return #agents == 2
      end, 10, "both agents of " .. name .. " are registered")
    end
    local prompt = new_prompt(5)
    local body = ('{"prompt":%s,"max_tokens":%d}'):format(json.encode(prompt), TOKENS)
    assert_right(prompt, f:post(PATH, body))
    assert.equal(2 * (5 * BUFFERS * PAGE_BYTES + AUX_BYTES), f:state("d0").kv.bytes)
    f:wait_idle()
    f:stop()
  end)

  it("is not what it was when a byte was flipped, and no gateway can know", function()
    local f = gateway_managed.start({ p0 = "ttft=1", d0 = "itl=1,kv_crc=1" })
    local prompt = new_prompt(5)
    local body = ('{"prompt":%s,"max_tokens":%d}'):format(json.encode(prompt), TOKENS)
    f:fault("p0", { kind = "kv_corrupt", after_chunks = 3 })
    assert.not_equal(fleet.expect(prompt, TOKENS), text_of(f:post(PATH, body)))
    f:wait_idle()
    f:stop()
  end)
end)
