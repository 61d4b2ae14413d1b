// Prefill on the left, decode on the right, requests between them. The table below it says the same in words.

import { Table, button, count, el, ms, set, svg, tiles } from "./dom.js";
import { act } from "./net.js";

const DRAWN = 16; // of a pool's role
const flows = new Map(); // "p>d" -> smoothed number of live requests

export function stateOf(w) {
  if (w.draining) return ["◐", "draining", "warn"];
  if (w.breaker === "open") return ["▲", "breaker open", "bad"];
  if (w.health === "down" || w.why_not === "down") return ["✕", "down", "bad"];
  if (w.why_not) return ["▲", w.why_not.replaceAll("_", " "), "warn"];
  if (w.breaker === "half_open") return ["▲", "breaker half open", "warn"];
  return ["●", "up", "good"];
}

const sum = (w, n) => Object.values(w.requests).reduce((all, pair) => all + pair[n], 0);

function count_flows(live) {
  const seen = new Map();
  for (const r of live.rows)
    if (r.prefill && r.decode) {
      const key = `${r.prefill}>${r.decode}`;
      seen.set(key, (seen.get(key) || 0) + 1);
    }
  const scale = live.rows.length ? live.total / live.rows.length : 1;
  for (const key of new Set([...flows.keys(), ...seen.keys()])) {
    const value = 0.7 * (flows.get(key) || 0) + 0.3 * (seen.get(key) || 0) * Math.max(1, scale);
    if (value < 0.02) flows.delete(key);
    else flows.set(key, value);
  }
}

function draw_node(w, x, y, most) {
  const [mark, words, cls] = stateOf(w);
  const load = sum(w, 0);
  return svg("g", { "data-worker": w.name },
    svg("title", {}, `${w.name}: ${words}`),
    svg("rect", { class: `node ${cls}`, x, y, width: 230, height: 44, rx: 6 }),
    svg("text", { x: x + 10, y: y + 18 }, w.name.length > 18 ? `${w.name.slice(0, 17)}…` : w.name),
    svg("text", { x: x + 220, y: y + 18, "text-anchor": "end", class: cls }, `${mark} ${words}`),
    svg("rect", { class: "track", x: x + 10, y: y + 27, width: 84, height: 8, rx: 4 }),
    svg("rect", { class: "load", x: x + 10, y: y + 27, width: most ? (84 * load) / most : 0, height: 8, rx: 4 }),
    svg("text", { class: "soft", x: x + 220, y: y + 36, "text-anchor": "end" },
      `${count(load)} live${w.kv !== undefined ? ` · KV ${Math.round(w.kv * 100)} %` : ""}${w.zone ? ` · ${w.zone}` : ""}`));
}

function draw_pool(pool, workers) {
  const of = (...roles) => workers.filter((w) => roles.includes(w.role)).slice(0, DRAWN);
  const columns = [[of("prefill", "encode"), 10], [of("hybrid"), 365], [of("decode"), 720]];
  const rows = Math.max(1, ...columns.map(([list]) => list.length));
  const most = Math.max(1, ...workers.map((w) => sum(w, 0)));
  const at = new Map();
  const drawing = svg("svg", { viewBox: `0 0 960 ${rows * 54 + 26}`, role: "img",
    "aria-label": `Pool ${pool}: ${columns[0][0].length} prefill and ${columns[2][0].length} decode workers, as in the table below` });
  for (const [words, x] of [["prefill", 10], ["decode", 720]])
    drawing.append(svg("text", { class: "soft", x, y: 14 }, words));
  for (const [list, x] of columns) list.forEach((w, i) => at.set(w.name, [x, 24 + i * 54]));
  const widest = Math.max(1, ...flows.values());
  for (const [key, value] of flows) {
    const [from, to] = key.split(">").map((name) => at.get(name));
    if (!from || !to || from[0] === to[0]) continue;
    const [x1, y1, x2, y2] = [from[0] + 230, from[1] + 22, to[0], to[1] + 22];
    drawing.append(svg("path", { class: "flow", "data-flow": key, "stroke-width": (1 + (9 * value) / widest).toFixed(1),
      d: `M${x1} ${y1} C${x1 + 180} ${y1} ${x2 - 180} ${y2} ${x2} ${y2}` },
    svg("title", {}, `${key.replace(">", " to ")}: ${value.toFixed(1)} live requests`)));
  }
  for (const [list] of columns) for (const w of list) drawing.append(draw_node(w, ...at.get(w.name), most));
  return drawing;
}

const drain = (w) => act(`${w.draining ? "Undrain" : "Drain"} ${w.name}`,
  w.draining ? "It gets requests again." : "It gets no new requests, from any gateway of the fleet; those that run finish.",
  w.draining ? "Undrain" : "Drain", "POST", `/workers/${encodeURIComponent(w.name)}/${w.draining ? "undrain" : "drain"}`);

function new_table() {
  const words = (w) => { const [mark, text] = stateOf(w); return `${mark} ${text}${w.refusal ? `: ${w.refusal}` : ""}`; };
  return new Table("Workers", [
    { head: "Worker", text: (w) => w.name }, { head: "Pool", text: (w) => w.pool },
    { head: "Role", text: (w) => w.role }, { head: "Zone", text: (w) => w.zone || "" },
    { head: "Engine", text: (w) => w.engine },
    { head: "State", text: words, cls: (w) => stateOf(w)[2] },
    { head: "Live", num: true, text: (w) => count(sum(w, 0)) },
    { head: "Tokens", num: true, text: (w) => count(sum(w, 1)) },
    { head: "Engine runs / waits", num: true, text: (w) => (w.running === undefined ? "" : `${count(w.running)} / ${count(w.waiting)}`) },
    { head: "KV used", num: true, text: (w) => (w.kv === undefined ? "" : `${Math.round(w.kv * 100)} %`) },
    { head: "TTFT", num: true, text: (w) => (w.ttft_ms ? ms(w.ttft_ms) : "") },
    { head: "TPOT", num: true, text: (w) => (w.tpot_ms ? ms(w.tpot_ms) : "") },
    { head: "Action", draw: (cell, w) => button(cell, w.draining ? "Undrain" : "Drain",
      `${w.draining ? "Undrain" : "Drain"} ${w.name}`, () => drain(w)) },
  ], (w) => `${w.pool}/${w.name}/${w.id}`);
}

export function rates(state) {
  const { now, before } = state;
  if (!before || now.at_ms <= before.at_ms) return { answers: 0, failed: 0, events: 0 };
  const secs = (now.at_ms - before.at_ms) / 1000;
  const diff = (a, b) => Math.max(0, (a - b) / secs);
  const total = (list) => list.reduce((x, y) => x + y, 0);
  return { answers: diff(total(now.answers), total(before.answers)), failed: diff(now.answers[5], before.answers[5]),
    events: diff(now.counters.events, before.counters.events) };
}

export const topology = {
  id: "topology", title: "Topology",
  open(main) {
    this.sums = el("div");
    this.note = el("p", { class: "soft" });
    this.drawings = el("div");
    this.table = new_table();
    main.append(el("h2", {}, "Who serves"), this.sums, this.note, this.drawings, this.table.node);
  },
  tick(state) {
    const { now, workers } = state;
    const rate = rates(state);
    count_flows(state.requests);
    this.sums.replaceChildren(tiles([
      ["Live requests", count(now.live)], ["Answers a second", rate.answers.toFixed(1)],
      ["5xx a second", rate.failed.toFixed(1), rate.failed > 0 ? "bad" : undefined],
      ["Events a second", count(Math.round(rate.events))],
      ["Workers in trouble", count(workers.troubled), workers.troubled ? "bad" : "good"],
      ["Retries", count(now.counters.retries)]]));
    const cut = workers.rows.length < workers.total;
    set(this.note, cut ? `${count(workers.rows.length)} of ${count(workers.total)} workers are shown: those in trouble first, ` +
      "then some of the others. Drawings hold 16 a role." : "");
    const pools = new Map(now.pools.map((p) => [p.name, []]));
    for (const w of workers.rows) pools.get(w.pool)?.push(w);
    this.drawings.replaceChildren();
    for (const p of now.pools) {
      if (!pools.get(p.name).length) continue;
      const words = ["prefill", "decode", "hybrid", "encode"].filter((r) => p[r].total)
        .map((r) => `${count(p[r].usable)} of ${count(p[r].total)} ${r} usable`).join(", ");
      this.drawings.append(el("h2", {}, `Pool ${p.name}`), el("p", { class: "soft" }, words), draw_pool(p.name, pools.get(p.name)));
    }
    this.table.update(workers.rows);
  },
};
