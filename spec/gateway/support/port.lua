-- port.lua - ports of servers that go away and come back on the same one.
--
-- The kernel hands out ports of a range of its own to everybody who connects or binds port 0, so one of those may be
-- somebody else's when its server comes back. These lie below that range.

local socket = require("socket")

local port = {}

local LOW, HIGH = 10000, 32767 -- HIGH: where nothing says otherwise
local TRIES = 100
local is_seeded = false

local function highest()
  local file = io.open("/proc/sys/net/ipv4/ip_local_port_range", "r")
  local first = file and file:read("*n")
  if file then
    file:close()
  end
  return first and first - 1 or HIGH
end

-- Those from `first` on are free now, on 127.0.0.1.
local function are_free(first, count)
  for number = first, first + count - 1 do
    local listener = socket.bind("127.0.0.1", number)
    if not listener then
      return false
    end
    listener:close()
  end
  return true
end

-- One that is free now, or the first of so many in a row.
function port.free(count)
  if not is_seeded then
    math.randomseed(math.floor(socket.gettime() * 1e6) % 2 ^ 31)
    is_seeded = true
  end
  local top = math.max(highest(), LOW)
  for _ = 1, TRIES do
    local number = math.random(LOW, top)
    if are_free(number, count or 1) then
      return number
    end
  end
  error("no free port", 2)
end

return port
