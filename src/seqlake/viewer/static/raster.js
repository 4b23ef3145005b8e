/** Points in three dimensions on a plain canvas: a camera, and a raster with depths, so that near points hide far ones. */

import { RAMP, isDark } from "./palette.js";

const NEAR = 0.04; /* of the distance to the middle: what is nearer is not drawn */
const UNKNOWN = 0xff8a8a8a;

/** From the world to pixels. `box`: `{centre, size}`; `camera`: `{yaw, pitch, zoom, x, y}`. Straight from above there is no perspective. */
export class Projection {
  constructor(camera, box, wide, tall) {
    const { yaw, pitch, zoom, x, y } = camera;
    [this.cy, this.sy, this.cp, this.sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
    [this.mx, this.my, this.mz] = box.centre;
    this.scale = (Math.min(wide, tall * 1.7) * 0.7 * zoom) / box.size;
    this.away = (box.size * 1.9) / zoom;
    this.flat = pitch > 1.55;
    this.x = wide / 2 + x;
    this.y = tall / 2 + y;
  }

  /** `[x, y, depth, scale]` in pixels; `scale` 0: behind the eye. */
  at(px, py, pz) {
    const dx = px - this.mx;
    const dy = py - this.my;
    const dz = pz - this.mz;
    const across = dx * this.cy - dy * this.sy;
    const along = dx * this.sy + dy * this.cy;
    const deep = along * this.cp - dz * this.sp;
    const near = this.flat ? 1 : (deep + this.away) / this.away;
    const scale = near < NEAR ? 0 : this.scale / near;
    return [this.x + across * scale, this.y - (dz * this.cp + along * this.sp) * scale, deep, scale];
  }
}

/** Colours of points, packed: `[n, 6]` has them, the value of `[n, 4]` is spread over a ramp that is seen on the theme's ground. */
export function packed(columns, [low, high]) {
  const n = columns[0].length;
  const out = new Uint32Array(n);
  if (columns.length >= 6) {
    const [, , , r, g, b] = columns;
    for (let i = 0; i < n; i += 1) out[i] = (255 << 24) | (Math.round(b[i] * 255) << 16) | (Math.round(g[i] * 255) << 8) | Math.round(r[i] * 255);
    return out;
  }
  const values = columns[3];
  const [from, room] = rampPart();
  const scale = high > low ? room / (high - low) : 0;
  for (let i = 0; i < n; i += 1) {
    const value = values[i];
    out[i] = Number.isNaN(value) ? UNKNOWN : RAMP[Math.max(from, Math.min(from + room, Math.round(from + (value - low) * scale)))];
  }
  return out;
}

/** Colours of faces, packed: each as light as it is turned to or from a light above the left shoulder. */
export function shaded(columns) {
  const out = new Uint32Array(columns[0].length);
  for (let i = 0; i < out.length; i += 1) {
    const [ux, uy, uz, vx, vy, vz] = [3, 4, 5, 6, 7, 8].map((k) => columns[k][i] - columns[k % 3][i]);
    const [nx, ny, nz] = [uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx];
    const light = 0.45 + 0.55 * Math.abs((-0.36 * nx - 0.48 * ny + 0.8 * nz) / (Math.hypot(nx, ny, nz) || 1));
    const [r, g, b] = [9, 10, 11].map((k) => Math.round(Math.min(1, columns[k][i] * light) * 255));
    out[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return out;
}

/** Which part of the ramp has contrast: not its darkest on dark, not its lightest on light. */
function rampPart() { return isDark() ? [44, 211] : [0, 214]; }

export function rampGradient() {
  const [from, room] = rampPart();
  const stop = (share) => { const c = RAMP[Math.round(from + share * room)]; return `rgb(${c & 255} ${(c >> 8) & 255} ${(c >> 16) & 255})`; };
  return `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(stop).join(", ")})`;
}

export class Raster {
  constructor() { this.canvas = document.createElement("canvas"); }

  resize(wide, tall) {
    if (this.canvas.width === wide && this.canvas.height === tall && this.pixels) return;
    this.canvas.width = Math.max(1, wide);
    this.canvas.height = Math.max(1, tall);
    this.context = this.canvas.getContext("2d");
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.depths = new Float32Array(this.pixels.length);
  }

  clear() {
    this.pixels.fill(0);
    this.depths.fill(Infinity);
  }

  /** `ratio`: pixels of the raster for one of the page. */
  points(projection, { columns, colours, origin }, ratio) {
    const [xs, ys, zs] = columns;
    const { cy, sy, cp, sp, scale: wideScale, away, flat } = projection;
    const mx = projection.mx - origin[0];
    const my = projection.my - origin[1];
    const mz = projection.mz - origin[2];
    const wide = this.canvas.width;
    const tall = this.canvas.height;
    const [x0, y0] = [projection.x * ratio, projection.y * ratio];
    const { pixels, depths } = this;
    const plain = (xs.length > 60000 ? 1 : xs.length > 4000 ? 1.4 : 3) * ratio;
    for (let i = 0; i < xs.length; i += 1) {
      const dx = xs[i] - mx;
      const dy = ys[i] - my;
      const dz = zs[i] - mz;
      const along = dx * sy + dy * cy;
      const deep = along * cp - dz * sp;
      const near = flat ? 1 : (deep + away) / away;
      if (near < NEAR) continue;
      const scale = (wideScale * ratio) / near;
      const size = Math.max(1, Math.min(6 * ratio, Math.round(plain / near)));
      const left = Math.round(x0 + (dx * cy - dy * sy) * scale - size / 2);
      const top = Math.round(y0 - (dz * cp + along * sp) * scale - size / 2);
      if (left < 0 || top < 0 || left + size > wide || top + size > tall) continue;
      const colour = colours[i];
      for (let row = top; row < top + size; row += 1) {
        for (let at = row * wide + left, end = at + size; at < end; at += 1) {
          if (deep < depths[at]) { depths[at] = deep; pixels[at] = colour; }
        }
      }
    }
  }

  /** Faces `[n, 12]`: three corners and a colour, shaded by how much they look at the light; `shades`: as `shaded` gives them. */
  faces(projection, { columns, shades, origin }, ratio) {
    const { pixels, depths } = this;
    const wide = this.canvas.width;
    const tall = this.canvas.height;
    const [a, b, c] = [[], [], []];
    for (let i = 0; i < shades.length; i += 1) {
      let behind = false;
      [a, b, c].forEach((corner, k) => {
        const [x, y, deep, scale] = projection.at(columns[3 * k][i] + origin[0], columns[3 * k + 1][i] + origin[1], columns[3 * k + 2][i] + origin[2]);
        behind ||= scale === 0;
        [corner[0], corner[1], corner[2]] = [x * ratio, y * ratio, deep];
      });
      const area = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);
      if (behind || area === 0 || !Number.isFinite(area)) continue;
      const [left, right] = [Math.max(0, Math.ceil(Math.min(a[0], b[0], c[0]))), Math.min(wide - 1, Math.floor(Math.max(a[0], b[0], c[0])))];
      const [top, below] = [Math.max(0, Math.ceil(Math.min(a[1], b[1], c[1]))), Math.min(tall - 1, Math.floor(Math.max(a[1], b[1], c[1])))];
      for (let y = top; y <= below; y += 1) {
        for (let x = left; x <= right; x += 1) {
          const u = ((b[0] - x) * (c[1] - y) - (b[1] - y) * (c[0] - x)) / area;
          const v = ((c[0] - x) * (a[1] - y) - (c[1] - y) * (a[0] - x)) / area;
          const w = 1 - u - v;
          if (u < 0 || v < 0 || w < 0) continue;
          const deep = u * a[2] + v * b[2] + w * c[2];
          const at = y * wide + x;
          if (deep < depths[at]) { depths[at] = deep; pixels[at] = shades[i]; }
        }
      }
    }
  }

  onto(context, wide, tall) {
    this.context.putImageData(this.image, 0, 0);
    context.drawImage(this.canvas, 0, 0, wide, tall);
  }
}

/** Between which numbers nearly all of a column are; all of them where `share` is 0. */
export function spanOf(column, share) {
  const some = [];
  const stride = Math.max(1, Math.floor(column.length / 4000));
  for (let i = 0; i < column.length; i += stride) if (Number.isFinite(column[i])) some.push(column[i]);
  if (!some.length) return null;
  some.sort((a, b) => a - b);
  const skip = Math.floor(some.length * share);
  return [some[skip], some[some.length - 1 - skip]];
}

/** What paths and clouds fill: `{centre, size, low}`; a few points far away do not count. */
export function extentOf(paths, clouds) {
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  const take = (columns, origin, share) => {
    for (let axis = 0; axis < 3; axis += 1) {
      const span = spanOf(columns[axis], share);
      if (!span) continue;
      low[axis] = Math.min(low[axis], span[0] + origin[axis]);
      high[axis] = Math.max(high[axis], span[1] + origin[axis]);
    }
  };
  for (const path of paths) take(path.columns, path.origin, 0);
  for (const cloud of clouds) take(cloud.columns, cloud.origin, 0.03);
  if (!low.every(Number.isFinite)) return { centre: [0, 0, 0], size: 1, low: [0, 0, 0], empty: true };
  return { centre: low.map((l, axis) => (l + high[axis]) / 2), size: Math.max(1e-6, ...low.map((l, axis) => high[axis] - l)), low };
}
