/** What the page asks of the server, or of the data that lie beside an exported page. */

import { parseNpy, fromBase64, someDims } from "./npy.js";

export class ApiError extends Error {
  constructor(status, { code = "", message = "", where = null, hint = null } = {}) {
    super(message || `the server answered ${status}`);
    this.status = status;
    this.code = code;
    this.where = where;
    this.hint = hint;
  }
}

export const exported = globalThis.seqlakeExport ?? null;

/** In a notebook nothing is fetched: `(path, options) => Promise<Response>`, by messages of the kernel. */
export const carrier = globalThis.seqlakeCarrier ?? null;

const PIECE = 4 << 20;
const MOST_CARRIED = 256 << 20;
const session = { version: null, token: null };

export function useVersion(version) { session.version = version; }
export function useToken(token) { session.token = token; }

/** `route?a=1&b=2` with the parameters sorted, as the keys of an export are. */
export function address(route, parameters = {}) {
  const all = { ...parameters };
  if (session.version && !exported) all.version = session.version;
  const parts = Object.keys(all).sort()
    .filter((name) => all[name] !== undefined && all[name] !== null && all[name] !== "")
    .map((name) => `${name}=${encodeURIComponent(all[name])}`);
  return parts.length ? `${route}?${parts.join("&")}` : route;
}

async function failure(reply) {
  let error = {};
  try { error = (await reply.json()).error ?? {}; } catch { error = { message: `the server answered ${reply.status}` }; }
  return new ApiError(reply.status, error);
}

async function reach(path, options) {
  let reply;
  try {
    reply = await (carrier ?? fetch)(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { code: "gone", message: carrier ? "the kernel does not answer" : "the viewer's server does not answer",
      hint: carrier ? "Is it busy, or was it started anew?" : "Is `seqlake view` still running in its terminal?" });
  }
  if (!reply.ok) throw await failure(reply);
  return reply;
}

export async function getJson(route, parameters, signal) {
  const path = address(route, parameters);
  if (exported) return exportedReply(path, parameters);
  return (await reach(path, { signal })).json();
}

/** `{array, length, start, stop, envelope, headers}` */
export async function getArray(route, parameters, signal) {
  const path = address(route, parameters);
  if (exported) return exportedArray(route, parameters);
  const reply = await reach(path, { signal });
  const head = (name) => reply.headers.get(name);
  const range = head("X-Seqlake-Range")?.split(",").map(Number);
  return {
    array: parseNpy(await reply.arrayBuffer()),
    length: head("X-Seqlake-Length") === null ? null : Number(head("X-Seqlake-Length")),
    start: range?.[0] ?? 0,
    stop: range?.[1] ?? null,
    envelope: head("X-Seqlake-Envelope") !== null,
    of: head("X-Seqlake-Of") === null ? null : Number(head("X-Seqlake-Of")),
    rate: head("X-Seqlake-Rate") === null ? null : Number(head("X-Seqlake-Rate")),
    seconds: head("X-Seqlake-Seconds") === null ? null : Number(head("X-Seqlake-Seconds")),
    ...inSpace(head),
  };
}

/** What is said of clouds and of paths. */
function inSpace(head) {
  const numbers = (name) => head(name)?.split(",").map(Number);
  return {
    origin: numbers("X-Seqlake-Origin"), span: numbers("X-Seqlake-Range"), each: Number(head("X-Seqlake-Each") ?? 1), lost: Number(head("X-Seqlake-Lost") ?? 0),
    by: decodeURIComponent(head("X-Seqlake-Color") ?? ""), choices: head("X-Seqlake-Colors")?.split(",").map(decodeURIComponent),
  };
}

export async function post(route, body) {
  const reply = await reach(route, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Seqlake-Token": session.token ?? "" },
    body: JSON.stringify(body),
  });
  return reply.json();
}

/** A picture of one frame: `{bitmap, low, high, unit}`. */
export async function getPicture(route, parameters, signal) {
  if (exported) {
    const reply = await exportedReply(address(route, { ...parameters, height: null }), parameters);
    const picture = new Image();
    picture.src = reply.src ?? reply;
    await picture.decode();
    return { bitmap: picture, low: reply.low, high: reply.high, unit: reply.unit };
  }
  const reply = await reach(address(route, parameters), { signal });
  const range = reply.headers.get("X-Seqlake-Range")?.split(",").map(Number);
  const bitmap = await createImageBitmap(await reply.blob());
  return { bitmap, low: range?.[0], high: range?.[1], unit: reply.headers.get("X-Seqlake-Unit") };
}

/** What goes into `src`: of the server its address, in an export the file beside the page, in a notebook a blob. */
export async function sourceOf(route, parameters) {
  const path = address(route, parameters);
  if (exported) return exportedReply(path, parameters);
  return carrier ? carried(path) : path;
}

/* Piece by piece, since one message of a film would keep all others waiting. Pictures are data URLs: VS Code allows no blobs. */
async function carried(path) {
  const pieces = [];
  let [size, total, type] = [0, 1, ""];
  while (size < total) {
    const reply = await reach(path, { headers: { Range: `bytes=${size}-${size + PIECE - 1}` } });
    const piece = await reply.arrayBuffer();
    type = reply.headers.get("Content-Type") ?? "";
    total = Number(/\/(\d+)$/.exec(reply.headers.get("Content-Range") ?? "")?.[1] ?? piece.byteLength);
    if (total > MOST_CARRIED) throw new ApiError(413, { code: "large", message: "the file is too large for a notebook", hint: "Open the viewer's address in a browser." });
    if (piece.byteLength === 0) break;
    pieces.push(piece);
    size += piece.byteLength;
  }
  const blob = new Blob(pieces, { type });
  if (!type.startsWith("image/")) return URL.createObjectURL(blob);
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** The same file, whole and in memory: where a server sends no ranges, a browser cannot seek in what it plays. */
export async function inMemory(place) {
  return URL.createObjectURL(await (await reach(place)).blob());
}

/* --- an exported page: everything is in scripts beside it --- */

/** What an export answers in one way, however it is asked for. */
const ALONE = { "api/signal": ["start", "stop", "points", "dims"], "api/points": ["max", "color"], "api/poses": ["max"], "api/faces": ["max"] };
const scripts = new Map();

function script(place) {
  if (!scripts.has(place)) {
    scripts.set(place, new Promise((resolve, reject) => {
      const element = document.createElement("script");
      element.src = place;
      element.onload = () => resolve(globalThis.seqlakeLoaded?.[place] ?? {});
      element.onerror = () => reject(new ApiError(404, { message: `the export has no file ${place}`, hint: "Was the folder copied whole?" }));
      document.head.append(element);
    }));
  }
  return scripts.get(place);
}

/** Own members only: an id may be called as what every object has. */
function member(object, name) { return object && Object.hasOwn(object, name) ? object[name] : undefined; }

async function exportedReply(path, parameters = {}) {
  const { id, row } = parameters;
  const place = id !== undefined && id !== null ? member(exported.sequences, id) : member(exported.rows, String(row));
  const reply = member(exported.replies, path) ?? (place && member(await script(place), path));
  if (reply === undefined) throw new ApiError(404, { code: "export", message: "this is not part of the export" });
  return reply?.script ? member(await script(reply.script), path) : reply; /* what is large has a script of its own */
}

async function exportedArray(route, parameters) {
  const asked = { ...parameters };
  for (const name of ALONE[route] ?? []) delete asked[name];
  const reply = await exportedReply(address(route, asked), parameters);
  const facts = typeof reply === "string" ? { npy: reply } : reply;
  const whole = parseNpy(fromBase64(facts.npy));
  const array = parameters.dims ? someDims(whole, String(parameters.dims).split(",").map(Number)) : whole;
  const length = facts.length ?? array.shape[0];
  return { ...facts, array, length, start: 0, stop: length, envelope: facts.envelope === true, of: facts.of ?? null, rate: facts.rate ?? null, seconds: facts.seconds ?? null };
}

/** Of an export: which of the numbers that it holds stands for `k`; all are there where it names none. */
export function heldAt(numbers, k) {
  if (!numbers) return k;
  let low = -1;
  for (let high = numbers.length; high - low > 1;) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= k) low = middle; else high = middle;
  }
  return low < 0 ? -1 : numbers[low];
}

/* --- so that a table of many columns does not ask everything at once --- */

const queue = [];
let running = 0;

/** Runs `job` when fewer than four others do. */
export function queued(job) {
  return new Promise((resolve, reject) => {
    queue.push(() => job().then(resolve, reject).finally(() => { running -= 1; next(); }));
    next();
  });
}

function next() {
  while (running < 4 && queue.length) { running += 1; queue.shift()(); }
}
