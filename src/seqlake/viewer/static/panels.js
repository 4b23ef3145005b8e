/** The stacked panels of signals on the sequence page: curves up to 16 dimensions, a heatmap over 32, chips to choose between. */

import { html, useEffect, useLoaded, useMemo, useRef, useSeen, useState, Icon, IconButton, Menu, Spinner, Trouble } from "./ui.js";
import { dimColour, dimDash } from "./palette.js";
import { Curves } from "./plot.js";
import { Heatmap } from "./heatmap.js";
import { HEAT, dimNames, firstDims, loadSignal, placement, rangeOf, valuesAt, width, withGaps } from "./signals.js";
import { exported, getArray } from "./api.js";
import { grouped, rate, short } from "./words.js";

/** Legend: one row a dimension, with its value at the playhead, or under the pointer while it hovers. Written straight into the text
 * nodes, since it changes on every frame. */
function Legend({ entries, player, valueAt, hover, onToggle, hidden, onSolo }) {
  const box = useRef(null);
  useEffect(() => {
    const write = () => {
      const step = hover.current ?? player.step;
      const values = valueAt(step);
      const cells = box.current?.querySelectorAll("b") ?? [];
      for (let i = 0; i < cells.length; i += 1) {
        const text = values?.[i] === undefined || values?.[i] === null ? "–" : short(values[i]);
        if (cells[i].textContent !== text) cells[i].textContent = text;
      }
      box.current?.classList.toggle("hovering", hover.current !== null);
    };
    write();
    hover.write = write;
    return player.on(write);
  }, [entries, valueAt]);
  return html`<div class="legend" ref=${box}>${entries.map((entry) => html`
    <button type="button" key=${entry.key} class=${`legend-row ${hidden.has(entry.key) ? "off" : ""}`} aria-pressed=${String(!hidden.has(entry.key))}
      title=${`${entry.name}${entry.unit ? ` in ${entry.unit}` : ""} – press to hide, double press for this one alone`}
      onClick=${() => onToggle(entry.key)} onDblClick=${() => onSolo(entry.key)}>
      <svg width="18" height="8" aria-hidden="true"><line x1="0" x2="18" y1="4" y2="4" stroke=${entry.colour} stroke-width="2.5"
        stroke-dasharray=${entry.dash.length ? entry.dash.join(" ") : undefined} /></svg>
      <span>${entry.name}</span><b>–</b>${entry.unit && html`<i>${entry.unit}</i>`}</button>`)}</div>`;
}

function useSignal(key, info, dims, clock, align, view, active) {
  const place = useMemo(() => placement(info, align), [info, align]);
  const first = useLoaded((abort) => (active ? loadSignal(key, info, { dims, xsOf: place.xsOf }, abort) : null), [active, key.id, key.row, info, dims?.join(","), place]);
  const [fine, setFine] = useState(null);
  const loaded = first.value;
  useEffect(() => {
    setFine(null);
    if (!loaded?.envelope) return undefined;
    let timer = 0;
    let control = null;
    const look = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        control?.abort();
        if (view.whole) { setFine(null); return; }
        const from = Math.max(0, place.sampleAt(Math.floor(view.min)));
        let to = place.sampleAt(Math.min(view.steps - 1, Math.ceil(view.max)));
        if (to < 0) to = info.length - 1;
        if (to <= from) return;
        control = new AbortController();
        loadSignal(key, info, { dims, range: [from, Math.min(info.length, to + 2)], xsOf: place.xsOf }, control.signal)
          .then(setFine, () => null);
      }, 120);
    };
    const off = view.on(look);
    look();
    return () => { off(); clearTimeout(timer); control?.abort(); };
  }, [loaded]);
  return { ...first, value: fine ?? loaded, coarse: loaded, place };
}

/** Exact values of a signal that is shown as an envelope: asked for when the player rests. */
function useExact(key, info, dims, place, player, needed) {
  const kept = useRef(new Map());
  const hoverless = useRef(null);
  useEffect(() => {
    if (!needed || exported) return undefined; /* an export has no more of it than the envelope */
    let timer = 0;
    const look = () => {
      clearTimeout(timer);
      const sample = place.sampleAt(player.step);
      if (player.playing || sample < 0 || kept.current.has(sample)) return;
      timer = setTimeout(() => {
        getArray("api/signal", { ...key, col: info.name, start: sample, stop: sample + 1, dims: dims?.join(",") })
          .then((reply) => {
            if (kept.current.size > 500) kept.current.clear();
            kept.current.set(sample, Array.from(reply.array.data));
            player.tell();
          }, () => null);
      }, 80);
    };
    look();
    const off = player.on(look);
    return () => { off(); clearTimeout(timer); };
  }, [needed, dims?.join(","), place]);
  return { kept: kept.current, hoverless };
}

/** One panel. `over` is a signal of the same shape drawn dashed over it. */
export function SignalPanel({ seqKey, column, info, align, overInfo, overAlign, overlays, onOverlay, player, view, theme, spans, onHide, clock, dimsAsked, onDims }) {
  const ref = useRef(null);
  const seen = useSeen(ref);
  const total = width(info);
  const names = useMemo(() => dimNames(column, info), [column, info]);
  const [asHeat, setAsHeat] = useState(total > HEAT && !dimsAsked);
  const chosen = useMemo(() => (asHeat ? null : dimsAsked ?? (total > 16 ? firstDims(info) : null)), [asHeat, dimsAsked, info]);
  const { value: loaded, coarse, error, loading, again, place } = useSignal(seqKey, info, chosen, clock, align, view, seen);
  const over = useSignal(seqKey, overInfo ?? info, chosen, clock, overAlign ?? align, view, seen && Boolean(overInfo) && !asHeat);
  const [hidden, setHidden] = useState(() => new Set());
  const hover = useRef(null);
  const dims = useMemo(() => chosen ?? Array.from({ length: total }, (_, d) => d), [chosen, total]);
  const exact = useExact(seqKey, info, chosen, place, player, Boolean(loaded?.envelope));

  /* Constant dimensions say nothing: they are named in one line, not drawn, unless all are. */
  const constant = useMemo(() => {
    if (!coarse || asHeat || dims.length < 2) return new Set();
    const all = dims.filter((_, i) => rangeOf(coarse.columns[i]).constant);
    return all.length === dims.length ? new Set() : new Set(all);
  }, [coarse, asHeat, dims]);
  const drawn = dims.filter((d) => !constant.has(d));

  const drawing = useMemo(() => {
    if (!loaded || asHeat) return null;
    const curve = (ys, d, more) => ({ name: names[d], colour: dimColour(d), dash: dimDash(d), ys: withGaps(ys), stepped: /^(u?int|bool)/.test(info.dtype ?? ""), ...more });
    const curves = dims.map((d, i) => (constant.has(d) || hidden.has(d) ? null : curve(loaded.columns[i], d))).filter(Boolean);
    if (overInfo && over.value && over.value.xs.length === loaded.xs.length) {
      dims.forEach((d, i) => {
        if (!constant.has(d) && !hidden.has(d)) curves.push(curve(over.value.columns[i], d, { dash: [2, 4], width: 2 }));
      });
    }
    return { curves, xs: loaded.xs };
  }, [loaded, over.value, overInfo, asHeat, dims, constant, hidden, theme]);

  const valueAt = useMemo(() => (step) => {
    const sample = place.sampleAt(step);
    if (sample < 0) return null;
    const values = exact.kept.get(sample) ?? valuesAt(loaded, sample);
    return values && drawn.map((d) => values[dims.indexOf(d)]);
  }, [loaded, place, constant, dims]);
  const entries = useMemo(() => drawn.map((d) => ({ key: d, name: names[d], unit: column?.units?.[d] ?? column?.unit, colour: dimColour(d), dash: dimDash(d) })), [coarse, dims, constant, theme]);

  const toggle = (d) => setHidden((old) => { const now = new Set(old); if (!now.delete(d)) now.add(d); return now.size === drawn.length ? new Set() : now; });
  const solo = (d) => setHidden(new Set(drawn.filter((other) => other !== d)));
  const lastStep = useMemo(() => (info.length ? place.xsOf(info.length - 1) : -1), [place, info]);
  const short_ = lastStep < player.steps - 1.5 && info.length > 0;
  const ends = useMemo(() => (short_ ? { at: lastStep + 0.5 } : null), [short_, lastStep]);
  const setHover = (step) => { if (hover.current === step) return; hover.current = step; hover.write?.(); };
  const missing = useMemo(() => (coarse && !coarse.envelope ? coarse.columns.reduce((sum, ys) => sum + rangeOf(ys).missing, 0) : 0), [coarse]);

  return html`<section class="panel signal-panel" ref=${ref} data-panel=${info.name} aria-label=${`signal ${info.name}`}>
    <header>
      <h3 title=${info.name}>${info.name}</h3>
      <span class="quiet">${info.dtype} [${[grouped(info.length), ...(info.shape ?? [])].join(", ")}]${column?.fps ? ` · ${rate(column.fps)}` : ""}</span>
      ${loaded?.envelope && html`<span class="badge" title="Too many samples for the screen: the lowest and highest of every span are drawn, so no spike is lost. Zoom in for every sample.">envelope</span>`}
      ${short_ && html`<span class="badge warn">ends at step ${grouped(Math.round(lastStep))} of ${grouped(player.steps)}</span>`}
      ${missing > 0 && html`<span class="badge warn">${grouped(missing)} NaN</span>`}
      ${constant.size > 0 && html`<span class="badge" title=${[...constant].map((d) => names[d]).join(", ")}>constant (${constant.size})</span>`}
      ${overInfo && html`<span class="badge over"><svg width="16" height="6" aria-hidden="true"><line x1="0" x2="16" y1="3" y2="3" stroke="currentColor" stroke-width="2" stroke-dasharray="2 3" /></svg> ${overInfo.name}
        <button type="button" aria-label=${`Take ${overInfo.name} away`} onClick=${() => onOverlay(null)}><${Icon} name="close" size=${11} /></button></span>`}
      <span class="push"></span>
      ${loading && html`<${Spinner} />`}
      ${overlays?.length > 0 && !asHeat && html`<${Menu} icon="compare" label=${`Draw another signal over ${info.name}`}>${(close) => html`
        <p class="menu-title">Draw over this, dashed</p>
        ${overlays.map((name) => html`<button type="button" key=${name} class="menu-item" aria-pressed=${String(overInfo?.name === name)} onClick=${() => { onOverlay(overInfo?.name === name ? null : name); close(); }}>${name}</button>`)}`}<//>`}
      ${total > 4 && html`<${IconButton} icon=${asHeat ? "wave" : "grid"} label=${asHeat ? `Show ${info.name} as curves` : `Show ${info.name} as a heatmap`} onClick=${() => setAsHeat(!asHeat)} />`}
      <${IconButton} icon="close" label=${`Hide ${info.name}`} keys="H" onClick=${onHide} />
    </header>
    ${error && html`<${Trouble} error=${error} onRetry=${again} />`}
    ${!loaded && !error && html`<div class="panel-wait" style=${{ height: "150px" }}></div>`}
    ${loaded && info.length === 0 && html`<p class="quiet pad">No samples.</p>`}
    ${loaded && info.length > 0 && !asHeat && html`<div class="panel-body">
      <${Curves} player=${player} view=${view} xs=${drawing.xs} curves=${drawing.curves} ends=${ends} spans=${spans} theme=${theme}
        height=${Math.max(118, Math.min(190, 76 + drawn.length * 10))} onHover=${setHover} label=${`${info.name} over the steps`} />
      <${Legend} entries=${entries} player=${player} valueAt=${valueAt} hover=${hover} hidden=${hidden} onToggle=${toggle} onSolo=${solo} /></div>`}
    ${loaded && info.length > 0 && asHeat && html`<${Heatmap} player=${player} view=${view} loaded=${loaded} names=${names} theme=${theme}
      label=${`${info.name} as a heatmap`} />`}
    ${!asHeat && total > 16 && html`<${DimChips} names=${names} dims=${dims} onDims=${onDims} />`}
  </section>`;
}

function DimChips({ names, dims, onDims }) {
  const shown = new Set(dims);
  const [all, setAll] = useState(false);
  const most = all ? names.length : 48;
  const toggle = (d) => {
    const now = new Set(shown);
    if (!now.delete(d)) now.add(d);
    onDims([...now].sort((a, b) => a - b).slice(0, 64));
  };
  return html`<div class="chips" role="group" aria-label="dimensions">${names.slice(0, most).map((name, d) => html`
    <button type="button" key=${d} class="chip" aria-pressed=${String(shown.has(d))} onClick=${() => toggle(d)}
      style=${shown.has(d) ? { borderColor: dimColour(d) } : undefined}>${name}</button>`)}
    ${names.length > most && html`<button type="button" class="chip" onClick=${() => setAll(true)}>${names.length - most} more…</button>`}</div>`;
}
