-- lmetric - new prefill tokens x batch size, the lowest product wins (LMetric, arXiv 2603.15202).
--
-- New prefill tokens: what waits on the worker, and what of this prompt it does not hold. Batch: its requests, with
-- this one. A product needs no weights: a factor on either side changes no order. Ties are drawn.
-- What differs: the paper's instances do both phases. Here a decode worker receives its KV, so its new prefill
-- tokens are the same everywhere and the batch alone decides, then the tokens in work. Matches are what this
-- gateway sent before, not what engines report.

local params = {
  block_tokens = { type = "integer", min = 1, max = 1024, default = 64,
    doc = "Prefixes are compared by such blocks." },
}

-- The prompt's last token is always computed, so no product is 0 and a full match does not hide a long queue.
local function new_tokens(worker, prompt, block)
  return worker.prefill_tokens + math.max(prompt - worker.prefix_blocks * block, 1)
end

local function least_product(list, req, p)
  local best, least, ties = nil, math.huge, 0
  for _, worker in ipairs(list) do
    local score = new_tokens(worker, req.prompt_tokens, p.block_tokens) * (worker.requests + 1)
    baton.note_score(worker, score)
    ties = score < least and 1 or score == least and ties + 1 or ties
    if score < least or score == least and baton.random(ties) == 1 then
      best, least = worker, score
    end
  end
  return best
end

local function choose_and_note(list, req, p)
  baton.prefix_match(list, req, p.block_tokens)
  local worker = least_product(list, req, p)
  if worker then
    baton.prefix_insert(req, worker, p.block_tokens)
  end
  return worker
end

local function plan(req, view, ctx)
  local prefill = choose_and_note(baton.pairable(view.prefill, view.decode), req, ctx.params)
  if not prefill then
    return { kind = "single", worker = choose_and_note(view.hybrid, req, ctx.params) }
  end
  local partners = baton.compatible(view.decode, prefill)
  return { prefill = prefill, decode = baton.argmin(partners, "requests", "decode_tokens") }
end

return { api = 2, name = "lmetric", version = "1.0", params = params, plan = plan }
