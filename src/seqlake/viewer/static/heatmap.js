/** A signal with many dimensions as a picture: steps from left to right, dimensions from top to bottom, lightness for the value. */

import { html, useLayoutEffect, useMemo, useRef, useWidth } from "./ui.js";
import { GUTTER, followPointer } from "./plot.js";
import { RAMP, css, rampCss } from "./palette.js";
import { short } from "./words.js";

/** The lowest and highest value that a colour stands for: outer hundredths are cut, so that one spike does not darken all. */
export function limitsOf(columns) {
  const some = [];
  const every = Math.max(1, Math.floor((columns.length * (columns[0]?.length ?? 0)) / 20000));
  let i = 0;
  for (const column of columns) {
    for (; i < column.length; i += every) if (Number.isFinite(column[i])) some.push(column[i]);
    i -= column.length;
  }
  some.sort((a, b) => a - b);
  if (!some.length) return [0, 1];
  const low = some[Math.floor(some.length * 0.01)];
  const high = some[Math.min(some.length - 1, Math.floor(some.length * 0.99))];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

export function Heatmap({ player, view, loaded, names, onHover, theme, label }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const wide = useWidth(box);
  const limits = useMemo(() => limitsOf(loaded.columns), [loaded]);
  const rows = loaded.columns.length;
  const tall = Math.max(96, Math.min(320, rows * 4));
  const now = useRef({});
  now.current = { onHover };

  useLayoutEffect(() => {
    if (wide < 60) return undefined;
    const inside = wide - GUTTER - 8;
    const element = canvas.current;
    const scale = devicePixelRatio || 1;
    const columnsWide = Math.max(1, Math.round(inside * scale));
    element.width = columnsWide;
    element.height = rows;
    const draw = () => {
      const context = element.getContext("2d");
      const image = context.createImageData(columnsWide, rows);
      const pixels = new Uint32Array(image.data.buffer);
      const [low, high] = limits;
      const factor = 255 / (high - low || 1);
      const { xs } = loaded;
      const n = xs.length;
      let sample = 0;
      for (let px = 0; px < columnsWide; px += 1) {
        const step = view.min - 0.5 + ((px + 0.5) / columnsWide) * (view.max - view.min + 1);
        while (sample < n - 1 && xs[sample + 1] <= step + 0.5) sample += 1;
        if (step > xs[n - 1] + 0.5 + (loaded.envelope ? xs[1] - xs[0] : 0) || step < xs[0] - 0.5) continue;
        for (let d = 0; d < rows; d += 1) {
          const column = loaded.columns[d];
          const value = loaded.envelope ? (column[sample & ~1] + column[sample | 1]) / 2 : column[sample];
          if (Number.isFinite(value)) pixels[d * columnsWide + px] = RAMP[Math.max(0, Math.min(255, (value - low) * factor)) | 0];
        }
      }
      context.putImageData(image, 0, 0);
    };
    draw();
    const head = element.parentElement.querySelector(".playhead");
    const place = () => {
      const at = player.playing ? Math.min(player.position - 0.5, player.steps - 1) : player.step;
      const x = ((at - view.min + 0.5) / (view.max - view.min + 1)) * inside;
      head.style.transform = `translateX(${x.toFixed(1)}px)`;
      head.style.visibility = x < -1 || x > inside + 1 ? "hidden" : "visible";
    };
    place();
    const holder = element.parentElement;
    const stepOf = (event) => view.min - 0.5 + ((event.clientX - holder.getBoundingClientRect().left) / inside) * (view.max - view.min + 1);
    const stops = [
      player.on(place),
      view.on(() => { draw(); place(); }),
      followPointer(holder, { player, view, stepOf, onHover: (step) => now.current.onHover?.(step === null ? null : player.clamp(step)) }),
    ];
    return () => { for (const stop of stops) stop(); };
  }, [wide, loaded, limits, theme]);

  const marks = rows > 1 ? [0, Math.floor((rows - 1) / 2), rows - 1] : [0];
  return html`<div class="heatmap" ref=${box} role="img" aria-label=${label}>
    <div class="heatmap-names" style=${{ width: `${GUTTER}px`, height: `${tall}px` }} aria-hidden="true">
      ${marks.map((d) => html`<span key=${d} style=${{ top: `${((d + 0.5) / rows) * 100}%` }}>${names[d]}</span>`)}</div>
    <div class="heatmap-holder" style=${{ height: `${tall}px` }}><canvas ref=${canvas}></canvas><div class="playhead"></div></div>
    <div class="heatmap-scale" aria-hidden="true"><span>${short(limits[0])}</span>
      <i style=${{ background: `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(rampCss).join(",")})` }}></i>
      <span>${short(limits[1])}</span><em style=${{ background: css("hatch") }}></em><span>NaN or none</span></div>
  </div>`;
}
