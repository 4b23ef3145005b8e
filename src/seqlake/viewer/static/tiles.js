/** Tiles of videos and pictures. A tile never vanishes: what cannot be shown says why and what would help. */

import { html, useEffect, useLoaded, useRef, useSeen, useState, copyText, Icon, IconButton, Spinner } from "./ui.js";
import { exported, getArray, getJson, getPicture, inMemory, sourceOf } from "./api.js";
import { FrameTrack, SplitTrack, VideoTrack, frameMap, preloadOf } from "./player.js";
import { bytes, rate, short } from "./words.js";

const STATES = {
  missing: "File is missing", outside: "Outside the dataset's root", web: "On a web server: not fetched", null: "No file in this cell",
  broken: "File is broken", undecodable: "Cannot be decoded here", failed: "Could not be looked at",
};

export function State({ state, why, hint, place }) {
  return html`<div class="tile-state" data-state=${state}>
    <${Icon} name=${state === "null" ? "film" : "warning"} size=${26} />
    <strong>${STATES[state] ?? state}</strong>
    ${place && html`<code>${place}</code>`}
    ${why && html`<p>${why}</p>`}
    ${hint && html`<div class="tile-hint"><code>${hint}</code><button type="button" class="button small" onClick=${() => copyText(hint)}>Copy</button></div>`}
  </div>`;
}

/** The frame of a film for each step of the sequence, or -1. */
async function mapOf(key, col, info, steps, clock, frames, signal) {
  /* What the video says of itself holds for the clock of the rule; of another clock, the server is asked. */
  if (info.aligned !== false && !clock) return frameMap(steps, frames);
  const { array } = await getArray("api/align", { ...key, col, clock }, signal);
  return frameMap(steps, frames, array.data);
}

/** In an export only some frames were decoded: each step shows the last one that was. What the browser plays stays. */
function atExported(map, frames, from) {
  return map.map((frame) => {
    if (frame < from) return frame;
    let best = frames[0] ?? -1;
    for (const one of frames) { if (one > frame) break; best = one; }
    return best;
  });
}

/** `steps` is the sequence's own number of steps; `compose` turns a map over them into one over the player's (comparisons). */
export function VideoTile({ seqKey, media, clock, steps, player, compose = (map) => map, solo, onSolo, height, label, onFindings }) {
  const ref = useRef(null);
  const seen = useSeen(ref, "100px");
  const video = useRef(null);
  const canvas = useRef(null);
  const frameText = useRef(null);
  const [info, setInfo] = useState(null);
  const [error, setError] = useState(null);
  const [fallback, setFallback] = useState(null);
  const [setup, setSetup] = useState(null);
  const [blank, setBlank] = useState(false);
  const [scale, setScale] = useState(null);
  const [size, setSize] = useState(null); /* of pictures, which say it only when one has come */
  const [frameError, setFrameError] = useState(null);
  const name = media.name;
  const start = info ?? (media.state !== "present" && media.state !== "inline" ? { state: media.state, why: media.why, hint: media.hint } : null);

  useEffect(() => {
    if (!seen) return undefined;
    const control = new AbortController();
    setInfo(null); setSetup(null); setError(null); setFallback(null);
    (async () => {
      const about = await getJson("api/video", { ...seqKey, col: name }, control.signal);
      if (control.signal.aborted) return;
      setInfo(about);
      onFindings?.(name, about);
      if (about.state !== "ok") return;
      const pts = about.frames > 0 && about.play !== "frames"
        ? (await getArray("api/pts", { ...seqKey, col: name }, control.signal)).array.data : null;
      let map = await mapOf(seqKey, name, about, steps, clock, about.frames, control.signal);
      if (about.exported_frames) map = atExported(map, about.exported_frames, about.browser_frames ?? 0);
      const source = about.play === "frames" ? null : await sourceOf("media", { ...seqKey, col: name });
      if (!control.signal.aborted) setSetup({ pts, map: Int32Array.from(compose(map)), about, source });
    })().catch((problem) => { if (!control.signal.aborted) setError(problem); });
    return () => control.abort();
  }, [seen, seqKey.id, seqKey.row, name, clock, steps, compose]);

  const play = fallback ? "frames" : setup?.about.play;
  useEffect(() => {
    if (!setup) return undefined;
    const { pts, map, about } = setup;
    const onShown = (frame) => {
      if (ref.current) ref.current.dataset.shown = frame === null ? "none" : String(frame);
      if (frameText.current) frameText.current.textContent = frame === null ? "no frame" : `frame ${frame}`;
      setBlank(frame === null);
    };
    const onPicture = ({ bitmap, low, high, unit }) => {
      const element = canvas.current;
      if (!element) return;
      const wide = bitmap.width ?? bitmap.naturalWidth;
      const tall = bitmap.height ?? bitmap.naturalHeight;
      if (element.width !== wide || element.height !== tall) { element.width = wide; element.height = tall; }
      element.getContext("2d").drawImage(bitmap, 0, 0);
      if (!about.width) setSize((old) => (old?.[0] === wide && old?.[1] === tall ? old : [wide, tall]));
      setFrameError(null);
      if (low !== undefined && Number.isFinite(low)) setScale({ low, high, unit });
    };
    const load = (k) => getPicture("api/frame", { ...seqKey, col: name, k, height: about.height > 540 ? 540 : undefined });
    const decoded = () => new FrameTrack({ map, load, onShown, onPicture, onError: setFrameError });
    let track;
    if (play === "frames" || !pts) track = decoded();
    else if (play === "tail" && about.browser_frames < about.frames) {
      const only = (part) => (frame) => { if (track?.now === part) onShown(frame); };
      const front = new VideoTrack(video.current, { map, pts, onShown: only(0) });
      const frames = new FrameTrack({ map, load, onShown: only(1), onPicture, onError: setFrameError });
      track = new SplitTrack(front, frames, about.browser_frames, (part) => { if (ref.current) ref.current.dataset.part = part ? "frames" : "video"; });
    } else track = new VideoTrack(video.current, { map, pts, onShown });
    const off = player.add(track);
    return () => { off(); track.close(); };
  }, [setup, play, player]);

  const source = setup && play !== "frames" ? setup.source : null;
  /* A web server that sends no ranges: of an export, the whole file is taken into memory once. */
  const seekable = async ({ currentTarget: element }) => {
    const reaches = element.seekable.length ? element.seekable.end(element.seekable.length - 1) : 0;
    if (!exported || !/^https?:$/.test(location.protocol) || source.startsWith("blob:") || reaches >= element.duration - 0.5) return;
    try { const whole = await inMemory(source); setSetup((old) => (old?.source === source ? { ...old, source: whole } : old)); } catch { /* it plays, but cannot be sought */ }
  };
  const failed = () => {
    const code = video.current?.error;
    if (!code || fallback) return;
    setFallback(`This browser does not play it (${info?.codec ?? "codec unknown"}): frames are decoded by seqlake.`);
  };
  const shows = info?.state === "ok";
  const [wide, tall] = info?.width ? [info.width, info.height] : size ?? [null, null];
  const findings = [...(info?.findings ?? [])];
  if (shows && info.aligned !== false && !clock && info.frames !== steps && !findings.some((one) => one.code === "frames")) {
    findings.push({ code: "frames", severity: "warning", message: `${info.frames} frames, but ${steps} steps` });
  }
  return html`<figure class=${`tile ${solo ? "solo" : ""}`} ref=${ref} data-tile=${name} data-play=${play ?? ""} data-state=${start?.state ?? "loading"}
    aria-label=${`${media.kind} ${name}`}>
    <div class="tile-picture" style=${{ aspectRatio: shows && wide ? `${wide} / ${tall}` : "16 / 10", maxHeight: height }}>
      ${source && html`<video ref=${video} src=${source} muted playsinline preload=${preloadOf(media)} disablepictureinpicture onError=${failed} onLoadedMetadata=${seekable} tabindex="-1" class=${blank ? "gone" : ""}></video>`}
      ${setup && play !== "browser" && html`<canvas ref=${canvas} class=${`decoded ${blank ? "gone" : ""}`}></canvas>`}
      ${shows && !setup && !error && html`<div class="tile-wait"><${Spinner} /></div>`}
      ${!start && !error && html`<div class="tile-wait"><${Spinner} /></div>`}
      ${start && start.state !== "ok" && html`<${State} state=${start.state} why=${start.why} hint=${start.hint} place=${media.place} />`}
      ${error && html`<${State} state=${error.code === "missing" ? "missing" : "broken"} why=${error.message} hint=${error.hint} place=${media.place} />`}
      ${frameError && html`<div class="tile-note bad">${frameError.message}</div>`}
      ${blank && !frameError && shows && html`<div class="tile-note">no frame at this step</div>`}
    </div>
    <figcaption>
      <span class="tile-name" title=${media.place ?? name}>${label ?? name}</span>
      ${shows && html`<span ref=${frameText} class="tile-frame"></span>`}
      ${play === "frames" && shows && html`<span class="badge" title=${fallback ?? `Browsers do not play ${info.codec ?? "this"}: seqlake decodes each frame that is shown.`}>decoded${info.codec ? ` ${info.codec}` : ""}</span>`}
      ${play === "tail" && html`<span class="badge" title="The video begins late, so the browser cuts its last frames: those are decoded by seqlake.">tail decoded</span>`}
      ${scale && html`<span class="badge depth-scale" title="The colours, from near to far">${short(scale.low)}<i></i>${short(scale.high)} ${scale.unit ?? ""}</span>`}
      ${findings.map((finding) => html`<span key=${finding.code} class=${`badge ${finding.severity === "error" ? "bad" : "warn"}`} data-finding=${finding.code} tabindex="0" title=${[finding.message, finding.hint].filter(Boolean).join("\n")}>
        <${Icon} name="warning" size=${12} /> ${FINDINGS[finding.code] ?? finding.code}</span>`)}
      <span class="push"></span>
      ${shows && html`<span class="quiet tile-fact">${[wide ? `${wide}×${tall}` : null, info.codec, info.fps ? rate(info.fps) : null].filter(Boolean).join(" · ")}</span>`}
      ${onSolo && html`<${IconButton} icon="expand" size=${14} label=${solo ? `Show all beside ${name}` : `Show ${name} alone`} pressed=${solo} onClick=${onSolo} />`}
    </figcaption>
  </figure>`;
}

const FINDINGS = {
  frames: "frame count differs", variable: "variable rate", start: "starts late", fps: "rate differs", b_frames: "B-frames", gop: "few keyframes",
  faststart: "index at the end", codec: "codec",
};

/** One picture a row. */
export function ImageTile({ seqKey, media, label }) {
  const [error, setError] = useState(media.state === "present" || media.state === "inline" ? null : media.state);
  const { value: source } = useLoaded(() => (error ? null : sourceOf("media", { ...seqKey, col: media.name }).catch(() => { setError("failed"); return null; })), [seqKey.id, seqKey.row, media.name]);
  return html`<figure class="tile" data-tile=${media.name} data-state=${error ?? "ok"}>
    <div class="tile-picture image">
      ${error ? html`<${State} state=${error} why=${media.why} hint=${media.hint} place=${media.place} />`
    : source && html`<img src=${source} alt=${media.name} loading="lazy" onError=${() => setError("undecodable")} />`}
    </div>
    <figcaption><span class="tile-name">${label ?? media.name}</span><span class="push"></span>
      ${media.bytes !== undefined && html`<span class="quiet tile-fact">${bytes(media.bytes)}</span>`}</figcaption></figure>`;
}

/** What the page has no picture for: where it is, how large, and what opens it. */
export function FileCard({ file }) {
  const bad = !["present", "inline", "null"].includes(file.state);
  const suffix = /\.([a-z0-9]+)$/i.exec(file.place ?? "")?.[1]?.toLowerCase();
  const opens = { mcap: "seqlake info, Foxglove", zarr: "zarr.open", h5: "h5py.File", hdf5: "h5py.File", bag: "rosbags", db3: "rosbags", rrd: "rerun", npy: "numpy.load", npz: "numpy.load", json: "any editor", parquet: "pyarrow, DuckDB" }[suffix];
  return html`<article class=${`file-card ${bad ? "bad" : ""}`} data-file=${file.name} data-state=${file.state}>
    <${Icon} name=${bad ? "warning" : "file"} size=${20} />
    <div><h4>${file.name} <span class="quiet">${file.kind}</span></h4>
      ${file.place && html`<code>${file.place}</code>`}
      ${bad && html`<p class="bad-text">${STATES[file.state] ?? file.state}${file.why ? `: ${file.why}` : ""}</p>`}
      ${bad && file.resolved && html`<p class="quiet">looked for at <code>${file.resolved}</code></p>`}
      <p class="quiet">${file.state === "null" ? "no file" : bytes(file.bytes)}${opens ? ` · opens with ${opens}` : ""}</p></div>
    ${(file.resolved ?? file.place) && html`<${IconButton} icon="link" label=${`Copy the path of ${file.name}`} onClick=${() => copyText(file.resolved ?? file.place, "Path copied")} />`}
  </article>`;
}
