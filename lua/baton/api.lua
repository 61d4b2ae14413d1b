-- api - everything that a policy can reach, as plain data: what the reference, the types for editors and luacheck are
-- made from (spec/tools/gen_api; `make api`), and what spec/policy/api_spec.lua compares with a real VM.
--
-- Types are those of LuaCATS; names of this file's classes and aliases stand without their prefix (Worker, not
-- baton.Worker). A parameter or field is { name, type, what }; "name?" may be left out, or be nil. Results are {
-- type, what }. where: the hooks that may call a function ("any" if it does not say); limits: what raises, and what
-- is bounded.

local api = { version = 2 }

-- ---- hooks ----
-- kind: pure (cannot wait) or waiting (a coroutine: baton.sleep, baton.http). budget_ms: of computing; waiting is not
-- counted; waits: how long that may be.

api.hooks = {
  {
    name = "start",
    kind = "waiting",
    waits = "5 s in all",
    params = { { "params", "table", "what is set of the declared `params`" },
      { "old?", "table", "what the generation before returned from `handover`" } },
    returns = { { "table?", "becomes `ctx.state`" } },
    budget_ms = 200,
    doc = "Once, when the policy is loaded, for every event thread; no request waits for it.",
    fails = "The policy is refused; the one before keeps serving.",
  },
  {
    name = "admit",
    kind = "waiting",
    waits = "`--policy-wait-ms`",
    params = { { "req", "Request" }, { "ctx", "Ctx" } },
    returns = { { "Admission?", "nothing: the request is welcome" } },
    budget_ms = 2,
    doc = "May this request come in? Asked first, before a pool is chosen.",
    fails = "The request is admitted; so it is when the hook has waited too long.",
  },
  {
    name = "route",
    kind = "waiting",
    waits = "`--policy-wait-ms`",
    params = { { "req", "Request" }, { "ctx", "Ctx" } },
    returns = { { "Direction?", "nothing: as the rules or the model say" } },
    budget_ms = 2,
    doc = "Chooses the pool, a class label and an affinity key.",
    fails = "Nothing is changed; so it is when the hook has waited too long.",
  },
  {
    name = "enqueue",
    kind = "pure",
    params = { { "req", "Request" }, { "ctx", "Ctx" } },
    returns = { { "Queueing?", "nothing: class normal, the tenant's share, the estimated cost" } },
    budget_ms = 2,
    doc = "Where does it stand in its pool's line? Asked of each request that has a pool, with `--queue-size`, whether "
      .. "it will have to wait or not. Of a pool's policies the first that has the hook.",
    fails = "As if it had returned nothing.",
  },
  {
    name = "plan",
    kind = "pure",
    required = true,
    params = { { "req", "Request" }, { "view", "View" }, { "ctx", "Ctx" } },
    returns = { { "Plan?", "nothing: nobody; 503, or what the attempt before failed of" } },
    budget_ms = 2,
    doc = "Which workers serve it? The only hook that a policy must have. After a failed attempt it is asked again, if "
      .. "it has no fallback and no alternate is left: ctx.failure and ctx.attempt say so, and view is without the "
      .. "workers that were tried.",
    fails = "Logged with file and line, counted once a request; the default least-load choice serves a first plan, a "
      .. "later one ends the request (`--policy-on-error`).",
  },
  {
    name = "plan_decode",
    kind = "pure",
    params = { { "req", "Request" }, { "view", "View" }, { "prefill", "Worker", "it has computed the prompt" },
      { "ctx", "Ctx" } },
    returns = { { "Plan?", "with decode; nothing: nobody, the prompt's KV is released, 503" } },
    budget_ms = 2,
    doc = "A plan of a hand-off left decode open, and prefill has finished: who decodes? With this hook plan may leave "
      .. "it open, where the connector's prefill can begin so: nixl, nixl_push's hand-off, shared caches.",
    fails = "As plan, for decode alone.",
  },
  {
    name = "plan_prefill",
    kind = "pure",
    params = { { "req", "Request" }, { "view", "View" },
      { "decode", "Worker", "it has room for the prompt, and waits" }, { "ctx", "Ctx" } },
    returns = { { "Plan?", "with prefill; nothing: nobody, decode is told to stop, 503" } },
    budget_ms = 2,
    doc = "A plan of a trigger left prefill open, and decode's engine has called for it: who prefills? With this hook "
      .. "plan may name decode alone, where decode goes first: mooncake_layerwise, mindie.",
    fails = "As plan, for prefill alone.",
  },
  {
    name = "fallback",
    kind = "pure",
    params = { { "req", "Request" }, { "view", "View" }, { "failure", "Failure" }, { "ctx", "Ctx" } },
    returns = { { "Plan?", "nothing: give up" } },
    budget_ms = 2,
    doc = "An attempt failed before its first byte was out. Another plan, without the workers that were tried?",
    fails = "As plan. Without this hook the plan's alternates come, then plan is asked again.",
  },
  {
    name = "recompute",
    kind = "pure",
    params = { { "req", "Request" }, { "failure", "Failure" }, { "ctx", "Ctx" } },
    returns = { { "boolean?", "false: no, the client is told that its answer broke; true or nothing: yes" } },
    budget_ms = 2,
    doc = "Some of the answer is out, and decode gave the request up (failure.name `recomputed`) or is lost: may "
      .. "another worker go on by the token ids? Asked where that is exact and the pool allows it; who it is, fallback "
      .. "and plan say.",
    fails = "The answer goes on.",
  },
  {
    name = "observe",
    kind = "pure",
    params = { { "events", "Event[]" }, { "ctx", "Ctx" } },
    returns = {},
    budget_ms = 2,
    doc = "What became of the requests that this policy has planned, in batches.",
    fails = "The batch is lost to the policy; counted.",
  },
  {
    name = "tick",
    kind = "waiting",
    waits = "`--policy-wait-ms`",
    params = { { "now", "number", "milliseconds, as `at_ms`" }, { "view", "View" }, { "ctx", "Ctx" } },
    returns = {},
    budget_ms = 2,
    doc = "Once a second, never twice at a time. For asking outside, and for what is too slow for plan.",
    fails = "Counted; it is called again a second later.",
  },
  {
    name = "handover",
    kind = "pure",
    params = { { "ctx", "Ctx" } },
    returns = { { "table?", "numbers, strings, booleans, tables of these; 8 deep, 65,536 values, 1 MiB" } },
    budget_ms = 5,
    doc = "The next generation takes over. What shall its `start` get as `old`?",
    fails = "`old` is nil.",
  },
}

-- ---- words ----

api.aliases = {
  {
    name = "NumberField",
    doc = "a field of a worker that native functions can rank by",
    values = {
      "id", "dp_size", "tp_size", "pp_size", "prefill_tokens", "decode_tokens", "tokens", "requests",
      "transfer_bytes", "running", "waiting", "kv_free", "ttft_ema_ms", "tpot_ema_ms", "age_ms", "prefix_blocks",
      "prefix_host_blocks", "prefix_disk_blocks", "kv_hit_tokens", "prefix_cached",
    },
  },
  { name = "Role", doc = "what a worker is for", values = { "prefill", "decode", "hybrid", "encode" } },
  { name = "PlanKind", doc = "how a request is served", values = { "single", "handoff", "bootstrap", "trigger" } },
  {
    name = "Scope",
    doc = "how far a failure reaches",
    values = { "request", "attempt", "connection", "worker", "device", "process" },
  },
  { name = "Leg", doc = "the call that failed", values = { "prefill", "decode", "single", "encode" } },
  { name = "EventKind", doc = "what became of a request", values = { "finished", "failed", "cancelled" } },
  { name = "ParamType", doc = "what a parameter is", values = { "number", "integer", "string", "boolean", "list" } },
}

-- ---- objects ----
-- names: the list of names in C that the fields must equal (baton_testing.api_names); kind: value (read-only), answer
-- (a closed table that the policy returns or gives: an unknown member raises), event (a plain table of the policy's
-- own).

api.classes = {
  {
    name = "Request",
    kind = "value",
    names = "req",
    doc = "A request, to be looked at while the hook runs that got it. An unknown field raises, and names the nearest.",
    fields = {
      { "path", "string", "as it was called: /v1/chat/completions" },
      { "model?", "string", "" },
      { "headers", "table<string, string?>", "by name, in any case: `req.headers[\"x-tier\"]`" },
      { "stream", "boolean", "the answer comes in events" },
      { "n", "integer", "samples asked for" },
      { "prompt_bytes", "integer", "of the prompt's text" },
      { "prompt_tokens", "integer", "counted where token ids came, else estimated from the bytes" },
      {
        "token_source", "string",
        "who has counted them: `client` (ids came), `engine` (it was asked: `tokenize_timeout_ms`) or `estimate`",
      },
      { "max_tokens?", "integer", "of one sample, as the client limits it" },
      { "session?", "string", "the key that route named, else the header x-session-id, else the body's" },
      { "tenant?", "string", "the header x-tenant-id; where clients have keys or tokens, the tenant of those" },
      { "class?", "string", "what route called it" },
      { "identity", "Identity", "who asks" },
    },
  },
  {
    name = "Identity",
    kind = "value",
    names = "req.identity",
    doc = "Who asks, as far as a key (`--client-api-keys-file`), a token (`--jwt-issuer`) or a certificate says it. "
      .. "The key or token itself is not to be seen but in `req.headers`. An unknown field raises.",
    fields = {
      { "id?", "string", "of the key, or the token's `sub`, or the certificate's subject; nil: anonymous" },
      { "tenant", "string", "`req.tenant`, or `anonymous`" },
      { "source", "string", "`key`, `jwt`, `mtls` or `anonymous`" },
      {
        "scopes",
        "table<string, boolean>",
        "by name, those of the token that mean nothing to Baton among them: `req.identity.scopes.gold`",
      },
      {
        "claims",
        "table<string, string|number|boolean?>",
        "those that `--jwt-claim` names; lists and objects are JSON texts, for `baton.json_decode`",
      },
    },
  },
  {
    name = "View",
    kind = "value",
    names = "view",
    doc = "The workers that can be chosen now, in fleet order. Read the lists, do not change them.",
    fields = {
      { "prefill", "Worker[]", "" },
      { "decode", "Worker[]", "" },
      { "hybrid", "Worker[]", "who is there to serve alone; in a degraded fleet, the prefill workers that may" },
      {
        "single",
        "Worker[]",
        "all that can serve this request alone, hybrids first; vLLM's decode and prefill workers too, which then "
          .. "compute the whole of it",
      },
      { "pool", "string", "the pool's name" },
      { "advice?", "Advice", "in tick alone; nil: too little traffic to say" },
    },
  },
  {
    name = "Advice",
    kind = "event",
    doc = "Which role of the pool holds it up, as `GET /advice` says it: once a second, over `--advice-window-secs`.",
    fields = {
      { "bottleneck", '"none"|"prefill"|"decode"|"both"', "" },
      { "prefill", "integer", "usable workers" },
      { "decode", "integer", "likewise" },
      { "advised_prefill", "integer", "of all these, those that should have the role" },
      { "advised_decode", "integer", "likewise" },
      { "prefill_used", "number", "mean use of a worker; 1: at its limit" },
      { "decode_used", "number", "likewise" },
      { "predicted_ttft_ms", "integer", "of a request that came now; 0: not known" },
    },
  },
  {
    name = "Worker",
    kind = "value",
    names = "worker",
    doc = "A worker: read live, so a field may change between two looks. What is not known is nil.",
    fields = {
      { "id", "integer", "stays the same as long as the worker is there" },
      { "name", "string", "as in answers and logs" },
      { "role", "Role", "" },
      { "labels", "table<string, string|boolean>", "`labels.gpu`; a label without a value is true" },
      { "zone?", "string", "" },
      { "engine?", "string", "`sglang`, `vllm`, `vllm_ascend`, `mindie` or `trtllm`" },
      { "connector?", "string", "as the fleet's configuration spells it" },
      { "version?", "string", "the engine's, likewise" },
      { "kinds", "table<PlanKind|integer, any>", "plans it can be part of now: a list, and `kinds.handoff`" },
      { "dialects", "table<string|integer, any>", "a list, and `dialects.nixl`" },
      { "dp_size", "integer", "data-parallel ranks; 1 where nothing is said" },
      { "tp_size", "integer", "tensor-parallel ranks, likewise" },
      { "pp_size", "integer", "pipeline-parallel ranks, likewise" },
      { "prefill_tokens", "integer", "of prompts that wait or run there, as the fleet's gateways count" },
      { "decode_tokens", "integer", "of prompts and answers in work, likewise" },
      { "tokens", "integer", "the two together: the load of a worker that does both" },
      { "requests", "integer", "in work, likewise" },
      {
        "transfer_bytes?", "integer",
        "of KV on its way from or to it, as its agents tell this gateway; only where the gateway opens the rooms",
      },
      { "running?", "integer", "the engine's report, not older than 5 s" },
      { "waiting?", "integer", "the engine's report, and what was sent since" },
      { "kv_free?", "number", "0 to 1, the engine's report" },
      { "ttft_ema_ms?", "number", "time to the first token, averaged" },
      { "tpot_ema_ms?", "number", "time per output token, averaged" },
      { "age_ms?", "number", "of the engine's last report" },
      { "prefix_blocks", "integer",
        "leading blocks of this prompt that it has or was just sent; 0 before `baton.prefix_match`" },
      { "prefix_host_blocks", "integer", "those of them that its engine has in the host's memory only (`kv_events`)" },
      { "prefix_disk_blocks", "integer", "likewise, on disk or further away" },
      {
        "kv_hit_tokens?", "integer",
        "tokens of this prompt in the engine's blocks, by its events; nil where they are not followed or not believed, "
          .. "or no ids are known",
      },
      { "prefix_cached", "integer", "blocks it is thought to hold in all" },
      { "pairs_with", "fun(self: Worker, other: Worker): boolean", "can these two be a pair? `a:pairs_with(b)`" },
    },
  },
  {
    name = "Ctx",
    kind = "value",
    doc = "The policy's own.",
    fields = {
      { "params", "table<string, any>", "what is set of the declared `params`; read-only" },
      { "state", "table", "what start returned, or an empty table; one for each event thread" },
      {
        "attempt", "integer",
        "in plan, plan_decode and plan_prefill: 1, or the number of the attempt that is planned now",
      },
      { "failure?", "Failure", "in plan, when it is asked again" },
      { "vars?", "table", "of this request, from admit to fallback; only in policies with admit or route" },
    },
  },
  {
    name = "Failure",
    kind = "event",
    doc = "Why an attempt failed.",
    fields = {
      { "scope", "Scope", "" },
      { "name", "string", "`connect`, `reset`, `stall`, `lost`, `upstream_status`, ..." },
      { "leg", "Leg", "" },
      { "status", "integer", "what the worker answered; 0: nothing" },
      { "tried", "integer[]", "ids of the workers that were tried" },
      {
        "keep?",
        "table<string, integer>",
        "`{ prefill = id }` or `{ decode = id }`: what it has done stays good for a plan that names it again",
      },
      { "made?", "integer", "in recompute: tokens of the answer that the client has" },
      { "left?", "integer", "in recompute: tokens that it may still get; nil: as many as the model has room for" },
      { "replays?", "integer", "in recompute: how often this answer has gone on already" },
    },
  },
  {
    name = "Event",
    kind = "event",
    doc = "What became of a request. What is 0 or does not apply is nil.",
    fields = {
      { "kind", "EventKind", "" },
      { "at_ms", "number", "on the clock of tick's `now`" },
      { "prefill?", "integer", "a worker's id" },
      { "decode?", "integer", "a worker's id; a single worker is here" },
      { "model?", "string", "" },
      { "session?", "string", "" },
      { "tenant?", "string", "" },
      { "status?", "integer", "of the answer" },
      { "failure?", "string", "its name" },
      { "scope?", "Scope", "of the failure" },
      { "prompt_tokens?", "integer", "" },
      {
        "cached_tokens?", "integer",
        "of the prompt, in the cache of prefill or a lone worker, as it says; a lone one's stream must hold usage",
      },
      { "output_tokens?", "integer", "" },
      { "ttft_ms?", "number", "" },
      { "total_ms?", "number", "" },
      { "kept?", "number[]", "its request's `ctx.vars.kept`, up to 4 numbers; in the first event of several" },
    },
  },
  {
    name = "Plan",
    kind = "answer",
    names = "plan",
    doc = "Who serves: prefill and decode, or worker. A worker or its id.",
    fields = {
      { "kind?", "PlanKind", "the pair's own where it is not said; one that the two do not share is an error" },
      { "prefill?", "Worker|integer",
        "of view.prefill. Left out by a policy with plan_prefill: chosen when decode calls for it" },
      {
        "decode?", "Worker|integer",
        "of view.decode; the two must be able to pair. Left out by a policy with plan_decode: chosen after prefill",
      },
      { "worker?", "Worker|integer", "of view.single, then without the two" },
      {
        "prefill_rank?", "integer",
        "data-parallel rank, below `dp_size`; not said: the idlest where decode must be told, else its engine's",
      },
      { "decode_rank?", "integer", "likewise; not said: its engine's to choose" },
      { "alternates?", "Plan[]", "up to 8, in the order to try when this one fails" },
      { "hints?", "Hints", "what engines are told of the prompt's KV, for all tries until a later answer has its own" },
    },
  },
  {
    name = "Hints",
    kind = "answer",
    doc = "What a plan tells both legs' engines of the KV that they compute; each gets what it takes, and one that "
      .. "takes nothing (vLLM 0.32: its `priority` orders its queue alone) is left alone. Said once in the log.",
    fields = {
      { "priority?", "integer", "SGLang, all routes: a prompt of a higher one is evicted later, where the engine runs "
        .. "with `--radix-eviction-policy priority`; with `--enable-priority-scheduling` it is also served earlier. "
        .. "In the place of the client's own. Not said: 0 there" },
      { "kv_hints?", "KvAction[]", "SGLang's /generate: up to 8, together up to 4 KiB. 0.5.23 checks them and acts on "
        .. "none; a storage backend may" },
    },
  },
  {
    name = "KvAction",
    kind = "answer",
    doc = "An action of `kv_hints`, as engine and storage backend name it. Version and id of the message around them "
      .. "are the gateway's.",
    fields = {
      { "action_id", "string", "the policy's own name for it" },
      { "action_type", "string", "`kv.fetch`, ..." },
      { "action_version", "string", "of the payload's form: `1.0`" },
      { "payload", "table", "named members, as that form has them" },
    },
  },
  {
    name = "Admission",
    kind = "answer",
    doc = "What admit returns to refuse: any table, an empty one too, is a refusal, but one of limits alone.",
    fields = {
      { "status?", "integer", "400 to 599, default 429" },
      { "retry_after?", "number", "seconds, up to 86,400: the header Retry-After" },
      { "reason?", "string", "for the client, up to 255 bytes" },
      { "limits?", "table<string, number>", "alone: let in, and the limits of these names (`limits` of baton.lua) are "
        .. "so many times as high for whoever asks, 0 to 1e9; a name that no limit has changes nothing" },
    },
  },
  {
    name = "Direction",
    kind = "answer",
    doc = "What route returns.",
    fields = {
      { "pool?", "string", "name of a pool, up to 63 bytes; its own policy plans" },
      { "class?", "string", "`req.class` from then on, up to 63 bytes; also in records" },
      { "key?", "string", "`req.session` from then on, up to 191 bytes: who has the same key meets the same workers" },
    },
  },
  {
    name = "Queueing",
    kind = "answer",
    doc = "What enqueue returns.",
    fields = {
      { "class?", "string", "`high`, `normal` or `low`: who waits in a higher class is served first, until a lower one "
        .. "has waited for `--queue-aging-secs`" },
      { "key?", "string", "whose share of the class it is, up to 64 bytes; nil: the tenant's" },
      { "weight?", "integer", "of that share, 1 to 1,000; nil: as `--queue-weights` says, else 1" },
      { "cost?", "number", "tokens, 1 to 1e9, rounded up; nil: the prompt's and as many as answers have lately, "
        .. "`max_tokens` at most" },
      { "timeout_ms?", "number", "it may wait so long, up to 86,400,000; nil: `--queue-timeout-secs`" },
    },
  },
  {
    name = "HttpCall",
    kind = "answer",
    doc = "What baton.http is given.",
    fields = {
      { "url", "string", "http://host[:port][/path]; no https; the host must be allowed by `--policy-http-host`" },
      { "method?", "string", "default GET, or POST where there is a body" },
      { "headers?", "table<string, string>", "up to 16; Host, lengths and connection are set by baton" },
      { "body?", "string", "up to 1 MiB" },
      { "timeout_ms?", "number", "1 to 60,000, default 1000" },
    },
  },
  {
    name = "HttpAnswer",
    kind = "event",
    doc = "What baton.http returns.",
    fields = {
      { "status", "integer", "" },
      { "headers", "table<string, string>", "names in lower case; values of one name are joined by a comma" },
      { "body", "string", "up to 1 MiB" },
    },
  },
  {
    name = "Param",
    kind = "answer",
    names = "param",
    doc = "What may be set from outside, checked before any hook runs.",
    fields = {
      { "type", "ParamType", "" },
      { "min?", "number", "of a number, the bytes of a string, the elements of a list" },
      { "max?", "number", "likewise" },
      { "enum?", "any[]", "the values, or elements of a list, that are allowed" },
      { "default?", "any", "without one it is nil until it is set" },
      { "doc?", "string", "" },
    },
  },
}

-- ---- baton ----

local LIST = { "list", "Worker[]" }
local MORE_PAIRS = { "...", "NumberField|number", "more pairs" }
local KEY = { "key", "string|number" }
local NAME = { "name", "string" }
local BLOCK = { "block?", "integer", "tokens a block, 1 to 1024, default 64" }
local WITH_REQ = "hooks that get req"
local WAITING = "start, admit, route, tick"
local SENT = "in pure hooks it is sent, and nothing comes back"
local WHY = { "string?", "why not, where the first is nil" }
local TTL = { "ttl_ms?", "number", "1 to a year; default for ever" }

api.groups = {
  {
    name = "Choosing",
    functions = {
      {
        name = "argmin",
        params = { LIST, { "field", "NumberField" }, { "...", "NumberField", "break ties" } },
        returns = { { "Worker?" } },
        doc = "The worker with the least; equals share by chance. Not known counts as worst. nil: the list is empty.",
        limits = "1 to 8 fields",
      },
      {
        name = "argmax",
        params = { LIST, { "field", "NumberField" }, { "...", "NumberField", "break ties" } },
        returns = { { "Worker?" } },
        doc = "The same for the most; not known counts as worst here too.",
        limits = "1 to 8 fields",
      },
      {
        name = "argmin_sum",
        params = { LIST, { "field", "NumberField" }, { "weight", "number" }, MORE_PAIRS },
        returns = { { "Worker?" } },
        doc = "The least weighted sum. A field of weight 0 need not be known.",
        limits = "1 to 8 pairs of field and weight",
      },
      {
        name = "argmax_sum",
        params = { LIST, { "field", "NumberField" }, { "weight", "number" }, MORE_PAIRS },
        returns = { { "Worker?" } },
        doc = "The same for the most.",
        limits = "1 to 8 pairs of field and weight",
      },
      {
        name = "power_of_k",
        params = { LIST, { "k", "integer" }, { "field", "NumberField" }, { "...", "NumberField", "break ties" } },
        returns = { { "Worker?" } },
        doc = "The least of k drawn members.",
        limits = "k is 1 to 16",
      },
      {
        name = "pick2",
        params = { LIST },
        returns = { { "Worker?" }, { "Worker?" } },
        doc = "Two different members by chance; the same one twice where there is but one.",
      },
      {
        name = "smooth",
        params = { LIST, NAME, { "label?", "string", "that says the weight, default `weight`" } },
        returns = { { "Worker?" } },
        doc = "The next in smooth weighted turn; a wheel for each name and event thread.",
        limits = "256 names a VM",
      },
      {
        name = "range",
        params = { LIST, { "field", "NumberField" } },
        returns = { { "number?", "least" }, { "number?", "most" }, { "number?", "mean" } },
        doc = "Of those that are known; nothing where none is.",
      },
      {
        name = "note_score",
        params = { { "worker", "Worker" }, { "score", "number" } },
        returns = {},
        where = "plan, fallback",
        doc = "For policies that rank by hand: stands in the decision record, if one is written. Rankings note theirs.",
      },
    },
  },
  {
    name = "Sorting out",
    functions = {
      {
        name = "compatible",
        params = { LIST, { "worker", "Worker" } },
        returns = { { "Worker[]" } },
        doc = "Members that can be a pair with this worker; remembered.",
      },
      {
        name = "pairable",
        params = { LIST, { "others", "Worker[]" } },
        returns = { { "Worker[]" } },
        doc = "Members that can be a pair with at least one of the others; remembered.",
      },
      {
        name = "warm",
        params = { LIST, { "worker?", "Worker" } },
        returns = { { "Worker[]" } },
        doc = "Members that have been warmed as a pair with this worker, without one: with any; "
          .. "all where none has, or without `--warm-pairs`.",
      },
      {
        name = "where",
        params = { LIST, { "label", "string", "or `zone`, `name`" }, { "value?", "string" } },
        returns = { { "Worker[]" } },
        doc = "Members with the label, or with this value of it; remembered.",
      },
      {
        name = "without",
        params = { LIST, { "label", "string" }, { "value?", "string" } },
        returns = { { "Worker[]" } },
        doc = "The others.",
      },
    },
  },
  {
    name = "By key",
    functions = {
      {
        name = "hash",
        params = { { "text", "string" }, { "seed?", "integer", "below 2^53, default 0" } },
        returns = { { "integer" } },
        doc = "XXH3, a whole number below 2^53.",
      },
      {
        name = "rendezvous",
        params = { LIST, KEY, { "count?", "integer", "then a list of the first so many" } },
        returns = { { "Worker|Worker[]|nil" } },
        doc = "The key's worker: the same in all gateways, and only a lost worker's keys move.",
        limits = "count is 1 to 64",
      },
      {
        name = "bounded_hash",
        params = { LIST, KEY, { "factor", "number" }, { "field?", "NumberField", "default `requests`" } },
        returns = { { "Worker?" } },
        doc = "The first in the key's order that is below factor times the mean.",
        limits = "factor is 1 or more",
      },
      {
        name = "ring",
        params = { LIST, KEY, { "vnodes?", "integer", "points a worker, default 160" } },
        returns = { { "Worker?" } },
        doc = "A hash ring: O(log n), for very large fleets.",
        limits = "a list of the view; vnodes is 1 to 1024",
      },
      {
        name = "random",
        params = { { "n?", "integer" } },
        returns = { { "number" } },
        doc = "In [0, 1), or a whole number from 1 to n.",
      },
    },
  },
  {
    name = "By prompt",
    functions = {
      {
        name = "prefix_match",
        params = { LIST, { "req", "Request" }, BLOCK },
        returns = { { "Worker?", "nil: nobody has it" }, { "integer", "its blocks" }, { "integer", "the prompt's" } },
        where = "plan, fallback",
        doc = "The worker with the longest known prefix; from then on `prefix_blocks` is a field of every worker. "
          .. "Where an engine's events are followed (`kv_events`) and the prompt's token ids are known, it is what the "
          .. "engine holds, and what it was sent in the last two seconds; else what it was sent.",
      },
      {
        name = "prefix_insert",
        params = { { "req", "Request" }, { "worker", "Worker" }, BLOCK },
        returns = {},
        where = "plan, fallback",
        doc = "This worker is about to have the prompt. Once a request: not when its plan is asked again.",
      },
      {
        name = "prefix_blocks",
        params = { { "req", "Request" }, BLOCK },
        returns = { { "integer" } },
        where = WITH_REQ,
        doc = "Full blocks of the prompt.",
      },
      {
        name = "prefix_key",
        params = { { "req", "Request" }, { "blocks?", "integer", "1 to 1024, default 4 or what there is" }, BLOCK },
        returns = { { "string?", "nil: shorter than one block" } },
        where = WITH_REQ,
        doc = "A name for the prompt's beginning: 16 hexadecimal digits.",
      },
    },
  },
  {
    name = "Counting",
    functions = {
      {
        name = "shared_local.add",
        params = { NAME, { "delta?", "integer", "default 1" } },
        returns = { { "integer", "the new value" } },
        doc = "A counter that all event threads share; a dry run has its own.",
        limits = "a name has 1 to 127 bytes; 4096 names a process, for ever: never a name made from a request",
      },
      { name = "shared_local.get", params = { NAME }, returns = { { "integer" } }, doc = "Its value; 0 at first." },
      { name = "shared_local.set", params = { NAME, { "value", "integer" } }, returns = {}, doc = "Sets it." },
      {
        name = "ewma",
        params = { NAME, { "sample?", "number" }, { "weight?", "number", "0 to 1, default 0.125" } },
        returns = { { "number?", "nil: nothing was ever given" } },
        doc = "A moving average of the process: adds the sample, if there is one.",
        limits = "names may come from requests; the one unused for longest gives way",
      },
      {
        name = "take",
        params = { NAME, { "per_s", "number" }, { "burst", "number" }, { "cost?", "number", "default 1" } },
        returns = { { "boolean" }, { "number?", "seconds until there is enough; nil with false: never" } },
        doc = "A token bucket of the process. Takes nothing when a request's plan is asked again.",
      },
      {
        name = "window",
        params = { NAME, { "amount", "number" }, { "seconds", "number", "0.001 to 86,400" } },
        returns = { { "number" } },
        doc = "What came in the last so many seconds, this amount included: once a request.",
      },
    },
  },
  {
    name = "Shared by the fleet",
    functions = {
      {
        name = "shared.add",
        params = { NAME, { "delta", "integer" }, TTL },
        returns = { { "number?", "the new value" }, WHY },
        doc = "A counter. Its time runs from the first add.",
        limits = SENT,
      },
      {
        name = "shared.get",
        params = { NAME },
        returns = { { "string?", "nil: there is none" }, WHY },
        where = WAITING,
        doc = "What the cell holds.",
      },
      {
        name = "shared.set",
        params = { NAME, { "value", "string|number" }, TTL, { "only_if_absent?", "boolean" } },
        returns = { { "boolean?", "false: there was one" }, WHY },
        doc = "Writes a cell; the last writer wins.",
        limits = "a value has up to 64 KiB; " .. SENT,
      },
      {
        name = "shared.drop",
        params = { NAME, { "field?", "string", "of a table; else the whole name" } },
        returns = { { "true?" }, WHY },
        doc = "Removes it.",
        limits = SENT,
      },
      {
        name = "shared.lease",
        params = { NAME, { "ttl_ms", "number" } },
        returns = { { "number|false|nil", "the fence, which grows with every change of holder" },
          { "string?", "who holds it; why not, where the first is nil" } },
        where = WAITING,
        doc = "One gateway does it: takes or renews a lease in the name of this gateway, whichever event thread asks.",
      },
      {
        name = "shared.release",
        params = { NAME },
        returns = { { "boolean?", "it was ours" }, WHY },
        where = WAITING,
        doc = "Gives the lease up.",
      },
      {
        name = "shared.take",
        params = { NAME, { "limit", "integer" }, { "window_ms", "number", "100 to a day" },
          { "amount?", "integer", "default 1" } },
        returns = { { "boolean?" }, { "number|string|nil", "seconds to the next window; why not" },
          { "integer?", "the window it was granted of" } },
        where = WAITING,
        doc = "At most `limit` in each window over the whole fleet. Answered from a chunk leased ahead, mostly without "
          .. "a round trip. Without the shared state each gateway holds to its part of the limit.",
        limits = "65,536 quotas at a time",
      },
      {
        name = "shared.give",
        params = { NAME, { "window_ms", "number" }, { "amount", "integer", "below 0: more was used" },
          { "window?", "integer", "as take said; default the one that runs" } },
        returns = {},
        doc = "Gives back what was taken and not used. Waits for nothing; another window's is forgotten.",
      },
      {
        name = "shared.put",
        params = { NAME, { "field", "string" }, { "value", "string|number" }, TTL },
        returns = { { "true?" }, WHY },
        doc = "Writes a field of a table; each has a time of its own.",
        limits = "a field has 1 to 255 bytes, a value up to 64 KiB; " .. SENT,
      },
      {
        name = "shared.fields",
        params = { NAME },
        returns = { { "table<string, string>|nil" }, WHY },
        where = WAITING,
        doc = "All fields of a table.",
        limits = "10,000",
      },
      {
        name = "shared.cached",
        params = { NAME, { "max_age_ms?", "number" } },
        returns = { { "any", "nil: there is none" }, { "number?", "its age in ms; nil: not known, or older" } },
        doc = "What this process has last read or written by add, get, set or fields. Asks nobody: prefetch in route.",
      },
    },
  },
  {
    name = "Outside",
    functions = {
      {
        name = "sleep",
        params = { { "ms", "number", "0 to 600,000" } },
        returns = { { "true?" }, { "string?", "why not: the hook's time is over" } },
        where = "start, admit, route, tick",
        doc = "Waits, while other requests go on.",
        limits = "not inside pcall, table.sort or a metamethod",
      },
      {
        name = "http",
        params = { { "call", "HttpCall" } },
        returns = { { "HttpAnswer?" }, { "string?", "why there is none" } },
        where = "start, admit, route, tick",
        doc = "Asks another server, while other requests go on. What the network does never raises.",
        limits = "not inside pcall, table.sort or a metamethod; a host that is not allowed raises",
      },
      {
        name = "log",
        params = { { "level", '"error"|"warn"|"info"|"debug"' }, { "text", "string" } },
        returns = {},
        doc = "A line in the gateway's log, with the policy's name and the request's id; none in a dry run.",
        limits = "ten lines a second and event thread, the next tells how many were not shown; 1,024 bytes",
      },
      {
        name = "json_decode",
        params = { { "text", "string" } },
        returns = { { "any" }, { "string?", "the reason, where the first is nil" } },
        doc = "null is nil, and leaves a hole in a list.",
        limits = "1 MiB (64 KiB in pure hooks), 32 deep, 65,536 values",
      },
      {
        name = "json_encode",
        params = { { "value", "any" } },
        returns = { { "string" } },
        doc = "Keys in the order of their bytes.",
        limits = "1 MiB (64 KiB in pure hooks), 8 deep, 16,384 values; what JSON has no form for raises",
      },
    },
  },
}

-- ---- the policy's table ----

api.policy = {
  doc = "What a policy file returns. An unknown member is an error that says what was meant.",
  fields = {
    { "api", "2", "" },
    { "name", "string", "" },
    { "version", "string", "" },
    { "params?", "table<string, Param>", "" },
  },
}

-- ---- builtins ----
-- { name, how it differs from stock LuaJIT }. What is not here does not exist in a policy.

api.builtins = {
  { name = "", members = {
    { "assert" }, { "error" }, { "getmetatable" }, { "ipairs" }, { "next" }, { "pairs" },
    { "pcall", "nothing can wait inside; does not catch running out of time" },
    { "rawequal" }, { "rawget" }, { "rawset" }, { "select" }, { "setmetatable" }, { "tonumber" }, { "tostring" },
    { "type" }, { "unpack" },
  } },
  { name = "math", members = {
    { "abs" }, { "acos" }, { "asin" }, { "atan" }, { "atan2" }, { "ceil" }, { "cos" }, { "cosh" }, { "deg" }, { "exp" },
    { "floor" }, { "fmod" }, { "frexp" }, { "huge" }, { "ldexp" }, { "log" }, { "log10" }, { "max" }, { "min" },
    { "modf" }, { "pi" }, { "pow" }, { "rad" }, { "random", "seeded by chance; no randomseed" }, { "sin" }, { "sinh" },
    { "sqrt" }, { "tan" }, { "tanh" },
  } },
  { name = "string", members = {
    { "byte" }, { "char" }, { "find", "plain text only, no patterns" },
    { "format", "at most 1 MiB" }, { "len" }, { "lower" }, { "rep", "at most 1 MiB" }, { "reverse" }, { "sub" },
    { "upper" },
  } },
  { name = "table", members = {
    { "concat", "at most 1 MiB" }, { "insert" }, { "remove" }, { "sort" },
  } },
  { name = "bit", members = {
    { "arshift" }, { "band" }, { "bnot" }, { "bor" }, { "bswap" }, { "bxor" }, { "lshift" }, { "rol" }, { "ror" },
    { "rshift" }, { "tobit" }, { "tohex" },
  } },
}

return api
