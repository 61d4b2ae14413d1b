-- issuer.lua - who signs tokens: an Ed25519 or RSA key of openssl's, its public half as a JWK, a server of key sets.

local mime = require("mime")

local eventually = require("gateway.support.eventually")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local port = require("gateway.support.port")
local proc = require("gateway.support.proc")

local issuer = {}

local Issuer = {}
Issuer.__index = Issuer

local function sh(command)
  local code, out, err = proc.run({ "/bin/sh", "-c", command })
  assert(code == 0, command .. ": " .. err)
  return out
end

local function b64(bytes)
  return (mime.b64(bytes):gsub("+", "-"):gsub("/", "_"):gsub("=", ""))
end

-- kind: "ed25519" or "rsa".
function issuer.new(kid, kind)
  local pem = proc.path("issuer-" .. kid .. ".pem")
  sh(("openssl genpkey -algorithm %s -out %s 2>/dev/null"):format(kind == "rsa" and "RSA" or "ED25519", pem))
  return setmetatable({ kid = kid, pem = pem, is_rsa = kind == "rsa" }, Issuer)
end

function Issuer:jwk()
  if not self.is_rsa then
    local der = sh(("openssl pkey -in %s -pubout -outform DER"):format(self.pem))
    return { kty = "OKP", crv = "Ed25519", kid = self.kid, x = b64(der:sub(-32)) }
  end
  local hex = sh(("openssl rsa -in %s -noout -modulus"):format(self.pem)):match("=(%x+)")
  local n = hex:gsub("%x%x", function(digits)
    return string.char(tonumber(digits, 16))
  end)
  return { kty = "RSA", kid = self.kid, n = b64(n), e = "AQAB" }
end

-- The key set of some issuers, as text.
function issuer.set(...)
  local keys = {}
  for i, one in ipairs({ ... }) do
    keys[i] = one:jwk()
  end
  return json.encode({ keys = keys })
end

local function with_rest(claims)
  local all = { iss = "https://issuer", aud = "baton", sub = "alice", exp = os.time() + 600 }
  for name, value in pairs(claims or {}) do
    all[name] = value
  end
  return all
end

-- A token of these claims beside those that are needed. header: other members of it.
function Issuer:token(claims, header)
  local head = { alg = self.is_rsa and "RS256" or "EdDSA", kid = self.kid }
  for name, value in pairs(header or {}) do
    head[name] = value
  end
  local text = b64(json.encode(head)) .. "." .. b64(json.encode(with_rest(claims)))
  local path = proc.write("to-sign", text)
  local sign = self.is_rsa and "openssl dgst -sha256 -sign %s -binary %s"
    or "openssl pkeyutl -sign -rawin -inkey %s -in %s"
  return text .. "." .. b64(sh(sign:format(self.pem, path)))
end

-- HS256 with the public key as the secret, and no signature at all: what must not be believed.
function Issuer:confused_token()
  local public = proc.path("public.pem")
  sh(("openssl pkey -in %s -pubout -out %s"):format(self.pem, public))
  local text = b64(json.encode({ alg = "HS256", kid = self.kid })) .. "." .. b64(json.encode(with_rest()))
  local path = proc.write("to-sign", text)
  local mac = sh(("openssl dgst -sha256 -mac HMAC -macopt hexkey:$(od -An -tx1 -v %s | tr -d ' \\n') -binary %s")
    :format(public, path))
  return text .. "." .. b64(mac)
end

function Issuer:unsigned_token()
  return b64(json.encode({ alg = "none", kid = self.kid })) .. "." .. b64(json.encode(with_rest())) .. "."
end

-- A server of one key set, which can be changed; it counts its calls.
function issuer.serve(text)
  local folder = proc.folder()
  local self = setmetatable({ path = folder .. "/jwks.json" }, { __index = issuer.Server })
  self:put(text)
  self.port = port.free()
  self.process = proc.start({ "/usr/bin/env", "python3", "-u", "-m", "http.server", "--bind", "127.0.0.1",
    "--directory", folder, tostring(self.port) }, { name = "issuer" })
  eventually(function()
    local ok, answer = pcall(http.get, self.port, "/")
    return ok and answer.status == 200
  end, 10, "the issuer listens")
  self.url = ("http://127.0.0.1:%d/jwks.json"):format(self.port)
  return self
end

issuer.Server = {}

function issuer.Server:put(text)
  local file = assert(io.open(self.path .. ".new", "w"))
  file:write(text)
  file:close()
  assert(os.rename(self.path .. ".new", self.path))
end

function issuer.Server:calls()
  local _, count = self.process:stderr():gsub("GET /jwks.json", "")
  return count
end

return issuer
