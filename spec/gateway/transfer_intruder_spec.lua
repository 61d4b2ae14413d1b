-- Somebody else on the KV control plane: at the gateway's port for agents, at an agent's own port, at the registry.
-- What lives is served on, and what comes back after its death is served again.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local kv_peer = require("gateway.support.kv_peer")
local proc = require("gateway.support.proc")
local gateway_managed = require("gateway.support.gateway_managed")

local PATH = "/v1/completions"
local TOKEN = "sesame-7313"
local ELSEWHERE = "127.0.0.2"
local SLOW = "ttft=3000,kv_chunk_pages=1" -- it sends page by page, for as long as somebody intrudes
local LONG = ("The baton is handed on at full speed, and nobody may drop it now. "):rep(40)
local INFO = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
local PUT_BODY = json.encode({ attn_tp_size = 1, attn_tp_rank = 0, attn_cp_size = 1, attn_cp_rank = 0, attn_dp_size = 1,
  attn_dp_rank = 0, pp_size = 1, pp_rank = 0, system_dp_size = 1, system_dp_rank = 0, rank_ip = "0.0.0.0",
  rank_port = 9001, page_size = 16, kv_cache_dtype = "auto", load_balance_method = "round_robin" })

local function has(text, part)
  assert.truthy(text:find(part, 1, true), ("%q is not in:\n%s"):format(part, text))
end

-- One hello at the gateway; how long it shall stay away and why, or nil: it is welcome.
local function try(f, from, hello)
  local who = kv_peer.dial(f.transfer_port, { from = from })
  who:say_gateway(hello)
  local m = assert(who:hear())
  if m.type == kv_peer.WELCOME then
    return nil, who
  end
  assert.equal(kv_peer.REFUSE, m.type)
  local retry_ms, why = kv_peer.refusal(m)
  assert.is_nil(who:hear())
  who:close()
  return retry_ms, why
end

local function agents(f)
  local out = {}
  for _, a in ipairs(json.decode(http.get(f.admin_port, "/admin/rooms").body).agents) do
    out[a.worker] = a
  end
  return out
end

describe("an intruder", function()
  local f

  after_each(function()
    proc.clean()
  end)

  local function assert_serves_on(clients)
    for _, client in ipairs(clients) do
      local answer = client:wait()
      assert.equal(200, answer.status, answer.body)
      assert.equal(fleet.expect(LONG, faults.TOKENS), faults.text_of(answer))
      assert.is_nil(answer:header("x-baton-attempts"))
    end
    f:wait_idle()
    assert.same({}, faults.guilt(f))
    for _, name in ipairs({ "p0", "d0" }) do
      local s = f:state(name)
      assert.equal(0, s.kv.rooms_failed, json.encode(s.kv))
      assert.is_nil(f.sims[name].process:stderr():find("no gateway at", 1, true))
    end
  end

  local function start_requests(count)
    local clients = {}
    for i = 1, count do
      clients[i] = f:start(PATH, faults.body({ prompt = LONG }))
    end
    eventually(function()
      local s = f:state("d0")
      return s.kv.rooms.transferring == count, json.encode(s.kv)
    end, 10, "bytes come to d0")
    return clients
  end

  it("takes no live agent's place, whatever it says and wherever it is", function()
    f = gateway_managed.start({ p0 = SLOW, d0 = "itl=1" })
    local clients = start_requests(4)
    local before = agents(f)
    for _, from in ipairs({ ELSEWHERE, "127.0.0.1" }) do
      for _, worker in ipairs({ "p0", f.workers.p0.url, "d0" }) do
        local retry_ms, why = try(f, from, { worker = worker })
        assert.is_true(retry_ms > 0 and retry_ms <= 6000, tostring(retry_ms))
        has(why, from == ELSEWHERE and "--transfer-token" or "is alive: end it")
        -- Nor may it make a worker of more ranks of it, of which the others are not there.
        retry_ms, why = try(f, from, { worker = worker, rank = 1, ranks = 2 })
        assert.is_true(retry_ms > 0 and retry_ms <= 6000, tostring(retry_ms))
        has(why, "another number of ranks")
      end
    end
    local after = agents(f)
    for _, name in ipairs({ "p0", "d0" }) do
      assert.is_true(f:told(name).usable)
      assert.equal(before[name].pid, after[name].pid)
      assert.is_true(after[name].since_ms >= before[name].since_ms)
    end
    assert_serves_on(clients)
    f:stop()
  end)

  it("without the token says nothing that anybody hears", function()
    f = gateway_managed.start({ p0 = SLOW .. ",kv_token=" .. TOKEN, d0 = "itl=1,kv_token=" .. TOKEN },
      { flags = { "--transfer-token", TOKEN }, token = TOKEN })
    local clients = start_requests(2)
    for _, token in ipairs({ "", "sesame-7314", TOKEN .. TOKEN }) do
      local _, why = try(f, "127.0.0.1", { worker = "p0", token = token })
      has(why, "--transfer-token")
    end
    -- With it, it is one of several that were given the same name: the one that lives stays.
    local retry_ms, why = try(f, ELSEWHERE, { worker = "p0", token = TOKEN })
    assert.is_true(retry_ms <= 3000, tostring(retry_ms))
    has(why, "is alive: end it")
    -- At an agent's own port no table is told before the token.
    local port = f:state("p0").kv.agents[1].port
    for _, token in ipairs({ "", "sesame-7314" }) do
      local who = kv_peer.dial(port, { from = ELSEWHERE })
      who:say_agent(token)
      local types, last = who:hear_all()
      assert.equal(tostring(kv_peer.CLOSE), types)
      has(kv_peer.reason(last), token == "" and "has no proof of the token: give both sides the same one"
        or "has another token: give both sides the same one")
      who:close()
    end
    local who = kv_peer.dial(port)
    who:say_agent(TOKEN)
    for _, type in ipairs({ kv_peer.HELLO, kv_peer.REGION, kv_peer.LAYOUT }) do
      assert.equal(type, assert(who:hear()).type)
    end
    who:close()
    -- What an agent that has it has said, said again, proves nothing; nor does the gateway's own challenge, given back.
    local _, said = kv_peer.dial(f.transfer_port):prove(TOKEN, "G")
    local again = kv_peer.dial(f.transfer_port):prove(TOKEN, "G", said)
    assert.equal(kv_peer.REFUSE, again.type)
    -- Nor can somebody go on who has only passed the proof on.
    local relay = kv_peer.dial(f.transfer_port)
    assert.equal(115, relay:prove(TOKEN, "G").type)
    relay.out = nil
    relay:say_gateway({ worker = "p0" })
    relay:say_gateway({ worker = "p0" })
    assert.is_nil(relay:hear())
    -- Who says nothing, or a byte now and then, is hung up on after five seconds, and answers nobody's hello.
    local slow = kv_peer.dial(f.transfer_port)
    slow:send("\38")
    assert.is_nil(slow:hear())
    assert_serves_on(clients)
    for _, process in ipairs({ f.gateway, f.sims.p0.process, f.sims.d0.process }) do
      assert.is_nil(process:stderr():find("sesame", 1, true), "a log tells a token")
    end
    f:stop()
  end)

  it("is who has the old token, once it has been changed", function()
    local old, new = "sesame-of-yesterday", "sesame-of-tomorrow"
    local file = proc.write("tokens", old .. "\n")
    f = gateway_managed.start({ p0 = "ttft=1,kv_token=" .. old, d0 = "itl=1,kv_token=" .. old },
      { flags = { "--transfer-token-file", file }, token = old })
    local reloads = 0
    local function write(text)
      local out = assert(io.open(file, "w"))
      out:write(text)
      out:close()
      f.gateway:kill(proc.SIGHUP)
    end
    local function change(text)
      write(text)
      reloads = reloads + 1
      eventually(function()
        local _, count = f.gateway:stderr():gsub("reloaded: epoch", "")
        return count == reloads, f.gateway:stderr()
      end, 10, "the new tokens count")
    end
    local function may(token)
      local retry_ms, answer = try(f, "127.0.0.1", { worker = "nobody", token = token })
      if retry_ms then
        has(answer, "it has another token")
        return false
      end
      answer:close()
      return true
    end
    local function assert_takes(is_old, is_new)
      assert.same({ is_old, is_new }, { may(old), may(new) })
      faults.assert_serves(f)
    end
    assert_takes(true, false)
    change(old .. "\n" .. new .. "\n")
    assert_takes(true, true)
    write("short\n")
    f.gateway:says("expected a token a line")
    assert_takes(true, true)
    change(new .. "\n")
    assert_takes(false, true) -- agents that are there stay
    f:wait_idle()
    f:stop()
  end)

  it("registers no prefill without the registry's token", function()
    local sim = fleet.start_sim({ "role=hybrid" })
    local process, _, _, told = fleet.start_gateway({ "--worker-urls", sim.list[1].url, "--registry-port", "0",
      "--registry-token", TOKEN })
    local function ask(method, path, token, body)
      return http.request(told.registry_port, { method = method, path = path, body = body,
        headers = token and { Authorization = "Bearer " .. token } })
    end
    for _, token in ipairs({ "", "sesame-7314" }) do
      assert.equal(401, ask("PUT", "/route", token, PUT_BODY).status)
      assert.equal(401, ask("GET", INFO, token).status)
      assert.equal(401, ask("POST", "/register_dp_rank", token, '{"bootstrap_room":7,"dp_rank":0}').status)
      assert.equal(401, ask("POST", "/query_dp_ranks", token, '{"bootstrap_rooms":[7]}').status)
    end
    assert.equal(401, ask("PUT", "/route", nil, PUT_BODY).status)
    assert.equal(200, ask("GET", "/health").status)
    assert.equal(503, ask("GET", INFO, TOKEN).status) -- nobody has registered
    assert.equal(200, ask("PUT", "/route", TOKEN, PUT_BODY).status)
    assert.equal(200, ask("GET", INFO, TOKEN).status)
    process:says(("SGLang's registry on 127.0.0.1:%d, open to whoever shows the token"):format(told.registry_port))
    assert.equal(0, (process:stop(10)))
    assert.is_nil(process:stderr():find("sesame", 1, true))
    sim.process:stop(5)
  end)

  it("is what the first lines of the log are about: who may come in, and where", function()
    local sim = fleet.start_sim({ "role=hybrid" })
    for _, case in ipairs({
      { {}, "open to every process of this host (no --transfer-token)",
        "open to this host and the workers' hosts (no --registry-token" },
      { { "--transfer-token", TOKEN, "--registry-allow", "10.0.0.0/8" }, "open to agents that have the token",
        "open to this host, the workers' hosts and those of --registry-allow" },
    }) do
      local words = { "--worker-urls", sim.list[1].url, "--registry-port", "0", "--transfer-port", "0" }
      for _, word in ipairs(case[1]) do
        words[#words + 1] = word
      end
      local process, _, _, told = fleet.start_gateway(words)
      process:says(("transfer agents on 127.0.0.1:%d, %s"):format(told.transfer_port, case[2]))
      process:says(("SGLang's registry on 127.0.0.1:%d, %s"):format(told.registry_port, case[3]))
      assert.equal(0, (process:stop(10)))
    end
    sim.process:stop(5)
  end)
end)

describe("an agent that comes back", function()
  local f

  after_each(function()
    proc.clean()
  end)

  -- A process with the worker's agent, whose engine listens elsewhere: what a container with another address is.
  local function start_successor(name)
    local role = name:sub(1, 1) == "p" and "prefill" or "decode"
    local sim = fleet.start_sim({ ("role=%s,name=%s-again,connector=BatonConnector,gateway=127.0.0.1:%d,"
      .. "gateway_worker=%s"):format(role, name, f.transfer_port, f.workers[name].url) })
    return sim
  end

  local function wait_registered(sim)
    eventually(function()
      local gateway = sim:state(sim.list[1].name).kv.agents[1].gateways[1]
      return gateway.registered, json.encode(gateway)
    end, 10, "the new agent is registered")
  end

  it("has its place at once when it was killed", function()
    f = gateway_managed.start({ p0 = "ttft=1", d0 = "itl=1" })
    local port = f.workers.p0.port
    f.sims.p0.process:kill(proc.SIGKILL)
    f.sims.p0.process:wait()
    f.sims.p0 = fleet.start_sim({ ("role=prefill,name=p0,port=%d,connector=BatonConnector,ttft=1,"
      .. "gateway=127.0.0.1:%d"):format(port, f.transfer_port) })
    f:wait_usable("p0")
    assert.is_nil(f.sims.p0.process:stderr():find("refused", 1, true))
    faults.assert_serves(f)
    f:wait_idle()
    f:stop()
  end)

  it("has it while the old process stands still with its connection", function()
    f = gateway_managed.start({ p0 = "ttft=1", d0 = "itl=1" })
    f:kill("p0", proc.SIGSTOP)
    local again = start_successor("p0")
    wait_registered(again)
    assert.equal(again.process.pid, agents(f).p0.pid)
    -- The old one wakes up, and does not drive the new one out.
    f.sims.p0.process:kill(proc.SIGCONT)
    eventually(function()
      local why = f:state("p0").kv.agents[1].gateways[1].why
      return why:find("is alive: end it", 1, true), why
    end, 20, "the old one is refused")
    assert.equal(again.process.pid, agents(f).p0.pid)
    -- And is back when the new one is gone.
    again.process:kill(proc.SIGKILL)
    eventually(function()
      return agents(f).p0 and agents(f).p0.pid == f.sims.p0.process.pid
    end, 20, "the old one is back")
    f.sims.p0.process:stop(5)
    f:stop()
  end)

  it("has it while an old connection never closes", function()
    f = gateway_managed.start({ p0 = "ttft=1", d0 = "itl=1" }, { late = { p0 = true } })
    local retry_ms, ghost = try(f, "127.0.0.1", { worker = "p0" })
    assert.is_nil(retry_ms) -- the place was free
    f:attach("p0")
    eventually(function()
      return agents(f).p0.pid == f.sims.p0.process.pid
    end, 10, "p0's agent has its place")
    faults.assert_serves(f)
    ghost:close()
    f:wait_idle()
    f:stop()
  end)
end)
