// What runs, each as a bar of what it has behind it; and what has ended.

import { Table, button, count, el, ms, set, svg } from "./dom.js";
import { act, get } from "./net.js";

const PHASES = [["admit", "admission, rules, plan"], ["queue", "queue"], ["prefill", "prefill"],
  ["transfer", "KV transfer, decode's first byte"], ["decode", "decode"]];

export function legend() {
  return el("p", {}, PHASES.map(([cls, words]) => el("span", { class: "key" },
    svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("rect", { class: cls, width: 12, height: 12 })), words)));
}

// [[class, ms]...] of a request that runs.
function live_parts(r) {
  const p = r.phases_ms, age = r.age_ms;
  const admit = (p.admit || 0) + (p.route || 0) + (p.plan || 0);
  if (r.step === "queue") return [["admit", admit], ["queue", age - admit]];
  const begin = p.prefill_start ?? admit + (p.queue || 0);
  const first = p.first_byte ?? age;
  const done = r.prefill ? Math.min(p.prefill_end ?? age, first) : begin;
  return [["admit", Math.max(0, begin - (p.queue || 0))], ["queue", p.queue || 0], ["prefill", done - begin],
    ["transfer", r.prefill ? first - done : 0], ["decode", r.prefill ? age - first : age - begin]];
}

// The same of one that has ended.
export function ended_parts(p) {
  const last = p.last_byte || 0, first = p.first_byte ?? last;
  const prefill = p.prefill || 0, transfer = p.kv_wait || 0, queue = p.queue || 0;
  const admit = prefill ? Math.max(0, first - prefill - transfer - queue) : (p.admit || 0) + (p.route || 0) + (p.plan || 0);
  return [["admit", admit], ["queue", queue], ["prefill", prefill], ["transfer", transfer],
    ["decode", Math.max(0, last - (prefill ? first : admit + queue))]];
}

export function draw_bar(cell, parts, longest, failed) {
  const words = parts.filter(([, n]) => n >= 0.05).map(([cls, n]) => `${cls} ${ms(n)}`).join(", ") || "just begun";
  if (cell.words === words && cell.longest === longest) return;
  cell.words = words;
  cell.longest = longest;
  const bar = svg("svg", { class: "bar", viewBox: "0 0 300 14", preserveAspectRatio: "none", role: "img", "aria-label": words },
    svg("title", {}, words));
  let x = 0;
  for (const [cls, n] of parts) {
    const width = Math.max(0, (300 * n) / longest);
    if (width > 0) bar.append(svg("rect", { class: failed && cls === "decode" ? "failed" : cls, x, width, height: 14 }));
    x += width;
  }
  cell.replaceChildren(bar);
}

export const way = (r) => (r.prefill || r.decode ? `${r.prefill || "?"} → ${r.decode || "?"}` : r.worker || "");
const why_link = (cell, id) => {
  const a = cell.firstChild || cell.appendChild(el("a", {}));
  a.href = `#why/${encodeURIComponent(id)}`;
  set(a, id.length > 24 ? `${id.slice(0, 23)}…` : id);
  a.title = id;
};

const cancel = (r) => act(`Cancel ${r.id}`, "Its client gets an error, and both workers stop.", "Cancel request",
  "POST", `/requests/${encodeURIComponent(r.id)}/cancel`);

export const requests = {
  id: "requests", title: "Requests",
  open(main) {
    this.longest = 1000;
    this.live = new Table("Live", [
      { head: "Request", draw: (cell, r) => set(cell, r.id.length > 24 ? `${r.id.slice(0, 23)}…` : r.id) },
      { head: "Model", text: (r) => r.model ?? "" }, { head: "Way", text: way },
      { head: "Step", text: (r) => (r.step === "run" ? (r.first_byte ? "decode" : "run") : r.step.replace("_", " ")) },
      { head: "Age", num: true, text: (r) => ms(r.age_ms) },
      { head: "Attempts", num: true, text: (r) => r.attempts },
      { head: "Time", draw: (cell, r) => draw_bar(cell, live_parts(r), this.longest) },
      { head: "Action", draw: (cell, r) => button(cell, "Cancel", `Cancel ${r.id}`, () => cancel(r)) },
    ], (r) => r.id);
    this.ended = new Table("Ended", [
      { head: "Request", draw: (cell, r) => why_link(cell, r.id) },
      { head: "At", text: (r) => new Date(r.at).toLocaleTimeString() },
      { head: "Model", text: (r) => r.model ?? "" }, { head: "Tenant", text: (r) => r.tenant ?? "" },
      { head: "Status", num: true, text: (r) => r.status || "gone" },
      { head: "Error", text: (r) => r.error || "", cls: () => "bad" },
      { head: "Way", text: (r) => (r.plan ? way(r.plan) : "") },
      { head: "Took", num: true, text: (r) => ms(r.phases_ms?.last_byte) },
      { head: "Time", draw: (cell, r) => draw_bar(cell, ended_parts(r.phases_ms || {}), this.longest_ended, r.error) },
    ], (r) => `${r.id} ${r.at}`);
    main.append(el("h2", {}, "Requests"), legend(), this.live.node, el("h2", {}, "Just ended"), this.ended.node);
  },
  async tick(state) {
    const { rows, total } = state.requests;
    this.longest = Math.max(200, ...rows.map((r) => r.age_ms));
    this.live.update(rows, rows.length < total ? `The oldest ${count(rows.length)} of ${count(total)} live requests`
      : rows.length ? `${count(rows.length)} live` : "None is live");
    const answer = await get("/explain?limit=30");
    if (!answer.ok) return;
    const list = answer.data.requests;
    this.longest_ended = Math.max(50, ...list.map((r) => r.phases_ms?.last_byte || 0));
    this.ended.update(list, list.length ? "The last 30 over all event threads; the id says why" : "None yet");
  },
};
