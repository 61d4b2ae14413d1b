-- Clients that mean harm, or are only slow: a random mix of everything that takes memory, under a limit of the process
-- that is 1.5 times what the gateway has promised to keep to; and slow heads, slow bodies and slow readers by the
-- hundred beside honest traffic. No honest request fails, nothing ends the process. Times are printed, never judged.
--
-- BATON_SOAK=1 (`make soak`): ten minutes, 200 of each slow kind. BATON_SOAK_MIX_SECONDS, BATON_SOAK_SLOW and
-- BATON_SOAK_SEED say it one by one.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local pace = require("gateway.support.pace")
local proc = require("gateway.support.proc")

local IS_WHOLE = (os.getenv("BATON_SOAK") or "") ~= ""
local MIX_SECONDS = tonumber(os.getenv("BATON_SOAK_MIX_SECONDS") or (IS_WHOLE and 600 or 5))
local SLOW = tonumber(os.getenv("BATON_SOAK_SLOW") or (IS_WHOLE and 200 or 50))
local SEED = tonumber(os.getenv("BATON_SOAK_SEED") or os.time())
local MIB = 1048576
local LIMIT = 512 * MIB
local MIXED = 96 -- clients at once
local FILL_SECONDS = 5 -- until the buffers to slow readers are full
local PATH = "/v1/completions"

local f

local function held()
  return f:metric("baton_buffered_bytes ")
end

-- ---- a body of any size that exists nowhere as a whole ----

local SHAPES = {
  { before = '{"model":"sim","prompt":"hi","max_tokens":1,"metadata":"', filler = "a", after = '"}' },
  { before = '{"model":"sim","max_tokens":1,"prompt":"', filler = "\\u00e9", after = '"}' },
  { before = '{"model":"sim","max_tokens":1,"prompt":[[1', filler = ",1", after = "]]}" },
  { before = '{"model":"sim","max_tokens":1,"prompt":[[]', filler = ",[]", after = "]}" },
  { before = '{"model":"sim","max_tokens":1,"prompt":["a"', filler = ',"a"', after = "]}" },
  { before = '{"model":"', filler = "a", after = '"}' },
  { before = '{"prompt":[', filler = "[", after = "" },
}
for _, shape in ipairs(SHAPES) do
  shape.block = shape.filler:rep(math.floor(65536 / #shape.filler))
end

local function body_size(shape, blocks)
  return #shape.before + blocks * #shape.block + #shape.after
end

-- Its pieces, one a call; nil at the end.
local function pieces_of(shape, blocks)
  local at = -1
  return function()
    at = at + 1
    if at == 0 then
      return shape.before
    elseif at <= blocks then
      return shape.block
    elseif at == blocks + 1 then
      return shape.after
    end
  end
end

-- Few are large, and those are as large as may be.
local function random_blocks()
  return math.floor(2 ^ (math.random() * 9.9))
end

-- ---- clients: each has a step(), which returns false when it is over ----

local function connect()
  local c = http.connect(f.port, nil, "127.0.1." .. math.random(1, 12))
  c:expect_answer("POST")
  return c
end

-- As much as the socket takes; true when all of it is out.
local function push(c)
  local sent, _, part = c.socket:send(c.left)
  c.left = c.left:sub((sent or part or 0) + 1)
  return #c.left == 0
end

local function sender(next_piece, head, seconds)
  local c = connect()
  c.left = head
  local ends_at = clock.now() + seconds
  return c, function()
    if not c:pump() or c.answer.done or clock.now() > ends_at then
      return false
    end
    while c.left and push(c) do
      c.left = next_piece()
      if not c.left then
        c.is_asked = true
      end
    end
    return true
  end
end

local function head(headers)
  return http.head_of({ method = "POST", path = PATH, headers = headers }, f.port)
end

local kinds = {}

function kinds.whole()
  local shape, blocks = SHAPES[math.random(#SHAPES)], random_blocks()
  return sender(pieces_of(shape, blocks), head({ ["Content-Length"] = body_size(shape, blocks) }), 30)
end

function kinds.chunked()
  local shape, blocks = SHAPES[math.random(#SHAPES)], random_blocks()
  local next_piece, is_last = pieces_of(shape, blocks), false
  return sender(function()
    local piece = next_piece()
    if piece and #piece > 0 then
      return ("%x\r\n%s\r\n"):format(#piece, piece)
    elseif not is_last then
      is_last = true
      return "0\r\n\r\n"
    end
  end, head({ ["Transfer-Encoding"] = "chunked" }), 30)
end

-- Sends a part and stays.
function kinds.promise()
  local blocks = random_blocks()
  return sender(pieces_of(SHAPES[1], blocks), head({ ["Content-Length"] = 64 * MIB }), 5)
end

function kinds.leaves()
  local shape, blocks = SHAPES[math.random(#SHAPES)], random_blocks()
  return sender(pieces_of(shape, blocks), head({ ["Content-Length"] = body_size(shape, blocks) }), math.random())
end

local function small(body, seconds)
  return sender(function() end, head({ ["Content-Length"] = #body }) .. body, seconds)
end

-- Samples that are put together: up to 16 times half a MiB.
function kinds.merged()
  local tokens = math.random(1, 100000)
  return small(('{"model":"sim","prompt":"hi","n":%d,"max_tokens":%d,"stream":%s}'):format(
    math.random(2, 16), tokens, math.random() < 0.5), 30)
end

function kinds.deaf()
  local c, step = small('{"model":"sim","prompt":"hi","max_tokens":100000,"stream":true}', 10)
  c.pump = function()
    return true
  end
  return c, step
end

local names = {}
for name in pairs(kinds) do
  names[#names + 1] = name
end
table.sort(names)

-- ---- the mix ----

local function memory_of(pid)
  local text = proc.read("/proc/" .. pid .. "/status") or ""
  return tonumber(text:match("VmHWM:%s+(%d+)") or 0) * 1024
end

local function mix(seconds)
  local live, statuses, peak, begun = {}, {}, 0, 0
  local ends_at, next_look = clock.now() + seconds, 0
  while clock.now() < ends_at do
    while #live < MIXED do
      local c, step = kinds[names[math.random(#names)]]()
      live[#live + 1] = { c = c, step = step }
      begun = begun + 1
    end
    for i = #live, 1, -1 do
      local one = live[i]
      if not one.step() then
        local status = one.c.answer.status or "none"
        statuses[status] = (statuses[status] or 0) + 1
        one.c:close()
        table.remove(live, i)
      end
    end
    if clock.now() > next_look then
      next_look = clock.now() + 0.2
      peak = math.max(peak, held())
    end
  end
  for _, one in ipairs(live) do
    one.c:close()
  end
  return statuses, peak, begun
end

local function say_mix(statuses, peak, begun)
  local list = {}
  for status, count in pairs(statuses) do
    list[#list + 1] = status .. ": " .. count
  end
  table.sort(list)
  print(("\n%d requests in %d s, seed %d, --max-buffered-bytes %d MiB: held at most %d MiB, resident at most %d MiB, "
    .. "%d evicted; %s"):format(begun, MIX_SECONDS, SEED, LIMIT / MIB, peak / MIB, memory_of(f.gateway.pid) / MIB,
    f:metric("baton_requests_evicted_total "), table.concat(list, ", ")))
end

describe("a random mix of what takes memory", function()
  it("never ends the process", function()
    math.randomseed(SEED)
    local limits = os.getenv("BATON_SANITIZE") == "" and { data = 1.5 * LIMIT } or nil
    f = fleet.start({
      workers = { "role=prefill,ttft=0,count=2", "role=decode,ttft=0,itl=0,transfer_ms=0,count=2",
        "role=hybrid,ttft=0,itl=0" },
      flags = { "--vllm-pd-disaggregation", "--max-buffered-bytes", LIMIT, "--no-access-log" },
      proc = { limits = limits },
    })
    say_mix(mix(MIX_SECONDS))
    eventually(function()
      return held() < MIB, held()
    end, 60, "nothing is held")
    -- The workers are one simulator, which may still chew on what it has been sent.
    eventually(function()
      local body = '{"model":"sim","prompt":"hi","max_tokens":1}'
      local answer = http.request(f.port, { path = PATH, body = body, seconds = 60 })
      return answer.status == 200, answer.body
    end, 60, "a request is served")
    f:stop()
    proc.clean()
  end)
end)

-- ---- slow ones ----

local slow = {}

-- A byte of a head that never ends.
function slow.head()
  local c = connect()
  c:send("POST " .. PATH .. " HTTP/1.1\r\nX-Slow: ")
  return c, function()
    c:send("a")
    return c:pump()
  end
end

function slow.body()
  local c = connect()
  c:send(head({ ["Content-Length"] = 100000 }) .. "{")
  return c, function()
    c:send(" ")
    return c:pump()
  end
end

function slow.reader()
  local c = connect()
  c.socket:setoption("recv-buffer-size", 4096)
  local body = '{"model":"sim","prompt":"hello there","max_tokens":100000,"stream":true}'
  c:send(head({ ["Content-Length"] = #body }) .. body)
  return c, function()
    return c.socket:receive(1) ~= nil or not c.socket:send("")
  end
end

-- Each has its turn once a second; who was shown the door comes back.
local function be_slow(until_when, count)
  local live, again = {}, 0
  for name, make in pairs(slow) do
    for _ = 1, count do
      local c, step = make()
      live[#live + 1] = { c = c, step = step, make = make, name = name }
    end
  end
  while not until_when() do
    local began = clock.now()
    for i, one in ipairs(live) do
      if not one.step() then
        one.c:close()
        one.c, one.step = one.make()
        again = again + 1
      end
      if i % 8 == 0 then
        clock.nap(math.max(0, math.min(0.05, began + i / #live - clock.now())))
      end
    end
  end
  for _, one in ipairs(live) do
    one.c:close()
  end
  return again
end

describe("slow heads, bodies and readers", function()
  it("cost honest traffic no request", function()
    local calm_seconds, seconds = IS_WHOLE and 20 or 2, IS_WHOLE and 60 or 4
    f = fleet.start({
      workers = { "role=hybrid,ttft=0,itl=0,count=2" },
      flags = { "--no-access-log" },
    })
    local most = pace.run(f.port, 64, 0, 3)
    local rate = 0.1 * most.rate
    local calm = pace.run(f.port, 64, rate, calm_seconds)
    local load, full_at
    local again = be_slow(function()
      full_at = full_at or clock.now() + FILL_SECONDS
      if not load and clock.now() > full_at then
        load = pace.start(f.port, 64, rate, 0)
      end
      return clock.now() > full_at + seconds
    end, SLOW)
    local busy = pace.stop(load)
    local after = pace.run(f.port, 64, rate, calm_seconds)
    print(("\n%d slow heads, bodies and readers each (%d came back), short requests at 10 %% of %.0f/s:"):format(
      SLOW, again, most.rate))
    pace.say("calm", calm)
    pace.say("with them", busy)
    pace.say("calm again", after)
    print(("  p99 %.2f times the better calm one"):format(busy.p99_us / math.min(calm.p99_us, after.p99_us)))
    f:stop()
    proc.clean()
  end)
end)
