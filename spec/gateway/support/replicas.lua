-- replicas.lua - some gateways over one Redis and one simulator, and what they say about the fleet's policies.
--
--   local fl = replicas.start({ "a", "b" })        -- each with --policy mine, from a folder of its own
--   local a = fl:add("c", { "--share-expiry-ms", "60000" })
--   a:put("/admin/fleet/policies/mine", replicas.policy("2"))      -- status, body as a table
--   fl:stop()

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")

local replicas = {}

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":2}'

local Replica, Replicas = {}, {}
Replica.__index, Replicas.__index = Replica, Replicas

-- more: members of the policy's table. body: lines of its plan.
function replicas.policy(version, more, body)
  return ([[
return {
  api = 1, name = "mine", version = "%s",
  %s
  plan = function(req, view, ctx)
    %s
    return { worker = view.single[1].id }
  end,
}
]]):format(version, more or "", body or "")
end

-- ---- one gateway ----

function Replica:ask(method, path, body)
  local answer = http.request(self.admin_port, { method = method, path = path, body = body,
    seconds = 30 * clock.slowness() })
  return answer.status, json.decode(answer.body), answer
end

function Replica:put(path, body)
  return self:ask("PUT", path, body)
end

function Replica:fleet()
  return select(2, self:ask("GET", "/admin/fleet/policies"))
end

-- Of the policy that decided about a request.
function Replica:version()
  local answer = http.post(self.port, "/v1/completions", BODY)
  assert(answer.status == 200, answer.body)
  return answer:header("x-baton-policy")
end

function Replica:wait_version(wanted)
  eventually(function()
    local seen = self:version()
    return seen == wanted, seen
  end, 10, self.name .. " is served by " .. wanted)
end

function Replica:wait_log(part)
  eventually(function()
    return self.process:stderr():find(part, 1, true)
  end, 20, self.name .. " logs: " .. part)
end

function Replica:kill()
  self.process:kill(proc.SIGKILL)
  self.process:wait()
end

-- Stands still until thaw; its rows in the store stay for as long as they live.
function Replica:freeze()
  self.process:kill(proc.SIGSTOP)
  eventually(function()
    local stat = proc.read(("/proc/%d/stat"):format(self.process.pid)) or ""
    return stat:match("%) (%a)") == "T"
  end, 5, self.name .. " is stopped")
end

function Replica:thaw()
  self.process:kill(proc.SIGCONT)
end

-- ---- all ----

-- text: of its own file.
function Replicas:words(name, more, text)
  local folder = proc.path("policies")
  assert(os.execute("mkdir " .. folder) == 0)
  local file = assert(io.open(folder .. "/mine.lua", "w"))
  file:write(text or replicas.policy("file"))
  file:close()
  local words = { "--policy", "mine", "--policy-dir", folder, "--redis-url", self.redis.url, "--replica-name", name,
    "--worker-urls", self.sim.workers.w0.url }
  for _, word in ipairs(more or {}) do
    words[#words + 1] = word
  end
  return words, folder
end

-- Until it can serve.
function Replicas:add(name, more, text)
  local words, folder = self:words(name, more, text)
  local process, port, admin_port = fleet.start_gateway(words)
  local one = setmetatable({ name = name, process = process, port = port, admin_port = admin_port, folder = folder },
    Replica)
  self[#self + 1] = one
  self[name] = one
  eventually(function()
    local answer = http.get(port, "/readiness")
    return answer.status == 200, answer.body
  end, 10, name .. " is ready")
  return one
end

-- Every one of these sees all of them among the voters.
function Replicas:wait_known(names)
  for _, name in ipairs(names) do
    eventually(function()
      local seen = {}
      for _, row in ipairs(self[name]:fleet().replicas) do
        seen[row.replica] = true
      end
      for _, other in ipairs(names) do
        if not seen[other] then
          return false, other .. " is not seen by " .. name
        end
      end
      return true
    end, 10, "the replicas know each other")
  end
end

function Replicas:stop()
  for _, one in ipairs(self) do
    if one.process:is_alive() then
      one:thaw()
      local code, signal = one.process:stop(10)
      local err = one.process:stderr()
      if code ~= 0 or err:find("Sanitizer", 1, true) or err:find("runtime error", 1, true) then
        error(("%s ended with code %s, signal %s\n%s"):format(one.name, tostring(code), tostring(signal),
          err:sub(-6000)), 2)
      end
    end
  end
  self.sim.process:stop(5)
  if self.redis.process:is_alive() then
    self.redis:kill()
  end
end

-- more: words of gateways by name.
function replicas.start(names, more)
  local self = setmetatable({ redis = redis.start(),
    sim = fleet.start_sim({ "role=hybrid,ttft=1,itl=1,name=w0" }) }, Replicas)
  for _, name in ipairs(names) do
    self:add(name, more and more[name])
  end
  self:wait_known(names)
  return self
end

return replicas
