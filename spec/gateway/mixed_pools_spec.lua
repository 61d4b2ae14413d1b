-- One listener over pools of four connectors at once: a request of each model reaches its own pair, joined as its
-- engines want it. A pool whose workers' connector nobody knows answers 503 with its name.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local PATH = "/v1/completions"
-- pool and model; words of the simulator; members of the pool; what its legs are joined by
local POOLS = {
  { name = "nixl", sim = "connector=NixlConnector", pool = 'engine = "vllm", connector = "NixlConnector"',
    joined = { prefill = "kv_transfer_params", decode = "kv_transfer_params" } },
  { name = "sglang", sim = "engine=sglang", pool = 'engine = "sglang"',
    joined = { prefill = "bootstrap_room", decode = "bootstrap_room" } },
  { name = "layerwise", sim = "connector=MooncakeLayerwiseConnector",
    pool = 'engine = "vllm_ascend", connector = "MooncakeLayerwiseConnector"',
    joined = { prefill = "kv_transfer_params", decode = "kv_transfer_params" } },
  { name = "trtllm", sim = "engine=trtllm", pool = 'engine = "trtllm"',
    joined = { prefill = "disaggregated_params", decode = "disaggregated_params" } },
}

local function workers()
  local out = {}
  for _, p in ipairs(POOLS) do
    for _, role in ipairs({ "prefill", "decode" }) do
      out[#out + 1] = ("name=%s_%s,role=%s,model=%s,ttft=1,itl=1,%s"):format(p.name, role, role, p.name, p.sim)
    end
  end
  return out
end

local function config(w)
  local pools = {}
  for i, p in ipairs(POOLS) do
    local rows = {}
    for _, role in ipairs({ "prefill", "decode" }) do
      local one = w[p.name .. "_" .. role]
      local port = role == "prefill" and one.second > 0 and (", bootstrap_port = " .. one.second) or ""
      rows[#rows + 1] = ('{ name = "%s_%s", url = "%s", role = "%s", %s%s }'):format(
        p.name, role, one.url, role, p.pool, port)
    end
    pools[i] = ('{ name = "%s", models = { "%s" }, workers = { %s } }'):format(p.name, p.name, table.concat(rows, ", "))
  end
  return "return { pools = { " .. table.concat(pools, ", ") .. ' } }\n'
end

local function body(model, stream)
  return ('{"model":"%s","prompt":"hand it on","max_tokens":5,"stream":%s}'):format(model, tostring(stream == true))
end

describe("pools of four connectors behind one port", function()
  local f

  setup(function()
    f = fleet.start({ workers = workers(), config = config, flags = { "--metaserver-port", "0" } })
    eventually(function()
      for _, p in ipairs(POOLS) do
        local answer = f:post(PATH, body(p.name))
        if answer.status ~= 200 then
          return false, p.name .. ": " .. answer.body
        end
      end
      return true
    end, 10, "every pool serves")
    faults.wait_idle(f)
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  it("send a request of each model to its own pair, all at the same time", function()
    f:mark()
    local clients = {}
    for _ = 1, 8 do
      for _, p in ipairs(POOLS) do
        for _, stream in ipairs({ false, true }) do
          local ask = { path = PATH, body = body(p.name, stream) }
          clients[#clients + 1] = { p = p, client = http.start(f.port, ask) }
        end
      end
    end
    for _, c in ipairs(clients) do
      local answer = c.client:wait()
      c.client:close()
      assert.equal(200, answer.status, c.p.name .. ": " .. answer.body)
      assert.same({ fleet.expect("hand it on", 5) }, texts.of(PATH, answer))
    end
    local legs = f:legs(PATH)
    for _, role in ipairs({ "prefill", "decode" }) do
      assert.equal(#clients, #legs[role])
      for _, leg in ipairs(legs[role]) do
        local name = json.decode(leg.body).model
        assert.equal(name .. "_" .. role, leg.worker)
        for _, p in ipairs(POOLS) do
          if p.name == name then
            assert.is_not_nil(json.raw(leg.body, p.joined[role]), leg.body)
          end
        end
      end
    end
    faults.wait_idle(f)
    assert.same({}, faults.guilt(f))
  end)

  it("answer 503 by the connector's name where nobody knows it, and serve the others", function()
    local w = f.workers.sglang_decode
    local gone = http.request(f.admin_port, { method = "DELETE", path = "/workers/sglang_decode" })
    assert.is_true(gone.status < 300, gone.body)
    local added = http.post(f.admin_port, "/workers", json.encode({ url = w.url, role = "decode", engine = "vllm",
      connector = "TelepathyConnector", pool = "sglang" }))
    assert.equal(201, added.status, added.body)
    local answer = eventually(function()
      local a = f:post(PATH, body("sglang"))
      return a.status == 503 and a.body:find("TelepathyConnector", 1, true) and a, a.body
    end, 5, "the refusal names it")
    assert.truthy(answer.body:find("unknown connector", 1, true), answer.body)
    for _, name in ipairs({ "nixl", "layerwise", "trtllm" }) do
      assert.equal(200, f:post(PATH, body(name)).status, name)
    end
  end)
end)
