-- budget_judge.lua - figures of now beside those of BUDGET.md: what grew, and by which functions.

local budget_file = require("bench.budget_file")

local budget_judge = { ALLOWED = 1.03 }

local FUNCTIONS_SHOWN, WORTH_SHOWING = 12, 0.001 -- of a scenario

local number = budget_file.number

-- What the figures depend on: the first thing that is not the same, in words.
function budget_judge.difference(here, there)
  for i, pair in ipairs(here) do
    local other = there[i] and there[i][2] or "nothing"
    if other ~= pair[2] then
      return ("%s: %s here, %s there"):format(pair[1], pair[2], other)
    end
  end
end

-- A function that the file does not list was below its share then, and is told when it is above now.
local function growth(now, allowed)
  local grown = {}
  for fn, n in pairs(now.functions) do
    local before = allowed.functions[fn]
    local by = n - (before or 0)
    if (before or n >= budget_file.SHARE * now.total) and by >= WORTH_SHOWING * now.total then
      grown[#grown + 1] = { fn = fn, by = by, is_new = not before }
    end
  end
  table.sort(grown, function(x, y)
    return x.by > y.by
  end)
  local out = {}
  for i = 1, math.min(#grown, FUNCTIONS_SHOWN) do
    local one = grown[i]
    out[i] = ("    %+9.0f  %s%s\n"):format(one.by, one.fn, one.is_new and " (not in the file)" or "")
  end
  return table.concat(out)
end

-- A line for each scenario, and how many of them are above what the file allows or not in it.
function budget_judge.compare(now, file)
  local out, over = {}, 0
  for _, name in ipairs(now.names) do
    local figures, allowed = now.scenarios[name], file.scenarios[name]
    local ratio = allowed and figures.total / allowed.total
    local told = ratio and ("%+.2f %%"):format(100 * (ratio - 1)) or "not in the file"
    out[#out + 1] = ("%-24s %10s  %s\n"):format(name, number(figures.total), told)
    if not ratio or ratio > budget_judge.ALLOWED then
      over = over + 1
      out[#out + 1] = growth(figures, allowed or { functions = {} })
    elseif ratio < 2 - budget_judge.ALLOWED then
      out[#out + 1] = "    less than the file says: `spec/bench/budget write` keeps it so\n"
    end
  end
  return table.concat(out), over
end

return budget_judge
