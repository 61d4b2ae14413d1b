-- asgi.lua - workers whose HTTP server is a real uvicorn, once with h11 and once with httptools: asgi_worker.py tells
-- what its application was handed, after all decoding that engines do.

local eventually = require("gateway.support.eventually")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local asgi = {}

local OPTIONAL = { ["/inference/v1/generate"] = true, ["/v1/completions/render"] = true }

local Pair = {}
Pair.__index = Pair

-- The first interpreter that has what is needed, or nil.
function asgi.python()
  for _, python in ipairs({ "python3", "/usr/bin/python3" }) do
    if proc.run({ "/bin/sh", "-c", python .. " -c 'import uvicorn, h11, httptools' 2>/dev/null" }) == 0 then
      return python
    end
  end
end

-- { h11 = url, httptools = url }, served until stop().
function asgi.start()
  local ready = proc.path("asgi.ready")
  local script = "spec/gateway/support/asgi_worker.py"
  local process = proc.start({ "/usr/bin/env", assert(asgi.python()), "-B", script, ready },
    { name = "asgi" })
  local text = eventually(function()
    local got = proc.read(ready)
    return got and got:find("httptools %d+\n") and got
  end, 20, "uvicorn listens")
  local self = setmetatable({ process = process }, Pair)
  for parser, port in text:gmatch("(%w+) (%d+)\n") do
    self[parser] = "http://127.0.0.1:" .. port
    self.port = tonumber(port)
    eventually(function() -- the file may be there before they listen; one that refuses is down to a gateway
      return http.get(self.port, "/health").status == 200
    end, 20, parser .. " answers")
  end
  return self
end

-- What the gateway asks of its own accord: load and metrics, and by GET whether a route that takes POST only is there.
local function is_probe(e)
  return e.path == "/metrics" or e.path == "/v1/loads" or (e.method == "GET" and OPTIONAL[e.path])
end

-- What clients caused since the last call: { { parser, method, path, query, headers, json | text } }.
function Pair:seen()
  local list = json.decode(http.get(self.port, "/seen").body)
  local out = {}
  for _, e in ipairs(list) do
    if not is_probe(e) then
      out[#out + 1] = e
    end
  end
  return out
end

function Pair:stop()
  self.process:stop(5)
end

return asgi
