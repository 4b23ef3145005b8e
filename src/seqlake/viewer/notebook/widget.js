/* What anywidget runs in the notebook: a frame that holds the viewer, and a channel between it and the kernel.
 *
 * The frame has no address and no origin of its own, so that neither cookies nor rules between sites concern it: all that it
 * shows comes through the kernel's messages. */

function isDark() {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  if (jpThemeLight !== undefined) return jpThemeLight === "false";
  if (vscodeThemeKind !== undefined) return vscodeThemeKind.includes("dark") || vscodeThemeKind === "vscode-high-contrast";
  return null;
}

function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-forms allow-downloads");
  frame.setAttribute("title", "seqlake viewer");
  frame.style.cssText = "display: block; width: 100%; height: 100%; border: 0;";
  const holder = document.createElement("div");
  holder.style.cssText = "height: 640px; min-height: 240px; resize: vertical; overflow: hidden; border: 1px solid rgb(128 128 128 / 35%); border-radius: 6px;";
  holder.append(frame);
  el.append(holder);
  /* Each view of the widget asks under a name of its own: all of them hear every answer. */
  const name = Math.random().toString(36).slice(2);
  let port = null;
  const hear = (message, buffers) => {
    if (message?.view !== name) return;
    if (message.page !== undefined) { frame.srcdoc = message.page; return; }
    const data = buffers?.[0];
    const body = data === undefined ? new ArrayBuffer(0) : data instanceof ArrayBuffer ? data : new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice().buffer;
    port?.postMessage({ ...message, body }, [body]);
  };
  model.on("msg:custom", hear);
  /* A frame that the notebook moves to another place is loaded again. */
  frame.addEventListener("load", () => {
    if (!frame.srcdoc) return;
    port?.close();
    const channel = new MessageChannel();
    port = channel.port1;
    port.onmessage = ({ data }) => model.send({ ...data, view: name });
    frame.contentWindow.postMessage("seqlake", "*", [channel.port2]);
  });
  model.send({ view: name, page: true, dark: isDark() });
  return () => { model.off("msg:custom", hear); port?.close(); };
}

export default { render };
