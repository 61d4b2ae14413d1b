---@meta
-- What lua-language-server knows of policies; policies/README.md says how it is told.
-- Made by spec/tools/gen_api (`make api`) from lua/baton/api.lua: change it there.

--- a field of a worker that native functions can rank by
---@alias baton.NumberField
---| '"id"'
---| '"dp_size"'
---| '"tp_size"'
---| '"pp_size"'
---| '"prefill_tokens"'
---| '"decode_tokens"'
---| '"tokens"'
---| '"requests"'
---| '"transfer_bytes"'
---| '"running"'
---| '"waiting"'
---| '"kv_free"'
---| '"ttft_ema_ms"'
---| '"tpot_ema_ms"'
---| '"age_ms"'
---| '"prefix_blocks"'
---| '"prefix_host_blocks"'
---| '"prefix_disk_blocks"'
---| '"kv_hit_tokens"'
---| '"prefix_cached"'

--- what a worker is for
---@alias baton.Role
---| '"prefill"'
---| '"decode"'
---| '"hybrid"'
---| '"encode"'

--- how a request is served
---@alias baton.PlanKind
---| '"single"'
---| '"handoff"'
---| '"bootstrap"'
---| '"trigger"'

--- how far a failure reaches
---@alias baton.Scope
---| '"request"'
---| '"attempt"'
---| '"connection"'
---| '"worker"'
---| '"device"'
---| '"process"'

--- the call that failed
---@alias baton.Leg
---| '"prefill"'
---| '"decode"'
---| '"single"'
---| '"encode"'

--- what became of a request
---@alias baton.EventKind
---| '"finished"'
---| '"failed"'
---| '"cancelled"'

--- what a parameter is
---@alias baton.ParamType
---| '"number"'
---| '"integer"'
---| '"string"'
---| '"boolean"'
---| '"list"'

--- A request, to be looked at while the hook runs that got it. An unknown field raises, and names the nearest.
---@class baton.Request
---@field path string as it was called: /v1/chat/completions
---@field model? string
---@field headers table<string, string?> by name, in any case: `req.headers["x-tier"]`
---@field stream boolean the answer comes in events
---@field n integer samples asked for
---@field prompt_bytes integer of the prompt's text
---@field prompt_tokens integer counted where token ids came, else estimated from the bytes
---@field token_source string who has counted them: `client` (ids came), `engine` (it was asked: `tokenize_timeout_ms`) or `estimate`
---@field max_tokens? integer of one sample, as the client limits it
---@field session? string the key that route named, else the header x-session-id, else the body's
---@field tenant? string the header x-tenant-id; where clients have keys or tokens, the tenant of those
---@field class? string what route called it
---@field identity baton.Identity who asks

--- Who asks, as far as a key (`--client-api-keys-file`), a token (`--jwt-issuer`) or a certificate says it. The key or token itself is not to be seen but in `req.headers`. An unknown field raises.
---@class baton.Identity
---@field id? string of the key, or the token's `sub`, or the certificate's subject; nil: anonymous
---@field tenant string `req.tenant`, or `anonymous`
---@field source string `key`, `jwt`, `mtls` or `anonymous`
---@field scopes table<string, boolean> by name, those of the token that mean nothing to Baton among them: `req.identity.scopes.gold`
---@field claims table<string, string|number|boolean?> those that `--jwt-claim` names; lists and objects are JSON texts, for `baton.json_decode`

--- The workers that can be chosen now, in fleet order. Read the lists, do not change them.
---@class baton.View
---@field prefill baton.Worker[]
---@field decode baton.Worker[]
---@field hybrid baton.Worker[] who is there to serve alone; in a degraded fleet, the prefill workers that may
---@field single baton.Worker[] all that can serve this request alone, hybrids first; vLLM's decode and prefill workers too, which then compute the whole of it
---@field pool string the pool's name
---@field advice? baton.Advice in tick alone; nil: too little traffic to say

--- Which role of the pool holds it up, as `GET /advice` says it: once a second, over `--advice-window-secs`.
---@class baton.Advice
---@field bottleneck "none"|"prefill"|"decode"|"both"
---@field prefill integer usable workers
---@field decode integer likewise
---@field advised_prefill integer of all these, those that should have the role
---@field advised_decode integer likewise
---@field prefill_used number mean use of a worker; 1: at its limit
---@field decode_used number likewise
---@field predicted_ttft_ms integer of a request that came now; 0: not known

--- A worker: read live, so a field may change between two looks. What is not known is nil.
---@class baton.Worker
---@field id integer stays the same as long as the worker is there
---@field name string as in answers and logs
---@field role baton.Role
---@field labels table<string, string|boolean> `labels.gpu`; a label without a value is true
---@field zone? string
---@field engine? string `sglang`, `vllm`, `vllm_ascend`, `mindie` or `trtllm`
---@field connector? string as the fleet's configuration spells it
---@field version? string the engine's, likewise
---@field kinds table<baton.PlanKind|integer, any> plans it can be part of now: a list, and `kinds.handoff`
---@field dialects table<string|integer, any> a list, and `dialects.nixl`
---@field dp_size integer data-parallel ranks; 1 where nothing is said
---@field tp_size integer tensor-parallel ranks, likewise
---@field pp_size integer pipeline-parallel ranks, likewise
---@field prefill_tokens integer of prompts that wait or run there, as the fleet's gateways count
---@field decode_tokens integer of prompts and answers in work, likewise
---@field tokens integer the two together: the load of a worker that does both
---@field requests integer in work, likewise
---@field transfer_bytes? integer of KV on its way from or to it, as its agents tell this gateway; only where the gateway opens the rooms
---@field running? integer the engine's report, not older than 5 s
---@field waiting? integer the engine's report, and what was sent since
---@field kv_free? number 0 to 1, the engine's report
---@field ttft_ema_ms? number time to the first token, averaged
---@field tpot_ema_ms? number time per output token, averaged
---@field age_ms? number of the engine's last report
---@field prefix_blocks integer leading blocks of this prompt that it has or was just sent; 0 before `baton.prefix_match`
---@field prefix_host_blocks integer those of them that its engine has in the host's memory only (`kv_events`)
---@field prefix_disk_blocks integer likewise, on disk or further away
---@field kv_hit_tokens? integer tokens of this prompt in the engine's blocks, by its events; nil where they are not followed or not believed, or no ids are known
---@field prefix_cached integer blocks it is thought to hold in all
---@field pairs_with fun(self: baton.Worker, other: baton.Worker): boolean can these two be a pair? `a:pairs_with(b)`

--- The policy's own.
---@class baton.Ctx
---@field params table<string, any> what is set of the declared `params`; read-only
---@field state table what start returned, or an empty table; one for each event thread
---@field attempt integer in plan, plan_decode and plan_prefill: 1, or the number of the attempt that is planned now
---@field failure? baton.Failure in plan, when it is asked again
---@field vars? table of this request, from admit to fallback; only in policies with admit or route

--- Why an attempt failed.
---@class baton.Failure
---@field scope baton.Scope
---@field name string `connect`, `reset`, `stall`, `lost`, `upstream_status`, ...
---@field leg baton.Leg
---@field status integer what the worker answered; 0: nothing
---@field tried integer[] ids of the workers that were tried
---@field keep? table<string, integer> `{ prefill = id }` or `{ decode = id }`: what it has done stays good for a plan that names it again
---@field made? integer in recompute: tokens of the answer that the client has
---@field left? integer in recompute: tokens that it may still get; nil: as many as the model has room for
---@field replays? integer in recompute: how often this answer has gone on already

--- What became of a request. What is 0 or does not apply is nil.
---@class baton.Event
---@field kind baton.EventKind
---@field at_ms number on the clock of tick's `now`
---@field prefill? integer a worker's id
---@field decode? integer a worker's id; a single worker is here
---@field model? string
---@field session? string
---@field tenant? string
---@field status? integer of the answer
---@field failure? string its name
---@field scope? baton.Scope of the failure
---@field prompt_tokens? integer
---@field cached_tokens? integer of the prompt, in the cache of prefill or a lone worker, as it says; a lone one's stream must hold usage
---@field output_tokens? integer
---@field ttft_ms? number
---@field total_ms? number
---@field kept? number[] its request's `ctx.vars.kept`, up to 4 numbers; in the first event of several

--- Who serves: prefill and decode, or worker. A worker or its id.
---@class baton.Plan
---@field kind? baton.PlanKind the pair's own where it is not said; one that the two do not share is an error
---@field prefill? baton.Worker|integer of view.prefill. Left out by a policy with plan_prefill: chosen when decode calls for it
---@field decode? baton.Worker|integer of view.decode; the two must be able to pair. Left out by a policy with plan_decode: chosen after prefill
---@field worker? baton.Worker|integer of view.single, then without the two
---@field prefill_rank? integer data-parallel rank, below `dp_size`; not said: the idlest where decode must be told, else its engine's
---@field decode_rank? integer likewise; not said: its engine's to choose
---@field alternates? baton.Plan[] up to 8, in the order to try when this one fails
---@field hints? baton.Hints what engines are told of the prompt's KV, for all tries until a later answer has its own

--- What a plan tells both legs' engines of the KV that they compute; each gets what it takes, and one that takes nothing (vLLM 0.32: its `priority` orders its queue alone) is left alone. Said once in the log.
---@class baton.Hints
---@field priority? integer SGLang, all routes: a prompt of a higher one is evicted later, where the engine runs with `--radix-eviction-policy priority`; with `--enable-priority-scheduling` it is also served earlier. In the place of the client's own. Not said: 0 there
---@field kv_hints? baton.KvAction[] SGLang's /generate: up to 8, together up to 4 KiB. 0.5.23 checks them and acts on none; a storage backend may

--- An action of `kv_hints`, as engine and storage backend name it. Version and id of the message around them are the gateway's.
---@class baton.KvAction
---@field action_id string the policy's own name for it
---@field action_type string `kv.fetch`, ...
---@field action_version string of the payload's form: `1.0`
---@field payload table named members, as that form has them

--- What admit returns to refuse: any table, an empty one too, is a refusal, but one of limits alone.
---@class baton.Admission
---@field status? integer 400 to 599, default 429
---@field retry_after? number seconds, up to 86,400: the header Retry-After
---@field reason? string for the client, up to 255 bytes
---@field limits? table<string, number> alone: let in, and the limits of these names (`limits` of baton.lua) are so many times as high for whoever asks, 0 to 1e9; a name that no limit has changes nothing

--- What route returns.
---@class baton.Direction
---@field pool? string name of a pool, up to 63 bytes; its own policy plans
---@field class? string `req.class` from then on, up to 63 bytes; also in records
---@field key? string `req.session` from then on, up to 191 bytes: who has the same key meets the same workers

--- What enqueue returns.
---@class baton.Queueing
---@field class? string `high`, `normal` or `low`: who waits in a higher class is served first, until a lower one has waited for `--queue-aging-secs`
---@field key? string whose share of the class it is, up to 64 bytes; nil: the tenant's
---@field weight? integer of that share, 1 to 1,000; nil: as `--queue-weights` says, else 1
---@field cost? number tokens, 1 to 1e9, rounded up; nil: the prompt's and as many as answers have lately, `max_tokens` at most
---@field timeout_ms? number it may wait so long, up to 86,400,000; nil: `--queue-timeout-secs`

--- What baton.http is given.
---@class baton.HttpCall
---@field url string http://host[:port][/path]; no https; the host must be allowed by `--policy-http-host`
---@field method? string default GET, or POST where there is a body
---@field headers? table<string, string> up to 16; Host, lengths and connection are set by baton
---@field body? string up to 1 MiB
---@field timeout_ms? number 1 to 60,000, default 1000

--- What baton.http returns.
---@class baton.HttpAnswer
---@field status integer
---@field headers table<string, string> names in lower case; values of one name are joined by a comma
---@field body string up to 1 MiB

--- What may be set from outside, checked before any hook runs.
---@class baton.Param
---@field type baton.ParamType
---@field min? number of a number, the bytes of a string, the elements of a list
---@field max? number likewise
---@field enum? any[] the values, or elements of a list, that are allowed
---@field default? any without one it is nil until it is set
---@field doc? string

--- What a policy file returns. An unknown member is an error that says what was meant.
---@class baton.Policy
---@field api 2
---@field name string
---@field version string
---@field params? table<string, baton.Param>
---@field start? fun(params: table, old?: table): table? Once, when the policy is loaded, for every event thread; no request waits for it.
---@field admit? fun(req: baton.Request, ctx: baton.Ctx): baton.Admission? May this request come in? Asked first, before a pool is chosen.
---@field route? fun(req: baton.Request, ctx: baton.Ctx): baton.Direction? Chooses the pool, a class label and an affinity key.
---@field enqueue? fun(req: baton.Request, ctx: baton.Ctx): baton.Queueing? Where does it stand in its pool's line? Asked of each request that has a pool, with `--queue-size`, whether it will have to wait or not. Of a pool's policies the first that has the hook.
---@field plan fun(req: baton.Request, view: baton.View, ctx: baton.Ctx): baton.Plan? Which workers serve it? The only hook that a policy must have. After a failed attempt it is asked again, if it has no fallback and no alternate is left: ctx.failure and ctx.attempt say so, and view is without the workers that were tried.
---@field plan_decode? fun(req: baton.Request, view: baton.View, prefill: baton.Worker, ctx: baton.Ctx): baton.Plan? A plan of a hand-off left decode open, and prefill has finished: who decodes? With this hook plan may leave it open, where the connector's prefill can begin so: nixl, nixl_push's hand-off, shared caches.
---@field plan_prefill? fun(req: baton.Request, view: baton.View, decode: baton.Worker, ctx: baton.Ctx): baton.Plan? A plan of a trigger left prefill open, and decode's engine has called for it: who prefills? With this hook plan may name decode alone, where decode goes first: mooncake_layerwise, mindie.
---@field fallback? fun(req: baton.Request, view: baton.View, failure: baton.Failure, ctx: baton.Ctx): baton.Plan? An attempt failed before its first byte was out. Another plan, without the workers that were tried?
---@field recompute? fun(req: baton.Request, failure: baton.Failure, ctx: baton.Ctx): boolean? Some of the answer is out, and decode gave the request up (failure.name `recomputed`) or is lost: may another worker go on by the token ids? Asked where that is exact and the pool allows it; who it is, fallback and plan say.
---@field observe? fun(events: baton.Event[], ctx: baton.Ctx) What became of the requests that this policy has planned, in batches.
---@field tick? fun(now: number, view: baton.View, ctx: baton.Ctx) Once a second, never twice at a time. For asking outside, and for what is too slow for plan.
---@field handover? fun(ctx: baton.Ctx): table? The next generation takes over. What shall its `start` get as `old`?

baton = {}
baton.shared = {}
baton.shared_local = {}

--- The worker with the least; equals share by chance. Not known counts as worst. nil: the list is empty. Limits: 1 to 8 fields.
---@param list baton.Worker[]
---@param field baton.NumberField
---@param ... baton.NumberField break ties
---@return baton.Worker?
function baton.argmin(list, field, ...) end

--- The same for the most; not known counts as worst here too. Limits: 1 to 8 fields.
---@param list baton.Worker[]
---@param field baton.NumberField
---@param ... baton.NumberField break ties
---@return baton.Worker?
function baton.argmax(list, field, ...) end

--- The least weighted sum. A field of weight 0 need not be known. Limits: 1 to 8 pairs of field and weight.
---@param list baton.Worker[]
---@param field baton.NumberField
---@param weight number
---@param ... baton.NumberField|number more pairs
---@return baton.Worker?
function baton.argmin_sum(list, field, weight, ...) end

--- The same for the most. Limits: 1 to 8 pairs of field and weight.
---@param list baton.Worker[]
---@param field baton.NumberField
---@param weight number
---@param ... baton.NumberField|number more pairs
---@return baton.Worker?
function baton.argmax_sum(list, field, weight, ...) end

--- The least of k drawn members. Limits: k is 1 to 16.
---@param list baton.Worker[]
---@param k integer
---@param field baton.NumberField
---@param ... baton.NumberField break ties
---@return baton.Worker?
function baton.power_of_k(list, k, field, ...) end

--- Two different members by chance; the same one twice where there is but one.
---@param list baton.Worker[]
---@return baton.Worker?
---@return baton.Worker?
function baton.pick2(list) end

--- The next in smooth weighted turn; a wheel for each name and event thread. Limits: 256 names a VM.
---@param list baton.Worker[]
---@param name string
---@param label? string that says the weight, default `weight`
---@return baton.Worker?
function baton.smooth(list, name, label) end

--- Of those that are known; nothing where none is.
---@param list baton.Worker[]
---@param field baton.NumberField
---@return number? # least
---@return number? # most
---@return number? # mean
function baton.range(list, field) end

--- For policies that rank by hand: stands in the decision record, if one is written. Rankings note theirs. In plan, fallback.
---@param worker baton.Worker
---@param score number
function baton.note_score(worker, score) end

--- Members that can be a pair with this worker; remembered.
---@param list baton.Worker[]
---@param worker baton.Worker
---@return baton.Worker[]
function baton.compatible(list, worker) end

--- Members that can be a pair with at least one of the others; remembered.
---@param list baton.Worker[]
---@param others baton.Worker[]
---@return baton.Worker[]
function baton.pairable(list, others) end

--- Members that have been warmed as a pair with this worker, without one: with any; all where none has, or without `--warm-pairs`.
---@param list baton.Worker[]
---@param worker? baton.Worker
---@return baton.Worker[]
function baton.warm(list, worker) end

--- Members with the label, or with this value of it; remembered.
---@param list baton.Worker[]
---@param label string or `zone`, `name`
---@param value? string
---@return baton.Worker[]
function baton.where(list, label, value) end

--- The others.
---@param list baton.Worker[]
---@param label string
---@param value? string
---@return baton.Worker[]
function baton.without(list, label, value) end

--- XXH3, a whole number below 2^53.
---@param text string
---@param seed? integer below 2^53, default 0
---@return integer
function baton.hash(text, seed) end

--- The key's worker: the same in all gateways, and only a lost worker's keys move. Limits: count is 1 to 64.
---@param list baton.Worker[]
---@param key string|number
---@param count? integer then a list of the first so many
---@return baton.Worker|baton.Worker[]|nil
function baton.rendezvous(list, key, count) end

--- The first in the key's order that is below factor times the mean. Limits: factor is 1 or more.
---@param list baton.Worker[]
---@param key string|number
---@param factor number
---@param field? baton.NumberField default `requests`
---@return baton.Worker?
function baton.bounded_hash(list, key, factor, field) end

--- A hash ring: O(log n), for very large fleets. Limits: a list of the view; vnodes is 1 to 1024.
---@param list baton.Worker[]
---@param key string|number
---@param vnodes? integer points a worker, default 160
---@return baton.Worker?
function baton.ring(list, key, vnodes) end

--- In [0, 1), or a whole number from 1 to n.
---@param n? integer
---@return number
function baton.random(n) end

--- The worker with the longest known prefix; from then on `prefix_blocks` is a field of every worker. Where an engine's events are followed (`kv_events`) and the prompt's token ids are known, it is what the engine holds, and what it was sent in the last two seconds; else what it was sent. In plan, fallback.
---@param list baton.Worker[]
---@param req baton.Request
---@param block? integer tokens a block, 1 to 1024, default 64
---@return baton.Worker? # nil: nobody has it
---@return integer # its blocks
---@return integer # the prompt's
function baton.prefix_match(list, req, block) end

--- This worker is about to have the prompt. Once a request: not when its plan is asked again. In plan, fallback.
---@param req baton.Request
---@param worker baton.Worker
---@param block? integer tokens a block, 1 to 1024, default 64
function baton.prefix_insert(req, worker, block) end

--- Full blocks of the prompt. In hooks that get req.
---@param req baton.Request
---@param block? integer tokens a block, 1 to 1024, default 64
---@return integer
function baton.prefix_blocks(req, block) end

--- A name for the prompt's beginning: 16 hexadecimal digits. In hooks that get req.
---@param req baton.Request
---@param blocks? integer 1 to 1024, default 4 or what there is
---@param block? integer tokens a block, 1 to 1024, default 64
---@return string? # nil: shorter than one block
function baton.prefix_key(req, blocks, block) end

--- A counter that all event threads share; a dry run has its own. Limits: a name has 1 to 127 bytes; 4096 names a process, for ever: never a name made from a request.
---@param name string
---@param delta? integer default 1
---@return integer # the new value
function baton.shared_local.add(name, delta) end

--- Its value; 0 at first.
---@param name string
---@return integer
function baton.shared_local.get(name) end

--- Sets it.
---@param name string
---@param value integer
function baton.shared_local.set(name, value) end

--- A moving average of the process: adds the sample, if there is one. Limits: names may come from requests; the one unused for longest gives way.
---@param name string
---@param sample? number
---@param weight? number 0 to 1, default 0.125
---@return number? # nil: nothing was ever given
function baton.ewma(name, sample, weight) end

--- A token bucket of the process. Takes nothing when a request's plan is asked again.
---@param name string
---@param per_s number
---@param burst number
---@param cost? number default 1
---@return boolean
---@return number? # seconds until there is enough; nil with false: never
function baton.take(name, per_s, burst, cost) end

--- What came in the last so many seconds, this amount included: once a request.
---@param name string
---@param amount number
---@param seconds number 0.001 to 86,400
---@return number
function baton.window(name, amount, seconds) end

--- A counter. Its time runs from the first add. Limits: in pure hooks it is sent, and nothing comes back.
---@param name string
---@param delta integer
---@param ttl_ms? number 1 to a year; default for ever
---@return number? # the new value
---@return string? # why not, where the first is nil
function baton.shared.add(name, delta, ttl_ms) end

--- What the cell holds. In start, admit, route, tick.
---@param name string
---@return string? # nil: there is none
---@return string? # why not, where the first is nil
function baton.shared.get(name) end

--- Writes a cell; the last writer wins. Limits: a value has up to 64 KiB; in pure hooks it is sent, and nothing comes back.
---@param name string
---@param value string|number
---@param ttl_ms? number 1 to a year; default for ever
---@param only_if_absent? boolean
---@return boolean? # false: there was one
---@return string? # why not, where the first is nil
function baton.shared.set(name, value, ttl_ms, only_if_absent) end

--- Removes it. Limits: in pure hooks it is sent, and nothing comes back.
---@param name string
---@param field? string of a table; else the whole name
---@return true?
---@return string? # why not, where the first is nil
function baton.shared.drop(name, field) end

--- One gateway does it: takes or renews a lease in the name of this gateway, whichever event thread asks. In start, admit, route, tick.
---@param name string
---@param ttl_ms number
---@return number|false|nil # the fence, which grows with every change of holder
---@return string? # who holds it; why not, where the first is nil
function baton.shared.lease(name, ttl_ms) end

--- Gives the lease up. In start, admit, route, tick.
---@param name string
---@return boolean? # it was ours
---@return string? # why not, where the first is nil
function baton.shared.release(name) end

--- At most `limit` in each window over the whole fleet. Answered from a chunk leased ahead, mostly without a round trip. Without the shared state each gateway holds to its part of the limit. Limits: 65,536 quotas at a time. In start, admit, route, tick.
---@param name string
---@param limit integer
---@param window_ms number 100 to a day
---@param amount? integer default 1
---@return boolean?
---@return number|string|nil # seconds to the next window; why not
---@return integer? # the window it was granted of
function baton.shared.take(name, limit, window_ms, amount) end

--- Gives back what was taken and not used. Waits for nothing; another window's is forgotten.
---@param name string
---@param window_ms number
---@param amount integer below 0: more was used
---@param window? integer as take said; default the one that runs
function baton.shared.give(name, window_ms, amount, window) end

--- Writes a field of a table; each has a time of its own. Limits: a field has 1 to 255 bytes, a value up to 64 KiB; in pure hooks it is sent, and nothing comes back.
---@param name string
---@param field string
---@param value string|number
---@param ttl_ms? number 1 to a year; default for ever
---@return true?
---@return string? # why not, where the first is nil
function baton.shared.put(name, field, value, ttl_ms) end

--- All fields of a table. Limits: 10,000. In start, admit, route, tick.
---@param name string
---@return table<string, string>|nil
---@return string? # why not, where the first is nil
function baton.shared.fields(name) end

--- What this process has last read or written by add, get, set or fields. Asks nobody: prefetch in route.
---@param name string
---@param max_age_ms? number
---@return any # nil: there is none
---@return number? # its age in ms; nil: not known, or older
function baton.shared.cached(name, max_age_ms) end

--- Waits, while other requests go on. Limits: not inside pcall, table.sort or a metamethod. In start, admit, route, tick.
---@param ms number 0 to 600,000
---@return true?
---@return string? # why not: the hook's time is over
function baton.sleep(ms) end

--- Asks another server, while other requests go on. What the network does never raises. Limits: not inside pcall, table.sort or a metamethod; a host that is not allowed raises. In start, admit, route, tick.
---@param call baton.HttpCall
---@return baton.HttpAnswer?
---@return string? # why there is none
function baton.http(call) end

--- A line in the gateway's log, with the policy's name and the request's id; none in a dry run. Limits: ten lines a second and event thread, the next tells how many were not shown; 1,024 bytes.
---@param level "error"|"warn"|"info"|"debug"
---@param text string
function baton.log(level, text) end

--- null is nil, and leaves a hole in a list. Limits: 1 MiB (64 KiB in pure hooks), 32 deep, 65,536 values.
---@param text string
---@return any
---@return string? # the reason, where the first is nil
function baton.json_decode(text) end

--- Keys in the order of their bytes. Limits: 1 MiB (64 KiB in pure hooks), 8 deep, 16,384 values; what JSON has no form for raises.
---@param value any
---@return string
function baton.json_encode(value) end
