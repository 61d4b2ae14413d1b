-- System calls of a request, by strace: each leg is written once and read once, as is the client, and nothing else is
-- asked of the kernel for it. What gets in is counted here before it is seen in a benchmark.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local workers = require("gateway.support.mock")

local COUNT, WARM_UP = 100, 600 -- until LuaJIT has compiled what a request needs
local BODY = ('{"model":"m","messages":[{"role":"user","content":"%s"}],"max_tokens":5}'):format(("a"):rep(1000))
local STREAM = BODY:gsub('"content":"', '"content":"bench stream: '):gsub("}$", ',"stream":true}')
-- More than a read brings at once, less than a pool thread gets.
local LONG = STREAM:gsub('bench stream: ', '%0' .. ("a"):rep(220000))
local QUIET = { "--loops", "1", "--no-access-log", "--disable-health-check", "--load-interval-secs", "0",
  "--policy", "round_robin" }

local function find_strace()
  for folder in (os.getenv("PATH") or ""):gmatch("[^:]+") do
    local file = io.open(folder .. "/strace")
    if file then
      file:close()
      return folder .. "/strace"
    end
  end
end

local function ask(c, body)
  c:ask({ path = "/v1/chat/completions", body = body })
  assert.equal(200, c:wait(nil, 10).status)
end

-- Calls by name, of the thread that serves; reads that find nothing have a name of their own.
local function read_trace(path)
  local threads, most = {}, {}
  for line in io.lines(path) do
    local thread, name = line:match("^(%d+)%s+([%w_]+)%(")
    if thread then
      local calls = threads[thread] or {}
      threads[thread] = calls
      name = line:find("= -1 EAGAIN", 1, true) and name .. " in vain" or name
      calls[name] = (calls[name] or 0) + 1
      if (calls.read or 0) > (most.read or 0) then
        most = calls
      end
    end
  end
  return most
end

local function count_calls(strace, pid, step)
  local path = proc.path("strace")
  local tracer = proc.start({ strace, "-f", "-o", path, "-p", pid }, { name = "strace" })
  local why
  eventually(function()
    why = not tracer:is_alive() and tracer:stderr() or nil
    return why or tracer:stderr():find("attached", 1, true), tracer:stderr()
  end, 10, "strace is attached")
  if why then
    return nil, why
  end
  step()
  tracer:kill(proc.SIGINT)
  tracer:wait(10)
  return read_trace(path)
end

-- legs: exchanges of one request, the client's among them.
local function check(words, legs, body)
  local strace = find_strace()
  if not strace or os.getenv("BATON_SANITIZE") ~= "" then
    pending(strace and "sanitizers ask the kernel too" or "strace is not installed")
    return
  end
  local gateway, port = fleet.start_gateway(words)
  eventually(function()
    local answer = http.get(port, "/readiness")
    return answer.status == 200, answer.body
  end, 10, "/readiness is 200")
  local c = http.connect(port)
  for _ = 1, WARM_UP do
    ask(c, body)
  end
  local calls, why = count_calls(strace, gateway.pid, function()
    for _ = 1, COUNT do
      ask(c, body)
    end
  end)
  c:close()
  gateway:stop()
  if not calls then
    pending("strace may not attach: " .. why)
    return
  end
  local writes, others, text = 0, 0, json.encode(calls)
  for name, n in pairs(calls) do
    if name:find("^send") then
      writes = writes + n
    elseif name ~= "read" and not name:find("^epoll_p?wait") and (body ~= LONG or name ~= "futex") then
      others = others + n
    end
  end
  assert.is_true(others <= COUNT / 10, text)
  if body == LONG then
    return -- comes in as many pieces as client and kernel like, and so slowly that the watchdog sleeps (futex)
  end
  assert.equal(legs * COUNT, writes, text)
  assert.is_true(calls.read <= legs * COUNT + 5, text) -- a pooled connection may be exchanged meanwhile
  assert.is_true((calls.epoll_wait or calls.epoll_pwait) <= (legs + 1) * COUNT, text)
end

describe("a request's system calls", function()
  local mock, prefill, decode

  before_each(function()
    mock, prefill, decode = workers.start()
  end)

  after_each(function()
    mock:stop()
    proc.clean()
  end)

  local function flags(...)
    local words = { ... }
    proc.append(words, QUIET)
    return words
  end

  for _, is_stream in ipairs({ false, true }) do
    local what, body = is_stream and " of a stream" or "", is_stream and STREAM or BODY
    it("are one write and one read a leg, hand-off" .. what, function()
      check(flags("--vllm-pd-disaggregation", "--prefill", prefill, "--decode", decode), 3, body)
    end)

    it("are one write and one read a leg, bootstrap" .. what, function()
      check(flags("--pd-disaggregation", "--prefill", prefill, prefill:match("%d+$"), "--decode", decode), 3, body)
    end)

    it("are one write and one read a leg, single" .. what, function()
      check(flags("--worker-urls", decode), 2, body)
    end)
  end

  it("are nothing but reads and writes for a long prompt, and none in vain", function()
    check(flags("--pd-disaggregation", "--prefill", prefill, prefill:match("%d+$"), "--decode", decode), 3, LONG)
  end)
end)
