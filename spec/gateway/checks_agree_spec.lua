-- Start, `baton check`, `baton policy check` and a policy put to a gateway that runs say the same of a policy.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local GOOD = "return { worker = view.hybrid[1] }"

local function policy(plan, more)
  return ("return { api = 2, name = 'mine', version = '1', %s plan = function(req, view, ctx) %s end }"):format(
    more or "", plan)
end

-- why: what each of them says; nil: it is accepted.
local CASES = {
  { "a good one", policy(GOOD) },
  { "one that is no Lua", "return {", why = "mine.lua:1:" },
  { "one that fails", policy("error('no idea')"), why = "mine.lua:1: no idea (self-test: one worker of each role)" },
  { "one that never chooses", policy("return nil"), why = "mine.lua: plan of mine never chose anybody (self-test: " },
  { "one that names nobody", policy("return { worker = 4711 }"), why = "4711" },
  { "one that chooses by labels", policy("return { worker = baton.where(view.single, 'gpu')[1] }"),
    warning = "whose workers have no labels and no zone" },
  { "one that chooses by header", policy("if req.headers['x-a'] then " .. GOOD .. " end"),
    warning = "whose request has no headers" },
  { "one whose admit fails", policy(GOOD, "admit = function() error('gate') end,"), why = "gate (self-test: admit)" },
  { "one whose start asks a host", policy(GOOD, "start = function() baton.http({ url = 'http://127.0.0.1:9/' }) end,"),
    why = "--policy-http-host" },
  { "one that waits for ever", policy("while true do end"), why = "over its budget" },
}

describe("a policy is judged alike by start, check, policy check and a running gateway:", function()
  local f, folder, program

  setup(function()
    folder = proc.path("served")
    assert(os.execute("mkdir " .. folder) == 0)
    f = fleet.start({ workers = { "role=hybrid,ttft=1,itl=1" }, flags = { "--policy-dir", folder } })
    program = fleet.binary("BATON_BIN", "baton")
  end)

  teardown(function()
    f:stop()
    proc.clean()
  end)

  local function run(...)
    return proc.run({ program, ... }, { seconds = 60 })
  end

  -- { accepted or not, what was said } by each; a warning is in the running gateway's log a moment later.
  local function verdicts(text, warning)
    local path = proc.write("mine.lua", text)
    local flags = { "--port", "0", "--admin-port", "0", "--policy", path }
    local out = {}
    local code, said, err = run("policy", "check", path)
    out.policy_check = { code == 0, said .. err }
    code, said, err = run("check", unpack(flags))
    out.check = { code == 0, said .. err }
    local ready = path .. ".ready"
    local process = proc.start({ program, "run", "--ready-file", ready, unpack(flags) }, { name = "start" })
    eventually(function()
      return not process:is_alive() or proc.read(ready)
    end, 20, "it serves, or has ended")
    out.start = { process:is_alive(), nil }
    process:kill(proc.SIGTERM)
    process:wait(10)
    out.start[2] = process:stderr()
    local answer = http.request(f.admin_port, { method = "PUT", path = "/policies/mine", body = text,
      headers = { ["Content-Type"] = "text/x-lua" } })
    if warning then
      f.gateway:says(warning)
    end
    out.put = { answer.status == 200, answer.body .. f.gateway:stderr() }
    return out
  end

  for _, case in ipairs(CASES) do
    it(case[1], function()
      for who, verdict in pairs(verdicts(case[2], case.warning)) do
        assert.equal(case.why == nil, verdict[1], who .. ": " .. verdict[2])
        local wanted = case.why or case.warning
        if wanted then
          assert.is_truthy(verdict[2]:find(wanted, 1, true), who .. ": " .. verdict[2])
        end
      end
    end)
  end

  it("with its parameters, its hosts and labels that its workers have", function()
    local members = "params = { at = { type = 'number', min = 1, max = 4, default = 1 } }, "
      .. "start = function() baton.http({ url = 'http://127.0.0.1:9/' }) end,"
    local plan = "return { worker = baton.where(view.single, 'gpu', 'a')[ctx.params.at] }"
    local path = proc.write("mine.lua", policy(plan, members))
    local code, out, err = run("policy", "check", path, "--policy-http-host", "127.0.0.1:9", "--labels", "gpu=a",
      "--policy-param", "at=1")
    assert.equal(0, code, err)
    assert.is_nil(out:find("warning", 1, true), out)
    code, out, err = run("policy", "check", path, "--policy-http-host", "127.0.0.1:9", "--policy-param", "at=9")
    assert.equal(2, code, out)
    assert.is_truthy(err:find("params.at: 9 is above max 4", 1, true), err)
    code, out, err = run("policy", "check", path, "--policy-htp-host", "127.0.0.1:9")
    assert.equal(2, code, out)
    assert.is_truthy(err:find("--policy-http-host", 1, true), err)
  end)

  it("and the answer to a PUT is JSON", function()
    local answer = http.request(f.admin_port, { method = "PUT", path = "/policies/mine", body = policy("return nil") })
    assert.equal(400, answer.status)
    assert.is_truthy(json.decode(answer.body).error.message:find("never chose anybody", 1, true))
  end)
end)
