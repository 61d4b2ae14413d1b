-- Kill -9 of a decode in mid-stream, under 200 streams of token-id prompts: each ends with the text of an undisturbed
-- run. Workers are processes of their own, and KV really moves between them, for the continued answers too.

local clock = require("gateway.support.clock")
local faults = require("gateway.support.faults")
local gateway_managed = require("gateway.support.gateway_managed")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")
local socket = require("socket")

local STREAMS, TOKENS = 200, 40
local PATH = "/v1/completions"

-- Prompts of 24 to 40 ids, no two the same.
local function body(i)
  local ids = {}
  for k = 1, 24 + i % 17 do
    ids[k] = (i * 7919 + k * k * 31) % 151000
  end
  return ('{"model":"m","prompt":[%s],"max_tokens":%d,"temperature":0,"stream":true,'
    .. '"stream_options":{"include_usage":true}}'):format(table.concat(ids, ","), TOKENS)
end

local function is_over(c)
  return c.answer.done or c.answer.broken
end

-- Pumps all until done(c) holds for each.
local function pump_until(connections, done, what)
  local deadline = clock.now() + 60 * clock.slowness()
  while true do
    local waiting = {}
    for _, c in ipairs(connections) do
      if not is_over(c) then
        c:pump()
      end
      if not done(c) then
        waiting[#waiting + 1] = c.socket
      end
    end
    if #waiting == 0 then
      return
    end
    assert(clock.now() < deadline, ("%d streams did not come to %s"):format(#waiting, what))
    socket.select(waiting, nil, 0.5)
  end
end

local function start_all(f)
  local connections = {}
  for i = 1, STREAMS do
    connections[i] = http.start(f.port, { path = PATH, body = body(i) })
  end
  return connections
end

local function finish_all(connections)
  pump_until(connections, is_over, "their end")
  local answers = {}
  for i, c in ipairs(connections) do
    answers[i] = c.answer
    c:close()
  end
  return answers
end

-- But for ids, times and what a worker's cache had of the prompt.
local function plain(text)
  return (text:gsub('"id":"[^"]*"', '"id":"x"'):gsub('"created":%d+', '"created":0'):gsub(
    '"prompt_tokens_details":{"cached_tokens":%d+}', '"prompt_tokens_details":null'))
end

local function ids_of(text)
  local set, count = {}, 0
  for id in text:gmatch('"id":"([^"]*)"') do
    count = count + (set[id] and 0 or 1)
    set[id] = true
  end
  return count
end

describe("a decode that is killed under many streams", function()
  local f

  after_each(function()
    if f then
      f:wait_idle()
      f:stop()
      f = nil
    end
  end)

  teardown(proc.clean)

  it("costs none of them a byte", function()
    local decode = "model=m,by_ids=1,itl=25"
    f = gateway_managed.start({ p0 = "model=m,by_ids=1", d0 = decode, d1 = decode },
      { flags = { "--replay-lost-decode" } })
    local calm = finish_all(start_all(f))
    local connections = start_all(f)
    pump_until(connections, function(c)
      return is_over(c) or (c.answer.status and #c.answer:data() >= 3)
    end, "their third event")
    local cut = 0
    for _, c in ipairs(connections) do
      cut = cut + (c.answer:header("x-baton-decode") == "d0" and not is_over(c) and 1 or 0)
    end
    assert.is_true(cut > STREAMS / 4, "streams in their middle at d0: " .. cut)
    f:kill("d0", 9)
    local answers = finish_all(connections)
    for i, answer in ipairs(answers) do
      assert.equal(200, answer.status)
      assert.is_true(answer.done)
      assert.equal(plain(calm[i].body), plain(answer.body), "stream " .. i)
      assert.equal(1, ids_of(answer.body))
    end
    assert.equal(cut, f:number("baton_replays_total", { reason = "lost" }))
    local guilt = faults.guilt(f)
    assert.is_true(guilt.d0 >= 1)
    assert.same({ d0 = guilt.d0 }, guilt, "nobody else is blamed")
  end)
end)
