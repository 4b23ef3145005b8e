/** Keys of the pages, and the table of them that `?` shows. */

import { html, Dialog } from "./ui.js";

const SEQUENCE = [
  ["Space, K", "play or pause"], ["← →", "one step"], ["Shift ← →", "ten steps"], ["Alt ← →", "one second"], ["Home, End", "first, last step"],
  ["J, L", "slower, faster"], ["I, O", "loop from here, to here"], ["P", "loop on or off"], ["↑ ↓, [ ]", "previous, next sequence of the filter"],
  ["1 – 9", "one video alone"], ["F", "flag"], ["N", "note"], ["C", "add to the comparison"], ["G", "go to a step or an id"], ["H", "hide the panel under the pointer"],
  ["+ − 0", "nearer, further, the whole"], ["/", "to the filter"], ["?", "this table"],
];
const TABLE = [
  ["↑ ↓", "move through the rows"], ["Enter", "open"], ["F", "flag"], ["C", "pick for the comparison"], ["Shift PageUp, PageDown", "page back, on"], ["/", "to the filter"], ["?", "this table"],
];
const POINTER = [
  ["press or drag in a plot", "seek"], ["Shift-drag", "mark a range, and loop it"], ["Ctrl-wheel", "zoom at the pointer"], ["Alt-drag, Shift-wheel", "move the stretch"], ["double press", "the whole again"],
  ["press on a legend", "hide a curve; double press: this one alone"],
];

export function KeysDialog({ page, onClose }) {
  const table = (rows) => html`<table class="plain keys"><tbody>${rows.map(([key, what]) => html`<tr key=${key}><th scope="row"><kbd>${key}</kbd></th><td>${what}</td></tr>`)}</tbody></table>`;
  return html`<${Dialog} title="Keys" onClose=${onClose} wide><div class="two">
    <div>${table(page === "" ? TABLE : SEQUENCE)}</div>
    ${page !== "" && html`<div>${table(POINTER)}</div>`}</div><//>`;
}

/** Whether a key belongs to what has the focus and not to the page. */
export function typing(event) {
  const { target } = event;
  if (event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return true;
  if (target.isContentEditable || ["TEXTAREA", "SELECT"].includes(target.tagName)) return true;
  if (target.tagName === "INPUT") return !["checkbox", "radio", "button"].includes(target.type);
  return false;
}

/** Keys of playing, for pages with a player; true where the key was one. */
export function playerKey(event, player, view) {
  const second = Math.max(1, Math.round(player.hz));
  const far = event.altKey ? second : event.shiftKey ? 10 : 1;
  const onButton = event.target.closest?.("button, a, summary");
  switch (event.key) {
    case " ": if (onButton) return false; player.toggle(); return true;
    case "k": case "K": player.toggle(); return true;
    case "ArrowLeft": player.by(-far); return true;
    case "ArrowRight": player.by(far); return true;
    case "Home": player.by(-player.steps); return true;
    case "End": player.by(player.steps); return true;
    case "j": case "J": player.slower(); return true;
    case "l": case "L": player.faster(); return true;
    case "i": case "I": player.setLoop({ start: player.step, stop: Math.max(player.loop?.stop ?? player.steps, player.step + 1) }); return true;
    case "o": case "O": player.setLoop({ start: Math.min(player.loop?.start ?? 0, player.step), stop: player.step + 1 }); return true;
    case "p": case "P": player.setLooping(!player.looping); return true;
    case "+": case "=": view.zoom(0.6, player.step); return true;
    case "-": view.zoom(1 / 0.6, player.step); return true;
    case "0": view.reset(); return true;
    default: return false;
  }
}
