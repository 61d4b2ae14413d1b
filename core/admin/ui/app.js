// The frame: log in, choose a view, follow the stream. A view is { id, title, open(main), tick(state) }.

import { $, el, set, count } from "./dom.js";
import { call, follow, get, tell } from "./net.js";
import { topology } from "./topology.js";
import { requests } from "./requests.js";
import { why } from "./why.js";
import { policies } from "./policies.js";
import { fleet, rooms, tenants } from "./tables.js";

const views = [topology, requests, why, policies, rooms, fleet, tenants];
const state = { now: undefined, before: undefined, workers: { rows: [], total: 0 }, requests: { rows: [], total: 0 } };
let shown, stream;

function show() {
  const [id, ...rest] = location.hash.slice(1).split("/");
  const view = views.find((v) => v.id === id) || views[0];
  for (const a of $("tabs").querySelectorAll("a"))
    if (a.hash === `#${view.id}`) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  document.title = `${view.title} - Baton`;
  shown = view;
  $("main").replaceChildren();
  view.open($("main"), decodeURIComponent(rest.join("/")));
  if (state.now) view.tick(state);
}

function tick() {
  if (!state.now || !shown) return;
  const { version, replica, draining } = state.now;
  set($("who"), `${version}${replica ? ` · ${replica}` : ""}${draining ? " · shutting down" : ""}`);
  shown.tick(state);
}

function onLink(words) {
  set($("link"), words === "live" && state.now ? `live · ${count(state.now.live)} requests` : words);
}

const handlers = {
  now(data) {
    state.before = state.now;
    state.now = data;
    const late = data.late_loops ? ` · ${data.late_loops} of ${data.loops} event threads are late` : "";
    set($("link"), `live · ${count(data.live)} requests${late}`);
  },
  workers(data) { state.workers = data; },
  requests(data) { state.requests = data; state.at = Date.now(); },
};

function begin() {
  if (!$("tabs").children.length)
    for (const v of views) $("tabs").append(el("li", {}, el("a", { href: `#${v.id}` }, v.title)));
  addEventListener("hashchange", show);
  show();
  stream = follow(handlers, onLink);
  clearInterval(begin.timer);
  begin.timer = setInterval(() => { if (!document.hidden) tick(); }, 1000);
}

function askForKey() {
  shown = undefined;
  if (stream) stream.stop("logged out");
  clearInterval(begin.timer);
  removeEventListener("hashchange", show);
  $("tabs").replaceChildren();
  $("logout").hidden = true;
  set($("who"), "");
  if ($("key")) return;
  const key = el("input", { id: "key", type: "password", autocomplete: "current-password", required: true });
  const problem = el("p", { role: "alert", class: "bad" });
  $("main").replaceChildren(el("form", {
    class: "login",
    async onsubmit(e) {
      e.preventDefault();
      const answer = await fetch(`${location.pathname.replace(/\/ui\/?$/, "")}/ui/login`,
        { method: "POST", headers: { Authorization: `Bearer ${key.value}` } });
      if (answer.ok) location.reload();
      else set(problem, answer.status === 401 ? "This is not the admin key." : `The gateway answered ${answer.status}.`);
    },
  }, el("h2", {}, "Log in"),
  el("p", {}, "This gateway asks for its admin key (--admin-api-key). The page keeps no key: it gets a cookie for an hour."),
  el("label", { for: "key" }, "Admin key"), key, el("button", { type: "submit" }, "Log in"), problem));
  key.focus();
}

$("logout").addEventListener("click", async () => {
  await call("POST", "/ui/logout");
  askForKey();
});
addEventListener("logged-out", askForKey);

const session = await get("/ui/session");
if (!session.ok) tell(session.error);
else if (!session.data.authorized) askForKey();
else {
  $("logout").hidden = !session.data.by_cookie;
  begin();
}
