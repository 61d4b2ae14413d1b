-- streams.lua - many streams at once through one gateway with two pools: half hand-off, half bootstrap.
--
-- Simulator, gateway and client (spec/bench/streams.c, which checks every byte of every text) are processes of their
-- own.

local ffi = require("ffi")
local fleet = require("gateway.support.fleet")
local proc = require("gateway.support.proc")

local streams = {}

-- Raises the limit of open files, for the children too. nil, or why it cannot be as high as `wanted`.
function streams.raise_files(wanted)
  local limit = ffi.new("bt_spec_rlimit")
  assert(ffi.C.getrlimit(proc.RLIMITS.files, limit) == 0)
  local hard = tonumber(limit.hard)
  limit.soft = limit.hard
  ffi.C.setrlimit(proc.RLIMITS.files, limit)
  if hard < wanted then
    return ("the hard limit of open files is %d, %d are needed (ulimit -Hn)"):format(hard, wanted)
  end
end

-- Descriptors that a process in the middle needs: clients get a third of what is left.
function streams.files_for(count)
  return 3 * count + 2000
end

local function pool_text(name, connector, workers, names)
  local rows = {}
  for _, worker_name in ipairs(names) do
    local w = workers[worker_name]
    local second = w.role == "prefill" and (", bootstrap_port = %d"):format(w.second) or ""
    rows[#rows + 1] = ('{ name = "%s", url = "%s", role = "%s"%s }'):format(w.name, w.url, w.role, second)
  end
  return ('{ name = "%s", models = { "%s" }, connector = "%s", workers = { %s } }'):format(
    name, name, connector, table.concat(rows, ", "))
end

local function config_of(workers)
  return ("return { access_log = false, pools = { %s, %s } }"):format(
    pool_text("handoff", "nixl", workers, { "vp0", "vp1", "vd0", "vd1" }),
    pool_text("bootstrap", "sglang", workers, { "sp0", "sp1", "sd0", "sd1" }))
end

-- itl_ms: time between two events of a stream.
function streams.start(itl_ms)
  local kinds = { v = "engine=vllm,model=handoff", s = "engine=sglang,model=bootstrap" }
  local workers = {}
  for letter, kind in pairs(kinds) do
    for i = 0, 1 do
      workers[#workers + 1] = ("name=%sp%d,role=prefill,%s,blocks=2000000,ttft=20"):format(letter, i, kind)
      workers[#workers + 1] = ("name=%sd%d,role=decode,%s,blocks=2000000,ttft=5,itl=%d"):format(letter, i, kind, itl_ms)
    end
  end
  return fleet.start({ workers = workers, config = config_of })
end

-- The client's report as a table of numbers, and what it said on stderr.
function streams.run(f, count, tokens, per_second)
  local build = fleet.binary("BATON_BIN", "baton"):match("^(.*)/[^/]*$")
  local _, out, err = proc.run({
    build .. "/bin/bench_streams", f.port, f.gateway.pid, count, tokens, per_second, "handoff", "bootstrap",
  }, { name = "streams", seconds = 250 })
  local report = {}
  for name, value in out:gmatch("(%S+) (%S+)") do
    report[name] = tonumber(value)
  end
  return report, err, out
end

return streams
