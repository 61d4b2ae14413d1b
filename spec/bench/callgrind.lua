-- callgrind.lua - instructions of a program's busiest thread between two moments, by function.
--
--   local under = callgrind.words()                  -- nil and why where valgrind is not installed
--   local gateway = fleet.start_gateway(words, { under = under, seconds = callgrind.SECONDS })
--   callgrind.zero(gateway.pid)
--   ...
--   local window = callgrind.dump(gateway.pid)       -- { total =, functions = { [name] = instructions } }
--   local window = callgrind.dump(gateway.pid, fn)   -- the thread that has called fn, or nil
--
-- Functions of Baton and libc stand by name, copies that the compiler made of one (.part.0, .isra.0) as one; what other
-- libraries do is one line each, because distributions strip them.

local proc = require("gateway.support.proc")

local callgrind = { SECONDS = 60 } -- for a program to start: it runs 50 times slower

local function run(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

-- The version, or nil.
function callgrind.version()
  return run("valgrind --version"):match("^valgrind%-(%S+)")
end

local function out_path(pid)
  return ("%s/callgrind.%s"):format(proc.folder(), pid)
end

local function gdb_prefix()
  return proc.folder() .. "/vgdb"
end

function callgrind.words()
  local path = run("command -v valgrind"):match("^(/%S+)")
  if not path or not callgrind.version() then
    return nil, "valgrind is not installed"
  end
  return { path, "--tool=callgrind", "--separate-threads=yes", "--compress-strings=no", "--compress-pos=no",
    "--dump-line=no", "--vgdb-prefix=" .. gdb_prefix(), "--callgrind-out-file=" .. out_path("%p") }
end

local function tell(pid, word)
  local said = run(("vgdb --vgdb-prefix=%s --pid=%d %s"):format(gdb_prefix(), pid, word))
  assert(not said:find("error", 1, true) and not said:find("syscall failed", 1, true), "vgdb: " .. said)
end

function callgrind.zero(pid)
  tell(pid, "zero")
end

local function name_of(object, fn)
  local file = object:match("[^/]*$")
  if object == "???" then
    return "(compiled Lua)"
  elseif file:find("^lib") and not file:find("^libc[%.-]") then
    return "(" .. file:match("^[%a_]+") .. ")"
  end
  return (fn:gsub("'%d+$", ""):gsub("%.[%a]+%.%d+", ""):gsub("@.*$", ""))
end

-- Lines "<source line> <cost>"; the one after "calls=" is what a callee cost.
function callgrind.parse(path)
  local functions, total, object, name, is_call = {}, 0, nil, nil, false
  for line in io.lines(path) do
    local key, value = line:match("^(%a+)=(.*)$")
    local cost = not key and line:match("^%d+ (%d+)$")
    if key == "ob" then
      object = value
    elseif key == "fn" then
      name = name_of(object, value)
    elseif key == "calls" then
      is_call = true
    elseif cost and is_call then
      is_call = false
    elseif cost and name then
      functions[name] = (functions[name] or 0) + tonumber(cost)
      total = total + tonumber(cost)
    end
  end
  return { total = total, functions = functions }
end

local dumps = {} -- of each process, so far

function callgrind.dump(pid, fn)
  tell(pid, "dump")
  dumps[pid] = (dumps[pid] or 0) + 1
  local busiest = { total = -1 }
  for path in run(("ls %s.%d-*"):format(out_path(pid), dumps[pid])):gmatch("%S+") do
    local window = callgrind.parse(path)
    busiest = (not fn or window.functions[fn]) and window.total > busiest.total and window or busiest
  end
  return busiest.total >= 0 and busiest or nil
end

return callgrind
