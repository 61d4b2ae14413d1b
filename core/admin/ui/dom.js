// Nodes. Text from elsewhere becomes text and nothing else: nobody here writes markup.

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== undefined && child !== null) node.append(child);
  return node;
}

export const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);

export function set(node, text) {
  const words = String(text ?? "");
  if (node.textContent !== words) node.textContent = words;
  return node;
}

export const $ = (id) => document.getElementById(id);
export const count = (n) => (n ?? 0).toLocaleString("en");
export const ms = (n) => (n === undefined || n === null ? "" :
  n >= 10000 ? `${(n / 1000).toFixed(1)} s` : n >= 100 ? `${Math.round(n)} ms` : `${n.toFixed(1)} ms`);
export function bytes(n) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let i = 0;
  for (n = n ?? 0; n >= 1000 && i < 4; i++) n /= 1000;
  return `${n < 10 && i > 0 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

// A table whose rows stay the same nodes as long as their key does, so that focus and selection survive each second.
// columns: { head, text: row => words, num, cls: row => class } or { head, draw: (cell, row) => ... }.
export class Table {
  constructor(caption, columns, keyOf) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.rows = new Map();
    this.caption = el("caption", {}, caption);
    this.body = el("tbody");
    this.node = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", {}, this.caption,
      el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col", class: c.num && "num" }, c.head)))), this.body));
  }

  update(rows, caption) {
    if (caption !== undefined) set(this.caption, caption);
    const seen = new Set();
    rows.forEach((row, i) => {
      const key = this.keyOf(row);
      seen.add(key);
      let entry = this.rows.get(key);
      if (!entry) {
        entry = { cells: this.columns.map((c) => el("td", { class: c.num ? "num" : "text" })) };
        entry.tr = el("tr", { "data-key": key }, entry.cells);
        this.rows.set(key, entry);
      }
      this.columns.forEach((c, n) => {
        if (c.draw) c.draw(entry.cells[n], row);
        else set(entry.cells[n], c.text(row));
        if (c.cls) entry.cells[n].className = `text ${c.cls(row)}`;
      });
      if (this.body.children[i] !== entry.tr) this.body.insertBefore(entry.tr, this.body.children[i] || null);
    });
    for (const [key, entry] of this.rows) {
      if (seen.has(key)) continue;
      entry.tr.remove();
      this.rows.delete(key);
    }
  }
}

// A button made once a cell; what it is about may change.
export function button(cell, words, label, act) {
  let b = cell.querySelector("button");
  if (!b) {
    b = el("button", { type: "button", class: "small", onclick: () => b.act() });
    cell.append(b);
  }
  set(b, words);
  b.setAttribute("aria-label", label);
  b.act = act;
}

export function tiles(list) {
  return el("dl", { class: "tiles" }, list.map(([name, value, cls]) =>
    el("div", {}, el("dt", {}, name), el("dd", { class: cls }, value))));
}
