-- notified.lua - the service manager's end of NOTIFY_SOCKET.
--
--   local manager = notified.open()
--   fleet.start_gateway(words, { env = manager.env })
--   manager:waits_for("READY=1")     -- the message that has this line, as a table by name

local eventually = require("gateway.support.eventually")
local proc = require("gateway.support.proc")
local unix = require("socket.unix")

local notified = {}
local Manager = {}
Manager.__index = Manager

function notified.open()
  local path = proc.path("notify")
  local socket = assert(unix.dgram())
  assert(socket:bind(path))
  socket:settimeout(0)
  return setmetatable({ socket = socket, env = { NOTIFY_SOCKET = path }, messages = {}, read = 0 }, Manager)
end

function Manager:pump()
  while true do
    local text = self.socket:receive(4096)
    if not text then
      return
    end
    local message = { text = text }
    for name, value in text:gmatch("([%u_]+)=([^\n]*)") do
      message[name] = value
    end
    self.messages[#self.messages + 1] = message
  end
end

-- The next message with this line; those before it are passed over.
function Manager:waits_for(line)
  return eventually(function()
    self:pump()
    while self.read < #self.messages do
      self.read = self.read + 1
      local message = self.messages[self.read]
      if ("\n" .. message.text .. "\n"):find("\n" .. line .. "\n", 1, true) then
        return message
      end
    end
    return false, self.read .. " messages"
  end, 10, "the service manager is told " .. line)
end

-- How many messages so far have this line.
function Manager:count(line)
  self:pump()
  local count = 0
  for _, message in ipairs(self.messages) do
    count = count + (("\n" .. message.text .. "\n"):find("\n" .. line .. "\n", 1, true) and 1 or 0)
  end
  return count
end

function Manager:close()
  self.socket:close()
end

return notified
