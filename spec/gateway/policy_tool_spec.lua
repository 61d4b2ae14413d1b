-- baton policy ...: what a newcomer does, from the first word to the header of an answer.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":3}'
local DECODE = "role=decode,ttft=1,itl=1"
local PAIRS = { "role=prefill,ttft=1", DECODE, DECODE, DECODE }
local SPREAD = "examples/custom_policy/spread_decode.lua"

-- Exit code, stdout, stderr.
local function policy(...)
  return proc.run({ fleet.binary("BATON_BIN", "baton"), "policy", ... }, { name = "policy", seconds = 60 })
end

local function fresh()
  local folder = proc.path("author")
  assert(os.execute("mkdir " .. folder) == 0)
  local code, out, err = policy("new", "mine", folder)
  assert.equal(0, code, err)
  assert.truthy(out:find(folder .. "/mine.lua", 1, true))
  return folder, folder .. "/mine.lua", folder .. "/mine_spec.lua"
end

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

-- The file with some text exchanged, and the line where that is.
local function edited(path, from, to)
  local text = proc.read(path)
  local at, past = text:find(from, 1, true)
  assert.is_not_nil(at, from)
  write(path, text:sub(1, at - 1) .. to .. text:sub(past + 1))
  return select(2, text:sub(1, at):gsub("\n", "")) + 1
end

describe("baton policy", function()
  teardown(proc.clean)

  it("writes a policy that works on first load, with a spec that passes", function()
    local _, mine, spec = fresh()
    local code, out, err = policy("check", mine)
    assert.equal(0, code, err)
    assert.equal("ok mine@1 (hooks: plan; params: request_tokens)\n", out)
    code, out, err = policy("test", spec)
    assert.equal(0, code, out .. err)
    assert.truthy(out:find("3 successes", 1, true), out)
  end)

  it("runs specs that can fail", function()
    local _, mine, spec = fresh()
    edited(mine, "argmin_sum", "argmax_sum")
    local code, out = policy("test", spec)
    assert.not_equal(0, code)
    assert.truthy(out:find("2 failures", 1, true), out)
  end)

  it("overwrites nothing, and takes no path for a name", function()
    local folder, mine, spec = fresh()
    write(mine, "-- precious")
    local code, _, err = policy("new", "mine", folder)
    assert.equal(2, code)
    assert.truthy(err:find("is there already", 1, true))
    assert(os.remove(spec))
    code = policy("new", "mine", folder)
    assert.equal(2, code)
    assert.equal("-- precious", proc.read(mine))
    assert.is_nil(proc.read(spec))
    for _, name in ipairs({ "../mine", "a b", "", "1st", "-x", "mine.lua" }) do
      assert.equal(2, (policy("new", name, folder)), name)
    end
  end)

  it("tells a slip with file, line and the nearest name", function()
    for _, case in ipairs({
      { "baton.argmin(prefills", "baton.argmn(prefills", "'argmn' (did you mean 'argmin'?)" },
      { "baton.pairable(view.prefill", "baton.pairable(view.prefil", "'prefil' (did you mean 'prefill'?)" },
      { "ctx.params.request_tokens", "ctx.params.request_token", "'request_token' (did you mean 'request_tokens'?)" },
      { "plan = plan", "plann = plan", "'plann' (did you mean 'plan'?)" },
      { "default =", "defalt =", "(did you mean 'default'?)" },
      { "if #prefills == 0 then", "if #prefills == 0", "'then' expected" },
    }) do
      local _, mine = fresh()
      local line = edited(mine, case[1], case[2])
      local code, out, err = policy("check", mine)
      assert.equal(2, code, out)
      assert.equal("", out)
      local place = ("%s:%d: "):format(mine, line)
      if case[3] ~= "'then' expected" then -- Lua's parser sees it where it goes on
        assert.equal(place, err:sub(1, #place))
      end
      assert.truthy(err:find(case[3], 1, true), err)
    end
  end)

  it("finds what runs too long, and notes which workers are not served", function()
    local _, mine = fresh()
    edited(mine, "  local prefill =", "  while true do end\n  local prefill =")
    local code, _, err = policy("check", mine)
    assert.equal(2, code)
    assert.truthy(err:find("over its budget", 1, true), err)
    _, mine = fresh()
    edited(mine, "kind = \"single\"", "kind = \"singel\"") -- pairs go well, but this is no want of workers
    code, _, err = policy("check", mine)
    assert.equal(2, code)
    assert.truthy(err:find("'singel'", 1, true), err)
    local out
    code, out = policy("check", "examples/custom_policy/same_zone.lua")
    assert.equal(0, code)
    local note = "\nnote: does not serve single workers: examples/custom_policy/same_zone.lua:4: "
    assert.truthy(out:find(note, 1, true), out)
  end)

  it("refuses one that never plans, and warns of one that may do so by labels", function()
    local function checked(body)
      local text = "return { api = 2, name = 'never', version = '1', plan = function(req, view) %s end }"
      return policy("check", proc.write("never.lua", text:format(body)))
    end
    local code, out, err = checked("return nil")
    assert.equal(2, code, out)
    assert.truthy(err:find("never.lua: plan of never never chose anybody (self-test: ", 1, true), err)
    code, out, err = checked("local w = baton.where(view.single, 'gpu')[1] return w and { worker = w } or nil")
    assert.equal(0, code, err)
    local warning = "never.lua: plan of never never chose anybody in the self-test, whose workers have no labels"
    assert.truthy(out:find(warning, 1, true), out)
  end)

  it("checks many files and shipped policies, and fails when one of them does", function()
    local _, mine = fresh()
    local code, out, err = policy("check", mine, "least_load", "no_such", SPREAD)
    assert.equal(2, code)
    assert.equal(3, select(2, ("\n" .. out):gsub("\nok ", "")))
    assert.truthy(err:find("no policy 'no_such'", 1, true))
    assert.equal(2, (policy("check")))
  end)

  it("prints the parameters as JSON Schema", function()
    local _, mine = fresh()
    local code, out = policy("params", mine)
    assert.equal(0, code)
    local schema = json.decode(out)
    assert.equal("mine", schema.title)
    assert.equal(100, schema.properties.request_tokens.default)
    assert.equal("number", schema.properties.request_tokens.type)
  end)

  it("lists every shipped policy, its version and its first line", function()
    local code, out = policy("list")
    assert.equal(0, code)
    local count = 0
    for line in out:gmatch("[^\n]+") do
      local name, what = line:match("^([%w_]+) +%d%S* +(%S.*)$")
      assert.is_not_nil(name, line)
      assert.truthy(proc.read("policies/" .. name .. ".lua"):find("-- " .. name .. " - " .. what, 1, true) == 1, line)
      count = count + 1
    end
    assert.equal(25, count)
  end)

  it("prints the types that editors want", function()
    local code, out = policy("types")
    assert.equal(0, code)
    assert.equal(proc.read("lua/_meta/baton.lua"), out)
    assert.truthy(out:find("---@class baton.Request\n", 1, true))
    assert.equal(2, (policy("types", "more")))
  end)

  it("measures plans and counts who was chosen", function()
    local _, mine = fresh()
    local code, out, err = policy("bench", mine, "--workers", "2,40")
    assert.equal(0, code, err)
    for _, size in ipairs({ 2, 40 }) do
      assert.is_not_nil(out:match(size .. " workers: %d+%.%d+ us per plan"), out)
    end
    assert.truthy(out:find("prefill  1 of 1 chosen: p0 100.0%", 1, true), out)
    assert.truthy(out:find("decode   20 of 20 chosen:", 1, true), out)
    edited(mine, "baton.compatible", "baton.compatibel")
    code, _, err = policy("bench", mine, "--workers=4")
    assert.equal(2, code)
    assert.truthy(err:find("did you mean 'compatible'?", 1, true), err)
    assert.equal(2, (policy("bench", mine, "--workers", "4,x")))
    assert.equal(2, (policy("bench", mine, "--workers", "1")))
  end)

  it("knows its words", function()
    local code, _, err = policy("chek")
    assert.equal(2, code)
    assert.truthy(err:find("did you mean check?", 1, true))
    local out
    code, out = policy("--help")
    assert.equal(0, code)
    for _, word in ipairs({ "new", "check", "test", "bench", "params", "list", "types" }) do
      assert.is_not_nil(out:find("\n  " .. word .. "[ \n]"), word)
    end
  end)
end)

describe("a newcomer's policy before traffic", function()
  local f

  after_each(function()
    f:stop()
    proc.clean()
  end)

  it("serves at once, and its next version when the file changes", function()
    local _, mine = fresh()
    f = fleet.start({ workers = PAIRS, flags = { "--vllm-pd-disaggregation", "--policy", mine } })
    local answer = f:post("/v1/completions", BODY)
    assert.equal(200, answer.status, answer.body)
    assert.equal("mine@1", answer:header("x-baton-policy"))
    edited(mine, 'version = "1"', 'version = "2"')
    eventually(function()
      local seen = f:post("/v1/completions", BODY):header("x-baton-policy")
      return seen == "mine@2", seen
    end, 10, "mine@2 serves")
  end)

  it("is tested with traffic that a gateway has recorded", function()
    local folder, mine = fresh()
    local file, spec = folder .. "/records.jsonl", folder .. "/replay_spec.lua"
    f = fleet.start({
      workers = PAIRS,
      flags = { "--vllm-pd-disaggregation", "--policy", mine, "--record-file", file, "--record-sample", "1" },
    })
    for _ = 1, 5 do
      assert.equal(200, f:post("/v1/completions", BODY).status)
    end
    eventually(function()
      local _, lines = (proc.read(file) or ""):gsub("\n", "")
      return lines == 5, lines
    end, 10, "five records")
    write(spec, ([[
      local testing = require "baton.testing"
      it("plans recorded traffic again", function()
        local count = 0
        for req, fleet, record in testing.records %q do
          local plan = testing.plan(testing.load %q, fleet, req)
          assert.are.equal(record.plan.prefill, plan.prefill)
          assert.are.equal(3, #record.candidates.decode.rows)
          assert.are.equal("sim", req.model)
          count = count + 1
        end
        assert.are.equal(5, count)
      end)]]):format(file, mine))
    local code, out, err = policy("test", spec)
    assert.equal(0, code, out .. err)
  end)

  it("spread_decode, of twenty lines, never takes a decode worker twice in a row", function()
    local _, lines = proc.read(SPREAD):gsub("\n", "")
    assert.is_true(lines <= 20)
    f = fleet.start({ workers = PAIRS, flags = { "--vllm-pd-disaggregation", "--policy", SPREAD } })
    local last
    for i = 1, 60 do -- each on a connection of its own: both event threads plan
      local answer = http.post(f.port, "/v1/completions", BODY)
      assert.equal(200, answer.status, answer.body)
      assert.equal("spread_decode@1", answer:header("x-baton-policy"))
      local decode = answer:header("x-baton-decode")
      assert.not_equal(last, decode, "request " .. i)
      last = decode
    end
    assert.is_nil(f.gateway:stderr():find("over its budget", 1, true))
  end)
end)
