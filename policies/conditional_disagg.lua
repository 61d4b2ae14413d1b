-- conditional_disagg - by two workers where that pays, else by a decode worker alone, which computes the prompt too.
--
-- A hand-off moves a prompt's KV, so it pays when much is to be computed and prefill has room. What is to be computed:
-- the prompt less what the least loaded decode worker has had of it before. Alone, if one of these holds:
--   it is less than min_tokens (llm-d's prefix-based-pd-decider, nonCachedTokens: 512),
--   it is less than bounded_tokens and than bounded_share of the prompt (Dynamo's isl_bounding: 2,048 and 0.7),
--   each prefill worker has more than prefill_limit tokens waiting (Dynamo's prefill_load).
-- And never on a decode worker whose KV cache is nearly full (Dynamo's veto), nor on one that cannot (SGLang's).
-- Matches are what this gateway sent before, not what engines report. Without decode workers that serve alone, and
-- where they are not needed, it is least load over pairs, then hybrids.

local params = {
  min_tokens = { type = "integer", min = 0, max = 1000000, default = 512,
    doc = "Fewer new tokens than this are computed by decode." },
  bounded_tokens = { type = "integer", min = 0, max = 1000000, default = 2048,
    doc = "So are fewer than this, if they are" },
  bounded_share = { type = "number", min = 0, max = 1, default = 0.7,
    doc = "less than this share of the prompt." },
  prefill_limit = { type = "integer", min = 0, max = 100000000, default = 0,
    doc = "All prompts are, while each prefill worker has more tokens than this; 0: never." },
  kv_free = { type = "number", min = 0, max = 1, default = 0.1,
    doc = "A decode worker with a smaller free share of its KV cache computes no prompt." },
  block_tokens = { type = "integer", min = 1, max = 1024, default = 64,
    doc = "Prefixes are compared by such blocks." },
}

local function able(list, p)
  local out = {}
  for _, worker in ipairs(list) do
    if worker.role == "decode" and (worker.kv_free or 1) >= p.kv_free then
      out[#out + 1] = worker
    end
  end
  return out
end

local function is_overloaded(prefills, p)
  local least = baton.range(prefills, "prefill_tokens")
  return p.prefill_limit > 0 and least ~= nil and least > p.prefill_limit
end

local function is_small(worker, tokens, p)
  local new = math.max(tokens - worker.prefix_blocks * p.block_tokens, 0)
  return new < p.min_tokens or new < p.bounded_tokens and new < p.bounded_share * tokens
end

-- The decode worker that should serve alone, or nil.
local function alone(req, view, prefills, p)
  local list = able(view.single, p)
  if #list == 0 then
    return nil
  end
  local best = baton.prefix_match(list, req, p.block_tokens)
  if best and is_small(best, req.prompt_tokens, p) then
    return best
  end
  local least = baton.argmin(list, "tokens", "requests")
  return (is_small(least, req.prompt_tokens, p) or is_overloaded(prefills, p)) and least or nil
end

local function plan(req, view, ctx)
  local p = ctx.params
  local prefills = baton.pairable(view.prefill, view.decode)
  local worker = alone(req, view, prefills, p)
  if not worker and #prefills == 0 then
    worker = baton.argmin_sum(view.hybrid, "tokens", 1, "requests", 64)
  end
  if worker or #prefills == 0 then
    if worker then
      baton.prefix_insert(req, worker, p.block_tokens)
    end
    return { kind = "single", worker = worker }
  end
  local prefill = baton.argmin(prefills, "prefill_tokens", "requests")
  local decode = baton.argmin(baton.compatible(view.decode, prefill), "tokens", "requests") -- with prompts of its own
  baton.prefix_insert(req, decode, p.block_tokens) -- its KV goes there
  return { prefill = prefill, decode = decode }
end

return { api = 2, name = "conditional_disagg", version = "1.0", params = params, plan = plan }
