-- vLLM from 0.30 on serves /inference/v1/generate and /render only with --enable-scale-out: who does not is asked for
-- neither, and where nobody does the client is told the remedy.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local TOKENS, RENDER = "/inference/v1/generate", "/v1/completions/render"
local ASK = '{"model":"sim","token_ids":[1,2,3],"sampling_params":{"max_tokens":3}}'
local WORDS = '{"model":"sim","prompt":"words"}'

local f

local function start(workers)
  f = fleet.start({ workers = workers, flags = { "--kv-connector", "nixl" } })
  -- Each has been asked for both routes, and the gateway has had time to read the last answer.
  eventually(function()
    for name in pairs(f.workers) do
      local asked = {}
      for _, e in ipairs(f:requests(name)) do
        asked[e.method .. e.path] = true
      end
      if not (asked["GET" .. TOKENS] and asked["GET" .. RENDER]) then
        return false, name
      end
    end
    return true
  end, 10, "routes are asked for")
end

local function stop()
  f:stop()
  proc.clean()
end

local function asked(entries)
  local count = 0
  for _, e in ipairs(entries) do
    count = count + (e.method == "POST" and 1 or 0)
  end
  return count
end

describe("a fleet without --enable-scale-out", function()
  setup(function()
    start({ "role=prefill,scale_out=0", "role=decode,scale_out=0" })
  end)
  teardown(stop)

  for _, case in ipairs({ { TOKENS, ASK }, { RENDER, WORDS }, { "/v1/chat/completions/render", WORDS } }) do
    it("is not asked for " .. case[1] .. ", and the client is told why", function()
      eventually(function()
        local answer = f:post(case[1], case[2])
        return answer.status == 400, answer.body
      end, 5, "it is refused")
      f:mark()
      local answer = f:post(case[1], case[2])
      assert.equal(400, answer.status, answer.body)
      assert.truthy(answer.body:find("--enable-scale-out", 1, true), answer.body)
      local seen = f:legs(case[1])
      assert.equal(0, asked(seen.prefill) + asked(seen.decode))
    end)
  end

  it("serves the other routes", function()
    assert.equal(200, f:post("/v1/completions", '{"model":"sim","prompt":"x","max_tokens":2}').status)
  end)

  it("says in its log what to do", function()
    eventually(function()
      local err = f.gateway:stderr()
      return err:find("worker p0 does not serve " .. TOKENS .. ": start it with --enable-scale-out", 1, true), err
    end, 10, "the log names the option")
  end)
end)

describe("a fleet in which some have --enable-scale-out", function()
  setup(function()
    start({ "role=prefill", "role=decode", "role=prefill,scale_out=0", "role=decode,scale_out=0" })
  end)
  teardown(stop)

  it("asks those", function()
    eventually(function()
      local err = f.gateway:stderr()
      return err:find("worker p1 does not serve " .. RENDER, 1, true)
        and err:find("worker d1 does not serve " .. RENDER, 1, true)
    end, 10, "the last answers have been read")
    f:mark()
    for _ = 1, 6 do
      local answer = f:post(TOKENS, ASK)
      assert.equal(200, answer.status, answer.body)
      answer = f:post(RENDER, WORDS)
      assert.equal(200, answer.status, answer.body)
      assert.equal("[1685221239,115]", json.raw(answer.body, "token_ids"))
    end
    for _, path in ipairs({ TOKENS, RENDER }) do
      local seen = f:legs(path)
      for _, list in pairs(seen) do
        for _, e in ipairs(list) do
          assert.is_true(e.method == "GET" or e.worker == "p0" or e.worker == "d0", e.worker)
        end
      end
    end
  end)
end)
