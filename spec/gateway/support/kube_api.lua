-- kube_api.lua - a Kubernetes API server's pods (kube_api.py): orders to it, and pods as it describes them.

local eventually = require("gateway.support.eventually")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local kube_api = {}

local Api = {}
Api.__index = Api

local CERTIFICATE = [[cd %s && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=api -addext
  subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem]]

-- opts.plain: without TLS.
function kube_api.start(opts)
  local plain = opts and opts.plain
  local ready, folder = proc.path("kube_api.ready"), proc.folder()
  local argv = { "/usr/bin/env", "python3", "-B", "spec/gateway/support/kube_api.py", ready }
  if not plain then
    local made = CERTIFICATE:format(folder):gsub("\n", " ")
    assert(proc.run({ "/bin/sh", "-c", made .. " 2>/dev/null" }) == 0, "openssl makes no certificate here")
    argv[#argv + 1] = folder .. "/cert.pem"
    argv[#argv + 1] = folder .. "/key.pem"
  end
  local process = proc.start(argv, { name = "kube_api" })
  local text = eventually(function()
    return proc.read(ready), process:stderr()
  end, 10, "the API server listens")
  local api, control = text:match("api (%d+) control (%d+)")
  return setmetatable({
    process = process, port = tonumber(api), control = tonumber(control), ca_file = folder .. "/cert.pem",
    url = (plain and "http" or "https") .. "://127.0.0.1:" .. api,
  }, Api)
end

function Api:order(order)
  local answer = http.post(self.control, "/control", json.encode(order))
  assert(answer.status == 200, answer.body)
  return json.decode(answer.body)
end

function Api:put(...)
  self:order({ op = "put", pods = { ... } })
end

function Api:delete(...)
  self:order({ op = "delete", pods = { ... } })
end

function Api:fault(fault)
  self:order({ op = "fault", fault = fault })
end

function Api:set(values)
  self:order({ op = "set", values = values })
end

-- The calls that came since the last look, and how many watches are open.
function Api:seen()
  local told = self:order({ op = "seen" })
  return told.seen, told.watching
end

function Api:wait_watched()
  eventually(function()
    local _, watching = self:seen()
    return watching > 0
  end, 10, "somebody watches")
end

function Api:stop()
  self.process:stop(5)
end

-- A pod that serves at a simulated worker's port. more: labels, annotations, ready (false), deleted, phase, ip, ports.
function kube_api.pod(name, worker, more)
  more = more or {}
  local labels = { app = "vllm" }
  local role = worker and worker.role ~= "hybrid" and worker.role or "both"
  for key, value in pairs(more.labels or { ["llm-d.ai/role"] = role }) do
    labels[key] = value
  end
  local port = { name = "http", containerPort = worker and worker.port or 8000, protocol = "TCP" }
  local pod = {
    metadata = { name = name, namespace = more.namespace or "llm", uid = name .. "-uid", labels = labels },
    spec = { nodeName = "node-1", containers = { { name = "vllm", ports = more.ports or { port } } } },
    status = {
      phase = more.phase or "Running",
      podIP = more.ip or "127.0.0.1",
      conditions = {
        { type = "PodScheduled", status = "True" },
        { type = "Ready", status = more.ready == false and "False" or "True" },
      },
    },
  }
  if more.annotations then
    pod.metadata.annotations = more.annotations
  end
  if more.deleted then
    pod.metadata.deletionTimestamp = "2026-01-01T00:00:00Z"
  end
  return pod
end

return kube_api
