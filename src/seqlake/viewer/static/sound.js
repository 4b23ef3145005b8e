/** Sound: its envelope on the shared clock, and the sound itself following the player. */

import { html, useEffect, useLayoutEffect, useLoaded, useRef, useState, useWidth, IconButton, Spinner, Trouble } from "./ui.js";
import { getArray, sourceOf } from "./api.js";
import { columnsOf } from "./npy.js";
import { SoundTrack, preloadOf } from "./player.js";
import { GUTTER, followPointer } from "./plot.js";
import { css, dimColour } from "./palette.js";
import { clockText, rate } from "./words.js";

export function AudioPanel({ seqKey, media, player, view, theme }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const audio = useRef(null);
  const wide = useWidth(box);
  const [loud, setLoud] = useState(true);
  const [silent, setSilent] = useState(false);
  const { value, error, again } = useLoaded(async (signal) => {
    const reply = await getArray("api/audio", { ...seqKey, col: media.name, points: 2000 }, signal);
    const source = await sourceOf("media", { ...seqKey, col: media.name });
    return { columns: columnsOf(reply.array), rate: reply.rate, seconds: reply.seconds ?? player.seconds(player.steps), source };
  }, [seqKey.id, seqKey.row, media.name]);

  useEffect(() => {
    if (!value || !audio.current) return undefined;
    const track = new SoundTrack(audio.current, { hz: player.hz, seconds: value.seconds });
    const off = player.add(track);
    return () => { off(); track.close(); };
  }, [value, player]);
  useEffect(() => { if (audio.current) audio.current.muted = !loud; }, [loud, value]);

  useLayoutEffect(() => {
    if (!value || wide < 60) return undefined;
    const inside = wide - GUTTER - 8;
    const element = canvas.current;
    const scale = devicePixelRatio || 1;
    const tall = 64;
    element.width = Math.round(inside * scale);
    element.height = tall * scale;
    const channels = value.columns.length / 2;
    const points = value.columns[0]?.length ?? 0;
    const draw = () => {
      const c = element.getContext("2d");
      c.setTransform(scale, 0, 0, scale, 0, 0);
      c.clearRect(0, 0, inside, tall);
      const each = tall / channels;
      for (let channel = 0; channel < channels; channel += 1) {
        const middle = each * (channel + 0.5);
        c.fillStyle = css("line");
        c.fillRect(0, middle, inside, 1);
        c.fillStyle = dimColour(channel);
        for (let px = 0; px < inside; px += 1) {
          const step = view.min - 0.5 + (px / inside) * (view.max - view.min + 1);
          const next = view.min - 0.5 + ((px + 1) / inside) * (view.max - view.min + 1);
          const from = Math.max(0, Math.floor((step / player.hz / value.seconds) * points));
          const to = Math.min(points, Math.max(from + 1, Math.ceil((next / player.hz / value.seconds) * points)));
          let low = Infinity;
          let high = -Infinity;
          for (let i = from; i < to; i += 1) {
            low = Math.min(low, value.columns[channel][i]);
            high = Math.max(high, value.columns[channels + channel][i]);
          }
          if (high >= low) c.fillRect(px, middle - high * each * 0.48, 1, Math.max(1, (high - low) * each * 0.48));
        }
      }
    };
    draw();
    const holder = element.parentElement;
    const head = holder.querySelector(".playhead");
    const place = () => {
      const at = player.playing ? player.position - 0.5 : player.step;
      const x = ((at - view.min + 0.5) / (view.max - view.min + 1)) * inside;
      head.style.transform = `translateX(${x.toFixed(1)}px)`;
      head.style.visibility = x < -1 || x > inside + 1 ? "hidden" : "visible";
    };
    place();
    const stops = [player.on(place), view.on(() => { draw(); place(); }), followPointer(holder, {
      player, view, stepOf: (event) => view.min - 0.5 + ((event.clientX - holder.getBoundingClientRect().left) / inside) * (view.max - view.min + 1),
    })];
    return () => { for (const stop of stops) stop(); };
  }, [wide, value, theme, player]);

  return html`<section class="panel" ref=${box} data-panel=${media.name} aria-label=${`sound ${media.name}`}>
    <header><h3>${media.name}</h3><span class="quiet">sound${value ? ` · ${clockText(value.seconds, 1)} · ${rate(value.rate)}` : ""}</span>
      ${silent && html`<span class="badge warn">this browser does not play it</span>`}<span class="push"></span>
      <${IconButton} icon="sound" label=${loud ? `Mute ${media.name}` : `Let ${media.name} sound`} pressed=${loud} onClick=${() => setLoud(!loud)} /></header>
    ${error && html`<${Trouble} error=${error} onRetry=${again} />`}
    ${!value && !error && html`<div class="panel-wait" style=${{ height: "64px" }}><${Spinner} /></div>`}
    ${value && html`<div class="heatmap-holder audio" style=${{ marginLeft: `${GUTTER}px`, height: "64px" }}><canvas ref=${canvas}></canvas><div class="playhead"></div></div>
      <audio ref=${audio} src=${value.source} preload=${preloadOf(media)} onError=${() => setSilent(true)}></audio>`}
  </section>`;
}
