// One request's record as a picture: who could have served it, what the policy thought of them, who did, what failed.

import { Table, el, ms, set, svg, tiles } from "./dom.js";
import { get } from "./net.js";
import { draw_bar, ended_parts, legend, way } from "./requests.js";

const DRAWN = 20;

function chosen_of(record) {
  const last = record.attempts?.at(-1) || record.plan || {};
  return { prefill: last.prefill, decode: last.decode, single: last.worker, hybrid: last.worker };
}

function draw_candidates(role, list, chosen) {
  const rows = list.rows.slice(0, DRAWN);
  const scored = rows.some((r) => r.score !== undefined);
  const value = (r) => (scored ? r.score : (r.requests ?? 0));
  const most = Math.max(1e-9, ...rows.map((r) => Math.abs(value(r) ?? 0)));
  const words = scored ? "score" : "requests then";
  const drawing = svg("svg", { viewBox: `0 0 620 ${rows.length * 24 + 6}`, role: "img",
    "aria-label": `${role} candidates: ${rows.map((r) => `${r.name ?? r.id} ${value(r) ?? ""}${r.name === chosen ? " chosen" : ""}`).join(", ")}` });
  rows.forEach((r, i) => {
    const is = r.name !== undefined && r.name === chosen;
    const n = value(r);
    drawing.append(svg("text", { x: 0, y: 18 + i * 24 }, `${is ? "➜ " : ""}${r.name ?? `worker ${r.id}`}`.slice(0, 26)),
      svg("rect", { class: is ? "chosen" : "other", x: 190, y: 6 + i * 24, width: (300 * Math.abs(n ?? 0)) / most + 2, height: 15, rx: 3 }),
      svg("text", { class: "soft", x: 500, y: 18 + i * 24 }, n === undefined ? "no score" : `${words} ${Number(n.toFixed(3))}`));
  });
  return el("section", {}, el("h3", {}, `${role}: ${list.total} could`), drawing,
    list.total > rows.length ? el("p", { class: "soft" }, `${rows.length} of ${list.total} are drawn`) : undefined);
}

function attempts_table(record) {
  const table = new Table("Attempts, in order", [
    { head: "No.", num: true, text: (a) => a.n }, { head: "Kind", text: (a) => a.kind ?? "" },
    { head: "Way", text: way },
    { head: "Began", num: true, text: (a) => ms(a.start_ms) }, { head: "Prefill done", num: true, text: (a) => ms(a.prefill_ms) },
    { head: "First byte", num: true, text: (a) => ms(a.first_byte_ms) }, { head: "Ended", num: true, text: (a) => ms(a.end_ms) },
    { head: "Failed of", text: (a) => (a.failure ? `${a.failure}, ${a.leg ?? ""}${a.status ? ` (${a.status})` : ""}` : ""), cls: () => "bad" },
    { head: "Blamed", text: (a) => (a.guilty || []).join(", ") || (a.failure ? "nobody" : "") },
  ], (a) => `${a.child ?? 0}/${a.n}`);
  table.update(record.attempts || []);
  return table.node;
}

function draw(record, story) {
  const chosen = chosen_of(record);
  const bar = el("div");
  draw_bar(bar, ended_parts(record.phases_ms), Math.max(1, record.phases_ms.last_byte || 0), record.error);
  const policy = record.policy ? `${record.policy} ${record.policy_version ?? ""}` : "none was asked";
  const shadow = record.shadow;
  const parts = [
    tiles([["Status", record.status || "client gone", record.error ? "bad" : "good"], ["Error", record.error || "none", record.error && "bad"],
      ["Decided by", record.decided_by ?? "nobody"], ["Policy", policy], ["Pool", record.pool ?? ""], ["Rule", record.rule ?? "none"]]),
    record.why ? el("p", { class: "warn" }, record.why) : undefined,
    el("h3", {}, "Time"), legend(), bar];
  if (shadow) parts.push(el("p", {}, `Shadow ${shadow.policy}: ${shadow.error ? shadow.error : shadow.same ? "chose the same" : `chose ${way(shadow)}`}`));
  parts.push(el("h3", {}, "Attempts"), attempts_table(record));
  if (record.candidates)
    for (const [role, list] of Object.entries(record.candidates)) {
      if (list.rows.length && list.rows.some((r) => r.name !== undefined))
        parts.push(draw_candidates(role, list, chosen[role]));
    }
  else parts.push(el("p", { class: "soft" }, "Candidates and scores are kept of sampled requests only (--record-sample)."));
  parts.push(el("h3", {}, "In words"), el("pre", { tabindex: 0 }, story), el("details", {}, el("summary", {}, "The record"),
    el("pre", { tabindex: 0 }, JSON.stringify(record, undefined, 2))));
  return parts.filter((p) => p !== undefined);
}

export const why = {
  id: "why", title: "Why",
  open(main, id) {
    const input = el("input", { id: "why-id", value: id, size: 44, autocomplete: "off" });
    this.answer = el("div");
    this.list = el("datalist", { id: "why-ids" });
    input.setAttribute("list", "why-ids");
    main.append(el("h2", {}, "Why did it go there?"), el("form", {
      class: "row",
      onsubmit: (e) => {
        e.preventDefault();
        location.hash = `#why/${encodeURIComponent(input.value.trim())}`;
      },
    }, el("label", { for: "why-id" }, "Request id"), input, this.list, el("button", { type: "submit" }, "Explain")), this.answer);
    if (id) this.load(id);
    else set(this.answer, "Give the X-Request-Id of a request that has ended, or choose one under Requests.");
  },
  async load(id) {
    const path = `/explain/${encodeURIComponent(id)}`;
    const [record, story] = await Promise.all([get(path), get(`${path}?format=text`)]);
    this.answer.replaceChildren(...(record.ok ? draw(record.data, story.ok ? story.data : "") : [el("p", { class: "bad" }, record.error)]));
  },
  async tick() {
    const answer = await get("/explain?limit=20");
    if (!answer.ok) return;
    const ids = answer.data.requests.map((r) => r.id);
    if (ids.join() !== this.ids) this.list.replaceChildren(...ids.map((value) => el("option", { value })));
    this.ids = ids.join();
  },
};
