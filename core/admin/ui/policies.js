// Which policy serves and why not another; rules and how often each was taken; change one, see the difference, push it.

import { Table, count, el, set, tiles } from "./dom.js";
import { act, call, get, tell } from "./net.js";

const LINES_MAX = 2000;

// Lines of both texts as [" ", line], ["-", line], ["+", line]: the longest common subsequence.
export function diff(before, after) {
  const a = before.split("\n"), b = after.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const x = a.slice(head, a.length - tail), y = b.slice(head, b.length - tail);
  const same = (line) => [" ", line];
  let middle;
  if (x.length > LINES_MAX || y.length > LINES_MAX) {
    middle = [...x.map((line) => ["-", line]), ...y.map((line) => ["+", line])];
  } else {
    const long = Array.from({ length: x.length + 1 }, () => new Uint16Array(y.length + 1));
    for (let i = x.length - 1; i >= 0; i--)
      for (let j = y.length - 1; j >= 0; j--)
        long[i][j] = x[i] === y[j] ? long[i + 1][j + 1] + 1 : Math.max(long[i + 1][j], long[i][j + 1]);
    middle = [];
    let i = 0, j = 0;
    while (i < x.length || j < y.length) {
      if (i < x.length && j < y.length && x[i] === y[j]) { middle.push(same(x[i])); i++; j++; }
      else if (j < y.length && (i === x.length || long[i][j + 1] > long[i + 1][j])) middle.push(["+", y[j++]]);
      else middle.push(["-", x[i++]]);
    }
  }
  return [...a.slice(Math.max(0, head - 3), head).map(same), ...middle, ...a.slice(a.length - tail, a.length - tail + 3).map(same)];
}

const serving_table = () => new Table("What serves", [
  { head: "Pool", text: (p) => p.pool }, { head: "Part", text: (p) => p.part },
  { head: "Policy", text: (p) => `${p.name ?? "none"} ${p.version ?? ""}` },
  { head: "Generation", num: true, text: (p) => p.generation },
  { head: "State", text: (p) => p.state.replace("_", " "), cls: (p) => (p.state === "good" ? "good" : "warn") },
  { head: "Source", text: (p) => p.source ?? "" }, { head: "Why this text", text: (p) => p.why ?? "" },
  { head: "Error", text: (p) => p.error ?? "", cls: () => "bad" },
], (p) => `${p.pool}/${p.part}`);

const rules_table = () => new Table("Rules, from the top", [
  { head: "Rule", text: (r) => r.name }, { head: "Match", text: (r) => JSON.stringify(r.match) },
  { head: "Taken", num: true, text: (r) => count(r.hits) },
  { head: "Goes to", text: (r) => r.targets.map((t) => `${t.policy ?? t.pool ?? "as without a rule"} (${count(t.hits)})`).join(", ") },
  { head: "Shadow", text: (r) => (r.shadow ? `${r.shadow.policy ?? r.shadow.pool} (${count(r.shadow.hits)})` : "") },
], (r) => r.name);

const sets_table = () => new Table("The fleet's sets, the newest first", [
  { head: "Set", num: true, text: (s) => s.number }, { head: "State", text: (s) => s.state },
  { head: "By", text: (s) => s.by ?? "" }, { head: "Why", text: (s) => s.why ?? "" },
], (s) => s.number);

export const policies = {
  id: "policies", title: "Policies",
  open(main) {
    this.sums = el("div");
    this.problem = el("p", { class: "bad", role: "alert" });
    this.serving = serving_table();
    this.rules = rules_table();
    this.sets = undefined;
    this.fleet = el("div");
    this.options = "";
    this.choice = el("select", { id: "policy-name", onchange: () => this.load(this.choice.value) });
    this.text = el("textarea", { id: "policy-text", spellcheck: false, "aria-describedby": "policy-hint" });
    this.change = el("pre", { class: "diff", tabindex: 0, "aria-label": "Difference", hidden: true });
    this.result = el("p", { role: "status", id: "policy-result" });
    this.loaded = "";
    const check = el("button", { type: "button", id: "policy-check", onclick: () => this.check() }, "Try here");
    const push = el("button", { type: "button", id: "policy-push", onclick: () => this.push("/policies/", "this gateway") }, "Push here");
    this.push_fleet = el("button", { type: "button", hidden: true, onclick: () => this.push("/fleet/policies/", "all replicas") }, "Push to the fleet");
    this.check_fleet = el("button", { type: "button", id: "policy-check-fleet", hidden: true, onclick: () => this.check_all() }, "Try on the fleet");
    const forget = el("button", { type: "button", onclick: () => this.forget() }, "Take back");
    main.append(el("h2", {}, "Policies"), this.sums, this.problem, this.serving.node, el("h2", {}, "Rules"), this.rules.node, this.fleet,
      el("h2", {}, "Change one"),
      el("p", { class: "row" }, el("label", { for: "policy-name" }, "Policy"), this.choice,
        el("button", { type: "button", onclick: () => this.show_diff() }, "Show difference"), check, this.check_fleet, push, this.push_fleet, forget),
      el("p", { id: "policy-hint", class: "soft" }, "The gateway tries a text before it serves: what it refuses changes nothing, and is told with file and line. " +
        "A policy that fails under traffic is taken back by itself."),
      el("label", { for: "policy-text", class: "soft" }, "Text"), this.text, this.result, this.change);
  },
  async load(name) {
    const answer = await get(`/policies/${encodeURIComponent(name)}`);
    this.loaded = answer.ok ? answer.data : "";
    this.text.value = this.loaded;
    this.change.hidden = true;
    set(this.result, answer.ok ? "" : answer.error);
  },
  show_diff() {
    const lines = diff(this.loaded, this.text.value);
    const has = lines.some(([sign]) => sign !== " ");
    this.change.replaceChildren(...(has ? lines.map(([sign, line]) =>
      el("span", { class: sign === "+" ? "add" : sign === "-" ? "del" : undefined }, `${sign} ${line}\n`)) : ["no difference"]));
    this.change.hidden = false;
  },
  async check() {
    const name = this.choice.value;
    set(this.result, `${name} is tried`);
    const answer = await call("PUT", `/policies/${encodeURIComponent(name)}?dry_run=true`, this.text.value, "application/octet-stream");
    if (!answer.ok) return set(this.result, answer.error);
    const { version, pools, changed } = answer.data;
    const where = pools.length ? `in ${pools.join(", ")}` : "nowhere: no pool asks for it";
    return set(this.result, changed ? `fine: version ${version} would serve ${where}; nothing has changed` : `fine, and what serves would not change: version ${version}, ${where}`);
  },
  async check_all() {
    const name = this.choice.value;
    set(this.result, `${name} is tried by all replicas`);
    const answer = await call("PUT", `/fleet/policies/${encodeURIComponent(name)}?dry_run=true`, this.text.value, "application/octet-stream");
    if (!answer.ok) return set(this.result, answer.error);
    const { agreed = [], pinned = [], changed } = answer.data;
    const but = pinned.length ? `; pinned, so they would not follow: ${pinned.join(", ")}` : "";
    return set(this.result, changed ? `fine: ${agreed.join(", ")} would serve it${but}; nothing has changed` : "the fleet's set has it already");
  },
  async push(path, where) {
    const name = this.choice.value;
    this.show_diff();
    const signs = diff(this.loaded, this.text.value).map(([sign]) => sign);
    const text = `${signs.filter((s) => s === "+").length} lines more, ${signs.filter((s) => s === "-").length} less, on ${where}. It serves from the next request on.`;
    if (await act(`Push ${name}`, text, "Push", "PUT", path + encodeURIComponent(name), this.text.value, "application/octet-stream")) {
      this.loaded = this.text.value;
      set(this.result, `${name} serves`);
    } else {
      set(this.result, document.getElementById("told").textContent);
    }
  },
  forget() {
    const name = this.choice.value;
    return act(`Take back ${name}`, "What was put here is forgotten; files and shipped policies of its name count again.", "Take back",
      "DELETE", `/policies/${encodeURIComponent(name)}`);
  },
  show_sets(data) {
    if (!this.sets) {
      this.sets = sets_table();
      this.fleet.append(el("h2", {}, "Fleet"), el("p", { class: "row" }, el("button", {
        type: "button",
        onclick: () => act("Roll back", "The set before this one serves on all replicas.", "Roll back", "POST", "/fleet/rollback"),
      }, "Roll back")), this.sets.node);
      this.push_fleet.hidden = this.check_fleet.hidden = false;
    }
    this.sets.update([...data.sets].reverse());
  },
  async tick(state) {
    const c = state.now.counters;
    this.sums.replaceChildren(tiles([["Policy errors", count(c.policy_errors), c.policy_errors && "bad"],
      ["Unusable answers", count(c.policy_invalid), c.policy_invalid && "warn"], ["Refused by admit", count(c.policy_rejected)],
      ["Shadow chose the same", count(c.shadow_same)], ["Shadow chose others", count(c.shadow_different), c.shadow_different && "warn"],
      ["Shadow failed", count(c.shadow_errors), c.shadow_errors && "bad"]]));
    const [serves, rules] = await Promise.all([get("/policies"), get("/rules")]);
    if (!serves.ok || !rules.ok) return;
    this.serving.update(serves.data.pools, `Generation ${serves.data.generation}${serves.data.reloading ? `, reloading: ${serves.data.step}` : ""}`);
    this.rules.update(rules.data.rules, rules.data.file ? `Rules of ${rules.data.file}, from the top` : "There is no rules file (--rules-file)");
    set(this.problem, rules.data.error ? `Rules: ${rules.data.error}` : "");
    const { pools, put, dir, shipped } = serves.data;
    const names = [...new Set([...pools.map((p) => p.asked).filter(Boolean), ...put, ...dir, ...shipped])];
    if (names.join() !== this.options) {
      const chosen = this.choice.value || names[0];
      this.options = names.join();
      this.choice.replaceChildren(...names.map((value) => el("option", { value }, value)));
      this.choice.value = names.includes(chosen) ? chosen : names[0];
      if (!this.text.value) await this.load(this.choice.value);
    }
    if (state.now.has.fleet) {
      const sets = await call("GET", "/fleet/policies");
      if (sets.ok) this.show_sets(sets.data);
      else tell(sets.error);
    }
  },
};
