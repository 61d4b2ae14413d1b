-- allocations.lua - what a gateway asks of malloc between two moments, by a counter that it is given (allocations.c).

local ffi = require("ffi")
local fleet = require("gateway.support.fleet")
local proc = require("gateway.support.proc")

ffi.cdef([[
typedef struct { uint64_t is_armed, taken, freed; } bt_spec_allocations;
void *mmap(void *at, size_t size, int protection, int flags, int fd, long offset);
int open(const char *path, int flags, ...);
]])

local allocations = {}

local Counter = {}
Counter.__index = Counter

local O_RDWR, PROT_READ_WRITE, MAP_SHARED = 2, 3, 1

-- A counter for one process: its `env` goes to proc.start.
function allocations.new()
  local path = proc.write("allocations", ("\0"):rep(ffi.sizeof("bt_spec_allocations")))
  local fd = ffi.C.open(path, O_RDWR)
  local memory = ffi.C.mmap(nil, ffi.sizeof("bt_spec_allocations"), PROT_READ_WRITE, MAP_SHARED, fd, 0)
  assert(fd >= 0 and ffi.cast("intptr_t", memory) ~= -1, "no shared memory for the counter")
  ffi.C.close(fd)
  local build = fleet.binary("BATON_BIN", "baton"):match("^(.*)/[^/]*$")
  return setmetatable({
    path = path,
    counts = ffi.cast("bt_spec_allocations *", memory),
    env = { LD_PRELOAD = build .. "/bin/libspec_allocations.so", BATON_SPEC_ALLOCATIONS = path },
  }, Counter)
end

-- Calls that took memory, and that gave some back, while step() ran.
function Counter:count(step)
  self.counts.taken, self.counts.freed = 0, 0
  self.counts.is_armed = 1
  step()
  self.counts.is_armed = 0
  return tonumber(self.counts.taken), tonumber(self.counts.freed)
end

-- Who made the last of the calls that were counted, by function.
function Counter:stacks()
  local binary = fleet.binary("BATON_BIN", "baton")
  local out = {}
  for line in (proc.read(self.path .. ".stacks") or ""):gmatch("[^\n]+") do
    local object, offset = line:match("([^/]*)%(%+?(0x%x+)%)")
    if object == binary:match("[^/]*$") then
      local pipe = io.popen(("addr2line -f -s -e %s %s 2>/dev/null"):format(binary, offset))
      line = "  " .. (pipe:read("*a"):gsub("\n", " "))
      pipe:close()
    end
    out[#out + 1] = line
  end
  return table.concat(out, "\n")
end

return allocations
