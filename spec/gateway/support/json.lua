-- json.lua - JSON for specs: decoded where that is enough, as written where bytes or 64-bit integers matter.
--
-- A decoder makes doubles of integers, so rooms and the like are compared as text: json.raw gives a member's own bytes.

local cjson = require("cjson").new()

local json = { null = cjson.null }

json.encode = cjson.encode

function json.decode(text)
  local ok, value = pcall(cjson.decode, text)
  if not ok then
    error("no JSON: " .. tostring(value) .. "\n" .. tostring(text), 2)
  end
  return value
end

local function skip_space(text, at)
  return text:find("[^ \t\r\n]", at) or #text + 1
end

local function string_end(text, at)
  local i = at + 1
  while true do
    local c = text:sub(i, i)
    if c == "" then
      error("unended string in JSON: " .. text:sub(at, at + 40))
    elseif c == "\\" then
      i = i + 2
    elseif c == '"' then
      return i
    else
      i = i + 1
    end
  end
end

local value_end

local function nest_end(text, at)
  local i = at + 1
  while true do
    i = text:find('["%[%]{}]', i)
    if not i then
      error("unended JSON: " .. text:sub(at, at + 40))
    end
    local c = text:sub(i, i)
    if c == "]" or c == "}" then
      return i
    end
    i = (c == '"' and string_end(text, i) or nest_end(text, i)) + 1
  end
end

-- Index of the last byte of the value that begins at `at`.
function value_end(text, at)
  local c = text:sub(at, at)
  if c == '"' then
    return string_end(text, at)
  elseif c == "{" or c == "[" then
    return nest_end(text, at)
  end
  return (text:find("[,%]} \t\r\n]", at) or #text + 1) - 1
end

-- Members of an object in order: { key, raw_key, raw, from, to } (key unescaped; from..to = bytes of the value).
function json.members(text)
  local out = {}
  local at = skip_space(text, 1)
  assert(text:sub(at, at) == "{", "no JSON object: " .. text:sub(1, 60))
  at = skip_space(text, at + 1)
  while text:sub(at, at) ~= "}" do
    local key_to = string_end(text, at)
    local raw_key = text:sub(at, key_to)
    local colon = skip_space(text, key_to + 1)
    assert(text:sub(colon, colon) == ":", "no colon in JSON: " .. text:sub(at, at + 60))
    local from = skip_space(text, colon + 1)
    local to = value_end(text, from)
    out[#out + 1] =
      { key = cjson.decode("[" .. raw_key .. "]")[1], raw_key = raw_key, raw = text:sub(from, to), from = from,
        to = to }
    at = skip_space(text, to + 1)
    if text:sub(at, at) == "," then
      at = skip_space(text, at + 1)
    end
  end
  return out
end

-- Elements of an array as written.
function json.elements(text)
  local out = {}
  local at = skip_space(text, 1)
  assert(text:sub(at, at) == "[", "no JSON array: " .. text:sub(1, 60))
  at = skip_space(text, at + 1)
  while text:sub(at, at) ~= "]" do
    local to = value_end(text, at)
    out[#out + 1] = text:sub(at, to)
    at = skip_space(text, to + 1)
    if text:sub(at, at) == "," then
      at = skip_space(text, at + 1)
    end
  end
  return out
end

-- The bytes of a nested value: json.raw(text, "choices", 1, "index"); nil when it is not there.
function json.raw(text, ...)
  for _, step in ipairs({ ... }) do
    local found
    if type(step) == "number" then
      found = json.elements(text)[step]
    else
      for _, m in ipairs(json.members(text)) do
        if m.key == step then
          found = m.raw
        end
      end
    end
    if not found then
      return nil
    end
    text = found
  end
  return text
end

-- Keys of an object, in order.
function json.keys(text)
  local out = {}
  for i, m in ipairs(json.members(text)) do
    out[i] = m.key
  end
  return out
end

return json
