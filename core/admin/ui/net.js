// Calls of the admin API, and the stream of what has changed. Both are of this origin; the cookie goes with them.

import { $, set } from "./dom.js";

export const root = location.pathname.replace(/\/ui\/?$/, "");

// { ok, status, data (JSON or text), error (one line) }
export async function call(method, path, body, type) {
  try {
    const headers = body === undefined ? {} : { "Content-Type": type || "application/json" };
    const answer = await fetch(root + path, { method, body, headers, cache: "no-store" });
    const text = await answer.text();
    let data = text;
    if ((answer.headers.get("content-type") || "").startsWith("application/json")) data = JSON.parse(text);
    const error = answer.ok ? undefined : data?.error?.message || `${answer.status} ${text}`;
    if (answer.status === 401) dispatchEvent(new Event("logged-out"));
    return { ok: answer.ok, status: answer.status, data, error };
  } catch (problem) {
    return { ok: false, status: 0, error: `the gateway does not answer: ${problem.message}` };
  }
}

export const get = (path) => call("GET", path);

export function tell(words) {
  set($("told"), words);
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => set($("told"), ""), 12000);
}

// Asks first; then does it and tells what came of it. True: it was done.
export async function act(title, text, verb, method, path, body, type) {
  if (!(await confirm(title, text, verb))) return false;
  const answer = await call(method, path, body, type);
  tell(answer.ok ? `${title}: done` : `${title}: ${answer.error}`);
  return answer.ok;
}

function confirm(title, text, verb) {
  const box = $("confirm");
  set($("confirm-title"), title);
  set($("confirm-text"), text);
  set($("confirm-yes"), verb);
  return new Promise((resolve) => {
    const end = (yes) => { box.close(); resolve(yes); };
    $("confirm-yes").onclick = () => end(true);
    $("confirm-no").onclick = () => end(false);
    box.oncancel = () => resolve(false);
    box.showModal();
    $("confirm-no").focus();
  });
}

// A hidden page costs the gateway nothing: its stream is closed until it is seen again.
export function follow(handlers, onLink) {
  let source, timer;
  const names = Object.keys(handlers);
  const stop = (words) => {
    clearTimeout(timer);
    if (source) source.close();
    source = undefined;
    onLink(words);
  };
  const start = () => {
    if (source || document.hidden) return;
    source = new EventSource(`${root}/ui/events`);
    for (const name of names) source.addEventListener(name, (e) => handlers[name](JSON.parse(e.data)));
    source.onopen = () => onLink("live");
    source.onerror = () => {
      stop("connection lost, trying again");
      timer = setTimeout(async () => {
        const answer = await get("/ui/session");
        if (answer.ok && !answer.data.authorized) dispatchEvent(new Event("logged-out"));
        else start();
      }, 1500);
    };
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? stop("paused") : start()));
  start();
  return { start, stop };
}
