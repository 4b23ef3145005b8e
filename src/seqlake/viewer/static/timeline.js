/** The scrubber: the whole sequence from left to right, with the stretch that the plots show, the loop, marked spans and event lanes. */

import { html, useEffect, useLayoutEffect, useRef, useState, useWidth, Icon, IconButton, Menu } from "./ui.js";
import { css, labelColour } from "./palette.js";
import { followPointer } from "./plot.js";
import { clockText, grouped, rate } from "./words.js";

const TRACK = 26;
const LANE = 12;

function ticks(seconds, wide) {
  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600];
  const least = (seconds / Math.max(1, wide)) * 80;
  return steps.find((step) => step >= least) ?? 7200;
}

/** `lanes`: `[{name, runs: [{start, stop, value}], values, from}]`; `spans`: `[{start, stop, label, colour}]`; `marks`: `[{step, text, severity}]`. */
export function Timeline({ player, view, lanes, spans, marks = [], theme, gaps = [] }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const wide = useWidth(box);
  const [hover, setHover] = useState(null);
  const tall = TRACK + (spans.length ? LANE : 0) + lanes.length * LANE;

  useLayoutEffect(() => {
    if (wide < 40) return undefined;
    const element = canvas.current;
    const scale = devicePixelRatio || 1;
    element.width = Math.round(wide * scale);
    element.height = Math.round(tall * scale);
    const x = (step) => ((step + 0) / player.steps) * wide;
    const draw = () => {
      const c = element.getContext("2d");
      c.setTransform(scale, 0, 0, scale, 0, 0);
      c.clearRect(0, 0, wide, tall);
      c.fillStyle = css("sunken");
      c.fillRect(0, 0, wide, TRACK);
      for (const gap of gaps) { c.fillStyle = css("hatch"); c.fillRect(x(gap.start), 0, x(gap.stop) - x(gap.start), TRACK); }
      if (!view.whole) {
        c.fillStyle = css("window");
        c.fillRect(x(view.min), 0, x(view.max + 1) - x(view.min), TRACK);
      }
      if (player.loop) {
        c.fillStyle = css("loop");
        c.fillRect(x(player.loop.start), 0, x(player.loop.stop) - x(player.loop.start), TRACK);
        c.fillStyle = css("accent");
        c.fillRect(x(player.loop.start), 0, 2, TRACK);
        c.fillRect(x(player.loop.stop) - 2, 0, 2, TRACK);
      }
      const seconds = player.steps / player.hz;
      const every = ticks(seconds, wide);
      c.font = "10.5px ui-sans-serif, system-ui, sans-serif";
      c.textBaseline = "middle";
      for (let t = 0; t <= seconds + 1e-9; t += every) {
        const at = (t / seconds) * wide;
        c.fillStyle = css("line");
        c.fillRect(Math.round(at), TRACK - 7, 1, 7);
        const text = clockText(t, every < 1 ? 1 : 0);
        if (at + 4 + c.measureText(text).width < wide) { c.fillStyle = css("quiet"); c.fillText(text, at + 4, TRACK - 8); }
      }
      for (const mark of marks) {
        c.fillStyle = css(mark.severity === "error" ? "bad" : "warn");
        const at = x(mark.step + 0.5);
        c.beginPath();
        c.moveTo(at - 4, 0); c.lineTo(at + 4, 0); c.lineTo(at, 6);
        c.fill();
      }
      let top = TRACK;
      if (spans.length) {
        for (const span of spans) {
          c.fillStyle = span.colour;
          c.fillRect(x(span.start), top + 2, Math.max(2, x(span.stop) - x(span.start)), LANE - 3);
        }
        top += LANE;
      }
      for (const lane of lanes) {
        for (const run of lane.runs) {
          const off = run.value === 0 || run.value === null;
          c.globalAlpha = off ? 0.25 : 0.9;
          c.fillStyle = off ? css("line") : labelColour(lane.values.indexOf(run.value));
          c.fillRect(x(run.start), top + 2, Math.max(1, x(run.stop) - x(run.start) - 0.5), LANE - 3);
        }
        c.globalAlpha = 1;
        top += LANE;
      }
    };
    draw();
    const holder = box.current;
    const head = holder.querySelector(".playhead");
    const place = () => {
      const at = player.playing ? player.position : player.step + 0.5;
      head.style.transform = `translateX(${x(at).toFixed(1)}px)`;
      holder.setAttribute("aria-valuenow", String(player.step));
      holder.setAttribute("aria-valuetext", `step ${player.step} of ${player.steps}, ${clockText(player.seconds())}`);
    };
    place();
    let loop = player.loop;
    const stops = [
      player.on(() => { place(); if (loop !== player.loop) { loop = player.loop; draw(); } }),
      view.on(draw),
      followPointer(holder, {
        player, view,
        stepOf: (event) => ((event.clientX - holder.getBoundingClientRect().left) / Math.max(1, wide)) * player.steps - 0.5,
        onHover: (step) => setHover(step === null ? null : player.clamp(step)),
      }),
    ];
    return () => { for (const stop of stops) stop(); };
  }, [wide, tall, lanes, spans, marks, theme, player, gaps]);

  const texts = hover === null ? [] : [
    `step ${grouped(hover)} · ${clockText(player.seconds(hover))}`,
    ...spans.filter((span) => span.start <= hover && hover < span.stop).map((span) => span.label),
    ...lanes.map((lane) => {
      const run = lane.runs.find((one) => one.start <= hover && hover < one.stop);
      return run ? `${lane.name} = ${lane.boolean ? Boolean(run.value) : run.value ?? "none"}` : null;
    }),
    ...marks.filter((mark) => Math.abs(mark.step - hover) <= player.steps / Math.max(1, wide) * 4).map((mark) => mark.text),
  ].filter(Boolean);

  return html`<div class="timeline">
    <div class="timeline-names" style=${{ paddingTop: `${TRACK}px` }} aria-hidden="true">
      ${spans.length > 0 && html`<span style=${{ height: `${LANE}px` }}>spans</span>`}
      ${lanes.map((lane) => html`<span key=${lane.name} style=${{ height: `${LANE}px` }} title=${lane.name}>${lane.name}</span>`)}</div>
    <div class="timeline-track" ref=${box} role="slider" tabindex="0" aria-label="position" aria-valuemin="0" aria-valuemax=${player.steps - 1}
      style=${{ height: `${tall}px` }}>
      <canvas ref=${canvas} style=${{ width: "100%", height: `${tall}px` }}></canvas>
      <div class="playhead"></div>
      ${hover !== null && html`<div class="hover-note" style=${{ left: `${((hover + 0.5) / player.steps) * 100}%` }}
        data-side=${hover > player.steps * 0.8 ? "left" : "right"}>${texts.map((text, i) => html`<div key=${i}>${text}</div>`)}</div>`}
    </div></div>`;
}

/** Buttons of playing, the step and the time. */
export function Transport({ player, clock, onClock, children }) {
  const [, redraw] = useState(0);
  const stepRef = useRef(null);
  const timeRef = useRef(null);
  const state = useRef("");
  useEffect(() => {
    const write = () => {
      if (stepRef.current && document.activeElement !== stepRef.current) stepRef.current.value = String(player.step);
      if (timeRef.current) timeRef.current.textContent = clockText(player.seconds(), 2);
      const now = `${player.playing}|${player.waiting}|${player.rate}|${player.looping}|${player.loop?.start}|${player.loop?.stop}`;
      if (now !== state.current) { state.current = now; redraw((n) => n + 1); }
    };
    write();
    return player.on(write);
  }, [player]);
  const jump = (event) => {
    const value = event.target.value.trim();
    if (value !== "" && Number.isFinite(Number(value))) player.seek(Number(value));
    event.target.blur();
  };
  return html`<div class="transport" role="group" aria-label="playing">
    <div class="transport-buttons">
      <${IconButton} icon="first" label="First step" keys="Home" onClick=${() => player.by(-player.steps)} cls="wide-only" />
      <${IconButton} icon="back" label="One step back" keys="←" onClick=${() => player.by(-1)} />
      <button type="button" class="play-button" aria-label=${player.playing ? "Pause" : "Play"} title=${`${player.playing ? "Pause" : "Play"} (Space)`}
        onClick=${() => player.toggle()}>${player.playing && player.waiting ? html`<span class="spinner light"></span>` : html`<${Icon} name=${player.playing ? "pause" : "play"} size=${18} />`}</button>
      <${IconButton} icon="ahead" label="One step ahead" keys="→" onClick=${() => player.by(1)} />
      <${IconButton} icon="last" label="Last step" keys="End" onClick=${() => player.by(player.steps)} cls="wide-only" />
    </div>
    <div class="transport-time"><span ref=${timeRef} class="time"></span>
      <label class="step-field"><span class="sr">step</span><input ref=${stepRef} inputmode="numeric" size=${String(player.steps).length} aria-label="go to step"
        onKeyDown=${(event) => { if (event.key === "Enter") jump(event); if (event.key === "Escape") event.target.blur(); event.stopPropagation(); }} onBlur=${() => { if (stepRef.current) stepRef.current.value = String(player.step); }} />
        <span class="quiet">/ ${grouped(player.steps - 1)}</span></label></div>
    <${Menu} label="Speed" text=${`${player.rate}×`} icon="time" align="up" cls="speed">${(close) => [0.1, 0.25, 0.5, 1, 1.5, 2, 4, 8].map((r) => html`
      <button type="button" class="menu-item" key=${r} aria-pressed=${String(player.rate === r)} onClick=${() => { player.setRate(r); close(); }}>${r}×</button>`)}<//>
    <${IconButton} icon="loop" label=${player.loop ? `Loop from ${player.loop.start} to ${player.loop.stop - 1}` : "Loop the whole"} keys="P" pressed=${player.looping}
      onClick=${() => player.setLooping(!player.looping)} />
    ${player.loop && html`<span class="loop-range">${grouped(player.loop.start)}–${grouped(player.loop.stop - 1)}
      <button type="button" aria-label="Drop the range" onClick=${() => player.setLoop(null)}><${Icon} name="close" size=${12} /></button></span>`}
    <span class="push"></span>
    ${children}
    ${clock?.hz && html`<${Menu} label="Clock" icon="time" text=${`clock ${rate(clock.hz)}`} align="up" cls="clock-menu">${(close) => html`
      <p class="menu-title">Why this clock</p><p class="menu-text">${clock.why}</p>
      ${clock.choices?.length > 0 && html`<p class="menu-title">Use instead</p>
        <button type="button" class="menu-item" onClick=${() => { onClock(null); close(); }}>by the rule</button>
        ${clock.choices.map((choice) => html`<button type="button" key=${choice.name} class="menu-item" onClick=${() => { onClock(choice.name); close(); }}>
          ${choice.name}<i>${rate(choice.hz)}</i></button>`)}`}`}<//>`}
  </div>`;
}
