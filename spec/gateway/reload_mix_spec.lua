-- Good and broken texts of a policy alternate while requests and streams run: only headers show it.
-- It takes its time, because some of the broken ones never end.

local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local policy_files = require("gateway.support.policy_files")
local proc = require("gateway.support.proc")

local BROKEN, policy, replace = policy_files.BROKEN, policy_files.policy, proc.replace
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":4}'
local PATH = "/v1/completions"
-- Streams that outlast a spec, and some that end in it.
local ENDLESS = '{"model":"sim","prompt":"hello there","max_tokens":100000,"stream":true}'
local SHORT = '{"model":"sim","prompt":"hello there","max_tokens":100,"stream":true}'

-- A text that never ends is stopped when it has had its processor time: long, beside five other sanitized specs.
local ROUNDS = (os.getenv("BATON_SANITIZE") or "") == "" and 60 or 24

local f

local function put(text)
  local ask = { method = "PUT", path = "/admin/policies/mine", body = text }
  return http.request(f.admin_port, ask).status
end

describe("a request", function()
  after_each(function()
    f:stop()
  end)

  it("never fails while good and broken texts alternate, and no open stream breaks", function()
    local folder = proc.path("policies")
    assert(os.execute("mkdir " .. folder) == 0)
    replace(folder .. "/mine.lua", policy("1"))
    local worker = "role=hybrid,ttft=1,itl=20"
    f = fleet.start({ workers = { worker .. ",name=w0", worker .. ",name=w1" },
      flags = { "--policy-dir", folder, "--policy", "mine" } })
    local streams = {}
    for i = 1, 20 do
      streams[i] = http.start(f.port, { path = PATH, body = i <= 4 and SHORT or ENDLESS })
    end
    for _, c in ipairs(streams) do
      c:wait_head()
    end
    local seen = {}
    for i = 1, ROUNDS do
      local is_good = i % 2 == 0
      local text = is_good and policy(tostring(i)) or BROKEN[i % #BROKEN + 1]
      if text ~= "" and i % 6 > 1 then
        assert.equal(is_good and 200 or 400, put(text))
      else
        replace(folder .. "/mine.lua", text)
      end
      for _ = 1, 3 do
        local answer = http.post(f.port, PATH, BODY)
        assert.equal(200, answer.status, answer.body)
        seen[answer:header("x-baton-policy")] = true
      end
      for _, c in ipairs(streams) do
        c:pump()
        assert.is_nil(c.answer.broken)
      end
    end
    local count = 0
    for _ in pairs(seen) do
      count = count + 1
    end
    assert.is_true(count >= ROUNDS / 4, count .. " generations answered")
    assert.is_nil(seen["mine@0"], "no broken text ever served")
    for i, c in ipairs(streams) do
      local before = #c.answer.pieces
      if i <= 4 then
        c:wait()
        assert.equal("[DONE]", c.answer:data()[#c.answer:data()])
      else
        c:wait(function(answer)
          return #answer.pieces > before
        end)
      end
      assert.equal(200, c.answer.status)
      assert.equal("mine@1", c.answer:header("x-baton-policy"))
      c:close()
    end
    assert.equal(0, f:metric("baton_policy_errors_total"))
  end)
end)

teardown(function()
  proc.clean()
end)
