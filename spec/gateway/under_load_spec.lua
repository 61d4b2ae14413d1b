-- What an operator does while clients of every kind ask without a pause: not one request fails. New certificates, a key
-- that is taken back, a program that takes another's place on disk and then in service.

local certs = require("gateway.support.certs")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local load = require("gateway.support.load")
local proc = require("gateway.support.proc")
local successors = require("gateway.support.successors")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":1}'
local STREAM = '{"model":"sim","prompt":"hello there","max_tokens":300,"stream":true}'

local function sh(text)
  assert(os.execute(text) == 0, text)
end

for _, has_tls in ipairs({ true, false }) do
  describe("under load, " .. (has_tls and "over TLS" or "in the clear") .. ", no request fails", function()
    local c, cert, key, sim, process, port, admin_port, line, program

    -- words of curl; status and body.
    local function curl(path, words)
      local all = { ("%s://127.0.0.1:%d%s"):format(has_tls and "https" or "http", port, path) }
      for _, word in ipairs(has_tls and { "--cacert", c.ca } or {}) do
        all[#all + 1] = word
      end
      proc.append(all, words)
      return certs.curl(all)
    end

    local function bearer(secret)
      return { "-H", "Authorization: Bearer " .. secret }
    end

    local function start(more, health)
      local words = { "--worker-urls", sim.list[1].url }
      for _, list in ipairs({ has_tls and { "--tls-cert", cert, "--tls-key", key } or {}, more or {} }) do
        proc.append(words, list)
      end
      local ready
      process, port, admin_port = fleet.start_gateway(words, { program = program })
      for i, word in ipairs(process.argv) do
        ready = word == "--ready-file" and process.argv[i + 1] or ready
      end
      line = successors.of(process, ready)
      eventually(function()
        local status, body, why = curl("/readiness", health)
        return status == 200, (body or "") .. why
      end, 10, "/readiness is 200")
    end

    before_each(function()
      sim = fleet.start_sim({ "role=hybrid,ttft=1,itl=1" })
      if has_tls then
        c = certs.new()
        cert, key = c:make("server")
      end
    end)

    after_each(function()
      if line then
        line:clean()
        line = nil
      end
      program = nil
      proc.clean()
    end)

    local function loading(secret)
      return load.start(port, { ca = has_tls and c.ca or nil, key = secret })
    end

    local with_tls = has_tls and it or function() end

    with_tls("while certificates are renewed", function()
      local function expiry()
        return fleet.metric(admin_port,
          ('baton_tls_certificate_expiry_seconds{side="client",file="%s"}'):format(cert))
      end
      start()
      local l = loading()
      for days = 40, 100, 20 do
        local new_cert, new_key = c:make("renewed" .. days, { days = days })
        local before = expiry()
        certs.replace(new_cert, cert) -- at first without its key
        certs.replace(new_key, key)
        process:kill(proc.SIGHUP)
        eventually(function()
          return expiry() ~= before
        end, 15, "the new certificate is served")
        l:goes_on()
      end
      l:stop()
    end)

    it("but those of a key that is revoked", function()
      local path = proc.path("keys.txt")
      local function baton_key(...)
        local code, out, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "key", ... })
        assert.equal(0, code, err)
        return out
      end
      local function new_key(tenant)
        return baton_key("new", path, "--tenant", tenant):match("^(bk_%w+_%w+)\n$")
      end
      local mine = new_key("mine")
      local theirs = { new_key("theirs"), new_key("theirs"), new_key("theirs") }
      start({ "--client-api-keys-file", path })
      local function ask(secret)
        local words = bearer(secret)
        words[3], words[4] = "-d", BODY
        return (curl("/v1/completions", words))
      end
      local l = loading(mine)
      for _, secret in ipairs(theirs) do
        assert.equal(200, ask(secret))
        local argv = { "/usr/bin/env", "curl", "-sSN", "-m", "60", "-d", STREAM,
          "-H", "Authorization: Bearer " .. secret,
          ("%s://127.0.0.1:%d/v1/completions"):format(has_tls and "https" or "http", port) }
        for _, word in ipairs(has_tls and { "--cacert", c.ca } or {}) do
          argv[#argv + 1] = word
        end
        local stream = proc.start(argv, { name = "stream" })
        eventually(function()
          return stream:stdout():find("data: ", 1, true), stream:stderr()
        end, 10, "the stream has begun")
        baton_key("revoke", path, secret:match("^bk_%w+"))
        eventually(function()
          local status = ask(secret)
          assert(status == 200 or status == 401, status)
          return status == 401
        end, 15, "the key is refused")
        for _ = 1, 5 do
          assert.equal(401, ask(secret))
        end
        assert.equal(0, stream:wait(30), stream:stderr()) -- what has been let in goes on to its end
        assert.truthy(stream:stdout():find("data: [DONE]", 1, true))
        l:goes_on()
      end
      l:stop()
    end)

    it("while the program is replaced, again and again", function()
      program = proc.path("baton")
      local built = fleet.binary("BATON_BIN", "baton")
      sh(("cp '%s' '%s'"):format(built, program))
      start()
      local l = loading()
      for _ = 1, 3 do
        sh(("cp '%s' '%s.new' && mv '%s.new' '%s'"):format(built, program, program, program)) -- as dpkg does it
        line:upgrade()
        assert.equal(select(2, proc.run({ "/usr/bin/stat", "-c", "%i", program })),
          (select(2, proc.run({ "/usr/bin/stat", "-Lc", "%i", ("/proc/%d/exe"):format(line:last()) }))))
        l:goes_on()
      end
      l:stop()
      for i = 1, #line.pids - 1 do
        assert.equal(0, line:wait_end(i))
      end
      assert.truthy(http.get(admin_port, "/metrics").body:find("baton_", 1, true))
    end)
  end)
end
