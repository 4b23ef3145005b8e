/** The page of one sequence: films, signals and everything else on one clock. */

import { html, useEffect, useLoaded, useMemo, useRef, useState, copyText, Copyable, Dialog, Icon, IconButton, Menu, Spinner, toast, Trouble } from "./ui.js";
import { carrier, exported, getArray, getJson } from "./api.js";
import { filterOf, go, href, replace } from "./route.js";
import { Player, View } from "./player.js";
import { FileCard, ImageTile, VideoTile } from "./tiles.js";
import { OtherCard } from "./outline.js";
import { SceneTile } from "./scene.js";
import { SpaceTile, spacesOf } from "./space.js";
import { AudioPanel } from "./sound.js";
import { SignalPanel } from "./panels.js";
import { Timeline, Transport } from "./timeline.js";
import { LabelPanel, draftOf, spansOf, toggleFlag, useLabels } from "./labels.js";
import { playerKey } from "./keyboard.js";
import { placement, runsOf, width } from "./signals.js";
import { columnsOf } from "./npy.js";
import { keyOf } from "./dataset.js";
import { cell, clockText, grouped, plural, quoted, rate } from "./words.js";

const FILMS = new Set(["video", "depth", "frames"]);
const BOOLEAN = /^bool/;
const WHOLE = /^u?int/;

function list(text) { return text ? text.split(",").filter(Boolean) : null; }

/** `action:0-5,7` → the dimensions of one column. */
function dimsOf(text) {
  const out = {};
  for (const part of (text ?? "").split(";")) {
    const at = part.lastIndexOf(":");
    if (at < 1) continue;
    out[part.slice(0, at)] = part.slice(at + 1).split(",").flatMap((piece) => {
      const [a, b = a] = piece.split("-").map(Number);
      return Number.isInteger(a) && Number.isInteger(b) && b >= a && b - a < 1000 ? Array.from({ length: b - a + 1 }, (_, i) => a + i) : [];
    });
  }
  return out;
}

function dimsText(dims) {
  return Object.entries(dims).map(([name, numbers]) => {
    const runs = [];
    for (const d of numbers) { const last = runs[runs.length - 1]; if (last && last[1] === d - 1) last[1] = d; else runs.push([d, d]); }
    return `${name}:${runs.map(([a, b]) => (a === b ? a : `${a}-${b}`)).join(",")}`;
  }).join(";");
}

function seqKeyOf(query) {
  return query.get("id") !== null ? { id: query.get("id") } : { row: Number(query.get("row") ?? 0) };
}

export function SequencePage({ dataset, query, keys, theme }) {
  const seqKey = useMemo(() => seqKeyOf(query), [query.get("id"), query.get("row")]);
  const [clock, setClock] = useState(exported ? null : query.get("clock")); /* an export has one */
  const filter = filterOf(query);
  const asked = useLoaded(async (signal) => ({ of: seqKey, sequence: await getJson("api/sequence", { ...seqKey, clock }, signal) }), [seqKey, clock, dataset.version]);
  const place = useLoaded((signal) => (exported ? exportedPlace(seqKey) : getJson("api/place", { ...seqKey, ...filter }, signal)), [seqKey, query.get("where"), query.get("q"), query.get("order")]);
  if (asked.error) return html`<main class="page"><${Trouble} error=${asked.error} onRetry=${asked.again} /></main>`;
  /* The last answer stays while the next one comes: it may be of another sequence. */
  if (!asked.value || asked.value.of !== seqKey) return html`<main class="page wait"><${Spinner} /></main>`;
  const { sequence } = asked.value;
  return html`<${Sequence} key=${`${seqKey.id ?? ""}#${seqKey.row ?? ""}#${sequence.row}`} sequence=${sequence} seqKey=${seqKey} dataset=${dataset} query=${query} filter=${filter} place=${place.value}
    clock=${clock} onClock=${setClock} keys=${keys} theme=${theme} />`;
}

async function exportedPlace(key) {
  const { rows } = await getJson("api/rows", {});
  const position = rows.findIndex((row) => (key.id !== undefined ? row.id === key.id : row.row === key.row));
  return { position: position < 0 ? null : position, matched: rows.length, previous: rows[position - 1] ?? null, next: rows[position + 1] ?? null };
}

/** Signals of one dimension with few values become lanes under the scrubber. */
function useLanes(seqKey, sequence, aligns) {
  const candidates = useMemo(() => sequence.signals.filter((one) => width(one) === 1 && one.length > 0 && one.length <= 200000
    && (BOOLEAN.test(one.dtype ?? "") || WHOLE.test(one.dtype ?? ""))).slice(0, 6), [sequence]);
  const { value } = useLoaded(async (signal) => {
    const lanes = [];
    for (const one of candidates) {
      const reply = await getArray("api/signal", { ...seqKey, col: one.name }, signal);
      if (reply.envelope) continue;
      const runs = runsOf(columnsOf(reply.array)[0]);
      if (!runs || runs.values.length < 2) continue;
      const { xsOf } = placement(one, aligns[one.name]);
      lanes.push({ name: one.name, boolean: BOOLEAN.test(one.dtype), values: runs.values, runs: runs.runs.map((run) => ({ ...run, start: Math.round(xsOf(run.start)), stop: Math.round(xsOf(run.stop)) })) });
    }
    return lanes;
  }, [candidates, aligns]);
  return value ?? NONE;
}

const NONE = [];

function inScene(sequence) { return new Set(sequence.media.flatMap((one) => (one.kind === "scene" ? one.columns : []))); }

/** The first signals, without those of a scene's agents and lights: a step of theirs is none of the clock. */
function firstPanels(sequence, all) {
  const drawn = inScene(sequence);
  return all.filter((name) => !drawn.has(name) || /^ego_|^num_/.test(name)).slice(0, 24);
}

function Sequence({ sequence, seqKey, dataset, query, filter, place, clock, onClock, keys, theme }) {
  const last = useRef(null);
  const player = useMemo(() => {
    const next = new Player({ steps: sequence.steps || 1, hz: sequence.clock?.hz ?? 30 });
    /* Another clock counts the same moments by other steps. */
    if (last.current) { last.current.pause(); next.seek(Math.floor(last.current.seconds() * next.hz + 1e-6)); }
    last.current = next;
    return next;
  }, [sequence.steps, sequence.clock?.hz]);
  const view = useMemo(() => new View(player.steps), [player]);
  const id = sequence.id;
  useLabels();
  const started = useRef(false);
  const asked = useMemo(() => dimsOf(query.get("dims")), []);
  const [dims, setDims] = useState(asked);
  const allPanels = useMemo(() => sequence.signals.map((one) => one.name), [sequence]);
  const first = useMemo(() => firstPanels(sequence, allPanels), [sequence]);
  const [panels, setPanels] = useState(() => list(query.get("cols"))?.filter((name) => allPanels.includes(name)) ?? first);
  const films = useMemo(() => sequence.media.filter((one) => FILMS.has(one.kind)), [sequence]);
  const [videos, setVideos] = useState(() => list(query.get("vids"))?.filter((name) => films.some((film) => film.name === name)) ?? null);
  const [overlays, setOverlays] = useState({});
  const [solo, setSolo] = useState(null);
  const [side, setSide] = useState(() => innerWidth >= 1500);
  const [goTo, setGoTo] = useState(false);
  const noteRef = useRef(null);
  const underPointer = useRef(null);

  /* The address: where it starts, and kept up to date while the player rests. */
  if (!started.current) {
    started.current = true;
    const f = query.get("f") ?? (query.get("t") !== null ? Math.round(Number(query.get("t")) * player.hz) : null);
    if (f !== null && Number.isFinite(Number(f))) player.seek(Number(f));
    const zoom = /^(\d+)-(\d+)$/.exec(query.get("zoom") ?? "");
    if (zoom) view.set(Number(zoom[1]), Number(zoom[2]));
  }
  const link = () => ({
    ...seqKey, f: player.step || null, clock, cols: panels.length === first.length && panels.every((name, i) => name === first[i]) ? null : panels.join(",") || "-",
    dims: dimsText(dims) || null, vids: videos ? videos.join(",") : null, zoom: view.whole ? null : `${Math.round(view.min)}-${Math.round(view.max)}`, ...filter,
  });
  const linkRef = useRef(link);
  linkRef.current = link;
  useEffect(() => {
    let timer = 0;
    const later = () => { clearTimeout(timer); timer = setTimeout(() => { if (!player.playing) replace("seq", linkRef.current()); }, 250); };
    const stops = [player.on(later), view.on(later)];
    later();
    return () => { clearTimeout(timer); for (const stop of stops) stop(); };
  }, [player, view, panels, dims, videos, clock]);
  useEffect(() => player.on(() => { if (player.playing) view.reveal(player.step); }), [player, view]);
  useEffect(() => {
    const hide = () => { if (document.hidden) player.pause(); };
    document.addEventListener("visibilitychange", hide);
    globalThis.seqlakePlayer = player; /* for whoever looks from the console */
    return () => { document.removeEventListener("visibilitychange", hide); player.pause(); };
  }, [player]);

  /* Columns that do not run with the clock say which of their samples belongs to each step. */
  const crooked = useMemo(() => sequence.signals.filter((one) => one.aligned === false && !inScene(sequence).has(one.name)).map((one) => one.name), [sequence]);
  const { value: aligned } = useLoaded(async (signal) => {
    const out = {};
    await Promise.all(crooked.map(async (name) => {
      try { out[name] = (await getArray("api/align", { ...seqKey, col: name, clock }, signal)).array.data; } catch (error) { if (error.name === "AbortError") throw error; out[name] = null; }
    }));
    return out;
  }, [crooked, clock]);
  const aligns = crooked.length ? aligned : EMPTY;
  const lanes = useLanes(seqKey, sequence, aligns ?? EMPTY);

  const committed = useMemo(() => committedOf(sequence), [sequence]);
  const spansNow = spansOf(id, committed.spans);
  const spansKey = JSON.stringify(spansNow);
  const spans = useMemo(() => spansNow, [spansKey, theme]);
  const flag = draftOf(id).flag ?? committed.flag ?? false;

  const spaces = useMemo(() => (aligns ? spacesOf(sequence, aligns) : NONE), [sequence, aligns]);
  const scenes = sequence.media.filter((one) => one.kind === "scene");
  const sounds = sequence.media.filter((one) => one.kind === "audio");
  const images = sequence.media.filter((one) => one.kind === "image");
  const shownFilms = films.filter((film) => !videos || videos.includes(film.name));
  const tiles = shownFilms.length + images.length + scenes.length + spaces.length;
  const [findings, setFindings] = useState({});
  const onFindings = useMemo(() => (name, about) => setFindings((old) => ({ ...old, [name]: about })), [sequence]);

  const neighbour = (which) => {
    const row = place?.[which];
    if (row) go("seq", { ...keyOf(row), cols: query.get("cols"), vids: query.get("vids"), dims: query.get("dims"), clock, ...filter });
    else toast(which === "next" ? "This is the last sequence of the filter" : "This is the first sequence of the filter");
  };
  const compare = () => go("cmp", { ...(seqKey.id !== undefined ? { id: [seqKey.id, place?.next?.id].filter(Boolean) } : { row: [seqKey.row, place?.next?.row].filter((n) => n !== undefined) }), ...filter });
  const hidePanel = (name) => { setPanels((old) => old.filter((one) => one !== name)); };

  keys.current = (event) => {
    const up = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (up === "ArrowDown" || up === "]") { neighbour("next"); return true; }
    if (up === "ArrowUp" || up === "[") { neighbour("previous"); return true; }
    if (playerKey(event, player, view)) return true;
    if (/^[1-9]$/.test(up)) { const film = shownFilms[Number(up) - 1]; if (film) { setSolo(solo === film.name ? null : film.name); return true; } }
    if (up === "f" && !exported) { toggleFlag(id, committed.flag); return true; }
    if (up === "n" && !exported) { setSide(true); setTimeout(() => noteRef.current?.focus(), 50); return true; }
    if (up === "c") { compare(); return true; }
    if (up === "g") { setGoTo(true); return true; }
    if (up === "h" && underPointer.current) { hidePanel(underPointer.current); return true; }
    if (up === "/") { go("", filter); setTimeout(() => document.querySelector(".filter-field input")?.focus(), 300); return true; }
    return false;
  };

  const python = () => `${sequence.python}${panels[0] ? `["${panels[0]}"][${player.step}]` : ""}`;
  const marks = useMemo(() => NONE, []);
  const wideSignals = panels.map((name) => sequence.signals.find((one) => one.name === name)).filter(Boolean);
  return html`<main class=${`page sequence-page ${side ? "with-side" : ""} ${tiles ? "" : "no-tiles"}`} data-sequence=${id} onPointerOver=${(event) => { underPointer.current = event.target.closest?.("[data-panel]")?.dataset.panel ?? null; }}>
    <div class="seq-head">
      <div class="seq-name"><h1 title=${id}>${id || `row ${sequence.row}`}</h1>
        <span class="quiet">${plural(sequence.steps, "step")}${sequence.seconds ? ` · ${clockText(sequence.seconds, 1)}` : ""} · row ${grouped(sequence.row)}</span></div>
      ${place && html`<div class="neighbours"><${IconButton} icon="up" label="Previous sequence" keys="↑" disabled=${!place.previous} onClick=${() => neighbour("previous")} />
        <span class="quiet">${place.position === null ? "not in the filter" : `${grouped(place.position + 1)} of ${grouped(place.matched)}`}</span>
        <${IconButton} icon="down" label="Next sequence" keys="↓" disabled=${!place.next} onClick=${() => neighbour("next")} /></div>`}
      ${filter.where && html`<a data-nav class="chip on" href=${href("", filter)} title="The filter this sequence comes from"><code>${filter.where}</code></a>`}
      <span class="push"></span>
      ${!exported && html`<button type="button" class=${`button ${flag ? "flagged" : ""}`} aria-pressed=${String(Boolean(flag))} title="Flag (F)" onClick=${() => toggleFlag(id, committed.flag)}><${Icon} name="flag" /> <span class="wide-only">${flag ? "Flagged" : "Flag"}</span></button>`}
      <button type="button" class="button" title="Compare (C)" onClick=${compare}><${Icon} name="compare" /> <span class="wide-only">Compare</span></button>
      <${Menu} icon="link" label="Share">${(close) => html`
        ${!carrier && html`<button type="button" class="menu-item" onClick=${() => { copyText(new URL(href("seq", link()), location.href).href, "Link copied"); close(); }}>Copy a link to this step</button>`}
        <button type="button" class="menu-item" onClick=${() => { copyText(python(), "Python copied"); close(); }}>Copy as Python<i class="mono">${python()}</i></button>
        ${sequence.id && html`<button type="button" class="menu-item" onClick=${() => { copyText(sequence.id, "Id copied"); close(); }}>Copy the id</button>`}`}<//>
      <${Menu} icon="columns" label="Panels">
        <p class="menu-title">Signals</p><div class="menu-scroll">${sequence.signals.map((one) => html`<label class="menu-check" key=${one.name}>
          <input type="checkbox" checked=${panels.includes(one.name)} onChange=${() => setPanels((old) => (old.includes(one.name) ? old.filter((name) => name !== one.name) : allPanels.filter((name) => name === one.name || old.includes(name))))} />
          <${Icon} name="wave" size=${13} /><span>${one.name}</span></label>`)}
        ${films.length > 0 && html`<p class="menu-title">Videos</p>${films.map((film) => html`<label class="menu-check" key=${film.name}>
          <input type="checkbox" checked=${!videos || videos.includes(film.name)} onChange=${() => setVideos((old) => { const now = old ?? films.map((one) => one.name); return now.includes(film.name) ? now.filter((name) => name !== film.name) : films.map((one) => one.name).filter((name) => name === film.name || now.includes(name)); })} />
          <${Icon} name="film" size=${13} /><span>${film.name}</span></label>`)}`}</div><//>
      <${IconButton} icon="info" label="Details" pressed=${side} onClick=${() => setSide(!side)} />
    </div>
    <div class="workspace">
      ${tiles > 0 && html`<section class="films" data-tiles=${Math.min(solo ? 1 : tiles, 9)} aria-label="pictures">
        ${shownFilms.map((film) => html`<div class="film-slot" key=${film.name} hidden=${solo !== null && solo !== film.name}>
          <${VideoTile} seqKey=${seqKey} media=${film} clock=${clock} steps=${player.steps} player=${player} solo=${solo === film.name} compose=${same}
            onSolo=${tiles > 1 ? () => setSolo(solo === film.name ? null : film.name) : null} onFindings=${onFindings} /></div>`)}
        ${!solo && images.map((one) => html`<${ImageTile} key=${one.name} seqKey=${seqKey} media=${one} />`)}
        ${!solo && scenes.map((one) => html`<${SceneTile} key=${one.name} seqKey=${seqKey} media=${one} player=${player} theme=${theme} clock=${clock} />`)}
        ${!solo && spaces.map((one) => html`<${SpaceTile} key=${one.key} seqKey=${seqKey} space=${one} player=${player} theme=${theme} clock=${clock} />`)}
      </section>`}
      <section class="signals" aria-label="signals">
        ${sounds.map((one) => html`<${AudioPanel} key=${one.name} seqKey=${seqKey} media=${one} player=${player} view=${view} theme=${theme} />`)}
        ${!aligns && html`<div class="panel-wait"><${Spinner} /></div>`}
        ${aligns && wideSignals.map((info) => html`<${SignalPanel} key=${info.name} seqKey=${seqKey} info=${info} column=${dataset.columns.find((column) => column.name === info.name)} align=${aligns[info.name]}
          overlays=${info.overlays?.filter((name) => name !== info.name)} overInfo=${sequence.signals.find((one) => one.name === overlays[info.name]) ?? null} overAlign=${aligns[overlays[info.name]]}
          onOverlay=${(name) => setOverlays((old) => ({ ...old, [info.name]: name }))} player=${player} view=${view} theme=${theme} spans=${spans} clock=${clock}
          dimsAsked=${dims[info.name]} onDims=${(next) => setDims((old) => ({ ...old, [info.name]: next }))} onHide=${() => hidePanel(info.name)} />`)}
        ${panels.length < allPanels.length && html`<div class="hidden-panels"><span class="quiet">${plural(allPanels.length - panels.length, "signal")} not shown</span>
          ${allPanels.filter((name) => !panels.includes(name)).slice(0, 30).map((name) => html`<button type="button" class="chip" key=${name} onClick=${() => setPanels((old) => allPanels.filter((one) => one === name || old.includes(one)))}><${Icon} name="plus" size=${11} /> ${name}</button>`)}</div>`}
        ${!side && sequence.others.length > 0 && html`<details class="panel others" open=${sequence.signals.length === 0}><summary>Other columns <span class="quiet">${sequence.others.map((one) => one.name).slice(0, 6).join(", ")}</span></summary>
          <div class="others-grid">${sequence.others.map((one) => html`<${OtherCard} key=${one.name} cell=${one} />`)}</div></details>`}
        ${sequence.signals.length === 0 && sounds.length === 0 && sequence.others.length === 0 && html`<div class="empty small"><p>This sequence has no signals.</p></div>`}
      </section>
    </div>
    ${side && html`<aside class="side" aria-label="details">
      ${!exported && html`<${LabelPanel} id=${id} committed=${committed} player=${player} dataset=${dataset} noteRef=${noteRef} />`}
      <${Scalars} sequence=${sequence} dataset=${dataset} />
      ${Object.keys(findings).length > 0 && html`<${FilmFacts} films=${films} findings=${findings} />`}
      ${(sequence.files.length > 0) && html`<section class="side-section"><header><h3>Files</h3></header>${sequence.files.map((file) => html`<${FileCard} key=${file.name} file=${file} />`)}</section>`}
      ${sequence.others.length > 0 && html`<section class="side-section"><header><h3>Other columns</h3></header>${sequence.others.map((one) => html`<${OtherCard} key=${one.name} cell=${one} />`)}</section>`}
      ${sequence.links?.length > 0 && html`<section class="side-section"><header><h3>Links</h3></header>${sequence.links.map((one) => html`<${LinkRow} key=${JSON.stringify(one)} link=${one} filter=${filter} />`)}</section>`}
      <section class="side-section"><header><h3>In Python</h3></header><${Copyable} text=${sequence.python} /></section>
    </aside>`}
    <footer class="dock"><${Timeline} player=${player} view=${view} lanes=${lanes} spans=${spans} marks=${marks} theme=${theme} gaps=${NONE} />
      <${Transport} player=${player} clock=${sequence.clock} onClock=${onClock} /></footer>
    ${goTo && html`<${GoTo} player=${player} onClose=${() => setGoTo(false)} onId=${(next) => { setGoTo(false); go("seq", { id: next, ...filter }); }} />`}
  </main>`;
}

const EMPTY = {};
const same = (map) => map;

/** What the label columns hold for this sequence already. */
function committedOf(sequence) {
  const of = (name) => sequence.scalars.find((scalar) => scalar.name === name)?.value;
  const note = of("note");
  const cell_ = sequence.others?.find((one) => one.name === "spans");
  let spans = cell_?.value ?? of("spans") ?? null;
  if (!spans && cell_?.text) { try { spans = JSON.parse(cell_.text); } catch { spans = null; } }
  const good = Array.isArray(spans) && spans.every((span) => Number.isInteger(span?.start) && Number.isInteger(span?.stop));
  return { flag: of("flag") === true, note: typeof note === "string" ? note : null, spans: good ? spans : null };
}

function Scalars({ sequence, dataset }) {
  if (!sequence.scalars.length) return null;
  return html`<section class="side-section"><header><h3>Values</h3></header><dl class="scalars">${sequence.scalars.map(({ name, value }) => {
    const text = cell(value);
    const column = dataset.columns.find((one) => one.name === name);
    const where = text === null ? `${quoted(name)} IS NULL` : typeof value === "number" ? `${quoted(name)} = ${value}` : typeof value === "boolean" ? `${quoted(name)} = ${value}` : `${quoted(name)} = '${String(text).replaceAll("'", "''")}'`;
    return html`<div key=${name}><dt title=${name}>${name}</dt><dd title=${text ?? ""}>${text === null ? html`<span class="null">null</span>` : text}
      ${!exported && column?.filter && name !== dataset.id_column && html`<a data-nav class="same" href=${href("", { where })} title="Sequences with the same value" aria-label=${`sequences with the same ${name}`}><${Icon} name="search" size=${11} /></a>`}</dd></div>`;
  })}</dl></section>`;
}

function FilmFacts({ films, findings }) {
  return html`<section class="side-section"><header><h3>Videos</h3></header>${films.map((film) => {
    const about = findings[film.name];
    if (!about || about.state !== "ok") return null;
    return html`<details class="film-fact" key=${film.name}><summary>${film.name}<span class="quiet"> ${[about.codec, about.width ? `${about.width}×${about.height}` : null].filter(Boolean).join(" · ")}</span></summary>
      <dl class="scalars">${[["frames", grouped(about.frames)], ["rate", rate(about.fps)], ["declared rate", about.declared_fps ? rate(about.declared_fps) : null], ["begins at", about.start === undefined ? null : `${about.start} s`], ["ends at", about.end === undefined ? null : `${about.end} s`],
    ["pixels", about.pixel_format], ["profile", about.profile], ["B-frames", about.b_frames === undefined ? null : about.b_frames ? "yes" : "no"], ["keyframe every", about.gop ? plural(about.gop, "frame") : null],
    ["gaps", about.variable ? `${(about.variable.shortest * 1000).toFixed(1)}–${(about.variable.longest * 1000).toFixed(1)} ms` : null]]
    .filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
      ${(about.findings ?? []).map((finding) => html`<p class="finding" key=${finding.code}><${Icon} name="warning" size=${13} /> ${finding.message} ${finding.hint && html`<span class="quiet">${finding.hint}</span>`}</p>`)}</details>`;
  })}</section>`;
}

function LinkRow({ link, filter }) {
  if (typeof link === "string") return html`<p class="mono small-text">${link}</p>`;
  if (link.id) return html`<p><a data-nav href=${href("seq", { id: link.id, f: link.step, ...filter })}>${link.text ?? link.id}</a></p>`;
  return html`<p class="mono small-text">${link.text ?? JSON.stringify(link)}</p>`;
}

function GoTo({ player, onClose, onId }) {
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    const value = text.trim();
    if (!value) return;
    const seconds = /^(?:(\d+):)?(\d+(?:\.\d+)?)\s*s?$/.exec(value);
    if (/^\d+$/.test(value) && Number(value) < player.steps) { player.seek(Number(value)); onClose(); } else if (seconds && (value.includes(":") || value.includes(".") || value.endsWith("s"))) {
      player.seek(Math.floor((Number(seconds[1] ?? 0) * 60 + Number(seconds[2])) * player.hz + 1e-6)); onClose();
    } else onId(value);
  };
  return html`<${Dialog} title="Go to" onClose=${onClose}><form class="row-form" onSubmit=${submit}>
    <input autofocus aria-label="step, time or id" placeholder="a step (120), a time (0:04.5 or 4.5s), or an id" value=${text} onInput=${(event) => setText(event.target.value)} />
    <button type="submit" class="button primary">Go</button></form><//>`;
}
