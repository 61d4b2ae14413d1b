-- clock.lua - the monotonic clock, and naps for loops that wait on something they look at.

local ffi = require("ffi")

ffi.cdef([[
typedef struct { long tv_sec; long tv_nsec; } bt_spec_timespec;
int clock_gettime(int clock, bt_spec_timespec *at);
int nanosleep(const bt_spec_timespec *time, bt_spec_timespec *left);
]])

local clock = {}

local CLOCK_MONOTONIC = 1
local at = ffi.new("bt_spec_timespec")

-- Seconds since some moment.
function clock.now()
  ffi.C.clock_gettime(CLOCK_MONOTONIC, at)
  return tonumber(at.tv_sec) + tonumber(at.tv_nsec) * 1e-9
end

function clock.nap(seconds)
  local time = ffi.new("bt_spec_timespec", math.floor(seconds), (seconds % 1) * 1e9)
  ffi.C.nanosleep(time, nil)
end

-- How much longer everything takes here: sanitized programs are several times slower.
function clock.slowness()
  local sanitize = os.getenv("BATON_SANITIZE")
  return sanitize and sanitize ~= "" and 4 or 1
end

return clock
