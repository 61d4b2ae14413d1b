-- replicas.lua - some gateways over one Redis and one simulator, and what they say about the fleet's policies.
--
--   local fl = replicas.start({ "a", "b" })        -- each with --policy mine, from a folder of its own
--   local a = fl:add("c", { "--fleet-expiry-ms", "60000" })
--   a:put("/admin/fleet/policies/mine", replicas.policy("2"))      -- status, body as a table
--   fl:stop()
--
-- A spec may bring its own Redis, another way to it, and workers:
--   replicas.start({ "a", "b" }, words, { redis = r, url = "redis://127.0.0.1:1", workers = { "role=hybrid" },
--     policy = replicas.policy("1") })

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local pace = require("gateway.support.pace")
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
  api = 2, name = "mine", version = "%s",
  %s
  plan = function(req, view, ctx)
    %s
    return { worker = view.hybrid[1].id }
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

-- ---- what it makes of the store ----

function Replica:number(family, labels)
  return faults.number(self, family, labels)
end

-- What /readiness finds fault with; it is 200 all the same.
function Replica:degraded()
  local answer = http.get(self.port, "/readiness")
  assert(answer.status == 200, answer.body)
  return table.concat(json.decode(answer.body).degraded, "; ")
end

function Replica:wait_degraded(part)
  eventually(function()
    local now = self:degraded()
    return now:find(part, 1, true), now
  end, 15, self.name .. "'s /readiness says " .. part)
end

function Replica:wait_up()
  eventually(function()
    local now = self:degraded()
    return now == "", now
  end, 20, self.name .. "'s /readiness says nothing of the store")
end

-- Until so many more are counted.
function Replica:wait_count(family, more)
  Replicas.wait_count({ self }, family, more)
end

-- Requests that it believes the others have on workers.
function Replica:others()
  local sum = 0
  for _, w in ipairs(select(2, self:ask("GET", "/workers")).workers) do
    sum = sum + w.others.prefill.requests + w.others.decode.requests
  end
  return sum
end

-- Those that it lists.
function Replica:listed()
  return #select(2, self:ask("GET", "/fleet")).replicas
end

function Replica:lines(part)
  local n = 0
  for line in self.process:stderr():gmatch("[^\n]+") do
    n = n + (line:find(part, 1, true) and 1 or 0)
  end
  return n
end

-- It logs so many of them, and no more; a line comes a moment after what it tells of.
function Replica:assert_lines(wanted, part)
  eventually(function()
    return self:lines(part) >= wanted
  end, 10, self.name .. " logs: " .. part)
  assert(self:lines(part) == wanted, ("%s logs %d times, not %d: %s"):format(self.name, self:lines(part), wanted, part))
end

-- A request that goes on until the connection is closed.
function Replica:hold()
  return http.start(self.port, {
    path = "/v1/completions", body = BODY, headers = { ["X-Sim-Fault"] = "slow_first_byte:60000@hybrid" },
  })
end

-- ---- all ----

-- text: of its own file.
function Replicas:words(name, more, text)
  local folder = proc.path("policies")
  assert(os.execute("mkdir " .. folder) == 0)
  local file = assert(io.open(folder .. "/mine.lua", "w"))
  file:write(text or replicas.policy("file"))
  file:close()
  local words = { "--policy", "mine", "--policy-dir", folder, "--redis-url", self.url, "--replica-name", name,
    "--worker-urls" }
  for _, w in ipairs(self.sim.list) do
    words[#words + 1] = w.url
  end
  proc.append(words, more)
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

-- Until so many more are counted by each of them.
function Replicas:wait_count(family, more)
  local before = {}
  for i, one in ipairs(self) do
    before[i] = one:number(family)
  end
  for i, one in ipairs(self) do
    eventually(function()
      return one:number(family) >= before[i] + more, one:number(family)
    end, 30, ("%d more of %s"):format(more, family))
  end
end

-- What stands in the fleet's log of policies, oldest first.
function Replicas:log()
  local entries = {}
  for _, row in ipairs(self.redis:ask("XRANGE", "baton:{fleet}:policy_log", "-", "+")) do
    entries[#entries + 1] = json.decode(row[2][2])
  end
  return entries
end

-- Is it in the store, texts and all, for whoever comes now?
function Replicas:has_stored(number)
  for _, e in ipairs(self:log()) do
    if e.number == number and (e.what == "base" or e.what == "propose") then
      return self.redis:ask("EXISTS", "baton:{fleet}:policy_set:" .. e.uuid) == 1
    end
  end
  return false
end

-- The numbers that a replica has begun to try, or to begin with, and not finished; in order of the log.
function Replicas:trying(name)
  local open, numbers = {}, {}
  for _, e in ipairs(self:log()) do
    if e.replica == name and e.process ~= "" and (e.what == "trying" or open[e.number]) then
      open[e.number] = e.what == "trying" or nil
    end
  end
  for number in pairs(open) do
    numbers[#numbers + 1] = number
  end
  table.sort(numbers)
  return numbers
end

-- A steady load on every gateway while work() runs; what fails is an error. The worst p99 in ms, and how many were
-- served.
function Replicas:under_load(work, rate)
  local loads, worst, right = {}, 0, 0
  for i, one in ipairs(self) do
    loads[i] = pace.start(one.port, 16, rate or 100, 0)
  end
  work()
  for _, p in ipairs(loads) do
    local report = pace.stop(p)
    right, worst = right + report.right, math.max(worst, report.p99_us / 1000)
  end
  return worst, right
end

function Replicas:stop()
  for _, one in ipairs(self) do
    one:thaw()
    fleet.stop_gateway(one.process)
  end
  self.sim.process:stop(5)
  if self.redis.process:is_alive() then
    self.redis:kill()
  end
end

-- more: words of gateways by name. own: redis, url, workers, policy (its text).
function replicas.start(names, more, own)
  own = own or {}
  local r = own.redis or redis.start()
  local self = setmetatable({ redis = r, url = own.url or r.url,
    sim = fleet.start_sim(own.workers or { "role=hybrid,ttft=1,itl=1,name=w0" }) }, Replicas)
  for _, name in ipairs(names) do
    self:add(name, more and more[name], own.policy)
  end
  self:wait_known(names)
  return self
end

return replicas
