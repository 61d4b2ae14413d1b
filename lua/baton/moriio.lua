-- moriio.lua - legs of vLLM's MoRIIOConnector, in both of its transfer modes.
--
-- Used by: dialects/moriio.lua (WRITE: prefill writes into decode's blocks, both at once), dialects/moriio_read.lua
--          (READ: decode reads what prefill's reply names).
-- Why so strict: engines cut the request id apart by regular expressions and wait for ever where they find no partner.

local legs = require("baton.legs")

local moriio = {}

local NAME = "kv_transfer_params"

moriio.ROUTES = { "/v1/completions", "/v1/chat/completions" }

-- The same on both legs.
local function transfer_id(leg)
  local id = leg.rid
  return ("tx-%s-%s-%s-%s-%s"):format(id:sub(1, 8), id:sub(9, 12), id:sub(13, 16), id:sub(17, 20), id:sub(21))
end

-- Id and rank of a leg: both legs have the same ones. Returns nothing, or nil and why not.
local function name(leg, edit)
  local prefill, decode = leg.prefill, leg.decode
  if not prefill.kv_address or not decode.kv_address then
    return nil, "MoRIIOConnector: a worker's addresses are not known: it has not registered"
  end
  edit.header(
    "X-Request-Id",
    "___prefill_addr_" .. prefill.kv_address .. "___decode_addr_" .. decode.kv_address .. "_" .. leg.rid
  )
  if prefill.dp_rank then
    edit.header("X-data-parallel-rank", prefill.dp_rank .. "")
  end
end

-- Prefill answers with parameters only when its one token was not the end: what would make it one goes.
function moriio.prefill(leg, edit)
  legs.one_token(leg, edit)
  edit.set("ignore_eos", true)
  edit.remove("stop")
  edit.remove("stop_token_ids")
  edit.set(
    NAME,
    ('{"remote_dp_size":%d,"remote_tp_size":%d,"transfer_id":"%s","do_remote_decode":true,'
      .. '"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null}'):format(
      leg.decode.dp_size,
      leg.decode.tp_size,
      transfer_id(leg)
    )
  )
  return name(leg, edit)
end

-- WRITE: prefill finds decode's blocks by itself.
function moriio.write(leg, edit)
  local prefill = leg.prefill
  local rank = prefill.dp_rank and (',"remote_dp_rank":' .. prefill.dp_rank) or ""
  edit.set(
    NAME,
    ('{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":null,"remote_block_ids":null,'
      .. '"transfer_id":"%s","remote_dp_size":%d,"remote_tp_size":%d%s}'):format(
      transfer_id(leg),
      prefill.dp_size,
      prefill.tp_size,
      rank
    )
  )
  return name(leg, edit)
end

local function fault(leg, edit)
  local kind, engine = edit.reply(NAME, "remote_engine_id")
  if kind ~= "string" or engine == "" then
    return "remote_engine_id is missing"
  end
  local blocks, count = edit.reply(NAME, "remote_block_ids")
  if blocks ~= "array" or count == 0 then
    return "remote_block_ids is missing or empty"
  end
  local _, id = edit.reply(NAME, "transfer_id")
  if id ~= transfer_id(leg) then
    return "transfer_id belongs to another request"
  end
end

-- READ: what prefill's reply says, and how prefill is cut.
function moriio.read(leg, edit)
  local kind = edit.reply(NAME)
  if kind == nil or kind == "null" then
    return nil, NAME .. " is missing: without it decode would wait for ever"
  end
  local why = kind ~= "object" and "no object" or fault(leg, edit)
  if why then
    return nil, NAME .. ": " .. why
  end
  local prefill = leg.prefill
  edit.splice(NAME, NAME, {
    do_remote_decode = "false",
    do_remote_prefill = "true",
    remote_dp_size = prefill.dp_size .. "",
    remote_tp_size = prefill.tp_size .. "",
    remote_dp_rank = prefill.dp_rank and prefill.dp_rank .. "" or nil,
  })
  return name(leg, edit)
end

return moriio
