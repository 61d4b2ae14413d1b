-- ppd - a conversation's later turns are computed where its answers were: append-prefill on decode (PPD, arXiv
-- 2603.13358).
--
-- The first turn, and whatever no decode worker knows, goes by two: the least loaded of each side. Where a decode
-- worker holds more than min_share of the prompt and at most append_tokens are new, it computes them itself beside
-- its answers: nothing is moved. Among several the one with the fewest tokens. Not where requests wait, or its KV
-- cache is nearly full.
-- What differs: the paper sets the limit by the objectives' weights; here it is a parameter.
-- Prefixes are what engines report where their events are followed (kv_events) and token ids came, else what was
-- sent.

local params = {
  append_tokens = { type = "integer", min = 1, max = 1000000, default = 4096, doc = "New tokens on decode, at most." },
  min_share = { type = "number", min = 0, max = 1, default = 0.5, doc = "Of the prompt, that it must hold." },
  waiting = { type = "integer", min = 0, max = 100000, default = 4, doc = "Requests that wait there, at most." },
  kv_free = { type = "number", min = 0, max = 1, default = 0.1, doc = "Share of its KV cache, at least." },
}

local BLOCK = 64

local function can_append(worker, req, p)
  local new = req.prompt_tokens - worker.prefix_blocks * BLOCK
  return worker.role == "decode" and new <= p.append_tokens and new < (1 - p.min_share) * req.prompt_tokens
    and (worker.waiting or 0) <= p.waiting and (worker.kv_free or 1) >= p.kv_free
end

local function plan(req, view, ctx)
  baton.prefix_match(view.single, req, BLOCK)
  local able = {}
  for _, worker in ipairs(view.single) do
    if can_append(worker, req, ctx.params) then
      able[#able + 1] = worker
    end
  end
  local prefill = baton.argmin(baton.pairable(view.prefill, view.decode), "prefill_tokens", "requests")
  local alone = #able > 0 and baton.argmin(able, "tokens", "requests")
    or not prefill and baton.argmin_sum(view.hybrid, "tokens", 1, "prefix_blocks", -BLOCK)
  if alone or not prefill then
    if alone then
      baton.prefix_insert(req, alone, BLOCK)
    end
    return { kind = "single", worker = alone or nil }
  end
  local decode = baton.argmin(baton.compatible(view.decode, prefill), "tokens", "requests") -- with prompts of its own
  baton.prefix_insert(req, decode, BLOCK) -- its KV goes there
  return { prefill = prefill, decode = decode }
end

return { api = 2, name = "ppd", version = "1.0", params = params, plan = plan }
