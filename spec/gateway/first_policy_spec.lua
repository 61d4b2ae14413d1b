-- From nothing to a policy that serves: what the README promises to somebody who has never seen Baton.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":3}'
local PATH = "/v1/completions"
local DECODE = "role=decode,ttft=1,itl=1"
local SPREAD = "examples/custom_policy/spread_decode.lua"

-- What a newcomer writes into the file that `policy new` made.
local MINE = [[
-- mine - short prompts to the idlest decode worker, long ones to the one with the most free KV.
local params = { long = { type = "integer", min = 1, default = 1000, doc = "Tokens of a long prompt." } }
local function plan(req, view, ctx)
  local prefills = baton.pairable(view.prefill, view.decode)
  if #prefills == 0 then
    return { kind = "single", worker = baton.argmin(view.hybrid, "requests") }
  end
  local prefill = baton.argmin(prefills, "prefill_tokens", "requests")
  local partners = baton.compatible(view.decode, prefill)
  local decode
  if req.prompt_tokens >= ctx.params.long then
    decode = baton.argmax(partners, "kv_free")
  else
    decode = baton.argmin(partners, "decode_tokens", "requests")
  end
  return { prefill = prefill, decode = decode }
end
return { api = 2, name = "mine", version = "1", params = params, plan = plan }
]]

local MINE_SPEC = [[
local testing = require "baton.testing"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
describe("mine", function()
  it("sends short prompts to the idlest decode worker", function()
    local workers = testing.workers { prefill = 1, decode = 2 }
    workers:set("d1", { decode_tokens = 900, kv_free = 0.9 })
    workers:set("d2", { decode_tokens = 100, kv_free = 0.1 })
    local policy = testing.load(here .. "mine.lua")
    assert.are.equal("d2", testing.plan(policy, workers, { prompt_tokens = 10 }).decode)
    assert.are.equal("d1", testing.plan(policy, workers, { prompt_tokens = 5000 }).decode)
  end)
end)
]]

-- Slips as people make them: what stood there, what they typed, what they are told.
local SLIPS = {
  { "req.prompt_tokens", "req.promt_tokens", "(did you mean 'prompt_tokens'?)" },
  { "baton.argmin(prefills", "baton.argmn(prefills", "'argmn' (did you mean 'argmin'?)" },
  { "ctx.params.long", "ctx.params.lnog", "(did you mean 'long'?)" },
  { "view.decode, prefill", "view.decod, prefill", "'decod' (did you mean 'decode'?)" },
  { "  local decode\n", "  local decode =\n", "near 'if'", 1 }, -- the parser sees it where it goes on
}

local function policy(...)
  return proc.run({ fleet.binary("BATON_BIN", "baton"), "policy", ... }, { name = "policy", seconds = 60 })
end

-- MINE with a slip, and the line where it is.
local function slip(case)
  local at, past = MINE:find(case[1], 1, true)
  assert.is_not_nil(at, case[1])
  local line = select(2, MINE:sub(1, at):gsub("\n", "")) + 1
  return MINE:sub(1, at - 1) .. case[2] .. MINE:sub(past + 1), line + (case[4] or 0)
end

describe("a newcomer", function()
  local f

  after_each(function()
    if f then
      f:stop()
    end
    f = nil
    proc.clean()
  end)

  it("writes, tests and serves a policy, and a slip never takes it away", function()
    local folder = proc.path("author")
    assert(os.execute("mkdir " .. folder) == 0)
    local mine, spec = folder .. "/mine.lua", folder .. "/mine_spec.lua"
    assert.equal(0, (policy("new", "mine", folder)))
    proc.replace(mine, MINE)
    proc.replace(spec, MINE_SPEC)
    local code, out, err = policy("check", mine)
    assert.equal(0, code, err)
    assert.equal("ok mine@1 (hooks: plan; params: long)\n", out)
    code, out, err = policy("test", spec)
    assert.equal(0, code, out .. err)
    assert.truthy(out:find("1 success", 1, true), out)

    -- The gateway runs already, with a policy of that name which is not theirs.
    local served = folder .. "/served"
    assert(os.execute("mkdir " .. served) == 0)
    proc.replace(served .. "/mine.lua", (MINE:gsub('version = "1"', 'version = "0"')))
    f = fleet.start({ workers = { "role=prefill,ttft=1", DECODE, DECODE },
      flags = { "--vllm-pd-disaggregation", "--policy-dir", served, "--policy", "mine" } })
    assert.equal("mine@0", f:post(PATH, BODY):header("x-baton-policy"))
    proc.replace(served .. "/mine.lua", MINE)
    eventually(function()
      local seen = f:post(PATH, BODY):header("x-baton-policy")
      return seen == "mine@1", seen
    end, 10, "mine@1 serves")

    for i, case in ipairs(SLIPS) do
      local text, line = slip(case)
      local place = ("mine.lua:%d: "):format(line)
      proc.replace(mine, text)
      code, out, err = policy("check", mine)
      assert.equal(2, code, out)
      assert.equal("", out)
      assert.truthy(err:find(folder .. "/" .. place, 1, true), err)
      assert.truthy(err:find(case[3], 1, true), err)

      proc.replace(served .. "/mine.lua", text)
      local row = eventually(function()
        local now = json.decode(http.get(f.admin_port, "/policies").body).pools[1]
        return type(now.error) == "string" and now.error:find(place, 1, true) and now, now.error
      end, 10, "GET /policies names slip " .. i)
      assert.truthy(row.error:find(case[3], 1, true), row.error)
      f.gateway:says("refused, mine@1 serves on: " .. served .. "/" .. place)
      local answer = f:post(PATH, BODY)
      assert.equal(200, answer.status, answer.body)
      assert.equal("mine@1", answer:header("x-baton-policy"))
    end
    assert.equal(#SLIPS, f:metric('baton_policy_reloads_total{result="refused"}'))
    proc.replace(served .. "/mine.lua", (MINE:gsub('version = "1"', 'version = "2"')))
    eventually(function()
      local seen = f:post(PATH, BODY):header("x-baton-policy")
      return seen == "mine@2", seen
    end, 10, "mine@2 serves")
  end)

  -- KV that a prefill worker holds for a decode worker which never asks: its lease is long.
  local function fill(name, round)
    local before = f:state(name).used_blocks
    local prompt = round .. (" word"):rep(1000 * round)
    local body = json.encode({ model = "sim", prompt = prompt, max_tokens = 1, stream = false,
      kv_transfer_params = { do_remote_decode = true } })
    local answer = http.post(f.workers[name].port, PATH, body)
    assert.equal(200, answer.status, answer.body)
    assert.is_true(f:state(name).used_blocks >= before + 20 * round, f:state(name).used_blocks)
  end

  it("has a policy of twenty lines that prefers free KV and never takes a decode worker twice in a row", function()
    local text, lines = proc.read(SPREAD), 0
    for _ in text:gmatch("\n") do
      lines = lines + 1
    end
    assert.is_true(lines <= 20, lines .. " lines")
    local prefill = "role=prefill,ttft=1,blocks=1000,lease_ms=600000"
    f = fleet.start({ workers = { prefill, prefill, prefill, DECODE, DECODE, DECODE },
      flags = { "--vllm-pd-disaggregation", "--policy", SPREAD, "--loops", "4", "--load-interval-secs", "0.05" } })
    f.gateway:says("4 loops")
    local connections, last, seen = {}, nil, {}
    for i = 1, 10 do -- kept alive; the kernel spreads them over the event threads
      connections[i] = http.connect(f.port)
    end
    local count = 0
    local function ask()
      count = count + 1
      local c = connections[count % #connections + 1]
      c:ask({ path = PATH, body = BODY })
      local answer = c:wait()
      assert.equal(200, answer.status, answer.body)
      assert.equal("spread_decode@1", answer:header("x-baton-policy"))
      local decode = answer:header("x-baton-decode")
      assert.not_equal(last, decode, "request " .. count)
      last = decode
      seen[decode] = (seen[decode] or 0) + 1
      return answer:header("x-baton-prefill")
    end
    -- One after the other becomes the one with the most free KV: the others get more each time.
    for round, wanted in ipairs({ "p1", "p2", "p0" }) do
      for _, name in ipairs({ "p0", "p1", "p2" }) do
        if name ~= wanted then
          fill(name, round)
        end
      end
      for _, name in ipairs({ "p0", "p1", "p2" }) do
        eventually(function()
          local load = json.decode(http.get(f.admin_port, "/admin/workers/" .. name).body).load
          return type(load) == "table" and math.abs(load.kv_usage - f:state(name).used_blocks / 1000) < 1e-6, load
        end, 10, "the gateway knows how full " .. name .. " is")
      end
      for _ = 1, 67 do
        assert.equal(wanted, ask())
      end
    end
    assert.is_true(count >= 200, count)
    local used = 0
    for _ in pairs(seen) do
      used = used + 1
    end
    assert.is_true(used >= 2)
    for _, c in ipairs(connections) do
      c:close()
    end
    assert.equal(0, f:metric("baton_policy_errors_total"))
    assert.is_nil(f.gateway:stderr():find("over its budget", 1, true))
  end)
end)
