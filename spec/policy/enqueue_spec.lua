-- enqueue, as an author's spec asks for it.
local testing = require "baton.testing"

local TEXT = [[
return {
  api = 2, name = "queues", version = "1",
  plan = function() end,
  enqueue = function(req)
    if req.model == "wrong" then
      return { class = "urgent" }
    end
    local cost = req.prompt_tokens * 2
    return req.tenant and { class = "high", key = req.tenant, cost = cost, weight = 4, timeout_ms = 50 }
  end,
}]]

describe("policy:enqueue", function()
  local policy = testing.load_text(TEXT)

  it("gives what the hook has said", function()
    assert.same({ class = "high", key = "gold", cost = 20, weight = 4, timeout_ms = 50 },
      policy:enqueue { tenant = "gold", prompt_tokens = 10 })
    assert.same({}, policy:enqueue {})
  end)

  it("gives nil and the reason when that cannot be", function()
    local answer, why = policy:enqueue { model = "wrong" }
    assert.is_nil(answer)
    assert.is_truthy(why:find("enqueue: class must be high, normal or low, not 'urgent'", 1, true), why)
  end)

  it("gives nothing where there is no such hook", function()
    assert.same({}, testing.load("random"):enqueue {})
  end)
end)
