-- successors.lua - processes that take a gateway's place (SIGUSR2), one behind the other.
--
--   local line = successors.of(process, ready_file)
--   line:upgrade()                    -- returns when the next one serves
--   local code = line:wait_end(1)     -- of the first one
--   line:clean()

local eventually = require("gateway.support.eventually")
local ffi = require("ffi")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PR_SET_CHILD_SUBREAPER = 36

local successors = {}

local Line = {}
Line.__index = Line

-- Orphans become ours, so that they can be waited for.
function successors.of(process, ready_file)
  ffi.C.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
  return setmetatable({ first = process, ready_file = ready_file, pids = { process.pid } }, Line)
end

function Line:last()
  return self.pids[#self.pids]
end

-- The one that serves is asked to upgrade; returns when its successor has said that it serves.
function Line:upgrade()
  ffi.C.kill(self:last(), proc.SIGUSR2)
  self:wait_next()
end

function Line:wait_next()
  local before = self:last()
  eventually(function()
    local text = proc.read(self.ready_file)
    local pid = text and json.decode(text).pid
    if pid and pid ~= before then
      self.pids[#self.pids + 1] = pid
      return true
    end
    return false, self.first:stderr()
  end, 20, "a successor serves")
end

local function has_ended(pid)
  local status = ffi.new("int[1]")
  return ffi.C.waitpid(pid, status, 1) == pid and status[0] or nil
end

function successors.is_gone(pid)
  return ffi.C.kill(pid, 0) ~= 0 or has_ended(pid) ~= nil
end

-- Of the nth one: its status.
function Line:wait_end(n)
  if n == 1 then
    return (self.first:wait(30))
  end
  local pid = self.pids[n]
  return eventually(function()
    local status = has_ended(pid)
    return status and { status }, "it lives"
  end, 30, "process " .. pid .. " ends")[1]
end

function Line:clean()
  for i = 2, #self.pids do
    ffi.C.kill(self.pids[i], proc.SIGKILL)
    eventually(function()
      return successors.is_gone(self.pids[i])
    end, 10)
  end
  self.first:kill()
  self.first:wait(5)
end

return successors
