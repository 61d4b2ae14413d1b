-- dns_server.lua - a name server of its own process: luajit dns_server.lua ZONE READY. UDP and TCP on one free port of
-- 127.0.0.1, which it writes to READY. The zone is a Lua table, read anew for each question, so that a spec changes it
-- by putting another file in its place (dns.lua):
--
--   { ["a.test"] = { A = { "127.0.0.1" }, AAAA = {}, SRV = { { "b.test", 8000, 0, 0 } }, ttl = 0, fault = nil } }
--
-- CNAME = "b.test": the answer has that record first, then what b.test has of the type. A name that is not there is
-- NXDOMAIN, a type that is not there an empty answer. fault: servfail, nxdomain, empty, refused, silent, garbage (bytes
-- that are no message, then ones that are a broken one), truncated (UDP is cut, TCP whole). SRV: target, port,
-- priority, weight. Each question is a line of stdout: name, type, udp or tcp, fault.

local bit = require("bit")
local socket = require("socket")

local TYPES = { [1] = "A", [28] = "AAAA", [33] = "SRV" }
local RCODES = { servfail = 2, nxdomain = 3, refused = 5 }

local zone_path, ready_path = arg[1], arg[2]

local function u16(n)
  return string.char(bit.rshift(n, 8) % 256, n % 256)
end

local function encode_name(name)
  local out = {}
  for label in name:gmatch("[^.]+") do
    out[#out + 1] = string.char(#label) .. label
  end
  return table.concat(out) .. "\0"
end

local function encode_v6(text)
  local left, right = text:match("^(.-)::(.*)$")
  local groups, tail = {}, {}
  for g in (left or text):gmatch("%x+") do
    groups[#groups + 1] = u16(tonumber(g, 16))
  end
  for g in (right or ""):gmatch("%x+") do
    tail[#tail + 1] = u16(tonumber(g, 16))
  end
  return table.concat(groups) .. ("\0\0"):rep(8 - #groups - #tail) .. table.concat(tail)
end

local encode = {
  A = function(text)
    return string.char(text:match("(%d+)%.(%d+)%.(%d+)%.(%d+)"))
  end,
  AAAA = encode_v6,
  SRV = function(r)
    return u16(r[3] or 0) .. u16(r[4] or 0) .. u16(r[2]) .. encode_name(r[1])
  end,
}

-- The question's name, type, and its bytes.
local function parse(message)
  local at, labels = 13, {}
  while message:byte(at) and message:byte(at) > 0 do
    local n = message:byte(at)
    labels[#labels + 1] = message:sub(at + 1, at + n):lower()
    at = at + n + 1
  end
  local high, low = message:byte(at + 1, at + 2)
  return table.concat(labels, "."), TYPES[high * 256 + low], message:sub(13, at + 4)
end

local function head(message, flags, rcode, answers)
  return message:sub(1, 2) .. u16(0x8180 + flags + rcode) .. u16(1) .. u16(answers) .. u16(0) .. u16(0)
end

local function answer(message, is_tcp)
  local zone = dofile(zone_path)
  local name, kind, question = parse(message)
  local entry = zone[name] or { fault = "nxdomain" }
  local fault = entry.fault
  io.write(name, " ", kind or "?", is_tcp and " tcp " or " udp ", fault or "", "\n")
  if fault == "silent" then
    return nil
  elseif fault == "garbage" then
    return head(message, 0, 0, 3) .. question .. ("\192\255"):rep(20), "no message at all"
  elseif RCODES[fault] then
    return head(message, 0, RCODES[fault], 0) .. question
  elseif fault == "truncated" and not is_tcp then
    return head(message, 0x0200, 0, 0) .. question
  end
  local records, owner, has = {}, "\192\12", entry
  local function put(code, data)
    records[#records + 1] = owner .. u16(code) .. u16(1) .. u16(0) .. u16(entry.ttl or 0) .. u16(#data) .. data
  end
  if entry.CNAME and not fault then
    put(5, encode_name(entry.CNAME))
    owner, has = encode_name(entry.CNAME), zone[entry.CNAME] or {}
  end
  for _, value in ipairs(fault ~= "empty" and has[kind] or {}) do
    put(kind == "A" and 1 or kind == "AAAA" and 28 or 33, encode[kind](value))
  end
  return head(message, 0, 0, #records) .. question .. table.concat(records)
end

local function serve_udp(udp)
  local message, ip, port = udp:receivefrom()
  local out, before = answer(message, false)
  if before then
    udp:sendto(before, ip, port)
  end
  if out then
    udp:sendto(out, ip, port)
  end
end

local function serve_tcp(listener)
  local client = listener:accept()
  client:settimeout(2)
  local size = client:receive(2)
  local message = size and client:receive(size:byte(1) * 256 + size:byte(2))
  local out = message and answer(message, true)
  if out then
    client:send(u16(#out) .. out)
  end
  client:close()
end

local function listen()
  for _ = 1, 100 do
    local udp = assert(socket.udp())
    assert(udp:setsockname("127.0.0.1", 0))
    local _, port = udp:getsockname()
    local tcp = socket.bind("127.0.0.1", port)
    if tcp then
      return udp, tcp, port
    end
    udp:close()
  end
  error("no port that is free for UDP and TCP")
end

io.stdout:setvbuf("no")
local udp, tcp, port = listen()
local file = assert(io.open(ready_path .. ".tmp", "w"))
file:write(port, "\n")
file:close()
assert(os.rename(ready_path .. ".tmp", ready_path))
while true do
  for _, ready in ipairs((socket.select({ udp, tcp }))) do
    if ready == udp then
      serve_udp(udp)
    else
      serve_tcp(tcp)
    end
  end
end
