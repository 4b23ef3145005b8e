/** What is wrong: findings of the rules, outliers, near-duplicates; each leads to its sequence and frame. */

import { html, useEffect, useState, Icon, Spinner, Trouble } from "./ui.js";
import { getJson } from "./api.js";
import { change, href } from "./route.js";
import { grouped, plural, short } from "./words.js";

/** Asks a job of the server again until it is done. */
function useJob(route, parameters, active) {
  const [state, setState] = useState({ value: null, error: null });
  useEffect(() => {
    if (!active) return undefined;
    const control = new AbortController();
    let timer = 0;
    setState({ value: null, error: null });
    const ask = () => getJson(route, parameters, control.signal).then((value) => {
      setState({ value, error: null });
      if (value.state === "running") timer = setTimeout(ask, 500);
    }, (error) => { if (!control.signal.aborted) setState({ value: null, error }); });
    ask();
    return () => { control.abort(); clearTimeout(timer); };
  }, [route, JSON.stringify(parameters), active]);
  return state;
}

function Progress({ job, what }) {
  if (job.error) return html`<${Trouble} error=${job.error} />`;
  if (!job.value) return html`<div class="job"><${Spinner} /> asking</div>`;
  if (job.value.state === "failed") return html`<${Trouble} error=${{ message: job.value.error?.message ?? job.value.why ?? `${what} failed`, hint: job.value.error?.hint }} />`;
  if (job.value.state !== "running") return null;
  const share = job.value.done;
  return html`<div class="job" role="status"><${Spinner} /> ${what}${share !== null && share !== undefined ? ` · ${Math.round(share * 100)} %` : ""}
    <div class="bar" aria-hidden="true"><i style=${{ width: `${share ? share * 100 : 15}%` }}></i></div></div>`;
}

const DEPTHS = [["metadata", "Metadata"], ["rows", "Rows"], ["files", "Files"], ["decode", "Frames"]];

function sequenceLink(one, filter = {}) {
  return href("seq", { ...(one.id !== undefined && one.id !== null && one.id !== "" ? { id: one.id } : { row: one.row }), f: one.step ?? null, ...filter });
}

export function ProblemsPage({ query, keys }) {
  const tab = query.get("show") ?? "findings";
  const depth = query.get("depth") ?? "files";
  keys.current = () => false;
  const tabs = [["findings", "Findings"], ["outliers", "Outliers"], ["duplicates", "Near-duplicates"]];
  return html`<main class="page problems-page"><div class="seq-head"><h1>Problems</h1>
      <div class="switch" role="group" aria-label="what is shown">${tabs.map(([name, text]) => html`<button type="button" key=${name} aria-pressed=${String(tab === name)} onClick=${() => change("problems", { show: name === "findings" ? null : name, depth: query.get("depth") })}>${text}</button>`)}</div>
      <span class="push"></span>
      ${tab === "findings" && html`<div class="switch" role="group" aria-label="how deep">${DEPTHS.map(([name, text]) => html`<button type="button" key=${name} aria-pressed=${String(depth === name)} onClick=${() => change("problems", { depth: name })}>${text}</button>`)}</div>`}</div>
    ${tab === "findings" && html`<${Findings} depth=${depth} />`}
    ${tab === "outliers" && html`<${Outliers} />`}
    ${tab === "duplicates" && html`<${Duplicates} />`}
  </main>`;
}

function Findings({ depth }) {
  const job = useJob("api/problems", { depth }, true);
  const [open, setOpen] = useState(null);
  const findings = job.value?.findings ?? [];
  const groups = new Map();
  for (const finding of findings) { if (!groups.has(finding.code)) groups.set(finding.code, []); groups.get(finding.code).push(finding); }
  const order = { error: 0, warning: 1, info: 2 };
  const sorted = [...groups].sort(([, a], [, b]) => (order[a[0].severity] ?? 3) - (order[b[0].severity] ?? 3) || b.length - a.length);
  return html`<div><${Progress} job=${job} what=${`checking ${depth}`} />
    ${job.value?.state === "done" && findings.length === 0 && html`<div class="empty good"><${Icon} name="check" size=${30} /><p>Nothing was found${depth === "decode" ? "" : " at this depth"}.</p></div>`}
    ${sorted.map(([code, list]) => {
    const count = job.value.counts?.[code] ?? list.length;
    const all = open === code;
    return html`<section class="panel rule" key=${code} data-rule=${code} aria-label=${`rule ${code}`}>
      <header><span class=${`badge ${list[0].severity === "error" ? "bad" : list[0].severity === "warning" ? "warn" : ""}`}><${Icon} name="warning" size=${12} /> ${list[0].severity}</span><h3>${code}</h3>
        <span class="rule-text">${job.value.rules?.[code] ?? ""}</span><span class="push"></span><b class="num">${grouped(count)}</b></header>
      <ul class="findings">${list.slice(0, all ? 500 : 6).map((finding, i) => html`<li key=${i}>
        ${finding.sequence_id || Number.isInteger(finding.row)
    ? html`<a data-nav href=${sequenceLink({ id: finding.sequence_id, row: finding.row, step: finding.step })}>${finding.sequence_id || `row ${finding.row}`}${finding.column ? html`<span class="quiet"> ${finding.column}</span>` : ""}${finding.step !== null && finding.step !== undefined ? html`<span class="quiet"> step ${grouped(finding.step)}</span>` : ""}</a>`
    : html`<span class="mono quiet">${finding.column ?? finding.location ?? "the dataset"}</span>`}
        <span>${finding.message}</span></li>`)}</ul>
      ${list.length > 6 && html`<button type="button" class="linkish pad" onClick=${() => setOpen(all ? null : code)}>${all ? "Fewer" : `All ${grouped(Math.min(list.length, 500))}`}</button>`}
    </section>`;
  })}
    ${job.value?.more > 0 && html`<p class="quiet">${plural(job.value.more, "more finding")}: <code>seqlake validate</code> lists them all.</p>`}</div>`;
}

function Outliers() {
  const job = useJob("api/outliers", { limit: 100 }, true);
  const list = job.value?.outliers ?? [];
  const most = Math.max(1e-9, ...list.map((one) => one.score));
  return html`<div><${Progress} job=${job} what="measuring every sequence" />
    ${job.value?.state === "done" && list.length === 0 && html`<div class="empty good"><${Icon} name="check" size=${30} /><p>${job.value.why ?? "No sequence stands out."}</p></div>`}
    ${list.length > 0 && html`<section class="panel"><div class="table-scroll"><table class="plain wide"><thead><tr><th>sequence</th><th>score</th><th>why</th></tr></thead><tbody>
      ${list.map((one) => html`<tr key=${one.row}><td><a data-nav href=${sequenceLink(one)}>${one.id || `row ${one.row}`}</a></td><td class="score"><i style=${{ width: `${(one.score / most) * 100}%` }}></i><span>${short(one.score)}</span></td>
        <td>${one.why.map((why) => html`<span class="badge" key=${why.what}>${why.what} ${short(why.value)} <span class="quiet">usually ${short(why.usual)}</span></span> `)}</td></tr>`)}</tbody></table></div></section>`}</div>`;
}

function Duplicates() {
  const job = useJob("api/duplicates", {}, true);
  const pairs = job.value?.pairs ?? [];
  return html`<div><${Progress} job=${job} what="comparing embeddings" />
    ${job.value?.state === "done" && pairs.length === 0 && html`<div class="empty"><${Icon} name="check" size=${30} /><p>${job.value.why ?? "No two sequences are nearly the same."}</p></div>`}
    ${pairs.length > 0 && html`<section class="panel"><div class="table-scroll"><table class="plain wide"><thead><tr><th>likeness</th><th>first</th><th>second</th><th></th></tr></thead><tbody>
      ${pairs.map((pair, i) => html`<tr key=${i}><td class="num">${pair.score.toFixed(4)}</td><td><a data-nav href=${sequenceLink(pair.a)}>${pair.a.id || `row ${pair.a.row}`}</a></td><td><a data-nav href=${sequenceLink(pair.b)}>${pair.b.id || `row ${pair.b.row}`}</a></td>
        <td><a data-nav class="button small" href=${href("cmp", pair.a.id && pair.b.id ? { id: [pair.a.id, pair.b.id] } : { row: [pair.a.row, pair.b.row] })}><${Icon} name="compare" size=${13} /> Compare</a></td></tr>`)}</tbody></table></div></section>`}</div>`;
}
