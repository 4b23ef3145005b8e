/** SQL over the dataset: a field, a table, and the way back to the sequences that were found. */

import { html, useEffect, useLoaded, useRef, useState, copyText, Icon, Spinner, Trouble } from "./ui.js";
import { getJson } from "./api.js";
import { change, go, href } from "./route.js";
import { cell, grouped, plural, quoted } from "./words.js";

export function SqlPage({ dataset, query, keys }) {
  const asked = query.get("q") ?? "";
  const [text, setText] = useState(asked || start(dataset));
  const [plan, setPlan] = useState(null);
  const area = useRef(null);
  useEffect(() => { if (asked) setText(asked); setPlan(null); }, [asked]);
  const { value, error, loading } = useLoaded((signal) => (asked ? getJson("api/sql", { q: asked, limit: 1000 }, signal) : null), [asked, dataset.version]);
  const run = () => { if (text.trim()) change("sql", { q: text.trim() }); };
  const explain = async () => {
    try { const reply = await getJson("api/sql", { q: text.trim(), explain: 1 }); setPlan(typeof reply === "string" ? reply : reply.plan ?? reply.explain ?? JSON.stringify(reply, null, 2)); } catch (problem) { setPlan(problem.message); }
  };
  keys.current = (event) => { if (event.key === "/") { area.current?.focus(); return true; } return false; };
  const examples = samples(dataset);
  const id = value?.columns?.findIndex((column) => column.name === dataset.id_column) ?? -1;
  return html`<main class="page sql-page"><div class="seq-head"><h1>SQL</h1><span class="quiet">one SELECT over <code>dataset</code>, read only</span></div>
    <div class="sql-layout"><div class="sql-main">
      <form onSubmit=${(event) => { event.preventDefault(); run(); }} class="sql-form">
        <textarea ref=${area} class="mono" rows=${Math.max(4, Math.min(14, text.split("\n").length + 1))} value=${text} aria-label="SQL" spellcheck="false" onInput=${(event) => setText(event.target.value)}
          onKeyDown=${(event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } }}></textarea>
        <div class="row-form"><button type="submit" class="button primary"><${Icon} name="play" size=${13} /> Run</button><kbd>Ctrl Enter</kbd>
          <button type="button" class="button" onClick=${explain}>Explain</button><span class="push"></span>
          ${value?.where && html`<button type="button" class="button" onClick=${() => go("", { where: value.where })}><${Icon} name="search" size=${13} /> Use as filter (${grouped(value.ids?.length ?? value.rows.length)})</button>`}
          ${value && html`<button type="button" class="button" onClick=${() => copyText([value.columns.map((column) => column.name), ...value.rows].map((row) => row.map((one) => cell(one) ?? "").join("\t")).join("\n"), "Table copied")}>Copy table</button>`}</div></form>
      ${plan && html`<pre class="plan">${plan}</pre>`}
      ${error && html`<${Trouble} error=${error} />`}
      ${asked && loading && html`<div class="job"><${Spinner} /> asking</div>`}
      ${value && html`<p class="quiet">${plural(value.rows.length, "row")}${value.truncated ? " – cut off, there are more" : ""} in ${Math.max(1, Math.round(value.ms))} ms</p>
        <div class="table-holder"><table class="data compact"><thead><tr>${value.columns.map((column) => html`<th key=${column.name} title=${column.type}>${column.name}<small>${column.type}</small></th>`)}</tr></thead>
        <tbody>${value.rows.map((row, i) => html`<tr key=${i}>${row.map((one, c) => {
    const shown = cell(one);
    return html`<td key=${c} class=${typeof one === "number" ? "num" : ""}>${shown === null ? html`<span class="null">null</span>` : c === id ? html`<a data-nav href=${href("seq", { id: one, where: value.where })}>${shown}</a>` : html`<span class="cell" title=${shown}>${shown}</span>`}</td>`;
  })}</tr>`)}</tbody></table></div>`}
    </div>
    <aside class="sql-side"><h3>Columns</h3><ul class="column-list">${dataset.columns.slice(0, 200).map((column) => html`<li key=${column.name}><button type="button" class="linkish" title=${column.type} onClick=${() => insert(area.current, quoted(column.name), setText)}>${column.name}</button><span class="quiet">${column.kind}</span></li>`)}</ul>
      <h3>To begin with</h3>${examples.map((one) => html`<button type="button" class="example mono" key=${one} onClick=${() => { setText(one); change("sql", { q: one }); }}>${one}</button>`)}</aside></div>
  </main>`;
}

function insert(area, word, setText) {
  const { selectionStart: from, selectionEnd: to, value } = area;
  setText(`${value.slice(0, from)}${word}${value.slice(to)}`);
  setTimeout(() => { area.focus(); area.setSelectionRange(from + word.length, from + word.length); }, 0);
}

function start(dataset) { return samples(dataset)[0]; }

function samples(dataset) {
  const id = quoted(dataset.id_column ?? "sequence_id");
  const text = dataset.columns.find((column) => column.kind === "text" && column.name !== dataset.id_column);
  const number = dataset.columns.find((column) => column.kind === "number");
  const signal = dataset.columns.find((column) => column.kind === "signal");
  return [
    text ? `SELECT ${quoted(text.name)}, count(*) AS sequences\nFROM dataset\nGROUP BY 1 ORDER BY 2 DESC` : `SELECT count(*) AS sequences FROM dataset`,
    number ? `SELECT ${id}, ${quoted(number.name)}\nFROM dataset\nORDER BY ${quoted(number.name)} DESC LIMIT 20` : null,
    signal ? `SELECT ${id}, len(${quoted(signal.name)}) AS steps\nFROM dataset\nORDER BY steps DESC LIMIT 20` : null,
  ].filter(Boolean);
}
