-- puppet.lua - a worker that the spec moves by hand: it takes each leg, and sends every byte of the answer, or
-- breaks off.
--
--   local p = puppet.open()
--   local x = p:take("/v1/completions")     -- waits until the gateway has sent such a request
--   x:answer(200, {}, body)                 -- or x:begin(200), x:chunk(bytes), x:finish(), x:fin(), x:rst(),
-- x:is_gone()
--
-- /abort_request is answered at once and noted in p.aborts (the rids). All puppets of a process are pumped together.

local cjson = require("cjson")
local clock = require("gateway.support.clock")
local socket = require("socket")

local puppet = {}

local Puppet, Exchange = {}, {}
Puppet.__index, Exchange.__index = Puppet, Exchange

local all = {}

function puppet.open()
  local listener = assert(socket.bind("127.0.0.1", 0, 64))
  listener:settimeout(0)
  local _, port = listener:getsockname()
  local self = setmetatable({
    listener = listener, port = tonumber(port), url = "http://127.0.0.1:" .. port, connections = {}, waiting = {},
      seen = {},
    aborts = {},
  }, Puppet)
  all[#all + 1] = self
  return self
end

-- ---- reading requests ----

local function parse_head(text)
  local headers = {}
  local method, target = text:match("^(%S+) (%S+)")
  for name, value in text:gmatch("\r\n([^:\r\n]+):[ \t]*([^\r\n]*)") do
    headers[name:lower()] = value
  end
  return { method = method, path = target:match("^[^?]*"), headers = headers }
end

local function note_request(self, connection, request)
  local x = setmetatable(request, Exchange)
  x.worker, x.connection, x.at = self, connection, clock.now()
  if x.path == "/abort_request" then
    self.aborts[#self.aborts + 1] = cjson.decode(x.body).rid
    x:answer(200, {}, "")
    return
  end
  self.waiting[#self.waiting + 1] = x
  self.seen[#self.seen + 1] = x
end

local function split_requests(self, c)
  while true do
    local _, past = c.buffer:find("\r\n\r\n", 1, true)
    if not past then
      return
    end
    local request = parse_head(c.buffer:sub(1, past))
    local length = tonumber(request.headers["content-length"] or "0")
    if #c.buffer < past + length then
      return
    end
    request.body = c.buffer:sub(past + 1, past + length)
    c.buffer = c.buffer:sub(past + length + 1)
    note_request(self, c, request)
  end
end

local function read_connection(self, c)
  if c.closed then
    return
  end
  local got, why, part = c.socket:receive(262144)
  local bytes = got or part or ""
  if #bytes > 0 then
    c.buffer = c.buffer .. bytes
    split_requests(self, c)
  end
  if why and why ~= "timeout" then
    c.closed = why
  end
end

local function pump_one(self)
  while self.listener do
    local s = self.listener:accept()
    if not s then
      break
    end
    s:settimeout(0)
    s:setoption("tcp-nodelay", true)
    self.connections[#self.connections + 1] = { socket = s, buffer = "" }
  end
  for _, c in ipairs(self.connections) do
    read_connection(self, c)
  end
end

-- Takes what has come, on all puppets.
function puppet.pump()
  for _, p in ipairs(all) do
    pump_one(p)
  end
end

-- The oldest request of this path (any, when nil) that nobody took; nil when there is none.
function Puppet:poll(path)
  puppet.pump()
  for i, x in ipairs(self.waiting) do
    if not path or x.path == path then
      return table.remove(self.waiting, i)
    end
  end
end

-- Whichever of these puppets is asked first: its request and its place in the list.
function puppet.take_any(list, path, seconds)
  local deadline = clock.now() + (seconds or 5) * clock.slowness()
  while true do
    for i, p in ipairs(list) do
      local x = p:poll(path)
      if x then
        return x, i
      end
    end
    if clock.now() > deadline then
      error("no leg came in time: " .. tostring(path), 2)
    end
    clock.nap(0.001)
  end
end

function Puppet:take(path, seconds)
  return (puppet.take_any({ self }, path, seconds))
end

-- No new connections: they are refused from here on.
function Puppet:refuse()
  if self.listener then
    self.listener:close()
    self.listener = nil
  end
end

-- From here on a connect is neither taken nor refused, until the returned function is called.
function Puppet:fill_backlog()
  self.listener:close()
  local listener = assert(socket.bind("127.0.0.1", self.port, 0))
  listener:settimeout(0)
  self.listener = nil -- nobody accepts
  local fillers = {}
  for i = 1, 2 do
    fillers[i] = socket.tcp()
    fillers[i]:settimeout(0)
    fillers[i]:connect("127.0.0.1", self.port)
  end
  return function()
    for _, s in ipairs(fillers) do
      s:close()
    end
    self.listener = listener
  end
end

function Puppet:close()
  self:refuse()
  for _, c in ipairs(self.connections) do
    c.socket:close()
  end
  self.connections = {}
end

function puppet.close_all()
  for _, p in ipairs(all) do
    p:close()
  end
  all = {}
end

-- ---- answering ----

function Exchange:send(bytes)
  local s = self.connection.socket
  s:settimeout(5)
  s:send(bytes)
  s:settimeout(0)
end

local function head_of(status, headers, last)
  local lines = { ("HTTP/1.1 %d Whatever"):format(status) }
  local typed = false
  for _, h in ipairs(headers) do
    lines[#lines + 1] = h[1] .. ": " .. h[2]
    typed = typed or h[1]:lower() == "content-type"
  end
  if not typed then
    lines[#lines + 1] = "Content-Type: application/json"
  end
  lines[#lines + 1] = last
  return table.concat(lines, "\r\n") .. "\r\n\r\n"
end

-- headers: a list of {name, value}.
function Exchange:answer(status, headers, body)
  self:send(head_of(status, headers, "Content-Length: " .. #body) .. body)
end

-- Head and the first part of a body of `length` bytes.
function Exchange:answer_part(status, part, length)
  self:send(head_of(status, {}, "Content-Length: " .. length) .. part)
end

-- An event stream's head.
function Exchange:begin()
  self:send(head_of(200, { { "Content-Type", "text/event-stream; charset=utf-8" } }, "Transfer-Encoding: chunked"))
end

function Exchange:chunk(bytes)
  self:send(("%x\r\n%s\r\n"):format(#bytes, bytes))
end

function Exchange:event(data)
  self:chunk("data: " .. data .. "\n\n")
end

function Exchange:finish()
  self:send("0\r\n\r\n")
end

-- FIN in the middle of whatever was said.
function Exchange:fin()
  self.connection.socket:shutdown("send")
end

function Exchange:rst()
  local c = self.connection
  c.socket:setoption("linger", { on = true, timeout = 0 })
  c.socket:close()
  c.closed = "here"
end

-- The gateway has closed the connection under this exchange.
function Exchange:is_gone()
  puppet.pump()
  return self.connection.closed ~= nil and self.connection.closed ~= "here"
end

return puppet
