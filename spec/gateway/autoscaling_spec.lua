-- The autoscaling examples ask for nothing that /metrics does not print: every selector in them finds a series.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local lyaml = require("lyaml")

local FOLDER = "examples/kubernetes/autoscaling-"

local function documents(name)
  local file = assert(io.open(FOLDER .. name .. ".yaml"))
  local text = file:read("*a")
  file:close()
  return lyaml.load(text, { all = true })
end

local function rules()
  return documents("prometheus-adapter")[1].rules.external
end

local function adapter_queries()
  local all = {}
  for _, rule in ipairs(rules()) do
    all[#all + 1] = rule.seriesQuery
    all[#all + 1] = rule.metricsQuery
  end
  return all
end

local function keda_queries()
  local all = {}
  for _, object in ipairs(documents("keda")) do
    for _, trigger in ipairs(object.spec.triggers) do
      all[#all + 1] = trigger.metadata.query
    end
  end
  return all
end

-- Does a line of /metrics have the selector's name and all its labels?
local function finds(text, name, labels)
  for line in text:gmatch("[^\n]+") do
    if line:sub(1, #name + 1) == name .. "{" then
      local every = true
      for label in labels:gmatch("[^,]+") do
        every = every and line:find(label, #name, true) ~= nil
      end
      if every then
        return true
      end
    end
  end
  return false
end

local function assert_found(admin_port, queries)
  assert.is_true(#queries > 0)
  for _, query in ipairs(queries) do
    assert.is_truthy(query:find("baton_", 1, true), query)
    for name, labels in query:gmatch("(baton_[%w_]+)({?[^}]*)") do
      eventually(function()
        return finds(http.get(admin_port, "/metrics").body, name, labels:match("^{(.*)") or ""), query
      end, 5, query .. " finds a series")
    end
  end
end

describe("examples/kubernetes/autoscaling", function()
  local f

  setup(function()
    f = fleet.start({
      workers = { "role=prefill,connector=NixlConnector", "role=decode,connector=NixlConnector" },
      flags = { "--vllm-pd-disaggregation" },
    })
  end)

  teardown(function()
    if f then
      f:stop()
    end
  end)

  it("asks only for series that /metrics prints: prometheus-adapter", function()
    assert_found(f.admin_port, adapter_queries())
  end)

  it("asks only for series that /metrics prints: KEDA", function()
    assert_found(f.admin_port, keda_queries())
  end)

  it("scales each role by external metrics that the adapter's rules make", function()
    local made, roles = {}, {}
    for _, rule in ipairs(rules()) do
      made[rule.name.as] = true
    end
    for _, hpa in ipairs(documents("hpa")) do
      roles[#roles + 1] = hpa.spec.scaleTargetRef.name
      for _, metric in ipairs(hpa.spec.metrics) do
        assert.is_true(made[metric.external.metric.name], metric.external.metric.name)
      end
    end
    assert.same({ "prefill", "decode" }, roles)
  end)
end)
