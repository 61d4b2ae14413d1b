-- sglang - both legs at once; decode fetches the KV from prefill's bootstrap server by a room number.
--
-- A scalar prompt gets scalars and a list of k prompts gets lists of k: a list for a scalar prompt, or a room without a
-- host, ends real engines. rid is ours on both legs, because /abort_request knows requests by nothing else; it
-- matches prefixes, so all rids have one width, and a batch's are rid_00, rid_01, ...: `rid` ends them all.
--
-- The prefill leg is never streamed. It makes one token whatever is asked, and a failed prefill then says so in its
-- status line, where a stream would say 200 first and hide the error in an event.

local function list(count, item)
  local out = {}
  for i = 1, count do
    out[i] = item(i)
  end
  return "[" .. table.concat(out, ",") .. "]"
end

local function repeated(count, json)
  return list(count, function()
    return json
  end)
end

local function rid_list(leg, edit, count)
  local width = math.max(2, #tostring(count - 1))
  return list(count, function(i)
    return edit.str(leg.rid .. "_" .. ("%0" .. width .. "d"):format(i - 1))
  end)
end

local function both(leg, edit)
  local count = leg.prompt_count
  local host = edit.str(leg.prefill.host)
  local port = tostring(leg.prefill.bootstrap_port or "null")
  if not leg.rid then
    return nil, "no rid"
  end
  if count == 0 then
    if not leg.room then
      return nil, "no room"
    end
    edit.set("bootstrap_host", host)
    edit.set("bootstrap_port", port)
    edit.set("bootstrap_room", leg.room)
    edit.set("rid", edit.str(leg.rid))
    return true
  end
  local rooms = leg.rooms
  if #rooms ~= count then
    return nil, #rooms .. " rooms for " .. count .. " prompts"
  end
  edit.set("bootstrap_host", repeated(count, host))
  edit.set("bootstrap_port", repeated(count, port))
  edit.set("bootstrap_room", "[" .. table.concat(rooms, ",") .. "]")
  edit.set("rid", rid_list(leg, edit, count))
  return true
end

local function prefill_rank(leg)
  return leg.prefill.dp_size > 1 and leg.prefill.dp_rank or nil
end

local function prefill(leg, edit)
  local ok, why = both(leg, edit)
  if not ok then
    return nil, why
  end
  if leg.stream then
    edit.set("stream", false)
    edit.remove("stream_options")
  end
  local rank = prefill_rank(leg)
  if rank then
    edit.set("routed_dp_rank", rank)
  end
  edit.header("X-Request-Id", leg.request_id)
end

local function decode(leg, edit)
  local ok, why = both(leg, edit)
  if not ok then
    return nil, why
  end
  local rank = prefill_rank(leg)
  if rank then
    edit.set("disagg_prefill_dp_rank", rank)
  end
  if leg.decode.dp_rank then
    edit.set("routed_dp_rank", leg.decode.dp_rank)
  end
  edit.header("X-Request-Id", leg.request_id)
end

return {
  name = "sglang",
  kind = "bootstrap",
  room = true,
  rid = true,
  batch = true,
  abort_route = true,
  templates = true,
  routes = { "/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses" },
  prompt_logprobs = "sglang",
  prefill = prefill,
  decode = decode,
}
