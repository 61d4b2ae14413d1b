-- start(params, old) may ask an allowed host, at the first start and at a reload; one that waits too long is refused.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local socket = require("socket")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":1}'

local f, folder, other, silent

-- Tells by a rejection what start has learned.
local function policy(version, start)
  return ([[
return { api = 2, name = "mine", version = "%s",
  start = function(params, old)
    %s
  end,
  admit = function(req, ctx)
    if req.headers["x-tell"] then return { status = 418, reason = tostring(ctx.state.said) } end
  end,
  handover = function(ctx) return { said = ctx.state.said } end,
  plan = function(req, view, ctx) return { worker = view.hybrid[1].id } end,
}
]]):format(version, start)
end

local function replace(text)
  proc.replace(folder .. "/mine.lua", text)
end

local function new_folder(text)
  folder = proc.path("start")
  assert(os.execute("mkdir " .. folder) == 0)
  replace(text)
end

local function asking(port, path)
  return ([[local answer, why = baton.http{ url = "http://127.0.0.1:%d%s", timeout_ms = 60000 }]]):format(port, path)
end

local function flags()
  return { "--policy-dir", folder, "--policy", "mine", "--policy-http-host", "127.0.0.1:" .. other.workers.x.port,
    "--policy-http-host", "127.0.0.1:" .. silent.port }
end

local function ask()
  local answer = http.post(f.port, PATH, BODY)
  assert.equal(200, answer.status, answer.body)
  return answer:header("x-baton-policy")
end

local function said()
  return json.decode(http.post(f.port, PATH, BODY, { ["x-tell"] = "1" }).body).error.message
end

-- How often the other host was asked for this.
local function times_asked(path)
  local count = 0
  for _, request in ipairs(other:requests("x")) do
    count = count + (request.path == path and 1 or 0)
  end
  return count
end

-- Ends by itself: its exit code and what it said.
local function first_start()
  local argv = { fleet.binary("BATON_BIN", "baton"), "run", "--port", "0", "--admin-port", "0", "--worker-urls",
    other.workers.x.url }
  for _, word in ipairs(flags()) do
    argv[#argv + 1] = word
  end
  local code, _, err = proc.run(argv, { seconds = 30 })
  return code, err
end

describe("start may wait", function()
  setup(function()
    other = fleet.start_sim({ "role=hybrid,name=x" })
    local listener = assert(socket.bind("127.0.0.1", 0)) -- takes connections, and never says a word
    silent = { listener = listener, port = select(2, listener:getsockname()) }
    silent.port = tonumber(silent.port)
  end)

  teardown(function()
    silent.listener:close()
    proc.clean()
  end)

  after_each(function()
    if f then
      f:stop()
      f = nil
    end
  end)

  local function start_gateway()
    f = fleet.start({ workers = { "role=hybrid,ttft=0,itl=1,name=w0" }, flags = flags() })
  end

  it("and asks an allowed host, at the first start and at a reload", function()
    local text = asking(other.workers.x.port, "/v1/models") .. [[

    if not answer or answer.status ~= 200 or #answer.body == 0 then error("no answer: " .. tostring(why)) end
    return { said = (old and old.said .. ", then " or "") .. %q .. answer.status }]]
    new_folder(policy("1", text:format("first ")))
    start_gateway()
    assert.equal("mine@1", ask())
    assert.equal("first 200", said())
    local before = times_asked("/v1/models")
    assert.is_true(before >= 2, "one for each loop")
    replace(policy("2", text:format("second ")))
    eventually(function()
      local seen = ask()
      return seen == "mine@2", seen
    end, 10, "the new text serves")
    assert.equal("first 200, then second 200", said())
    assert.is_true(times_asked("/v1/models") >= before + 2)
    assert.equal(0, f:metric("baton_policy_errors_total"))
  end)

  it("but not without end: the reload is refused, and the old one serves all the while", function()
    new_folder(policy("1", "return { said = 'old' }"))
    start_gateway()
    for _, waiting in ipairs({ "while true do baton.sleep(50) end",
      asking(silent.port, "/never") .. " while not answer do " .. asking(silent.port, "/never") .. " end" }) do
      local before = f:metric('baton_policy_reloads_total{result="refused"}')
      replace(policy("2", waiting))
      eventually(function()
        local told = json.decode(http.get(f.admin_port, "/policies").body)
        return told.reloading and told.step == "validate", told.step
      end, 10, "it is being validated")
      eventually(function()
        assert.equal("mine@1", ask())
        return f:metric('baton_policy_reloads_total{result="refused"}') > before
      end, 20, "the reload is refused")
      local told = json.decode(http.get(f.admin_port, "/policies").body)
      local row = told.pools[1]
      assert.equal("idle", told.step)
      assert.truthy(row.error:find("mine.lua: start wanted to wait again when its time was over", 1, true), row.error)
      assert.equal("1", row.version)
      assert.equal("old", said())
      replace(policy("1", "return { said = 'old' }"))
    end
  end)

  it("but not without end: the first start is refused with the file's name", function()
    new_folder(policy("1", "while true do baton.sleep(50) end"))
    local code, err = first_start()
    assert.equal(2, code, err)
    assert.truthy(err:find("mine.lua: start wanted to wait again when its time was over", 1, true), err)
  end)

  it("for a host that answers, or the first start is refused with the reason", function()
    new_folder(policy("1", asking(1, "/x") .. " if not answer then error(why) end"))
    local code, err = first_start()
    assert.equal(2, code, err)
    assert.truthy(err:find("is not an allowed host", 1, true), err)
    new_folder(policy("1", asking(silent.port, "/never") .. " if not answer then error('no word: ' .. why) end"))
    code, err = first_start()
    assert.equal(2, code, err)
    assert.truthy(err:find("mine.lua:%d+: no word: "), err)
  end)
end)
