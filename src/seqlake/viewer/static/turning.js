/** Pointer and wheel on a canvas with a camera `{yaw, pitch, zoom, x, y}`: turn, move, come nearer. `flat()`: only move;
 * `home()`: the camera that a double press gives back. */

const LEAST = 0.1;
const MOST = 60;

export function followPointerTurn(element, camera, draw, { flat = () => false, home }) {
  const touches = new Map();
  let from = null;
  const begin = (move) => {
    const all = [...touches.values()];
    const middle = all.reduce(([x, y], [px, py]) => [x + px / all.length, y + py / all.length], [0, 0]);
    const spread = all.length > 1 ? Math.hypot(all[0][0] - all[1][0], all[0][1] - all[1][1]) : 0;
    return { middle, spread, camera: { ...camera }, move };
  };
  const down = (event) => {
    element.setPointerCapture(event.pointerId);
    touches.set(event.pointerId, [event.clientX, event.clientY]);
    from = begin(touches.size > 1 || flat() || event.shiftKey || event.button === 1 || event.button === 2);
    event.preventDefault();
  };
  const move = (event) => {
    if (!from || !touches.has(event.pointerId)) return;
    touches.set(event.pointerId, [event.clientX, event.clientY]);
    const now = begin(from.move);
    const dx = now.middle[0] - from.middle[0];
    const dy = now.middle[1] - from.middle[1];
    if (from.spread > 0) camera.zoom = Math.max(LEAST, Math.min(MOST, (from.camera.zoom * now.spread) / from.spread));
    if (from.move) {
      camera.x = from.camera.x + dx;
      camera.y = from.camera.y + dy;
    } else {
      camera.yaw = from.camera.yaw + dx / 150;
      camera.pitch = Math.max(-1.5, Math.min(1.5, from.camera.pitch + dy / 150));
    }
    draw();
  };
  const up = (event) => {
    touches.delete(event.pointerId);
    from = touches.size ? begin(flat() || touches.size > 1) : null;
  };
  /* What lies under the pointer stays there. */
  const wheel = (event) => {
    event.preventDefault();
    const before = camera.zoom;
    camera.zoom = Math.max(LEAST, Math.min(MOST, camera.zoom * Math.exp(-event.deltaY / 400)));
    const { left, top, width, height } = element.getBoundingClientRect();
    const [x, y] = [event.clientX - left - width / 2, event.clientY - top - height / 2];
    camera.x = x - ((x - camera.x) * camera.zoom) / before;
    camera.y = y - ((y - camera.y) * camera.zoom) / before;
    draw();
  };
  const back = () => { Object.assign(camera, home()); draw(); };
  const menu = (event) => event.preventDefault();
  const events = { pointerdown: down, pointermove: move, pointerup: up, pointercancel: up, dblclick: back, contextmenu: menu };
  for (const [name, listener] of Object.entries(events)) element.addEventListener(name, listener);
  element.addEventListener("wheel", wheel, { passive: false });
  return () => {
    for (const [name, listener] of Object.entries(events)) element.removeEventListener(name, listener);
    element.removeEventListener("wheel", wheel);
  };
}
