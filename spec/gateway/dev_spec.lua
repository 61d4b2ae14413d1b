-- baton run --dev: what the author of a policy sees.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BATON = fleet.binary("BATON_BIN", "baton")
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":3}'
local PATH = "/v1/completions"
local WORKERS = { "role=prefill,ttft=1", "role=decode,ttft=1,itl=1", "role=decode,ttft=1,itl=1" }

local GOOD = [[
local function plan(req, view, ctx)
  local prefill = baton.argmin(view.prefill, "prefill_tokens")
  return { prefill = prefill, decode = baton.argmin(view.decode, "decode_tokens") }
end
return { api = 2, name = "mine", version = "1", plan = plan }
]]

local f, folder

local function write(text)
  proc.replace(folder .. "/mine.lua", text)
end

local function start(flags)
  folder = proc.path("dev")
  assert(os.execute("mkdir " .. folder) == 0)
  write(GOOD)
  local words = { "--vllm-pd-disaggregation", "--policy-dir", folder, "--policy", "mine" }
  proc.append(words, flags)
  f = fleet.start({ workers = WORKERS, flags = words })
end

local function log()
  return f.gateway:stderr()
end

local function wait_log(part)
  eventually(function()
    return log():find(part, 1, true) ~= nil, log():sub(-2000)
  end, 10, "the log says " .. part)
end

describe("baton run --dev", function()
  after_each(function()
    if f then
      f:stop()
    end
    f = nil
    proc.clean()
  end)

  it("tells where to ask, and what happened to every request", function()
    start({ "--dev" })
    wait_log("/explain/ID")
    local text = log()
    assert.truthy(text:find(("dev: clients  http://127.0.0.1:%d/v1/completions\n"):format(f.port), 1, true), text)
    assert.truthy(text:find(("dev: admin    http://127.0.0.1:%d/policies\n"):format(f.admin_port), 1, true), text)
    local explain = text:match("dev: explain  (http://127.0.0.1:%d+/explain/)ID")
    assert.equal(("http://127.0.0.1:%d/explain/"):format(f.admin_port), explain, text)
    local answer = f:post(PATH, BODY)
    assert.equal("mine@1", answer:header("x-baton-policy"))
    local id = answer:header("x-request-id")
    wait_log("access " .. id)
    local line = log():match("access " .. id:gsub("%-", "%%-") .. " ([^\n]*)")
    assert.truthy(line:find("^" .. PATH .. " 200 handoff .* by mine.* in %d+ us"), line)
    -- Sampled: the record lists the candidates.
    local record = eventually(function()
      local told = http.get(f.admin_port, "/explain/" .. id)
      return told.status == 200 and json.decode(told.body), told.body
    end, 5, "the record is there")
    assert.equal(2, record.candidates.decode.total)
    assert.equal(2, #record.candidates.decode.rows)
    assert.equal("policy", record.decided_by)
  end)

  it("shows a refused text with its line and a caret, and that the next one serves", function()
    start({ "--dev" })
    for _, case in ipairs({
      { '"decode_tokens")', '"decode_tokns")', 3, "decode_tokns" },
      { "view.prefill,", "view.prefil,", 2, "prefil," },
      { "plan = plan", "plann = plan", 5, "plann" },
    }) do
      local at, past = GOOD:find(case[1], 1, true)
      local text = GOOD:sub(1, at - 1) .. case[2] .. GOOD:sub(past + 1)
      write(text)
      wait_log(("mine.lua:%d: "):format(case[3]))
      local line = select(case[3], text:match(("([^\n]*)\n"):rep(5)))
      local column = line:find(case[4], 1, true)
      wait_log(("%6d | %s\n       | %s^\n"):format(case[3], line, (" "):rep(column - 1)))
      assert.equal("mine@1", f:post(PATH, BODY):header("x-baton-policy"))
    end
    local put = http.request(f.admin_port, { method = "PUT", path = "/policies/mine", body = "return {\n  x = = 1 }" })
    assert.equal(400, put.status)
    wait_log("dev: refused: ")
    wait_log("     2 |   x = = 1 }\n")
    write((GOOD:gsub('version = "1"', 'version = "2"')))
    wait_log("policy mine@2 from " .. folder .. "/mine.lua")
    wait_log("dev: mine does not serve single workers: ")
    assert.equal("mine@2", f:post(PATH, BODY):header("x-baton-policy"))
  end)

  it("lets other flags win, wherever they stand", function()
    start({ "--no-access-log", "--no-debug-headers", "--record-sample", "0", "--dev" })
    local answer = f:post(PATH, BODY)
    assert.equal(200, answer.status)
    assert.is_nil(answer:header("x-baton-policy"))
    local told = http.get(f.admin_port, "/explain/" .. answer:header("x-request-id"))
    assert.equal(200, told.status, told.body)
    assert.is_nil(json.decode(told.body).candidates)
    assert.is_nil(log():find("access " .. answer:header("x-request-id"), 1, true))
  end)

  it("shows nothing of this without the flag", function()
    start({})
    write((GOOD:gsub("plan = plan", "plann = plan")))
    wait_log("refused, mine@1 serves on")
    assert.is_nil(log():find(" | ", 1, true))
    assert.is_nil(log():find("dev: ", 1, true))
  end)

  it("is refused on a listener that others reach", function()
    for _, flag in ipairs({ "--host", "--admin-host" }) do
      for _, address in ipairs({ "0.0.0.0", "::", "192.0.2.7" }) do
        local code, _, err = proc.run({ BATON, "check", "--dev", flag, address, "--worker-urls", "http://127.0.0.1:9",
          "--port", "0", "--admin-port", "0" })
        assert.equal(2, code)
        assert.truthy(err:find("--dev: ", 1, true) and err:find(flag .. " is " .. address, 1, true), err)
        assert.equal(1, select(2, err:gsub("\n", "")))
      end
    end
    local code, _, err = proc.run({ BATON, "check", "--dev", "--worker-urls", "http://127.0.0.1:9", "--port", "0",
      "--admin-port", "0" })
    assert.equal(0, code, err)
  end)
end)
