-- mock.lua - one prefill and one decode worker that answer in one write (spec/bench/mock.c): what is counted is the
-- gateway's.
--
--   local process, prefill_url, decode_url = mock.start(build)

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local proc = require("gateway.support.proc")

local mock = {}

-- build: the folder that has bin/bench_mock; nil: the gateway's.
function mock.start(build)
  build = build or fleet.binary("BATON_BIN", "baton"):match("^(.*)/[^/]*$")
  local process = proc.start({ build .. "/bin/bench_mock", "1", "1" }, { name = "mock" })
  eventually(function()
    return process:stdout():find("ready", 1, true) ~= nil, process:stdout()
  end, 10, "the workers listen")
  local function url(role)
    return "http://127.0.0.1:" .. process:stdout():match(role .. " (%d+)")
  end
  return process, url("prefill"), url("decode")
end

return mock
