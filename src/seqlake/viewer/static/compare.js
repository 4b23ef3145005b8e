/** Two to four sequences in step: side by side, or their curves on the same axes. */

import { html, useEffect, useLoaded, useMemo, useRef, useState, copyText, Icon, IconButton, Menu, Spinner, Trouble } from "./ui.js";
import { carrier, getArray, getJson } from "./api.js";
import { change, filterOf, go, href, replace } from "./route.js";
import { Player, View } from "./player.js";
import { ImageTile, VideoTile } from "./tiles.js";
import { SceneTile } from "./scene.js";
import { SpaceTile, spacesOf } from "./space.js";
import { Curves } from "./plot.js";
import { Timeline, Transport } from "./timeline.js";
import { dimNames, loadSignal, placement, valuesAt, width, withGaps } from "./signals.js";
import { dimColour, labelColour } from "./palette.js";
import { joined, laidOver } from "./alignment.js";
import { playerKey } from "./keyboard.js";
import { cell, clockText, grouped, plural, short } from "./words.js";

const FILMS = new Set(["video", "depth", "frames"]);
const ALIGNMENTS = [["start", "starts"], ["end", "ends"], ["offset", "offset"], ["normal", "normalised"]];
const DASHES = [[], [7, 3], [2, 3], [8, 3, 2, 3]];
const NONE = [];

function keysOf(query) {
  const ids = query.getAll("id");
  return (ids.length ? ids.map((id) => ({ id })) : query.getAll("row").map((row) => ({ row: Number(row) }))).slice(0, 4);
}

export function ComparePage({ dataset, query, keys, theme }) {
  const seqKeys = useMemo(() => keysOf(query), [query.getAll("id").join("\u0000"), query.getAll("row").join(",")]);
  const asked = useLoaded(async (signal) => ({ of: seqKeys, sequences: await Promise.all(seqKeys.map((key) => getJson("api/sequence", { ...key, clock: query.get("clock") }, signal))) }), [seqKeys, dataset.version]);
  if (seqKeys.length === 0) {
    return html`<main class="page"><div class="empty"><${Icon} name="compare" size=${28} /><p>Nothing is picked. Pick two to four sequences in the table, then press Compare.</p>
      <a data-nav class="button primary" href=${href("", filterOf(query))}>To the table</a></div></main>`;
  }
  if (asked.error) return html`<main class="page"><${Trouble} error=${asked.error} onRetry=${asked.again} /></main>`;
  if (!asked.value || asked.value.of !== seqKeys) return html`<main class="page wait"><${Spinner} /></main>`;
  return html`<${Comparison} key=${JSON.stringify(seqKeys)} seqKeys=${seqKeys} sequences=${asked.value.sequences} dataset=${dataset} query=${query} keys=${keys} theme=${theme} />`;
}

function Comparison({ seqKeys, sequences, dataset, query, keys, theme }) {
  const [align, setAlign] = useState(ALIGNMENTS.some(([name]) => name === query.get("align")) ? query.get("align") : "start");
  const [lay, setLay] = useState(query.get("lay") === "over" ? "over" : "side");
  const [offsets, setOffsets] = useState(() => { const given = query.getAll("off").map(Number); return sequences.map((_, i) => (Number.isFinite(given[i]) ? given[i] : 0)); });
  const laid = useMemo(() => laidOver(sequences.map((one) => ({ steps: Math.max(1, one.steps), hz: one.clock?.hz || 30 })), { align, offsets }), [sequences, align, offsets]);
  const kept = useRef(null);
  const player = useMemo(() => {
    const next = new Player({ steps: laid.steps, hz: laid.hz });
    const f = kept.current?.step ?? Number(query.get("f") ?? 0);
    kept.current?.pause();
    if (Number.isFinite(f)) next.seek(f);
    kept.current = next;
    return next;
  }, [laid]);
  const view = useMemo(() => new View(laid.steps), [laid]);
  const filter = filterOf(query);
  const composes = useMemo(() => laid.maps.map((map) => (frames) => map.map((own) => (own < 0 ? -1 : frames[own] ?? -1))), [laid]);
  const common = useMemo(() => {
    const counts = new Map();
    sequences.forEach((sequence) => sequence.signals.forEach((one) => counts.set(one.name, (counts.get(one.name) ?? 0) + 1)));
    return [...counts].filter(([, n]) => n === sequences.length).map(([name]) => name);
  }, [sequences]);
  const [panels, setPanels] = useState(() => query.get("cols")?.split(",").filter((name) => common.includes(name)) ?? common.slice(0, 12));
  const films = useMemo(() => [...new Set(sequences.flatMap((one) => one.media.filter((media) => FILMS.has(media.kind)).map((media) => media.name)))], [sequences]);
  const [vids, setVids] = useState(() => query.get("vids")?.split(",").filter((name) => films.includes(name)) ?? films.slice(0, 2));

  const link = () => ({ ...(seqKeys[0].id !== undefined ? { id: seqKeys.map((key) => key.id) } : { row: seqKeys.map((key) => key.row) }), f: player.step || null, align: align === "start" ? null : align,
    lay: lay === "side" ? null : lay, off: align === "offset" ? offsets : null, cols: panels.length === Math.min(12, common.length) ? null : panels.join(",") || "-", vids: vids.length === Math.min(2, films.length) ? null : vids.join(",") || "-", clock: query.get("clock"), ...filter });
  const linkRef = useRef(link);
  linkRef.current = link;
  useEffect(() => {
    let timer = 0;
    const later = () => { clearTimeout(timer); timer = setTimeout(() => { if (!player.playing) replace("cmp", linkRef.current()); }, 250); };
    later();
    const stops = [player.on(later), view.on(later)];
    globalThis.seqlakePlayer = player;
    return () => { clearTimeout(timer); for (const stop of stops) stop(); };
  }, [player, view, align, lay, offsets, panels, vids]);
  useEffect(() => () => player.pause(), [player]);
  useEffect(() => player.on(() => { if (player.playing) view.reveal(player.step); }), [player, view]);

  keys.current = (event) => {
    if (playerKey(event, player, view)) return true;
    if (event.key === "/") { go("", filter); return true; }
    return false;
  };
  const drop = (index) => change("cmp", { ...link(), id: seqKeys[0].id !== undefined ? seqKeys.filter((_, i) => i !== index).map((key) => key.id) : null, row: seqKeys[0].id === undefined ? seqKeys.filter((_, i) => i !== index).map((key) => key.row) : null, off: null });
  const [adding, setAdding] = useState("");
  const add = (event) => {
    event.preventDefault();
    if (adding.trim()) change("cmp", { ...link(), id: [...sequences.map((one) => one.id), adding.trim()], row: null, off: null });
  };
  const scalars = useMemo(() => differences(sequences), [sequences]);

  return html`<main class=${`page compare-page lay-${lay}`} data-compare=${sequences.length}>
    <div class="seq-head">
      <h1>Compare</h1>
      <div class="switch" role="group" aria-label="how they lie">
        <button type="button" aria-pressed=${String(lay === "side")} onClick=${() => setLay("side")}>Side by side</button>
        <button type="button" aria-pressed=${String(lay === "over")} onClick=${() => setLay("over")}>Overlaid</button></div>
      <div class="switch" role="group" aria-label="what is brought together">${ALIGNMENTS.map(([name, text]) => html`
        <button type="button" key=${name} aria-pressed=${String(align === name)} onClick=${() => setAlign(name)}>${text}</button>`)}</div>
      <span class="push"></span>
      <${Menu} icon="columns" label="Panels">
        ${films.length > 0 && html`<p class="menu-title">Videos</p><${Choice} all=${films} chosen=${vids} onChosen=${setVids} icon="film" />`}
        <p class="menu-title">Signals</p><${Choice} all=${common} chosen=${panels} onChosen=${setPanels} icon="wave" /><//>
      ${sequences.length < 4 && html`<form class="row-form add-form" onSubmit=${add}><input aria-label="id of a sequence to add" placeholder="add an id" value=${adding} onInput=${(event) => setAdding(event.target.value)} /><button type="submit" class="button small" aria-label="Add"><${Icon} name="plus" size=${14} /></button></form>`}
      ${!carrier && html`<button type="button" class="icon-button" title="Copy a link" aria-label="Copy a link" onClick=${() => copyText(new URL(href("cmp", link()), location.href).href, "Link copied")}><${Icon} name="link" /></button>`}
    </div>
    <div class="compare-grid" style=${{ "--count": sequences.length }}>
      ${sequences.map((sequence, i) => html`<section class="compare-column" key=${`${sequence.row}-${i}`} aria-label=${`sequence ${sequence.id}`}>
        <header><i class="swatch" style=${{ background: labelColour(i) }}></i><a data-nav href=${href("seq", { ...seqKeys[i], ...filter })}><b>${sequence.id || `row ${sequence.row}`}</b></a>
          <span class="quiet">${plural(sequence.steps, "step")} · ${clockText(sequence.steps / (sequence.clock?.hz || 30), 1)}</span>
          <${OwnStep} player=${player} map=${laid.maps[i]} />
          <span class="push"></span>
          ${align === "offset" && html`<label class="offset">offset <input type="number" value=${offsets[i]} onInput=${(event) => { const n = Number(event.target.value); if (Number.isFinite(n) && Math.abs(n) < 1e6) setOffsets((old) => old.map((one, at) => (at === i ? Math.round(n) : one))); }} /></label>`}
          ${sequences.length > 2 && html`<${IconButton} icon="close" size=${13} label=${`Leave out ${sequence.id}`} onClick=${() => drop(i)} />`}</header>
        <${Pictures} index=${i} seqKey=${seqKeys[i]} sequence=${sequence} dataset=${dataset} player=${player} compose=${composes[i]} map=${laid.maps[i]} vids=${vids} clock=${query.get("clock")} theme=${theme} />
        ${lay === "side" && panels.map((name) => html`<${OverPanel} key=${name} name=${name} parts=${[{ index: 0, at: i }]} seqKeys=${seqKeys} sequences=${sequences} dataset=${dataset} laid=${laid} player=${player} view=${view} theme=${theme} clock=${query.get("clock")} />`)}
      </section>`)}
    </div>
    ${lay === "over" && html`<section class="signals">${panels.map((name) => html`<${OverPanel} key=${name} name=${name} parts=${sequences.map((_, i) => ({ index: i, at: i }))} seqKeys=${seqKeys} sequences=${sequences} dataset=${dataset} laid=${laid} player=${player} view=${view} theme=${theme} clock=${query.get("clock")}
      onHide=${() => setPanels((old) => old.filter((one) => one !== name))} />`)}</section>`}
    ${panels.length < common.length && html`<div class="hidden-panels">${common.filter((name) => !panels.includes(name)).slice(0, 30).map((name) => html`<button type="button" class="chip" key=${name} onClick=${() => setPanels((old) => common.filter((one) => one === name || old.includes(one)))}><${Icon} name="plus" size=${11} /> ${name}</button>`)}</div>`}
    ${scalars.length > 0 && html`<section class="panel"><header><h3>Values that differ</h3></header><div class="table-scroll"><table class="plain"><thead><tr><th></th>${sequences.map((one) => html`<th key=${one.row}>${one.id}</th>`)}</tr></thead>
      <tbody>${scalars.map(({ name, values }) => html`<tr key=${name}><th scope="row">${name}</th>${values.map((value, i) => html`<td key=${i}>${cell(value) ?? html`<span class="null">null</span>`}</td>`)}</tr>`)}</tbody></table></div></section>`}
    <footer class="dock"><${Timeline} player=${player} view=${view} lanes=${NONE} spans=${NONE} theme=${theme} gaps=${NONE} />
      <${Transport} player=${player} /></footer>
  </main>`;
}

function differences(sequences) {
  const names = [...new Set(sequences.flatMap((one) => one.scalars.map((scalar) => scalar.name)))];
  return names.map((name) => ({ name, values: sequences.map((one) => one.scalars.find((scalar) => scalar.name === name)?.value ?? null) }))
    .filter(({ values }) => new Set(values.map((value) => JSON.stringify(value))).size > 1).slice(0, 40);
}

function Choice({ all, chosen, onChosen, icon }) {
  return html`<div class="menu-scroll">${all.map((name) => html`<label class="menu-check" key=${name}><input type="checkbox" checked=${chosen.includes(name)}
    onChange=${() => onChosen((old) => (old.includes(name) ? old.filter((one) => one !== name) : all.filter((one) => one === name || old.includes(one))))} /><${Icon} name=${icon} size=${13} /><span>${name}</span></label>`)}</div>`;
}

/** The sequence's own step under the playhead. */
function OwnStep({ player, map }) {
  const ref = useRef(null);
  useEffect(() => {
    const write = () => { if (ref.current) { const own = map[player.step] ?? -1; ref.current.textContent = own < 0 ? "outside" : `step ${own}`; ref.current.dataset.step = String(own); } };
    write();
    return player.on(write);
  }, [player, map]);
  return html`<span class="badge own-step" ref=${ref}></span>`;
}

function Pictures({ index, seqKey, sequence, dataset, player, compose, map, vids, clock, theme }) {
  const stepOf = useMemo(() => (step) => map[step] ?? -1, [map]);
  const spaces = useMemo(() => spacesOf(sequence, null).map((one) => ({ ...one, paths: one.paths.filter(({ info }) => info.aligned !== false) }))
    .filter((one) => one.paths.length || one.clouds.length).slice(0, 2), [sequence]);
  return html`<div class="compare-films">
    ${vids.map((name) => {
    const media = sequence.media.find((one) => one.name === name);
    return media ? html`<${VideoTile} key=${name} seqKey=${seqKey} media=${media} clock=${clock} steps=${Math.max(1, sequence.steps)} player=${player} compose=${compose} label=${name} />`
      : html`<figure class="tile" key=${name}><div class="tile-picture"><div class="tile-state"><strong>No ${name}</strong></div></div></figure>`;
  })}
    ${sequence.media.filter((one) => one.kind === "image").slice(0, 1).map((one) => html`<${ImageTile} key=${one.name} seqKey=${seqKey} media=${one} />`)}
    ${sequence.media.filter((one) => one.kind === "scene").map((one) => html`<${SceneTile} key=${one.name} seqKey=${seqKey} media=${one} player=${player} stepOf=${stepOf} theme=${theme} clock=${clock} />`)}
    ${(vids.length === 0 || spaces.some((one) => one.clouds.length)) && spaces.map((one) => html`<${SpaceTile} key=${one.key} seqKey=${seqKey} space=${one} player=${player} theme=${theme} clock=${clock} stepOf=${stepOf} colour=${labelColour(index)} />`)}
  </div>`;
}

/** Curves of one column from one or several sequences. Side by side: a colour a dimension. Overlaid: a colour a sequence. */
function OverPanel({ name, parts, seqKeys, sequences, dataset, laid, player, view, theme, clock, onHide }) {
  const column = dataset.columns.find((one) => one.name === name);
  const infos = parts.map(({ at }) => sequences[at].signals.find((one) => one.name === name));
  const total = Math.min(...infos.map(width));
  const over = parts.length > 1;
  const [dims, setDims] = useState(() => Array.from({ length: Math.min(over ? 3 : 8, total) }, (_, d) => d));
  const names = useMemo(() => dimNames(column, infos[0]), [column, name]);
  const { value, error } = useLoaded(async (signal) => Promise.all(parts.map(async ({ at }, i) => {
    const info = infos[i];
    const align = info.aligned === false ? (await getArray("api/align", { ...seqKeys[at], col: name, clock }, signal)).array.data : null;
    const place = placement(info, align);
    const loaded = await loadSignal(seqKeys[at], info, { dims: total > dims.length ? dims : null, xsOf: (sample) => laid.placed[at](place.xsOf(sample)) }, signal);
    return { loaded, valueOf: (step) => { const own = laid.maps[at][step] ?? -1; const sample = own < 0 ? -1 : place.sampleAt(own); return sample < 0 ? null : valuesAt(loaded, sample); } };
  })), [name, dims.join(","), laid, seqKeys]);
  const drawing = useMemo(() => {
    if (!value) return null;
    const { xs, columns } = joined(value.map((part) => ({ xs: part.loaded.xs, columns: part.loaded.columns })));
    const curves = value.flatMap((_, i) => columns[i].slice(0, dims.length).map((ys, at) => ({
      name: names[dims[at]], ys: over ? ys : withGaps(ys), colour: over ? labelColour(parts[i].at) : dimColour(dims[at]), dash: over ? DASHES[at % DASHES.length] : DASHES[Math.floor(dims[at] / 8) % 3],
    })));
    return { xs, curves };
  }, [value, theme]);
  const box = useRef(null);
  useEffect(() => {
    const write = () => {
      const cells = box.current?.querySelectorAll("b") ?? [];
      let at = 0;
      for (const part of value ?? []) {
        const values = part.valueOf(player.step);
        for (let i = 0; i < dims.length; i += 1) { if (cells[at]) cells[at].textContent = values ? short(values[i]) : "–"; at += 1; }
      }
    };
    write();
    return player.on(write);
  }, [value, player]);
  const toggle = (d) => setDims((old) => { const now = old.includes(d) ? old.filter((one) => one !== d) : [...old, d].sort((a, b) => a - b); return now.length ? now.slice(0, 16) : old; });
  return html`<section class="panel signal-panel" data-panel=${name} aria-label=${`signal ${name}`}>
    <header><h3>${name}</h3><span class="push"></span>
      ${over && total > 1 && html`<div class="chips inline">${names.slice(0, Math.min(total, 24)).map((one, d) => html`<button type="button" class="chip" key=${d} aria-pressed=${String(dims.includes(d))} onClick=${() => toggle(d)}>${one}</button>`)}</div>`}
      ${onHide && html`<${IconButton} icon="close" label=${`Hide ${name}`} onClick=${onHide} />`}</header>
    ${error && html`<${Trouble} error=${error} />`}
    ${!drawing && !error && html`<div class="panel-wait" style=${{ height: "120px" }}></div>`}
    ${drawing && html`<div class=${over ? "panel-body" : "panel-body thin"}><${Curves} player=${player} view=${view} xs=${drawing.xs} curves=${drawing.curves} theme=${theme} height=${over ? 170 : 130} label=${`${name} of ${plural(parts.length, "sequence")}`} />
      <div class="legend" ref=${box}>${value.flatMap((_, i) => dims.map((d, at) => html`<span class="legend-row" key=${`${i}-${d}`}><svg width="18" height="8" aria-hidden="true"><line x1="0" x2="18" y1="4" y2="4" stroke-width="2.5" stroke=${over ? labelColour(parts[i].at) : dimColour(d)} stroke-dasharray=${(over ? DASHES[at % DASHES.length] : DASHES[Math.floor(d / 8) % 3]).join(" ") || undefined} /></svg>
        <span>${over ? `${sequences[parts[i].at].id} ${names[d]}` : names[d]}</span><b>–</b></span>`))}</div></div>`}
    ${total > dims.length && !over && html`<p class="quiet small-text pad">${plural(total - dims.length, "dimension")} not shown (${grouped(total)} in all)</p>`}
  </section>`;
}
