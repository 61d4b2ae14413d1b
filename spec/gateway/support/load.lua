-- load.lua - clients of every kind that ask without a pause while something happens to the gateway.
--
--   local l = load.start(port, { ca = c.ca, key = key })   -- ca: by TLS
--   ...
--   l:goes_on()   -- waits for more answers
--   l:stop()      -- raises where one request has failed
--
-- HTTP/1.1 on connections that stay, HTTP/2 with several requests at once, streams of events on both: keep_asking.py.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local proc = require("gateway.support.proc")

local load = {}

local Load = {}
Load.__index = Load

local TOKENS = 20

-- ask: ca, key.
function load.start(port, ask)
  local self = setmetatable({ stop_file = proc.path("stop") }, Load)
  local argv = { "/usr/bin/env", "python3", "-B", "spec/gateway/support/keep_asking.py", port, self.stop_file,
    "tokens=" .. TOKENS, "text=" .. fleet.expect("hello there", TOKENS) }
  for name, value in pairs({ tls = ask.ca, key = ask.key }) do
    argv[#argv + 1] = name .. "=" .. value
  end
  self.process = proc.start(argv, { name = "keep_asking" })
  self:goes_on()
  return self
end

-- Answers so far, of HTTP/1.1 and of HTTP/2.
function Load:answers()
  local dots = self.process:stderr()
  return select(2, dots:gsub("%.", "")), select(2, dots:gsub("2", ""))
end

-- Until there have been more of both.
function Load:goes_on()
  local http1, http2 = self:answers()
  eventually(function()
    local http1_now, http2_now = self:answers()
    return http1_now > http1 + 20 and http2_now > http2 + 20, ("%d and %d answers"):format(http1_now, http2_now)
  end, 20, "the load goes on")
end

-- All of them were answered, and as they should be.
function Load:stop()
  assert(io.open(self.stop_file, "w")):close()
  assert(self.process:wait(90) == 0, self.process:stderr())
  local said = self.process:stdout()
  assert(said:match("^right %d+ connections %d+\n$"), said)
end

return load
