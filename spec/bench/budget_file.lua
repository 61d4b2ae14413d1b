-- budget_file.lua - spec/bench/BUDGET.md: the figures as tables that people and `budget check` read alike.
--
-- { built = { { what, value } ... }, names = { scenario ... }, scenarios = { [name] = { total =, least =, most =,
-- functions = { [function] = instructions } } } }; of the functions those that are SHARE of a scenario or more.

local budget_file = { PATH = "spec/bench/BUDGET.md", SHARE = 0.01 }

local HEAD = [[
# Instructions of a request

What the gateway's loop thread executes for one request (`chunk`: for one event of an open stream), counted by callgrind
while one client asks one request after the other. Made by `spec/bench/budget write`; the ctest `budget/instructions`
fails when a scenario takes more than 3 % more than here. It judges only where all of the first table is the same, and
prints otherwise: another compiler makes other code, and libraries choose their vector code by the processor that
valgrind shows.

]]

local function number(n)
  return (("%.0f"):format(n):reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", ""))
end
budget_file.number = number

local function row(cells)
  return "| " .. table.concat(cells, " | ") .. " |\n"
end

local function rule(columns)
  return "|" .. ("---|"):rep(columns) .. "\n"
end

-- Functions that matter somewhere, those first that are most of any scenario.
function budget_file.top(b)
  local share, list = {}, {}
  for _, scenario in pairs(b.scenarios) do
    for fn, n in pairs(scenario.functions) do
      local part = n / scenario.total
      if part >= budget_file.SHARE then
        list[#list + 1] = not share[fn] and fn or nil
        share[fn] = math.max(share[fn] or 0, part)
      end
    end
  end
  table.sort(list, function(x, y)
    return share[x] > share[y] or (share[x] == share[y] and x < y)
  end)
  return list
end

local function put_functions(b)
  local out = { row({ "function", unpack(b.names) }), rule(#b.names + 1) }
  local rest = { "the rest" }
  for i, name in ipairs(b.names) do
    rest[i + 1] = b.scenarios[name].total
  end
  for _, fn in ipairs(budget_file.top(b)) do
    local cells = { "`" .. fn .. "`" }
    for i, name in ipairs(b.names) do
      local n = b.scenarios[name].functions[fn] or 0
      cells[i + 1] = n >= 0.5 and number(n) or ""
      rest[i + 1] = rest[i + 1] - n
    end
    out[#out + 1] = row(cells)
  end
  for i = 2, #rest do
    rest[i] = number(rest[i])
  end
  out[#out + 1] = row(rest)
  return table.concat(out)
end

function budget_file.write(b)
  local out = { HEAD, row({ "built and run with", "" }), rule(2) }
  for _, pair in ipairs(b.built) do
    out[#out + 1] = row(pair)
  end
  out[#out + 1] = "\n" .. row({ "scenario", "instructions", ("least to most of %d runs"):format(b.runs) }) .. rule(3)
  for _, name in ipairs(b.names) do
    local s = b.scenarios[name]
    out[#out + 1] = row({ name, number(s.total), number(s.least) .. " to " .. number(s.most) })
  end
  out[#out + 1] = ("\nFunctions without their callees, those that are %.0f %% of a scenario or more:\n\n"):format(
    100 * budget_file.SHARE) .. put_functions(b)
  local file = assert(io.open(budget_file.PATH, "w"))
  file:write(table.concat(out))
  file:close()
end

local function cells_of(line)
  local cells = {}
  for cell in line:gmatch("|%s*([^|]-)%s*%f[|]") do
    cells[#cells + 1] = cell
  end
  return cells
end

local function value(cell)
  return tonumber((cell:gsub(",", ""))) or 0
end

local readers = {}

readers["built and run with"] = function(b, _, cells)
  b.built[#b.built + 1] = cells
end

readers["scenario"] = function(b, _, cells)
  b.scenarios[cells[1]] = { total = value(cells[2]), functions = {} }
end

readers["function"] = function(b, head, cells)
  for i = 2, #head do
    b.scenarios[head[i]].functions[cells[1]:gsub("`", "")] = value(cells[i])
  end
end

function budget_file.read()
  local b, head = { built = {}, scenarios = {} }, nil
  for line in io.lines(budget_file.PATH) do
    local cells = cells_of(line)
    if #cells == 0 then
      head = nil
    elseif not head then
      head = cells
    elseif cells[1]:sub(1, 3) ~= "---" then
      readers[head[1]](b, head, cells)
    end
  end
  return b
end

return budget_file
