-- A connector that only a file of --dialect-dir knows: examples/dialect, with workers whose every byte is written here.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

local DIR = "examples/dialect/dialects"
local BODY = '{"model":"m","prompt":"hello","max_tokens":5,"telepathy":{"thought":"stolen"}}'

describe("examples/dialect", function()
  local prefill, decode, gateway, port, admin_port
  local seen, thought

  before_each(function()
    seen, thought = {}, ',"telepathy":{"thought":"t-7","more":[1]}'
    local function worker(name, more)
      return stub.start(function(request)
        if request.method ~= "POST" then
          return stub.reply(404, "{}")
        end
        seen[#seen + 1] = { who = name, body = request.body }
        return stub.reply(200, '{"id":"x","choices":[{"index":0,"text":"' .. name .. '","finish_reason":"length"}]'
          .. more() .. "}")
      end)
    end
    prefill = worker("p", function()
      return thought
    end)
    decode = worker("d", function()
      return ""
    end)
  end)

  after_each(function()
    if gateway then
      gateway:stop(10)
      gateway = nil
    end
    prefill:stop()
    decode:stop()
    proc.clean()
  end)

  local function serve(...)
    gateway, port, admin_port = fleet.start_gateway({ "--dialect-dir", DIR, ... })
    eventually(function()
      local text = http.get(admin_port, "/workers").body
      return select(2, text:gsub('"health":"up"', "")) == 2, text
    end, 10, "both workers are up")
  end

  local function file(tail)
    return proc.write("baton.lua", ("return { pools = { { workers = { { url = %q, role = 'prefill', %s }, "
      .. "{ url = %q, role = 'decode', %s } } } } }"):format(prefill.url, tail, decode.url, tail))
  end

  local function assert_served(connector)
    local answer = http.post(port, "/v1/completions", BODY)
    assert.equal(200, answer.status, answer.body)
    assert.equal("p0", answer:header("x-baton-prefill"))
    assert.equal("d0", answer:header("x-baton-decode"))
    assert.equal('"d"', json.raw(answer.body, "choices", 1, "text"))
    assert.equal(2, #seen)
    assert.equal("p", seen[1].who)
    assert.equal('{"think":true}', json.raw(seen[1].body, "telepathy"))
    assert.equal("1", json.raw(seen[1].body, "max_tokens"))
    assert.equal("d", seen[2].who)
    assert.equal("5", json.raw(seen[2].body, "max_tokens"))
    local object = json.decode(json.raw(seen[2].body, "telepathy"))
    assert.same({ thought = "t-7", more = { 1 }, host = "127.0.0.1" }, object)
    local text = http.get(admin_port, "/workers").body
    assert.truthy(text:find('"connector":"' .. connector .. '"', 1, true), text)
    assert.truthy(text:find('"capability":"prefill_handoff_decode","dialect":"telepathy"', 1, true), text)
  end

  it("serves its made-up connector from prefill to decode", function()
    serve("--kv-connector", "telepathyconnector", "--prefill", prefill.url, "--decode", decode.url)
    assert_served("telepathyconnector")
  end)

  it("has workers that serve alone, where a policy says so", function()
    serve("--kv-connector", "TelepathyConnector", "--prefill", prefill.url, "--decode", decode.url, "--policy",
      "conditional_disagg")
    local answer = http.post(port, "/v1/completions", BODY)
    assert.equal(200, answer.status, answer.body)
    assert.equal("single", answer:header("x-baton-plan"))
    assert.equal(1, #seen)
    assert.equal("d", seen[1].who)
    -- The client's own word never reaches the engine; all else is as it was.
    assert.equal('{"model":"m","prompt":"hello","max_tokens":5}', seen[1].body)
  end)

  it("is replayed with the same folder", function()
    local records = proc.path("records.jsonl")
    serve("--kv-connector", "TelepathyConnector", "--prefill", prefill.url, "--decode", decode.url, "--record-file",
      records, "--record-sample", "1")
    assert_served("TelepathyConnector")
    gateway:stop(10) -- writes what waits
    gateway = nil
    local baton = fleet.binary("BATON_BIN", "baton")
    local code, out, err = proc.run({ baton, "replay", "--policy", "least_load", "--dialect-dir", DIR,
      "--fail-on-difference", records })
    assert.equal(0, code, out .. err)
    code, out, err = proc.run({ baton, "replay", "--policy", "least_load", "--fail-on-difference", records })
    assert.not_equal(0, code, out .. err)
    code, out, err = proc.run({ baton, "replay", "--policy", "least_load", "--dialect-dir", "/nowhere", records })
    assert.equal(2, code, out)
    assert.truthy(err:find("--dialect-dir: ", 1, true), err)
  end)

  it("is a way out for a connector that is refused by name", function()
    serve(file("connector = 'MooncakeConnector', dispatch_profile = 'telepathy'"))
    assert_served("MooncakeConnector")
  end)

  it("refuses a bad reply, and recomputes without one", function()
    serve("--kv-connector", "TelepathyConnector", "--prefill", prefill.url, "--decode", decode.url)
    thought = ""
    assert.equal(200, http.post(port, "/v1/completions", BODY).status)
    assert.is_nil(json.raw(seen[2].body, "telepathy"))
    thought, seen = ',"telepathy":{"thought":7}', {}
    assert.equal(502, http.post(port, "/v1/completions", BODY).status)
    for _, leg in ipairs(seen) do
      assert.equal("p", leg.who)
    end
  end)

  local function refusal(...)
    local baton = fleet.binary("BATON_BIN", "baton")
    local code, out, err = proc.run({ baton, "check", "--port", "0", "--admin-port", "0", ... })
    assert.equal(2, code, out .. err)
    return out .. err
  end

  local function refusal_of_files(one, two)
    local folder = proc.path("mine")
    assert(os.execute("mkdir " .. folder) == 0)
    for name, text in pairs({ one = one, two = two }) do
      local f = assert(io.open(folder .. "/" .. name .. ".lua", "w"))
      f:write(text)
      f:close()
    end
    return refusal("--dialect-dir", folder)
  end

  local TAIL = "kind = 'handoff', prefill = function() end, decode = function() end, "

  local function own_folder(single)
    local folder = proc.path("mine")
    assert(os.execute("mkdir " .. folder) == 0)
    local f = assert(io.open(folder .. "/own.lua", "w"))
    f:write("return { name = 'own', connectors = { 'OwnConnector' }, " .. TAIL .. single .. "}")
    f:close()
    return folder
  end

  it("lets nobody serve alone whose file does not say so, or refuses it", function()
    local names = { "--kv-connector", "OwnConnector", "--prefill", prefill.url, "--decode", decode.url }
    local function serve_own(single)
      gateway, port, admin_port = fleet.start_gateway({ "--dialect-dir", own_folder(single), "--policy",
        "conditional_disagg", "--max-attempts", "1", unpack(names) })
      eventually(function()
        local text = http.get(admin_port, "/workers").body
        return select(2, text:gsub('"health":"up"', "")) == 2, text
      end, 10, "both workers are up")
      return http.post(port, "/v1/completions", BODY)
    end
    local answer = serve_own("")
    assert.equal("handoff", answer:header("x-baton-plan"), answer.body)
    assert.equal(2, #seen)
    gateway:stop(10)
    proc.clean()
    seen = {}
    answer = serve_own("single = function() return nil, 'not today' end, ")
    assert.equal(502, answer.status)
    assert.matches("not today", answer.body)
    assert.equal(0, #seen)
    gateway:stop(10)
    proc.clean()
    answer = serve_own("single = function(leg, edit) edit.set('user', edit.str(leg.prefill.name)) end, ")
    assert.equal(502, answer.status)
    assert.matches("leg.decode is its worker", answer.body)
    gateway:stop(10)
    proc.clean()
    local err = refusal("--dialect-dir", own_folder("single = 7, "), unpack(names))
    assert.truthy(err:find("single must be a function(leg, edit)", 1, true), err)
  end)

  it("is named when somebody nearly says it", function()
    local err = refusal("--dialect-dir", DIR, "--kv-connector", "TelepatyConnector", "--prefill", prefill.url)
    assert.truthy(err:find("unknown connector (did you mean TelepathyConnector?)", 1, true), err)
    err = refusal("--kv-connector", "TelepathyConnector", "--prefill", prefill.url)
    assert.truthy(err:find("or with a file in --dialect-dir", 1, true), err)
  end)

  it("shares no connector with another file", function()
    local err = refusal_of_files("return { name = 'a', connectors = { 'X' }, " .. TAIL .. "}",
      "return { name = 'b', connectors = { 'x' }, " .. TAIL .. "}")
    assert.truthy(err:find('/two.lua: connectors: "x" was said before', 1, true), err)
  end)
end)
