-- Whose a room is: an engine's log names a number, and any gateway of the fleet tells which one has it, and for whom.

local bit = require("bit")
local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")
local gateway_managed = require("gateway.support.gateway_managed")

local PATH = "/v1/completions"
local KEY = "s3cret"

local function url(g)
  return ("http://127.0.0.1:%d"):format(g.admin_port)
end

-- Status, and the answer as a table.
local function ask(g, room)
  local answer = http.get(g.admin_port, "/admin/rooms/" .. room, { Authorization = "Bearer " .. KEY })
  return answer.status, json.decode(answer.body)
end

-- Exit code, stdout, stderr of `baton fleet room`.
local function tool(g, ...)
  local argv = { fleet.binary("BATON_BIN", "baton"), "fleet", "room", "--admin", url(g), "--trust-store", ... }
  return proc.run(argv, { name = "fleet", seconds = 60, env = { BATON_ADMIN_API_KEY = KEY } })
end

local function has(text, part)
  assert.truthy(text:find(part, 1, true), ("%q is not in:\n%s"):format(part, text))
end

-- g knows these replicas, and what their rooms begin with: { name = { word =, loops = } }.
local function wait_replicas(g, count)
  return eventually(function()
    local body = http.get(g.admin_port, "/admin/fleet", { Authorization = "Bearer " .. KEY }).body
    local rooms, seen = {}, 0
    for _, row in ipairs(json.decode(body).replicas) do
      rooms[row.name], seen = row.rooms, seen + 1
    end
    return seen == count and rooms, body
  end, 10, count .. " replicas are known")
end

-- May this replica have minted rooms that begin with these 10 bits?
local function fits(one, bits)
  return bit.bxor(bits, one.word) < one.loops
end

-- By chance (some in 1,024) the rooms of two replicas begin alike: right answers are then other ones.
local function begin_alike(rooms)
  for name, one in pairs(rooms) do
    for other, two in pairs(rooms) do
      for loop = 0, one.loops - 1 do
        if name ~= other and fits(two, bit.bxor(one.word, loop)) then
          return true
        end
      end
    end
  end
  return false
end

describe("the rooms of a fleet", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  local server, gateways, sim

  before_each(function()
    gateways = {}
    server = redis.start()
  end)

  after_each(function()
    for _, g in ipairs(gateways) do
      g.gateway:kill(proc.SIGCONT)
      fleet.stop_gateway(g.gateway)
    end
    proc.kill_all()
  end)

  teardown(proc.clean)

  local function start_gateway(name, expiry_ms)
    local w = sim.workers
    local config = proc.write(name .. ".lua",
      ([[return { connector = "sglang", pools = { { workers = {
        { name = "p0", url = "%s", role = "prefill", bootstrap_port = %d },
        { name = "d0", url = "%s", role = "decode" } } } } }]]):format(w.p0.url, w.p0.second, w.d0.url))
    local g = { name = name }
    g.gateway, g.port, g.admin_port = fleet.start_gateway({ config, "--redis-url", server.url, "--replica-name", name,
      "--admin-api-key", KEY, "--fleet-expiry-ms", expiry_ms })
    gateways[#gateways + 1] = g
    eventually(function()
      local answer = http.get(g.port, "/readiness")
      return answer.status == 200, answer.body
    end, 10, name .. " is ready")
    return g
  end

  -- Gateways before one pair of SGLang's, and what their rooms begin with.
  local function start(names, expiry_ms)
    sim = fleet.start_sim({ "role=prefill,engine=sglang,ttft=1", "role=decode,engine=sglang,ttft=1,itl=1" })
    local out, rooms = {}, nil
    for i, name in ipairs(names) do
      out[i] = start_gateway(name, expiry_ms or 2000)
      out[name] = out[i]
    end
    for _, g in ipairs(out) do
      rooms = wait_replicas(g, #out)
    end
    if not begin_alike(rooms) then
      return out, rooms
    end
    for _, g in ipairs(out) do
      fleet.stop_gateway(g.gateway)
    end
    return start(names, expiry_ms)
  end

  -- A request that decode keeps waiting; the client's connection, and what both engines call its room: raw JSON.
  local function hold(g, id, prompt)
    sim:fault("d0", { kind = "hang", times = 1, path = PATH })
    local client = http.start(g.port, { path = PATH, headers = { ["X-Request-Id"] = id },
      body = ('{"model":"sim","prompt":%s,"max_tokens":4}'):format(prompt) })
    local function room_at(name)
      return eventually(function()
        for _, e in ipairs(sim:requests(name)) do
          if e.headers["x-request-id"] == id then
            return json.raw(e.body, "bootstrap_room")
          end
        end
      end, 10, name .. " has heard of " .. id)
    end
    local room = room_at("d0")
    assert.equal(room, room_at("p0"))
    return client, room
  end

  local function wait_ended(g, room)
    eventually(function()
      local status, told = ask(g, room)
      return status == 404, json.encode(told)
    end, 10, "the room is not open any more")
  end

  it("are found from any gateway", function()
    local all = start({ "a", "b", "c" })
    local a, b = all.a, all.b
    local client, room = hold(a, "held-1", '"hello there"')
    local status, told = ask(b, room)
    assert.equal(200, status)
    assert.equal(room, told.room)
    assert.equal("b", told.replica)
    assert.equal(json.null, told.here)
    assert.same({ { name = "a", admin = url(a) } }, told.elsewhere)
    status, told = ask(a, room)
    assert.equal(200, status)
    assert.equal("a", told.replica)
    assert.equal("held-1", told.here.request.id)
    assert.equal("bootstrap", told.here.request.plan)
    assert.equal("held-1", told.here.attempt.id)
    assert.equal("p0", told.here.attempt.prefill)
    assert.equal("d0", told.here.attempt.decode)
    assert.equal(json.null, told.here.transfer)
    for _, g in ipairs(all) do
      local code, out, err = tool(g, room)
      assert.equal(0, code, out .. err)
      assert.equal("", err)
      has(out, ("room %s is at replica a, %s\n"):format(room, url(a)))
      assert.truthy(out:find("\nheld%-1 +completions +sim +bootstrap +held%-1 +p0 +d0 +%d+ +0 +0\n"), out)
      code, out = tool(g, room, "--json")
      assert.equal(0, code)
      assert.equal("held-1", json.decode(out).here.request.id)
    end
    -- It ends: a still knows that the number was its own, and so do the others.
    client:close()
    wait_ended(a, room)
    status, told = ask(a, room)
    assert.equal(404, status)
    has(told.error.message, room .. " is of this gateway's numbers, but it is not open: it has ended")
    status, told = ask(b, room)
    assert.equal(200, status)
    assert.same({ { name = "a", admin = url(a) } }, told.elsewhere)
    local code, out, err = tool(b, room)
    assert.equal(1, code)
    assert.equal("", out)
    has(err, ("room %s is open at no replica: it has ended"):format(room))
  end)

  it("are one for each prompt of a list, all of them the request's", function()
    local all = start({ "a", "b" })
    local a, b = all.a, all.b
    local client, raw = hold(a, "list-1", '["one","two","three"]')
    local rooms = json.elements(raw)
    assert.equal(3, #rooms)
    for _, room in ipairs(rooms) do
      local told = json.decode(select(2, tool(b, room, "--json")))
      assert.equal(room, told.room)
      assert.equal("list-1", told.here.request.id)
    end
    client:close()
    wait_ended(a, rooms[3])
  end)

  it("are nobody's when no replica could have minted them", function()
    local all, rooms = start({ "a", "b" })
    local a, bits = all.a, 0
    while fits(rooms.a, bits) or fits(rooms.b, bits) do
      bits = bits + 1
    end
    local room = ("%.0f"):format(bits * 2 ^ 53 + 2 ^ 20)
    local status, told = ask(a, room)
    assert.equal(404, status)
    has(told.error.message, "room " .. room .. " can be of no replica that is known now")
    local code, out, err = tool(a, room)
    assert.equal(1, code)
    assert.equal("", out)
    has(err, "can be of no replica that is known now")
    status, told = ask(a, "0")
    assert.equal(400, status)
    has(told.error.message, "from 1 to 9223372036854775807")
  end)

  it("are told to be out of reach while their gateway hangs", function()
    local all = start({ "a", "b" }, 60000)
    local a, b = all.a, all.b
    local client, room = hold(a, "held-2", '"hello there"')
    a.gateway:kill(proc.SIGSTOP)
    local code, out, err = tool(b, room, "--timeout", "0.5")
    assert.equal(1, code)
    assert.equal("", out)
    has(err, ("a: %s does not answer: "):format(url(a)))
    has(err, ("room %s is at no replica that could be asked"):format(room))
    a.gateway:kill(proc.SIGCONT)
    has(select(2, tool(b, room)), "\nheld-2 ")
    client:close()
    wait_ended(a, room)
  end)

  it("are nobody's once their gateway is dead", function()
    local all = start({ "a", "b" })
    local a, b = all.a, all.b
    local client, room = hold(a, "held-3", '"hello there"')
    a.gateway:kill(proc.SIGKILL)
    a.gateway:wait()
    wait_replicas(b, 1)
    local status, told = ask(b, room)
    assert.equal(404, status)
    has(told.error.message, "its gateway has ended")
    client:close()
  end)

  it("show their transfer when they are gateway-managed", function()
    local f = gateway_managed.start({ p0 = "ttft=1", d0 = "itl=1" },
      { flags = { "--redis-url", server.url, "--replica-name", "a" } })
    local b = {}
    b.gateway, b.port, b.admin_port = fleet.start_gateway({ f.config, "--transfer-port", "0", "--redis-url",
      server.url, "--replica-name", "b" })
    gateways[1] = b
    wait_replicas(b, 2)
    f:fault("p0", { kind = "kv_stall", times = 1, after_chunks = 2 })
    local client = f:start(PATH, faults.body({ prompt = faults.PROMPT:rep(20) }), { ["X-Request-Id"] = "managed-1" })
    local room = eventually(function()
      local first = f:requests("d0")[1]
      return first and gateway_managed.room_of(first)
    end, 10, "decode has heard of its room")
    local told = eventually(function()
      local code, out, err = tool(b, room, "--json")
      local told = code == 0 and json.decode(out)
      return told and told.here.transfer.bytes > 0 and told, out .. err
    end, 10, "b's answer leads to the bytes that have moved")
    assert.equal("a", told.replica)
    assert.equal("managed-1", told.here.request.id)
    assert.equal(room, told.here.transfer.room)
    assert.equal("moving", told.here.transfer.phase)
    assert.equal("managed-1", told.here.transfer.request_id)
    local code, out = tool(b, room)
    assert.equal(0, code)
    has(out, ("room %s is at replica a, %s\n"):format(room, url(f)))
    assert.truthy(out:find("\nmanaged%-1 +completions +sim +bootstrap +managed%-1 +p0 +d0 +%d+ "), out)
    assert.truthy(out:find("\nmoving +p0 +d0 +%l+ +[1-9]%d* +[1-9]%d*/[1-9]%d* +%d+ +%-\n"), out)
    -- Its end is remembered for a while, by the hub that had it.
    client:close()
    f:wait_idle()
    told = eventually(function()
      local status, seen = ask(f, room)
      return status == 200 and seen.here.request == json.null and seen, json.encode(seen)
    end, 10, "the request has ended")
    assert.equal("failed", told.here.transfer.phase)
    code, out = tool(b, room)
    assert.equal(0, code)
    has(out, "its request, managed-1, has ended\n")
    assert.truthy(out:find("\nfailed +p0 +d0 "), out)
    f:stop()
  end)
end)
