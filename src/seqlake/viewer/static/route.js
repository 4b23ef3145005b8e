/** The address of the page as a value, and back. In an export the page stands in the hash, in a notebook in memory alone. */

import { carrier, exported } from "./api.js";

const PAGES = new Set(["", "seq", "cmp", "problems", "sql", "versions"]);
const listeners = new Set();
const inside = { at: globalThis.seqlakeStart ?? "#/", before: [] };

/** `{page, query}`: which page is shown, and its URLSearchParams. */
export function here() {
  if (exported || carrier) {
    const [page, query = ""] = (carrier ? inside.at : location.hash).replace(/^#\/?/, "").split("?");
    return { page: PAGES.has(page) ? page : "", query: new URLSearchParams(query) };
  }
  const page = location.pathname.split("/").pop();
  return { page: PAGES.has(page) ? page : "", query: new URLSearchParams(location.search) };
}

/** The address of a page; empty parameters are left out, lists are repeated. */
export function href(page, parameters = {}) {
  const query = new URLSearchParams();
  const version = here().query.get("version");
  const all = version && !("version" in parameters) ? { ...parameters, version } : parameters;
  for (const [name, value] of Object.entries(all)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "" && one !== false) query.append(name, one === true ? "1" : String(one));
    }
  }
  /* `URLSearchParams` writes spaces as "+", which is hard to read in a link that is sent to a person. */
  const text = query.toString().replaceAll("+", "%20").replaceAll("%2C", ",").replaceAll("%3A", ":");
  const path = `${page}${text ? `?${text}` : ""}`;
  if (exported || carrier) return `#/${path}`;
  return path === "" || path.startsWith("?") ? `./${path}` : path;
}

function turnTo(address, { kept = false } = {}) {
  if (!carrier) { history[kept ? "replaceState" : "pushState"](null, "", address); return; }
  if (!kept) inside.before.push(inside.at);
  inside.at = address;
}

/** Back to the page before, where the browser's own button does not lead there. */
export function goBack() {
  inside.at = inside.before.pop() ?? inside.at;
  for (const listener of listeners) listener();
}

export function hasBack() { return inside.before.length > 0; }

export function go(page, parameters) {
  turnTo(href(page, parameters));
  scrollTo(0, 0);
  for (const listener of listeners) listener();
}

/** Changes the address without a step in the history: what the page shows is the same. */
export function replace(page, parameters) {
  const next = href(page, parameters);
  const now = carrier ? inside.at : exported ? location.hash : `${location.pathname.split("/").pop()}${location.search}`;
  if (next !== now) turnTo(next, { kept: true });
}

/** Like `replace`, and the page looks again. */
export function change(page, parameters) {
  turnTo(href(page, parameters));
  for (const listener of listeners) listener();
}

export function onRoute(listener) {
  const once = () => listener(here());
  listeners.add(once);
  addEventListener("popstate", once);
  addEventListener("hashchange", once);
  return () => { listeners.delete(once); removeEventListener("popstate", once); removeEventListener("hashchange", once); };
}

/** The filter that a link carries, so that next and previous keep their meaning. */
export function filterOf(query) {
  return { where: query.get("where"), q: query.get("q"), order: query.get("order"), desc: query.get("desc") };
}

/** Links inside the page change it without loading it again. */
export function followLinks(root) {
  root.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-nav]");
    if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    turnTo(link.getAttribute("href"));
    scrollTo(0, 0);
    for (const listener of listeners) listener();
  });
}
