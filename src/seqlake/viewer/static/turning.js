/** Pointer and wheel on a canvas with a camera `{yaw, pitch, zoom, x, y}`: turn, move, come nearer. `flat` only moves. */
export function followPointerTurn(element, camera, draw, flat = false) {
  const first = { ...camera };
  let from = null;
  const touches = new Map();
  const down = (event) => {
    element.setPointerCapture(event.pointerId);
    touches.set(event.pointerId, [event.clientX, event.clientY]);
    from = { x: event.clientX, y: event.clientY, camera: { ...camera }, move: flat || event.shiftKey || event.button === 1 };
    event.preventDefault();
  };
  const spread = () => {
    const [a, b] = [...touches.values()];
    return Math.hypot(a[0] - b[0], a[1] - b[1]);
  };
  const move = (event) => {
    if (!from || !touches.has(event.pointerId)) return;
    const before = touches.size === 2 ? spread() : 0;
    touches.set(event.pointerId, [event.clientX, event.clientY]);
    if (touches.size === 2) {
      camera.zoom = Math.max(0.1, Math.min(60, (camera.zoom * spread()) / Math.max(1, before)));
    } else if (from.move) {
      camera.x = from.camera.x + event.clientX - from.x;
      camera.y = from.camera.y + event.clientY - from.y;
    } else {
      camera.yaw = from.camera.yaw + (event.clientX - from.x) / 150;
      camera.pitch = Math.max(-1.5, Math.min(1.57, from.camera.pitch + (event.clientY - from.y) / 150));
    }
    draw();
  };
  const up = (event) => { touches.delete(event.pointerId); if (!touches.size) from = null; };
  const wheel = (event) => {
    event.preventDefault();
    camera.zoom = Math.max(0.1, Math.min(60, camera.zoom * Math.exp(-event.deltaY / 400)));
    draw();
  };
  const back = () => { Object.assign(camera, first); draw(); };
  const events = { pointerdown: down, pointermove: move, pointerup: up, pointercancel: up, dblclick: back };
  for (const [name, listener] of Object.entries(events)) element.addEventListener(name, listener);
  element.addEventListener("wheel", wheel, { passive: false });
  return () => {
    for (const [name, listener] of Object.entries(events)) element.removeEventListener(name, listener);
    element.removeEventListener("wheel", wheel);
  };
}
