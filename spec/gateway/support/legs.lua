-- legs.lua - compares the bytes of a leg with the bytes the client sent.
--
-- change: { removed = {"key", ...}, set = { key = raw }, added = { key = raw } }. Everything else must be the
-- client's, byte for byte and in its order; `set` members keep their place.

local assert = require("luassert")
local json = require("gateway.support.json")

local legs = {}

local function as_set(list)
  local set = {}
  for _, key in ipairs(list or {}) do
    set[key] = true
  end
  return set
end

-- Text of a value without white space outside strings, so that raw JSON of any layout can be compared.
function legs.dense(raw)
  local out, at = {}, 1
  while at <= #raw do
    local from, to = raw:find('"[^"\\]*"', at)
    local quote = raw:find('"', at, true)
    if not quote then
      out[#out + 1] = (raw:sub(at):gsub("%s+", ""))
      break
    end
    out[#out + 1] = (raw:sub(at, quote - 1):gsub("%s+", ""))
    if from ~= quote then -- with escapes inside: find its end by hand
      to = quote + 1
      while raw:sub(to, to) ~= '"' do
        to = to + (raw:sub(to, to) == "\\" and 2 or 1)
      end
    end
    out[#out + 1] = raw:sub(quote, to)
    at = to + 1
  end
  return table.concat(out)
end

function legs.check(client, leg, change)
  local removed, set, added = as_set(change.removed), change.set or {}, change.added or {}
  local theirs, seen = {}, {}
  for _, m in ipairs(json.members(client)) do
    if not removed[m.key] then
      theirs[#theirs + 1] = m
    end
  end
  for i, m in ipairs(json.members(leg)) do
    assert.is_nil(seen[m.key], "twice in the leg: " .. m.key)
    seen[m.key] = true
    if i <= #theirs then
      assert.equal(theirs[i].raw_key, m.raw_key, "member " .. i .. " of " .. leg)
      if set[m.key] then
        assert.equal(legs.dense(set[m.key]), legs.dense(m.raw), m.key)
      else
        assert.equal(theirs[i].raw, m.raw, m.key)
      end
    else
      assert.is_not_nil(added[m.key], "nobody asked for " .. m.key .. " in " .. leg)
      assert.equal(legs.dense(added[m.key]), legs.dense(m.raw), m.key)
    end
  end
  for _, m in ipairs(theirs) do
    assert.is_true(seen[m.key] or false, "lost on the way: " .. m.key)
  end
  for key in pairs(added) do
    assert.is_true(seen[key] or false, "missing in the leg: " .. key)
  end
end

-- The prefill leg of vLLM's dialects: one token, not streamed, nothing that contradicts it (vLLM reference: hand-off,
-- the leg to P). added: members the dialect puts in; set: members it changes besides.
function legs.one_token(path, client, added, set)
  local change = { removed = { "min_tokens", "min_completion_tokens", "stream_options", "background" }, set = {},
    added = {} }
  local present = as_set(json.keys(client))
  local function put(key, raw)
    change[present[key] and "set" or "added"][key] = raw
  end
  put("stream", "false")
  if path == "/v1/responses" then
    put("max_output_tokens", "1")
    put("store", "false")
  elseif path ~= "/inference/v1/generate" then
    put("max_tokens", "1")
    if present.max_completion_tokens then
      put("max_completion_tokens", "1")
    end
  end
  for key, raw in pairs(set or {}) do
    put(key, raw)
  end
  for key, raw in pairs(added or {}) do
    change.added[key] = raw
  end
  return change
end

-- vLLM's /v1/responses takes its id from the body, not from the header.
function legs.with_id(route, id, members)
  if route.path == "/v1/responses" then
    members.request_id = json.encode("resp_" .. id)
  end
  return members
end

-- The one entry of a list, or a failure that shows how many there are.
function legs.one(list)
  assert.equal(1, #list, "legs of this role")
  return list[1]
end

return legs
