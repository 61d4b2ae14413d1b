-- hmac.lua - HMAC-SHA256 (RFC 2104, FIPS 180-4) in Lua, so that a spec proves tokens without the code that it is about.

local bit = require("bit")
local band, bnot, bxor, ror, rshift, tobit = bit.band, bit.bnot, bit.bxor, bit.ror, bit.rshift, bit.tobit

-- The first 32 bits of the fractional part of a root of a prime. The whole part is taken off before it is scaled:
-- doubles hold 53 bits.
local function fraction(x)
  return tobit(math.floor((x - math.floor(x)) * 4294967296))
end

local ROUND, START = {}, {}
do
  local candidate = 2
  while #ROUND < 64 do
    local is_prime = true
    for i = 2, math.floor(math.sqrt(candidate)) do
      is_prime = is_prime and candidate % i ~= 0
    end
    if is_prime then
      ROUND[#ROUND + 1] = fraction(candidate ^ (1 / 3))
      if #START < 8 then
        START[#START + 1] = fraction(math.sqrt(candidate))
      end
    end
    candidate = candidate + 1
  end
end

local function word(n)
  return string.char(band(rshift(n, 24), 255), band(rshift(n, 16), 255), band(rshift(n, 8), 255), band(n, 255))
end

local function take_block(h, s, at)
  local w = {}
  for i = 1, 16 do
    local a, b, c, d = s:byte(at + 4 * i - 4, at + 4 * i - 1)
    w[i] = tobit(a * 16777216 + b * 65536 + c * 256 + d)
  end
  for i = 17, 64 do
    local x, y = w[i - 15], w[i - 2]
    w[i] = tobit(w[i - 16] + bxor(ror(x, 7), ror(x, 18), rshift(x, 3)) + w[i - 7]
      + bxor(ror(y, 17), ror(y, 19), rshift(y, 10)))
  end
  local v = { unpack(h) }
  for i = 1, 64 do
    local a, e = v[1], v[5]
    local t1 = v[8] + bxor(ror(e, 6), ror(e, 11), ror(e, 25)) + bxor(band(e, v[6]), band(bnot(e), v[7])) + ROUND[i]
      + w[i]
    local t2 = bxor(ror(a, 2), ror(a, 13), ror(a, 22)) + bxor(band(a, v[2]), band(a, v[3]), band(v[2], v[3]))
    v = { tobit(t1 + t2), a, v[2], v[3], tobit(v[4] + t1), e, v[6], v[7] }
  end
  for i = 1, 8 do
    h[i] = tobit(h[i] + v[i])
  end
end

local function sha256(s)
  local h = { unpack(START) }
  local all = s .. "\128" .. ("\0"):rep((55 - #s) % 64) .. "\0\0\0\0" .. word(#s * 8)
  for at = 1, #all, 64 do
    take_block(h, all, at)
  end
  local out = {}
  for i = 1, 8 do
    out[i] = word(h[i])
  end
  return table.concat(out)
end

local function pad(key, byte)
  return (key:gsub(".", function(c)
    return string.char(bxor(c:byte(), byte))
  end))
end

return function(key, message)
  key = #key > 64 and sha256(key) or key
  key = key .. ("\0"):rep(64 - #key)
  return sha256(pad(key, 0x5c) .. sha256(pad(key, 0x36) .. message))
end
