-- relay.lua - a server that is far away: a process between it and its clients that keeps every answer back for a while.
--
--   local far = relay.start(r.port)          -- far.port: in place of r.port
--   far:delay(300)                           -- ms, from now on; for answers that are on their way too
--
-- Questions go through at once, so what is answered late has happened all the same. Answers stay in order.

local socket = require("socket")

local relay = {}
local Relay = {}
Relay.__index = Relay

-- ---- in a spec ----

local function program()
  for dir in (os.getenv("PATH") or ""):gmatch("[^:]+") do
    local file = io.open(dir .. "/luajit", "r")
    if file then
      file:close()
      return dir .. "/luajit"
    end
  end
  error("no luajit in PATH", 3)
end

function relay.start(port)
  local eventually = require("gateway.support.eventually")
  local proc = require("gateway.support.proc")
  local ready = proc.path("relay.ready")
  local this = debug.getinfo(1, "S").source:sub(2)
  local process = proc.start({ program(), this, ready, port }, { name = "relay" })
  local text = eventually(function()
    local said = proc.read(ready)
    return said and said:find("\n", 1, true) and said
  end, 10, "the relay listens")
  local self = setmetatable({ process = process }, Relay)
  local control
  self.port, control = text:match("(%d+) (%d+)")
  self.port = tonumber(self.port)
  self.control = assert(socket.connect("127.0.0.1", tonumber(control)))
  return self
end

function Relay:delay(ms)
  assert(self.control:send(ms .. "\n"))
  assert(self.control:receive("*l") == "ok")
end

-- ---- the process ----

local delay = 0 -- seconds
local flows = {} -- by the socket that is read: { to = a socket, is_late =, queue = { { at =, bytes = } } }

local function listen()
  local s = assert(socket.bind("127.0.0.1", 0))
  local _, port = s:getsockname()
  return s, port
end

local function link(client, port)
  local server = socket.connect("127.0.0.1", port)
  if not server then
    client:close()
    return
  end
  for _, s in ipairs({ client, server }) do
    s:setoption("tcp-nodelay", true)
    s:settimeout(0)
  end
  flows[client] = { to = server, queue = {} }
  flows[server] = { to = client, queue = {}, is_late = true }
end

local function unlink(from)
  local to = flows[from].to
  flows[from], flows[to] = nil, nil
  from:close()
  to:close()
end

local function take(from)
  local all, why, part = from:receive(65536)
  local bytes = all or part
  local flow = flows[from]
  if bytes and #bytes > 0 then
    flow.queue[#flow.queue + 1] = { at = socket.gettime(), bytes = bytes }
  end
  flow.is_over = flow.is_over or why == "closed"
end

-- Seconds until more is due.
local function send_due(from)
  local flow = flows[from]
  local late = flow.is_late and delay or 0
  while flow.queue[1] do
    local left = flow.queue[1].at + late - socket.gettime()
    if left > 0 then
      return left
    end
    flow.to:settimeout(5)
    flow.to:send(table.remove(flow.queue, 1).bytes)
    flow.to:settimeout(0)
  end
  if flow.is_over then
    unlink(from)
  end
  return 1
end

local function keys(map)
  local list = {}
  for key in pairs(map) do
    list[#list + 1] = key
  end
  return list
end

local function turn(listener, control, wait, port)
  local list = { listener, control }
  for from, flow in pairs(flows) do
    if not flow.is_over then
      list[#list + 1] = from
    end
  end
  for _, s in ipairs((socket.select(list, nil, wait))) do
    if s == listener then
      link(listener:accept(), port)
    elseif s == control then
      delay = tonumber((assert(control:receive("*l")))) / 1000
      control:send("ok\n")
    elseif flows[s] then
      take(s)
    end
  end
  local next_due = 1
  for _, from in ipairs(keys(flows)) do
    if flows[from] then
      next_due = math.min(next_due, send_due(from))
    end
  end
  return next_due
end

local function main(ready, port)
  local listener, listens = listen()
  local control_listener, controlled = listen()
  local file = assert(io.open(ready, "w"))
  file:write(listens, " ", controlled, "\n")
  file:close()
  local control, wait = assert(control_listener:accept()), 1
  while true do
    wait = turn(listener, control, wait, port)
  end
end

if arg and arg[0] and arg[0]:find("relay%.lua$") then
  main(arg[1], tonumber(arg[2]))
end

return relay
