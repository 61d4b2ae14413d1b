-- The client leaves: both legs end at once, engines are told, nothing stays held. FIN and RST, before the first
-- token and in
-- the middle of a stream, with and without keep-alive comments.

local eventually = require("gateway.support.eventually")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local LONG = "slow_first_byte:600000"

local FLEETS = {
  { name = "SGLang", tail = ",engine=sglang,itl=10,ttft=1", flags = { "--pd-disaggregation" }, aborts = true },
  { name = "NixlConnector", tail = ",connector=NixlConnector,itl=10,ttft=1", flags = { "--vllm-pd-disaggregation" } },
  { name = "ExampleConnector", tail = ",connector=ExampleConnector,itl=10,ttft=1",
    flags = { "--vllm-pd-disaggregation", "--kv-connector", "ExampleConnector" } },
}

local LEAVE = {
  FIN = function(c)
    c:close()
  end,
  RST = function(c)
    c:reset()
  end,
  ["half a FIN"] = function(c)
    c.socket:shutdown("send")
  end,
}

local function open(f, ask)
  f:mark()
  ask.id = faults.new_id()
  local headers = { ["X-Request-Id"] = ask.id, ["X-Sim-Fault"] = ask.fault }
  return http.start(f.port, { path = "/v1/completions", body = faults.body({ stream = ask.stream,
    tokens = ask.tokens }), headers = headers })
end

-- Until these legs are at their engines.
local function wait_legs(f, ask, prefills, decodes)
  eventually(function()
    local legs = faults.legs_of(f, ask.id)
    return #legs.prefill == prefills and #legs.decode == decodes, #legs.prefill .. " and " .. #legs.decode .. " legs"
  end, 5, "the legs are there")
end

-- Far sooner than engines would notice by themselves: SGLang looks every 4 s, the simulated work takes minutes.
local function check_ended(f, which, ask)
  eventually(function()
    return next(faults.ledger(f)) == nil and faults.number(f, "baton_live_requests") == 0, "still held"
  end, 10, "the gateway lets go")
  local legs = faults.legs_of(f, ask.id)
  eventually(function()
    legs = faults.legs_of(f, ask.id)
    for _, role in ipairs({ "prefill", "decode" }) do
      for _, e in ipairs(legs[role]) do
        if e["end"] == "open" then
          return false, e.worker .. " still works"
        end
      end
    end
    return true
  end, 10, "both engines have stopped")
  faults.wait_idle(f)
  local aborts = faults.aborts(f)
  for key, times in pairs(aborts) do
    assert.equal(1, times, key)
  end
  if which.aborts then
    for role in pairs({ prefill = 1, decode = 1 }) do
      for _, e in ipairs(legs[role]) do
        if e["end"] ~= "done" then
          assert.equal(1, aborts[e.worker .. " " .. json.decode(e.body).rid], "the " .. role .. " engine is told once")
        end
      end
    end
  end
  assert.same({}, faults.guilt(f, ask.before))
end

for _, which in ipairs(FLEETS) do
  for _, keepalive in ipairs({ false, true }) do
    describe(("a client of %s that leaves%s"):format(which.name, keepalive and ", with keep-alive comments" or ""),
      function()
      local f

      setup(function()
        local flags = { unpack(which.flags) }
        if keepalive then
          flags[#flags + 1] = "--stream-keepalive-secs"
          flags[#flags + 1] = "0.05"
        end
        f = fleet.start({ workers = { "role=prefill" .. which.tail, "role=decode" .. which.tail }, flags = flags })
      end)

      teardown(function()
        faults.assert_serves(f, true)
        faults.wait_idle(f)
        f:stop()
      end)

      for how, leave in pairs(LEAVE) do
        for _, stream in ipairs(keepalive and { true } or { false, true }) do
          local way = how .. (stream and ", streamed" or "")

          it("ends prefill: " .. way, function()
            local ask = { stream = stream, fault = LONG .. "@prefill", before = faults.outcomes(f) }
            local c = open(f, ask)
            wait_legs(f, ask, 1, which.aborts and 1 or 0)
            assert.equal(faults.PROMPT_TOKENS, faults.ledger(f)["p0 prefill"])
            if keepalive then
              c:wait_head()
              assert.equal(200, c.answer.status)
            end
            leave(c)
            check_ended(f, which, ask)
            assert.equal(0, which.aborts and 0 or #faults.legs_of(f, ask.id).decode, "decode is never asked")
          end)

          it("ends decode before its first token: " .. way, function()
            local ask = { stream = stream, fault = LONG .. "@decode", before = faults.outcomes(f) }
            local c = open(f, ask)
            wait_legs(f, ask, 1, 1)
            assert.equal(faults.PROMPT_TOKENS, faults.ledger(f)["d0 decode"])
            leave(c)
            check_ended(f, which, ask)
          end)
        end

        it("ends decode in the middle of a stream: " .. how, function()
          local ask = { stream = true, tokens = 60000, before = faults.outcomes(f) }
          local c = open(f, ask)
          c:wait_events(3)
          assert.is_true(faults.ledger(f)["d0 decode"] >= faults.PROMPT_TOKENS + 3)
          leave(c)
          check_ended(f, which, ask)
        end)
      end
    end)
  end
end

describe("keep-alive comments", function()
  local f

  setup(function()
    f = fleet.start({ workers = { "role=prefill,itl=1,ttft=1,count=2", "role=decode,itl=1,ttft=1,count=2" },
      flags = { "--vllm-pd-disaggregation", "--stream-keepalive-secs", "0.05", "--disable-circuit-breaker" } })
  end)

  teardown(function()
    f:stop()
  end)

  it("go before a slow first event, and the text follows", function()
    local answer = f:post("/v1/completions", faults.body({ stream = true }),
      { ["X-Sim-Fault"] = "slow_first_byte:300@decode" })
    assert.equal(200, answer.status)
    assert.is_truthy(answer:events()[1].comment)
    assert.equal(faults.expected(), faults.text_of(answer, true))
  end)
end)

teardown(function()
  proc.clean()
end)
