-- Lines on their way out: a stderr that nobody reads holds up nobody, what was lost is counted and told, and what
-- clients send does not make a line long.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":4}'

-- Lines of the log that are about this request.
local function lines_of(gateway, id)
  local out = {}
  for line in gateway:stderr():gmatch("[^\n]+") do
    if line:find(id, 1, true) then
      out[#out + 1] = line
    end
  end
  return out
end

local function line_of(gateway, id)
  return eventually(function()
    return lines_of(gateway, id)[1]
  end, 10, "a line of " .. id)
end

describe("a stderr that nobody reads", function()
  local f

  before_each(function()
    f = fleet.start({
      workers = { "role=hybrid" },
      flags = { "--log-level", "debug", "--log-format", "json" },
      proc = { stalled_stderr = true },
    })
  end)

  after_each(proc.kill_all)
  teardown(proc.clean)

  -- Each makes a line of almost a kilobyte: quotes in its path take two bytes each.
  local function ask_for_nothing(count)
    local c = http.connect(f.port)
    local path = "/nothing/" .. ('"'):rep(300)
    local batch = {}
    for i = 1, 100 do
      batch[i] = http.head_of({ path = path }, f.port)
    end
    for _ = 1, count, #batch do
      c:send(table.concat(batch))
      for _ = 1, #batch do
        local answer = c:expect_answer("GET")
        answer:feed(c.backlog)
        c:wait(nil, 30)
        assert.equal(404, answer.status)
        c.backlog = answer.buffer
      end
    end
    c:close()
  end

  it("holds up no request, no admin and not the end", function()
    local filler = ("x"):rep(100)
    for i = 1, 100 do
      assert.equal(200, f:post("/v1/completions", BODY, { ["X-Request-Id"] = filler .. i }).status)
    end
    assert.equal(0, f:metric("baton_log_dropped_total"))
    assert.equal(200, http.get(f.admin_port, "/workers").status)
    f.gateway:kill(proc.SIGTERM)
    assert.equal(0, f.gateway:wait(10))
  end)

  it("is told what was lost when somebody reads on", function()
    ask_for_nothing(6000)
    local dropped = f:metric("baton_log_dropped_total")
    assert.is_true(dropped > 0)
    local told = eventually(function()
      return f.gateway:stderr():match('"message":"(%d+) log lines dropped: stderr does not take them"')
    end, 30, "the lines that were lost are told")
    assert.equal(dropped, tonumber(told))
    f:post("/v1/completions", BODY, { ["X-Request-Id"] = "after-the-stall" })
    line_of(f.gateway, "after-the-stall")
    assert.equal(dropped, f:metric("baton_log_dropped_total"))
    for line in f.gateway:stderr():gmatch("([^\n]+)\n") do
      assert.is_true(pcall(json.decode, line), line)
    end
  end)
end)

describe("what clients send", function()
  local f

  teardown(proc.clean)

  local function start(format)
    f = fleet.start({ workers = { "role=hybrid" }, flags = { "--log-format", format, "--record-sample", "1" } })
  end

  after_each(function()
    f:stop()
  end)

  local function post_model(bytes, id)
    local body = ('{"model":"%s","prompt":"x"}'):format(("m"):rep(bytes))
    return f:post("/v1/completions", body, { ["X-Request-Id"] = id }).status
  end

  it("makes no long line: a long model is cut, one of 20 MB is refused", function()
    start("json")
    assert.equal(400, post_model(20 * 1024 * 1024, "huge-model"))
    assert.equal(404, post_model(1000, "large-model"))
    assert.is_true(#line_of(f.gateway, "huge-model") < 1024)
    local line = line_of(f.gateway, "large-model")
    assert.is_true(#line < 1024, #line .. " bytes")
    assert.equal(("m"):rep(256) .. "...", json.decode(line).model)
    local record = json.decode(http.get(f.admin_port, "/admin/explain/large-model").body)
    assert.equal(("m"):rep(128) .. "...", record.model)
  end)

  it("is cut between characters", function()
    start("json")
    local body = ('{"model":"m%s","prompt":"x"}'):format(("\195\164"):rep(200))
    f:post("/v1/completions", body, { ["X-Request-Id"] = "umlauts" })
    assert.equal("m" .. ("\195\164"):rep(127) .. "...", json.decode(line_of(f.gateway, "umlauts")).model)
  end)

  it("is cut in text too", function()
    start("text")
    f:post("/v1/" .. ("y"):rep(4000), BODY, { ["X-Request-Id"] = "long-path" })
    local line = line_of(f.gateway, "long-path")
    assert.truthy(line:find(" /v1/" .. ("y"):rep(252) .. "... 404 ", 1, true), line)
  end)
end)
