-- rig.lua - a gateway before puppets (puppet.lua): every byte of both sides is the spec's.
--
--   local r = rig.start({ connector = "NixlConnector", prefills = 1, decodes = 2, flags = { "--stall-timeout-secs",
-- 1 } })
--   local c = r:ask("/v1/completions", body)         -- an open client connection
--   local p = r.p[1]:take()                          -- the prefill leg

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")
local puppet = require("gateway.support.puppet")

local rig = {}

local Rig = {}
Rig.__index = Rig

local function worker_line(name, role, url, ask)
  local more = role ~= "hybrid" and ask.connector and ('connector = "%s",'):format(ask.connector) or ""
  if role == "prefill" and ask.bootstrap_port then
    more = more .. (" bootstrap_port = %d,"):format(ask.bootstrap_port)
  end
  if role == "prefill" and ask.prefill_words then
    more = more .. ask.prefill_words
  end
  if ask.engine then
    more = more .. (' engine = "%s",'):format(ask.engine)
  end
  return ('  { name = "%s", role = "%s", url = "%s", %s },'):format(name, role, url, more)
end

local function config_of(self, ask)
  local lines = {}
  for role, list in pairs({ prefill = self.p, decode = self.d, hybrid = self.w }) do
    for i, s in ipairs(list) do
      lines[#lines + 1] = worker_line(role:sub(1, 1) .. (i - 1), role, s.url, ask)
    end
  end
  return "return { pools = { { name = \"only\", workers = {\n" .. table.concat(lines, "\n") .. "\n} } } }\n"
end

local function open_many(count)
  local out = {}
  for i = 1, count or 0 do
    out[i] = puppet.open()
  end
  return out
end

-- ask: connector, engine, prefills, decodes, hybrids, bootstrap_port, flags.
function rig.start(ask)
  local self = setmetatable({ p = open_many(ask.prefills), d = open_many(ask.decodes), w = open_many(ask.hybrids) },
    Rig)
  local words = { proc.write("baton.lua", config_of(self, ask)), "--disable-health-check", "--load-interval-secs", "0" }
  proc.append(words, ask.flags)
  self.gateway, self.port, self.admin_port = fleet.start_gateway(words)
  eventually(function()
    local answer = http.get(self.port, "/readiness")
    return answer.status == 200, answer.body
  end, 10, "/readiness is 200")
  return self
end

function Rig:ask(path, body, headers)
  return http.start(self.port, { path = path, body = body, headers = headers })
end

-- Pumps puppets and this client until the answer is there.
function Rig.answer_of(_, client, seconds)
  local deadline = clock.now() + (seconds or 10) * clock.slowness()
  while not (client.answer.done or client.answer.broken) do
    client:pump()
    puppet.pump()
    if clock.now() > deadline then
      error(("no whole answer in time; status %s, body so far: %s"):format(tostring(client.answer.status),
        client.answer.body), 2)
    end
    clock.nap(0.001)
  end
  client:close()
  return client.answer
end

-- Waits until look() is true, while puppets and clients (a list) go on.
function Rig.until_so(_, look, what, clients, seconds)
  return eventually(function()
    puppet.pump()
    for _, c in ipairs(clients or {}) do
      c:pump()
    end
    return look()
  end, seconds, what)
end

function Rig:stop()
  puppet.close_all()
  http.hang_up(self.port)
  fleet.stop_gateway(self.gateway)
end

return rig
