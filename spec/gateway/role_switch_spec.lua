-- A worker's role changes while requests run: drained, switched at its engine, taken in anew, and no request is lost.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local BODY = '{"model":"sim","prompt":"a baton","max_tokens":4}'
local SLOW = '{"model":"sim","prompt":"a baton","max_tokens":30,"stream":true}'
local SGLANG = ",engine=sglang,ttft=1,itl=1"

describe("POST /workers/*/role", function()
  local f

  local function start(workers, flags)
    f = fleet.start({ workers = workers, flags = flags or { "--pd-disaggregation" } })
  end

  local function switch(name, words)
    local answer = http.post(f.admin_port, ("/workers/%s/role?%s"):format(name, words), "")
    return answer.status, answer.body
  end

  -- Eight requests at a time until it is done; all are answered.
  local function load_until(what, done)
    local ask = { path = PATH, body = BODY }
    eventually(function()
      for _, answer in ipairs(http.together(f.port, { ask, ask, ask, ask, ask, ask, ask, ask })) do
        if answer.status ~= 200 then
          error("a request was lost: " .. answer.status .. " " .. answer.body)
        end
      end
      return done()
    end, 10, what)
  end

  local function has_role(name, role)
    return function()
      local w = f:told(name)
      return w.role == role and w.usable, json.encode(w)
    end
  end

  after_each(function()
    f:stop()
  end)

  it("switches SGLang's prefill to decode and back under load, without a lost request", function()
    start({ "role=prefill,count=2,role_switch=1" .. SGLANG, "role=decode,count=2,role_switch=1" .. SGLANG })
    local before = f:told("p1").id
    assert.equal(202, (switch("p1", "to=decode")))
    load_until("p1 is decode", has_role("p1", "decode"))
    assert.equal("decode", f:state("p1").role)
    assert.is_true(f:told("p1").id > before, "it is another incarnation")
    load_until("p1 serves decode legs", function()
      return f:told("p1").legs.decode.ok > 0
    end)
    assert.equal(202, (switch("p1", "to=prefill")))
    load_until("p1 is prefill again", has_role("p1", "prefill"))
    assert.equal("prefill", f:state("p1").role)
  end)

  it("lets running requests end first, and chooses the worker for no other meanwhile", function()
    start({ "role=prefill,count=2,role_switch=1" .. SGLANG, "role=decode,role_switch=1,engine=sglang,ttft=1,itl=20" })
    assert.equal(202, (switch("p1", "to=decode")))
    eventually(has_role("p1", "decode"), 10, "p1 is decode")
    local streams = {}
    for i = 1, 2 do
      streams[i] = http.start(f.port, { path = PATH, body = SLOW })
    end
    for _, c in ipairs(streams) do
      c:wait_events(1)
    end
    assert.equal(202, (switch("d0", "to=prefill")))
    assert.equal("switching_role", f:told("d0").why_not)
    assert.equal("draining", f:told("d0").role_switch.state)
    assert.equal(409, (switch("d0", "to=prefill")))
    f:mark()
    assert.equal(200, f:post(PATH, BODY).status)
    for _, e in ipairs(f:legs(PATH).decode) do
      assert.not_equal("d0", e.worker)
    end
    for _, c in ipairs(streams) do
      c:wait()
      assert.is_truthy(c.answer.body:find("[DONE]", 1, true), c.answer.body)
    end
    eventually(function()
      return f:state("d0").role == "prefill" and f:told("d0").role == "prefill"
    end, 10, "d0 is prefill")
  end)

  it("refuses what would leave nobody and what it does not understand; what the engine refuses serves on", function()
    start({ "role=prefill,count=2" .. SGLANG, "role=decode" .. SGLANG })
    local status, why = switch("d0", "to=prefill")
    assert.equal(409, status)
    assert.matches("last usable worker", why)
    assert.equal(409, (switch("p0", "to=prefill")))
    for _, words in ipairs({ "", "to=both", "to=hybrid", "to=decode&force=1", "to=decode&timeout_secs=0", "who=p0" }) do
      assert.equal(400, (switch("p0", words)), words)
    end
    assert.equal(404, (switch("p9", "to=decode")))
    assert.is_true(f:told("p0").usable)
    assert.equal(202, (switch("p1", "to=decode")))
    load_until("it has failed", function()
      local told = f:told("p1").role_switch
      return told and told.state == "failed"
    end)
    assert.matches("PD role switch is not enabled", f:told("p1").role_switch.why)
    assert.equal("prefill", f:told("p1").role)
    assert.is_true(f:told("p1").usable)
  end)

  it("keeps a worker out whose engine may have either role, until it says", function()
    start({ "role=prefill,count=2,role_switch=1" .. SGLANG, "role=decode" .. SGLANG })
    f.sim:fault("p1", { kind = "hang", path = "/pd_role_switch", times = 1 })
    assert.equal(202, (switch("p1", "to=decode&timeout_secs=1")))
    eventually(function()
      return f:told("p1").why_not == "role_unknown"
    end, 10, "its role is unknown")
    assert.equal(202, (switch("p1", "to=prefill")))
    eventually(has_role("p1", "prefill"), 10, "it is what the engine says")
  end)

  it("tries again while the engine is not idle", function()
    start({ "role=prefill,count=2,role_switch=1" .. SGLANG, "role=decode" .. SGLANG })
    local w = f.workers.p1 -- somebody else's request
    local c = http.start(w.port, { path = PATH,
      body = ('{"model":"sim","prompt":"a","max_tokens":1,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,'
        .. '"bootstrap_room":7}'):format(w.second) })
    eventually(function()
      for _, e in ipairs(f:requests("p1")) do
        if e.path == PATH then
          return true
        end
      end
    end, 5, "it is there")
    assert.equal(202, (switch("p1", "to=decode")))
    eventually(function()
      local asked = 0
      for _, e in ipairs(f:requests("p1")) do
        asked = asked + (e.path == "/pd_role_switch" and 1 or 0)
      end
      return asked >= 2
    end, 10, "the engine is asked again")
    c:close()
    eventually(has_role("p1", "decode"), 10, "p1 is decode")
  end)

  -- A file with that for p1, and p0 and d0 as they are.
  local function config_of(workers, p1)
    local rows, said = {}, { p0 = 'role = "prefill"', p1 = p1, d0 = 'role = "decode"' }
    for name, words in pairs(said) do
      local w = workers[name]
      rows[#rows + 1] = ('{ name = %q, url = %q, engine = "sglang", bootstrap_port = %s, %s }'):format(
        name, w.url, w.second > 0 and w.second or '"none"', words)
    end
    return ("return { pools = { { workers = { %s } } } }"):format(table.concat(rows, ", "))
  end

  local function reload(p1)
    local file = assert(io.open(f.config_path, "w"))
    file:write(config_of(f.workers, p1))
    file:close()
    local _, before = f.gateway:stderr():gsub("reloaded: epoch", "")
    f.gateway:kill(proc.SIGHUP)
    eventually(function()
      return select(2, f.gateway:stderr():gsub("reloaded: epoch", "")) > before
    end, 10, "it has been read")
  end

  it("keeps the role over SIGHUP, until the file says another one than before", function()
    f = fleet.start({
      workers = { "role=prefill,count=2,role_switch=1" .. SGLANG, "role=decode" .. SGLANG },
      config = function(workers)
        return config_of(workers, 'role = "prefill"')
      end,
    })
    assert.equal(202, (switch("p1", "to=decode")))
    eventually(has_role("p1", "decode"), 10, "p1 is decode")
    assert.equal("prefill", f:told("p1").role_switched_from)
    local id = f:told("p1").id
    reload('role = "prefill"')
    assert.equal(id, f:told("p1").id)
    reload('role = "prefill", zone = "b"')
    local told = f:told("p1")
    assert.equal("b", told.zone)
    assert.equal("decode", told.role)
    assert.is_true(told.usable, "nothing says that it is another process")
    load_until("p1 serves decode legs", function()
      return f:told("p1").legs.decode.ok > 0
    end)
    reload('role = "decode", zone = "b"') -- both say it
    told = f:told("p1")
    assert.equal("decode", told.role)
    assert.is_nil(told.role_switched_from)
    reload('role = "prefill", zone = "b"')
    assert.equal("prefill", f:told("p1").role)
  end)

  it("follows an engine that was switched elsewhere, and one that begins again as it was started", function()
    start({ "role=prefill,count=2,role_switch=1" .. SGLANG, "role=decode" .. SGLANG },
      { "--pd-disaggregation", "--role-check-secs", "0.5" })
    local answer = http.post(f.workers.p1.port, "/pd_role_switch", '{"new_role":"decode"}')
    assert.equal(200, answer.status, answer.body)
    eventually(has_role("p1", "decode"), 10, "p1 is what its engine says")
    assert.equal("prefill", f:told("p1").role_switched_from)
    load_until("p1 serves decode legs", function()
      return f:told("p1").legs.decode.ok > 0
    end)
    local asked = 0
    for _, e in ipairs(f:requests("p1")) do
      asked = asked + (e.path == "/pd_role_switch" and 1 or 0)
    end
    assert.equal(1, asked, "the gateway has not asked for it")
    assert.equal(200, http.post(f.workers.p1.port, "/pd_role_switch", '{"new_role":"prefill"}').status)
    eventually(has_role("p1", "prefill"), 10, "p1 is prefill again")
    assert.is_nil(f:told("p1").role_switched_from)
    assert.truthy(f.gateway:stderr():find("its engine says that it is decode", 1, true))
  end)

  it("gives a vLLM that can be both another role without a word to the engine", function()
    start({ "role=prefill,count=2,ttft=1", "role=decode,ttft=1,itl=1" }, { "--vllm-pd-disaggregation" })
    assert.equal(202, (switch("p1", "to=decode")))
    load_until("p1 serves decode legs", function()
      return f:told("p1").role == "decode" and f:told("p1").legs.decode.ok > 0
    end)
  end)
end)
