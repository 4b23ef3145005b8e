/** A drive seen from above: the car in the middle, agents as boxes that point where they look, what traffic lights show. */

import { html, useEffect, useRef, useState, useWidth, Icon, IconButton } from "./ui.js";
import { getArray, getJson, heldAt } from "./api.js";
import { css, dimColour } from "./palette.js";
import { State } from "./tiles.js";
import { followPointerTurn } from "./turning.js";
import { grouped, plural, short } from "./words.js";

const KINDS = [["this car", 0], ["vehicles", 1], ["people", 2], ["cyclists", 3], ["others", 7]];
const METRES = 90; /* across the smaller side, at first */
const KEPT = 64;
const FONT = "10.5px ui-sans-serif, system-ui, sans-serif";
const FIRST = { yaw: 0, pitch: 0, zoom: 1, x: 0, y: 0 };
const same = (step) => step;

function kindOf(label) {
  const name = String(label ?? "").toUpperCase();
  if (name.includes("PEDESTRIAN")) return 2;
  if (name.includes("CYCL")) return 3;
  return /CAR|VAN|TRAM|BUS|TRUCK|VEHICLE/.test(name) ? 1 : 7;
}

/** The scenes of one sequence by their steps: one question at a time, the newest first, then the steps ahead. */
function useScene(seqKey, media, player, stepOf, clock, onScene, onError) {
  useEffect(() => {
    let closed = false;
    let asking = false;
    let map = null;
    const kept = new Map();
    const numberAt = (step) => { const own = stepOf(step); return heldAt(media.exported, own < 0 || !map ? own : map[own] ?? -1); };
    const look = async () => {
      if (closed) return;
      const wanted = numberAt(player.step);
      if (kept.has(wanted)) onScene(kept.get(wanted), wanted);
      else if (wanted < 0) onScene(null, -1);
      if (asking) return;
      const k = [0, 1, 2, 3].map((ahead) => numberAt(player.step + ahead)).find((one) => one >= 0 && !kept.has(one));
      if (k === undefined || (kept.size && k >= [...kept.values()][0].steps)) return;
      asking = true;
      try {
        kept.set(k, await getJson("api/scene", { ...seqKey, k }));
        if (kept.size > KEPT) kept.delete(kept.keys().next().value);
        if (!closed) onError(null);
      } catch (problem) {
        if (!closed && k === numberAt(player.step)) { onScene(null, k); onError(problem); }
        if (problem.status !== 404) closed = true;
        kept.set(k, { missing: true, steps: problem.status === 404 ? k : Infinity });
      }
      asking = false;
      look();
    };
    (async () => {
      try { map = (await getArray("api/align", { ...seqKey, col: media.columns[0], clock })).array.data; } catch { /* its number is the step */ }
      look();
    })();
    const off = player.on(look);
    return () => { closed = true; off(); };
  }, [seqKey.id, seqKey.row, media.name, player, clock, stepOf]);
}

/** `stepOf`: the sequence's own step for one of the player's. */
export function SceneTile({ seqKey, media, player, stepOf = same, theme, clock }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const figure = useRef(null);
  const wide = useWidth(box);
  const camera = useRef({ ...FIRST });
  const scene = useRef(null);
  const drawRef = useRef(() => {});
  const hover = useRef(null);
  const [ahead, setAhead] = useState(false);
  const [full, setFull] = useState(false);
  const [about, setAbout] = useState(null);
  const [error, setError] = useState(null);
  const [pointed, setPointed] = useState(null);

  useScene(seqKey, media, player, stepOf, clock, (next, k) => {
    scene.current = next?.ego ? next : null;
    if (figure.current) figure.current.dataset.shown = String(k);
    setAbout(scene.current);
    drawRef.current();
  }, setError);

  useEffect(() => {
    if (wide < 60) return undefined;
    const element = canvas.current;
    const ratio = Math.min(2, devicePixelRatio || 1);
    const tall = element.parentElement.clientHeight;
    element.width = Math.round(wide * ratio);
    element.height = Math.round(tall * ratio);
    let waiting = 0;
    const draw = () => {
      waiting = 0;
      const c = element.getContext("2d");
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.clearRect(0, 0, wide, tall);
      if (scene.current) fromAbove(c, scene.current, new Ground(scene.current, camera.current, ahead, wide, tall), hover.current);
    };
    const later = () => { if (!waiting) waiting = requestAnimationFrame(draw); };
    drawRef.current = later;
    draw();
    const point = (event) => {
      const { left, top } = element.getBoundingClientRect();
      const ground = scene.current && new Ground(scene.current, camera.current, ahead, wide, tall);
      const agent = ground && nearest(scene.current, ground, event.clientX - left, event.clientY - top);
      if (hover.current === (agent ?? null)) return;
      hover.current = agent ?? null;
      setPointed(agent ? { agent, at: ground.at(agent.x, agent.y) } : null);
      later();
    };
    const leave = () => { hover.current = null; setPointed(null); later(); };
    element.addEventListener("pointermove", point);
    element.addEventListener("pointerleave", leave);
    const off = followPointerTurn(element, camera.current, later, { flat: () => true, home: () => FIRST });
    return () => { cancelAnimationFrame(waiting); off(); element.removeEventListener("pointermove", point); element.removeEventListener("pointerleave", leave); };
  }, [wide, theme, full, ahead]);

  const turnTo = (next) => { setAhead(next); Object.assign(camera.current, FIRST); };
  return html`<figure class=${`tile space broad ${full ? "tall" : ""}`} ref=${figure} data-tile=${media.name} data-state=${error ? "failed" : "ok"} aria-label=${`${media.name} from above`}>
    <div class="tile-picture" ref=${box} style=${{ aspectRatio: full ? "1 / 1" : "16 / 9" }}>
      <canvas ref=${canvas} class="canvas3" role="img" aria-label=${about ? `${about.agents.length} agents around the car` : "scene from above"} title="Drag to move, wheel to come nearer, double press to go back"></canvas>
      ${error && html`<${State} state="failed" why=${error.message} hint=${error.hint} />`}
      ${!error && !about && html`<div class="tile-note">no scene at this step</div>`}
      <div class="space-tools"><button type="button" class="chip" aria-pressed=${String(!ahead)} onClick=${() => turnTo(false)} title="The axes of the world: y points up">North up</button>
        <button type="button" class="chip" aria-pressed=${String(ahead)} onClick=${() => turnTo(true)} title="The car looks up">Car up</button>
        <${IconButton} icon="expand" size=${14} label=${full ? "Make the scene smaller" : "Make the scene larger"} pressed=${full} onClick=${() => setFull(!full)} /></div>
      ${about && html`<${Lights} lights=${about.lights} />`}
      ${pointed && html`<div class="scene-tip" style=${{ left: `${Math.min(wide - 150, Math.max(4, pointed.at[0] + 10))}px`, top: `${Math.max(4, pointed.at[1] - 54)}px` }}>${tipOf(pointed.agent).map((text) => html`<span key=${text}>${text}</span>`)}</div>`}
    </div>
    <figcaption><span class="tile-name">${media.name}</span><span class="scene-key">${KINDS.map(([text, colour]) => html`<span key=${text}><i style=${{ background: dimColour(colour) }}></i>${text}</span>`)}</span>
      <span class="push"></span>
      ${about?.lost > 0 && html`<span class="badge warn" title="Their places are NaN or infinite"><${Icon} name="warning" size=${12} /> ${grouped(about.lost)} without a place</span>`}
      <span class="quiet tile-frame">${about ? `${plural(about.counts.agents, "agent")}${about.more ? `, the nearest ${grouped(about.agents.length)} drawn` : ""}${about.ego.speed === null ? "" : ` · ${short(Number((about.ego.speed * 3.6).toFixed(1)))} km/h`}` : ""}</span></figcaption></figure>`;
}

function tipOf(agent) {
  return [
    `${(agent.label ?? "unlabelled").toLowerCase().replaceAll("_", " ")}${agent.p === null || agent.p === undefined ? "" : ` ${Math.round(agent.p * 100)} %`}`,
    agent.id === null ? null : `track ${agent.id}`,
    agent.speed === null ? null : `${short(Number((agent.speed * 3.6).toFixed(1)))} km/h`,
  ].filter(Boolean);
}

/** Faces by their states. A store names no colours: those are on the map, which it does not hold. */
function Lights({ lights }) {
  if (!lights.length) return null;
  const byLight = new Map();
  for (const { id, light, state } of lights) {
    if (!byLight.has(light)) byLight.set(light, []);
    byLight.get(light).push({ id, state });
  }
  return html`<div class="scene-lights" role="list" aria-label="traffic lights">${[...byLight].slice(0, 12).map(([light, faces]) => html`
    <span role="listitem" key=${light} title=${`light ${light}\n${faces.map((face) => `face ${face.id}: ${face.state}`).join("\n")}`} aria-label=${`light ${light}: ${faces.filter((face) => face.state === "active").length} of ${faces.length} faces active`}>
      ${faces.slice(0, 8).map((face) => html`<i key=${face.id} data-face=${face.state}></i>`)}</span>`)}
    ${byLight.size > 12 && html`<small>${byLight.size - 12} more</small>`}</div>`;
}

/** Metres around the car to pixels. */
class Ground {
  constructor(scene, { zoom, x, y }, ahead, wide, tall) {
    this.scale = (Math.min(wide, tall) / METRES) * zoom;
    const turn = ahead ? Math.PI / 2 - (scene.ego.yaw ?? 0) : 0;
    [this.cos, this.sin, this.turn] = [Math.cos(turn), Math.sin(turn), turn];
    this.x = wide / 2 + x;
    this.y = tall / 2 + y;
    [this.wide, this.tall] = [wide, tall];
  }

  at(px, py) {
    return [this.x + (px * this.cos - py * this.sin) * this.scale, this.y - (px * this.sin + py * this.cos) * this.scale];
  }
}

function nearest(scene, ground, x, y) {
  let best = null;
  let least = 14;
  for (const agent of scene.agents) {
    const [ax, ay] = ground.at(agent.x, agent.y);
    const away = Math.hypot(ax - x, ay - y) - Math.min(12, ((agent.length ?? 1) * ground.scale) / 3);
    if (away < least) { least = away; best = agent; }
  }
  return best;
}

function fromAbove(c, scene, ground, hover) {
  const { scale: k, wide, tall } = ground;
  const [ox, oy] = ground.at(0, 0);
  c.strokeStyle = css("line");
  c.fillStyle = css("quiet");
  c.font = FONT;
  c.lineWidth = 1;
  let last = 0;
  for (const metres of [5, 10, 20, 40, 80, 160, 320]) {
    if (metres * k < 24 || metres * k - last < 40) continue;
    last = metres * k;
    c.globalAlpha = 0.7;
    c.beginPath();
    c.arc(ox, oy, metres * k, 0, 7);
    c.stroke();
    c.globalAlpha = 1;
    if (metres * k < wide) c.fillText(`${metres} m`, ox + metres * k + 4, oy - 4);
  }
  path(c, scene, ground);
  const order = [...scene.agents].sort((a, b) => kindOf(b.label) - kindOf(a.label));
  for (const agent of order) body(c, ground, agent, dimColour(kindOf(agent.label)), agent === hover, (kindOf(agent.label) === 7 ? 0.35 : 0.55 + 0.4 * (agent.p ?? 1)));
  body(c, ground, scene.ego, dimColour(0), false, 1);
  if (scene.time) {
    c.fillStyle = css("quiet");
    c.fillText(scene.time.replace("T", " ").replace("Z", " UTC"), 10, tall - 10);
  }
}

/** Where the car was, and where it will be. */
function path(c, scene, ground) {
  const trail = scene.trail ?? [];
  c.strokeStyle = dimColour(0);
  c.lineJoin = "round";
  for (const [part, alpha, dash] of [[trail.slice(0, (scene.trail_now ?? 0) + 1).concat([[0, 0]]), 0.75, []], [[[0, 0]].concat(trail.slice((scene.trail_now ?? 0) + 1)), 0.55, [3, 4]]]) {
    c.globalAlpha = alpha;
    c.lineWidth = 2;
    c.setLineDash(dash);
    c.beginPath();
    part.forEach(([px, py], i) => (i ? c.lineTo(...ground.at(px, py)) : c.moveTo(...ground.at(px, py))));
    c.stroke();
  }
  c.setLineDash([]);
  c.globalAlpha = 1;
}

function body(c, ground, one, colour, strong, alpha) {
  const [px, py] = ground.at(one.x, one.y);
  const long = Math.max(4, (one.length ?? 1) * ground.scale);
  const broad = Math.max(4, (one.width ?? 1) * ground.scale);
  if (px < -long || py < -long || px > ground.wide + long || py > ground.tall + long) return;
  c.save();
  c.translate(px, py);
  c.rotate(-(one.yaw ?? 0) - ground.turn);
  c.fillStyle = colour;
  c.globalAlpha = strong ? 1 : alpha;
  c.beginPath();
  c.roundRect(-long / 2, -broad / 2, long, broad, Math.min(3, broad / 3));
  c.fill();
  c.globalAlpha = 1;
  if (strong) { c.strokeStyle = css("ink"); c.lineWidth = 2; c.stroke(); }
  if (long > 7) {
    c.fillStyle = css("surface");
    c.beginPath();
    c.moveTo(long * 0.42, 0); c.lineTo(long * 0.16, -broad * 0.3); c.lineTo(long * 0.16, broad * 0.3);
    c.fill();
  }
  c.restore();
}
