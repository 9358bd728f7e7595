// thread: one more worker of a module's team. It runs kernels on the memory that all of them share, and never returns.

import { instantiate } from "./core.js";

async function join({ module, memory, index, stack, tls }, tell) {
  const { exports } = await instantiate(module, { memory });
  exports.__stack_pointer.value = stack;
  if (exports.__tls_size.value) exports.__wasm_init_tls(tls);
  tell("here");
  exports.weft_page_thread(index);
}

if (globalThis.process?.versions?.node) {
  import("node:worker_threads").then(({ parentPort: port }) => port.once("message", (given) => join(given, (word) => port.postMessage(word))));
} else globalThis.onmessage = ({ data }) => join(data, (word) => postMessage(word));
