/** The page of the dataset: what it is, a filter, and a table of its sequences. */

import { html, useEffect, useLoaded, useMemo, useRef, useSeen, useState, useStateOf, Copyable, Dialog, Icon, IconButton, Menu, Spinner, Trouble } from "./ui.js";
import { exported, getJson, queued, sourceOf } from "./api.js";
import { change, filterOf, go, href } from "./route.js";
import { FilterBar, withCondition } from "./filter.js";
import { Histogram } from "./histogram.js";
import { draftOf, toggleFlag, useLabels } from "./labels.js";
import { dimColour } from "./palette.js";
import { bytes, cell, day, grouped, hours, plural, rate } from "./words.js";

const PAGE = 50;
const SCALARS = new Set(["text", "number", "boolean", "time"]);
const FILMS = new Set(["video", "depth", "frames"]);
const STRIPS = new Set([...FILMS, "clouds", "points"]);
const FILES = new Set(["video", "depth", "image", "audio", "file", "points", "clouds"]);
export const KIND_ICONS = {
  text: "text", number: "hash", boolean: "check", time: "time", signal: "wave", embedding: "grid", video: "film", depth: "film", image: "image", frames: "film",
  audio: "sound", points: "cube", clouds: "cube", scene: "cube", file: "file", other: "more",
};

function Cards({ dataset }) {
  const cards = [
    ["Sequences", grouped(dataset.rows)],
    dataset.hours !== null && dataset.hours !== undefined ? ["Length", hours(dataset.hours), dataset.hours_of ? `from ${dataset.hours_of}` : null] : null,
    ["Size", bytes(dataset.bytes), "the tables, without the files they name"],
    ["Columns", grouped(dataset.columns.length)],
    dataset.shards ? ["Shards", grouped(dataset.shards)] : null,
    dataset.clock ? ["Clock", typeof dataset.clock === "number" ? rate(dataset.clock) : dataset.clock.hz ? rate(dataset.clock.hz) : String(dataset.clock)] : null,
    dataset.version !== null && dataset.version !== undefined ? ["Version", `${dataset.version}`, dataset.versions ? `of ${dataset.versions}` : null] : null,
  ].filter(Boolean);
  return html`<dl class="cards">${cards.map(([name, value, title]) => html`<div class="card" key=${name} title=${title ?? ""}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Loads something for all rows of the page by one request, when the first cell of the column comes into view. */
function useColumn(load, keys, seen) {
  const { value, error } = useLoaded((signal) => (seen ? queued(() => (signal.aborted ? Promise.resolve(null) : load(signal))) : null), [...keys, seen]);
  return { value, error };
}

function Sparkline({ data, label }) {
  if (!data || data.length === null) return html`<span class="quiet">–</span>`;
  const points = data.low?.[0]?.length ?? 0;
  let low = Infinity;
  let high = -Infinity;
  for (const d of data.low ?? []) for (const x of d) if (x !== null && x < low) low = x;
  for (const d of data.high ?? []) for (const x of d) if (x !== null && x > high) high = x;
  const [wide, tall] = [112, 26];
  const x = (i) => (points > 1 ? (i / (points - 1)) * wide : wide / 2);
  const y = (v) => (high > low ? tall - 2 - ((v - low) / (high - low)) * (tall - 4) : tall / 2);
  const path = (d) => {
    let out = "";
    let pen = "M";
    for (let i = 0; i < points; i += 1) {
      const [a, b] = [data.low[d][i], data.high[d][i]];
      if (a === null || b === null) { pen = "M"; continue; }
      out += `${pen}${x(i).toFixed(1)} ${y(a).toFixed(1)}`;
      if (b !== a) out += `L${x(i).toFixed(1)} ${y(b).toFixed(1)}`;
      pen = "L";
    }
    return out;
  };
  return html`<span class="sparkline" title=${label}><svg width=${wide} height=${tall} viewBox=${`0 0 ${wide} ${tall}`} role="img" aria-label=${label}>
    ${(data.low ?? []).map((_, d) => html`<path key=${d} d=${path(d)} fill="none" stroke=${dimColour(d)} stroke-width="1.2" stroke-linejoin="round" />`)}</svg>
    <small>${grouped(data.length)}</small></span>`;
}

/** Six frames in one picture; while the pointer moves over it, the nearest is shown larger. */
function Strip({ row, col, id, state }) {
  const ref = useRef(null);
  const seen = useSeen(ref, "200px");
  const [error, setError] = useState(false);
  const there = !state || state.state === "present" || state.state === "inline";
  const { value: source } = useLoaded(() => (seen && there ? sourceOf("api/strip", { row, col, n: 4, height: 88 }).catch(() => { setError(true); return null; }) : null), [row, col, seen, there]);
  if ((state && state.state !== "present" && state.state !== "inline") || error) return html`<${Dot} file=${state ?? { state: error ? "undecodable" : "unknown" }} name=${col} />`;
  return html`<span class="strip" ref=${ref}>${source && html`<img loading="lazy" alt=${`frames of ${col} in ${id}`} height="44" src=${source} onError=${() => setError(true)} />`}</span>`;
}

const DOTS = { present: "good", inline: "good", null: "none", missing: "bad", outside: "bad", failed: "bad", undecodable: "bad", web: "off", unknown: "off" };

function Dot({ file, name }) {
  const words = { present: "there", inline: "in the table", null: "no file", missing: "missing", outside: "outside the root", web: "on the web", failed: "failed", undecodable: "cannot be decoded", unknown: "not looked at" };
  const title = [`${name}: ${words[file.state] ?? file.state}`, file.bytes !== undefined ? bytes(file.bytes) : null, file.path, file.why].filter(Boolean).join("\n");
  return html`<span class=${`dot ${DOTS[file.state] ?? "off"}`} title=${title} data-file-state=${file.state}><i></i>${DOTS[file.state] === "bad" ? words[file.state] : file.bytes !== undefined ? bytes(file.bytes) : words[file.state] ?? ""}</span>`;
}

/** What is shown at first: the first film, scalars that are not the id, a few signals, then the other files as dots. */
function firstColumns(dataset) {
  const of = (test) => dataset.columns.filter(test).map((column) => column.name);
  const film = [...of((column) => FILMS.has(column.kind)), ...of((column) => STRIPS.has(column.kind))].slice(0, 1);
  const scalars = of((column) => SCALARS.has(column.kind) && column.name !== dataset.id_column).slice(0, 8);
  const signals = of((column) => column.kind === "signal").slice(0, 4);
  const files = of((column) => FILES.has(column.kind) && !film.includes(column.name)).slice(0, 4);
  return [...film, ...scalars, ...signals, ...files];
}

/* Ids differ by their ends: what is too long loses its middle. */
function shortened(id) {
  if (id.length <= 28) return id;
  const letters = [...id];
  return html`<span class="id-start">${letters.slice(0, -8).join("")}</span><span>${letters.slice(-8).join("")}</span>`;
}

function Row({ row, columns, filter, spark, files, picked, onPick, current, labels }) {
  const id = row.id;
  const flagged = draftOf(id).flag ?? row.values[labels.flag] ?? false;
  const link = href("seq", { ...keyOf(row), ...filter });
  const open = (event) => {
    if (event.target.closest("a,button,input,label,.sparkline")) return;
    go("seq", { ...keyOf(row), ...filter });
  };
  return html`<tr onClick=${open} data-row=${row.row} class=${`${picked ? "picked" : ""} ${current ? "current" : ""}`}>
    <td class="pick"><label><span class="sr">compare ${id}</span><input type="checkbox" checked=${picked} onChange=${onPick} /></label></td>
    ${!exported && html`<td class="flag"><${IconButton} icon="flag" label=${`Flag ${id}`} pressed=${Boolean(flagged)} cls=${flagged ? "flagged" : ""} onClick=${() => toggleFlag(id, row.values[labels.flag])} /></td>`}
    <th scope="row"><a data-nav href=${link} title=${id} class=${id.length > 28 ? "long" : ""}>${shortened(id) || `row ${row.row}`}</a></th>
    ${columns.map((column) => {
    const key = column.name;
    if (SCALARS.has(column.kind)) {
      const text = cell(row.values[key]);
      return html`<td key=${key} class=${column.kind === "number" ? "num" : ""}>${text === null ? html`<span class="null">null</span>` : html`<span class="cell" title=${text}>${text}</span>`}</td>`;
    }
    if (column.kind === "signal") {
      const data = row.sparklines?.[key] ?? spark[key]?.rows?.[row.row];
      return html`<td key=${key} class="spark">${data ? html`<${Sparkline} data=${data} label=${`${key}: ${data.length ?? "no"} steps`} />`
        : html`<span class="quiet">${row.lengths?.[key] !== undefined && row.lengths[key] !== null ? grouped(row.lengths[key]) : ""}</span>`}</td>`;
    }
    const state = row.files?.[key] ?? files?.rows?.[row.row]?.[key];
    if (STRIPS.has(column.kind) && column.strip) return html`<td key=${key} class="strip-cell"><${Strip} row=${row.row} col=${key} id=${id} state=${state} /></td>`;
    if (FILES.has(column.kind) || FILMS.has(column.kind)) return html`<td key=${key}>${state ? html`<${Dot} file=${state} name=${key} />` : html`<span class="quiet">…</span>`}</td>`;
    const text = cell(row.values[key]);
    return html`<td key=${key}><span class="cell quiet" title=${text ?? ""}>${text ?? column.type}</span></td>`;
  })}</tr>`;
}

export function keyOf(row) {
  return row.id !== "" && row.id !== null && row.id !== undefined && !row.twice ? { id: row.id } : { row: row.row };
}

function SparkLoader({ rows, col, onValue }) {
  const { value } = useColumn((signal) => getJson("api/sparklines", { rows: rows.join(","), col }, signal), [rows.join(","), col], true);
  useEffect(() => { if (value) onValue(col, value); }, [value]);
  return null;
}

export function DatasetPage({ dataset, query, keys }) {
  const filter = useMemo(() => filterOf(query), [query.toString()]);
  const page = Math.max(0, Number(query.get("page") ?? 0) || 0);
  const [chosen, setChosen] = useState(() => stored(dataset));
  const [picked, setPicked] = useState([]);
  const field = useRef(null);
  useLabels();
  const labels = { flag: dataset.label_columns?.find((name) => name === "flag") };
  const columns = useMemo(() => {
    const films = dataset.columns.filter((column) => STRIPS.has(column.kind)).map((column) => column.name);
    const strip = chosen.find((name) => films.includes(name));
    return chosen.map((name) => dataset.columns.find((column) => column.name === name)).filter(Boolean).map((column) => ({ ...column, strip: column.name === strip }));
  }, [chosen, dataset]);
  const asked = useLoaded((signal) => getRows({ ...filter, offset: page * PAGE, limit: PAGE }, signal), [filter, page, dataset.version]);
  const rows = asked.value?.rows ?? [];
  const numbers = rows.map((row) => row.row);
  const { value: files } = useLoaded((signal) => (numbers.length && columns.some((column) => FILES.has(column.kind)) && !exported
    ? queued(() => getJson("api/files", { rows: numbers.join(",") }, signal)) : null), [numbers.join(","), columns]);
  const [spark, setSpark] = useStateOf(() => ({}), [numbers.join(",")]);
  const [current, setCurrent] = useStateOf(() => -1, [numbers.join(",")]);

  const setFilter = (next) => change("", { ...next });
  const sortBy = (column) => {
    if (!column.sort) return;
    const next = filter.order !== column.name ? { order: column.name, desc: null } : filter.desc ? { order: null, desc: null } : { order: column.name, desc: "1" };
    setFilter({ ...filter, ...next });
  };
  const pages = asked.value ? Math.max(1, Math.ceil(asked.value.matched / PAGE)) : 1;
  const turn = (to) => { change("", { ...filter, page: to || null }); document.querySelector(".table-holder")?.scrollTo(0, 0); };
  const pick = (row) => setPicked((old) => (old.some((one) => one.row === row.row) ? old.filter((one) => one.row !== row.row) : [...old, row].slice(-4)));
  const compare = () => go("cmp", { ...(picked.every((row) => "id" in keyOf(row)) ? { id: picked.map((row) => row.id) } : { row: picked.map((row) => row.row) }), ...filter });

  keys.current = (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (event.key === "/") { field.current?.focus(); field.current?.select(); return true; }
    if (move) {
      const next = Math.max(0, Math.min(rows.length - 1, current + move));
      setCurrent(next);
      document.querySelectorAll("tbody tr")[next]?.scrollIntoView({ block: "nearest" });
      return true;
    }
    if (current >= 0 && rows[current]) {
      if (event.key === "Enter") { go("seq", { ...keyOf(rows[current]), ...filter }); return true; }
      if (event.key === "f") { toggleFlag(rows[current].id, rows[current].values[labels.flag]); return true; }
      if (event.key === "c") { pick(rows[current]); return true; }
    }
    if (event.key === "PageDown" && event.shiftKey) { turn(Math.min(pages - 1, page + 1)); return true; }
    if (event.key === "PageUp" && event.shiftKey) { turn(Math.max(0, page - 1)); return true; }
    return false;
  };

  const error = asked.error;
  const [about, setAbout] = useState(false);
  return html`<main class="page dataset-page">
    <section class="intro">
      <div class="intro-text"><h1>${dataset.title || dataset.name}</h1>
        ${dataset.description && html`<p class="description">${dataset.description}</p>`}
        <p class="quiet mono root" title=${dataset.root}>${dataset.root}<span class="badge">${dataset.format}</span>${!dataset.writable && !exported && html`<span class="badge" title=${dataset.read_only_why ?? ""}>read only</span>`}
          <button type="button" class="linkish" onClick=${() => setAbout(true)}>columns and metadata</button></p></div>
      <${Cards} dataset=${dataset} />
    </section>
    <div class="table-tools">
      ${exported ? html`<p class="filter-state"><b>${plural(rows.length ? asked.value.matched : dataset.rows, "sequence")}</b></p>`
    : html`<${FilterBar} filter=${filter} onFilter=${setFilter} fieldRef=${field} columns=${dataset.columns} matched=${asked.value ? grouped(asked.value.matched) : null}
        total=${asked.value ? grouped(asked.value.total) : null} ms=${asked.value?.ms !== undefined ? `${Math.max(1, Math.round(asked.value.ms))} ms` : ""} error=${error} />`}
      <div class="table-buttons">
        ${picked.length > 0 && html`<button type="button" class="button ${picked.length > 1 ? "primary" : ""}" disabled=${picked.length < 2} onClick=${compare}><${Icon} name="compare" /> Compare ${picked.length}</button>
          <${IconButton} icon="close" label="Pick none" onClick=${() => setPicked([])} />`}
        <${ColumnMenu} dataset=${dataset} chosen=${chosen} onChosen=${(next) => { setChosen(next); store(dataset, next); }} /></div>
    </div>
    ${error && html`<${Trouble} error=${error} onRetry=${error.status === 0 || error.status >= 500 ? asked.again : null} />`}
    ${columns.filter((column) => column.kind === "signal" && numbers.length && !exported).map((column) => html`
      <${SparkLoader} key=${column.name} rows=${numbers} col=${column.name} onValue=${(name, value) => setSpark((old) => ({ ...old, [name]: value }))} />`)}
    <div class="table-holder" tabindex="0" role="region" aria-label="sequences" aria-busy=${String(asked.loading)}>
      <table class="data"><thead><tr>
        <th class="pick"><span class="sr">compare</span></th>${!exported && html`<th class="flag"><span class="sr">flag</span></th>`}
        <th class="id-head"><${Head} column=${dataset.columns.find((column) => column.name === dataset.id_column) ?? { name: dataset.id_column ?? "row", kind: "text" }} filter=${filter} onSort=${sortBy} /></th>
        ${columns.map((column) => html`<th key=${column.name} class=${`kind-${column.kind}`} aria-sort=${filter.order === column.name ? (filter.desc ? "descending" : "ascending") : undefined}>
          <${Head} column=${column} filter=${filter} onSort=${sortBy} />
          ${SCALARS.has(column.kind) && column.filter && !exported && html`<${Histogram} col=${column.name} filter=${filter} ready=${Boolean(asked.value ?? asked.error)} onPress=${(where) => setFilter({ ...filter, where: withCondition(filter.where, where) || null })} />`}
          ${column.kind === "signal" && !exported && html`<${Histogram} col=${`length:${column.name}`} filter=${filter} ready=${Boolean(asked.value ?? asked.error)} onPress=${(where) => setFilter({ ...filter, where: withCondition(filter.where, where) || null })} />`}
        </th>`)}</tr></thead>
        <tbody>${rows.map((row, i) => html`<${Row} key=${row.row} row=${row} columns=${columns} filter=${filter} spark=${spark} files=${files} labels=${labels}
          picked=${picked.some((one) => one.row === row.row)} onPick=${() => pick(row)} current=${i === current} />`)}</tbody></table>
      ${asked.loading && !rows.length && html`<div class="table-wait"><${Spinner} /></div>`}
      ${asked.value && !rows.length && html`<div class="empty"><${Icon} name="search" size=${28} /><p>No sequence matches.</p>
        <button type="button" class="button" onClick=${() => setFilter({ order: filter.order, desc: filter.desc })}>Clear the filter</button></div>`}
    </div>
    <nav class="pager" aria-label="pages">
      <button type="button" class="button small" disabled=${page === 0} onClick=${() => turn(0)} aria-label="First page"><${Icon} name="first" size=${13} /></button>
      <button type="button" class="button small" disabled=${page === 0} onClick=${() => turn(page - 1)}><${Icon} name="left" size=${13} /> Previous</button>
      <label>page <input key=${page} type="number" min="1" max=${pages} value=${page + 1} onChange=${(event) => { const n = Number(event.target.value); if (n >= 1 && n <= pages) turn(n - 1); }} /> of ${grouped(pages)}</label>
      <button type="button" class="button small" disabled=${page >= pages - 1} onClick=${() => turn(page + 1)}>Next <${Icon} name="right" size=${13} /></button>
      <button type="button" class="button small" disabled=${page >= pages - 1} onClick=${() => turn(pages - 1)} aria-label="Last page"><${Icon} name="last" size=${13} /></button>
    </nav>
    ${about && html`<${About} dataset=${dataset} onClose=${() => setAbout(false)} />`}
  </main>`;
}

function Head({ column, filter, onSort }) {
  const sorted = filter.order === column.name;
  const inside = html`<${Icon} name=${KIND_ICONS[column.kind] ?? "more"} size=${13} /><span>${column.name}</span>${sorted && html`<${Icon} name=${filter.desc ? "down" : "up"} size=${13} />`}`;
  return column.sort
    ? html`<button type="button" class=${`column-head ${sorted ? "sorted" : ""}`} title=${`${column.name}: ${column.type ?? ""}\nPress to sort`} onClick=${() => onSort(column)}>${inside}</button>`
    : html`<span class="column-head" title=${`${column.name}: ${column.type ?? ""}`}>${inside}</span>`;
}

function ColumnMenu({ dataset, chosen, onChosen }) {
  const [word, setWord] = useState("");
  const list = dataset.columns.filter((column) => column.name !== dataset.id_column && column.name.toLowerCase().includes(word.toLowerCase()));
  const toggle = (name) => onChosen(chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]);
  return html`<${Menu} icon="columns" label="Columns" text="Columns">
    <input class="menu-search" placeholder="Find a column" value=${word} onInput=${(event) => setWord(event.target.value)} aria-label="find a column" />
    <div class="menu-scroll">${list.slice(0, 300).map((column) => html`<label class="menu-check" key=${column.name}>
      <input type="checkbox" checked=${chosen.includes(column.name)} onChange=${() => toggle(column.name)} /><${Icon} name=${KIND_ICONS[column.kind] ?? "more"} size=${13} /> <span>${column.name}</span><i>${column.kind}</i></label>`)}</div>
    <button type="button" class="menu-item" onClick=${() => onChosen(firstColumns(dataset))}>As at first</button><//>`;
}

function place(dataset) { return `seqlake-columns:${dataset.root}`; }

function stored(dataset) {
  try {
    const names = JSON.parse(localStorage.getItem(place(dataset)) ?? "null");
    if (Array.isArray(names) && names.some((name) => dataset.columns.some((column) => column.name === name))) return names;
  } catch { /* without a store, the columns are as at first */ }
  return firstColumns(dataset);
}

function store(dataset, names) {
  try { localStorage.setItem(place(dataset), JSON.stringify(names)); } catch { /* kept for this page only */ }
}

/* Numbers as numbers, all else as text; what is empty comes last. */
function compared(x, y, direction) {
  if (x === null || y === null) return (x === null) - (y === null);
  const sign = typeof x === "number" && typeof y === "number" ? x - y : String(x) < String(y) ? -1 : String(x) > String(y) ? 1 : 0;
  return sign * direction;
}

async function getRows(parameters, signal) {
  if (!exported) return getJson("api/rows", parameters, signal);
  const all = await getJson("api/rows", {});
  const { offset, limit, order, desc } = parameters;
  const rows = order ? [...all.rows].sort((a, b) => compared(a.values[order] ?? null, b.values[order] ?? null, desc ? -1 : 1)) : all.rows;
  return { ...all, matched: rows.length, total: rows.length, rows: rows.slice(offset, offset + limit) };
}

function About({ dataset, onClose }) {
  return html`<${Dialog} title="Columns and metadata" onClose=${onClose} wide>
    ${dataset.commands && Object.entries(dataset.commands).map(([name, text]) => html`<${Copyable} key=${name} text=${text} />`)}
    <div class="table-scroll"><table class="plain"><thead><tr><th>column</th><th>kind</th><th>type</th><th>rate</th></tr></thead><tbody>
      ${dataset.columns.map((column) => html`<tr key=${column.name}><td><${Icon} name=${KIND_ICONS[column.kind] ?? "more"} size=${13} /> ${column.name}</td><td>${column.kind}</td><td class="mono">${column.type}</td><td>${column.fps ? rate(column.fps) : ""}</td></tr>`)}
    </tbody></table></div>
    ${dataset.metadata && html`<h3>Metadata</h3><pre>${JSON.stringify(dataset.metadata, null, 2)}</pre>`}
    ${dataset.created && html`<p class="quiet">${day(dataset.created)}</p>`}<//>`;
}
