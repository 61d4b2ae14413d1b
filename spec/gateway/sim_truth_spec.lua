-- baton sim beside what it models: the same trace and policies through a gateway and baton-sim workers, which publish
-- their KV events. Caches are a small part of the trace, so what hits depends on what is evicted. One at a time:
-- with more it depends on how fast this machine is, too, which request goes where.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local port = require("gateway.support.port")
local proc = require("gateway.support.proc")

local TRACE = "spec/bench/traces/conversation_cut.jsonl"
local BATON = fleet.binary("BATON_BIN", "baton")
local BENCH = BATON:match("^(.*)/[^/]*$") .. "/bin/bench_fleet"
local ROWS, WORKERS, BLOCKS, AT_ONCE = 300, 2, 500, 1
local BLOCK = 512 -- the trace's
local POINTS, SEEDS = 3, 5
local TTFT_MS, TOKEN_MS = 1, 0.0005

-- Of the workers, in percent.
local function hits_of_gateway(policy)
  local events, words = {}, {}
  for i = 1, WORKERS do
    events[i] = port.free(2)
    words[i] = ("role=hybrid,name=w%d,by_ids=1,queue=1,block_size=%d,blocks=%d,context=200000,itl=0,ttft=%g,"
      .. "ttft_per_token=%g,kv_events=%d,kv_events_replay=%d"):format(i, BLOCK, BLOCKS, TTFT_MS, TOKEN_MS, events[i],
      events[i] + 1)
  end
  local f = fleet.start({ workers = words, sim = { "--record", "0" }, config = function(workers)
    local list = {}
    for i = 1, WORKERS do
      list[i] = ([[{ name = "w%d", role = "hybrid", url = "%s", engine = "vllm", kv_events = "tcp://127.0.0.1:%d",
        kv_events_replay = "tcp://127.0.0.1:%d" },]]):format(i, workers["w" .. i].url, events[i], events[i] + 1)
    end
    return ('return { policy = "%s", pools = { { workers = { %s } } } }'):format(policy, table.concat(list))
  end, ready = false })
  fleet.wait_up(f.port, f.admin_port)
  eventually(function()
    return f:metric("baton_kv_ranks_followed ") == WORKERS
  end, 20, "events are followed")
  local ports = {}
  for i, w in ipairs(f.sim.list) do
    ports[i] = w.port
  end
  local code, out, err = proc.run({ BENCH, TRACE, f.port, table.concat(ports, ","), "ids=1",
    "rows=" .. ROWS, "blocks=" .. BLOCKS, "in_flight=" .. AT_ONCE, "speed=1000000" }, { name = "fleet", seconds = 100 })
  assert.equal(0, code, out .. err)
  f:stop()
  return 100 * tonumber(out:match(" hit (%S+)"))
end

local function hits_of_sim(policy)
  local model = proc.write("engine.lua", ([[return { prefill_ms = { %g, %g, 0 }, decode_ms = { 0, 0, 0, 0, 0 },
    min_step_ms = 0.001, max_batched_tokens = 200000, max_seqs = 1, kv_tokens = %d }]]):format(TTFT_MS, TOKEN_MS,
    BLOCK * BLOCKS))
  local sum = 0
  for seed = 1, SEEDS do -- ties are drawn
    local code, out, err = proc.run({ BATON, "sim", policy, "--json", "--trace", TRACE, "--requests", ROWS, "--engines",
      WORKERS, "--concurrency", AT_ONCE, "--engine-model", model, "--seed", seed }, { name = "sim", seconds = 100 })
    assert.equal(0, code, err)
    sum = sum + json.decode(out:match("[^\n]+")).hit_ratio
  end
  return 100 * sum / SEEDS
end

describe("baton sim", function()
  teardown(proc.clean)

  for _, policy in ipairs({ "round_robin", "baton_kv" }) do
    it("foretells what hits under " .. policy, function()
      local foretold, seen = hits_of_sim(policy), hits_of_gateway(policy)
      assert.is_true(math.abs(foretold - seen) <= POINTS, ("%.1f %% foretold, %.1f %% seen"):format(foretold, seen))
    end)
  end
end)
