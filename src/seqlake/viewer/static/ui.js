/** Preact, hooks and htm, from the classic scripts in `vendor/`, and the few small parts that every page draws with. */

const preact = globalThis.preact;
const hooks = globalThis.preactHooks;

export const h = preact.h;
export const render = preact.render;
export const Fragment = preact.Fragment;
export const useState = hooks.useState;
export const useEffect = hooks.useEffect;
export const useLayoutEffect = hooks.useLayoutEffect;
export const useRef = hooks.useRef;
export const useMemo = hooks.useMemo;
export const useCallback = hooks.useCallback;
export const html = globalThis.htm.bind(preact.h);

/* Outlines of 24 x 24, drawn with strokes. */
const OUTLINES = {
  play: "M7 4.5v15l12-7.5z",
  pause: "M8 5v14M16 5v14",
  first: "M6 5v14M19 5l-9 7 9 7z",
  last: "M18 5v14M5 5l9 7-9 7z",
  back: "M15 5l-8 7 8 7z",
  ahead: "M9 5l8 7-8 7z",
  up: "M6 15l6-6 6 6",
  down: "M6 9l6 6 6-6",
  left: "M15 6l-6 6 6 6",
  right: "M9 6l6 6-6 6",
  flag: "M5 21V4h12l-2 4 2 4H5",
  note: "M5 4h14v11l-5 5H5zM14 20v-5h5",
  loop: "M17 3l3 3-3 3M4 11V9a3 3 0 013-3h13M7 21l-3-3 3-3M20 13v2a3 3 0 01-3 3H4",
  search: "M11 4a7 7 0 100 14 7 7 0 000-14zM20 20l-4-4",
  close: "M6 6l12 12M18 6L6 18",
  link: "M10 14a4 4 0 005.7 0l3-3a4 4 0 00-5.7-5.7l-1 1M14 10a4 4 0 00-5.7 0l-3 3a4 4 0 005.7 5.7l1-1",
  code: "M8 6l-6 6 6 6M16 6l6 6-6 6",
  compare: "M4 5h7v14H4zM13 5h7v14h-7z",
  warning: "M12 3l10 18H2zM12 10v5M12 18v.500",
  sun: "M12 8a4 4 0 100 8 4 4 0 000-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2",
  moon: "M20 14A8.500 8.5 0 0110 4a8.500 8.5 0 1010 10z",
  columns: "M4 5h16v14H4zM9.500 5v14M15 5v14",
  keys: "M3 7h18v10H3zM7 10.5h.100M11 10.5h.100M15 10.5h.100M8 14h8",
  info: "M12 3a9 9 0 100 18 9 9 0 000-18zM12 11v5.500M12 7.5v.500",
  film: "M4 5h16v14H4zM8 5v14M16 5v14M4 9.5h4M4 14.5h4M16 9.5h4M16 14.5h4",
  wave: "M2 12c3 0 3-7 6-7s4 14 8 14 3-7 6-7",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  cube: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  sound: "M4 9v6h4l5 4V5L8 9zM16 9a4 4 0 010 6M18.500 6.5a8 8 0 010 11",
  hash: "M9 4L7 20M17 4l-2 16M4 9h16M3 15h16",
  text: "M5 6h14M12 6v13M9 19h6",
  check: "M4 12l6 6L20 6",
  undo: "M9 14L4 9l5-5M4 9h10a6 6 0 010 12h-3",
  save: "M12 3v12M7 10l5 5 5-5M4 20h16",
  plus: "M12 5v14M5 12h14",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  time: "M12 3a9 9 0 100 18 9 9 0 000-18zM12 7v5l4 2",
  database: "M4 6c0-4 16-4 16 0v12c0 4-16 4-16 0zM4 6c0 4 16 4 16 0M4 12c0 4 16 4 16 0",
  expand: "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5",
  more: "M5 12h.100M12 12h.100M19 12h.100",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4",
  grid: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z",
};

const FILLED = new Set(["play", "back", "ahead"]);

export function Icon({ name, size = 16 }) {
  return html`<svg class="icon" width=${size} height=${size} viewBox="0 0 24 24" aria-hidden="true"
    fill=${FILLED.has(name) ? "currentColor" : "none"} stroke="currentColor" stroke-width="1.8"
    stroke-linecap="round" stroke-linejoin="round"><path d=${OUTLINES[name] ?? OUTLINES.file} /></svg>`;
}

/** A button of one picture; its name is read aloud and shown on hover. */
export function IconButton({ icon, label, onClick, pressed, disabled, keys, cls = "", size = 16 }) {
  const title = keys ? `${label} (${keys})` : label;
  return html`<button type="button" class=${`icon-button ${cls}`} title=${title} aria-label=${label}
    aria-pressed=${pressed === undefined ? undefined : String(Boolean(pressed))} disabled=${disabled}
    onClick=${onClick}><${Icon} name=${icon} size=${size} /></button>`;
}

export function Spinner({ label = "loading" }) {
  return html`<span class="spinner" role="status" aria-label=${label}></span>`;
}

/** What went wrong, and what to do, as the server said it. */
export function Trouble({ error, onRetry }) {
  return html`<div class="trouble" role="alert">
    <${Icon} name="warning" size=${18} />
    <div><p class="trouble-what">${error.message}</p>
      ${error.where && html`<p class="quiet mono">${error.where}</p>`}
      ${error.hint && html`<p class="quiet">${error.hint}</p>`}
      ${onRetry && html`<button type="button" class="button small" onClick=${onRetry}>Try again</button>`}
    </div></div>`;
}

/** A dialog over the page; Escape and a press outside close it, and the focus goes back to where it was. */
export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    const dialog = ref.current;
    dialog.showModal();
    const close = (event) => { event.preventDefault(); onClose(); };
    dialog.addEventListener("cancel", close);
    return () => { dialog.removeEventListener("cancel", close); before?.focus?.(); };
  }, []);
  return html`<dialog ref=${ref} class=${wide ? "dialog wide" : "dialog"} aria-label=${title}
    onClick=${(event) => event.target === ref.current && onClose()}>
    <div class="dialog-inside">
      <header><h2>${title}</h2><${IconButton} icon="close" label="Close" onClick=${onClose} /></header>
      ${children}
    </div></dialog>`;
}

/** A button that opens a small panel under itself. */
export function Menu({ label, icon, children, cls = "", text, align = "right" }) {
  const [open, setOpen] = useState(false);
  const ref = useRef(null);
  useEffect(() => {
    if (!open) return undefined;
    const away = (event) => { if (!ref.current?.contains(event.target)) setOpen(false); };
    const key = (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      setOpen(false);
      ref.current?.querySelector("button")?.focus();
    };
    document.addEventListener("pointerdown", away);
    document.addEventListener("keydown", key, true);
    return () => { document.removeEventListener("pointerdown", away); document.removeEventListener("keydown", key, true); };
  }, [open]);
  return html`<div class=${`menu ${cls}`} ref=${ref}>
    <button type="button" class=${text ? "button small" : "icon-button"} aria-label=${label} title=${label} aria-expanded=${String(open)}
      onClick=${() => setOpen(!open)}><${Icon} name=${icon} />${text && html`<span>${text}</span>`}</button>
    ${open && html`<div class=${`menu-panel ${align}`}>${typeof children === "function" ? children(() => setOpen(false)) : children}</div>`}
  </div>`;
}

const shouts = { set: null, timer: 0 };

/** Says something short at the foot of the page. */
export function toast(message, kind = "") {
  if (!shouts.set) return;
  clearTimeout(shouts.timer);
  shouts.set({ message, kind });
  shouts.timer = setTimeout(() => shouts.set(null), kind === "error" ? 8000 : 3500);
}

export function Toasts() {
  const [shout, setShout] = useState(null);
  shouts.set = setShout;
  return html`<div class="toasts" role="status" aria-live="polite">${shout && html`<div class=${`toast ${shout.kind}`}>${shout.message}</div>`}</div>`;
}

/** Copies a text, also where the page is not served safely (plain http to another host has no clipboard). */
export async function copyText(text, what = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast(what);
}

export function Copyable({ text, label = "Copy" }) {
  return html`<div class="copyable"><code>${text}</code>
    <button type="button" class="button small" onClick=${() => copyText(text)}>${label}</button></div>`;
}

/**
 * A state that begins anew with the rendering in which what it belongs to is another. An effect would do so later, and
 * take back what somebody has typed or pressed meanwhile. `begin` is given what was there before: `{value, keys}`.
 */
export function useStateOf(begin, keys) {
  const held = useRef(null);
  const [, redraw] = useState(0);
  if (!held.current || held.current.keys.some((key, place) => key !== keys[place])) held.current = { value: begin(held.current), keys };
  const set = (next) => {
    held.current = { ...held.current, value: typeof next === "function" ? next(held.current.value) : next };
    redraw((n) => n + 1);
  };
  return [held.current.value, set];
}

/** Loads something whenever one of `keys` changes: `{value, error, loading, again}`; the last value stays while the next one comes. */
export function useLoaded(load, keys) {
  const [state, setState] = useState({ value: null, error: null, loading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    setState((old) => ({ ...old, loading: true }));
    Promise.resolve(load(control.signal)).then(
      (value) => { if (!control.signal.aborted) setState({ value, error: null, loading: false }); },
      (error) => { if (!control.signal.aborted) setState({ value: null, error, loading: false }); },
    );
    return () => control.abort();
  }, [...keys, turn]);
  return { ...state, again: () => setTurn((n) => n + 1) };
}

/** Whether an element has come into view; stays true. */
export function useSeen(ref, margin = "300px") {
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    if (seen || !ref.current) return undefined;
    if (typeof IntersectionObserver === "undefined") { setSeen(true); return undefined; }
    const watcher = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) setSeen(true);
    }, { rootMargin: margin });
    watcher.observe(ref.current);
    return () => watcher.disconnect();
  }, [seen]);
  return seen;
}

/** The width of an element in pixels, kept up to date. */
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return undefined;
    setWidth(Math.floor(element.clientWidth));
    const watcher = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);
  return width;
}
