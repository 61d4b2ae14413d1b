-- certs.lua - certificates by openssl, and curl as a client that speaks TLS.
--
--   local c = certs.new()                                    -- a CA, c.ca
--   local cert, key = c:make("server", { san = "IP:127.0.0.1" })
--   local status, body, why = certs.curl({ "--cacert", c.ca, "https://127.0.0.1:1234/health" })

local proc = require("gateway.support.proc")

local certs = {}

local Certs = {}
Certs.__index = Certs

local function sh(dir, text)
  local code, out, err = proc.run({ "/bin/sh", "-c", ("cd '%s' && { %s\n}"):format(dir, text) }, { seconds = 30 })
  if code ~= 0 then
    error(("openssl: %s%s"):format(out, err), 3)
  end
end

function certs.new()
  local dir = proc.path("certs")
  assert(os.execute("mkdir '" .. dir .. "'") == 0)
  sh(dir, [[openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=spec-ca \
    -keyout ca.key -out ca.pem]])
  return setmetatable({ dir = dir, ca = dir .. "/ca.pem" }, Certs)
end

-- ask: san, usage, days (negative: expired), cn. The paths of chain and key.
function Certs:make(name, ask)
  ask = ask or {}
  sh(self.dir, ([[openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=%s' -keyout %s.key \
      -out %s.csr
    printf 'subjectAltName=%s\nextendedKeyUsage=%s' >%s.ext
    openssl x509 -req -in %s.csr -CA ca.pem -CAkey ca.key -set_serial 0x%s -days %d -extfile %s.ext -out %s.pem
    chmod 600 %s.key]]):format(ask.cn or name, name, name, ask.san or "DNS:localhost,IP:127.0.0.1",
    ask.usage or "serverAuth", name, name, ("%x"):format(math.random(1, 2 ^ 30)), ask.days or 30, name, name, name))
  return ("%s/%s.pem"):format(self.dir, name), ("%s/%s.key"):format(self.dir, name)
end

-- One file takes another's name, as whoever renews certificates does it.
function certs.replace(from, to)
  assert(os.execute(("cp -p '%s' '%s.new' && mv '%s.new' '%s'"):format(from, to, to, to)) == 0)
end

-- Status (nil: no answer), body, and what curl says. words: of curl; its exit status is the fourth.
function certs.curl(words, seconds)
  local argv = { "/usr/bin/env", "curl", "-sS", "-m", tostring(seconds or 20), "-w", "\n%{http_code}" }
  proc.append(argv, words)
  local code, out, err = proc.run(argv, { seconds = (seconds or 20) + 5 })
  local body, status = out:match("^(.*)\n(%d+)$")
  status = tonumber(status)
  return status ~= 0 and status or nil, body, err, code
end

return certs
