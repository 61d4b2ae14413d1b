-- texts.lua - what an answer says, whatever the route: the text of each choice, the usage, the ids.

local json = require("gateway.support.json")

local texts = {}

local function put(out, index, text)
  out[index + 1] = (out[index + 1] or "") .. text
end

local readers = {}

readers["/v1/completions"] = {
  whole = function(body, out)
    for _, c in ipairs(body.choices) do
      put(out, c.index, c.text)
    end
  end,
  event = function(data, out)
    for _, c in ipairs(data.choices) do
      put(out, c.index, c.text)
    end
  end,
}

readers["/v1/chat/completions"] = {
  whole = function(body, out)
    for _, c in ipairs(body.choices) do
      put(out, c.index, c.message.content)
    end
  end,
  event = function(data, out)
    for _, c in ipairs(data.choices) do
      local text = c.delta.content
      put(out, c.index, type(text) == "string" and text or "")
    end
  end,
}

readers["/v1/responses"] = {
  whole = function(body, out)
    put(out, 0, body.output[1].content[1].text)
  end,
  event = function(data, out)
    if data.type == "response.output_text.delta" then
      put(out, 0, data.delta)
    end
  end,
}

readers["/v1/messages"] = {
  whole = function(body, out)
    put(out, 0, body.content[1].text)
  end,
  event = function(data, out)
    if data.type == "content_block_delta" then
      put(out, 0, data.delta.text)
    end
  end,
}

readers["/generate"] = {
  whole = function(body, out)
    if body.text then
      body = { body }
    end
    for i, answer in ipairs(body) do
      out[i] = answer.text
    end
  end,
  event = function(data, out) -- each event repeats the text so far
    out[(data.index or 0) + 1] = data.text
  end,
}

readers["/inference/v1/generate"] = {
  whole = function(body, out)
    for _, c in ipairs(body.choices) do
      put(out, c.index, table.concat(c.token_ids, " "))
    end
  end,
  event = function(data, out)
    for _, c in ipairs(data.choices) do
      local before = out[c.index + 1] and " " or ""
      put(out, c.index, before .. table.concat(c.token_ids, " "))
    end
  end,
}

-- Texts of the choices in order. The answer may be streamed or not.
function texts.of(path, answer)
  local out = {}
  local reader = readers[path]
  if (answer:header("content-type") or ""):find("event-stream", 1, true) then
    for _, data in ipairs(answer:data()) do
      if data ~= "[DONE]" then
        reader.event(json.decode(data), out)
      end
    end
  else
    reader.whole(json.decode(answer.body), out)
  end
  return out
end

-- How often the stream said [DONE].
function texts.dones(answer)
  local count = 0
  for _, data in ipairs(answer:data()) do
    count = count + (data == "[DONE]" and 1 or 0)
  end
  return count
end

-- Distinct values of a member over all events, as written.
function texts.distinct(answer, ...)
  local out, seen = {}, {}
  for _, data in ipairs(answer:data()) do
    local raw = data ~= "[DONE]" and json.raw(data, ...)
    if raw and not seen[raw] then
      seen[raw] = true
      out[#out + 1] = raw
    end
  end
  return out
end

-- usage objects of a stream (decoded), in order.
function texts.usages(answer)
  local out = {}
  for _, data in ipairs(answer:data()) do
    local raw = data ~= "[DONE]" and json.raw(data, "usage")
    if raw and raw ~= "null" then
      out[#out + 1] = json.decode(raw)
    end
  end
  return out
end

return texts
