/** Flags, labels, notes and marked spans: drafts that the server keeps until they are committed. */

import { html, useEffect, useState, Copyable, Dialog, Icon, IconButton, toast } from "./ui.js";
import { ApiError, exported, getJson, post } from "./api.js";
import { labelColour } from "./palette.js";
import { grouped, plural } from "./words.js";

const state = { drafts: null, listeners: new Set(), undo: [], chain: Promise.resolve() };

function tell() {
  for (const listener of [...state.listeners]) listener();
}

export async function loadLabels() {
  if (exported && !exported.replies["api/labels"]) { state.drafts = { sequences: {}, names: {}, commands: {} }; tell(); return; }
  try { state.drafts = await getJson("api/labels"); } catch (error) { state.drafts = { sequences: {}, names: {}, commands: {}, error }; }
  tell();
}

export function useLabels() {
  const [, redraw] = useState(0);
  useEffect(() => {
    const listener = () => redraw((n) => n + 1);
    state.listeners.add(listener);
    return () => state.listeners.delete(listener);
  }, []);
  return state.drafts ?? { sequences: {}, names: {}, commands: {} };
}

export function draftOf(id) { return state.drafts?.sequences?.[id] ?? {}; }

export function draftCount() { return Object.keys(state.drafts?.sequences ?? {}).length; }

/** What was there before `patch`, as a patch. */
function inverse(id, patch) {
  const before = state.drafts?.sequences?.[id];
  if (patch === null) return before ?? null;
  if (!before) return null;
  const back = {};
  for (const key of Object.keys(patch)) {
    if (key === "labels" && patch.labels) {
      back.labels = {};
      for (const name of Object.keys(patch.labels)) back.labels[name] = before.labels?.[name] ?? null;
    } else back[key] = before[key] ?? null;
  }
  return back;
}

async function send(set) {
  for (let turn = 0; turn < 3; turn += 1) {
    try {
      state.drafts = await post("api/labels", { set, revision: state.drafts?.revision });
      tell();
      return;
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 409) throw error;
      /* Someone else wrote in between (another tab): what is meant is one key, so it is said again on top of theirs. */
      state.drafts = await getJson("api/labels");
    }
  }
  throw new ApiError(409, { message: "the labels change faster than this page can follow" });
}

/** Changes drafts of a sequence, one request after another. */
export function setDraft(id, patch, { undoable = true } = {}) {
  state.chain = state.chain.then(async () => {
    if (undoable) state.undo.push({ [id]: inverse(id, patch) });
    try { await send({ [id]: patch }); } catch (error) { if (undoable) state.undo.pop(); toast(error.message, "error"); }
  });
  return state.chain;
}

export function undoDraft() {
  state.chain = state.chain.then(async () => {
    const set = state.undo.pop();
    if (!set) { toast("Nothing to take back"); return; }
    try { await send(set); toast("Taken back"); } catch (error) { toast(error.message, "error"); }
  });
  return state.chain;
}

export function toggleFlag(id, committed) {
  const now = draftOf(id).flag ?? committed ?? false;
  return setDraft(id, { flag: !now });
}

/** Spans of a sequence as the plots draw them: drafts, else what is committed. */
export function spansOf(id, committed) {
  const spans = draftOf(id).spans ?? committed ?? [];
  const names = [...new Set(spans.map((span) => span.label ?? ""))].sort();
  return spans.map((span) => ({ ...span, label: span.label ?? "", colour: labelColour(names.indexOf(span.label ?? "") + 1) }));
}

/** The side panel of one sequence. `committed` holds the values of the label columns as the table has them. */
export function LabelPanel({ id, committed, player, dataset, noteRef }) {
  const drafts = useLabels();
  const draft = drafts.sequences[id] ?? {};
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const [spanLabel, setSpanLabel] = useState("");
  const [, redraw] = useState(0);
  useEffect(() => { let loop = player.loop; return player.on(() => { if (player.loop !== loop) { loop = player.loop; redraw((n) => n + 1); } }); }, [player]);
  const flag = draft.flag ?? committed.flag ?? false;
  const labels = { ...draft.labels };
  const spans = spansOf(id, committed.spans);
  const dirty = Boolean(drafts.sequences[id]);
  const addLabel = (event) => {
    event.preventDefault();
    if (!name.trim() || !value.trim()) return;
    setDraft(id, { labels: { [name.trim()]: value.trim() } });
    setValue("");
  };
  const addSpan = () => {
    const range = player.loop ?? { start: player.step, stop: player.step + 1 };
    const plain = spans.map(({ start, stop, label }) => ({ start, stop, label }));
    setDraft(id, { spans: [...plain, { start: range.start, stop: range.stop, label: spanLabel.trim() || "span" }].sort((a, b) => a.start - b.start) });
  };
  const dropSpan = (index) => {
    const plain = spans.map(({ start, stop, label }) => ({ start, stop, label }));
    plain.splice(index, 1);
    setDraft(id, { spans: plain });
  };
  const known = Object.keys(drafts.names ?? {});
  const known_values = drafts.names?.[name] ?? [];
  return html`<section class="side-section" aria-label="labels">
    <header><h3>Labels</h3>${dirty && html`<span class="badge draft">draft</span>`}<span class="push"></span>
      <${IconButton} icon="undo" label="Take back the last change" onClick=${undoDraft} />
      ${dirty && html`<${IconButton} icon="trash" label="Drop this sequence's drafts" onClick=${() => setDraft(id, null)} />`}</header>
    <button type="button" class=${`flag-button ${flag ? "on" : ""}`} aria-pressed=${String(Boolean(flag))} onClick=${() => toggleFlag(id, committed.flag)}>
      <${Icon} name="flag" /> ${flag ? "Flagged" : "Flag this sequence"} <kbd>F</kbd></button>
    <label class="field"><span>Note <kbd>N</kbd></span>
      <textarea ref=${noteRef} rows="2" value=${draft.note ?? committed.note ?? ""} placeholder="What is wrong, or worth knowing"
        onChange=${(event) => { const text = event.target.value.trim(); if (text !== (draft.note ?? committed.note ?? "")) setDraft(id, { note: text || null }); }}></textarea></label>
    <div class="field"><span>Labels</span>
      <div class="label-list">${Object.entries(labels).map(([key, text]) => html`<span class="label" key=${key}><b>${key}</b> ${text}
        <button type="button" aria-label=${`Remove the label ${key}`} onClick=${() => setDraft(id, { labels: { [key]: null } })}><${Icon} name="close" size=${11} /></button></span>`)}</div>
      <form class="row-form" onSubmit=${addLabel}>
        <input list="label-names" placeholder="name" aria-label="label name" value=${name} onInput=${(event) => setName(event.target.value)} />
        <input list="label-values" placeholder="value" aria-label="label value" value=${value} onInput=${(event) => setValue(event.target.value)} />
        <button type="submit" class="button small" aria-label="Add the label"><${Icon} name="plus" size=${14} /></button>
        <datalist id="label-names">${known.map((one) => html`<option value=${one} />`)}</datalist>
        <datalist id="label-values">${known_values.map((one) => html`<option value=${one} />`)}</datalist></form></div>
    <div class="field"><span>Spans <i class="quiet">${player.loop ? `steps ${player.loop.start}–${player.loop.stop - 1}` : "shift-drag in a plot, or I and O"}</i></span>
      <div class="row-form"><input placeholder="what happens there" aria-label="label of the span" value=${spanLabel} onInput=${(event) => setSpanLabel(event.target.value)}
          onKeyDown=${(event) => { if (event.key === "Enter") addSpan(); }} />
        <button type="button" class="button small" onClick=${addSpan} disabled=${!player.loop}>Mark</button></div>
      ${spans.map((span, i) => html`<div class="span-row" key=${`${span.start}-${span.stop}-${span.label}-${i}`}>
        <i style=${{ background: span.colour }}></i><button type="button" class="linkish" onClick=${() => { player.seek(span.start); player.setLoop(span); }}>
          ${span.label || "span"} <span class="quiet">${grouped(span.start)}–${grouped(span.stop - 1)}</span></button>
        <${IconButton} icon="close" size=${12} label=${`Remove the span ${span.label}`} onClick=${() => dropSpan(i)} /></div>`)}</div>
    ${!dataset.writable && html`<p class="quiet small-text">${dataset.read_only_why ?? "This source cannot be written."} Labels stay in a file beside; use them by the commands under “Commit”.</p>`}
  </section>`;
}

/** What is drafted, and the one press that makes columns of it. */
export function CommitDialog({ dataset, onClose, onCommitted }) {
  const drafts = useLabels();
  const ids = Object.keys(drafts.sequences);
  const kinds = new Set();
  for (const draft of Object.values(drafts.sequences)) {
    for (const key of Object.keys(draft)) if (key === "labels") Object.keys(draft.labels ?? {}).forEach((name) => kinds.add(name)); else kinds.add(key);
  }
  const [columns, setColumns] = useState({});
  const [message, setMessage] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const body = () => ({ message: message.trim() || `Labels on ${plural(ids.length, "sequence")}`, columns: Object.fromEntries([...kinds].map((kind) => [kind, columns[kind] === undefined ? kind : columns[kind] || null])) });
  const commit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await state.chain;
      const done = await post("api/commit", { ...body(), dry_run: false });
      state.undo = [];
      await loadLabels();
      toast(`Committed ${plural(done.cells, "cell")} as version ${done.version}`);
      onCommitted(done);
    } catch (problem) { setError(problem); setBusy(false); }
  };
  const save = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify({ sequences: drafts.sequences }, null, 2)], { type: "application/json" }));
    link.download = `${dataset.name || "labels"}-labels.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  return html`<${Dialog} title="Commit labels" onClose=${onClose} wide>
    ${ids.length === 0 ? html`<p class="quiet">Nothing is drafted. Flag a sequence, write a note, set a label or mark a span.</p>` : html`
    <form onSubmit=${commit} class="commit">
      <p>${plural(ids.length, "sequence")} with drafts. ${dataset.writable ? "One press writes them as columns and makes a new version; every older version stays." : dataset.read_only_why ?? "This source cannot be written."}</p>
      <table class="plain"><thead><tr><th>drafted</th><th>sequences</th><th>becomes the column</th></tr></thead>
        <tbody>${[...kinds].map((kind) => html`<tr key=${kind}><td>${kind}</td>
          <td class="num">${Object.values(drafts.sequences).filter((draft) => kind in draft || (draft.labels && kind in draft.labels)).length}</td>
          <td><input aria-label=${`column for ${kind}`} value=${columns[kind] ?? kind} placeholder="left out" disabled=${!dataset.writable}
            onInput=${(event) => setColumns({ ...columns, [kind]: event.target.value.trim() })} /></td></tr>`)}</tbody></table>
      <details><summary>The sequences</summary><ul class="draft-list">${ids.slice(0, 200).map((id) => html`<li key=${id}><b>${id}</b>
        <span class="quiet">${summary(drafts.sequences[id])}</span></li>`)}</ul></details>
      ${dataset.writable && html`<label class="field"><span>Message</span><input value=${message} placeholder="What was looked at, and why" onInput=${(event) => setMessage(event.target.value)} autofocus /></label>`}
      ${error && html`<p class="bad-text" role="alert">${error.message}${error.hint ? ` ${error.hint}` : ""}</p>`}
      <div class="dialog-foot">
        <button type="button" class="button" onClick=${save}><${Icon} name="save" /> JSON</button><span class="push"></span>
        ${dataset.writable && html`<button type="submit" class="button primary" disabled=${busy}><${Icon} name="check" /> ${busy ? "Committing…" : "Commit"}</button>`}</div>
    </form>
    ${Object.keys(drafts.commands ?? {}).length > 0 && html`<h3>Or as a command</h3>${Object.entries(drafts.commands).filter(([, text]) => text).map(([what, text]) => html`
      <div key=${what}><p class="quiet small-text">${COMMANDS[what] ?? what}</p><${Copyable} text=${text} /></div>`)}`}`}
  <//>`;
}

const COMMANDS = {
  delete: "Delete the flagged sequences", subset: "Write a dataset without the flagged sequences", trim: "Cut the sequences to their marked spans",
};

function summary(draft) {
  return [draft.flag === undefined || draft.flag === null ? null : draft.flag ? "flagged" : "flag taken off", draft.note ? `“${draft.note}”` : null,
    ...Object.entries(draft.labels ?? {}).map(([name, value]) => `${name} = ${value}`), draft.spans?.length ? plural(draft.spans.length, "span") : null].filter(Boolean).join(" · ");
}
