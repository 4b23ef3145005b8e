/** A small histogram in the head of a column; a press on a bar filters by it. */

import { html, useLoaded, useRef, useSeen, useState } from "./ui.js";
import { getJson, queued } from "./api.js";
import { conditionsOf } from "./filter.js";
import { grouped, short } from "./words.js";

/* Of a number, the number; of a moment, its day. */
function end(value) { return typeof value === "string" ? value.slice(0, 10) : short(value); }

/** `ready`: the rows have come; what all rows are counted for does not keep them waiting. */
export function Histogram({ col, filter, ready, onPress }) {
  const ref = useRef(null);
  const seen = useSeen(ref, "50px");
  const [hover, setHover] = useState(null);
  const { value, error } = useLoaded((signal) => (seen && ready
    ? queued(() => (signal.aborted ? Promise.resolve(null) : getJson("api/histogram", { col, where: filter.where, q: filter.q, bins: 20 }, signal))) : null),
  [seen && ready, col, filter.where, filter.q]);
  const on = new Set(conditionsOf(filter.where));
  const bins = value?.bins ?? [];
  const most = Math.max(1, ...bins.map((bin) => bin.count));
  const name = (bin) => (value.kind === "values" ? String(bin.value) : `${end(bin.low)} – ${end(bin.high)}`);
  const sum = bins.reduce((all, bin) => all + bin.count, 0) + (value?.other ?? 0);
  const spread = value?.kind === "values" && value.distinct > 0 && most <= 1;
  return html`<div class="histogram" ref=${ref} data-histogram=${col}>
    ${value?.kind === "number" && html`<div class="bars" onPointerLeave=${() => setHover(null)}>${bins.map((bin, i) => html`
      <button type="button" key=${i} class=${on.has(bin.where) ? "on" : ""} aria-label=${`${col} ${name(bin)}: ${bin.count}`} onPointerEnter=${() => setHover(i)} onFocus=${() => setHover(i)} onBlur=${() => setHover(null)}
        disabled=${!bin.count} onClick=${() => onPress(bin.where)}><i style=${{ height: `${bin.count ? Math.max(6, (bin.count / most) * 100) : 0}%` }}></i></button>`)}</div>`}
    ${value?.kind === "values" && !spread && html`<div class="shares" onPointerLeave=${() => setHover(null)}>${bins.slice(0, 12).map((bin, i) => html`
      <button type="button" key=${i} class=${on.has(bin.where) ? "on" : ""} aria-label=${`${col} is ${name(bin)}: ${bin.count}`} onPointerEnter=${() => setHover(i)} onFocus=${() => setHover(i)} onBlur=${() => setHover(null)}
        style=${{ flexGrow: Math.max(bin.count, sum / 60) }} onClick=${() => onPress(bin.where)}><span>${name(bin)}</span></button>`)}
      ${sum - bins.slice(0, 12).reduce((all, bin) => all + bin.count, 0) > 0 && html`<span class="rest" style=${{ flexGrow: Math.max(sum - bins.slice(0, 12).reduce((all, bin) => all + bin.count, 0), sum / 60) }}></span>`}</div>`}
    <div class="histogram-text">${error ? html`<span title=${error.message}>no overview</span>`
    : !value ? " " : hover !== null && bins[hover] ? html`<b>${name(bins[hover])}</b> ${grouped(bins[hover].count)}`
    : value.kind === "number" ? html`<span>${end(value.min)}</span><span class="push"></span>${value.nulls > 0 && html`<span>${grouped(value.nulls)} empty</span><span class="push"></span>`}<span>${end(value.max)}</span>`
    : html`<span>${spread && value.distinct === value.count ? "all different" : `${grouped(value.distinct)} different`}</span>${value.nulls > 0 && html`<span class="push"></span><span>${grouped(value.nulls)} empty</span>`}`}</div>
  </div>`;
}
