/** Versions: what each commit changed, a look at any of them, and the way back from a commit of labels. */

import { html, useLoaded, useState, Icon, Spinner, toast, Trouble } from "./ui.js";
import { getJson, post } from "./api.js";
import { change, href } from "./route.js";
import { day, grouped, plural } from "./words.js";

export function VersionsPage({ dataset, query, keys, onChanged }) {
  keys.current = () => false;
  const { value, error, again } = useLoaded((signal) => getJson("api/versions", {}, signal), [dataset.newest, dataset.version]);
  const [from, to] = [query.get("from"), query.get("to")];
  const [busy, setBusy] = useState(null);
  const [changed, setChanged] = useState(null);
  const undo = async (version) => {
    setBusy(version);
    setChanged(null);
    try {
      const done = await post("api/undo", { version });
      toast(`${plural(done.cells, "cell")} given back as version ${done.version}`);
      await onChanged();
      again();
    } catch (problem) {
      if (problem.code === "changed") setChanged({ version, message: problem.message, hint: problem.hint });
      else toast(problem.message, "error");
    } finally { setBusy(null); }
  };
  if (error) return html`<main class="page"><${Trouble} error=${error} onRetry=${again} /></main>`;
  if (!value) return html`<main class="page wait"><${Spinner} /></main>`;
  const list = value.versions ?? [];
  return html`<main class="page versions-page"><div class="seq-head"><h1>Versions</h1><span class="quiet">${value.versioned === false ? "This dataset keeps no versions" : plural(list.length, "version")}</span></div>
    ${changed && html`<${Trouble} error=${{ message: changed.message, hint: changed.hint ?? "Those cells were changed since; nothing was given back." }} />`}
    <div class="two-columns"><ol class="version-list">${list.map((one, i) => {
    const before = list[i + 1];
    const on = String(one.version) === to;
    return html`<li key=${one.version} class=${`${on ? "on" : ""} ${one.version === dataset.version ? "now" : ""}`} data-version=${one.version}>
      <div class="version-head"><b>${one.version}</b><span>${one.message || html`<span class="quiet">no message</span>`}</span>${one.tags?.map((tag) => html`<span class="badge" key=${tag}>${tag}</span>`)}
        ${one.version === dataset.version && html`<span class="badge good">shown</span>`}</div>
      <div class="version-facts quiet">${[day(one.time), one.rows !== null && one.rows !== undefined ? plural(one.rows, "sequence") : null, one.what].filter(Boolean).join(" · ")}</div>
      <div class="version-buttons">
        ${before && html`<a data-nav class="button small" href=${href("versions", { from: before.version, to: one.version })}>What changed</a>`}
        ${one.version !== dataset.version && html`<a class="button small" href=${href("", { version: one.version === dataset.newest ? null : one.version })}>Look at it</a>`}
        ${one.undo && html`<button type="button" class="button small" disabled=${busy !== null} onClick=${() => undo(one.version)}><${Icon} name="undo" size=${13} /> ${busy === one.version ? "Giving back…" : "Undo"}</button>`}</div></li>`;
  })}</ol>
    <div class="diff">${from && to ? html`<${Diff} from=${from} to=${to} />` : list.length > 1 ? html`<div class="empty"><p>Press “What changed” beside a version.</p></div>` : null}</div></div>
  </main>`;
}

function Diff({ from, to }) {
  const { value, error, loading } = useLoaded((signal) => getJson("api/diff", { from, to }, signal), [from, to]);
  if (error) return html`<${Trouble} error=${error} />`;
  if (!value || loading) return html`<div class="job"><${Spinner} /> comparing</div>`;
  const ids = (title, list, count, version) => list.length > 0 && html`<section><h3>${title} <span class="quiet">${grouped(count)}</span></h3><ul class="id-list">${list.map((one) => {
    const id = one.id ?? one;
    return html`<li key=${id}><a href=${href("seq", { id, version })}>${id}</a>${one.columns ? html` <span class="quiet">${one.columns.join(", ")}</span>` : ""}</li>`;
  })}</ul></section>`;
  const names = (title, list) => list?.length > 0 && html`<section><h3>${title}</h3><p>${list.map((name) => html`<span class="badge" key=${name}>${name}</span> `)}</p></section>`;
  const nothing = !value.rows_added && !value.rows_removed && !value.rows_changed && ![value.columns_added, value.columns_removed, value.columns_changed, value.metadata].some((list) => list?.length);
  return html`<section class="panel pad" data-diff=${`${from}-${to}`} aria-label="what changed"><header><h2>Version ${from} <${Icon} name="right" size=${14} /> ${to}</h2><span class="push"></span>
      <button type="button" class="icon-button" aria-label="Close" onClick=${() => change("versions", {})}><${Icon} name="close" /></button></header>
    <dl class="cards small">${[["Added", value.rows_added], ["Removed", value.rows_removed], ["Changed", value.rows_changed]].map(([name, n]) => html`<div class="card" key=${name}><dt>${name}</dt><dd>${grouped(n)}</dd></div>`)}</dl>
    ${nothing && html`<p class="quiet">The rows and columns are the same.</p>`}
    ${names("Columns added", value.columns_added)}${names("Columns removed", value.columns_removed)}${names("Columns of another type", value.columns_changed)}${names("Metadata", value.metadata)}
    ${ids("Changed", value.changed, value.rows_changed, to)}${ids("Added", value.added, value.rows_added, to)}${ids("Removed", value.removed, value.rows_removed, from)}
    ${value.more && html`<p class="quiet">Only the first are listed.</p>`}</section>`;
}
