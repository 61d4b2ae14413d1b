-- redis.lua - real redis-servers for specs (in C: spec/unit/store/redis_server.c): a free port each, ended with the
-- spec.
--
--   local r = redis.start({ "--maxmemory", "2mb" })        -- r.port, r.url, r.socket, r.process
--   r:ask("SET", "k", "v"), r:freeze(), r:thaw(), r:kill(), r:again()
--   local c = redis.start_cluster(3, 1)      -- c.nodes: 3 masters, then 1 that is a replica of nobody yet; c.url
--   c:owner("baton:{fleet}:x"), c:id(node), c:move(key, from, to)
--   local s = redis.start_sentinel(r.port, { name = "m", quorum = 1, down_ms = 500 })
--
-- redis.program() is nil where there is none: the spec is then pending. BATON_REDIS_SERVER names another program.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local port = require("gateway.support.port")
local proc = require("gateway.support.proc")
local socket = require("socket")

local redis = {}

local TRIES = 20
local Server = {}
Server.__index = Server

local function in_path(name)
  for dir in (os.getenv("PATH") or ""):gmatch("[^:]+") do
    local file = io.open(dir .. "/" .. name, "r")
    if file then
      file:close()
      return dir .. "/" .. name
    end
  end
  return nil
end

function redis.program()
  local named = os.getenv("BATON_REDIS_SERVER")
  if named and named ~= "" then
    return named:find("/", 1, true) and named or in_path(named)
  end
  return in_path("redis-server") or in_path("valkey-server")
end

-- ---- the protocol ----

local function encode(words)
  local out = { ("*%d\r\n"):format(#words) }
  for _, word in ipairs(words) do
    local text = tostring(word)
    out[#out + 1] = ("$%d\r\n%s\r\n"):format(#text, text)
  end
  return table.concat(out)
end

-- A value; false for nil; { err = "..." } for an error.
local function read_reply(c)
  local line = assert(c:receive("*l"))
  local kind, rest = line:sub(1, 1), line:sub(2)
  if kind == "+" then
    return rest
  elseif kind == ":" then
    return tonumber(rest)
  elseif kind == "-" then
    return { err = rest }
  end
  local n = tonumber(rest)
  if n < 0 then
    return false
  elseif kind == "$" then
    local text = assert(c:receive(n + 2))
    return text:sub(1, n)
  end
  assert(kind == "*", "no reply: " .. line)
  local list = {}
  for i = 1, n do
    list[i] = read_reply(c)
  end
  return list
end

-- One command on a connection of its own. An error reply is an error.
function Server:ask(...)
  local c = assert(socket.connect("127.0.0.1", self.port))
  c:settimeout(20 * clock.slowness())
  if self.password then
    c:send(encode({ "AUTH", self.password }))
    read_reply(c)
  end
  c:send(encode({ ... }))
  local ok, reply = pcall(read_reply, c)
  c:close()
  if not ok then
    error(reply, 2)
  end
  if type(reply) == "table" and reply.err then
    error(reply.err, 2)
  end
  return reply
end

-- ---- a server's life ----

local function answers(self)
  local ok, reply = pcall(self.ask, self, "PING")
  return ok or tostring(reply):find("NOAUTH", 1, true) ~= nil
end

local function argv_of(self)
  local argv = { redis.program() }
  if self.config then
    argv[#argv + 1] = self.config
  end
  local common = { "--port", self.port, "--bind", "127.0.0.1", "--dir", proc.folder() }
  local data = { "--save", "", "--appendonly", "no", "--unixsocket", self.socket, "--hz", "100",
    "--repl-diskless-sync-delay", "0", "--dbfilename", ("%d.rdb"):format(self.port) }
  for _, list in ipairs({ common, self.config and {} or data, self.words, { self.config and "--sentinel" } }) do
    proc.append(argv, list)
  end
  return argv
end

-- False when it ended at once: somebody took the port.
local function run(self)
  self.process = proc.start(argv_of(self), { name = "redis" })
  return eventually(function()
    return answers(self) or not self.process:is_alive()
  end, 20, "redis-server answers") and self.process:is_alive()
end

local function start(self)
  for _ = 1, TRIES do
    self.port = port.free()
    self.url = ("redis://127.0.0.1:%d"):format(self.port)
    if run(self) then
      return self
    end
  end
  error("redis-server ends at once: " .. self.process:stdout() .. self.process:stderr(), 2)
end

function redis.start(words)
  local self = setmetatable({ words = words or {}, socket = proc.path("redis.sock") }, Server)
  for i, word in ipairs(self.words) do
    if word == "--requirepass" then
      self.password = self.words[i + 1]
    end
  end
  return start(self)
end

-- ask: name, quorum, down_ms. Two Sentinels that both look closely may fight for the lead for seconds: give all but
-- one a long down_ms.
function redis.start_sentinel(master_port, ask)
  local name = ask.name or "m"
  local config = proc.write("sentinel.conf", table.concat({
    ("sentinel monitor %s 127.0.0.1 %d %d"):format(name, master_port, ask.quorum or 1),
    ("sentinel down-after-milliseconds %s %d"):format(name, ask.down_ms or 500),
    ("sentinel failover-timeout %s 3000"):format(name),
    "",
  }, "\n"))
  return start(setmetatable({ words = {}, config = config }, Server))
end

-- ---- a cluster ----

local Cluster = {}
Cluster.__index = Cluster
local SLOTS = 16384

local function holds(node, command, part, text)
  return node:ask(command, part):find(text, 1, true) ~= nil
end

function redis.start_cluster(masters, spare)
  local self = setmetatable({ nodes = {} }, Cluster)
  local hosts = {}
  for i = 1, masters + spare do
    self.nodes[i] = redis.start({ "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
      "--cluster-require-full-coverage", "no", "--cluster-config-file", proc.path("nodes.conf"),
      "--repl-ping-replica-period", "1" })
    hosts[i] = "127.0.0.1:" .. self.nodes[i].port
  end
  self.url = "redis-cluster://" .. table.concat(hosts, ",", 1, masters)
  for i = 1, masters do
    local first, last = math.floor((i - 1) * SLOTS / masters), math.floor(i * SLOTS / masters) - 1
    self.nodes[i]:ask("CLUSTER", "ADDSLOTSRANGE", first, last)
  end
  local known = ("cluster_known_nodes:%d"):format(#self.nodes)
  -- Again until they have met: a busy machine outlasts a handshake, and then a node forgets whom it was to meet.
  local function meet()
    for i = 2, #self.nodes do
      self.nodes[1]:ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[i].port)
    end
  end
  meet()
  local asked = clock.now()
  for _, node in ipairs(self.nodes) do
    eventually(function()
      if clock.now() - asked > 2 and not holds(node, "CLUSTER", "INFO", known) then
        meet()
        asked = clock.now()
      end
      return holds(node, "CLUSTER", "INFO", "cluster_state:ok")
        and holds(node, "CLUSTER", "INFO", "cluster_slots_assigned:" .. SLOTS)
        and holds(node, "CLUSTER", "INFO", known)
    end, 30, "the cluster is one")
  end
  return self
end

-- The node that serves the key; nil while none does.
function Cluster:owner(key)
  for _, node in ipairs(self.nodes) do
    if pcall(node.ask, node, "TYPE", key) then
      return node
    end
  end
  return nil
end

function Cluster:id(node)
  return node:ask("CLUSTER", "MYID")
end

-- The key's slot goes to another master, key by key, while it is used; between(): half of it has gone.
function Cluster:move(key, from, to, between)
  local slot = from:ask("CLUSTER", "KEYSLOT", key)
  to:ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self:id(from))
  from:ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self:id(to))
  local function take(count)
    local keys = from:ask("CLUSTER", "GETKEYSINSLOT", slot, count)
    for _, one in ipairs(keys) do
      from:ask("MIGRATE", "127.0.0.1", to.port, one, 0, 5000)
    end
    return #keys
  end
  take(math.ceil(from:ask("CLUSTER", "COUNTKEYSINSLOT", slot) / 2))
  between()
  repeat
    local left = take(100)
  until left == 0
  to:ask("CLUSTER", "SETSLOT", slot, "NODE", self:id(to))
  from:ask("CLUSTER", "SETSLOT", slot, "NODE", self:id(to))
end

-- ---- a server's end ----

function Server:kill()
  self.process:kill(proc.SIGKILL)
  self.process:wait()
end

-- After kill: same port, same words.
function Server:again()
  assert(run(self), "redis-server does not come back")
end

function Server:freeze()
  self.process:kill(proc.SIGSTOP)
  eventually(function()
    local stat = proc.read(("/proc/%d/stat"):format(self.process.pid)) or ""
    return stat:match("%) (%a)") == "T"
  end, 5, "redis-server is stopped")
end

function Server:thaw()
  self.process:kill(proc.SIGCONT)
end

return redis
