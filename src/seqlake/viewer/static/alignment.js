/** How the steps of several sequences lie over one another: by their starts, their ends, an offset, or as shares of the whole. */

/** The steps of the comparison, and for each sequence its own step at each of them (-1 where it has none). */
export function laidOver(sequences, { align, offsets }) {
  const hz = Math.max(...sequences.map((one) => one.hz));
  const lengths = sequences.map((one) => (one.steps / one.hz) * hz);
  const longest = Math.max(1, Math.ceil(Math.max(...lengths) - 1e-6));
  const starts = sequences.map((_, i) => {
    if (align === "end") return longest - lengths[i];
    if (align === "offset") return offsets[i] ?? 0;
    return 0;
  });
  const earliest = align === "offset" ? Math.min(0, ...starts) : 0;
  const steps = align === "normal" ? Math.max(...sequences.map((one) => one.steps))
    : Math.max(1, Math.ceil(Math.max(...starts.map((start, i) => start - earliest + lengths[i])) - 1e-6));
  const maps = sequences.map((one, i) => Int32Array.from({ length: steps }, (_, step) => {
    if (align === "normal") return steps < 2 ? 0 : Math.round((step / (steps - 1)) * (one.steps - 1));
    const own = Math.floor(((step - (starts[i] - earliest)) * one.hz) / hz + 1e-6);
    return own >= 0 && own < one.steps ? own : -1;
  }));
  /* From a sequence's own step to the comparison's, for curves. */
  const placed = sequences.map((one, i) => (own) => {
    if (align === "normal") return one.steps < 2 ? 0 : (own / (one.steps - 1)) * (steps - 1);
    return (own * hz) / one.hz + starts[i] - earliest;
  });
  return { steps, hz: align === "normal" ? sequences[0].hz : hz, maps, placed };
}

/** Puts curves over different steps on one axis: the union of their steps, undefined where one has none. */
export function joined(parts) {
  if (parts.length === 1) return { xs: parts[0].xs, columns: [parts[0].columns] };
  const all = new Set();
  for (const part of parts) for (const x of part.xs) if (Number.isFinite(x)) all.add(x);
  const xs = Float64Array.from(all).sort();
  const columns = parts.map((part) => {
    const at = new Map();
    part.xs.forEach((x, i) => at.set(x, i));
    const places = Array.from(xs, (x) => at.get(x));
    return part.columns.map((column) => places.map((i) => {
      if (i === undefined) return undefined;
      const value = column[i];
      return Number.isFinite(value) ? value : null;
    }));
  });
  return { xs, columns };
}
