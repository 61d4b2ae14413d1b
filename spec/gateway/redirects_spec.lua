-- A worker's redirect is not followed, and not shown: a client that knew where it points to would go round the gateway.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

describe("a worker's redirect", function()
  local one, two, gateway, port
  local say

  before_each(function()
    one = stub.start(function(request)
      return say(request)
    end)
    two = stub.start(function()
      return stub.reply(200, '{"id":"x","choices":[]}')
    end)
  end)

  after_each(function()
    gateway:stop(10)
    one:stop()
    two:stop()
    proc.clean()
  end)

  local function serve(...)
    local words = { "--proxy-path", "/custom", "--disable-circuit-breaker", "--worker-urls", ... }
    local admin_port
    gateway, port, admin_port = fleet.start_gateway(words)
    eventually(function()
      local _, up = http.get(admin_port, "/workers").body:gsub('"health":"up"', "")
      return up == select("#", unpack(words)) - 4
    end, 10, "all workers are up")
  end

  local INSIDE = "http://10.0.0.5:8000/v1/completions/"

  it("is a 502, and where it points to stays inside", function()
    serve(one.url)
    for _, status in ipairs({ 301, 302, 303, 307, 308 }) do
      say = function()
        return stub.reply(status, '<a href="' .. INSIDE .. '">', { Location = INSIDE, Refresh = "0; url=" .. INSIDE })
      end
      for _, path in ipairs({ "/v1/completions", "/custom", "/tokenize" }) do
        local answer = http.post(port, path, '{"model":"m","prompt":"x"}')
        assert.equal(502, answer.status, status .. path)
        assert.is_nil(answer:header("location"))
        assert.is_nil(answer.body:find("10.0.0.5", 1, true), answer.body)
        assert.truthy(answer.body:find("redirect", 1, true), answer.body)
      end
    end
  end)

  it("is told in a log line that names the request and the worker", function()
    serve(one.url)
    say = function()
      return stub.reply(302, "", { Location = INSIDE })
    end
    http.post(port, "/v1/completions", '{"model":"m","prompt":"x"}', { ["x-request-id"] = "find-me" })
    eventually(function()
      local told = gateway:stderr()
      return told:find("worker=[^ ]+ request=find%-me worker [^ ]+ answers 302") ~= nil, told
    end, 5, "the line is out")
  end)

  it("is another worker's chance", function()
    serve(one.url, two.url)
    say = function()
      return stub.reply(302, "", { Location = INSIDE })
    end
    local asked = 0
    repeat -- who of two is asked first is drawn by lot
      asked = asked + 1
      assert.equal(200, http.post(port, "/v1/completions", '{"model":"m","prompt":"x"}').status)
    until #one.requests > 0 or asked == 64
    assert.is_true(#one.requests > 0)
  end)

  it("is none when it says that nothing has changed, or names a path", function()
    serve(one.url)
    say = function()
      return stub.reply(304, "")
    end
    assert.equal(304, http.get(port, "/custom").status)
    for value, kept in pairs({ ["/custom/7"] = true, [INSIDE] = false, ["//10.0.0.5/x"] = false }) do
      say = function()
        return stub.reply(201, "{}", { Location = value, ["Content-Location"] = value })
      end
      local answer = http.post(port, "/custom", "{}")
      assert.equal(201, answer.status)
      assert.equal(kept and value or nil, answer:header("location"))
      assert.equal(kept and value or nil, answer:header("content-location"))
    end
  end)
end)
