/** Numbers, bytes and times as a person reads them. */

const SPACE = "\u202f";

export function grouped(n) {
  if (n === null || n === undefined) return "–";
  return Math.round(n).toString().replace(/\B(?=(\d{3})+(?!\d))/g, SPACE);
}

/** About four digits: what a legend has room for. */
export function short(x) {
  if (x === null || x === undefined) return "–";
  if (typeof x !== "number") return String(x);
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  if (size === 0) return "0";
  if (Number.isInteger(x) && size < 1e6) return minus(String(x));
  if (size >= 1e5 || size < 1e-3) return minus(x.toExponential(2));
  return minus(x.toFixed(Math.max(0, 3 - Math.floor(Math.log10(Math.max(size, 1))))));
}

function minus(text) {
  return text.replace(/^-/, "−");
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let size = n;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)}${SPACE}${units[unit]}`;
}

/** Seconds as m:ss.ff, or h:mm:ss. */
export function clockText(seconds, digits = 2) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const sign = seconds < 0 ? "−" : "";
  const scale = 10 ** digits;
  const whole = Math.floor(Math.abs(seconds) * scale + 1e-6);
  const all = Math.floor(whole / scale);
  const hours = Math.floor(all / 3600);
  const minutes = Math.floor((all % 3600) / 60);
  const rest = String(all % 60).padStart(2, "0");
  const fine = digits ? `.${String(whole % scale).padStart(digits, "0")}` : "";
  return hours ? `${sign}${hours}:${String(minutes).padStart(2, "0")}:${rest}${fine}` : `${sign}${minutes}:${rest}${fine}`;
}

export function hours(h) {
  if (h === null || h === undefined) return "–";
  if (h >= 10) return `${grouped(h)}${SPACE}h`;
  if (h >= 1) return `${h.toFixed(1)}${SPACE}h`;
  if (h * 60 >= 1) return `${(h * 60).toFixed(1)}${SPACE}min`;
  return `${(h * 3600).toFixed(1)}${SPACE}s`;
}

export function plural(n, one, many = `${one}s`) {
  return `${grouped(n)} ${n === 1 ? one : many}`;
}

export function rate(hz) {
  return hz === null || hz === undefined ? "–" : `${Number(hz.toFixed(3))}${SPACE}Hz`;
}

/** A cell of a table as text. */
export function cell(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return Number.isInteger(value) ? minus(String(value)) : short(value);
  if (typeof value === "boolean") return value ? "true" : "false";
  if (typeof value === "object" && "bytes" in value) return bytes(value.bytes);
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

/** A name as SQL writes it. */
export function quoted(name) {
  return /^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

export function day(iso) {
  if (!iso) return "";
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return iso;
  const two = (n) => String(n).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
}
