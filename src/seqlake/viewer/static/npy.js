/** NumPy's `.npy`: a header, then the numbers as they lie in memory. */

const KINDS = {
  f4: Float32Array, f8: Float64Array, i1: Int8Array, i2: Int16Array, i4: Int32Array, u1: Uint8Array, u2: Uint16Array,
  u4: Uint32Array, b1: Uint8Array,
};

/** An array that knows its shape: `{data, shape, fortran}`. */
export function parseNpy(buffer) {
  const bytes = new Uint8Array(buffer);
  if (bytes.length < 10 || bytes[0] !== 0x93 || String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") {
    throw new Error("expected an .npy file, but its first bytes are others");
  }
  const view = new DataView(buffer);
  const wide = bytes[6] > 1;
  const start = wide ? 12 : 10;
  const length = wide ? view.getUint32(8, true) : view.getUint16(8, true);
  const header = new TextDecoder("latin1").decode(bytes.subarray(start, start + length));
  const descr = /'descr':\s*'([<|>=])([a-z]\d+)'/.exec(header);
  const shapeText = /'shape':\s*\(([^)]*)\)/.exec(header);
  if (!descr || !shapeText) throw new Error(`an .npy header that is not understood: ${header.slice(0, 80)}`);
  const fortran = /'fortran_order':\s*True/.test(header);
  const shape = shapeText[1].split(",").map((part) => part.trim()).filter(Boolean).map(Number);
  const count = shape.reduce((product, n) => product * n, 1);
  const at = start + length;
  if (descr[2] === "i8" || descr[2] === "u8") {
    const whole = new BigInt64Array(buffer.slice(at, at + count * 8));
    return { data: Float64Array.from(whole, Number), shape, fortran };
  }
  const Kind = KINDS[descr[2]];
  if (!Kind || descr[1] === ">") throw new Error(`numbers of type ${descr[1]}${descr[2]} are not read here`);
  const size = count * Kind.BYTES_PER_ELEMENT;
  if (bytes.length - at < size) throw new Error(`expected ${size} bytes of numbers, found ${bytes.length - at}`);
  const aligned = at % Kind.BYTES_PER_ELEMENT === 0;
  const data = aligned ? new Kind(buffer, at, count) : new Kind(buffer.slice(at, at + size));
  return { data, shape, fortran };
}

/** The columns of `[n, D]` in Fortran order, without a copy; of C order, with one. */
export function columnsOf(array) {
  const rows = array.shape[0] ?? 1;
  const columns = array.shape.slice(1).reduce((product, n) => product * n, 1);
  const out = [];
  for (let d = 0; d < columns; d += 1) {
    if (array.fortran || columns === 1) {
      out.push(array.data.subarray(d * rows, (d + 1) * rows));
    } else {
      const one = new array.data.constructor(rows);
      for (let i = 0; i < rows; i += 1) one[i] = array.data[i * columns + d];
      out.push(one);
    }
  }
  return out;
}

/** Some columns of `[n, D]`, or of an envelope `[n, D, 2]`, in Fortran order. */
export function someDims(array, dims) {
  const [rows, wide, sides = 1] = array.shape;
  const known = dims.filter((d) => d >= 0 && d < wide);
  const data = new array.data.constructor(rows * known.length * sides);
  for (let side = 0; side < sides; side += 1) {
    known.forEach((d, at) => {
      const from = (side * wide + d) * rows;
      data.set(array.data.subarray(from, from + rows), (side * known.length + at) * rows);
    });
  }
  return { data, shape: sides === 1 ? [rows, known.length] : [rows, known.length, sides], fortran: true };
}

export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes.buffer;
}
