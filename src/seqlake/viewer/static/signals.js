/** Signals: their numbers from the server, placed on the clock, and what can be said of them. */

import { getArray } from "./api.js";
import { columnsOf } from "./npy.js";

/** More values than this are asked for as an envelope first. */
const MANY = 300000;
const POINTS = 1500;
const LINES = 16;
export const HEAT = 32;

export function width(info) {
  return (info.shape ?? []).reduce((product, n) => product * n, 1);
}

/** `{columns, xs, envelope, start, stop, length, low, high}`; an envelope has its two columns per dimension interleaved. */
export async function loadSignal(key, info, { dims = null, range = null, xsOf, points = null }, abort) {
  const wide = dims ? dims.length : width(info);
  const samples = range ? range[1] - range[0] : info.length;
  const ask = { ...key, col: info.name };
  if (dims) ask.dims = dims.join(",");
  if (range) [ask.start, ask.stop] = range;
  if (points) ask.points = points;
  else if (samples * wide > MANY) ask.points = POINTS;
  const reply = await getArray("api/signal", ask, abort);
  let columns = columnsOf(reply.array);
  if (dims && columns.length > dims.length && !reply.envelope) columns = dims.map((d) => columns[d]);
  const start = reply.start;
  const stop = reply.stop ?? reply.length ?? info.length;
  if (!reply.envelope) {
    const n = reply.array.shape[0];
    const xs = Float64Array.from({ length: n }, (_, i) => xsOf(start + i));
    return { columns, xs, envelope: false, start, stop, length: reply.length ?? n };
  }
  const n = reply.array.shape[0];
  const deep = columns.length / 2;
  const xs = new Float64Array(2 * n);
  for (let b = 0; b < n; b += 1) {
    const from = start + Math.floor((b * (stop - start)) / n);
    const to = start + Math.floor(((b + 1) * (stop - start)) / n);
    xs[2 * b] = xsOf(from);
    xs[2 * b + 1] = xsOf((from + to) / 2);
  }
  const zigzag = Array.from({ length: deep }, (_, d) => {
    const out = new Float32Array(2 * n);
    for (let b = 0; b < n; b += 1) { out[2 * b] = columns[d][b]; out[2 * b + 1] = columns[deep + d][b]; }
    return out;
  });
  return { columns: zigzag, xs, envelope: true, start, stop, length: reply.length ?? info.length };
}

/** uPlot knows gaps as null: a column with NaN becomes a plain array. */
export function withGaps(column) {
  let gaps = false;
  for (let i = 0; i < column.length && !gaps; i += 1) gaps = !Number.isFinite(column[i]);
  return gaps ? Array.from(column, (x) => (Number.isFinite(x) ? x : null)) : column;
}

export function rangeOf(column) {
  let low = Infinity;
  let high = -Infinity;
  let missing = 0;
  for (let i = 0; i < column.length; i += 1) {
    const x = column[i];
    if (!Number.isFinite(x)) missing += 1;
    else { if (x < low) low = x; if (x > high) high = x; }
  }
  return { low, high, missing, constant: low === high };
}

/** Names of the dimensions: what the dataset says, else `action[3]`, deeper ones `action[1,2]`. */
export function dimNames(column, info) {
  const shape = info.shape ?? [];
  const count = width(info);
  const given = column?.names ?? [];
  if (count === 1 && !given.length) return [info.name];
  return Array.from({ length: count }, (_, d) => {
    if (given[d]) return given[d];
    if (shape.length < 2) return `[${d}]`;
    const parts = [];
    let rest = d;
    for (let axis = shape.length - 1; axis >= 0; axis -= 1) { parts.unshift(rest % shape[axis]); rest = Math.floor(rest / shape[axis]); }
    return `[${parts.join(",")}]`;
  });
}

/** Which dimensions are drawn at first. */
export function firstDims(info) {
  return Array.from({ length: Math.min(LINES, width(info)) }, (_, d) => d);
}

/** The sample of a column at each step, and the step of each sample: two directions of one map. */
export function placement(info, align) {
  if (!align) return { sampleAt: (step) => (step < info.length ? step : -1), xsOf: (sample) => sample };
  const first = new Float64Array(info.length).fill(NaN);
  let last = -1;
  for (let step = 0; step < align.length; step += 1) {
    const sample = align[step];
    if (sample < 0 || sample === last) continue;
    /* Samples between two steps lie between them. */
    const from = Math.max(last, 0);
    for (let between = from + 1; between < sample && last >= 0; between += 1) {
      first[between] = first[from] + ((between - from) / (sample - from)) * (step - first[from]);
    }
    first[sample] = step;
    last = sample;
  }
  let slope = 1;
  if (last > 0 && Number.isFinite(first[0])) slope = (first[last] - first[0]) / last || 1;
  const xsOf = (sample) => {
    const whole = Math.floor(sample);
    const x = whole < first.length ? first[whole] : NaN;
    if (Number.isFinite(x)) return x + (sample - whole) * slope;
    if (last < 0) return sample;
    return sample > last ? first[last] + (sample - last) * slope : (Number.isFinite(first[0]) ? first[0] : 0) + sample * slope;
  };
  return { sampleAt: (step) => (step < align.length ? align[step] : -1), xsOf };
}

/** The values of a signal at one sample. */
export function valuesAt(loaded, sample) {
  if (!loaded || loaded.envelope || sample < loaded.start || sample >= loaded.stop) return null;
  return loaded.columns.map((column) => column[sample - loaded.start]);
}

/** Runs of equal values: an event lane, where there are few of them. */
export function runsOf(column, most = 12) {
  const runs = [];
  const values = new Map();
  for (let i = 0; i < column.length; i += 1) {
    const value = column[i];
    const kind = Number.isFinite(value) ? value : null;
    if (!values.has(kind)) {
      if (values.size >= most) return null;
      values.set(kind, values.size);
    }
    if (runs.length && runs[runs.length - 1].value === kind) runs[runs.length - 1].stop = i + 1;
    else runs.push({ start: i, stop: i + 1, value: kind });
    if (runs.length > 4000) return null;
  }
  return { runs, values: [...values.keys()].sort((a, b) => a - b) };
}
