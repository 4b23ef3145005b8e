/** What the page asks of the server, or of the data that lie beside an exported page. */

import { parseNpy, fromBase64 } from "./npy.js";

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
    reply = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { code: "gone", message: "the viewer's server does not answer", hint: "Is `seqlake view` still running in its terminal?" });
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
  if (exported) return exportedArray(path, route, parameters);
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
  const path = address(route, parameters);
  if (exported) {
    const place = await exportedReply(path, parameters);
    const picture = new Image();
    picture.src = place;
    await picture.decode();
    return { bitmap: picture };
  }
  const reply = await reach(path, { signal });
  const range = reply.headers.get("X-Seqlake-Range")?.split(",").map(Number);
  const bitmap = await createImageBitmap(await reply.blob());
  return { bitmap, low: range?.[0], high: range?.[1], unit: reply.headers.get("X-Seqlake-Unit") };
}

/** The address that goes into `src`. In an export, the file beside the page, once the sequence's script is there. */
export function mediaAddress(parameters) {
  const path = address("media", parameters);
  return exported ? lookUp(path, parameters) : path;
}

/* --- an exported page: everything is in scripts beside it --- */

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

function lookUp(path, parameters) {
  const place = exported.sequences?.[parameters?.id];
  return (place && globalThis.seqlakeLoaded?.[place]?.[path]) ?? exported.replies[path];
}

async function exportedReply(path, parameters) {
  const place = exported.sequences?.[parameters?.id];
  if (place) await script(place);
  const reply = lookUp(path, parameters);
  if (reply === undefined) throw new ApiError(404, { code: "export", message: "this is not part of the export" });
  return reply;
}

async function exportedArray(path, route, parameters) {
  const whole = { ...parameters };
  for (const name of ["start", "stop", "points", "dims"]) if (route === "api/signal") delete whole[name];
  const reply = await exportedReply(address(route, whole), parameters);
  const array = parseNpy(fromBase64(reply));
  const sequence = await exportedReply(address("api/sequence", { id: parameters.id }), parameters);
  const envelope = sequence.signals.find((signal) => signal.name === parameters.col)?.envelope;
  const length = route === "api/signal" && envelope ? envelope.length : array.shape[0];
  return { array, length, start: 0, stop: length, envelope: Boolean(route === "api/signal" && envelope), of: null, rate: null, seconds: null };
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
