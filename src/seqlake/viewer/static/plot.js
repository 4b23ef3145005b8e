/** A panel of curves on the shared clock: press or drag to seek, hover to read, zoom and pan together with all others. */

import { html, useEffect, useLayoutEffect, useRef, useWidth } from "./ui.js";
import { css } from "./palette.js";
import { short } from "./words.js";

const uPlot = globalThis.uPlot;

/** Texts of an axis: short, and of values that differ too little for that, how far they are from the first. */
function tickTexts(ticks) {
  const few = (text) => text.replace(/\.?0*e\+?/, "e");
  const texts = ticks.map((tick) => few(short(tick)));
  if (new Set(texts).size === texts.length) return texts;
  return ticks.map((tick, i) => (i ? `+${few(short(tick - ticks[0]))}` : texts[0]));
}

/** How far the left axis reaches in; the scrubber lines up with the plots by it. */
export const GUTTER = 52;

/** Pointer and wheel on anything that shows the clock from left to right. `stepOf(event)` is where the pointer is. */
export function followPointer(element, { stepOf, player, view, onHover = () => {}, onRange = null }) {
  let dragging = null;
  const down = (event) => {
    if (event.button !== 0) return;
    element.setPointerCapture(event.pointerId);
    const step = stepOf(event);
    if (event.shiftKey) dragging = { kind: "range", from: Math.round(step) };
    else if (event.altKey || event.metaKey) dragging = { kind: "pan", x: event.clientX, min: view.min, max: view.max };
    else { dragging = { kind: "seek", playing: player.playing }; if (player.playing) player.pause(); player.seek(step); }
    event.preventDefault();
    element.focus?.({ preventScroll: true });
  };
  const move = (event) => {
    const step = stepOf(event);
    onHover(step);
    if (!dragging) return;
    if (dragging.kind === "seek") player.seek(step);
    if (dragging.kind === "range") {
      const to = Math.round(step);
      (onRange ?? ((range) => player.setLoop(range)))({ start: Math.min(dragging.from, to), stop: Math.max(dragging.from, to) + 1 });
    }
    if (dragging.kind === "pan") {
      const per = (dragging.max - dragging.min) / Math.max(1, element.clientWidth);
      const by = (dragging.x - event.clientX) * per;
      view.set(dragging.min + by, dragging.max + by);
    }
  };
  const up = () => { dragging = null; };
  const leave = () => onHover(null);
  const wheel = (event) => {
    const per = (view.max - view.min) / Math.max(1, element.clientWidth);
    if (event.ctrlKey || event.metaKey || event.altKey) {
      event.preventDefault();
      view.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), stepOf(event));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      if (view.whole) return;
      event.preventDefault();
      view.pan((event.deltaX || event.deltaY) * per);
    }
  };
  const twice = () => view.reset();
  const events = { pointerdown: down, pointermove: move, pointerup: up, pointercancel: up, pointerleave: leave, dblclick: twice };
  for (const [name, listener] of Object.entries(events)) element.addEventListener(name, listener);
  element.addEventListener("wheel", wheel, { passive: false });
  return () => {
    for (const [name, listener] of Object.entries(events)) element.removeEventListener(name, listener);
    element.removeEventListener("wheel", wheel);
  };
}

function bands(u, ends, loop, spans) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  const x = (step) => u.valToPos(step, "x", true);
  if (loop) {
    ctx.fillStyle = css("loop");
    ctx.fillRect(x(loop.start - 0.5), bbox.top, x(loop.stop - 0.5) - x(loop.start - 0.5), bbox.height);
  }
  for (const span of spans ?? []) {
    ctx.globalAlpha = 0.16;
    ctx.fillStyle = span.colour;
    ctx.fillRect(x(span.start - 0.5), bbox.top, x(span.stop - 0.5) - x(span.start - 0.5), bbox.height);
    ctx.globalAlpha = 1;
  }
  if (ends) {
    /* The stretch that has no samples is hatched and says so. */
    const left = Math.max(bbox.left, x(ends.at));
    const right = bbox.left + bbox.width;
    if (right > left) {
      ctx.fillStyle = css("hatch");
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.strokeStyle = css("line");
      ctx.lineWidth = devicePixelRatio;
      for (let at = left - bbox.height; at < right; at += 9 * devicePixelRatio) {
        ctx.beginPath();
        ctx.moveTo(Math.max(at, left), bbox.top + bbox.height - Math.max(0, left - at));
        ctx.lineTo(at + bbox.height, bbox.top);
        ctx.stroke();
      }
    }
  }
  ctx.restore();
}

/** `curves`: `[{name, colour, dash, ys}]` over shared `xs`. */
export function Curves({ player, view, xs, curves, height = 150, ends = null, spans = null, onHover, theme, label, steps = true, bare = false }) {
  const box = useRef(null);
  const wide = useWidth(box);
  const plot = useRef(null);
  const now = useRef({});
  now.current = { onHover, spans, ends };

  useLayoutEffect(() => {
    if (wide < 40 || !xs?.length) return undefined;
    const grid = { stroke: css("grid"), width: 1 };
    const axis = { stroke: css("quiet"), font: "11px ui-sans-serif, system-ui, sans-serif", ticks: { show: false }, grid };
    const head = document.createElement("div");
    head.className = "playhead";
    const options = {
      width: wide, height, padding: [6, 8, bare ? 2 : 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "clock", setSeries: false }, drag: { x: false, y: false }, points: { show: false }, y: false },
      scales: {
        x: { time: false, range: () => [view.min - 0.5, view.max + 0.5] },
        y: { range: (u, low, high) => span(low, high) },
      },
      axes: [
        { ...axis, size: bare ? 0 : 22, show: !bare, values: (u, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) },
        { ...axis, size: GUTTER, values: (u, ticks) => tickTexts(ticks) },
      ],
      series: [{}, ...curves.map((curve) => ({
        stroke: curve.colour, dash: curve.dash?.length ? curve.dash : undefined, width: curve.width ?? 1.5, points: { show: false },
        spanGaps: false, pxAlign: false, paths: steps && xs.length < 3000 && curve.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      }))],
      hooks: {
        drawClear: [(u) => bands(u, now.current.ends, player.loop, now.current.spans)],
        setCursor: [(u) => {
          const { left } = u.cursor;
          now.current.onHover?.(left >= 0 ? player.clamp(u.posToVal(left, "x")) : null);
        }],
      },
    };
    let place = () => {};
    options.hooks.draw = [() => place()];
    const u = new uPlot(options, [xs, ...curves.map((curve) => curve.ys)], box.current);
    plot.current = u;
    u.over.append(head);
    u.over.tabIndex = -1;
    place = () => {
      const x = u.valToPos(player.playing ? Math.min(player.position - 0.5, player.steps - 1) : player.step, "x");
      head.style.transform = `translateX(${x.toFixed(1)}px)`;
      head.style.visibility = x < -1 || x > u.over.clientWidth + 1 ? "hidden" : "visible";
    };
    place();
    let loop = player.loop;
    const stops = [
      player.on(() => { place(); if (loop !== player.loop) { loop = player.loop; u.redraw(false, false); } }),
      view.on(() => { u.setScale("x", { min: view.min - 0.5, max: view.max + 0.5 }); place(); }),
      followPointer(u.over, { player, view, stepOf: (event) => u.posToVal(event.clientX - u.over.getBoundingClientRect().left, "x") }),
    ];
    return () => { for (const stop of stops) stop(); u.destroy(); plot.current = null; };
  }, [wide, height, xs, curves, theme]);

  useEffect(() => { plot.current?.redraw(false, false); }, [spans, ends?.at]);

  return html`<div class="curves" ref=${box} style=${{ height: `${height}px` }} role="img" aria-label=${label}></div>`;
}

/** A little air above and below; a constant gets a scale around itself. */
function span(low, high) {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    return [low - room, high + room];
  }
  const room = (high - low) * 0.06;
  return [low - room, high + room];
}
