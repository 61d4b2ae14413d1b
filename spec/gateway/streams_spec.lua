-- Hundreds of streams at once, half hand-off and half bootstrap, every text checked (thousands: streams_many_spec.lua).

local streams = require("gateway.support.streams")
local proc = require("gateway.support.proc")

local COUNT, TOKENS = 500, 24

describe("500 streams at once", function()
  teardown(proc.clean)

  it("are all right to the last byte", function()
    local why = streams.raise_files(streams.files_for(COUNT))
    if why then
      pending(why)
      return
    end
    local f = streams.start(150)
    local report, err = streams.run(f, COUNT, TOKENS, 1000)
    assert.are.same({ right = COUNT, wrong = 0, errors = 0 },
      { right = report.right, wrong = report.wrong, errors = report.errors }, err)
    assert.is_true(report.events_min >= TOKENS)
    for _, name in ipairs({ "vp0", "vp1", "sp0", "sp1" }) do
      assert.are.equal(0, f:state(name).held_kv_requests, name)
    end
    f:stop()
  end)
end)
