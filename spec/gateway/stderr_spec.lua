-- What clients send does not make a log line long.

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

describe("what clients send", function()
  local f

  teardown(proc.clean)

  local function start(format)
    f = fleet.start({ workers = { "role=hybrid" }, flags = { "--log-format", format, "--record-sample", "1" } })
  end

  after_each(function()
    f:stop()
  end)

  it("makes no long line: a model of 20 MB is cut", function()
    start("json")
    local model = ("m"):rep(20 * 1024 * 1024)
    assert.equal(404, f:post("/v1/completions", ('{"model":"%s","prompt":"x"}'):format(model),
      { ["X-Request-Id"] = "large-model" }).status)
    local line = line_of(f.gateway, "large-model")
    assert.is_true(#line < 1024, #line .. " bytes")
    assert.equal(("m"):rep(256) .. "...", json.decode(line).model)
    local record = json.decode(http.get(f.admin_port, "/admin/explain/large-model").body)
    assert.equal(("m"):rep(128) .. "...", record.model)
  end)

  it("is cut between characters", function()
    start("json")
    f:post("/v1/completions", ('{"model":"m%s","prompt":"x"}'):format(("\195\164"):rep(200)), { ["X-Request-Id"] = "umlauts" })
    assert.equal("m" .. ("\195\164"):rep(127) .. "...", json.decode(line_of(f.gateway, "umlauts")).model)
  end)

  it("is cut in text too", function()
    start("text")
    f:post("/v1/" .. ("y"):rep(4000), BODY, { ["X-Request-Id"] = "long-path" })
    local line = line_of(f.gateway, "long-path")
    assert.truthy(line:find(" /v1/" .. ("y"):rep(252) .. "... 404 ", 1, true), line)
  end)
end)
