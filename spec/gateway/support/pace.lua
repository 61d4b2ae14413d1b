-- pace.lua - short requests at a steady rate from a process of its own (spec/bench/load.c), and what became of them.

local fleet = require("gateway.support.fleet")
local proc = require("gateway.support.proc")

local pace = {}

-- rate 0: as fast as answers come. seconds 0: until it is told to end.
function pace.start(port, connections, rate, seconds)
  local build = fleet.binary("BATON_BIN", "baton"):match("^(.*)/[^/]*$")
  return proc.start({ build .. "/bin/bench_load", port, "connections=" .. connections, "rate=" .. rate,
    "seconds=" .. seconds }, { name = "load" })
end

-- Waits for its end; no request may have failed.
function pace.report(p, seconds)
  p:wait((seconds or 0) + 20)
  local report = {}
  for name, value in p:stdout():gmatch("(%S+) (%S+)") do
    report[name] = tonumber(value)
  end
  assert(report.failed == 0, p:stderr())
  assert(report.right > 0, p:stderr())
  return report
end

-- For one that was to go on until now.
function pace.stop(p)
  assert(p:is_alive(), p:stderr())
  p:kill(proc.SIGTERM)
  return pace.report(p)
end

function pace.run(port, connections, rate, seconds)
  return pace.report(pace.start(port, connections, rate, seconds), seconds)
end

function pace.say(what, report)
  print(("  %-12s %6.0f/s, %7d requests, p50 %6.2f ms, p99 %6.2f ms, max %6.2f ms (sent late: p99 %.2f ms)"):format(
    what, report.rate, report.right, report.p50_us / 1000, report.p99_us / 1000, report.max_us / 1000,
    report.late_p99_us / 1000))
end

return pace
