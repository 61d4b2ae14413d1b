-- Pairing and start-up refusals: one case each, at start (exit 2, one line) and at run time (503 with the reason).

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local sim

-- What the two workers say besides url and role, what the reason must contain.
local PAIRS = {
  {
    "no common dialect",
    prefill = { connector = "NixlConnector", engine = "vllm" },
    decode = { connector = "ExampleConnector", engine = "vllm" },
    reason = "no common dialect",
  },
  {
    "other engines",
    prefill = { connector = "NixlConnector", engine = "vllm" },
    decode = { connector = "sglang", engine = "sglang" },
    reason = "no common dialect",
  },
  {
    "two kinds of store",
    prefill = { connector = "LMCacheConnectorV1", engine = "vllm" },
    decode = { connector = "ExampleConnector", engine = "vllm" },
    reason = "cannot read each other's KV",
  },
  {
    "tp ratio (vLLM: one must divide the other)",
    prefill = { connector = "NixlConnector", engine = "vllm", tp_size = 3 },
    decode = { connector = "NixlConnector", engine = "vllm", tp_size = 2 },
    reason = "tp_size",
  },
  {
    "tp ratio (Ascend: prefill's a multiple of decode's)",
    prefill = { connector = "MooncakeConnectorV1", engine = "vllm_ascend", tp_size = 2 },
    decode = { connector = "MooncakeConnectorV1", engine = "vllm_ascend", tp_size = 4 },
    reason = "tp_size",
  },
  {
    "engine versions",
    prefill = { connector = "NixlConnector", engine = "vllm", version = "0.32.0" },
    decode = { connector = "NixlConnector", engine = "vllm", version = "0.31.0" },
    reason = "versions differ",
  },
  {
    "transfer groups",
    prefill = { connector = "NixlConnector", engine = "vllm", transfer_group = "rack-1" },
    decode = { connector = "NixlConnector", engine = "vllm", transfer_group = "rack-2" },
    reason = "transfer groups differ",
  },
  {
    "models",
    prefill = { connector = "NixlConnector", engine = "vllm", models = { "a" } },
    decode = { connector = "NixlConnector", engine = "vllm", models = { "b" } },
    reason = "model",
  },
}

local FITTING = {
  {
    "one tp divides the other (vLLM)",
    prefill = { connector = "NixlConnector", engine = "vllm", tp_size = 2 },
    decode = { connector = "nixlconnector", engine = "vllm", tp_size = 4 },
  },
  {
    "prefill's tp is a multiple (Ascend)",
    prefill = { connector = "MooncakeConnectorV1", engine = "vllm_ascend", tp_size = 4 },
    decode = { connector = "MooncakeHybridConnector", engine = "vllm_ascend", tp_size = 2 },
  },
  {
    "MultiConnector counts as its first",
    prefill = { connector = "MultiConnector", connectors = { "NixlConnector", "ExampleConnector" }, engine = "vllm" },
    decode = { connector = "NIXL", engine = "vllm" },
  },
  {
    "versions do not matter to a store",
    prefill = { connector = "LMCacheConnectorV1", engine = "vllm", version = "1" },
    decode = { connector = "lmcacheconnectorv1", engine = "vllm", version = "2" },
  },
}

-- Workers whose connector says nothing usable, by what the refusal must name.
local UNUSABLE = {
  { "unknown connector", { connector = "TelepathyConnector", engine = "vllm" }, "TelepathyConnector" },
  { "MultiConnector with one child", { connector = "MultiConnector", connectors = { "NixlConnector" },
    engine = "vllm" }, "two" },
  { "a layer-wise connector without a metaserver",
    { connector = "MooncakeLayerwiseConnector", engine = "vllm_ascend" }, "metaserver" },
  { "LMCache's own backend, which is given as ids what chats need as text",
    { connector = "lmcache_pd", engine = "vllm" },
    "use LMCacheConnectorV1 over a cache that both sides read, or NixlConnector" },
  { "an unknown profile", { dispatch_profile = "magic", engine = "vllm" }, "dispatch_profile" },
}

local function lua_of(value)
  if type(value) == "table" then
    local out = {}
    for key, inner in pairs(value) do
      out[#out + 1] = type(key) == "string" and key .. " = " .. lua_of(inner) or lua_of(inner)
    end
    return "{ " .. table.concat(out, ", ") .. " }"
  end
  return type(value) == "string" and ("%q"):format(value) or tostring(value)
end

local function with(worker, role, url)
  local out = { role = role, url = url }
  for key, value in pairs(worker) do
    out[key] = value
  end
  return out
end

local function config_of(p, d)
  return proc.write("baton.lua", "return { pools = { { workers = { "
    .. lua_of(with(p, "prefill", sim.workers.p0.url)) .. ",\n" .. lua_of(with(d, "decode", sim.workers.d0.url))
      .. " } } } }")
end

local function run_to_end(words)
  local argv = { fleet.binary("BATON_BIN", "baton"), "run", "--port", "0", "--admin-port", "0" }
  proc.append(argv, words)
  return proc.run(argv)
end

local function assert_refused(told, words)
  local code, out, err = run_to_end(words)
  assert.equal(2, code, err)
  assert.equal("", out)
  assert.truthy(err:find(told, 1, true), err)
  assert.equal(1, select(2, err:gsub("\n", "")), "one line: " .. err)
  return err
end

local function reason_of(port)
  local answer = http.get(port, "/readiness")
  local body = json.decode(answer.body)
  return answer, body
end

describe("a refusal at start", function()
  setup(function()
    sim = fleet.start_sim({ "role=prefill", "role=decode", "role=hybrid" })
  end)

  teardown(function()
    sim.process:stop()
    proc.clean()
  end)

  for _, case in ipairs(PAIRS) do
    it("names " .. case[1], function()
      local err = assert_refused(case.reason, { config_of(case.prefill, case.decode) })
      assert.truthy(err:find(sim.workers.p0.url, 1, true), err)
      assert.truthy(err:find(sim.workers.d0.url, 1, true), err)
    end)
  end

  for _, case in ipairs(UNUSABLE) do
    it("names " .. case[1], function()
      local path = config_of({ connector = "NixlConnector", engine = "vllm" }, case[2])
      local err = assert_refused(case[3], { path })
      assert.truthy(err:find(path .. ": pools[1].workers[2]", 1, true), err)
    end)
  end

  it("names an unknown connector of the command line", function()
    assert_refused("TelepathyConnector", { "--kv-connector", "TelepathyConnector", "--prefill", sim.workers.p0.url,
      "--decode",
      sim.workers.d0.url })
  end)

  it("asks how the engines move KV when nobody said it", function()
    assert_refused("--kv-connector", { "--prefill", sim.workers.p0.url, "--decode", sim.workers.d0.url })
  end)

  it("names a port that is taken", function()
    local taken = tostring(sim.workers.h0.port)
    assert_refused("--port: cannot listen on 127.0.0.1:" .. taken, { "--port", taken, "--worker-urls",
      sim.workers.h0.url })
    assert_refused("--admin-port: cannot listen on 127.0.0.1:" .. taken,
      { "--prometheus-port", taken, "--worker-urls", sim.workers.h0.url })
  end)

  it("names the file, the key path and the nearest key", function()
    local path = proc.write("typo.lua",
      'return { pools = { { workers = { { url = "http://127.0.0.1:1", rolle = "decode" } } } } }')
    local err = assert_refused("rolle", { path })
    assert.truthy(err:find(path .. ": pools[1].workers[1].rolle", 1, true), err)
    assert.truthy(err:find('"role"', 1, true) or err:find(" role", 1, true), err)
  end)
end)

describe("a pair that fits", function()
  setup(function()
    sim = fleet.start_sim({ "role=prefill", "role=decode" })
  end)

  teardown(function()
    sim.process:stop()
    proc.clean()
  end)

  for _, case in ipairs(FITTING) do
    it(case[1], function()
      local process, port = fleet.start_gateway({ config_of(case.prefill, case.decode) })
      eventually(function()
        return http.get(port, "/readiness").status == 200
      end)
      local _, body = reason_of(port)
      assert.equal("pair", body.pools[1].topology)
      assert.is_true(body.ready)
      assert.equal(0, (process:stop()))
    end)
  end
end)

describe("/readiness", function()
  local process, port, admin_port

  setup(function()
    sim = fleet.start_sim({ "role=prefill", "role=decode", "role=hybrid", "role=prefill,engine=sglang,name=s0" })
    process, port, admin_port = fleet.start_gateway({})
  end)

  teardown(function()
    process:stop()
    sim.process:stop()
    proc.clean()
  end)

  local function add(worker)
    return http.post(admin_port, "/workers", json.encode(worker))
  end

  local function remove_all()
    for _, w in ipairs(json.decode(http.get(admin_port, "/workers").body).workers) do
      http.request(admin_port, { method = "DELETE", path = "/workers/" .. w.name })
    end
    eventually(function()
      local _, body = reason_of(port)
      return body.pools[1] and tostring(body.pools[1].reason):find("no worker", 1, true), json.encode(body)
    end)
  end

  after_each(remove_all)

  local function says(reason)
    local answer = eventually(function()
      local answer, body = reason_of(port)
      local told = body.pools[1] and tostring(body.pools[1].reason) or ""
      return answer.status == 503 and told:find(reason, 1, true) and answer, answer.body
    end, 10, reason)
    assert.equal("1", answer:header("retry-after"))
    assert.is_false(json.decode(answer.body).ready)
    local request = http.post(port, "/v1/completions", '{"prompt":"x","max_tokens":1}')
    assert.equal(503, request.status)
    assert.truthy(json.decode(request.body).error.message:find(reason, 1, true), request.body)
    assert.truthy(request:header("retry-after"))
    assert.equal(200, http.get(port, "/health").status, "the process serves all the same")
    assert.equal(200, http.get(port, "/liveness").status)
  end

  it("is 503 without workers", function()
    says("has no worker")
  end)

  for _, case in ipairs(PAIRS) do
    it("is 503 for a pair with " .. case[1], function()
      assert.equal(201, add(with(case.prefill, "prefill", sim.workers.p0.url)).status)
      assert.equal(201, add(with(case.decode, "decode", sim.workers.d0.url)).status)
      if case.prefill.models then
        local answer = eventually(function()
          local answer, body = reason_of(port)
          return answer.status == 503 and tostring(body.pools[1].reason):find("model", 1, true) and answer
        end)
        assert.is_not_nil(answer)
      else
        says(case.reason)
      end
    end)
  end

  for _, case in ipairs(UNUSABLE) do
    it("is 503, or the worker is refused, for " .. case[1], function()
      assert.equal(201, add({ role = "prefill", url = sim.workers.p0.url, connector = "NixlConnector",
        engine = "vllm" }).status)
      local answer = add(with(case[2], "decode", sim.workers.d0.url))
      if answer.status == 201 then
        eventually(function()
          local _, body = reason_of(port)
          return tostring(body.pools[1].reason):find(case[3], 1, true), json.encode(body)
        end)
      else
        assert.equal(400, answer.status, answer.body)
        assert.truthy(answer.body:find(case[3], 1, true), answer.body)
      end
    end)
  end

  it("is 503 with decode workers only", function()
    add({ role = "decode", url = sim.workers.d0.url, connector = "NixlConnector", engine = "vllm" })
    says("no prefill worker")
  end)

  it("is 503 with an SGLang prefill worker only", function()
    add({ role = "prefill", url = sim.workers.s0.url, connector = "sglang", engine = "sglang",
      bootstrap_port = sim.workers.s0.second })
    says("cannot serve alone")
  end)

  it("is 503 while a worker does not answer, and 200 when it does", function()
    sim:fault("h0", { kind = "status", status = 500, path = "/health", times = 4000000000 })
    add({ role = "hybrid", url = sim.workers.h0.url, engine = "vllm" })
    eventually(function()
      local answer, body = reason_of(port)
      return answer.status == 503 and tostring(body.pools[1].reason):find("w0", 1, true), answer.body
    end)
    http.request(sim.workers.h0.port, { method = "DELETE", path = "/sim/fault" })
    eventually(function()
      return http.get(port, "/readiness").status == 200
    end)
    local _, body = reason_of(port)
    assert.equal("single", body.pools[1].topology)
    assert.equal(json.null, body.pools[1].reason)
  end)
end)
