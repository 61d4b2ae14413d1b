-- KV over libbaton_kv, managed by the gateway: real agents in worker processes of their own, rooms opened on both
-- sides, and decode's text made of what has arrived.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local gateway_managed = require("gateway.support.gateway_managed")

local PATH = "/v1/completions"

local function leg_params(produces, room)
  return ('{"do_remote_decode":%s,"do_remote_prefill":%s,"baton_room":%s}'):format(tostring(produces),
    tostring(not produces), room)
end

describe("a gateway-managed transfer", function()
  local f

  describe("between two pairs", function()
    setup(function()
      f = gateway_managed.start({ p0 = "ttft=1", p1 = "ttft=1", d0 = "itl=1", d1 = "itl=1" })
    end)
    teardown(function()
      f:stop()
      proc.clean()
    end)

    for _, stream in ipairs({ false, true }) do
      it("carries what decode's text is made of" .. (stream and ", streamed" or ""), function()
        for i = 1, 4 do
          local id = ("right-%s-%d"):format(tostring(stream), i)
          local answer = faults.assert_serves(f, stream, { ["X-Request-Id"] = id })
          -- A stream's head has gone before it is known.
          assert.equal(not stream and "external" or nil, answer:header("x-sim-kv-source"))
          assert.equal("bootstrap", answer:header("x-baton-plan"))
          local record = eventually(function()
            local r = f:record(id)
            return r.status == 200 and r
          end, 10, "the record")
          assert.is_true(record.attempts[1].kv.bytes > 0)
          assert.is_true(record.attempts[1].kv.transfer_ms >= 0 and record.attempts[1].kv.wait_ms >= 0)
        end
        f:wait_idle()
        assert.same({}, faults.guilt(f))
      end)
    end

    it("names one room on both legs, beside what the client has said", function()
      local body = ('{"model":"sim", "prompt":"%s","stream":true,"max_tokens":5,"min_tokens":2,"big":1e400,'
        .. '"kv_transfer_params":{"baton_room":1}}'):format(faults.PROMPT)
      local before = { p = #f:requests("p0") + #f:requests("p1"), d = #f:requests("d0") + #f:requests("d1") }
      local answer = f:post(PATH, body, { ["X-Request-Id"] = "bytes-1" })
      assert.equal(200, answer.status, answer.body)
      local function last(a, b, count)
        assert.equal(count + 1, #f:requests(a) + #f:requests(b))
        for _, name in ipairs({ a, b }) do
          local all = f:requests(name)
          if #all > 0 and all[#all].headers["x-request-id"] == "bytes-1" then
            return all[#all]
          end
        end
      end
      local p, d = last("p0", "p1", before.p), last("d0", "d1", before.d)
      local room = gateway_managed.room_of(d)
      assert.equal(room, gateway_managed.room_of(p))
      local mine = body:gsub(',"kv_transfer_params":{"baton_room":1}', "")
      legs.check(mine, p.body,
        legs.one_token(PATH, mine, { kv_transfer_params = leg_params(true, room) }))
      legs.check(mine, d.body, { added = { kv_transfer_params = leg_params(false, room) } })
      f:wait_idle()
    end)

    it("gives each sample and each prompt a room of its own", function()
      local body = ('{"model":"sim","prompt":["%s","%s"],"n":2,"seed":7,"max_tokens":5}'):format(faults.PROMPT,
        faults.PROMPT .. " again")
      local answer = f:post(PATH, body, { ["X-Request-Id"] = "many-1" })
      assert.equal(200, answer.status, answer.body)
      local seen, count = {}, 0
      for _, name in ipairs({ "d0", "d1" }) do
        for _, e in ipairs(f:requests(name)) do
          if e.headers["x-request-id"]:find("^many%-1%-") then
            local room = gateway_managed.room_of(e)
            assert.is_nil(seen[room])
            seen[room], count = true, count + 1
          end
        end
      end
      assert.equal(4, count)
      assert.equal(4, #json.decode(answer.body).choices)
      f:wait_idle()
    end)

    it("goes well for many at once", function()
      local asks = {}
      for i = 1, 40 do
        asks[i] = { path = PATH, body = faults.body({ stream = i % 2 == 0 }) }
      end
      for i, answer in ipairs(http.together(f.port, asks)) do
        assert.equal(200, answer.status, answer.body)
        assert.equal(faults.expected(), faults.text_of(answer, i % 2 == 0))
      end
      f:wait_idle()
      assert.equal(0, f:number("baton_retries_total"))
      assert.equal(0, f:number("baton_prefill_replacements_total"))
    end)

    it("outlives the gateway: another one is found and told", function()
      f:restart()
      for _, name in ipairs({ "p0", "p1", "d0", "d1" }) do
        f:wait_usable(name)
      end
      faults.assert_serves(f, true)
      f:wait_idle()
    end)
  end)

  it("is seen in /admin/rooms while it is held", function()
    f = gateway_managed.start({ p0 = "ttft=1", d0 = "itl=1" })
    f:fault("p0", { kind = "kv_stall", times = 1, after_chunks = 2 })
    local client = f:start(PATH, faults.body({ prompt = faults.PROMPT:rep(20) }), { ["X-Request-Id"] = "held-1" })
    local room = eventually(function()
      local text = http.get(f.admin_port, "/admin/rooms").body
      local first = json.decode(text).rooms[1]
      return first and first.bytes > 0 and first, text
    end, 10, "the room is shown, and its bytes")
    assert.equal("held-1", room.request_id)
    assert.equal("p0", room.prefill)
    assert.equal("d0", room.decode)
    assert.equal(gateway_managed.room_of(f:requests("d0")[1]), room.room)
    assert.equal("moving", room.phase)
    client:close()
    f:wait_idle()
    f:stop()
    proc.clean()
  end)

  it("is a load that a policy sees: the next request goes to the other decode", function()
    local policy = proc.write("by_bytes.lua", [[return { name = "by_bytes", version = "1", api = 2,
      plan = function(req, view)
        return { prefill = view.prefill[1], decode = baton.argmin(view.decode, "transfer_bytes", "id") }
      end }]])
    f = gateway_managed.start({ p0 = "ttft=1", d0 = "itl=1", d1 = "itl=1" }, { flags = { "--policy", policy } })
    f:fault("p0", { kind = "kv_stall", times = 1, after_chunks = 2 })
    local client = f:start(PATH, faults.body({ prompt = faults.PROMPT:rep(20) }))
    local left = eventually(function()
      local bytes = f:told("d0").transfer_bytes
      return bytes > 0 and bytes, tostring(bytes)
    end, 10, "decode's agent tells what is still on its way")
    assert.equal(left, f:told("p0").transfer_bytes)
    assert.equal(left, f:number("baton_worker_transfer_bytes", { worker = "d0" }))
    assert.equal(0, f:told("d1").transfer_bytes)
    local answer = f:post(PATH, faults.body())
    assert.equal(200, answer.status, answer.body)
    assert.equal("d1", answer:header("x-baton-decode"))
    client:close()
    f:wait_idle()
    eventually(function()
      return f:told("d0").transfer_bytes == 0 and f:told("p0").transfer_bytes == 0
    end, 10, "nothing is on its way any more")
    f:stop()
    proc.clean()
  end)

  it("needs agents: 503 names who has none", function()
    f = gateway_managed.start({ p0 = "ttft=1", d0 = "itl=1" }, { late = { p0 = true } })
    eventually(function()
      return f:told("p0").why_not == "no_agent", tostring(f:told("p0").why_not)
    end, 10, "p0 is up, without an agent")
    local answer = f:post(PATH, faults.body())
    assert.equal(503, answer.status)
    assert.matches("p0: no_agent", answer.body)
    assert.matches("p0: no_agent", http.get(f.port, "/readiness").body)
    f:attach("p0")
    faults.assert_serves(f)
    f:kill("d0")
    eventually(function()
      return f:told("d0").why_not ~= nil
    end, 10, "d0 is not usable")
    f:stop()
    proc.clean()
  end)

  it("is refused at the start where nobody listens for agents", function()
    local code, _, err = proc.run({
      fleet.binary("BATON_BIN", "baton"), "check", "--port", "0", "--admin-port", "0", "--connector", "BatonConnector",
      "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2",
    })
    assert.equal(2, code)
    assert.matches("add %-%-transfer%-port PORT", err)
    proc.clean()
  end)

  it("asks agents for the token", function()
    f = gateway_managed.start({ p0 = "ttft=1", d0 = "itl=1" }, { late = { p0 = true, d0 = true },
      flags = { "--transfer-token", "sesame" } })
    local address = "127.0.0.1:" .. f.transfer_port
    for _, name in ipairs({ "p0", "d0" }) do
      http.post(f.workers[name].port, "/sim/gateway", json.encode({ gateway = address }))
    end
    eventually(function()
      local why = f:state("p0").kv.agents[1].gateways[1].why
      return why:find("token", 1, true), why
    end, 10, "the agent is told why not")
    eventually(function()
      return f:told("d0").why_not == "no_agent", tostring(f:told("d0").why_not)
    end, 10, "d0 is up, without an agent")
    f:stop()
    proc.clean()
  end)
end)

