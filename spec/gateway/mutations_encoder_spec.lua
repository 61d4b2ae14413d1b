-- No gateway: legs of encoders typed from vLLM's wire format, each field dropped, retyped or swapped, and the simulator
-- refuses (400), encodes the part itself (local), or its engine ends (dies).

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local CHAT = "/v1/chat/completions"
local number = 0
local sim

local function part()
  number = number + 1
  return ('{"type":"image_url","image_url":{"url":"http://media/%d"}}'):format(number)
end

local function encode(item, more)
  return http.post(sim.workers.e0.port, CHAT,
    '{"model":"sim","messages":[{"role":"user","content":[' .. item .. ']}],"stream":false' .. (more or "") .. "}")
end

local function compute(item, params)
  return http.post(sim.workers.h0.port, CHAT, '{"model":"sim","messages":[{"role":"user","content":[' .. item
    .. ']}],"max_tokens":2,"ec_transfer_params":' .. params .. "}")
end

local function replaced(raw, from, to)
  local out, count = raw:gsub(from, to)
  assert(count == 1, raw)
  return out
end

local MUTATIONS = {
  { "nothing", function(raw) return raw end, "fetched" },
  { "another hash", function(raw) return replaced(raw, '^{"%x+"', '{"0123456789abcdef"') end, "local" },
  { "no host", function(raw) return replaced(raw, '"peer_host":"[^"]*",', "") end, "local" },
  { "another host", function(raw) return replaced(raw, "127%.0%.0%.1", "10.9.9.9") end, "local" },
  { "a port as text", function(raw) return replaced(raw, '"peer_port":(%d+)', '"peer_port":"%1"') end, "local" },
  { "another port", function(raw) return replaced(raw, '"peer_port":%d+', '"peer_port":1') end, "local" },
  { "another size", function(raw) return replaced(raw, '"size_bytes":%d+', '"size_bytes":1') end, "local" },
  { "no metadata", function(raw) return replaced(raw, ',"nixl_agent_metadata_b64":"[^"]*"', "") end, "local" },
  { "null", function() return "null" end, "local" },
  { "no object", function() return "[]" end, 400 },
  { "a number of a part", function(raw) return replaced(raw, ":{.*}}", ":7}") end, "dies" },
  { "a list of a part", function(raw) return replaced(raw, ":{.*}}", ":[]}") end, "dies" },
}

describe("an engine that fetches media", function()
  setup(function()
    sim = fleet.start_sim({ "role=encode,ttft=1", "role=hybrid,ttft=1,itl=1" }, { "--time-scale", "0.01" })
  end)

  teardown(function()
    sim.process:stop(5)
    proc.clean()
  end)

  for _, m in ipairs(MUTATIONS) do
    it("is told " .. m[1], function()
      local item, before = part(), sim:state("h0")
      local told = json.raw(encode(item).body, "ec_transfer_params")
      local answer = compute(item, m[2](told))
      if type(m[3]) == "number" or m[3] == "dies" then
        assert.equal(m[3] == "dies" and 500 or m[3], answer.status, answer.body)
      else
        local now = sim:state("h0")
        assert.equal(200, answer.status, answer.body)
        assert.equal(1, now["media_" .. m[3]] - before["media_" .. m[3]])
        assert.equal(1, now.media_fetched + now.media_local - before.media_fetched - before.media_local)
      end
      if m[3] == "dies" then
        eventually(function()
          return json.decode(http.get(sim.workers.e0.port, "/sim/state?worker=h0").body).engine_dead
        end, 5, "its engine is dead")
        sim:reset("h0")
      end
    end)
  end

  for name, ask in pairs({
    ["text beside the part"] = function() return encode('{"type":"text","text":"x"},' .. part()) end,
    ["two parts"] = function() return encode(part() .. "," .. part()) end,
    ["no part"] = function() return encode("") end,
    ["tokens to make"] = function() return encode(part(), ',"max_tokens":1') end,
  }) do
    it("has an encoder that refuses " .. name, function()
      assert.equal(400, ask().status)
    end)
  end

  it("finds no part by another hash: a uuid, other kwargs", function()
    for _, more in ipairs({ { '"uuid":"u1",', "" }, { "", ',"mm_processor_kwargs":{"min_pixels":1}' } }) do
      local item, before = part(), sim:state("h0").media_local
      local told = json.raw(encode("{" .. more[1] .. item:sub(2), more[2]).body, "ec_transfer_params")
      compute(item, told)
      assert.equal(1, sim:state("h0").media_local - before)
    end
  end)
end)
