-- baton_kv - the soonest first token by what engines hold, and nobody's decode slowed for it. Made in baton sim.
--
-- Prefill: the least of queue + miss_weight x new, in tokens. New: of this prompt, what the worker does not hold.
-- Queue: its waiting prompts, of which it computes as much as it had to of its last ones. TTFT alone would weigh both
-- the same; but a miss also delays those behind and pushes others' blocks out, so it weighs more. At five times the
-- traffic of the first half of Mooncake's conversations 8 serves 5.9 points more in time than 1 while alone_tokens is
-- 0, and no fewer else. So a hot prefix stays where it is (exploit) until that queue is miss_weight times the prompt
-- longer, then a second worker learns it (explore). What nearly all prompts begin with draws nobody (min_share): where
-- requests come one by one, the first worker to hold it would get them all, and its cache would forget what the
-- others have room for.
-- Decode: the fewest tokens, counted with what was sent in the last recent_s seconds: engines' and ledgers' counts
-- rise when prefill has ended, and a burst would all see the same idle worker.
-- Alone on decode: at most alone_tokens, where the pair's first token would come later by gain_tokens, if the decode
-- worker has most of the prompt (turns of a conversation), else by relief_tokens: prefill is overrun, and a pause of
-- a step in others' answers costs less than their prompts' queue. Never where its time per token is above tpot_ms or
-- its KV is full. At six times the traffic, where prefill cannot keep up, 94 % of the first half come in time with
-- it, and 58 % without; at the trace's own pace it is not needed.
-- Objective: with ttft_ms, who would come later goes where it is soonest, and who would be late even there is refused
-- (503).
-- Prefixes: KV events (exact) and what was sent in the last two seconds; without events, what was sent
-- (prefix_match).

local params = {
  miss_weight = { type = "number", min = 0, max = 1000, default = 8,
    doc = "Of a token to compute, beside one queued." },
  alone_tokens = { type = "integer", min = 0, max = 1000000, default = 8192,
    doc = "A decode worker computes up to so many itself; 0: none." },
  min_share = { type = "number", min = 0, max = 1, default = 0.1,
    doc = "A shorter prefix than this share of the prompt counts for nothing." },
  gain_tokens = { type = "integer", min = 0, max = 1000000, default = 2048,
    doc = "Of a prompt that it has most of, if that saves the time of so many." },
  relief_tokens = { type = "integer", min = 0, max = 10000000, default = 32768, doc = "Of others, of so many." },
  transfer_weight = { type = "number", min = 0, max = 10, default = 0.1, doc = "Of moving a token's KV." },
  tpot_ms = { type = "number", min = 0, max = 60000, default = 50,
    doc = "A slower decode worker computes no prompts." },
  kv_free = { type = "number", min = 0, max = 1, default = 0.1, doc = "Nor does one with less of its cache free." },
  ttft_ms = { type = "number", min = 0, max = 3600000, default = 0,
    doc = "Objective of the time to the first token; who would miss it is refused; 0: nobody." },
  token_ms = { type = "number", min = 0, max = 1000, default = 0.0206,
    doc = "Of a token in a prefill: Dynamo's mocker takes 169 ms for 8,192." },
  recent_s = { type = "number", min = 0.001, max = 60, default = 1,
    doc = "Decode's tokens count from when they are sent." },
  decode_weight = { type = "number", min = 0, max = 10, default = 0.02,
    doc = "Of a token being decoded, where a worker does both." },
}

local BLOCK = 64
local LEARN = 0.2 -- weight of a worker's last prompt in its share of misses

local function start(_, old)
  return { miss = old and old.miss or {}, names = {} } -- by worker's id
end

local function new_tokens(worker, req, p)
  local held = worker.prefix_blocks * BLOCK
  if held < p.min_share * req.prompt_tokens then
    held = 0
  end
  return math.max(req.prompt_tokens - held, 1) -- the last one always is
end

local function queue(worker, s)
  return worker.prefill_tokens * (s.miss[worker.id] or 1)
end

local function name_of(worker, s)
  local name = s.names[worker.id] or "baton_kv/" .. worker.id
  s.names[worker.id] = name
  return name
end

-- The worker of the list with the least score; ties are drawn.
local function least_of(list, score_of, ...)
  local best, least, ties = nil, math.huge, 0
  for _, worker in ipairs(list) do
    local score = score_of(worker, ...)
    if score < math.huge then
      baton.note_score(worker, score)
    end
    ties = score < least and 1 or score == least and ties + 1 or ties
    if score < least or score == least and score < math.huge and baton.random(ties) == 1 then
      best, least = worker, score
    end
  end
  return best, least
end

local function prefill_score(worker, req, s, p)
  return queue(worker, s) + p.miss_weight * new_tokens(worker, req, p)
end

local function hybrid_score(worker, req, s, p)
  return prefill_score(worker, req, s, p) + p.decode_weight * worker.decode_tokens
end

local function wait_of(worker, req, s, p)
  return queue(worker, s) + new_tokens(worker, req, p)
end

local function is_late(worker, req, s, p)
  return p.ttft_ms > 0 and wait_of(worker, req, s, p) * p.token_ms > p.ttft_ms
end

-- What a pair must take longer than.
local function alone_score(worker, req, s, p)
  local new = new_tokens(worker, req, p)
  local can = worker.role == "decode" and new <= p.alone_tokens and not is_late(worker, req, s, p)
    and (worker.kv_free or 1) >= p.kv_free and (worker.tpot_ema_ms or 0) <= p.tpot_ms
  local gain = new <= req.prompt_tokens / 2 and p.gain_tokens or p.relief_tokens
  return can and wait_of(worker, req, s, p) + gain or math.huge
end

local function decode_score(worker, s, p)
  return worker.decode_tokens + baton.window(name_of(worker, s), 0, p.recent_s)
end

local function note(worker, req, s, p)
  if worker then
    local share = new_tokens(worker, req, p) / math.max(req.prompt_tokens, 1)
    s.miss[worker.id] = (s.miss[worker.id] or 1) * (1 - LEARN) + share * LEARN
    baton.prefix_insert(req, worker, BLOCK)
  end
  return worker
end

-- By score, else where it is soonest, else nobody.
local function in_time(list, score_of, req, s, p)
  local worker = least_of(list, score_of, req, s, p)
  if worker and is_late(worker, req, s, p) then
    worker = least_of(list, wait_of, req, s, p)
  end
  return worker and not is_late(worker, req, s, p) and worker or nil
end

local function plan(req, view, ctx)
  local s, p = ctx.state, ctx.params
  local prefills = baton.pairable(view.prefill, view.decode)
  baton.prefix_match(view.single, req, BLOCK)
  if #prefills == 0 then
    local worker = note(in_time(view.hybrid, hybrid_score, req, s, p), req, s, p)
    return worker and { kind = "single", worker = worker }
  end
  local prefill = in_time(prefills, prefill_score, req, s, p)
  local by_two = prefill and wait_of(prefill, req, s, p) + p.transfer_weight * req.prompt_tokens or math.huge
  local alone, by_one = least_of(view.single, alone_score, req, s, p)
  if alone and by_one < by_two then
    return { kind = "single", worker = note(alone, req, s, p) }
  end
  if not prefill then
    return nil
  end
  local decode = least_of(baton.compatible(view.decode, prefill), decode_score, s, p)
  baton.window(name_of(decode, s), req.prompt_tokens, p.recent_s)
  baton.prefix_insert(req, decode, BLOCK) -- its KV goes there
  return { prefill = note(prefill, req, s, p), decode = decode }
end

local function handover(ctx)
  return { miss = ctx.state.miss }
end

return { api = 2, name = "baton_kv", version = "1.2", params = params, start = start, handover = handover, plan = plan }
