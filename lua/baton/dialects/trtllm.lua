-- trtllm - TensorRT-LLM's disaggregated serving, context first: prefill's reply says where its KV is, decode pulls it.
--
-- The server refuses members that it does not know, so a leg has only what the client sent and what is set here;
-- max_tokens stays, because the engine itself stops a context_only request after one token. A generation_only request
-- begins with prefill's token (first_gen_tokens) and does not look at it: when that token has ended the text, nothing
-- is left to hand on, and decode is asked for the whole answer instead. Prefill's reply has that token's text, and
-- decode's stream begins with it again: hence first_token.

local NAME = "disaggregated_params"
local PARAMS = { "choices", 1, NAME }
local GOES_ON = { length = true, not_finished = true } -- finish reasons of a context_only request

local function prefill(leg, edit)
  if not leg.room then
    return nil, "no room"
  end
  if leg.stream then
    edit.set("stream", false)
    edit.remove("stream_options")
  end
  edit.set(NAME, '{"request_type":"context_only","disagg_request_id":' .. leg.room .. "}")
  edit.header("X-Request-Id", leg.request_id)
end

local function params(edit, ...)
  return edit.reply("choices", 1, NAME, ...)
end

-- Returns nothing when the parameters may go to decode, else the reason why not: a decode that is given no state of the
-- transfer reads through a null pointer, and one that is given a foreign id waits for ever.
local function fault(leg, edit)
  local _, choices = edit.reply("choices")
  if choices ~= 1 then
    return "there is not one choice"
  end
  if params(edit) ~= "object" then
    return "no object"
  end
  if params(edit, "ctx_request_id") ~= "number" then
    return "ctx_request_id is missing"
  end
  if edit.raw("choices", 1, NAME, "disagg_request_id") ~= leg.room then
    return "disagg_request_id belongs to another request"
  end
  local kind, tokens = params(edit, "first_gen_tokens")
  if kind ~= "array" or tokens == 0 then
    return "first_gen_tokens is missing or empty"
  end
  if params(edit, "encoded_opaque_state") ~= "string" and params(edit, "ctx_info_endpoint") ~= "string" then
    return "encoded_opaque_state is missing"
  end
end

-- A member that this release of the engine does not have is not in its reply either, and it would refuse it.
local function changes(edit)
  local members = { request_type = '"generation_only"' }
  if params(edit, "ctx_usage") ~= nil then
    members.ctx_usage = edit.raw("usage")
  end
  return members
end

local function decode(leg, edit)
  edit.header("X-Request-Id", leg.request_id)
  local _, finish = edit.reply("choices", 1, "finish_reason")
  local kind = params(edit)
  if type(finish) == "string" and not GOES_ON[finish] then
    return "ends_early"
  end
  if kind == nil or kind == "null" then
    return "recompute"
  end
  local why = fault(leg, edit)
  if why then
    return nil, NAME .. ": " .. why
  end
  edit.splice(NAME, PARAMS, changes(edit))
  edit.copy(leg.path == "/v1/completions" and "prompt" or "prompt_token_ids", "prompt_token_ids")
end

return {
  name = "trtllm",
  kind = "handoff",
  room = true,
  first_token = true,
  routes = { "/v1/completions", "/v1/chat/completions" },
  prefill = prefill,
  decode = decode,
}
