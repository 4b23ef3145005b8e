/** The frame around all pages: the head, the theme, keys, and which page the address means. */

import { html, render, useEffect, useRef, useState, Icon, IconButton, Spinner, Toasts, Trouble } from "./ui.js";
import { ApiError, carrier, exported, getJson, useToken, useVersion } from "./api.js";
import { followLinks, go, goBack, hasBack, here, href, onRoute } from "./route.js";
import { DatasetPage } from "./dataset.js";
import { SequencePage } from "./sequence.js";
import { ComparePage } from "./compare.js";
import { ProblemsPage } from "./problems.js";
import { SqlPage } from "./console.js";
import { VersionsPage } from "./versions.js";
import { CommitDialog, draftCount, loadLabels, useLabels } from "./labels.js";
import { KeysDialog, typing } from "./keyboard.js";
import { isDark } from "./palette.js";

const PAGES = [["", "Sequences"], ["problems", "Problems"], ["sql", "SQL"], ["versions", "Versions"]];

function savedTheme() {
  try { return localStorage.getItem("seqlake-theme"); } catch { return null; }
}

function useTheme() {
  const [theme, setTheme] = useState(() => { const saved = savedTheme(); if (saved) document.documentElement.dataset.theme = saved; return isDark() ? "dark" : "light"; });
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const follow = () => setTheme(isDark() ? "dark" : "light");
    query.addEventListener("change", follow);
    return () => query.removeEventListener("change", follow);
  }, []);
  const toggle = () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("seqlake-theme", next); } catch { /* for this page only */ }
    setTheme(next);
  };
  return [theme, toggle];
}

function Viewer() {
  const [route, setRoute] = useState(here);
  const [dataset, setDataset] = useState(null);
  const [error, setError] = useState(null);
  const [theme, toggleTheme] = useTheme();
  const [dialog, setDialog] = useState(null);
  const keys = useRef(() => false);
  const version = route.query.get("version");
  useLabels();

  const load = async () => {
    useVersion(version);
    try {
      const about = await getJson("api/dataset");
      useToken(about.post_token);
      setDataset(about);
      setError(null);
      return about;
    } catch (problem) { setError(problem instanceof ApiError ? problem : new ApiError(0, { message: String(problem) })); return null; }
  };
  useEffect(() => { load(); }, [version]);
  useEffect(() => { if (!exported) loadLabels(); }, []);
  useEffect(() => onRoute(setRoute), []);
  useEffect(() => {
    const down = (event) => {
      if (event.defaultPrevented || typing(event)) return;
      if (event.key === "?") { setDialog("keys"); event.preventDefault(); return; }
      if (event.key === "Escape" && document.activeElement !== document.body) { document.activeElement.blur(); return; }
      if (keys.current(event)) event.preventDefault();
    };
    document.addEventListener("keydown", down);
    return () => document.removeEventListener("keydown", down);
  }, []);
  useEffect(() => {
    const what = route.page === "seq" ? route.query.get("id") ?? `row ${route.query.get("row")}` : PAGES.find(([page]) => page === route.page)?.[1] ?? "Compare";
    document.title = dataset ? `${what} · ${dataset.title || dataset.name}` : "seqlake";
  }, [route, dataset]);
  /* The command may have been given a sequence or a filter: it is where an address without either begins. */
  const begun = useRef(false);
  useEffect(() => {
    if (!dataset || begun.current) return;
    begun.current = true;
    if (route.page === "" && ![...route.query.keys()].some((name) => name !== "version")) {
      if (dataset.sequence) go("seq", { id: dataset.sequence, where: dataset.where });
      else if (dataset.where) go("", { where: dataset.where });
    }
  }, [dataset]);

  const drafts = draftCount();
  const name = dataset?.title || dataset?.name || "seqlake";
  const old = dataset && !exported && version && dataset.newest !== dataset.version;
  const page = route.page;
  const shared = { dataset, query: route.query, keys, theme };
  return html`<div class="frame">
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.querySelector("main")?.setAttribute("tabindex", "-1"); document.querySelector("main")?.focus(); }}>To the content</a>
    <header class="bar">
      ${carrier && html`<${IconButton} icon="left" label="Back" disabled=${!hasBack()} onClick=${goBack} />`}
      <a data-nav class="brand" href=${href("")} title=${dataset?.root ?? ""}><svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" fill="var(--accent)" /><path d="M5 21c3.6 0 3.6-10 7.3-10s3.700 10 7.4 10S23.400 11 27 11" fill="none" stroke="#fff" stroke-width="2.6" stroke-linecap="round" /><path d="M20 6v20" stroke="#ffd166" stroke-width="2.2" stroke-linecap="round" /></svg>
        <span class="brand-name">${name}</span></a>
      ${!exported && html`<nav aria-label="pages">${PAGES.map(([to, text]) => html`<a data-nav key=${to} href=${href(to)} aria-current=${page === to || (to === "" && (page === "seq" || page === "cmp")) ? "page" : undefined}>${text}</a>`)}</nav>`}
      <span class="push"></span>
      ${old && html`<a class="badge warn" href=${href(page, { ...Object.fromEntries(route.query), version: null })} title="Back to the newest">version ${version} of ${dataset.newest}</a>`}
      ${!exported && dataset && html`<button type="button" aria-label=${`Commit labels${drafts ? ` (${drafts})` : ""}`} class=${`button small ${drafts ? "primary" : ""}`} data-drafts=${drafts} onClick=${() => setDialog("commit")}><${Icon} name="check" size=${14} /> <span class="commit-text">Commit</span>${drafts ? ` ${drafts}` : ""}</button>`}
      <${IconButton} icon="keys" label="Keys" keys="?" onClick=${() => setDialog("keys")} cls="wide-only" />
      <${IconButton} icon=${theme === "dark" ? "sun" : "moon"} label=${theme === "dark" ? "Light" : "Dark"} onClick=${toggleTheme} />
    </header>
    <div id="content" class="content">
      ${error && html`<main class="page"><${Trouble} error=${error} onRetry=${load} /></main>`}
      ${!dataset && !error && html`<main class="page wait"><${Spinner} /></main>`}
      ${dataset && !error && page === "" && html`<${DatasetPage} ...${shared} />`}
      ${dataset && !error && page === "seq" && html`<${SequencePage} ...${shared} />`}
      ${dataset && !error && page === "cmp" && html`<${ComparePage} ...${shared} />`}
      ${dataset && !error && page === "problems" && html`<${ProblemsPage} ...${shared} />`}
      ${dataset && !error && page === "sql" && html`<${SqlPage} ...${shared} />`}
      ${dataset && !error && page === "versions" && html`<${VersionsPage} ...${shared} onChanged=${load} />`}
    </div>
    ${dialog === "keys" && html`<${KeysDialog} page=${page} onClose=${() => setDialog(null)} />`}
    ${dialog === "commit" && html`<${CommitDialog} dataset=${dataset} onClose=${() => setDialog(null)} onCommitted=${() => { setDialog(null); load(); }} />`}
    <${Toasts} />
  </div>`;
}

followLinks(document);
/* A press leaves no focus behind, so that Space goes on playing and does not press again. */
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button");
  if (button && event.detail > 0 && !button.closest("dialog, .menu, form")) button.blur();
});
render(html`<${Viewer} />`, document.getElementById("app"));
