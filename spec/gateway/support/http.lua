-- http.lua - a small HTTP/1.1 client that hides nothing: bytes in, bytes out, times of arrival, FIN and RST.
--
-- A connection is pumped without blocking; the waiting calls pump one or several until something is there.

local clock = require("gateway.support.clock")
local socket = require("socket")

-- background: things with a pump() that are served while a spec waits here (stub.lua).
local http = { background = {} }

local SECONDS = 10 -- of a connect or a send
local PATIENCE = 30 -- of an answer; only what has failed waits for so long

-- Waits until one of the sockets can be read, serving what lives in the background.
local function doze(sockets, seconds)
  if #http.background == 0 then
    socket.select(sockets, nil, seconds)
    return
  end
  for _, one in ipairs(http.background) do
    one:pump()
  end
  socket.select(sockets, nil, math.min(seconds, 0.001))
end

-- ---- answers ----

local Answer = {}
Answer.__index = Answer

local function new_answer(method)
  return setmetatable({ method = method, state = "head", buffer = "", pieces = {}, headers = {}, body = "" }, Answer)
end

-- Value of a header, whatever its case; the first of several.
function Answer:header(name)
  return self:all(name)[1]
end

function Answer:all(name)
  local out = {}
  for _, h in ipairs(self.headers) do
    if h[1]:lower() == name:lower() then
      out[#out + 1] = h[2]
    end
  end
  return out
end

local function parse_head(self, head)
  local lines = {}
  for line in (head .. "\r\n"):gmatch("(.-)\r\n") do
    lines[#lines + 1] = line
  end
  self.status, self.reason = lines[1]:match("^HTTP/1%.%d (%d%d%d) ?(.*)$")
  self.status = assert(tonumber(self.status), "no status line: " .. lines[1])
  self.headers = {}
  for i = 2, #lines do
    local name, value = lines[i]:match("^([^:]+):[ \t]*(.-)[ \t]*$")
    if name then
      self.headers[#self.headers + 1] = { name, value }
    end
  end
end

local function add_body(self, bytes)
  if #bytes > 0 then
    self.pieces[#self.pieces + 1] = { bytes = bytes, at = clock.now() }
    self.body = self.body .. bytes
  end
end

local function finish(self)
  self.done = true
  self.ended_at = clock.now()
end

local function begin_body(self)
  local length = tonumber(self:header("content-length"))
  if self.status >= 100 and self.status < 200 then
    self.interim = (self.interim or 0) + 1
    self.state = "head"
  elseif self.method == "HEAD" or self.status == 204 or self.status == 304 or length == 0 then
    finish(self)
  elseif (self:header("transfer-encoding") or ""):lower() == "chunked" then
    self.state, self.chunked = "chunk_size", true
  elseif length then
    self.state, self.left = "length", length
  else
    self.state = "until_close"
  end
end

local steps = {}

function steps.head(self)
  local to, past = self.buffer:find("\r\n\r\n", 1, true)
  if not to then
    return false
  end
  self.head_at = clock.now()
  parse_head(self, self.buffer:sub(1, to - 1))
  self.buffer = self.buffer:sub(past + 1)
  begin_body(self)
  return true
end

function steps.length(self)
  local bytes = self.buffer:sub(1, self.left)
  self.buffer = self.buffer:sub(#bytes + 1)
  self.left = self.left - #bytes
  add_body(self, bytes)
  if self.left == 0 then
    finish(self)
  end
  return #bytes > 0
end

function steps.until_close(self)
  local bytes = self.buffer
  self.buffer = ""
  add_body(self, bytes)
  return #bytes > 0
end

function steps.chunk_size(self)
  local line, past = self.buffer:match("^(%x+)[^\r\n]*\r\n()")
  if not line then
    return false
  end
  self.left = tonumber(line, 16)
  self.buffer = self.buffer:sub(past)
  self.state = self.left == 0 and "trailer" or "chunk"
  self.chunk = ""
  return true
end

function steps.chunk(self)
  local bytes = self.buffer:sub(1, self.left)
  self.buffer = self.buffer:sub(#bytes + 1)
  self.left = self.left - #bytes
  add_body(self, bytes)
  if self.left == 0 then
    self.state = "chunk_end"
  end
  return #bytes > 0 or self.left == 0
end

function steps.chunk_end(self)
  if #self.buffer < 2 then
    return false
  end
  assert(self.buffer:sub(1, 2) == "\r\n", "no CRLF after a chunk")
  self.buffer = self.buffer:sub(3)
  self.state = "chunk_size"
  return true
end

function steps.trailer(self)
  local line, past = self.buffer:match("^(.-)\r\n()")
  if not line then
    return false
  end
  self.buffer = self.buffer:sub(past)
  if line == "" then
    finish(self)
  end
  return true
end

function Answer:feed(bytes)
  self.buffer = self.buffer .. bytes
  while not self.done and steps[self.state](self) do -- luacheck: ignore 542
  end
end

-- The connection ended. An answer that is not whole is `broken`.
function Answer:close()
  if self.done then
    return
  end
  if self.state == "until_close" then
    finish(self)
  else
    self.broken = true
    self.ended_at = clock.now()
  end
end

-- SSE events so far: { event =, data =, at = time of the piece that completed it }; comments are { comment = }.
function Answer:events()
  local out, text = {}, ""
  for _, piece in ipairs(self.pieces) do
    text = text .. piece.bytes:gsub("\r\n", "\n")
    while true do
      local to, past = text:find("\n\n", 1, true)
      if not to then
        break
      end
      local event = { at = piece.at }
      for line in (text:sub(1, to - 1) .. "\n"):gmatch("(.-)\n") do
        local field, value = line:match("^(%w*): ?(.*)$")
        if field == "" then
          event.comment = value
        elseif field == "data" and event.data then
          event.data = event.data .. "\n" .. value
        elseif field then
          event[field] = value
        end
      end
      out[#out + 1] = event
      text = text:sub(past + 1)
    end
  end
  return out
end

-- Data of all events that carry some.
function Answer:data()
  local out = {}
  for _, event in ipairs(self:events()) do
    out[#out + 1] = event.data
  end
  return out
end

-- ---- connections ----

local Connection = {}
Connection.__index = Connection

local open = setmetatable({}, { __mode = "k" }) -- connections that nobody has closed here

-- from: the address that the other side shall see, one of 127.0.0.0/8.
function http.connect(port, host, from)
  local s = assert(socket.tcp4())
  s:settimeout(SECONDS)
  if from then
    assert(s:bind(from, 0))
  end
  local ok, why = s:connect(host or "127.0.0.1", port)
  if not ok then
    s:close()
    error(("connect to %s:%d: %s"):format(host or "127.0.0.1", port, why), 2)
  end
  s:setoption("tcp-nodelay", true)
  s:settimeout(0)
  local c = setmetatable({ socket = s, port = port, backlog = "" }, Connection)
  open[c] = true
  return c
end

-- Closes what is still open to a port: a gateway that ends gives idle clients two seconds to speak.
function http.hang_up(port)
  for c in pairs(open) do
    if c.port == port then
      c:close()
    end
  end
end

function Connection:send(bytes)
  self.socket:settimeout(SECONDS)
  local ok, why = self.socket:send(bytes)
  self.socket:settimeout(0)
  return ok, why
end

local function each_header(headers, put)
  for _, h in ipairs(headers) do
    put(h[1], h[2])
  end
  for name, value in pairs(headers) do
    if type(name) == "string" then
      put(name, value)
    end
  end
end

-- ask: method, path, headers (a map, or a list of {name, value} where order or doubles matter), body, to, from.
function http.head_of(ask, port)
  local lines = { ("%s %s HTTP/1.1"):format(ask.method or (ask.body and "POST" or "GET"), ask.path) }
  local seen = {}
  local function put(name, value)
    seen[name:lower()] = true
    lines[#lines + 1] = name .. ": " .. value
  end
  each_header(ask.headers or {}, put)
  if not seen["host"] then
    table.insert(lines, 2, "Host: 127.0.0.1:" .. port)
  end
  if ask.body and not seen["content-length"] and not seen["transfer-encoding"] then
    put("Content-Length", #ask.body)
  end
  if ask.body and not seen["content-type"] then
    put("Content-Type", "application/json")
  end
  return table.concat(lines, "\r\n") .. "\r\n\r\n"
end

-- Sends a request; its answer is self.answer.
function Connection:ask(ask)
  self.answer = new_answer(ask.method or (ask.body and "POST" or "GET"))
  self.asked_at = clock.now()
  self.answer.asked_at = self.asked_at
  local ok, why = self:send(http.head_of(ask, self.port) .. (ask.body or ""))
  if not ok and why ~= "closed" then
    error("send: " .. tostring(why), 2)
  end
  return self.answer
end

-- For bytes that no ask() can say.
function Connection:expect_answer(method)
  self.answer = new_answer(method or "POST")
  return self.answer
end

-- Takes what is there. False when the other side has closed.
function Connection:pump()
  if self.closed then
    return false
  end
  local all, why, part = self.socket:receive(262144)
  local bytes = all or part or ""
  if #bytes > 0 then
    self.answer:feed(bytes)
  end
  if why == "closed" or (why and why ~= "timeout") then
    self.closed = why
    self.answer:close()
    return false
  end
  return true
end

local function is_over(connection)
  return connection.answer.done or connection.answer.broken
end

-- Pumps until done(answer) is true; the default is the end of the answer.
function Connection:wait(done, seconds)
  local deadline = clock.now() + (seconds or PATIENCE) * clock.slowness()
  local answer = self.answer
  while true do
    self:pump()
    if done and done(answer) then
      return answer
    end
    if is_over(self) then
      if done then
        error("the answer ended before what was waited for: " .. tostring(answer.status) .. " " .. answer.body, 2)
      end
      return answer
    end
    local left = deadline - clock.now()
    if left <= 0 then
      error(("no whole answer in time; status %s, body so far: %s"):format(tostring(answer.status), answer.body), 2)
    end
    doze({ self.socket }, math.min(left, 1))
  end
end

function Connection:wait_head(seconds)
  return self:wait(function(answer)
    return answer.status ~= nil
  end, seconds)
end

-- Waits for `count` events with data.
function Connection:wait_events(count, seconds)
  return self:wait(function(answer)
    return #answer:data() >= count
  end, seconds)
end

-- FIN.
function Connection:close()
  self.socket:close()
  self.closed = self.closed or "here"
  open[self] = nil
end

-- RST.
function Connection:reset()
  self.socket:setoption("linger", { on = true, timeout = 0 })
  self:close()
end

-- ---- whole requests ----

-- Connects and sends; the caller waits.
function http.start(port, ask)
  local c = http.connect(port, ask.to, ask.from)
  c:ask(ask)
  return c
end

-- One request, one answer.
function http.request(port, ask)
  local c = http.start(port, ask)
  local ok, answer = pcall(c.wait, c, nil, ask.seconds)
  c:close()
  if not ok then
    error(answer, 2)
  end
  return answer
end

function http.get(port, path, headers)
  return http.request(port, { path = path, headers = headers })
end

function http.post(port, path, body, headers)
  return http.request(port, { path = path, body = body, headers = headers })
end

-- Many requests at once; their answers in the same order.
function http.together(port, asks, seconds)
  local deadline = clock.now() + (seconds or PATIENCE) * clock.slowness()
  local connections, answers = {}, {}
  for i, ask in ipairs(asks) do
    connections[i] = http.start(port, ask)
  end
  while true do
    local waiting = {}
    for _, c in ipairs(connections) do
      if not is_over(c) then
        c:pump()
        if not is_over(c) then
          waiting[#waiting + 1] = c.socket
        end
      end
    end
    if #waiting == 0 then
      break
    end
    if clock.now() > deadline then
      error(("%d of %d answers are missing"):format(#waiting, #asks), 2)
    end
    doze(waiting, 0.5)
  end
  for i, c in ipairs(connections) do
    answers[i] = c.answer
    c:close()
  end
  return answers
end

return http
