-- legs.lua - edits that several dialects make on a leg.
--
-- Used by: dialects/*.lua (require("baton.legs")).
-- Pure:    nothing is kept between calls; all effects go through `edit`.

local legs = {}

-- The routes on which vLLM and its relatives take kv_transfer_params.
legs.VLLM_ROUTES = {
  "/v1/completions",
  "/v1/chat/completions",
  "/v1/responses",
  "/v1/messages",
  "/inference/v1/generate",
}

-- The KV is complete after one token, and only a body that is not streamed brings the parameters back.
-- min_tokens above max_tokens is a 400 at the engine; stream_options without stream is one too.
function legs.one_token(leg, edit)
  edit.set("stream", false)
  edit.remove("stream_options")
  edit.remove("min_tokens")
  edit.remove("min_completion_tokens")
  if leg.path == "/inference/v1/generate" then
    edit.set_in("sampling_params", "max_tokens", 1)
    edit.remove_in("sampling_params", "min_tokens")
  elseif leg.path == "/v1/responses" then
    edit.set("max_output_tokens", 1)
    edit.set("store", false) -- prefill's one token is nothing to continue from
    edit.remove("background") -- it would answer before there is KV
  else
    edit.set("max_tokens", 1)
    if leg.has("max_completion_tokens") then
      edit.set("max_completion_tokens", 1)
    end
  end
end

-- peer: the worker that this leg goes to.
function legs.headers(leg, edit, peer)
  edit.header("X-Request-Id", leg.request_id)
  if peer.dp_rank then
    edit.header("X-data-parallel-rank", peer.dp_rank .. "")
  end
end

-- Addresses that mean "this machine" to the prefill worker and something else to the decode worker.
local LOCAL_NAMES = { ["localhost"] = true, ["0.0.0.0"] = true, ["::"] = true, ["[::]"] = true }

-- host as the decode worker can reach it.
function legs.reachable(host, dialled)
  return LOCAL_NAMES[host] and dialled or host
end

-- The same for a host that is read later (edit.forward): what stands for each of these names, as JSON.
function legs.instead_of_local(edit, dialled)
  local names = {}
  for name in pairs(LOCAL_NAMES) do
    names[name] = name ~= dialled and edit.str(dialled) or nil
  end
  return names
end

return legs
