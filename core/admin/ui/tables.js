// Views that are tables of what one route says.

import { Table, bytes, count, el, ms, set, svg, tiles } from "./dom.js";
import { get } from "./net.js";

const SHOWN = 100; // rooms
const SLOW_MS = 5000; // what costs the gateway more is asked less often
const MANY = 1000; // workers whose metrics cost the control loop tens of milliseconds

const absent = (main, words) => main.append(el("p", {}, words));

// ---- rooms ----

function draw_progress(cell, r) {
  const share = r.pages_wanted ? r.pages / r.pages_wanted : r.phase === "done" ? 1 : 0;
  const words = `${count(r.pages)} of ${count(r.pages_wanted)} pages`;
  if (cell.words === words) return;
  cell.words = words;
  cell.replaceChildren(svg("svg", { class: "bar", viewBox: "0 0 300 14", preserveAspectRatio: "none", role: "img", "aria-label": words },
    svg("title", {}, words), svg("rect", { class: "track", width: 300, height: 14 }),
    svg("rect", { class: "transfer", width: 300 * Math.min(1, share), height: 14 })));
}

export const rooms = {
  id: "rooms", title: "Rooms",
  open(main) {
    this.main = main;
    this.table = undefined;
    main.append(el("h2", {}, "KV transfers that the gateway manages"));
  },
  async tick(state) {
    if (!state.now.has.rooms) {
      if (this.main.children.length === 1)
        absent(this.main, "This gateway manages none: that needs --transfer-port and engines with BatonConnector. Other connectors' " +
          "transfers are between the engines; Requests shows how long they take.");
      return;
    }
    if (!this.table) {
      this.table = new Table("Rooms", [
        { head: "Room", text: (r) => r.room }, { head: "Request", draw: (cell, r) => {
          const a = cell.firstChild || cell.appendChild(el("a", {}));
          a.href = `#why/${encodeURIComponent(r.request_id)}`;
          set(a, r.request_id);
        } },
        { head: "Way", text: (r) => `${r.prefill} → ${r.decode}` },
        { head: "Phase", text: (r) => r.phase, cls: (r) => (r.phase === "failed" ? "bad" : "") },
        { head: "Pages", draw: draw_progress },
        { head: "Bytes", num: true, text: (r) => bytes(r.bytes) }, { head: "A second", num: true, text: (r) => bytes(r.rate_bytes_per_s) },
        { head: "Over", text: (r) => r.backend ?? "" }, { head: "Age", num: true, text: (r) => ms(r.age_ms) },
        { head: "Reason", text: (r) => r.reason ?? "" },
      ], (r) => r.room);
      this.main.append(this.table.node);
    }
    const answer = await get("/rooms?limit=400");
    if (!answer.ok) return;
    const { rooms: all, rooms_total: total } = answer.data;
    const is_over = (r) => (r.phase === "done" || r.phase === "failed" ? 1 : 0);
    const rows = all.sort((a, b) => is_over(a) - is_over(b) || a.age_ms - b.age_ms).slice(0, SHOWN);
    this.table.update(rows, `${rows.length} of ${count(total)} rooms: open ones, then those that have ended, the newest first`);
  },
};

// ---- fleet ----

const OBJECT = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value ?? ""));
const words_of = (name) => name.replaceAll("_", " ");

// A table of whatever members its rows have: what another version adds is shown, too.
function any_table(caption, rows, key) {
  const names = [...new Set(rows.flatMap(Object.keys))];
  const table = new Table(caption, names.map((n) => ({ head: words_of(n), text: (r) => OBJECT(r[n]) })), (r) => r[key] ?? JSON.stringify(r));
  table.update(rows);
  return table.node;
}

export const fleet = {
  id: "fleet", title: "Fleet",
  open(main) {
    this.said = "";
    this.main = main;
    this.body = el("div");
    main.append(el("h2", {}, "Gateways that act as one"), this.body);
  },
  async tick(state) {
    if (!state.now.has.fleet) {
      if (!this.body.children.length) absent(this.body, "This gateway is alone: --redis-url makes it one of a fleet.");
      return;
    }
    const [now, sets] = await Promise.all([get("/fleet"), get("/fleet/policies")]);
    if (!now.ok || !sets.ok) return;
    const f = now.data;
    const said = JSON.stringify([f.store, f.replicas, f.drained, f.roles, sets.data]);
    if (said === this.said) return;
    this.said = said;
    this.body.replaceChildren(
      tiles([["This replica", f.replica], ["Fleet", f.fleet], ["Store", f.store.state, f.store.state === "up" ? "good" : "bad"],
        ["Workers it shares", count(f.shared_workers)], ["Set of policies", sets.data.committed]]),
      f.store.why ? el("p", { class: "bad" }, f.store.why) : "",
      any_table("Replicas", f.replicas, "replica"),
      any_table("Who serves which set of policies", sets.data.replicas, "replica"),
      any_table("Drained", f.drained, "url"), any_table("Roles that were given", f.roles, "url"));
  },
};

// ---- tenants ----

// [{ name, labels, value }] of the families that begin so.
function read_metrics(text, wanted) {
  const rows = [];
  for (const line of text.split("\n")) {
    const found = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found || !wanted.test(found[1]) || found[1].endsWith("_bucket")) continue;
    rows.push({ name: found[1], labels: (found[2] || "").replaceAll('"', ""), value: Number(found[3]) });
  }
  return rows;
}

const LIMITS = /^baton_(limited|queue|queued|quota|limit|tenant|auth_refused|policy_rejected|concurrent|retries_over_budget)/;

export const tenants = {
  id: "tenants", title: "Tenants",
  open(main) {
    this.next = 0;
    this.sums = el("div");
    this.queues = new Table("Queues, a line before each pool", [{ head: "Pool", text: (q) => q.pool },
      { head: "Running", num: true, text: (q) => count(q.running) }, { head: "Waiting", num: true, text: (q) => count(q.waiting) }], (q) => q.pool);
    this.limits = new Table("What limits count", [{ head: "Metric", text: (m) => words_of(m.name.replace(/^baton_/, "")) },
      { head: "Of", text: (m) => m.labels }, { head: "Value", num: true, text: (m) => count(m.value) }], (m) => `${m.name}{${m.labels}}`);
    this.recent = new Table("Tenants of the last 200 requests", [{ head: "Tenant", text: (t) => t.name },
      { head: "Requests", num: true, text: (t) => count(t.requests) }, { head: "Failed", num: true, text: (t) => count(t.failed) },
      { head: "Longest", num: true, text: (t) => ms(t.longest) }], (t) => t.name);
    main.append(el("h2", {}, "Queue"), this.sums, this.queues.node, el("h2", {}, "Tenants"), this.recent.node, el("h2", {}, "Limits"), this.limits.node);
  },
  async tick(state) {
    const { queues, counters } = state.now;
    const waiting = queues.reduce((n, q) => n + q.waiting, 0);
    this.sums.replaceChildren(tiles([["Waiting", count(waiting), waiting && "warn"], ["Refused: queue full", count(counters.queue_full)],
      ["Refused: waited too long", count(counters.queue_timeouts)], ["Found no worker below its limit", count(counters.limited)]]));
    this.queues.update(queues, queues.length ? undefined : "No queue (--queue-size)");
    if (Date.now() < this.next) return;
    this.next = Date.now() + SLOW_MS;
    const is_large = state.workers.total > MANY;
    if (is_large) this.limits.update([], `With ${count(state.workers.total)} workers they are not asked for here; see /metrics`);
    const [metrics, ended] = await Promise.all([is_large ? { ok: false } : get("/metrics"), get("/explain?limit=200")]);
    if (metrics.ok) this.limits.update(read_metrics(metrics.data, LIMITS));
    if (!ended.ok) return;
    const by = new Map();
    for (const r of ended.data.requests) {
      const name = r.tenant || "(none)";
      const t = by.get(name) || { name, requests: 0, failed: 0, longest: 0 };
      t.requests++;
      t.failed += r.error || r.status >= 400 ? 1 : 0;
      t.longest = Math.max(t.longest, r.phases_ms?.last_byte || 0);
      by.set(name, t);
    }
    this.recent.update([...by.values()].sort((a, b) => b.requests - a.requests));
  },
};
