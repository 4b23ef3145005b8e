/** Playing: one step on one clock, and every video, picture and sound following it to the frame.
 *
 * The state is `step`, a whole number on the sequence's clock. A paused video is sought to the middle between the times at which
 * its frame and the next one are presented; `step / rate` would show the frame before, in most codecs (see docs/design/viewer.md).
 * While playing, the player's own clock leads, and each video is nudged by its speed. A pause snaps all to one step. */

const FAR = 0.3; /* seconds: further off than this, a playing video is sought */
const RATES = [0.1, 0.25, 0.5, 1, 1.5, 2, 4, 8];
const SMALL = 1 << 20; /* bytes: a browser takes as much at once, and then its connection is free */

/** What `preload` of a film or sound is. A browser that preloads a long one stops reading in the middle of the reply and keeps its
 * connection; six of them leave none for anything else of the page. With `metadata` it lets go as soon as it has what is shown. */
export function preloadOf(media) { return (media.bytes ?? 0) > SMALL ? "metadata" : "auto"; }

export class Player {
  constructor({ steps, hz }) {
    this.steps = Math.max(1, steps);
    this.hz = hz > 0 ? hz : 30;
    this.step = 0;
    this.position = 0.5;
    this.playing = false;
    this.waiting = false;
    this.rate = 1;
    this.loop = null;
    this.looping = false;
    this.tracks = new Set();
    this.listeners = new Set();
    this.turn = 0;
  }

  on(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell() {
    for (const listener of [...this.listeners]) listener(this);
  }

  add(track) {
    this.tracks.add(track);
    track.settle(this.step);
    return () => { this.tracks.delete(track); track.halt(); };
  }

  seconds(step = this.step) { return step / this.hz; }

  clamp(step) { return Math.max(0, Math.min(this.steps - 1, Math.round(step))); }

  seek(step) {
    this.step = this.clamp(step);
    this.position = this.step + 0.5;
    if (!this.playing) for (const track of this.tracks) track.settle(this.step);
    this.tell();
  }

  /** Moves by steps; a playing player pauses first, since a person who steps looks at frames. */
  by(steps) {
    if (this.playing) this.pause();
    this.seek(this.step + steps);
  }

  toggle() { if (this.playing) this.pause(); else this.play(); }

  async play() {
    if (this.playing) return;
    const [start, stop] = this.bounds();
    if (this.step >= stop - 1 || this.step < start) this.seek(start);
    this.playing = true;
    this.waiting = true;
    this.turn += 1;
    const turn = this.turn;
    this.tell();
    /* All in one tick: videos started one after another stay apart. */
    await Promise.all([...this.tracks].map((track) => track.start(this.position, this.rate, this.hz).catch(() => null)));
    if (turn !== this.turn || !this.playing) return;
    this.waiting = false;
    this.last = performance.now();
    this.tell();
    requestAnimationFrame((now) => this.frame(now, turn));
  }

  frame(now, turn) {
    if (turn !== this.turn || !this.playing) return;
    const passed = Math.max(0, Math.min(0.25, (now - this.last) / 1000));
    this.last = now;
    const waiting = [...this.tracks].some((track) => !track.ready(this.step));
    if (!waiting) this.position += passed * this.hz * this.rate;
    const [start, stop] = this.bounds();
    if (this.position >= stop) {
      if (this.looping) {
        this.position = start + 0.5;
        for (const track of this.tracks) track.jump?.(this.position);
      } else {
        this.position = stop - 0.5;
        this.step = stop - 1;
        this.pause({ exactly: true });
        return;
      }
    }
    const step = this.clamp(Math.floor(this.position));
    for (const track of this.tracks) track.follow(this.position, this.rate, this.hz);
    if (step !== this.step || waiting !== this.waiting) {
      this.step = step;
      this.waiting = waiting;
      this.tell();
    }
    requestAnimationFrame((next) => this.frame(next, turn));
  }

  bounds() {
    return this.looping && this.loop ? [this.loop.start, this.loop.stop] : [0, this.steps];
  }

  /** Stops at the step that the first video has on the screen, and seeks every other to it. */
  pause({ exactly = false } = {}) {
    if (!this.playing) return;
    this.playing = false;
    this.waiting = false;
    this.turn += 1;
    for (const track of this.tracks) track.halt();
    let step = Math.floor(this.position);
    if (!exactly) {
      for (const track of this.tracks) {
        const seen = track.presentedStep?.(step) ?? null;
        if (seen !== null && Math.abs(seen - step) <= FAR * this.hz * Math.max(1, this.rate)) { step = seen; break; }
      }
    }
    this.seek(step);
  }

  setRate(rate) {
    this.rate = Math.max(RATES[0], Math.min(RATES[RATES.length - 1], rate));
    this.tell();
  }

  faster() { this.setRate(RATES.find((rate) => rate > this.rate + 1e-6) ?? 8); }

  slower() { this.setRate([...RATES].reverse().find((rate) => rate < this.rate - 1e-6) ?? 0.1); }

  setLoop(loop) {
    this.loop = loop && loop.stop > loop.start
      ? { start: this.clamp(loop.start), stop: Math.max(this.clamp(loop.start) + 1, Math.min(this.steps, Math.round(loop.stop))) } : null;
    this.looping = Boolean(this.loop) && this.looping;
    this.tell();
  }

  setLooping(looping) {
    this.looping = looping;
    this.tell();
  }

  /** Whether every track shows what belongs to the step. */
  settled() { return [...this.tracks].every((track) => track.settled()); }
}

/** Which frame of a film belongs to each step: `-1` before it begins and after it ends. */
export function frameMap(steps, frames, aligned = null) {
  return Int32Array.from({ length: steps }, (_, step) => {
    const frame = aligned ? (aligned[step] ?? -1) : step;
    return frame < frames ? frame : -1;
  });
}

/** At which second of the film each step begins, so that steps in one frame share its time. */
export function stepTimes(map, pts) {
  const steps = map.length;
  const frames = pts.length - 1;
  const times = new Float64Array(steps + 1);
  let step = 0;
  let end = pts[0];
  while (step < steps) {
    const frame = map[step];
    let after = step + 1;
    while (after < steps && map[after] === frame) after += 1;
    if (frame < 0) {
      times.fill(end, step, after);
    } else {
      const following = after < steps ? map[after] : frame + 1;
      end = pts[following > frame ? Math.min(following, frames) : frame + 1];
      for (let i = step; i < after; i += 1) times[i] = pts[frame] + ((i - step) / (after - step)) * (end - pts[frame]);
    }
    step = after;
  }
  times[steps] = end;
  return times;
}

/** The frame that is on the screen at a time. */
export function frameOfTime(pts, time) {
  let low = 0;
  let high = pts.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    /* Presented times are rounded to the container's clock on the way. */
    if (pts[middle] <= time + 1e-4) low = middle; else high = middle - 1;
  }
  return low;
}

function at(times, position) {
  const step = Math.max(0, Math.min(times.length - 2, Math.floor(position)));
  return times[step] + (position - step) * (times[step + 1] - times[step]);
}

/** A `<video>` that follows. `onShown(frame)` is told what stands on the screen, `null` where the film has no frame for the step. */
export class VideoTrack {
  constructor(video, { map, pts, onShown = () => {} }) {
    this.video = video;
    this.map = map;
    this.pts = pts;
    this.times = stepTimes(map, pts);
    this.onShown = onShown;
    this.want = null;
    this.shown = undefined;
    this.target = null;
    this.presented = null;
    this.live = false;
    this.closed = false;
    video.muted = true;
    this.onSeeked = () => this.arrive();
    this.onMeta = () => this.pursue();
    video.addEventListener("seeked", this.onSeeked);
    video.addEventListener("loadedmetadata", this.onMeta);
    this.watch();
  }

  close() {
    this.closed = true;
    this.video.removeEventListener("seeked", this.onSeeked);
    this.video.removeEventListener("loadedmetadata", this.onMeta);
  }

  watch() {
    if (!this.video.requestVideoFrameCallback) return;
    this.video.requestVideoFrameCallback((_, { mediaTime }) => {
      if (this.closed) return;
      this.presented = frameOfTime(this.pts, mediaTime);
      if (this.live) this.show(this.presented);
      this.watch();
    });
  }

  show(frame) {
    if (frame === this.shown) return;
    this.shown = frame;
    this.onShown(frame);
  }

  settle(step) {
    const frame = this.map[step] ?? -1;
    this.live = false;
    if (!this.video.paused) this.video.pause();
    this.want = frame < 0 ? null : frame;
    if (frame < 0) { this.show(null); return; }
    this.pursue();
  }

  /* One seek at a time, always to the newest wish: a person who drags leaves hundreds behind. */
  pursue() {
    if (this.live || this.want === null || this.video.readyState < 1 || this.seeking) return;
    const middle = (this.pts[this.want] + this.pts[this.want + 1]) / 2;
    if (this.target === middle && Math.abs(this.video.currentTime - middle) < 1e-5 && this.video.readyState >= 2) {
      this.show(this.want);
      return;
    }
    this.seeking = true;
    this.aim = this.want;
    this.target = middle;
    this.video.currentTime = middle;
  }

  arrive() {
    this.seeking = false;
    if (this.live) return;
    if (this.want !== null && this.aim === this.want) this.show(this.want); else this.pursue();
  }

  settled() { return this.want === null ? this.shown === null : this.shown === this.want && !this.seeking; }

  async start(position, rate, hz) {
    const step = Math.floor(position);
    if ((this.map[step] ?? -1) < 0 || this.video.readyState < 1) return;
    this.live = true;
    const time = at(this.times, position);
    if (Math.abs(this.video.currentTime - time) > 0.5 / hz) this.video.currentTime = time;
    this.video.playbackRate = this.speed(position, rate, hz);
    await this.video.play();
  }

  /** Seconds of film per second of the clock, over half a second: films of variable rate have no better one. */
  speed(position, rate, hz) {
    const half = Math.max(1, Math.round(hz / 4));
    const low = Math.max(0, Math.floor(position) - half);
    const high = Math.min(this.times.length - 1, Math.floor(position) + half);
    const slope = ((this.times[high] - this.times[low]) / Math.max(1, high - low)) * hz;
    return Math.max(0.0625, Math.min(16, (slope || 1) * rate));
  }

  jump(position) {
    this.video.currentTime = at(this.times, position);
  }

  follow(position, rate, hz) {
    const step = Math.floor(position);
    const { video } = this;
    if ((this.map[step] ?? -1) < 0) {
      if (!video.paused) video.pause();
      this.live = false;
      this.want = null;
      this.show(null);
      return;
    }
    const time = at(this.times, position);
    if (!this.live || (video.paused && !video.ended)) {
      if (video.readyState < 1) return;
      this.live = true;
      this.seeking = false;
      video.currentTime = time;
      video.play().catch(() => null);
      return;
    }
    const off = video.currentTime - time;
    const speed = this.speed(position, rate, hz);
    if (Math.abs(off) > FAR * Math.max(1, rate)) {
      if (!video.seeking && !video.ended) video.currentTime = time;
    } else {
      const frame = this.pts[(this.map[step] ?? 0) + 1] - this.pts[this.map[step] ?? 0];
      const nudge = Math.abs(off) > frame / 2 ? Math.max(-0.25, Math.min(0.25, off * 2)) : 0;
      const next = Math.max(0.0625, Math.min(16, speed * (1 - nudge)));
      if (Math.abs(next - video.playbackRate) > 0.005) video.playbackRate = next;
    }
  }

  halt() {
    if (!this.video.paused) this.video.pause();
    this.live = false;
    this.seeking = this.video.seeking;
    this.target = null;
  }

  ready(step) {
    const { video } = this;
    if ((this.map[step] ?? -1) < 0 || video.error || video.ended || !this.live) return true;
    return video.readyState >= 3 || video.duration - video.currentTime < 0.25;
  }

  presentedStep(near) {
    if (this.presented === null || (this.map[near] ?? -1) < 0) return null;
    return nearestStep(this.map, this.presented, near);
  }
}

/** The step nearest to `near` at which a frame is the right one. */
function nearestStep(map, frame, near) {
  for (let away = 0; away < map.length; away += 1) {
    if (map[near - away] === frame) return near - away;
    if (map[near + away] === frame) return near + away;
    if ((map[near - away] ?? -1) < frame && (map[near + away] ?? frame) > frame && away > 600) return null;
  }
  return null;
}

/** Pictures that the server decodes: asked for one at a time, the newest wish first; frames between are dropped while playing. */
export class FrameTrack {
  constructor({ map, load, onShown = () => {}, onPicture, keep = 48, onError = () => {} }) {
    this.map = map;
    this.load = load;
    this.onShown = onShown;
    this.onPicture = onPicture;
    this.onError = onError;
    this.kept = new Map();
    this.keep = keep;
    this.want = null;
    this.shown = undefined;
    this.busy = false;
    this.closed = false;
  }

  close() {
    this.closed = true;
    for (const picture of this.kept.values()) picture.bitmap?.close?.();
    this.kept.clear();
  }

  settle(step) { this.wish(this.map[step] ?? -1, true); }

  wish(frame, ahead) {
    this.want = frame < 0 ? null : frame;
    if (this.want === null) {
      if (this.shown !== null) { this.shown = null; this.onShown(null); }
      return;
    }
    this.ahead = ahead;
    this.pump();
  }

  async pump() {
    if (this.closed || this.want === null) return;
    const frame = this.want;
    const held = this.kept.get(frame);
    if (held) {
      this.kept.delete(frame);
      this.kept.set(frame, held);
      if (this.shown !== frame) {
        this.shown = frame;
        this.onPicture(held, frame);
        this.onShown(frame);
      }
      return;
    }
    if (this.busy) return;
    this.busy = true;
    try {
      const picture = await this.load(frame);
      if (this.closed) { picture.bitmap?.close?.(); return; }
      this.kept.set(frame, picture);
      if (this.kept.size > this.keep) {
        const [oldest] = this.kept.keys();
        this.kept.get(oldest).bitmap?.close?.();
        this.kept.delete(oldest);
      }
      this.failed = false;
    } catch (error) {
      if (this.closed) return;
      this.failed = true;
      if (this.want === frame) { this.want = null; this.shown = null; this.onShown(null); }
      this.onError(error);
    } finally {
      this.busy = false;
    }
    this.pump();
  }

  settled() { return this.want === null ? true : this.shown === this.want; }
  async start() { return undefined; }
  follow(position) { this.wish(this.map[Math.floor(position)] ?? -1, false); }
  halt() {}
  ready() { return true; }
}

/** A film whose tail the browser does not play: the video as far as it goes, then decoded frames. */
export class SplitTrack {
  constructor(video, frames, from, onPart = () => {}) {
    this.parts = [video, frames];
    this.from = from;
    this.map = video.map;
    this.onPart = onPart;
  }

  /** Which of the two is on the screen; it says anew what it shows. */
  turnTo(part) {
    if (part === this.now) return;
    this.parts[this.now ?? 1 - part].halt();
    this.now = part;
    this.parts[part].shown = undefined;
    this.onPart(part);
  }

  part(step) {
    const frame = this.map[step] ?? -1;
    return frame >= this.from ? 1 : 0;
  }

  settle(step) {
    this.turnTo(this.part(step));
    this.parts[this.now].settle(step);
  }

  settled() { return this.parts[this.now ?? 0].settled(); }

  async start(position, rate, hz) {
    this.turnTo(this.part(Math.floor(position)));
    return this.parts[this.now].start(position, rate, hz);
  }

  follow(position, rate, hz) {
    this.turnTo(this.part(Math.floor(position)));
    this.parts[this.now].follow(position, rate, hz);
  }

  jump(position) {
    this.turnTo(this.part(Math.floor(position)));
    this.parts[this.now].jump?.(position);
  }

  halt() { for (const part of this.parts) part.halt(); }
  ready(step) { return this.parts[this.part(step)].ready(step); }
  presentedStep(near) { return this.part(near) === 0 ? this.parts[0].presentedStep(near) : null; }
  close() { for (const part of this.parts) part.close(); }
}

/** Sound: sought and nudged like a video, but nobody waits for a frame of it. */
export class SoundTrack {
  constructor(audio, { hz, seconds }) {
    this.audio = audio;
    this.hz = hz;
    this.seconds = seconds;
  }

  time(position) { return position / this.hz; }
  settle(step) { if (!this.audio.paused) this.audio.pause(); if (this.audio.readyState > 0) this.audio.currentTime = this.time(step); }
  settled() { return true; }

  async start(position, rate) {
    if (this.time(position) >= this.seconds) return;
    this.audio.currentTime = this.time(position);
    this.audio.playbackRate = Math.max(0.0625, Math.min(16, rate));
    await this.audio.play();
  }

  follow(position, rate) {
    const off = this.audio.currentTime - this.time(position);
    if (this.audio.ended || this.time(position) >= this.seconds) return;
    if (this.audio.paused) { this.start(position, rate).catch(() => null); return; }
    if (Math.abs(off) > FAR * Math.max(1, rate)) { this.audio.currentTime = this.time(position); return; }
    const next = Math.max(0.0625, Math.min(16, rate * (1 - (Math.abs(off) > 0.05 ? Math.max(-0.1, Math.min(0.1, off)) : 0))));
    if (Math.abs(next - this.audio.playbackRate) > 0.005) this.audio.playbackRate = next;
  }

  jump(position) { this.audio.currentTime = this.time(position); }
  halt() { this.audio.pause(); }
  ready() { return true; }
  close() { this.halt(); }
}

/** What stretch of the clock the plots show: shared by all of them. */
export class View {
  constructor(steps) {
    this.steps = Math.max(2, steps);
    this.min = 0;
    this.max = this.steps - 1;
    this.listeners = new Set();
  }

  get whole() { return this.min <= 0 && this.max >= this.steps - 1; }

  on(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  set(min, max) {
    const width = Math.max(Math.min(4, this.steps - 1), Math.min(this.steps - 1, max - min));
    const start = Math.max(0, Math.min(this.steps - 1 - width, min));
    if (start === this.min && start + width === this.max) return;
    this.min = start;
    this.max = start + width;
    for (const listener of [...this.listeners]) listener(this);
  }

  zoom(factor, around) {
    this.set(around - (around - this.min) * factor, around + (this.max - around) * factor);
  }

  pan(steps) { this.set(this.min + steps, this.max + steps); }
  reset() { this.set(0, this.steps - 1); }

  /** Keeps a playing playhead in sight. */
  reveal(step) {
    if (step >= this.min && step <= this.max) return;
    const width = this.max - this.min;
    this.set(step - width * 0.1, step + width * 0.9);
  }
}
