-- Another role for a worker of a fleet: all replicas switch it, those that come later too, and no request is lost.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local pace = require("gateway.support.pace")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")

local SGLANG = ",engine=sglang,ttft=1,itl=1"
local CAN = { "role=prefill,count=2,role_switch=1" .. SGLANG, "role=decode,count=2,role_switch=1" .. SGLANG }

describe("roles in a fleet", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  local sim, store, gateways

  local function start_gateway(name)
    local words = { "--pd-disaggregation", "--redis-url", store.url, "--replica-name", name,
      "--role-check-secs", "0.5" }
    for _, w in ipairs(sim.list) do
      words[#words + 1] = "--" .. w.role
      words[#words + 1] = w.url
      if w.role == "prefill" then
        words[#words + 1] = w.second
      end
    end
    local g = { name = name }
    g.gateway, g.port, g.admin_port = fleet.start_gateway(words)
    gateways[#gateways + 1] = g
    return g
  end

  local function told(g, name)
    return json.decode(http.get(g.admin_port, "/workers/" .. name).body)
  end

  local function wait_role(g, name, role)
    eventually(function()
      local w = told(g, name)
      return w.role == role and w.usable, json.encode(w) .. g.gateway:stderr():sub(-1500)
    end, 20, ("%s is %s for %s"):format(name, role, g.name))
  end

  local function switch(g, name, words)
    local answer = http.post(g.admin_port, ("/workers/%s/role?%s"):format(name, words), "")
    return answer.status, answer.body
  end

  -- "p1=decode": the orders that hold.
  local function orders(g)
    local out = {}
    for _, row in ipairs(json.decode(http.get(g.admin_port, "/fleet").body).roles) do
      for _, w in ipairs(sim.list) do
        if row.worker == w.url:match("//(.*)") then
          out[#out + 1] = w.name .. "=" .. row.role
        end
      end
    end
    return table.concat(out, " ")
  end

  local function wait_orders(g, wanted)
    eventually(function()
      local now = orders(g)
      return now == wanted, now
    end, 10, g.name .. " knows the orders " .. wanted)
  end

  local function wait_replicas(count)
    for _, g in ipairs(gateways) do
      eventually(function()
        return #json.decode(http.get(g.admin_port, "/fleet").body).replicas == count
      end, 10, count .. " replicas are known")
    end
  end

  local function start(workers, names)
    sim = fleet.start_sim(workers)
    for _, name in ipairs(names) do
      local g = start_gateway(name)
      for _, w in ipairs(sim.list) do
        wait_role(g, w.name, w.role)
      end
    end
    wait_replicas(#names)
  end

  local function under_load(work)
    local loads = {}
    for i, g in ipairs(gateways) do
      loads[i] = pace.start(g.port, 8, 50, 0)
    end
    work()
    for _, p in ipairs(loads) do
      pace.stop(p) -- an error where one has failed
    end
  end

  before_each(function()
    gateways, store = {}, redis.start()
  end)

  after_each(function()
    fleet.stop_gateways(gateways)
    proc.kill_all()
  end)

  teardown(proc.clean)

  it("are switched by all replicas under load, and back", function()
    start(CAN, { "a", "b" })
    local a, b = gateways[1], gateways[2]
    under_load(function()
      local status, body = switch(a, "p1", "to=decode")
      assert.equal(202, status, body)
      assert.equal("told", json.decode(body).fleet)
      eventually(function()
        return told(b, "p1").why_not == "switching_role"
      end, 5, "b gives it no requests")
      wait_role(a, "p1", "decode")
      wait_role(b, "p1", "decode")
    end)
    assert.equal("decode", sim:state("p1").role)
    assert.equal("prefill", told(b, "p1").role_switched_from)
    wait_orders(b, "p1=decode")
    assert.equal(409, (switch(b, "p1", "to=decode")))
    under_load(function()
      assert.equal(202, (switch(b, "p1", "to=prefill")))
      wait_role(a, "p1", "prefill")
      wait_role(b, "p1", "prefill")
    end)
    assert.equal("prefill", sim:state("p1").role)
    wait_orders(a, "") -- it is what the flags say
  end)

  it("are learned by a replica that begins later, or begins again", function()
    start(CAN, { "a" })
    local a = gateways[1]
    assert.equal(202, (switch(a, "p1", "to=decode")))
    wait_role(a, "p1", "decode")
    local b = start_gateway("b")
    assert.not_equal("prefill", told(b, "p1").usable and told(b, "p1").role)
    wait_role(b, "p1", "decode")
    assert.equal(0, told(b, "p1").legs.prefill.ok)
    assert.equal(0, a.gateway:stop(10))
    table.remove(gateways, 1)
    local again = start_gateway("a")
    wait_role(again, "p1", "decode")
    under_load(function()
      eventually(function()
        return told(again, "p1").legs.decode.ok > 0 and told(b, "p1").legs.decode.ok > 0
      end, 10, "both serve decode legs with it")
    end)
  end)

  it("are given again to an engine that begins anew as it was started", function()
    start(CAN, { "a" })
    local a, p1 = gateways[1], sim.workers.p1
    assert.equal(202, (switch(a, "p1", "to=decode")))
    wait_role(a, "p1", "decode")
    local id = told(a, "p1").id
    assert.equal(200, http.post(p1.port, "/pd_role_switch", '{"new_role":"prefill"}').status)
    eventually(function()
      local w = told(a, "p1")
      return w.role == "decode" and w.usable and w.id > id + 1 and sim:state("p1").role == "decode", json.encode(w)
    end, 15, "seen, and ordered again")
  end)

  it("are learned by a replica that was away", function()
    start(CAN, { "a", "b" })
    local a, b = gateways[1], gateways[2]
    b.gateway:kill(proc.SIGSTOP)
    assert.equal(202, (switch(a, "p1", "to=decode")))
    wait_role(a, "p1", "decode")
    b.gateway:kill(proc.SIGCONT)
    wait_role(b, "p1", "decode")
  end)

  it("stay where the engine refuses, for all", function()
    start({ "role=prefill,count=2" .. SGLANG, "role=decode,count=2" .. SGLANG }, { "a", "b" })
    local a, b = gateways[1], gateways[2]
    under_load(function()
      assert.equal(202, (switch(a, "p1", "to=decode")))
      eventually(function()
        local s = told(a, "p1").role_switch
        return s and s.state == "failed" and told(a, "p1").usable
      end, 15, "a serves on with it")
      wait_orders(a, "")
      wait_orders(b, "")
      wait_role(b, "p1", "prefill")
    end)
    assert.equal("prefill", told(a, "p1").role)
  end)

  it("are not switched while the others cannot be told", function()
    start(CAN, { "a" })
    store:kill()
    eventually(function()
      local status, body = switch(gateways[1], "p1", "to=decode")
      return status == 503 and body:find("all replicas or by none", 1, true), body
    end, 10, "it is refused")
    assert.is_true(told(gateways[1], "p1").usable)
  end)
end)
