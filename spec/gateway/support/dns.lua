-- dns.lua - a name server for a spec (dns_server.lua), whose zone changes while it runs.
--
--   local server = dns.start({ ["p.test"] = { A = { "127.0.0.1" } } })
--   server:set({ ["p.test"] = { fault = "servfail" } })       -- from the next question on
--   server.address                                            -- of --dns-servers

local eventually = require("gateway.support.eventually")
local proc = require("gateway.support.proc")

local dns = {}

local Server = {}
Server.__index = Server

local function print_value(value)
  if type(value) ~= "table" then
    return ("%q"):format(value)
  end
  local out = {}
  for k, v in pairs(value) do
    out[#out + 1] = ("[%s] = %s"):format(type(k) == "number" and k or ("%q"):format(k), print_value(v))
  end
  return "{ " .. table.concat(out, ", ") .. " }"
end

function Server:set(zone)
  local file = assert(io.open(self.zone .. ".tmp", "w"))
  file:write("return ", print_value(zone), "\n")
  file:close()
  assert(os.rename(self.zone .. ".tmp", self.zone))
end

function Server:stop()
  self.process:stop()
end

function dns.start(zone)
  local self = setmetatable({ zone = proc.path("zone.lua") }, Server)
  self:set(zone)
  local ready = proc.path("dns.ready")
  self.process = proc.start({ "/usr/bin/env", "luajit", "spec/gateway/support/dns_server.lua", self.zone, ready },
    { name = "dns" })
  local port = eventually(function()
    return proc.read(ready), self.process:stderr()
  end, 10, "the name server listens")
  self.address = "127.0.0.1:" .. port:match("%d+")
  return self
end

return dns
