-- mooncake - vLLM's own MooncakeConnector: both legs at once, decode asks prefill's ranks for the KV by a transfer id.
--
-- Decode must be told which engine of prefill (one a data-parallel rank) has the KV: the ids are told by prefill's
-- bootstrap server, and the gateway asks it (cluster/engine_ids). Prefill keeps the KV only when its one token has
-- reached the length limit; an end of the text frees it at once, and decode, which nobody tells, would wait for 480 s.
-- So that token may not end the text, and when it has (check), decode is stopped. /v1/responses does not say in all
-- releases how it ended, so it is not served.

local handoff = require("baton.handoff")
local legs = require("baton.legs")

local function params(edit, members)
  edit.set("kv_transfer_params", "{" .. table.concat(members, ",") .. "}")
end

local function transfer_id(leg, edit)
  return '"transfer_id":' .. edit.str("xfer-" .. leg.rid)
end

local function never_end(leg, edit)
  if leg.path == "/inference/v1/generate" then
    edit.set_in("sampling_params", "ignore_eos", true)
    edit.remove_in("sampling_params", "stop")
    edit.remove_in("sampling_params", "stop_token_ids")
    return
  end
  edit.set("ignore_eos", true)
  edit.remove("stop")
  edit.remove("stop_token_ids")
  edit.remove("stop_sequences")
end

-- The rank's number is said even where there is one: its engine id goes to decode.
local function prefill(leg, edit)
  legs.one_token(leg, edit)
  handoff.name(leg, edit, leg.prefill)
  if not leg.prefill.dp_rank then
    edit.header("X-data-parallel-rank", "0")
  end
  never_end(leg, edit)
  params(edit, { '"do_remote_decode":true', '"do_remote_prefill":false', transfer_id(leg, edit) })
end

local function bootstrap_addr(peer)
  local host = peer.kv_host or peer.host
  return ("http://%s:%d"):format(host:find(":", 1, true) and "[" .. host .. "]" or host, peer.bootstrap_port)
end

local function decode(leg, edit)
  local peer = leg.prefill
  if not peer.engine_id or not peer.bootstrap_port then
    return nil, "the engine id of prefill's rank " .. (peer.dp_rank or 0) .. " is not known"
  end
  handoff.name(leg, edit, leg.decode)
  params(edit, {
    '"do_remote_decode":false', '"do_remote_prefill":true',
    '"remote_bootstrap_addr":' .. edit.str(bootstrap_addr(peer)),
    '"remote_engine_id":' .. edit.str(peer.engine_id),
    transfer_id(leg, edit),
  })
end

-- What the route says of the length limit; type and value of what it has said.
local function end_of(leg, edit)
  if leg.path == "/v1/messages" then
    return "max_tokens", edit.reply("stop_reason")
  end
  return "length", edit.reply("choices", 1, "finish_reason")
end

local function check(leg, edit)
  local length, _, reason = end_of(leg, edit)
  if reason ~= length then
    return nil, "prefill ended by " .. tostring(reason) .. " and has freed its KV"
  end
end

return {
  name = "mooncake",
  kind = "bootstrap",
  rid = true,
  routes = { "/v1/completions", "/v1/chat/completions", "/v1/messages", "/inference/v1/generate" },
  prompt_logprobs = "vllm",
  prefill = prefill,
  decode = decode,
  check = check,
}
