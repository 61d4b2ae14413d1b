-- See dashboard_png.

local browser = require("gateway.support.browser")
local clock = require("gateway.support.clock")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local mime = require("mime")
local proc = require("gateway.support.proc")

local OUTPUT = assert(arg[1], "dashboard_png OUTPUT.png [VIEW] [light|dark]")
local VIEW, SCHEME = arg[2] or "topology", arg[3]
local SECONDS, EVERY = 9, 0.06

local CONFIG = [[
return {
  pools = { {
    name = "chat", connector = "NixlConnector",
    workers = {
%s
    },
  } },
}
]]

local PREFILL = '{ url = "%s", role = "prefill", name = "prefill-%d", zone = "%s", bootstrap_port = %d },'
local DECODE = '{ url = "%s", role = "decode", name = "decode-%d", zone = "%s" },'
local BODY = '{"model":"sim","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"question %d"}]}'

local function config(workers)
  local lines = {}
  for i = 0, 3 do
    local w, zone = workers["p" .. i], i < 2 and "a" or "b"
    lines[#lines + 1] = PREFILL:format(w.url, i, zone, w.second)
  end
  for i = 0, 4 do
    lines[#lines + 1] = DECODE:format(workers["d" .. i].url, i, i < 3 and "a" or "b")
  end
  return CONFIG:format(table.concat(lines, "\n"))
end

-- A request each EVERY seconds, of several tenants, until it is over.
local function load(port, seconds)
  local open, last, n = {}, 0, 0
  local ends = clock.now() + seconds
  while clock.now() < ends do
    if clock.now() - last > EVERY then
      last, n = clock.now(), n + 1
      open[n] = http.start(port, {
        path = "/v1/chat/completions", headers = { ["x-tenant-id"] = ({ "search", "chat", "batch" })[n % 3 + 1] },
        body = BODY:format(20 + n * 7 % 60, n),
      })
    end
    for i, c in pairs(open) do
      if not c:pump() or c.answer.done then
        c:close()
        open[i] = nil
      end
    end
    clock.nap(0.005)
  end
  return open
end

local f = fleet.start({
  workers = {
    "role=prefill,count=4,connector=NixlConnector,ttft=60", "role=decode,count=5,connector=NixlConnector,itl=25",
  },
  config = config, flags = { "--record-sample", "1", "--no-access-log" },
})
http.post(f.admin_port, "/workers/decode-3/drain", "{}")
f.sim:fault("p3", { kind = "status", path = "/health", status = 503, times = 100000 })
local b = browser.start({ width = 1280, height = 960, dark = SCHEME == "dark" })
b:open(("http://127.0.0.1:%d/ui#%s"):format(f.admin_port, VIEW))
local open = load(f.port, SECONDS)
local file = assert(io.open(OUTPUT, "wb"))
file:write((mime.unb64(b:screenshot())))
file:close()
for _, c in pairs(open) do
  c:close()
end
b:stop()
f:stop()
proc.clean()
