-- The helper that other specs start their servers with.

local eventually = require("gateway.support.eventually")
local proc = require("gateway.support.proc")
local redis = require("gateway.support.redis")

describe("a redis-server of a spec", function()
  if not redis.program() then
    pending("no redis-server here (Debian package redis-server)")
    return
  end

  teardown(proc.clean)

  it("answers, and forgets when it is killed", function()
    local r = redis.start()
    assert.equal("OK", r:ask("SET", "k", "a\r\nb"))
    assert.equal("a\r\nb", r:ask("GET", "k"))
    assert.same({ "1", "2" }, r:ask("EVAL", "return {'1', '2'}", 0))
    assert.equal(false, r:ask("GET", "absent"))
    assert.has_error(function()
      r:ask("INCR", "k")
    end, "ERR value is not an integer or out of range")
    r:kill()
    assert.has_error(function()
      r:ask("PING")
    end)
    local port = r.port
    r:again()
    assert.equal(port, r.port)
    assert.equal(false, r:ask("GET", "k"))
  end)

  it("asks for its password, and stands still when frozen", function()
    local r = redis.start({ "--requirepass", "p" })
    assert.equal("PONG", r:ask("PING"))
    r:freeze()
    r:thaw()
    assert.equal("PONG", r:ask("PING"))
  end)

  it("is watched by a Sentinel", function()
    local r = redis.start()
    local s = redis.start_sentinel(r.port, { name = "m" })
    local at = s:ask("SENTINEL", "get-master-addr-by-name", "m")
    assert.same({ "127.0.0.1", tostring(r.port) }, at)
    r:kill()
    eventually(function()
      return table.concat(s:ask("SENTINEL", "master", "m"), " "):find("s_down", 1, true)
    end, 20, "the Sentinel sees it down")
  end)
end)
