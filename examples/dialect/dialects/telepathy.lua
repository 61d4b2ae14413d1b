-- telepathy - a made-up connector: prefill answers with the number of a thought, decode asks prefill's host for it.
--
-- The engines must not trust what a client writes into "telepathy": both legs set it whole, a single leg loses it.

local legs = require("baton.legs")

local NAME = "telepathy"

local function prefill(leg, edit)
  legs.one_token(leg, edit)
  legs.headers(leg, edit, leg.prefill)
  edit.set(NAME, '{"think":true}')
end

local function decode(leg, edit)
  legs.headers(leg, edit, leg.decode)
  local kind, thought = edit.reply(NAME, "thought")
  if kind == nil then
    edit.remove(NAME)
    return "recompute" -- prefill kept nothing: decode computes the prompt
  end
  if kind ~= "string" or thought == "" then
    return nil, "telepathy.thought is no text"
  end
  edit.splice(NAME, NAME, { host = edit.str(leg.prefill.host) })
end

-- A worker of a pair that is told of no thought thinks for itself; a client may not tell it of one.
local function single(_, edit)
  edit.remove(NAME)
end

return {
  name = "telepathy",
  kind = "handoff", -- decode's leg is made of prefill's reply
  connectors = { "TelepathyConnector" },
  engine = "vllm",
  routes = { "/v1/completions", "/v1/chat/completions" },
  prefill = prefill,
  decode = decode,
  single = single,
}
