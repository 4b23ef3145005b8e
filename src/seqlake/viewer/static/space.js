/** A view in three dimensions on a plain canvas: paths of poses, the pose at the playhead, clouds of points. Drag to turn, wheel to come nearer. */

import { html, useEffect, useLoaded, useRef, useState, useWidth, IconButton, Spinner } from "./ui.js";
import { getArray, getJson } from "./api.js";
import { columnsOf } from "./npy.js";
import { css, dimColour, rampCss } from "./palette.js";
import { placement } from "./signals.js";
import { followPointerTurn } from "./turning.js";
import { grouped, short } from "./words.js";

/** `[w, x, y, z]` turns the three axes. */
function axesOf([w, x, y, z]) {
  return [
    [1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)],
    [2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)],
    [2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)],
  ];
}

function extent(paths, clouds) {
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  for (const columns of [...paths.map((path) => path.position), ...clouds]) {
    for (let axis = 0; axis < 3; axis += 1) {
      const column = columns[axis];
      if (!column) { low[axis] = Math.min(low[axis], 0); high[axis] = Math.max(high[axis], 0); continue; }
      for (let i = 0; i < column.length; i += 1) {
        if (column[i] < low[axis]) low[axis] = column[i];
        if (column[i] > high[axis]) high[axis] = column[i];
      }
    }
  }
  if (!Number.isFinite(low[0])) return { centre: [0, 0, 0], size: 1 };
  return { centre: low.map((l, axis) => (l + high[axis]) / 2), size: Math.max(1e-9, ...low.map((l, axis) => high[axis] - l)), low, high };
}

/** `poses`: `[{info, pose, align, name, sampleOf}]`; `points`: media of kinds `points` and `clouds`. */
export function SpaceTile({ seqKey, poses, points, player, theme, label = "space", clock }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const wide = useWidth(box);
  const camera = useRef({ yaw: -0.9, pitch: 0.5, zoom: 1, x: 0, y: 0 });
  const [full, setFull] = useState(false);
  const [note, setNote] = useState("");

  const { value: paths } = useLoaded(async (signal) => Promise.all(poses.map(async (one, index) => {
    const want = [...one.pose.position, ...(one.pose.rotation ?? [])];
    const wide_ = one.info.length * want.length > 300000;
    const reply = await getArray("api/signal", { ...seqKey, col: one.info.name, dims: want.join(","), points: wide_ ? 3000 : undefined }, signal);
    let columns = columnsOf(reply.array);
    if (reply.envelope) columns = columns.slice(0, want.length);
    else if (columns.length > want.length) columns = want.map((d) => columns[d]);
    const place = placement(one.info, one.align);
    const each = reply.envelope ? one.info.length / columns[0].length : 1;
    const deep = one.pose.position.length;
    return {
      name: one.info.name, colour: one.colour ?? dimColour(index), position: columns.slice(0, deep),
      rotation: columns.length === deep + 4 ? columns.slice(deep) : null, order: one.pose.order ?? "xyzw",
      sampleAt: (step) => { const sample = place.sampleAt(one.stepOf ? one.stepOf(step) : step); return sample < 0 ? -1 : Math.floor(sample / each); },
    };
  })), [seqKey.id, seqKey.row, poses, theme]);

  const clouds = useRef(new Map());
  const drawRef = useRef(() => {});
  const wanted = useRef({ busy: new Set() });
  const mapping = useRef(new Map());

  useEffect(() => {
    clouds.current.clear();
    mapping.current.clear();
    let closed = false;
    const fetchNow = () => {
      for (const one of points) {
        const map = mapping.current.get(one.name);
        const k = one.kind === "clouds" ? (map ? map[player.step] ?? -1 : player.step) : 0;
        const held = clouds.current.get(one.name);
        if (k < 0) { if (held) { clouds.current.delete(one.name); drawRef.current(); } continue; }
        if (held?.k === k || wanted.current.busy.has(one.name)) continue;
        wanted.current.busy.add(one.name);
        getArray("api/points", { ...seqKey, col: one.name, k: one.kind === "clouds" ? k : undefined, max: 20000 }).then((reply) => {
          if (closed) return;
          clouds.current.set(one.name, { k, columns: columnsOf(reply.array) });
          const n = reply.array.shape[0];
          setNote(reply.of && reply.of > n ? `${grouped(n)} of ${grouped(reply.of)} points` : `${grouped(n)} points`);
          drawRef.current();
        }, (error) => { clouds.current.set(one.name, { k, columns: null }); setNote(error.message); })
          .finally(() => { wanted.current.busy.delete(one.name); if (!closed) setTimeout(fetchNow, 0); });
      }
    };
    (async () => {
      for (const one of points) {
        if (one.kind !== "clouds") continue;
        try { mapping.current.set(one.name, (await getArray("api/align", { ...seqKey, col: one.name, clock })).array.data); } catch { /* its k is the step */ }
      }
      if (!closed) fetchNow();
    })();
    const off = points.length ? player.on(fetchNow) : () => {};
    return () => { closed = true; off(); };
  }, [seqKey.id, seqKey.row, points, player]);

  useEffect(() => {
    if (wide < 60 || !paths) return undefined;
    const element = canvas.current;
    const scale = devicePixelRatio || 1;
    const tall = element.parentElement.clientHeight;
    element.width = Math.round(wide * scale);
    element.height = Math.round(tall * scale);
    let box3 = null;
    let framed = 0;
    const draw = () => {
      const held = [...clouds.current.values()].map((cloud) => cloud.columns).filter(Boolean);
      if (!box3 || framed !== held.length) { box3 = extent(paths, held); framed = held.length; }
      const { yaw, pitch, zoom, x: shiftX, y: shiftY } = camera.current;
      const c = element.getContext("2d");
      c.setTransform(scale, 0, 0, scale, 0, 0);
      c.clearRect(0, 0, wide, tall);
      const k = (Math.min(wide, tall) * 0.62 * zoom) / box3.size;
      const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
      const [mx, my, mz] = box3.centre;
      const project = (px, py, pz) => {
        const dx = px - mx;
        const dy = py - my;
        const dz = pz - mz;
        const across = dx * cy - dy * sy;
        const deep = dx * sy + dy * cy;
        return [wide / 2 + shiftX + across * k, tall / 2 + shiftY - (dz * cp + deep * sp) * k, deep * cp - dz * sp];
      };
      grid(c, project, box3);
      for (const columns of held) cloud(c, project, columns, box3);
      for (const path of paths) trail(c, project, path, player.step, box3.size);
    };
    drawRef.current = draw;
    draw();
    const stops = [player.on(draw), followPointerTurn(element, camera.current, draw)];
    return () => { for (const stop of stops) stop(); };
  }, [wide, paths, theme, player, full]);

  return html`<figure class=${`tile space ${full ? "solo" : ""}`} data-tile=${label} data-state="ok" aria-label="view in three dimensions">
    <div class="tile-picture" ref=${box} style=${{ aspectRatio: "16 / 10" }}><canvas ref=${canvas} class="canvas3" title="Drag to turn, shift-drag to move, wheel to come nearer, double press to go back"></canvas>
      ${!paths && html`<div class="tile-wait"><${Spinner} /></div>`}</div>
    <figcaption><span class="tile-name">${[...poses.map((one) => one.info.name), ...points.map((one) => one.name)].join(", ")}</span>
      <span class="push"></span><span class="quiet tile-fact">${note || "drag to turn"}</span>
      <${IconButton} icon="expand" size=${14} label="Make the view in three dimensions larger" pressed=${full} onClick=${() => setFull(!full)} /></figcaption></figure>`;
}

function grid(c, project, { centre, size, low }) {
  const raw = size / 6;
  const ten = 10 ** Math.floor(Math.log10(raw));
  const every = [1, 2, 5, 10].map((m) => m * ten).find((m) => m >= raw) ?? ten * 10;
  const floor = low ? low[2] : 0;
  const reach = size * 0.75;
  c.strokeStyle = css("grid");
  c.lineWidth = 1;
  c.beginPath();
  const from = (axis) => Math.floor((centre[axis] - reach) / every) * every;
  for (let x = from(0); x <= centre[0] + reach; x += every) {
    c.moveTo(...project(x, centre[1] - reach, floor)); c.lineTo(...project(x, centre[1] + reach, floor));
  }
  for (let y = from(1); y <= centre[1] + reach; y += every) {
    c.moveTo(...project(centre[0] - reach, y, floor)); c.lineTo(...project(centre[0] + reach, y, floor));
  }
  c.stroke();
  c.fillStyle = css("quiet");
  c.font = "10.5px ui-sans-serif, system-ui, sans-serif";
  c.fillText(`grid ${short(every)}`, 8, 16);
}

function trail(c, project, path, step, size) {
  const [xs, ys, zs] = path.position;
  const now = path.sampleAt(step);
  const stride = Math.max(1, Math.floor(xs.length / 2000));
  const line = (from, to, alpha, thick) => {
    c.globalAlpha = alpha;
    c.strokeStyle = path.colour;
    c.lineWidth = thick;
    c.beginPath();
    let pen = false;
    for (let i = from; i < to; i += stride) {
      if (!Number.isFinite(xs[i])) { pen = false; continue; }
      const [px, py] = project(xs[i], ys[i], zs ? zs[i] : 0);
      if (pen) c.lineTo(px, py); else c.moveTo(px, py);
      pen = true;
    }
    c.stroke();
    c.globalAlpha = 1;
  };
  line(0, xs.length, 0.3, 1.3);
  if (now < 0 || now >= xs.length || !Number.isFinite(xs[now])) return;
  line(0, now + 1, 1, 2);
  const at = [xs[now], ys[now], zs ? zs[now] : 0];
  if (path.rotation) {
    const q = path.rotation.map((column) => column[now]);
    const axes = axesOf(path.order === "wxyz" ? q : [q[3], q[0], q[1], q[2]]);
    ["#e5484d", "#30a46c", "#3e8bff"].forEach((colour, axis) => {
      c.strokeStyle = colour;
      c.lineWidth = 2.5;
      c.beginPath();
      c.moveTo(...project(...at).slice(0, 2));
      c.lineTo(...project(...at.map((v, i) => v + axes[axis][i] * size * 0.09)).slice(0, 2));
      c.stroke();
    });
  }
  const [px, py] = project(...at);
  c.fillStyle = path.colour;
  c.strokeStyle = css("surface");
  c.lineWidth = 2;
  c.beginPath();
  c.arc(px, py, 5, 0, 7);
  c.fill();
  c.stroke();
}

function cloud(c, project, columns, { low, high }) {
  const [xs, ys, zs, r, g, b] = columns;
  const room = (high?.[2] ?? 1) - (low?.[2] ?? 0) || 1;
  for (let i = 0; i < xs.length; i += 1) {
    const [px, py] = project(xs[i], ys[i], zs[i]);
    if (px < 0 || py < 0) continue;
    c.fillStyle = r ? `rgb(${r[i] * 255} ${g[i] * 255} ${b[i] * 255})` : rampCss((zs[i] - low[2]) / room);
    c.fillRect(px, py, 1.6, 1.6);
  }
}

/** What is seen from above at a step: agents as boxes, the way of the car, lights. Metres around the car. */
export function SceneTile({ seqKey, media, player, stepOf = (step) => step, theme }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const wide = useWidth(box);
  const camera = useRef({ yaw: 0, pitch: 0, zoom: 1, x: 0, y: 0 });
  const scene = useRef(null);
  const drawRef = useRef(() => {});
  const [about, setAbout] = useState("");
  const [error, setError] = useState(null);
  const shown = useRef(null);

  useEffect(() => {
    let closed = false;
    let busy = false;
    const look = () => {
      const k = stepOf(player.step);
      if (closed || busy || k < 0 || scene.current?.k === k) return;
      busy = true;
      getJson("api/scene", { ...seqKey, k }).then((reply) => {
        if (closed) return;
        scene.current = { ...reply, k };
        setError(null);
        setAbout(`${reply.agents.length} agents${reply.lights.length ? ` · ${reply.lights.length} lights` : ""}`);
        drawRef.current();
        if (shown.current) shown.current.dataset.shown = String(k);
      }, (problem) => { if (!closed) { scene.current = { k }; setError(problem); } }).finally(() => { busy = false; look(); });
    };
    look();
    const off = player.on(look);
    return () => { closed = true; off(); };
  }, [seqKey.id, seqKey.row, media.name, player]);

  useEffect(() => {
    if (wide < 60) return undefined;
    const element = canvas.current;
    const scale = devicePixelRatio || 1;
    const tall = element.parentElement.clientHeight;
    element.width = Math.round(wide * scale);
    element.height = Math.round(tall * scale);
    const draw = () => {
      const c = element.getContext("2d");
      c.setTransform(scale, 0, 0, scale, 0, 0);
      c.clearRect(0, 0, wide, tall);
      if (scene.current?.ego) fromAbove(c, scene.current, wide, tall, camera.current);
    };
    drawRef.current = draw;
    draw();
    return followPointerTurn(element, camera.current, draw, true);
  }, [wide, theme]);

  return html`<figure class="tile space" ref=${shown} data-tile=${media.name} data-state=${error ? "failed" : "ok"} aria-label=${`scene ${media.name} from above`}>
    <div class="tile-picture" ref=${box} style=${{ aspectRatio: "16 / 10" }}><canvas ref=${canvas} class="canvas3" title="Drag to move, wheel to come nearer, double press to go back"></canvas>
      ${error && html`<div class="tile-note bad">${error.message}</div>`}</div>
    <figcaption><span class="tile-name">${media.name}</span><span class="scene-key">
      ${KINDS.map(([kind, text], i) => html`<span key=${kind}><i style=${{ background: dimColour(i) }}></i>${text}</span>`)}</span><span class="push"></span>
      <span class="quiet tile-fact">${about}</span></figcaption></figure>`;
}

const KINDS = [["EGO", "this car"], ["CAR", "cars"], ["PEDESTRIAN", "people"], ["CYCLIST", "cyclists"]];

function kindOf(label) {
  const name = String(label ?? "").toUpperCase();
  if (name.includes("PEDESTRIAN")) return 2;
  if (name.includes("CYCL")) return 3;
  return 1;
}

function fromAbove(c, scene, wide, tall, { zoom, x, y }) {
  const k = (Math.min(wide, tall) / 90) * zoom;
  const [ox, oy] = [wide / 2 + x, tall / 2 + y];
  const place = (px, py) => [ox + (px - scene.ego.x) * k, oy - (py - scene.ego.y) * k];
  c.strokeStyle = css("grid");
  c.lineWidth = 1;
  for (const metres of [10, 20, 40, 80, 160]) {
    c.beginPath();
    c.arc(ox, oy, metres * k, 0, 7);
    c.stroke();
    if (metres * k < wide / 2 && metres * k > 30) {
      c.fillStyle = css("quiet");
      c.font = "10.5px ui-sans-serif, system-ui, sans-serif";
      c.fillText(`${metres} m`, ox + metres * k + 3, oy - 3);
    }
  }
  if (scene.trail?.length) {
    c.strokeStyle = dimColour(0);
    c.globalAlpha = 0.6;
    c.lineWidth = 2;
    c.beginPath();
    scene.trail.forEach(([px, py], i) => (i ? c.lineTo(...place(px, py)) : c.moveTo(...place(px, py))));
    c.stroke();
    c.globalAlpha = 1;
  }
  const body = (one, colour, strong) => {
    const [px, py] = place(one.x, one.y);
    const long = Math.max(4, (one.length ?? 1) * k);
    const broad = Math.max(4, (one.width ?? 1) * k);
    c.save();
    c.translate(px, py);
    c.rotate(-(one.yaw ?? 0));
    c.fillStyle = colour;
    c.globalAlpha = strong ? 1 : 0.35 + 0.5 * (one.p ?? 1);
    c.beginPath();
    c.roundRect(-long / 2, -broad / 2, long, broad, Math.min(3, broad / 3));
    c.fill();
    c.globalAlpha = 1;
    c.fillStyle = css("surface");
    c.beginPath();
    c.moveTo(long * 0.42, 0); c.lineTo(long * 0.16, -broad * 0.3); c.lineTo(long * 0.16, broad * 0.3);
    c.fill();
    c.restore();
  };
  for (const agent of scene.agents) body(agent, dimColour(kindOf(agent.label)), false);
  body(scene.ego, dimColour(0), true);
  scene.lights?.slice(0, 8).forEach((light, i) => {
    c.fillStyle = { red: "#e5484d", yellow: "#f5b800", green: "#30a46c" }[light.state] ?? css("quiet");
    c.beginPath();
    c.arc(14 + i * 16, 16, 5.5, 0, 7);
    c.fill();
    c.fillStyle = "#fff";
    c.font = "bold 8px ui-sans-serif, system-ui, sans-serif";
    c.textAlign = "center";
    c.fillText(({ red: "R", yellow: "Y", green: "G" })[light.state] ?? "?", 14 + i * 16, 19);
    c.textAlign = "left";
  });
  if (scene.time) {
    c.fillStyle = css("quiet");
    c.font = "10.5px ui-sans-serif, system-ui, sans-serif";
    c.fillText(scene.time.replace("T", " "), 8, tall - 8);
  }
}
