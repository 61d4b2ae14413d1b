-- eventually.lua - waits until something that can be looked at is so.
--
-- look() returns a true value when it is, else nil or false and what it saw (told when the deadline passes). An error
-- inside look() counts as "not yet", so assertions may stand in it.

local clock = require("gateway.support.clock")

local DEADLINE_SECONDS = 10

return function(look, seconds, what)
  local deadline = clock.now() + (seconds or DEADLINE_SECONDS) * clock.slowness()
  local nap = 0.001
  while true do
    local ok, result, seen = pcall(look)
    if ok and result then
      return result
    end
    if clock.now() > deadline then
      local told = not ok and result or seen
      if type(told) == "table" and told.message then
        told = told.message
      end
      error(("not so in time: %s; last seen: %s"):format(what or "the condition", tostring(told)), 2)
    end
    clock.nap(nap)
    nap = math.min(nap * 1.5, 0.02)
  end
end
