-- usage.prompt_tokens_details: what of the prompt prefill's own cache had. A decode that was told it says so itself;
-- one that was not counts what was moved as cached, and is corrected where the gateway reads the answer anyway.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")

local f

local function start(version)
  f = fleet.start({
    workers = { "role=prefill,ttft=1,block_size=4,version=" .. version,
      "role=decode,ttft=1,itl=1,block_size=4,version=" .. version },
    config = function(w)
      return ([[return { connector = "nixl", engine = "vllm", pools = { { workers = {
        { url = "%s", role = "prefill" }, { url = "%s", role = "decode" } } } } }]]):format(w.p0.url, w.d0.url)
    end,
    ready = false,
  })
  eventually(function()
    return f:get("/readiness").status == 200
  end, 5, "the pair is there")
end

-- A prompt of so many tokens (of 4 bytes), of which the first `same` blocks (of 4 tokens) are those of its family.
local function prompt(family, same, tokens, tail)
  return (family:rep(16 * same) .. tail:rep(4 * tokens)):sub(1, 4 * tokens)
end

local function ask(prompts, more)
  local body = ('{"model":"sim","max_tokens":2,"prompt":%s%s}'):format(prompts, more or "")
  local answer = f:post("/v1/completions", body)
  assert.equal(200, answer.status, answer.body)
  return answer
end

local function details_of(answer, stream)
  if not stream then
    return json.decode(answer.body).usage
  end
  for _, data in ipairs(answer:data()) do
    local usage = data ~= "[DONE]" and json.decode(data).usage or json.null
    if usage ~= json.null then
      return usage
    end
  end
end

local STREAM = ',"stream":true,"stream_options":{"include_usage":true}'

-- Two families in prefill's cache: 2 blocks of "a", 3 of "b".
local function warm()
  ask(('"%s"'):format(prompt("a", 2, 9, "x")))
  ask(('"%s"'):format(prompt("b", 3, 13, "x")))
end

for _, version in ipairs({ "0.32.0", "0.21.0" }) do
  describe("usage of a pair of vLLM " .. version, function()
    setup(function()
      start(version)
      warm()
    end)

    teardown(function()
      f:stop()
      proc.clean()
    end)

    for _, stream in ipairs({ false, STREAM }) do
      local kind = stream and ", streamed" or ""
      it("sums what prefill had of each prompt of a list" .. kind, function()
        local usage = details_of(ask(('["%s","%s"]'):format(prompt("a", 2, 22, stream and "p" or "q"),
          prompt("b", 3, 30, stream and "r" or "s")), stream or ""), stream)
        assert.equal(52, usage.prompt_tokens)
        assert.equal(8 + 12, usage.prompt_tokens_details.cached_tokens)
      end)

      it("counts a prompt of several samples once" .. kind, function()
        local usage = details_of(ask(('"%s"'):format(prompt("b", 3, 25, stream and "t" or "u")),
          ',"n":3,"temperature":1' .. (stream or "")), stream)
        assert.equal(25, usage.prompt_tokens)
        assert.equal(6, usage.completion_tokens)
        assert.is_true(usage.prompt_tokens_details.cached_tokens <= 24)
      end)
    end

    it("is prefill's beside logprobs of the prompt", function()
      local usage = details_of(ask(('"%s"'):format(prompt("a", 2, 20, "w")), ',"prompt_logprobs":0'))
      assert.equal(8, usage.prompt_tokens_details.cached_tokens)
    end)

    it("of one prompt is decode's word", function()
      local usage = details_of(ask(('"%s"'):format(prompt("a", 2, 20, "z"))))
      assert.equal(version == "0.32.0" and 8 or 20, usage.prompt_tokens_details.cached_tokens)
    end)
  end)
end
