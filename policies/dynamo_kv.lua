-- dynamo_kv - the cost function of Dynamo's KV router, as a baseline to compare with.
--
-- In blocks of 16 tokens, the lowest wins, ties are drawn:
-- prefill: scale x (active prefill blocks + the prompt's - credit x matching ones) + decode blocks + weight x requests
-- decode: decode blocks + weight x requests (no credit: KV comes from prefill)
-- Matches are what engines report where their events are followed (kv_events) and token ids came, with less credit for
-- the host's memory and the disk; else what this gateway sent before. What differs: no temperature.

local params = {
  overlap_credit = { type = "number", min = 0, max = 1, default = 1, doc = "router-kv-overlap-score-credit." },
  host_hit_weight = { type = "number", min = 0, max = 1, default = 0.75, doc = "router-host-cache-hit-weight." },
  disk_hit_weight = { type = "number", min = 0, max = 1, default = 0.25, doc = "router-disk-cache-hit-weight." },
  prefill_load_scale = { type = "number", min = 0, default = 1, doc = "router-prefill-load-scale." },
  request_weight = { type = "number", min = 0, default = 0, doc = "Cost of an active request, in blocks." },
}

local BLOCK = 16

-- The prompt's own blocks cost the same everywhere; matches are never more than those, so the sum cannot fall below 0.
local function with_prefix(list, req, p)
  baton.prefix_match(list, req, BLOCK)
  local scale, credit = p.prefill_load_scale, p.overlap_credit
  local worker = baton.argmin_sum(list, "prefill_tokens", scale / BLOCK, "prefix_blocks", -scale * credit,
    "prefix_host_blocks", scale * (credit - p.host_hit_weight),
    "prefix_disk_blocks", scale * (credit - p.disk_hit_weight), "decode_tokens", 1 / BLOCK,
    "requests", p.request_weight)
  if worker then
    baton.prefix_insert(req, worker, BLOCK)
  end
  return worker
end

local function plan(req, view, ctx)
  local p = ctx.params
  local prefill = with_prefix(baton.pairable(view.prefill, view.decode), req, p)
  if not prefill then
    return { kind = "single", worker = with_prefix(view.hybrid, req, p) }
  end
  local partners = baton.compatible(view.decode, prefill)
  local decode = baton.argmin_sum(partners, "decode_tokens", 1 / BLOCK, "requests", p.request_weight)
  return { prefill = prefill, decode = decode }
end

return { api = 2, name = "dynamo_kv", version = "1.0", params = params, plan = plan }
