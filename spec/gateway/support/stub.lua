-- stub.lua - a worker whose every byte the spec writes. It is served while the spec waits inside http.lua.
--
-- answer(request) returns the bytes of the whole answer, head included; or a list of pieces, each sent in a write of
-- its own, which may end in stub.CLOSE or stub.RESET; or nil for silence. What health checks and
-- reports ask is answered before it is asked.

local http = require("gateway.support.http")
local socket = require("socket")

local stub = { CLOSE = {}, RESET = {} }

local Stub = {}
Stub.__index = Stub

function stub.start(answer)
  local listener = assert(socket.bind("127.0.0.1", 0))
  listener:settimeout(0)
  local _, port = listener:getsockname()
  local self = setmetatable(
    { listener = listener, port = tonumber(port), url = "http://127.0.0.1:" .. port, answer = answer, peers = {},
      requests = {} },
    Stub)
  http.background[#http.background + 1] = self
  return self
end

function Stub:stop()
  for i, one in ipairs(http.background) do
    if one == self then
      table.remove(http.background, i)
      break
    end
  end
  self.listener:close()
  for peer in pairs(self.peers) do
    peer.socket:close()
  end
end

-- An ordinary answer.
function stub.reply(status, body, headers)
  local lines = { ("HTTP/1.1 %d Whatever"):format(status) }
  local typed = false
  for name, value in pairs(headers or {}) do
    lines[#lines + 1] = name .. ": " .. value
    typed = typed or name:lower() == "content-type"
  end
  if not typed then
    lines[#lines + 1] = "content-type: application/json"
  end
  lines[#lines + 1] = "content-length: " .. #body
  return table.concat(lines, "\r\n") .. "\r\n\r\n" .. body
end

-- The head of a stream, then each piece as one chunk.
function stub.stream(pieces, headers)
  local out = { "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n" .. (headers or "")
    .. "transfer-encoding: chunked\r\n\r\n" }
  for _, piece in ipairs(pieces) do
    out[#out + 1] = ("%x\r\n%s\r\n"):format(#piece, piece)
  end
  out[#out + 1] = "0\r\n\r\n"
  return out
end

local function take_request(peer)
  local to, past = peer.buffer:find("\r\n\r\n", 1, true)
  if not to then
    return nil
  end
  local head = peer.buffer:sub(1, to - 1)
  local length = tonumber(("\r\n" .. head:lower()):match("\r\ncontent%-length: *(%d+)")) or 0
  if #peer.buffer < past + length then
    return nil
  end
  local request = { head = head, body = peer.buffer:sub(past + 1, past + length), headers = {} }
  request.method, request.target = head:match("^(%S+) (%S+)")
  for name, value in (head .. "\r\n"):gmatch("\r\n([^:\r\n]+): *([^\r\n]*)") do
    request.headers[name:lower()] = value
  end
  peer.buffer = peer.buffer:sub(past + length + 1)
  return request
end

-- vLLM's optional routes, which health checks ask for.
local POST_ONLY = { ["/inference/v1/generate"] = true, ["/v1/completions/render"] = true }

local function respond(self, peer, request)
  local out
  if request.target == "/health" then
    out = stub.reply(200, "")
  elseif request.method == "GET" and (request.target == "/metrics" or request.target:find("^/v1/loads")) then
    out = stub.reply(404, "")
  elseif request.method == "GET" and POST_ONLY[request.target] then
    out = stub.reply(405, "")
  else
    self.requests[#self.requests + 1] = request
    self.last_peer = peer -- its queue takes more pieces from the spec
    out = self.answer(request)
  end
  for _, piece in ipairs(type(out) == "table" and out or { out }) do
    table.insert(peer.queue, piece)
  end
end

local function close(self, peer)
  peer.socket:close()
  self.peers[peer] = nil
end

-- One piece each time, so that each arrives alone.
local function send_piece(self, peer)
  local piece = table.remove(peer.queue, 1)
  if piece == stub.CLOSE or piece == stub.RESET then
    if piece == stub.RESET then
      peer.socket:setoption("linger", { on = true, timeout = 0 })
    end
    close(self, peer)
  elseif piece then
    peer.socket:settimeout(5)
    peer.socket:send(piece)
    peer.socket:settimeout(0)
  end
end

function Stub:pump()
  local s = self.listener:accept()
  while s do
    s:settimeout(0)
    s:setoption("tcp-nodelay", true)
    self.peers[{ socket = s, buffer = "", queue = {} }] = true
    s = self.listener:accept()
  end
  local peers = {}
  for peer in pairs(self.peers) do
    peers[#peers + 1] = peer
  end
  for _, peer in ipairs(peers) do
    local all, why, part = peer.socket:receive(65536)
    peer.buffer = peer.buffer .. (all or part or "")
    local request = take_request(peer)
    if request then
      respond(self, peer, request)
    end
    send_piece(self, peer)
    if why == "closed" and self.peers[peer] and #peer.queue == 0 then
      close(self, peer)
    end
  end
end

return stub
