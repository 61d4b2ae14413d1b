-- The bytes of both legs of connectors that keep KV in a common store (ExampleConnector, LMCacheConnectorV1,
-- SharedStorageConnector), and of vLLM's oldest pair (PyNcclConnector), whose KV is found by content as well: prefill
-- makes one token and stores, decode gets the client's own request.

local common = require("gateway.support.common")
local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local legs = require("gateway.support.legs")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

local PROMPT = ("Kept in a store that both sides read. "):rep(8)

local ROUTES = {
  {
    path = "/v1/completions",
    body = '"prompt":"%s","max_tokens":5,"min_tokens":2 , "temperature":0.7000,"big":12345678901234567890123',
    chat = false,
  },
  { path = "/v1/chat/completions", body = '"messages":[{"role":"user","content":"%s"}],"max_completion_tokens":5',
    chat = true },
  { path = "/v1/responses", body = '"input":"%s","max_output_tokens":5', chat = true },
  { path = "/v1/messages", body = '"messages":[{"role":"user","content":"%s"}],"max_tokens":5', chat = true },
}

local f

for _, connector in ipairs({ "ExampleConnector", "PyNcclConnector" }) do
  describe("legs of shared_cache: " .. connector, function()
    setup(function()
      f = fleet.start({
        workers = { "role=prefill,connector=" .. connector .. ",ttft=1",
          "role=decode,connector=" .. connector .. ",ttft=1,itl=1" },
        flags = { "--vllm-pd-disaggregation", "--kv-connector", connector:lower() },
      })
    end)

    teardown(function()
      f:stop()
      proc.clean()
    end)

    for number, route in ipairs(ROUTES) do
      for _, stream in ipairs({ false, true }) do
        it(route.path .. (stream and ", streamed" or ""), function()
          local prompt = PROMPT .. number .. (stream and "s" or "w")
          local body = '{\n"model" : "sim",' .. route.body:format(prompt)
            .. (stream and ', "stream":true,"stream_options":{"include_usage":true} }' or " }")
          local before = f:state("d0").local_compute
          local answer, seen = f:exchange(route.path, body)
          assert.equal(200, answer.status, answer.body)
          local p, d = legs.one(seen.prefill), legs.one(seen.decode)
          legs.check(body, p.body, legs.one_token(route.path, body))
          assert.equal(body, d.body)
          assert.equal(p.headers["x-request-id"], d.headers["x-request-id"])
          assert.same({ fleet.expect(prompt, 5, { chat = route.chat }) }, texts.of(route.path, answer))
          local computed = f:state("d0").local_compute - before
          assert.is_true(computed < 32, "decode found the prompt's whole blocks in the store")
          assert.equal(d["end"] ~= "open", true)
        end)
      end
    end

    it("lets prefill end before decode begins", function()
      local body = '{"model":"sim","prompt":"one after the other","max_tokens":3}'
      local _, seen = f:exchange("/v1/completions", body, { ["X-Sim-Fault"] = "slow_first_byte:200@prefill" })
      assert.is_true(seen.decode[1].time_us - seen.prefill[1].time_us >= 200000)
    end)

    it("splits lists and samples", function()
      local body = '{"model":"sim","prompt":["one prompt","another"],"n":2,"seed":5,"max_tokens":3,"temperature":1}'
      local answer, seen = f:exchange("/v1/completions", body, { ["X-Request-Id"] = "store" })
      assert.equal(200, answer.status, answer.body)
      assert.equal(4, #seen.decode)
      for _, d in ipairs(seen.decode) do
        assert.is_nil(json.raw(d.body, "n"))
        assert.is_nil(json.raw(d.body, "kv_transfer_params"))
      end
      common.check_samples(answer)
    end)

    local ORDINARY = common.ORDINARY
    local function get()
      return f
    end
    common.headers(get, ORDINARY)
    common.ids(get, ORDINARY)
    common.forged(get, ORDINARY, {})
  end)
end
