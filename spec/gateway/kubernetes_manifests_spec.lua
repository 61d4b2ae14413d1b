-- examples/kubernetes: gateway.yaml and workers.yaml fit each other, and the program takes what they say.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local kube_api = require("gateway.support.kube_api")
local lyaml = require("lyaml")
local proc = require("gateway.support.proc")

local FOLDER = "examples/kubernetes/"

local function read(name)
  local file = assert(io.open(FOLDER .. name .. ".yaml"))
  local text = file:read("*a")
  file:close()
  local by_kind = {}
  for _, object in ipairs(lyaml.load(text, { all = true })) do
    assert.truthy(object.apiVersion and object.kind and object.metadata.name)
    by_kind[object.kind] = by_kind[object.kind] or {}
    by_kind[object.kind][object.metadata.name] = object
  end
  return by_kind
end

local function selects(selector, labels)
  for key, value in pairs(selector) do
    if labels[key] ~= value then
      return false
    end
  end
  return next(selector) ~= nil
end

local function container_of(deployment)
  return deployment.spec.template.spec.containers[1]
end

local function ports_of(container)
  local ports = {}
  for _, port in ipairs(container.ports) do
    ports[port.name] = port.containerPort
  end
  return ports
end

-- What the option says behind its name.
local function word(args, flag)
  for _, arg in ipairs(args) do
    local value = arg:match("^%-%-" .. flag:gsub("%-", "%%-") .. "=(.*)$")
    if value then
      return value
    end
  end
end

describe("examples/kubernetes", function()
  local gateway_yaml, workers_yaml = read("gateway"), read("workers")
  local deployment = gateway_yaml.Deployment.baton
  local baton = container_of(deployment)
  local sim, api, gateway

  after_each(function()
    for _, it in ipairs({ gateway or false, sim and sim.process or false, api or false }) do
      if it then
        it:stop()
      end
    end
    sim, api, gateway = nil, nil, nil
    proc.clean()
  end)

  it("asks for no right but to look at pods of its namespace", function()
    local binding, role = gateway_yaml.RoleBinding.baton, gateway_yaml.Role.baton
    assert.same({ { apiGroups = { "" }, resources = { "pods" }, verbs = { "get", "list", "watch" } } }, role.rules)
    assert.same({ "Role", role.metadata.name }, { binding.roleRef.kind, binding.roleRef.name })
    local account = deployment.spec.template.spec.serviceAccountName
    assert.same({ { kind = "ServiceAccount", name = account } }, binding.subjects)
    assert.truthy(gateway_yaml.ServiceAccount[binding.subjects[1].name])
    assert.is_nil(gateway_yaml.ClusterRole)
    assert.is_true(baton.securityContext.readOnlyRootFilesystem)
  end)

  it("names labels and ports that are there", function()
    for _, objects in ipairs({ gateway_yaml, workers_yaml }) do
      for name, d in pairs(objects.Deployment) do
        assert.is_true(selects(d.spec.selector.matchLabels, d.spec.template.metadata.labels), name)
        local ports = ports_of(container_of(d))
        for _, probe in ipairs({ "livenessProbe", "readinessProbe" }) do
          local p = container_of(d)[probe]
          assert.truthy(p == nil or ports[p.httpGet.port], name .. " " .. probe)
        end
      end
      for _, kind in ipairs({ "Service", "PodDisruptionBudget" }) do
        for name, object in pairs(objects[kind]) do
          local found
          for _, d in pairs(objects.Deployment) do
            local selector = kind == "Service" and object.spec.selector or object.spec.selector.matchLabels
            if selects(selector, d.spec.template.metadata.labels) then
              found = d
              for _, port in ipairs(object.spec.ports or {}) do
                assert.truthy(ports_of(container_of(d))[port.targetPort], name)
              end
            end
          end
          assert.truthy(found, kind .. " " .. name .. " selects something")
        end
      end
    end
    assert.equal("None", workers_yaml.Service.vllm.spec.clusterIP)
    assert.same({ http = tonumber(word(baton.args, "port")), metrics = tonumber(word(baton.args, "admin-port")) },
      ports_of(baton))
    -- The drain fits into the time that the pod has.
    local sleep = baton.lifecycle.preStop.sleep.seconds
    assert.truthy(sleep + tonumber(word(baton.args, "drain-timeout-secs")) <
      deployment.spec.template.spec.terminationGracePeriodSeconds)
    -- The autoscalers scale these Deployments.
    for _, name in ipairs({ "autoscaling-hpa", "autoscaling-keda" }) do
      for _, objects in pairs(read(name)) do
        for _, object in pairs(objects) do
          assert.truthy(workers_yaml.Deployment[object.spec.scaleTargetRef.name], name)
        end
      end
    end
  end)

  it("starts a gateway that finds the workers", function()
    api = kube_api.start({ plain = true })
    sim = fleet.start_sim({ "role=prefill,connector=NixlConnector", "role=decode,connector=NixlConnector" })
    for i, role in ipairs({ "prefill", "decode" }) do
      local template = workers_yaml.Deployment[role].spec.template
      local engine = container_of(workers_yaml.Deployment[role])
      assert.equal(word(engine.args, "port"), tostring(ports_of(engine).http))
      local port = { name = engine.ports[1].name, containerPort = sim.list[i].port }
      api:put(kube_api.pod(role .. "-0", sim.list[i], {
        labels = template.metadata.labels, annotations = template.metadata.annotations, ports = { port },
      }))
    end
    -- As the manifest says it, but for where it listens and where the API server is.
    local words = {}
    for i = 2, #baton.args do
      local name = baton.args[i]:match("^%-%-([%w-]+)")
      if name == "workers-kubernetes" then
        words[#words + 1] = baton.args[i] .. ",namespace=llm,api=" .. api.url
      elseif not ({ host = 1, port = 1, ["admin-host"] = 1, ["admin-port"] = 1 })[name] then
        words[#words + 1] = baton.args[i]
      end
    end
    assert.equal("run", baton.args[1])
    local port, admin_port
    gateway, port, admin_port = fleet.start_gateway(words)
    eventually(function()
      local answer = http.get(port, baton.readinessProbe.httpGet.path)
      return answer.status == 200, answer.body
    end, 10, "ready")
    assert.equal(200, http.get(admin_port, baton.livenessProbe.httpGet.path).status)
    local roles = {}
    for _, w in ipairs(json.decode(http.get(admin_port, "/workers").body).workers) do
      roles[w.role] = w.labels:match("pod=([^,]+)")
    end
    assert.same({ prefill = "prefill-0", decode = "decode-0" }, roles)
    local answer = http.post(port, "/v1/completions", '{"model":"sim","prompt":"hello","max_tokens":3}')
    assert.equal(200, answer.status, answer.body)
    -- And as it stands: every flag is one of ours.
    local check = { fleet.binary("BATON_BIN", "baton"), "check" }
    for i = 2, #baton.args do
      check[#check + 1] = baton.args[i]
    end
    local code, out, err = proc.run(check)
    assert.equal(0, code, out .. err)
    assert.truthy(out:find("selector=app=vllm", 1, true), out)
  end)
end)
