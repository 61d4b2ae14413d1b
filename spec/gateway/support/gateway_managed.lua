-- gateway_managed.lua - workers with BatonConnector, a process each, before a gateway that manages their rooms.
--
--   local f = gateway_managed.start({ p0 = "ttft=1", d0 = "itl=1" })
--   words of baton-sim --worker, by name (p.., d..)
--   f:attach("p1")                                            -- p1's agents come to the gateway: it is usable now
--   f:kill("p0")                                               -- SIGKILL; looks at what is held leave it out
--
-- late: { p1 = true }: not attached at the start. f.sim.list is what support/faults.lua looks at.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local gateway_managed = {}

local Managed = {}
Managed.__index = Managed

local function names_of(workers)
  local names = {}
  for name in pairs(workers) do
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

local function start_worker(self, name, words)
  local role = name:sub(1, 1) == "p" and "prefill" or "decode"
  local sim = fleet.start_sim({ ("role=%s,name=%s,connector=BatonConnector,%s"):format(role, name, words) }, self.ask
    .sim)
  self.sims[name] = sim
  self.workers[name] = sim.list[1]
  self.sim.list[#self.sim.list + 1] = sim.list[1]
end

local function config_of(self)
  local lines = {}
  for _, name in ipairs(names_of(self.workers)) do
    local w = self.workers[name]
    lines[#lines + 1] = ('{ name = "%s", role = "%s", url = "%s", connector = "BatonConnector" },'):format(name, w.role,
      w.url)
  end
  return ("return { %s pools = { { name = \"gateway-managed\", workers = {\n%s\n} } } }\n"):format(self.ask.top or "",
    table.concat(lines, "\n"))
end

local function start_gateway(self, transfer_port)
  local words = { self.config, "--transfer-port", transfer_port }
  proc.append(words, self.ask.flags)
  local told
  self.gateway, self.port, self.admin_port, told = fleet.start_gateway(words)
  self.transfer_port = told.transfer_port
end

-- workers: by name. ask: late, flags, sim (flags), top (more members of baton.lua), token (that agents tell it).
function gateway_managed.start(workers, ask)
  local self = setmetatable({ ask = ask or {}, sims = {}, workers = {}, sim = { list = {} } }, Managed)
  for _, name in ipairs(names_of(workers)) do
    start_worker(self, name, workers[name])
  end
  self.config = require("gateway.support.proc").write("baton.lua", config_of(self))
  start_gateway(self, 0)
  for _, name in ipairs(names_of(workers)) do
    if not (self.ask.late and self.ask.late[name]) then
      self:attach(name)
    end
  end
  return self
end

function Managed:told(name)
  for _, w in ipairs(json.decode(http.get(self.admin_port, "/workers").body).workers) do
    if w.name == name then
      return w
    end
  end
end

function Managed:wait_usable(name)
  eventually(function()
    local w = self:told(name)
    return w.usable, tostring(w.why_not)
  end, 10, name .. " is usable")
end

function Managed:attach(name)
  local address = "127.0.0.1:" .. self.transfer_port
  local answer = http.post(self.workers[name].port, "/sim/gateway",
    json.encode({ gateway = address, token = self.ask.token }))
  assert(answer.status == 200, answer.body)
  self:wait_usable(name)
end

-- The gateway as it was, with another process.
function Managed:restart()
  fleet.stop_gateway(self.gateway)
  start_gateway(self, self.transfer_port)
end

function Managed:state(name)
  return self.sims[name]:state(name)
end

-- Inference requests that a worker got.
function Managed:requests(name)
  local out = {}
  for _, e in ipairs(self.sims[name]:requests(name)) do
    if e.method == "POST" and e.path:find("^/v1/") then
      out[#out + 1] = e
    end
  end
  return out
end

function Managed:fault(name, fault)
  self.sims[name]:fault(name, fault)
end

function Managed:kill(name, signal)
  self.sims[name].process:kill(signal)
  self:forget(name)
end

-- Nobody looks at what it holds any more.
function Managed:forget(name)
  for i, w in ipairs(self.sim.list) do
    if w.name == name then
      table.remove(self.sim.list, i)
    end
  end
end

function Managed:post(path, body, headers)
  return http.post(self.port, path, body, headers)
end

function Managed:start(path, body, headers)
  return http.start(self.port, { path = path, body = body, headers = headers })
end

-- The room that a leg names, as text.
function gateway_managed.room_of(entry)
  return json.raw(json.raw(entry.body, "kv_transfer_params"), "baton_room")
end

function Managed:record(id)
  return json.decode(http.get(self.admin_port, "/admin/explain/" .. id).body)
end

function Managed:number(family, labels)
  return faults.number(self, family, labels)
end

-- Nothing is held any more: by the gateway (ledger, requests, rooms), by engines, by agents.
function Managed:wait_idle()
  faults.wait_idle(self)
  eventually(function()
    for _, w in ipairs(self.sim.list) do
      local kv = self:state(w.name).kv
      for _, agent in ipairs(kv.agents) do
        if agent.rooms_open ~= 0 or kv.rooms.releasing ~= 0 then
          return false, w.name .. ": " .. json.encode(kv)
        end
      end
    end
    return true
  end, 10, "no agent holds a room")
end

function Managed:stop()
  fleet.stop_gateway(self.gateway)
  for _, w in ipairs(self.sim.list) do
    self.sims[w.name].process:stop(5)
  end
end

return gateway_managed
