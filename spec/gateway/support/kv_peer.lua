-- kv_peer.lua - somebody on the KV control plane whose every byte the spec writes: at the gateway's --transfer-port
-- (transport/wire/control.h) or at an agent's own port (transport/wire/frame.h).
--
--   local who = kv_peer.dial(port, { from = "127.0.0.2" })
--   who:say_gateway({ worker = "p0", rank = 0, ranks = 1, token = "t" })
--   local m = who:hear()         -- { type =, payload = }, or nil: hung up on
--
-- With a token it proves it first, and seals what it says (transport/wire/auth.h). prove() alone says what has been
-- heard and said, for who says it again.
--
-- Types: kv_peer.WELCOME, REFUSE, PING of a gateway; HELLO, CLOSE, REGION, LAYOUT of an agent.

local clock = require("gateway.support.clock")
local hmac = require("gateway.support.hmac")
local socket = require("socket")

local kv_peer = { WELCOME = 80, REFUSE = 81, PING = 72, HELLO = 1, CLOSE = 2, REGION = 4, LAYOUT = 6 }

local CONTROL_HELLO = 64
local GREET, CHALLENGE, PROOF, ANSWER = 112, 113, 114, 115
local SEAL_BYTES = 16
kv_peer.GREET, kv_peer.CHALLENGE = GREET, CHALLENGE
local SECONDS = 10

local Peer = {}
Peer.__index = Peer

-- ---- bytes ----

local function u16(n)
  return string.char(n % 256, math.floor(n / 256) % 256)
end

local function u32(n)
  return u16(n % 65536) .. u16(math.floor(n / 65536))
end

local function text(s)
  return u32(#s) .. s
end

local function read_u32(bytes, at)
  local a, b, c, d = bytes:byte(at, at + 3)
  return a + 256 * (b + 256 * (c + 256 * d))
end

local function frame(type, payload)
  return u32(#payload) .. string.char(type, 0, 0, 0) .. payload
end

-- ---- the connection ----

-- ask: from (an address of this host), host.
function kv_peer.dial(port, ask)
  ask = ask or {}
  local s = assert(socket.tcp())
  if ask.from then
    assert(s:bind(ask.from, 0))
  end
  s:settimeout(SECONDS * clock.slowness())
  assert(s:connect(ask.host or "127.0.0.1", port))
  return setmetatable({ socket = s }, Peer)
end

function Peer:close()
  self.socket:close()
end

function Peer:send(bytes)
  return self.socket:send(bytes)
end

local function seal(side, bytes)
  local number = side.count
  side.count = number + 1
  return hmac(side.key, u32(number) .. u32(0) .. bytes):sub(1, SEAL_BYTES)
end

function Peer:say(type, payload)
  local bytes = frame(type, payload)
  return self:send(bytes .. (self.out and seal(self.out, bytes) or ""))
end

-- The next message, pings left out; nil when the connection is over.
function Peer:hear()
  if self.heard then
    local m = self.heard
    self.heard = nil
    return m
  end
  while true do
    local head, why = self.socket:receive(8)
    if not head then
      assert(why == "closed", why)
      return nil
    end
    local n = read_u32(head, 1)
    local payload = n > 0 and assert(self.socket:receive(n)) or ""
    local type = head:byte(5)
    if self.into then
      assert(self.socket:receive(SEAL_BYTES) == seal(self.into, head .. payload), "its seal is wrong")
    end
    if type ~= kv_peer.PING and type ~= 3 then
      return { type = type, payload = payload }
    end
  end
end

-- ---- the token ----

-- purpose: "G" at a gateway, "P" at an agent. ask: nonce, proof (instead of the right one). The gateway's or agent's
-- answer, or its refusal; what was said: { nonce =, proof = }.
function Peer:prove(token, purpose, ask)
  ask = ask or {}
  local nonce = ask.nonce or assert(io.open("/dev/urandom", "rb")):read(32)
  self:send(frame(GREET, u32(0x414b5442) .. string.char(1) .. purpose .. nonce))
  local m = assert(self:hear(), "hung up on after its greeting")
  if m.type ~= CHALLENGE then
    return m
  end
  local function derive(label)
    return hmac(token, "baton-kv auth 1" .. label .. purpose .. nonce .. m.payload)
  end
  local proof = ask.proof or derive("D")
  self:send(frame(PROOF, proof))
  local answer = assert(self:hear(), "hung up on after its proof")
  if answer.type == ANSWER then
    assert(answer.payload == derive("A"), "it has another token")
    self.out, self.into = { key = derive("d"), count = 0 }, { key = derive("a"), count = 0 }
  end
  return answer, { nonce = nonce, proof = proof }
end

-- What it proves, if anything. True: the rest may be said.
local function prove(self, token, purpose)
  if not token or token == "" then
    return true
  end
  local answer = self:prove(token, purpose)
  if answer.type == ANSWER then
    return true
  end
  self.heard = answer
end

-- ---- at a gateway ----

-- hello: worker; rank, ranks, incarnation, name, host, port, token.
function Peer:say_gateway(hello)
  if not prove(self, hello.token, "G") then
    return
  end
  self:say(CONTROL_HELLO, u32(0x474b5442) .. u32(1) .. u32(hello.rank or 0) .. u32(hello.ranks or 1) .. u32(8)
    .. u32(4711) .. u32(hello.incarnation or 77) .. u32(0) .. text(hello.name or "mallory") .. text(hello.worker)
    .. text(hello.host or "127.0.0.1") .. u16(hello.port or 9) .. text(""))
end

-- { ms to stay away, why } of a REFUSE.
function kv_peer.refusal(m)
  local n = read_u32(m.payload, 5)
  return read_u32(m.payload, 1), m.payload:sub(9, 8 + n)
end

-- ---- at an agent ----

function Peer:say_agent(token)
  if not prove(self, token, "P") then
    return
  end
  self:say(kv_peer.HELLO, u32(0x564b5442) .. u32(1) .. u32(77) .. u32(0) .. u32(4711) .. string.char(0)
    .. text("mallory") .. text("") .. text("nowhere") .. u32(0))
end

-- Why it is closed.
function kv_peer.reason(m)
  return m.payload:sub(6, 5 + read_u32(m.payload, 2))
end

-- What it says until it hangs up: the types, as text, and its last message.
function Peer:hear_all()
  local types, last = {}, nil
  for m in function()
    return self:hear()
  end do
    types[#types + 1], last = m.type, m
  end
  return table.concat(types, " "), last
end

return kv_peer
