/** Colours: a dimension has the same one in every sequence and panel, and neighbours differ for every kind of eye.
 *
 * The eight hues are Okabe and Ito's order of lightness and hue, moved so that each has a contrast of at least 3:1 on the
 * ground of its theme; the second eight dimensions are dashed, the third dotted. */

const LIGHT = ["#0b62c4", "#c24e00", "#007a5a", "#b0307f", "#8a6a00", "#2b8fc0", "#6a3fb5", "#4d4d4d"];
const DARK = ["#5aa9ff", "#ff9d4d", "#3fd0a0", "#ee7fc0", "#f2d04a", "#7fd3f7", "#b79bff", "#c9ced6"];
const DASHES = [[], [6, 3], [2, 3]];

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen === "dark";
  return globalThis.matchMedia?.("(prefers-color-scheme: dark)").matches ?? false;
}

export function dimColour(d) {
  const colours = isDark() ? DARK : LIGHT;
  return colours[d % colours.length];
}

export function dimDash(d) {
  return DASHES[Math.floor(d / LIGHT.length) % DASHES.length];
}

/** Viridis in 9 steps: rising lightness, so it reads without hue. */
const STOPS = [
  [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [110, 206, 88], [253, 231, 37],
];

/** 256 colours as packed little-endian RGBA. */
export const RAMP = Uint32Array.from({ length: 256 }, (_, i) => {
  const at = (i / 255) * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  const [r, g, b] = STOPS[low].map((c, channel) => Math.round(c + (STOPS[low + 1][channel] - c) * (at - low)));
  return (255 << 24) | (b << 16) | (g << 8) | r;
});

export function rampCss(share) {
  const packed = RAMP[Math.max(0, Math.min(255, Math.round(share * 255)))];
  return `rgb(${packed & 255} ${(packed >> 8) & 255} ${(packed >> 16) & 255})`;
}

/** The colour of a label or a value of an event lane: by its place in the list, so that names never share one by chance. */
export function labelColour(index) {
  return dimColour(index);
}

/** A colour of the page's own style sheet, for canvases. */
export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
