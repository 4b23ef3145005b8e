/** The filter bar: words looked for, or a condition in SQL; and the pieces that presses on histograms add to it. */

import { html, useRef, useState, useStateOf, Icon, IconButton } from "./ui.js";

/** Adds a condition that the server wrote, or takes it away if it is there. */
export function withCondition(where, condition) {
  const parts = conditionsOf(where);
  const rest = parts.filter((part) => part !== condition);
  if (rest.length === parts.length) rest.push(condition);
  return rest.join(" AND ");
}

/** The pieces between top-level ANDs; BETWEEN … AND stays whole, and so does what has an OR outside brackets. */
export function conditionsOf(where) {
  if (!where?.trim()) return [];
  const parts = [];
  let depth = 0;
  let quote = null;
  let start = 0;
  let between = 0;
  for (let i = 0; i < where.length; i += 1) {
    const c = where[i];
    if (quote) { if (c === quote) quote = null; continue; }
    if (c === "'" || c === '"') { quote = c; continue; }
    if (c === "(" || c === "[") depth += 1;
    if (c === ")" || c === "]") depth -= 1;
    if (depth || !/\s/.test(where[i - 1] ?? " ")) continue;
    const rest = where.slice(i, i + 8).toUpperCase();
    if (/^BETWEEN\s/.test(rest)) between += 1;
    if (/^OR\s/.test(rest)) return [where.trim()];
    if (/^AND\s/.test(rest)) {
      if (between) between -= 1;
      else { parts.push(where.slice(start, i).trim()); start = i + 3; }
    }
  }
  parts.push(where.slice(start).trim());
  return parts.filter(Boolean);
}

export function FilterBar({ filter, onFilter, fieldRef, columns, matched, total, ms, error }) {
  const [sql, setSql] = useState(Boolean(filter.where) && !filter.q);
  const said = (sql ? filter.where : filter.q) ?? "";
  const sent = useRef(null);
  /* What this field sent itself does not come back into it: more may have been typed since. */
  const [text, setText] = useStateOf((before) => {
    const own = before && before.keys[0] === sql && said === sent.current;
    sent.current = null;
    return own ? before.value : said;
  }, [sql, said]);
  const timer = useRef(0);
  const submit = (value) => {
    clearTimeout(timer.current);
    sent.current = value.trim();
    onFilter(sql ? { ...filter, where: sent.current || null } : { ...filter, q: sent.current || null });
  };
  const typed = (event) => {
    setText(event.target.value);
    clearTimeout(timer.current);
    /* Words are looked for while one types; a condition is only sent whole. */
    if (!sql) { const { value } = event.target; timer.current = setTimeout(() => submit(value), 300); }
  };
  const pieces = conditionsOf(filter.where);
  return html`<div class="filter">
    <form role="search" class="filter-form" onSubmit=${(event) => { event.preventDefault(); submit(text); }}>
      <div class="switch" role="group" aria-label="how to filter">
        <button type="button" aria-pressed=${String(!sql)} onClick=${() => setSql(false)}>Search</button>
        <button type="button" aria-pressed=${String(sql)} onClick=${() => setSql(true)}>SQL</button></div>
      <div class="filter-field"><${Icon} name=${sql ? "code" : "search"} />
        <input ref=${fieldRef} class=${sql ? "mono" : ""} value=${text} onInput=${typed} spellcheck="false" autocomplete="off" aria-label=${sql ? "condition in SQL" : "search"}
          aria-invalid=${String(Boolean(error))} placeholder=${sql ? example(columns) : "Words in the id and in all text columns"} />
        ${text && html`<${IconButton} icon="close" size=${14} label="Clear the filter" onClick=${() => { setText(""); submit(""); }} />`}
        <kbd>/</kbd></div>
      ${sql && html`<button type="submit" class="button primary">Filter</button>`}
    </form>
    <div class="filter-state">
      <span role="status"><b data-matched=${matched}>${matched ?? "…"}</b>${total !== null && matched !== total ? ` of ${total}` : ""} ${(total ?? matched) === "1" ? "sequence" : "sequences"}${ms ? html` <span class="quiet">in ${ms}</span>` : ""}</span>
      ${pieces.map((piece) => html`<button type="button" class="chip on" key=${piece} title="Take this condition away" onClick=${() => onFilter({ ...filter, where: withCondition(filter.where, piece) || null })}>
        <code>${piece}</code> <${Icon} name="close" size=${11} /></button>`)}
      ${filter.q && sql && html`<button type="button" class="chip on" title="Take the search away" onClick=${() => onFilter({ ...filter, q: null })}>“${filter.q}” <${Icon} name="close" size=${11} /></button>`}
    </div></div>`;
}

function example(columns) {
  const number = columns.find((column) => column.kind === "number" && column.filter);
  const text = columns.find((column) => column.kind === "text" && column.filter && column.name !== "sequence_id");
  const parts = [];
  if (number) parts.push(`${number.name} > 0`);
  if (text) parts.push(`${text.name} LIKE '%…%'`);
  return parts.join(" AND ") || "length > 100";
}
