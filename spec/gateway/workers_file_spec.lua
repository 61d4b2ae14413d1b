-- --workers-file: followed as it changes, and what becomes of a worker that others name, too.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":3}'

describe("baton run --workers-file", function()
  local sim, gateway, port, admin_port, path

  local function write(text)
    path = path or proc.path("workers.lua")
    proc.replace(path, text)
  end

  local function names(...)
    local rows = {}
    for _, w in ipairs({ ... }) do
      rows[#rows + 1] = string.format("{ url = %q, name = %q }", w.url, w.name)
    end
    return "return { " .. table.concat(rows, ", ") .. " }"
  end

  -- { w0 = "config file", ... }: who names whom.
  local function named()
    local by_name = {}
    for _, w in ipairs(json.decode(http.get(admin_port, "/workers").body).workers) do
      local words = {}
      for _, s in ipairs(w.sources) do
        assert.truthy(s.since:match("^%d+%-%d+%-%d+T[%d:.]+Z$"), s.since)
        words[#words + 1] = s.source
      end
      by_name[w.name] = table.concat(words, " ")
    end
    return by_name
  end

  local function wait_named(wanted)
    eventually(function()
      local now = named()
      local same = true
      for name, words in pairs(wanted) do
        same = same and now[name] == words
      end
      for name in pairs(now) do
        same = same and wanted[name] ~= nil
      end
      return same, json.encode(now)
    end, 5, "workers are named as they should be")
  end

  local function start(text, words)
    sim = fleet.start_sim({ "role=hybrid,ttft=1", "role=hybrid,ttft=1" })
    write(text or names(sim.list[1]))
    local argv = { "--workers-file", path }
    for _, word in ipairs(words and words(sim.list) or {}) do
      argv[#argv + 1] = word
    end
    gateway, port, admin_port = fleet.start_gateway(argv)
  end

  local function serves()
    eventually(function()
      local answer = http.post(port, "/v1/completions", BODY)
      return answer.status == 200, answer.body
    end, 5, "a request is served")
  end

  after_each(function()
    if gateway then
      gateway:stop()
    end
    if sim then
      sim.process:stop()
    end
    sim, gateway, path = nil, nil, nil
    proc.clean()
  end)

  it("adds and removes what the file names", function()
    start()
    local w0, w1 = sim.list[1], sim.list[2]
    wait_named({ [w0.name] = "file" })
    serves()
    write(names(w0, w1))
    wait_named({ [w0.name] = "file", [w1.name] = "file" })
    local id = json.decode(http.get(admin_port, "/workers/" .. w1.name).body).id
    write(names(w1))
    wait_named({ [w1.name] = "file" })
    assert.equal(id, json.decode(http.get(admin_port, "/workers/" .. w1.name).body).id)
    serves()
  end)

  it("keeps the last good state, and says what is wrong and where", function()
    start()
    local w0, w1 = sim.list[1], sim.list[2]
    for _, bad in ipairs({
      { "return { { url = 'http://127.0.0.1:1' rolle } }", "workers%.lua:1: " },
      { "return { { url = 'http://127.0.0.1:1', rolle = 'decode' } }", "workers%.lua: %[1%]%.rolle: .*\"role\"" },
      { "return { { url = 'http://127.0.0.1:1', pool = 'nope' } }", "workers%.lua: %[1%]%.pool: .*nope" },
      { "return { { url = 'http://127.0.0.1:1', role = 'decode' } }", "workers%.lua: %[1%]%.connector: missing" },
    }) do
      write(bad[1])
      eventually(function()
        local log = gateway:stderr()
        return log:find("stay as they were: [^\n]*" .. bad[2]) ~= nil, log:sub(-1500)
      end, 5, "the log says " .. bad[2])
      wait_named({ [w0.name] = "file" })
    end
    assert(os.remove(path))
    gateway:says("no such file or directory; its workers stay as they were")
    wait_named({ [w0.name] = "file" })
    write(names(w0, w1))
    wait_named({ [w0.name] = "file", [w1.name] = "file" })
  end)

  it("is another file only after a restart", function()
    sim = fleet.start_sim({ "role=hybrid,ttft=1", "role=hybrid,ttft=1" })
    local w0, w1 = sim.list[1], sim.list[2]
    local config = proc.path("baton.lua")
    local function configure(file)
      local out = assert(io.open(config, "w"))
      out:write(file and ("return { workers_file = %q, pools = { { name = 'all' } } }"):format(file)
        or "return { pools = { { name = 'all' } } }")
      out:close()
    end
    write(names(w0))
    local other = proc.write("other.lua", names(w1))
    configure(path)
    gateway, port, admin_port = fleet.start_gateway({ config })
    wait_named({ [w0.name] = "file" })
    configure(other)
    gateway:kill(proc.SIGHUP)
    gateway:says("workers-file has changed: it needs a restart")
    gateway:says("reloaded: epoch")
    wait_named({ [w0.name] = "file" })
    configure(nil)
    gateway:kill(proc.SIGHUP)
    eventually(function()
      local log = gateway:stderr()
      return select(2, log:gsub("reloaded: epoch", "")) == 2, log
    end, 10, "both reloads are over")
    write(names(w0, w1)) -- still followed
    wait_named({ [w0.name] = "file", [w1.name] = "file" })
    serves()
  end)

  it("is one source of several", function()
    start("return {}", function(list)
      return { "--worker-urls", list[1].url }
    end)
    local w0, w1 = sim.list[1], sim.list[2]
    wait_named({ w0 = "config" })
    write(string.format("return { { url = %q }, { url = %q, name = 'x', zone = 'a' } }", w0.url, w1.url))
    wait_named({ w0 = "config file", x = "file" })
    -- Its word is not the operator's to take back; another source's is.
    local answer = http.request(admin_port, { method = "DELETE", path = "/workers/x" })
    assert.equal(409, answer.status, answer.body)
    assert.truthy(answer.body:find("named by: file", 1, true), answer.body)
    answer = http.request(admin_port, { method = "DELETE", path = "/workers/w0" })
    assert.equal('{"status":"kept","worker":"w0","named_by":"file"}\n', answer.body)
    wait_named({ w0 = "file", x = "file" })
    -- What the API says of a worker counts while it says it, and outlives SIGHUP, which brings the flag's word back.
    answer = http.post(admin_port, "/workers", json.encode({ url = w1.url, name = "y", zone = "b" }))
    assert.equal(201, answer.status, answer.body)
    wait_named({ w0 = "file", y = "api file" })
    gateway:kill(proc.SIGHUP)
    wait_named({ w0 = "config file", y = "api file" })
    local code, out = proc.run({ fleet.binary("BATON_BIN", "baton"), "fleet", "--admin",
      "http://127.0.0.1:" .. admin_port, "workers", "list" })
    assert.equal(0, code)
    assert.truthy(out:find("NAMED BY +SINCE"), out)
    assert.truthy(out:find("y +http[^\n]+ api,file +%d+%-%d+%-%d+T"), out)
    assert.equal(200, http.request(admin_port, { method = "DELETE", path = "/workers/y" }).status)
    wait_named({ w0 = "config file", y = "file" }) -- as it was told last, until the file is another one
    write("return {}")
    wait_named({ w0 = "config" })
    serves()
  end)
end)
