/* In the frame of a notebook, in the place of `fetch`: questions go to the kernel, and its answers become responses. */
(() => {
  const waiting = new Map();
  let count = 0;
  let arrived;
  const port = new Promise((resolve) => { arrived = resolve; });
  addEventListener("message", (event) => {
    const [given] = event.ports;
    if (event.data !== "seqlake" || !given) return;
    given.onmessage = ({ data }) => {
      const asker = waiting.get(data.id);
      waiting.delete(data.id);
      asker?.(new Response(data.body, { status: data.status, headers: data.headers }));
    };
    arrived(given);
  });
  globalThis.seqlakeCarrier = async (path, { method = "GET", headers = {}, body = null, signal = null } = {}) => {
    const channel = await port;
    return new Promise((resolve, reject) => {
      const id = (count += 1);
      const stop = () => { waiting.delete(id); reject(new DOMException("not wanted any more", "AbortError")); };
      if (signal?.aborted) { stop(); return; }
      signal?.addEventListener("abort", stop, { once: true });
      waiting.set(id, resolve);
      channel.postMessage({ id, path, method, headers, body });
    });
  };
})();
