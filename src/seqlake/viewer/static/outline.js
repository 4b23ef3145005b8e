/** Cards of cells that no picture is for: structs, lists and texts as a tree, bytes by their first ones, numbers by a curve. */

import { html } from "./ui.js";
import { bytes, grouped, short } from "./words.js";

function Curve({ points }) {
  const [wide, tall] = [140, 26];
  const all = points.flat().filter((x) => typeof x === "number");
  if (!all.length) return null;
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (i) => (points.length > 1 ? (i / (points.length - 1)) * wide : wide / 2);
  const y = (v) => (high > low ? tall - 2 - ((v - low) / (high - low)) * (tall - 4) : tall / 2);
  let pen = "M";
  const path = points.map(([a, b], i) => {
    if (typeof a !== "number" || typeof b !== "number") { pen = "M"; return ""; }
    const part = `${pen}${x(i).toFixed(1)} ${y(a).toFixed(1)}${b === a ? "" : `L${x(i).toFixed(1)} ${y(b).toFixed(1)}`}`;
    pen = "L";
    return part;
  }).join("");
  return html`<svg class="outline-curve" width=${wide} height=${tall} viewBox=${`0 0 ${wide} ${tall}`} aria-hidden="true"><path d=${path} stroke="currentColor" stroke-width="1.4" fill="none" /></svg>`;
}

function Leaf({ node }) {
  switch (node.kind) {
    case "null": return html`<span class="null">null</span>`;
    case "text": return html`<span class="outline-text">${node.text}${node.letters ? html`<span class="quiet"> … ${grouped(node.letters)} letters</span>` : ""}</span>`;
    case "bytes": return html`<span><b>${bytes(node.bytes)}</b> <code class="quiet">${node.head}${node.bytes > 32 ? " …" : ""}</code></span>`;
    case "numbers": return html`<span class="outline-numbers"><span>${node.of}[${grouped(node.count)}]</span>
      ${node.curve && html`<${Curve} points=${node.curve} />`}
      <span class="quiet">${node.low === undefined ? "nothing finite" : `${short(node.low)} to ${short(node.high)}, mean ${short(node.mean)}`}${node.missing ? `, ${grouped(node.missing)} missing` : ""}</span></span>`;
    case "more": return html`<span class="quiet">… ${node.type}</span>`;
    default: return html`<span class="outline-value">${node.value === null ? "NaN" : typeof node.value === "number" ? short(node.value) : String(node.value)}</span>`;
  }
}

/** A few numbers stand in one line. */
function isShort(node) { return node.kind === "list" && node.items.length > 0 && node.more === 0 && node.items.length <= 8 && node.items.every((item) => item.kind === "value" && typeof item.value === "number"); }

function Node({ name, node, open }) {
  if (isShort(node)) return html`<div class="outline-leaf">${name !== null && html`<span class="outline-name">${name}</span>`}<span class="outline-value">[${node.items.map((item) => short(item.value)).join(", ")}]</span></div>`;
  const inner = node.kind === "struct" ? node.fields : node.kind === "list" ? node.items.map((item, i) => [String(i), item]) : null;
  if (!inner) return html`<div class="outline-leaf">${name !== null && html`<span class="outline-name">${name}</span>`}<${Leaf} node=${node} /></div>`;
  const count = node.kind === "struct" ? `${grouped(inner.length + node.more)} fields` : `${grouped(node.count)} × ${node.of}`;
  if (!inner.length) return html`<div class="outline-leaf">${name !== null && html`<span class="outline-name">${name}</span>`}<span class="quiet">${node.kind === "struct" ? "{}" : "empty"}</span></div>`;
  return html`<details class="outline-node" open=${open}><summary>${name !== null && html`<span class="outline-name">${name}</span>`}<span class="quiet">${count}</span></summary>
    <div class="outline-inner">${inner.map(([key, one], i) => html`<${Node} key=${`${i}-${key}`} name=${key} node=${one} open=${false} />`)}
      ${node.more > 0 && html`<p class="quiet">… ${grouped(node.more)} more</p>`}</div></details>`;
}

/** `cell`: what `api/sequence` says of one of the others. */
export function OtherCard({ cell }) {
  return html`<article class=${`other-card ${cell.failed ? "bad" : ""}`} data-other=${cell.name}><h4>${cell.name}</h4><p class="mono quiet outline-type" title=${cell.type}>${cell.type}</p>
    ${cell.outline ? html`<div class="outline"><${Node} name=${null} node=${cell.outline} open=${true} /></div>` : html`<pre>${cell.text}</pre>`}</article>`;
}
