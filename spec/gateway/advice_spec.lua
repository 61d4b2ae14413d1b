-- GET /advice: which role holds a pool up, by what the gateway has seen; the same as metrics and for a policy's tick.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local LONG = ("one two three four "):rep(64)

local function body(prompt, tokens, stream)
  return json.encode({ model = "sim", prompt = prompt, max_tokens = tokens, stream = stream })
end

-- Every prompt computed for itself, 20 ms each: one worker is full at 50 a second. Decode is quick.
local SLOW_PREFILL = "role=prefill,connector=NixlConnector,count=1,queue=1,ttft=20,itl=0"
local QUICK_DECODE = "role=decode,connector=NixlConnector,count=3,ttft=0,itl=0"
local QUICK_PREFILL = "role=prefill,connector=NixlConnector,count=3,ttft=0,itl=0"
local SLOW_DECODE = "role=decode,connector=NixlConnector,count=1,ttft=0,itl=10"

local POLICY = [[
return {
  api = 2,
  name = "told",
  version = "1",
  plan = function(_, view)
    return { prefill = view.prefill[1], decode = view.decode[1] }
  end,
  tick = function(_, view)
    local a = view.advice
    if a then
      baton.log("info", a.bottleneck .. ": " .. a.advised_prefill .. " to " .. a.advised_decode)
    end
  end,
}
]]

describe("GET /advice", function()
  local f

  local function start(workers, flags)
    local words = { "--vllm-pd-disaggregation", "--advice-window-secs", "1" }
    proc.append(words, flags)
    f = fleet.start({ workers = workers, flags = words })
  end

  local function pool()
    local told = json.decode(http.get(f.admin_port, "/advice").body)
    return told.pools[1]
  end

  -- So many requests at a time, until it says so.
  local function load_until(what, count, request, done) -- what was told then
    local asks = {}
    for i = 1, count do
      asks[i] = { path = PATH, body = request }
    end
    return eventually(function()
      for _, answer in ipairs(http.together(f.port, asks)) do
        assert.equal(200, answer.status, answer.body)
      end
      local told = pool()
      return done(told) and told, json.encode(told)
    end, 20, what)
  end

  local function is(bottleneck, prefill, decode)
    return function(told)
      local advised = told.advised
      return told.bottleneck == bottleneck and advised.prefill == prefill and advised.decode == decode
    end
  end

  after_each(function()
    if f then
      local ended = f
      f = nil
      ended:stop()
    end
  end)

  it("names prefill where prompts wait for it, and the split that would take more", function()
    start({ SLOW_PREFILL, QUICK_DECODE })
    local told = load_until("prefill is short", 8, body(LONG, 2), is("prefill", 3, 1))
    assert.same({ prefill = 1, decode = 3 }, told.current)
    assert.is_true(told.prefill.used > 0.2, json.encode(told))
    assert.is_true(told.decode.used < 0.2, json.encode(told))
    assert.equal("time", told.prefill.used_by)
    assert.equal("kv_usage", told.decode.used_by)
    assert.is_true(told.advised.gain > 1.1)
    assert.is_true(told.prefill.tokens_per_used_second > 0)
    assert.is_true(told.decode.tokens_per_second > 0, "answers that are not streamed count too")
    assert.is_true(told.prefill.used_ms_per_request > 5 and told.prefill.used_ms_per_request < 200, json.encode(told))
    assert.is_true(told.predicted_ttft_ms >= told.prefill.used_ms_per_request)
    assert.is_true(told.needed.prefill >= 1)
    assert.matches("3 prefill and 1 decode would take", told.why)
    local text = http.get(f.admin_port, "/advice?format=text").body
    assert.matches("^pool default: 1 prefill, 3 decode: prefill is used to %d+ %%, decode to %d+ %%", text)
    local code, out, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "fleet", "advice", "--admin",
      "http://127.0.0.1:" .. f.admin_port }, { name = "fleet", seconds = 20 })
    assert.equal(0, code, err)
    assert.matches("\ndefault +1 : 3 +.*prefill is used to", out)
  end)

  it("names decode where its time per token is beyond the target, as streams say", function()
    start({ QUICK_PREFILL, SLOW_DECODE }, { "--advice-tpot-ms", "5" })
    local told = load_until("decode is short", 8, body("one two", 20, true), is("decode", 1, 3))
    assert.equal("tpot", told.decode.used_by)
    assert.is_true(told.decode.used > 1, json.encode(told))
    assert.is_true(told.decode.tpot_ms > 8, json.encode(told))
    assert.is_true(told.confidence == "medium" or told.confidence == "high", told.confidence)
  end)

  it("changes its mind with the traffic: long prompts, then long answers", function()
    start({
      "role=prefill,connector=NixlConnector,count=2,queue=1,ttft=0,ttft_per_token=0.4,itl=0",
      "role=decode,connector=NixlConnector,count=2,ttft=0,itl=5",
    }, { "--engine-request-limit", "8" })
    load_until("prefill is short", 8, body(LONG:rep(2), 1), is("prefill", 3, 1))
    load_until("decode is short", 12, body("one", 60), is("decode", 1, 3))
    load_until("prefill is short again", 8, body(LONG:rep(2), 1), is("prefill", 3, 1))
  end)

  it("says so where traffic says too little, and where there is no pair", function()
    start({ SLOW_PREFILL, QUICK_DECODE })
    eventually(function()
      local told = pool()
      return told and told.why:find("too little traffic: 0 requests", 1, true), json.encode(told or {})
    end, 5, "half a window is over")
    local told = pool()
    assert.same({ "unknown", "none" }, { told.bottleneck, told.confidence })
    assert.equal(json.null, told.advised)
    assert.equal(json.null, told.needed)
    assert.equal(json.null, told.predicted_ttft_ms)
    assert.is_nil(f:metric('baton_advice_bottleneck{pool="default",role="prefill"}'))
    assert.equal(3, f:metric('baton_advice_workers{pool="default",role="decode"}'))
    f:stop()
    f = fleet.start({ workers = { "role=hybrid" } })
    assert.equal('{"pools":[]}\n', http.get(f.admin_port, "/advice").body)
    assert.matches("no pool has both", http.get(f.admin_port, "/advice?format=text").body)
    assert.equal(400, http.get(f.admin_port, "/advice?format=xml").status)
  end)

  it("tells a policy's tick", function()
    start({ SLOW_PREFILL, QUICK_DECODE }, { "--policy", proc.write("told.lua", POLICY) })
    load_until("tick has heard of it", 8, body(LONG, 2), function()
      return f.gateway:stderr():find("prefill: 3 to 1", 1, true)
    end)
  end)

  it("is there as metrics", function()
    start({ SLOW_PREFILL, QUICK_DECODE })
    local text -- while the traffic counts: its window is a second
    local function metric(line_begin)
      return fleet.metric(f.admin_port, line_begin, text)
    end
    local role = '{pool="default",role="prefill"}'
    load_until("prefill is short", 8, body(LONG, 2), function(told)
      text = http.get(f.admin_port, "/metrics").body
      return is("prefill", 3, 1)(told) and metric("baton_advice_bottleneck" .. role) == 1
        and metric("baton_advice_advised_workers" .. role) == 3
    end)
    assert.equal(1, metric("baton_advice_workers" .. role))
    assert.is_true(metric("baton_advice_used_ratio" .. role) > 0.2)
    assert.is_true(metric("baton_advice_tokens_per_used_second" .. role) > 0)
    assert.is_true(metric("baton_advice_inflight_tokens" .. role) >= 0)
    assert.equal(0, metric('baton_advice_bottleneck{pool="default",role="decode"}'))
    assert.is_true(metric("baton_advice_needed_workers" .. role) >= 1)
    assert.is_true(metric('baton_advice_predicted_ttft_seconds{pool="default"}') > 0)
    assert.is_true(metric('baton_worker_decode_output_tokens_total{worker="d0"') > 0)
  end)

  describe("with --role-switch-auto", function()
    local PREFILL = "role=prefill,engine=sglang,role_switch=1,queue=1,ttft=20,itl=0,count="
    local DECODE = "role=decode,engine=sglang,role_switch=1,ttft=0,itl=0,count="

    local function start_sglang(prefill, decode, flags)
      local words = { "--pd-disaggregation", "--advice-window-secs", "1" }
      proc.append(words, flags)
      f = fleet.start({ workers = { PREFILL .. prefill, DECODE .. decode }, flags = words })
    end

    local function roles()
      local count = { prefill = 0, decode = 0 }
      for _, w in ipairs(json.decode(http.get(f.admin_port, "/workers").body).workers) do
        count[w.role] = count[w.role] + 1
      end
      return count
    end

    it("gives workers the role that is short, one at a time, and loses no request", function()
      start_sglang(1, 3, { "--role-switch-auto" })
      load_until("two workers prefill", 8, body(LONG, 2), function()
        return roles().prefill == 2
      end)
      assert.matches("pool default: worker d%d is to become prefill: prefill is used to", f.gateway:stderr())
      load_until("three of them do", 8, body(LONG, 2), function()
        return roles().prefill == 3
      end)
      assert.equal(1, roles().decode)
    end)

    it("leaves a role its last worker", function()
      start_sglang(1, 1, { "--role-switch-auto" })
      local told = load_until("prefill is short", 8, body(LONG, 2), function(told)
        return told.bottleneck == "prefill"
      end)
      assert.same({ 1, 1 }, { told.advised.prefill, told.advised.decode })
      assert.same({ prefill = 1, decode = 1 }, roles())
    end)

    it("is refused where replicas share a store", function()
      local code, _, err = proc.run({ fleet.binary("BATON_BIN", "baton"), "run", "--worker-urls", "http://127.0.0.1:1",
        "--role-switch-auto", "--redis-url", "redis://127.0.0.1:1" }, { name = "baton", seconds = 10 })
      assert.not_equal(0, code)
      assert.matches("%-%-role%-switch%-auto: replicas that share a store", err)
    end)
  end)
end)
