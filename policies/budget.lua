-- budget - what a tenant may spend in a day and in a month, in money by a table of prices; least load chooses.
--
--   policy = "budget",
--   params = {
--     prices = { "llama-3.1-8b=0.05/0.08", "llama-3.1-405b=1/1.8/0.25", "*=2/6" },
--     day = 5, month = 100, tenants = { "acme=50/1000", "free=0.1/1" },
--   },
--
-- A price is of a million tokens: of input, of output, and of input that the engine had in its cache, where that costs
-- less. A request takes what it may cost (its prompt, and as many tokens as it asks for at most) before it is let in;
-- what it did cost is known at its end, and the difference goes back, or is taken then. Who has no more gets 429 until
-- the day or the month is over (UTC). A model without a price is refused: it would cost nothing.
--
-- Days are quotas (baton.shared.take), months counters; both are the fleet's with --redis-url, else this gateway's,
-- until it ends. While the store is away a gateway holds to its part of the day, and months are not held.

local params = {
  prices = { type = "list", min = 1, default = { "*=1/1" },
    doc = "MODEL=INPUT/OUTPUT[/CACHED], money for a million tokens; * is every other model." },
  day = { type = "number", min = 0, max = 1e9, default = 0, doc = "Money of a tenant in a day; 0: no limit." },
  month = { type = "number", min = 0, max = 1e9, default = 0, doc = "Likewise in a month." },
  tenants = { type = "list", default = {}, doc = "TENANT=DAY/MONTH, where a tenant has another budget." },
  answer_tokens = { type = "integer", min = 0, max = 1e6, default = 256,
    doc = "What an answer is thought to cost where the client does not limit it." },
}

local DAY_MS = 86400000
local MONTH_TTL_MS = 40 * DAY_MS
local MICRO = 1e6 -- of a unit of money: so a price of a million tokens is that of one token in these
local WHOLE_MAX = 2 ^ 53

-- ---- what is set ----

local function parts(text, between)
  local out, from = {}, 1
  while true do
    local at = text:find(between, from)
    out[#out + 1] = text:sub(from, at and at - 1)
    if not at then
      return out
    end
    from = at + #between
  end
end

-- "NAME=1/2" -> NAME, { 1, 2 }
local function row(text, where, least, most)
  local sides = type(text) == "string" and parts(text, "=") or {}
  local name = table.concat(sides, "=", 1, math.max(#sides - 1, 0)) -- a model's name may hold "="
  local numbers = parts(sides[#sides] or "", "/")
  for i, number in ipairs(numbers) do
    numbers[i] = tonumber(number)
  end
  if name == "" or #numbers < least or #numbers > most or math.min(0, unpack(numbers)) < 0 then
    error(("%s: expected NAME=%s, got %s"):format(where, least == most and "DAY/MONTH" or "INPUT/OUTPUT[/CACHED]",
      tostring(text)), 0)
  end
  return name, numbers
end

local function start(p)
  local state = { prices = {}, budgets = {} }
  for i, text in ipairs(p.prices) do
    local name, numbers = row(text, ("prices[%d]"):format(i), 2, 3)
    state.prices[name] = { input = numbers[1], output = numbers[2], cached = numbers[3] or numbers[1] }
  end
  for i, text in ipairs(p.tenants) do
    local name, numbers = row(text, ("tenants[%d]"):format(i), 2, 2)
    state.budgets[name] = { day = numbers[1], month = numbers[2] }
  end
  return state
end

-- ---- money ----

-- Events have 63 bytes of a tenant's and of a model's name.
local function short(name)
  return (name or ""):sub(1, 63)
end

local function price_of(prices, model)
  return prices[model or ""] or prices["*"]
end

local function price_of_event(prices, model)
  local price = price_of(prices, model)
  if #(model or "") == 63 then
    for name, other in pairs(prices) do
      price = short(name) == model and other or price
    end
  end
  return price
end

local function budget_of(ctx, tenant)
  return ctx.state.budgets[tenant or ""] or { day = ctx.params.day, month = ctx.params.month }
end

local function whole(micro)
  return math.min(math.ceil(micro), WHOLE_MAX)
end

-- What it may cost at most; never nothing, or nothing could be taken.
local function estimate(req, price, p)
  local answers = (req.max_tokens or p.answer_tokens) * req.n
  return math.max(whole(req.prompt_tokens * price.input + answers * price.output), 1)
end

-- Where nobody has worked: nothing.
local function cost_of(event, price)
  if not event.decode and not event.prefill then
    return 0
  end
  local cached = math.min(event.cached_tokens or 0, event.prompt_tokens or 0)
  return whole(((event.prompt_tokens or 0) - cached) * price.input + cached * price.cached
    + (event.output_tokens or 0) * price.output)
end

-- ---- time ----

-- Days since 1970 -> "2026-11", and how many days its month still has, this one included.
local function month_of(days)
  local era_days = days + 719468 -- since March of the year 0: leap days come last
  local era = math.floor(era_days / 146097)
  local doe = era_days - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local month = math.floor((5 * doy + 2) / 153) -- 0: March
  local year = yoe + era * 400 + (month > 9 and 1 or 0)
  return ("%04d-%02d"):format(year, month < 10 and month + 3 or month - 9)
end

local function day_name(tenant)
  return "day/" .. short(tenant)
end

local function month_name(days, tenant)
  return "month/" .. month_of(days) .. "/" .. short(tenant)
end

-- ---- hooks ----

local function refusal(what, wait_s)
  return { status = 429, retry_after = wait_s, reason = "this tenant has spent its budget of this " .. what }
end

-- true, the day that runs; false and a refusal; nil: it cannot be told, and lets in.
local function take_day(tenant, most, cost)
  local limit = most > 0 and whole(most * MICRO) or WHOLE_MAX
  local is_in, wait_s, day = baton.shared.take(day_name(tenant), limit, DAY_MS, math.min(cost, limit))
  if is_in == false then
    return false, refusal("day", wait_s)
  end
  return is_in, day
end

local function take_month(tenant, most, day, cost)
  local name = month_name(day, tenant)
  local spent = baton.shared.add(name, cost, MONTH_TTL_MS)
  if not spent or spent <= most * MICRO or spent == cost then -- the first of a month always comes in
    return true
  end
  baton.shared.add(name, -cost, MONTH_TTL_MS)
  return false
end

local function admit(req, ctx)
  local price, budget = price_of(ctx.state.prices, req.model), budget_of(ctx, req.tenant)
  if not price then
    return { status = 403, reason = "this model has no price" }
  end
  if budget.day == 0 and budget.month == 0 then
    return
  end
  local cost = estimate(req, price, ctx.params)
  local of_day = budget.day > 0 and math.min(cost, whole(budget.day * MICRO)) or 1
  local is_in, day = take_day(req.tenant, budget.day, of_day)
  if is_in == false then
    return day
  end
  if not is_in then
    return
  end
  if budget.month > 0 and not take_month(req.tenant, budget.month, day, cost) then
    baton.shared.give(day_name(req.tenant), DAY_MS, of_day, day)
    return refusal("month", DAY_MS / 1000)
  end
  ctx.vars.kept = { day, of_day, budget.month > 0 and cost or 0 }
end

local function observe(events, ctx)
  for _, event in ipairs(events) do
    local kept, budget = event.kept or {}, budget_of(ctx, event.tenant)
    local price = price_of_event(ctx.state.prices, event.model)
    local day, cost = kept[1], price and cost_of(event, price) or 0
    local rest = (kept[2] or 0) - cost
    if budget.day > 0 and rest ~= 0 then -- more was used: of the day that runs
      baton.shared.give(day_name(event.tenant), DAY_MS, rest, rest > 0 and day or nil)
    end
    local more = cost - (kept[3] or 0)
    if budget.month > 0 and more ~= 0 and (day or ctx.state.day) then
      baton.shared.add(month_name(day or ctx.state.day, event.tenant), more, MONTH_TTL_MS)
    end
    ctx.state.day = day or ctx.state.day -- for the other parts of a request that was split
  end
end

local function plan(_, view)
  local prefill = baton.argmin(baton.pairable(view.prefill, view.decode), "prefill_tokens", "requests")
  if not prefill then
    return { kind = "single", worker = baton.argmin_sum(view.hybrid, "tokens", 1, "requests", 64) }
  end
  local partners = baton.compatible(view.decode, prefill)
  return { prefill = prefill, decode = baton.argmin(partners, "decode_tokens", "requests") }
end

return {
  api = 2,
  name = "budget",
  version = "1.0",
  params = params,
  start = start,
  admit = admit,
  plan = plan,
  observe = observe,
}
