-- Who may use the registry without a token, from another host: 10.9.0.1 is the gateway's, and whoever dials it comes
-- from 10.9.0.2 (spec/unit/transport/remote.sh).

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local HERE, THERE = "10.9.0.1", "10.9.0.2"
local INFO = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
local PUT_BODY = json.encode({ attn_tp_size = 1, attn_tp_rank = 0, attn_cp_size = 1, attn_cp_rank = 0, attn_dp_size = 1,
  attn_dp_rank = 0, pp_size = 1, pp_rank = 0, system_dp_size = 1, system_dp_rank = 0, rank_ip = "0.0.0.0",
  rank_port = 9001, page_size = 16, kv_cache_dtype = "auto", load_balance_method = "round_robin" })

local function has(text, part)
  assert.truthy(text:find(part, 1, true), ("%q is not in:\n%s"):format(part, text))
end

describe("the registry, from another host", function()
  local gateway, admin_port, port, sim

  local function start(...)
    sim = fleet.start_sim({ "role=hybrid" })
    local told, _
    gateway, _, admin_port, told = fleet.start_gateway({ "--worker-urls", sim.list[1].url, "--registry-port", "0",
      "--registry-host", HERE, ... })
    port = told.registry_port
  end

  after_each(function()
    proc.clean()
  end)

  local function stop()
    assert.equal(0, (gateway:stop(10)), gateway:stderr())
    sim.process:stop(5)
  end

  local function ask(method, path, body)
    return http.request(port, { to = HERE, method = method, path = path, body = body })
  end

  local function assert_refused()
    for _, one in ipairs({ { "PUT", "/route", PUT_BODY }, { "GET", INFO },
      { "POST", "/register_dp_rank", '{"bootstrap_room":7,"dp_rank":0}' },
      { "POST", "/query_dp_ranks", '{"bootstrap_rooms":[7]}' } }) do
      local answer = ask(one[1], one[2], one[3])
      assert.equal(403, answer.status, one[2] .. ": " .. answer.body)
      has(answer.body, "add its worker first, or start the gateway with --registry-allow " .. THERE)
    end
    assert.equal(200, ask("GET", "/health").status)
  end

  it("serves the workers' hosts, as the workers are now", function()
    start()
    assert_refused()
    gateway:says("registry: " .. THERE .. " is refused: ")
    local added = http.post(admin_port, "/admin/workers",
      json.encode({ url = ("http://%s:9"):format(THERE), role = "hybrid", name = "w9" }))
    assert.equal(201, added.status, added.body)
    eventually(function()
      local answer = ask("PUT", "/route", PUT_BODY)
      return answer.status == 200, answer.body
    end, 10, "the worker's host is known")
    local info = ask("GET", INFO)
    assert.equal(200, info.status, info.body)
    http.request(admin_port, { method = "DELETE", path = "/admin/workers/w9" })
    eventually(function()
      return ask("GET", INFO).status == 403
    end, 10, "the worker's host is a stranger again")
    assert_refused()
    stop()
  end)

  it("serves those that the operator allows", function()
    start("--registry-allow", "192.0.2.1", "--registry-allow", "10.9.0.0/24")
    assert.equal(200, ask("PUT", "/route", PUT_BODY).status)
    assert.equal(200, ask("GET", INFO).status)
    stop()
  end)

  it("serves whoever has the token, and nobody else", function()
    start("--registry-token", "sesame-7313")
    assert.equal(401, ask("PUT", "/route", PUT_BODY).status)
    local answer = http.request(port, { to = HERE, method = "PUT", path = "/route", body = PUT_BODY,
      headers = { Authorization = "Bearer sesame-7313" } })
    assert.equal(200, answer.status, answer.body)
    stop()
  end)
end)

describe("the metaserver, from another host", function()
  local CALL = "/v1/metaserver?attempt=1" -- of nobody: whoever may call is told so

  local function call_with(...)
    local gateway, _, admin_port, told = fleet.start_gateway({ "--metaserver-port", "0", "--metaserver-host", HERE,
      "--worker-startup-check-interval", "60", ... })
    return gateway, admin_port, function()
      return http.request(told.metaserver_port, { to = HERE, path = CALL, body = "{}" })
    end
  end

  after_each(function()
    proc.clean()
  end)

  it("takes calls of the workers' hosts, as the workers are now", function()
    local gateway, admin_port, call = call_with()
    local answer = call()
    assert.equal(403, answer.status, answer.body)
    has(answer.body, "add its worker, or start the gateway with --metaserver-allow ADDRESS")
    gateway:says("metaserver: a call from " .. THERE .. " is refused: ")
    local added = http.post(admin_port, "/admin/workers", json.encode({ url = ("http://%s:9"):format(THERE),
      role = "decode", connector = "MooncakeLayerwiseConnector", name = "w9" }))
    assert.equal(201, added.status, added.body)
    eventually(function()
      return call().status == 404
    end, 10, "the worker's host is known")
    assert.equal(0, (gateway:stop(10)), gateway:stderr())
  end)

  it("takes calls of those that the operator allows", function()
    local gateway, _, call = call_with("--metaserver-allow", "10.9.0.0/24")
    assert.equal(404, call().status)
    assert.equal(0, (gateway:stop(10)), gateway:stderr())
  end)
end)
