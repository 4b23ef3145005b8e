/** Views in three dimensions: paths of poses with the pose at the playhead, clouds of points that follow it. */

import { html, useEffect, useLoaded, useMemo, useRef, useState, useWidth, Icon, IconButton, Spinner } from "./ui.js";
import { getArray, heldAt } from "./api.js";
import { columnsOf } from "./npy.js";
import { css, dimColour } from "./palette.js";
import { placement } from "./signals.js";
import { State } from "./tiles.js";
import { Projection, Raster, extentOf, packed, rampGradient, shaded } from "./raster.js";
import { followPointerTurn } from "./turning.js";
import { grouped, plural, short } from "./words.js";

const MOST = 20000;
const KEPT = 24; /* clouds of one column */
const AHEAD = 3;
const FIRST = { yaw: -0.75, pitch: 0.55, zoom: 1, x: 0, y: 0 };
const ABOVE = { yaw: 0, pitch: Math.PI / 2, zoom: 1, x: 0, y: 0 };
const HERE = [0, 0, 0];
const AXES = [["#e5484d", "x"], ["#30a46c", "y"], ["#3e8bff", "z"]];
const APART = 8; /* times another's reach, from which on a path has a view of its own */
const NONE = [];

/** What shares a view: what names one frame of reference; paths that name none and reach about as far; each cloud that names none
 * by itself. Paths come first: a cloud takes the whole width. */
export function spacesOf(sequence, aligns) {
  const spaces = new Map();
  const into = (key, what, one) => {
    if (!spaces.has(key)) spaces.set(key, { key, paths: [], clouds: [] });
    spaces.get(key)[what].push(one);
  };
  const free = [];
  for (const info of sequence.signals) {
    if (!info.pose || info.length === 0) continue;
    const one = { info, align: aligns?.[info.name] };
    if (info.pose.frame) into(`frame ${info.pose.frame}`, "paths", one); else free.push(one);
  }
  let reach = null;
  let number = -1;
  for (const one of free.sort((a, b) => (a.info.pose.reach ?? 0) - (b.info.pose.reach ?? 0))) {
    const own = one.info.pose.reach ?? 0;
    if (reach === null || (reach > 0 && own > APART * reach)) number += 1;
    reach = own;
    into(`paths ${number}`, "paths", one);
  }
  for (const media of sequence.media) {
    if (media.kind === "points" || media.kind === "clouds") into(media.frame ? `frame ${media.frame}` : `cloud ${media.name}`, "clouds", media);
  }
  const all = [...spaces.values()].map((space) => ({ ...space, paths: space.paths.slice(0, 8) }));
  return [...all.filter((space) => !space.clouds.length), ...all.filter((space) => space.clouds.length)];
}

/** `[x, y, z, w]` as three axes. */
function axesOf([x, y, z, w]) {
  return [
    [1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)],
    [2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)],
    [2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)],
  ];
}

function usePaths(seqKey, paths, theme, colour) {
  return useLoaded(async (signal) => Promise.all(paths.map(async ({ info, align }, index) => {
    const reply = await getArray("api/poses", { ...seqKey, col: info.name, max: MOST }, signal);
    const columns = columnsOf(reply.array);
    const place = placement(info, align);
    return {
      name: info.name, pose: info.pose, colour: colour ?? dimColour(index), columns, origin: reply.origin ?? HERE,
      turn: columns.length === 7 ? columns.slice(3) : null,
      sampleAt: (step) => { const sample = step < 0 ? -1 : place.sampleAt(step); return sample < 0 ? -1 : Math.floor(sample / (reply.each ?? 1)); },
    };
  })), [seqKey.id, seqKey.row, paths, theme, colour]);
}

/** The clouds of one column: asked for one at a time, the newest wish first, those ahead while nothing else is wanted. */
class CloudTrack {
  constructor({ media, seqKey, stepOf, map, onChange }) {
    Object.assign(this, { media, seqKey, stepOf, map, onChange });
    this.kept = new Map();
    this.cloud = null;
    this.note = "";
    this.by = null;
    this.asking = false;
    this.closed = false;
  }

  numberAt(step) {
    if (this.media.kind === "points") return 0;
    const own = this.stepOf(step);
    if (own < 0) return -1;
    const k = this.map ? this.map[own] ?? -1 : own;
    return k < (this.media.count ?? Infinity) ? heldAt(this.media.exported, k) : -1;
  }

  colourBy(by) {
    this.by = by;
    this.kept.clear();
    this.follow(this.step ?? 0);
  }

  follow(step) {
    this.step = step;
    const k = this.numberAt(step);
    this.want = k;
    if (k < 0) { this.show(null, -1); return; }
    const held = this.kept.get(k);
    if (held) { this.show(held, k); this.ahead(step); } else this.ask(k);
  }

  ahead(step) {
    if (this.media.kind === "points") return;
    for (let i = 1; i <= AHEAD; i += 1) {
      const k = this.numberAt(step + i);
      if (k >= 0 && !this.kept.has(k)) { this.ask(k); return; }
    }
  }

  show(held, k) {
    if (this.k === k && this.held === held) return;
    [this.k, this.held] = [k, held];
    this.cloud = held?.cloud ?? null;
    this.onChange(this);
  }

  /** Of a file that has none, none. */
  async faces() {
    try {
      const { array, origin, of } = await getArray("api/faces", { ...this.seqKey, col: this.media.name, max: MOST });
      const columns = columnsOf(array);
      return array.shape[0] ? { columns, shades: shaded(columns), origin: origin ?? HERE, of } : null;
    } catch { return null; }
  }

  async ask(k) {
    if (this.asking || this.closed) return;
    this.asking = true;
    let held;
    const { by } = this;
    try {
      const reply = await getArray("api/points", { ...this.seqKey, col: this.media.name, k: this.media.kind === "clouds" ? k : undefined, max: MOST, color: by });
      const columns = columnsOf(reply.array);
      const mesh = this.media.mesh ? await this.faces() : null;
      held = { cloud: { mesh, columns, origin: reply.origin ?? HERE, span: reply.span ?? [0, 1], by: reply.by, choices: reply.choices, of: reply.of ?? 0, lost: reply.lost ?? 0, count: reply.array.shape[0] } };
    } catch (error) {
      held = { error };
    }
    this.asking = false;
    if (this.closed) return;
    if (by === this.by) {
      this.kept.set(k, held);
      if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
    }
    this.follow(this.step);
  }
}

function useClouds(seqKey, clouds, player, clock, stepOf, onChange) {
  const tracks = useRef(NONE);
  useEffect(() => {
    let closed = false;
    const off = [];
    (async () => {
      const made = [];
      for (const media of clouds) {
        let map = null;
        if (media.kind === "clouds") {
          try { map = (await getArray("api/align", { ...seqKey, col: media.name, clock })).array.data; } catch { /* its number is the step */ }
        }
        made.push(new CloudTrack({ media, seqKey, stepOf, map, onChange }));
      }
      if (closed) return;
      tracks.current = made;
      for (const track of made) track.follow(player.step);
      if (made.length) off.push(player.on(() => { for (const track of made) track.follow(player.step); }));
    })();
    return () => {
      closed = true;
      for (const stop of off) stop();
      for (const track of tracks.current) track.closed = true;
      tracks.current = NONE;
    };
  }, [seqKey.id, seqKey.row, clouds, player, clock, stepOf]);
  return tracks;
}

const same = (step) => step;

/** One view. `space`: as `spacesOf` gives it; `stepOf`: the sequence's own step for one of the player's; `colour`: of its paths. */
export function SpaceTile({ seqKey, space, player, theme, clock, stepOf = same, colour }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const figure = useRef(null);
  const fact = useRef(null);
  const wide = useWidth(box);
  const camera = useRef({ ...FIRST });
  const [above, setAbove] = useState(false);
  const [full, setFull] = useState(false);
  const [heads, setHeads] = useState({});
  const drawRef = useRef(() => {});
  const bounds = useRef(null);
  const { paths: asked, clouds } = space;
  const good = useMemo(() => clouds.filter((one) => one.state === "present" || one.state === "inline"), [clouds]);
  const { value: paths, error } = usePaths(seqKey, asked, theme, colour);
  const tracks = useClouds(seqKey, good, player, clock, stepOf, (track) => {
    const { media, held, k } = track;
    const about = held?.error ? { error: held.error } : held?.cloud ? { by: held.cloud.by, span: held.cloud.span, choices: held.cloud.choices, mesh: held.cloud.mesh, of: held.cloud.of, count: held.cloud.count, lost: held.cloud.lost } : { none: true };
    if (figure.current) figure.current.dataset.shown = String(k);
    setHeads((old) => ({ ...old, [media.name]: about }));
    drawRef.current();
  });

  useEffect(() => { bounds.current = null; }, [seqKey.id, seqKey.row, space]);
  useEffect(() => {
    if (wide < 60 || !paths) return undefined;
    const element = canvas.current;
    const raster = new Raster();
    const ratio = Math.min(2, devicePixelRatio || 1);
    const tall = element.parentElement.clientHeight;
    element.width = Math.round(wide * ratio);
    element.height = Math.round(tall * ratio);
    let waiting = 0;
    const draw = () => {
      waiting = 0;
      const held = tracks.current.map((track) => track.cloud).filter(Boolean);
      bounds.current = boundsNow(bounds.current, paths, held);
      const projection = new Projection(camera.current, bounds.current, wide, tall);
      const c = element.getContext("2d");
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.clearRect(0, 0, wide, tall);
      if (!bounds.current.empty) grid(c, projection, bounds.current, wide);
      if (held.length) {
        raster.resize(element.width, element.height);
        raster.clear();
        for (const cloud of held) {
          if (cloud.theme !== theme) { cloud.colours = packed(cloud.columns, cloud.span); cloud.theme = theme; }
          if (cloud.mesh) raster.faces(projection, cloud.mesh, ratio); else raster.points(projection, cloud, ratio);
        }
        raster.onto(c, wide, tall);
      }
      const own = stepOf(player.step);
      for (const path of paths) trail(c, projection, path, own, bounds.current.size);
      gizmo(c, projection, tall);
      if (fact.current) fact.current.textContent = paths.length ? positionOf(paths[0], own) : "";
      if (figure.current) figure.current.dataset.pose = paths.length ? String(paths[0].sampleAt(own)) : "";
    };
    const later = () => { if (!waiting) waiting = requestAnimationFrame(draw); };
    drawRef.current = later;
    draw();
    const stops = [player.on(later), followPointerTurn(element, camera.current, later, { flat: () => camera.current.pitch > 1.55, home: () => (camera.current.pitch > 1.55 ? ABOVE : FIRST) })];
    return () => { cancelAnimationFrame(waiting); for (const stop of stops) stop(); };
  }, [wide, paths, theme, player, full, stepOf]);

  const turnTo = (from) => {
    setAbove(from);
    Object.assign(camera.current, from ? ABOVE : FIRST);
    drawRef.current();
  };
  const names = [...asked.map((one) => one.info.name), ...clouds.map((one) => one.name)];
  const bad = clouds.find((one) => !good.includes(one));
  const failed = error ?? Object.values(heads).find((one) => one.error)?.error;
  const nothing = !paths?.length && good.length === 0;
  const state = bad && nothing ? bad.state : failed ? "broken" : "ok";
  return html`<figure class=${`tile space ${clouds.length ? "broad" : ""} ${full ? "tall" : ""}`} ref=${figure} data-tile=${names.join(" ")} data-state=${state} aria-label=${`${names.join(", ")} in three dimensions`}>
    <div class="tile-picture" ref=${box} style=${{ aspectRatio: full ? "1 / 1" : clouds.length ? "16 / 9" : "16 / 10" }}>
      <canvas ref=${canvas} class="canvas3" role="img" aria-label=${`${names.join(", ")} in three dimensions`} title="Drag to turn, shift-drag or two fingers to move, wheel to come nearer, double press to go back"></canvas>
      ${bad && nothing && html`<${State} state=${bad.state} why=${bad.why} hint=${bad.hint} place=${bad.place} />`}
      ${!nothing && !failed && (!paths || (good.length > 0 && !Object.keys(heads).length)) && html`<div class="tile-wait"><${Spinner} /></div>`}
      ${failed && (nothing || clouds.length === 1 ? html`<${State} state=${failed.code === "missing" ? "missing" : "broken"} why=${failed.message} hint=${failed.hint} place=${clouds[0]?.place} />` : html`<div class="tile-note bad">${failed.message}</div>`)}
      ${!failed && good.map((one) => heads[one.name]?.none && html`<div class="tile-note" key=${one.name}>no cloud at this step</div>`)}
      <div class="space-tools"><button type="button" class="chip" aria-pressed=${String(!above)} onClick=${() => turnTo(false)}>3D</button><button type="button" class="chip" aria-pressed=${String(above)} onClick=${() => turnTo(true)}>Top</button>
        <${IconButton} icon="expand" size=${14} label=${full ? "Make the view smaller" : "Make the view larger"} pressed=${full} onClick=${() => setFull(!full)} /></div>
    </div>
    <figcaption>
      ${asked.map(({ info }, i) => html`<span class="tile-name path-name" key=${info.name} title=${`${info.pose.reads}${info.pose.assumed ? " (assumed)" : ""}${info.pose.frame ? `, in ${info.pose.frame}` : ""}`}><i style=${{ background: colour ?? dimColour(i) }}></i>${info.name}</span>
        ${info.pose.assumed && html`<span class="badge" title=${`Nothing says how its rotation is written: ${info.pose.reads} is assumed. Name the dimensions to be sure.`}>assumed</span>`}`)}
      ${clouds.map((one) => html`<span class="tile-name" key=${one.name} title=${one.place ?? one.name}>${one.name}</span>
        ${heads[one.name]?.choices && html`<${CloudFacts} name=${one.name} head=${heads[one.name]} theme=${theme} onColour=${(by) => tracks.current.find((track) => track.media.name === one.name)?.colourBy(by)} />`}
        ${bad === one && !nothing && html`<span class="badge bad" title=${one.why ?? ""}><${Icon} name="warning" size=${12} /> ${one.state}</span>`}`)}
      <span class="push"></span><span class="quiet tile-fact" ref=${fact}></span>
    </figcaption></figure>`;
}

function CloudFacts({ name, head, onColour }) {
  const { by, span, choices, mesh, of, count, lost } = head;
  if (mesh) return html`<span class="quiet tile-frame" title="The largest are drawn">${mesh.columns[0].length < mesh.of ? `${grouped(mesh.columns[0].length)} of ` : ""}${plural(mesh.of, "face")} · ${plural(of, "point")}</span>`;
  const exact = of > count + lost ? `${grouped(count)} of ${plural(of, "point")}` : plural(count, "point");
  return html`<span class="quiet tile-frame" title=${lost ? `${grouped(lost)} of them have no place (NaN or infinite)` : "One of each of so many even parts of the file is drawn"}>${exact}${lost ? ` · ${grouped(lost)} without a place` : ""}</span>
    <label class="cloud-colour"><span class="sr">colour of ${name}</span><select value=${by} onChange=${(event) => onColour(event.target.value)}>${choices.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>
    ${by !== "rgb" && span && html`<span class="badge depth-scale" title=${`Colours from ${short(span[0])} to ${short(span[1])}`}>${short(span[0])}<i style=${{ background: rampGradient() }}></i>${short(span[1])}</span>`}`;
}

/** A cloud that has moved out of the view takes the view along; with paths, all stays where it is. */
function boundsNow(old, paths, clouds) {
  if (!clouds.length && !paths.length) return old ?? { centre: [0, 0, 0], size: 1, low: [0, 0, 0], empty: true };
  if (!old || old.empty || old.clouds !== clouds.length) return { ...extentOf(paths, clouds), clouds: clouds.length };
  if (paths.length || !clouds.length) return old;
  if (clouds[0] === old.looked) return old;
  const now = extentOf(paths, clouds);
  const far = now.centre.some((x, axis) => Math.abs(x - old.centre[axis]) > old.size / 4);
  return far ? { ...old, centre: now.centre, low: now.low, looked: clouds[0] } : { ...old, looked: clouds[0] };
}

function positionOf(path, step) {
  const now = path.sampleAt(step);
  if (now < 0 || now >= path.columns[0].length) return "no pose at this step";
  return ["x", "y", "z"].map((axis, i) => `${axis} ${short(path.columns[i][now] + path.origin[i])}`).join("  ");
}

function grid(c, projection, { centre, size, low }, wide) {
  const raw = size / 7;
  const ten = 10 ** Math.floor(Math.log10(raw));
  const every = [1, 2, 5, 10].map((m) => m * ten).find((m) => m >= raw) ?? ten * 10;
  const reach = size * 0.8;
  c.strokeStyle = css("line");
  c.lineWidth = 1;
  const from = (axis) => Math.ceil((centre[axis] - reach) / every) * every;
  const line = (ax, ay, bx, by) => {
    const parts = 8;
    c.beginPath();
    let before = null;
    for (let i = 0; i <= parts; i += 1) {
      const [x, y, , scale] = projection.at(ax + ((bx - ax) * i) / parts, ay + ((by - ay) * i) / parts, low[2]);
      if (scale > 0) { if (before) c.lineTo(x, y); else c.moveTo(x, y); }
      before = scale > 0;
    }
    c.stroke();
  };
  c.globalAlpha = 0.55;
  for (let x = from(0); x <= centre[0] + reach; x += every) line(x, centre[1] - reach, x, centre[1] + reach);
  for (let y = from(1); y <= centre[1] + reach; y += every) line(centre[0] - reach, y, centre[0] + reach, y);
  c.globalAlpha = 1;
  if (wide < 240) return;
  c.fillStyle = css("quiet");
  c.font = "10.5px ui-sans-serif, system-ui, sans-serif";
  c.fillText(`grid ${short(every)}`, 10, 18);
}

/** Three small axes in the corner say how the view is turned. */
function gizmo(c, projection, tall) {
  const at = [30, tall - 30];
  const { cy, sy, cp, sp } = projection;
  const ends = [[cy, -sy * sp, sy * cp], [-sy, -cy * sp, cy * cp], [0, -cp, -sp]].map(([x, y, deep], axis) => ({ x: at[0] + x * 17, y: at[1] + y * 17, deep, axis }));
  c.lineWidth = 2;
  c.font = "600 10px ui-sans-serif, system-ui, sans-serif";
  c.textAlign = "center";
  c.textBaseline = "middle";
  for (const { x, y, axis } of ends.sort((a, b) => b.deep - a.deep)) {
    c.strokeStyle = AXES[axis][0];
    c.fillStyle = AXES[axis][0];
    c.beginPath();
    c.moveTo(...at);
    c.lineTo(x, y);
    c.stroke();
    const away = Math.hypot(x - at[0], y - at[1]);
    if (away > 6) c.fillText(AXES[axis][1], at[0] + ((x - at[0]) * (away + 8)) / away, at[1] + ((y - at[1]) * (away + 8)) / away);
  }
  c.textAlign = "left";
  c.textBaseline = "alphabetic";
}

function trail(c, projection, path, step, size) {
  const [xs, ys, zs] = path.columns;
  const [ox, oy, oz] = path.origin;
  const now = path.sampleAt(step);
  const stride = Math.max(1, Math.floor(xs.length / 4000));
  const line = (from, to, alpha, thick) => {
    c.globalAlpha = alpha;
    c.strokeStyle = path.colour;
    c.lineWidth = thick;
    c.lineJoin = "round";
    c.beginPath();
    let pen = false;
    for (let i = from; i < to; i = i + stride < to || i === to - 1 ? i + stride : to - 1) {
      const [px, py, , scale] = Number.isFinite(xs[i]) ? projection.at(xs[i] + ox, ys[i] + oy, zs[i] + oz) : NOWHERE;
      if (!scale) { pen = false; continue; }
      if (pen) c.lineTo(px, py); else c.moveTo(px, py);
      pen = true;
    }
    c.stroke();
    c.globalAlpha = 1;
  };
  line(0, xs.length, 0.35, 1.5);
  if (now < 0 || now >= xs.length || !Number.isFinite(xs[now])) return;
  line(0, now + 1, 1, 2.5);
  const at = [xs[now] + ox, ys[now] + oy, zs[now] + oz];
  const [px, py, , scale] = projection.at(...at);
  if (!scale) return;
  if (path.turn && Number.isFinite(path.turn[0][now])) {
    axesOf(path.turn.map((column) => column[now])).forEach((axis, i) => {
      const [ex, ey, , seen] = projection.at(...at.map((v, d) => v + axis[d] * size * 0.1));
      if (!seen) return;
      [c.strokeStyle] = AXES[i];
      c.lineWidth = 2.5;
      c.beginPath();
      c.moveTo(px, py);
      c.lineTo(ex, ey);
      c.stroke();
    });
  }
  c.fillStyle = path.colour;
  c.strokeStyle = css("surface");
  c.lineWidth = 2;
  c.beginPath();
  c.arc(px, py, 5, 0, 7);
  c.fill();
  c.stroke();
}

const NOWHERE = [0, 0, 0, 0];
