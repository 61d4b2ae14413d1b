-- Workers that die: kill -9 of their processes and engines that end, at each phase. Each simulator process here
-- holds whole
-- pairs, kept together by a transfer group, since simulated KV does not leave its process.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"

local DIALECTS = {
  nixl = { tail = "connector=NixlConnector", connector = "NixlConnector" },
  shared_cache = { tail = "connector=ExampleConnector", connector = "ExampleConnector" },
  sglang = { tail = "engine=sglang", connector = "sglang" },
}

local Cluster = {}
Cluster.__index = Cluster

local function config(dialect, sims)
  local lines = {}
  for group, sim in ipairs(sims) do
    for _, w in ipairs(sim.list) do
      local port = w.second > 0 and w.role == "prefill" and (", bootstrap_port = " .. w.second) or ""
      local line = '{ name = "%s", role = "%s", url = "%s", connector = "%s", transfer_group = "g%d"%s },'
      lines[#lines + 1] = line:format(w.name, w.role, w.url, dialect.connector, group, port)
    end
  end
  return 'return { pools = { { name = "both", workers = {\n' .. table.concat(lines, "\n") .. "\n} } } }\n"
end

-- Two processes with one pair each: pa/da and pb/db.
local function start(name, flags)
  local dialect, self = DIALECTS[name], setmetatable({ sims = {} }, Cluster)
  for i, letter in ipairs({ "a", "b" }) do
    self.sims[i] = fleet.start_sim({
      ("role=prefill,name=p%s,itl=2,ttft=1,%s"):format(letter, dialect.tail),
        ("role=decode,name=d%s,itl=2,ttft=1,%s"):format(letter, dialect.tail),
    })
  end
  local words = { proc.write("baton.lua", config(dialect, self.sims)) }
  proc.append(words, flags)
  self.gateway, self.port, self.admin_port = fleet.start_gateway(words)
  eventually(function()
    local up = 0
    for _, s in ipairs(faults.samples(self, "baton_worker_usable")) do
      up = up + s.value
    end
    return up == 4, up
  end, 10, "all four workers are up")
  return self
end

function Cluster:ask(ask)
  local headers = { ["X-Sim-Fault"] = ask.fault, ["X-Request-Id"] = ask.id }
  return http.start(self.port, { path = PATH, body = faults.body(ask), headers = headers })
end

-- The process whose worker of this letter has a leg, and its letter.
function Cluster:busy(role)
  for i, letter in ipairs({ "a", "b" }) do
    local name = role .. letter
    local ok, state = pcall(self.sims[i].state, self.sims[i], name)
    if ok and state.live > 0 then
      return self.sims[i], letter, i
    end
  end
end

function Cluster:wait_busy(role)
  eventually(function()
    return self:busy(role)
  end, 5, "a leg is at " .. role)
  return self:busy(role)
end

function Cluster:stop()
  fleet.stop_gateway(self.gateway)
  for _, sim in ipairs(self.sims) do
    sim.process:stop(5)
  end
end

local function kill(sim)
  sim.process:kill(proc.SIGKILL)
  sim.process:wait(5)
end

local function is_down(cluster, name)
  return faults.number(cluster, "baton_worker_usable", { worker = name }) == 0
end

for name in pairs(DIALECTS) do
  describe("kill -9 of a pair, " .. name, function()
    local f

    before_each(function()
      f = start(name, { "--disable-circuit-breaker" })
    end)

    after_each(function()
      faults.wait_idle(f)
      f:stop()
    end)

    local PHASES = {
      { what = "while prefill works", fault = "slow_first_byte:60000@prefill", role = "p" },
      { what = "while decode waits for its first token", fault = "slow_first_byte:60000@decode", role = "d" },
    }

    for _, phase in ipairs(PHASES) do
      for _, stream in ipairs({ false, true }) do
        it(("%s is not seen by the client%s"):format(phase.what, stream and ", streamed" or ""), function()
          local c = f:ask({ stream = stream, fault = phase.fault })
          local sim, letter, i = f:wait_busy(phase.role)
          -- the other pair must not be slow as well
          local well = f.sims[3 - i]
          kill(sim)
          local other_letter = letter == "a" and "b" or "a"
          eventually(function()
            return well:state(phase.role .. other_letter).live == 1
          end, 5, "the other pair has taken over")
          c:close()
          faults.wait_idle(f)
          assert.equal(0, well:state("p" .. other_letter).live)
          local answer = f:ask({ stream = stream }):wait()
          assert.equal(200, answer.status, answer.body)
          assert.equal(faults.expected(), faults.text_of(answer, stream))
          assert.equal("p" .. other_letter, answer:header("x-baton-prefill"))
          local guilt = faults.guilt(f)
          assert.is_nil(guilt["p" .. other_letter])
          assert.is_nil(guilt["d" .. other_letter])
        end)
      end
    end

    it("in the middle of a stream ends it with an error, never with silence or a whole answer", function()
      local c = f:ask({ stream = true, tokens = 60000 })
      c:wait_events(3)
      local sim, letter = f:busy("d")
      kill(sim)
      local answer = c:wait()
      c:close()
      assert.equal(200, answer.status)
      faults.assert_not_whole(answer)
      assert.same({ ["d" .. letter] = 1 }, faults.guilt(f))
      local after = f:ask({ stream = true }):wait()
      assert.equal(faults.expected(), faults.text_of(after, true))
    end)

    it("with many requests under way loses only what had begun to answer", function()
      local asks = {}
      for i = 1, 30 do
        asks[i] = f:ask({ stream = i % 2 == 0, tokens = 100 })
      end
      f:wait_busy("d")
      kill(f.sims[1])
      local expected = faults.expected(100)
      for i, c in ipairs(asks) do
        local answer = c:wait()
        c:close()
        assert.equal(200, answer.status, answer.body)
        if i % 2 == 1 then
          assert.equal(expected, faults.text_of(answer, false))
        elseif answer.broken or #faults.error_events(answer) > 0 then
          assert.equal("da", answer:header("x-baton-decode"))
          assert.equal(expected:sub(1, #faults.text_of(answer, true)), faults.text_of(answer, true))
        else
          assert.equal(expected, faults.text_of(answer, true))
        end
      end
      local guilt = faults.guilt(f)
      assert.is_nil(guilt.pb)
      assert.is_nil(guilt.db)
    end)

    it("is followed by refused connections: the dead are out at once", function()
      kill(f.sims[1])
      for i = 1, 6 do
        local answer = f:ask({ stream = i % 2 == 0 }):wait()
        assert.equal(200, answer.status, answer.body)
        assert.equal("pb", answer:header("x-baton-prefill"))
      end
      eventually(function()
        return is_down(f, "pa") and is_down(f, "da")
      end, 5, "both are known to be down")
    end)
  end)
end

describe("an engine that dies", function()
  local WORKERS = {
    vllm = { "role=prefill,count=2,itl=2,ttft=1", "role=decode,count=2,itl=2,ttft=1" },
    sglang = { "role=prefill,engine=sglang,count=2,itl=2,ttft=1", "role=decode,engine=sglang,count=2,itl=2,ttft=1" },
  }

  for engine, workers in pairs(WORKERS) do
    for _, victim in ipairs({ "p0", "d0" }) do
      it(("is left, and used again when it is back: %s of %s"):format(victim, engine), function()
        local f = fleet.start({ workers = workers, sim = { "--time-scale", "0.05" },
          flags = { engine == "sglang" and "--pd-disaggregation" or "--vllm-pd-disaggregation",
            "--health-success-threshold", "1",
            "--breaker-open-secs", "0.3" } })
        local clients = {}
        for i = 1, 12 do
          clients[i] = http.start(f.port, { path = PATH, body = faults.body({ stream = i % 2 == 0, tokens = 60 }) })
        end
        eventually(function()
          return faults.state(f, victim).requests > 0
        end, 5, "the victim works")
        f.sim:fault(victim, { kind = "die" })
        local expected = faults.expected(60)
        for i, c in ipairs(clients) do
          local answer = c:wait()
          c:close()
          assert.equal(200, answer.status, answer.body)
          if i % 2 == 1 then
            assert.equal(expected, faults.text_of(answer, false))
          elseif not (answer.broken or #faults.error_events(answer) > 0) then
            assert.equal(expected, faults.text_of(answer, true))
          end
        end
        eventually(function()
          return is_down(f, victim)
        end, 8, "the dead engine is known")
        for _ = 1, 4 do
          faults.assert_serves(f, true)
        end
        faults.wait_idle(f)
        f.sim:reset(victim)
        eventually(function()
          return not is_down(f, victim)
        end, 8, "it is back")
        eventually(function()
          faults.assert_serves(f)
          return faults.state(f, victim).answered > 0
        end, 8, "and gets traffic")
        faults.wait_idle(f)
        f:stop()
      end)
    end
  end
end)

teardown(function()
  proc.clean()
end)
