/* The number that a tile's pixels carry (tests/viewer/browser/films.py), or null where there is no picture. */
(tile) => {
  const figure = document.querySelector(`[data-tile="${tile}"]`);
  const sources = [...figure.querySelectorAll("video, canvas.decoded")].filter((one) => getComputedStyle(one).visibility !== "hidden" && (one.videoWidth ?? one.width) > 0);
  const source = sources[sources.length - 1];
  if (!source || source.classList.contains("gone")) return null;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [160, 96];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(source, 0, 0, 160, 96);
  const light = [];
  for (let down = 0; down < 3; down += 1) {
    for (let across = 0; across < 4; across += 1) {
      const { data } = context.getImageData(across * 40 + 17, down * 32 + 13, 6, 6);
      let sum = 0;
      for (let i = 0; i < data.length; i += 4) sum += 0.3 * data[i] + 0.59 * data[i + 1] + 0.11 * data[i + 2];
      light.push(sum / 36);
    }
  }
  const middle = (light[0] + light[1]) / 2;
  if (Math.abs(light[0] - light[1]) < 40) return null;
  return light.slice(2).reduce((number, one) => number * 2 + ((one > middle) === (light[0] > light[1]) ? 1 : 0), 0);
}
