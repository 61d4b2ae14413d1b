-- `baton top`, in a terminal of script(1): what it draws, what its keys do, and that the terminal is as before whatever
-- ends it.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")

local KEY = "the-admins-own-key"
local BATON = fleet.binary("BATON_BIN", "baton")
local LEAVE = "\27[?1049l"

describe("baton top", function()
  local f

  local function admin()
    return ("http://127.0.0.1:%d"):format(f.admin_port)
  end

  -- A terminal of 24 rows and 80 columns in which it runs.
  local function start()
    local t = { out = proc.path("typescript"), before = proc.path("before"), after = proc.path("after") }
    local fifo = proc.path("keys")
    t.pid = proc.path("pid")
    assert(os.execute("mkfifo " .. fifo) == 0)
    local inner = ("stty rows 24 cols 80; stty -g >%s; %s top --admin %s & echo $! >%s; fg >/dev/null; stty -g >%s")
      :format(t.before, BATON, admin(), t.pid, t.after)
    local command = ("exec script -qfec \"sh -c 'set -m; %s'\" %s <%s"):format(inner:gsub("%$", "\\$"), t.out, fifo)
    t.process = proc.start({ "/bin/sh", "-c", command }, { name = "script", env = { TERM = "xterm" } })
    t.keys = assert(io.open(fifo, "w"))
    t.keys:setvbuf("no")
    return t
  end

  -- The last picture that was drawn.
  local function picture(t)
    local text = proc.read(t.out) or ""
    return text:match(".*\27%[H(.*)$") or text
  end

  local function shows(t, words)
    eventually(function()
      local now = picture(t)
      return now:find(words, 1, true), now
    end, 10, words)
  end

  local function press(t, keys)
    t.keys:write(keys)
  end

  -- It has ended, and the terminal is what it was.
  local function assert_restored(t)
    eventually(function()
      local seen = proc.read(t.out)
      return #(proc.read(t.after) or "") > 1 and seen:find(LEAVE, 1, true) and seen:find("\27[?25h", 1, true), seen
    end, 10, "it ends; screen and cursor are back")
    assert.equal(proc.read(t.before), proc.read(t.after))
    t.keys:close()
    t.process:wait(10)
  end

  before_each(function()
    f = fleet.start({
      workers = { "role=prefill,count=2,ttft=1", "role=decode,count=2,itl=100,ttft=1" },
      flags = { "--vllm-pd-disaggregation" },
    })
  end)

  after_each(function()
    f:stop()
    proc.clean()
  end)

  it("shows workers, live requests and ended ones; drains, cancels, explains", function()
    local c = http.start(f.port, {
      path = "/v1/completions", body = '{"model":"sim","prompt":"x","stream":true,"max_tokens":3000}',
      headers = { ["X-Request-Id"] = "a-live-one" },
    })
    local t = start()
    shows(t, "prefill 2/2 decode 2/2")
    shows(t, "p1")
    press(t, "j")
    press(t, "d")
    shows(t, "Drain p1? y")
    press(t, "n")
    shows(t, "WORKERS 4")
    assert.is_false(f:told("p1").draining)
    press(t, "d")
    shows(t, "Drain p1? y")
    press(t, "y")
    shows(t, "Drain p1: done")
    assert.is_true(f:told("p1").draining)
    press(t, "\t")
    shows(t, "a-live-one")
    press(t, "c")
    shows(t, "Cancel a-live-one? y")
    press(t, "y")
    c:wait(nil)
    c:close()
    press(t, "\t")
    shows(t, "cancelled")
    press(t, "e")
    shows(t, "chosen: handoff")
    press(t, " ")
    shows(t, "JUST ENDED")
    for line in picture(t):gmatch("[^\r\n]+") do
      assert.is_true(#line:gsub("\27%[[%d;?]*%a", "") <= 80, line)
    end
    press(t, "q")
    assert_restored(t)
  end)

  it("gives the terminal back when a signal ends it", function()
    for _, signal in ipairs({ "TERM", "HUP", "SEGV" }) do
      local t = start()
      shows(t, "WORKERS 4")
      assert(os.execute(("kill -%s %s"):format(signal, proc.read(t.pid))) == 0)
      assert_restored(t)
    end
  end)

  it("says that a gateway is gone, and goes on when it is back", function()
    local t = start()
    shows(t, "WORKERS 4")
    local there = f.admin_port
    http.hang_up(f.port)
    f.gateway:stop(10)
    shows(t, "does not answer")
    f.gateway = fleet.start_gateway({ "--admin-port", there, "--worker-urls", f.workers.d0.url })
    shows(t, "WORKERS 1")
    press(t, "\3")
    assert_restored(t)
  end)

  it("prints one snapshot where there is no terminal", function()
    local code, out, err = proc.run({ BATON, "top", "--admin", admin() }, { name = "top", seconds = 20 })
    assert.equal(0, code, err)
    assert.truthy(out:find("prefill 2/2 decode 2/2", 1, true), out)
    assert.truthy(out:find("\np0 ", 1, true), out)
    assert.is_nil(out:find("\27", 1, true))
  end)

  it("sends the key, and tells what is wrong without it", function()
    f:stop()
    f = fleet.start({ workers = { "role=hybrid,name=w0" }, flags = { "--admin-api-key", KEY } })
    local code, _, err = proc.run({ BATON, "top", "--admin", admin() }, { name = "top", seconds = 20 })
    assert.equal(1, code)
    assert.truthy(err:find("missing or wrong key", 1, true), err)
    local env = { BATON_ADMIN_API_KEY = KEY }
    local again, out = proc.run({ BATON, "top", "--admin", admin() }, { name = "top", seconds = 20, env = env })
    assert.equal(0, again)
    assert.truthy(out:find("\nw0 ", 1, true), out)
    assert.equal(2, (proc.run({ BATON, "top", "--amdin", admin() }, { name = "top", seconds = 20 })))
  end)
end)
