-- The parts of spec/bench/budget that need no run: its file, its judgement, callgrind's format.

local budget_file = require("bench.budget_file")
local budget_judge = require("bench.budget_judge")
local callgrind = require("bench.callgrind")
local proc = require("gateway.support.proc")

local function scenario(functions)
  local total = 0
  for _, n in pairs(functions) do
    total = total + n
  end
  return { total = total, least = total, most = total, functions = functions }
end

local function budget(json, chunk)
  return {
    runs = 5,
    built = { { "compiler", "cc 12" }, { "flags", "-O2" } },
    names = { "json", "chunk" },
    scenarios = { json = scenario(json), chunk = scenario(chunk) },
  }
end

describe("the budget", function()
  local path = budget_file.PATH

  after_each(function()
    budget_file.PATH = path
    proc.clean()
  end)

  local function written(b)
    budget_file.PATH = proc.path("BUDGET.md")
    budget_file.write(b)
    return budget_file.read()
  end

  it("is read as it was written, small functions apart", function()
    local b = written(budget({ parse = 1234567, write = 40000, small = 100 }, { write = 3000 }))
    assert.same({ { "compiler", "cc 12" }, { "flags", "-O2" } }, b.built)
    assert.equal(1274667, b.scenarios.json.total)
    assert.equal(1234567, b.scenarios.json.functions.parse)
    assert.equal(3000, b.scenarios.chunk.functions.write)
    assert.is_nil(b.scenarios.json.functions.small)
  end)

  it("names what grew by more than 3 %", function()
    local b = written(budget({ parse = 100000, write = 50000 }, { write = 3000 }))
    local text, over = budget_judge.compare(budget({ parse = 102000, write = 50000, new = 3000 }, { write = 3000 }), b)
    assert.equal(1, over, text)
    assert.truthy(text:find("+2000  parse\n", 1, true), text)
    assert.truthy(text:find("+3000  new (not in the file)", 1, true), text)
    assert.falsy(text:find("write", 1, true), text)
  end)

  it("lets 3 % pass, and tells what became less", function()
    local b = written(budget({ parse = 100000 }, { write = 3000 }))
    local text, over = budget_judge.compare(budget({ parse = 102900 }, { write = 2000 }), b)
    assert.equal(0, over, text)
    assert.truthy(text:find("chunk +2,000  %-33.33 %%\n +less than the file says"), text)
  end)

  it("fails a scenario that the file does not have", function()
    local b = written(budget({ parse = 100 }, { write = 3000 }))
    b.scenarios.chunk = nil
    local text, over = budget_judge.compare(budget({ parse = 100 }, { write = 3000 }), b)
    assert.equal(1, over, text)
  end)

  it("is for one compiler and its flags", function()
    local built = budget({}, {}).built
    assert.is_nil(budget_judge.difference(built, built))
    assert.equal("flags: -O2 here, -O3 there", budget_judge.difference(built, { built[1], { "flags", "-O3" } }))
    assert.equal("flags: -O2 here, nothing there", budget_judge.difference(built, { built[1] }))
  end)

  it("counts a function's own instructions, not its callees'", function()
    local file = proc.write("callgrind.out", table.concat({
      "version: 1", "positions: line", "events: Ir", "summary: 999", "",
      "ob=/build/baton", "fl=a.c", "fn=parse.constprop.0", "10 70",
      "cob=/usr/lib/libc.so.6", "cfn=memcpy@@GLIBC_2.14", "calls=3 0", "10 500", "11 30", "",
      "fn=parse.part.1'2", "12 5", "",
      "ob=/usr/lib/libuv.so.1.0.0", "fn=0x0000", "0 7", "",
      "ob=/usr/lib/libc.so.6", "fn=memcpy@@GLIBC_2.14", "0 400", "",
      "ob=???", "fn=0x1983e62f", "0 9", "", "totals: 521",
    }, "\n") .. "\n")
    assert.same({ total = 521, functions = { parse = 105, memcpy = 400, ["(libuv)"] = 7, ["(compiled Lua)"] = 9 } },
      callgrind.parse(file))
  end)
end)
