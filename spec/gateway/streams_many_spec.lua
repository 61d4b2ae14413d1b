-- 5,000 streams at once, each of more than 100 events at two a second or more, half hand-off and half bootstrap, every
-- text checked. About a minute.

local streams = require("gateway.support.streams")
local proc = require("gateway.support.proc")

local COUNT, TOKENS, ITL_MS, PER_SECOND = 5000, 110, 430, 700

describe("5,000 streams at once", function()
  teardown(proc.clean)

  it("are all right to the last byte", function()
    local why = streams.raise_files(streams.files_for(COUNT))
    if why then
      pending(why)
      return
    end
    local f = streams.start(ITL_MS)
    local report, err, line = streams.run(f, COUNT, TOKENS, PER_SECOND)
    print(line)
    assert.are.same({ right = COUNT, wrong = 0, errors = 0, open_max = COUNT },
      { right = report.right, wrong = report.wrong, errors = report.errors, open_max = report.open_max }, err)
    assert.is_true(report.events_min >= 100)
    f:stop()
  end)
end)
