-- llm_d_default - llm-d's default scorers and weights, as a baseline to compare with.
--
-- The highest sum wins: 2 x queue (max - waiting) / (max - min), 2 x free KV cache, 3 x matching part of the
-- prompt. Ties are drawn. Decode is chosen first, then prefill, each among those that can be a pair. Blocks have
-- 64 tokens.
-- Prefixes are what engines report where their events are followed (kv_events) and token ids came, else what was sent.
-- What differs: every request is split (the original may leave short ones to decode alone), and where engines
-- report no load, our own requests in flight take the queue's place.

local params = {
  queue_weight = { type = "number", min = 0, default = 2, doc = "Weight of queue-scorer." },
  kv_weight = { type = "number", min = 0, default = 2, doc = "Weight of kv-cache-utilization-scorer." },
  prefix_weight = { type = "number", min = 0, default = 3, doc = "Weight of prefix-cache-scorer." },
}

local BLOCK = 64

-- The constant part of (max - q) / (max - min) changes no order, and equal queues score the same.
local function slope(low, high, weight)
  return high > low and -weight / (high - low) or 0
end

local function choose(list, req, p)
  local _, _, total = baton.prefix_match(list, req, BLOCK)
  local prefix = total > 0 and p.prefix_weight / total or 0
  local low, high = baton.range(list, "waiting")
  if low then
    return baton.argmax_sum(list, "waiting", slope(low, high, p.queue_weight), "kv_free", p.kv_weight,
      "prefix_blocks", prefix)
  end
  low, high = baton.range(list, "requests")
  return low and baton.argmax_sum(list, "requests", slope(low, high, p.queue_weight), "prefix_blocks", prefix)
end

local function choose_and_note(list, req, p)
  local worker = choose(list, req, p)
  if worker then
    baton.prefix_insert(req, worker, BLOCK)
  end
  return worker
end

local function plan(req, view, ctx)
  local decode = choose_and_note(baton.pairable(view.decode, view.prefill), req, ctx.params)
  if not decode then
    return { kind = "single", worker = choose_and_note(view.hybrid, req, ctx.params) }
  end
  return { prefill = choose_and_note(baton.compatible(view.prefill, decode), req, ctx.params), decode = decode }
end

return { api = 2, name = "llm_d_default", version = "1.0", params = params, plan = plan }
