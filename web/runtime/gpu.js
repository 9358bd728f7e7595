// gpu: a program of a bundle on the browser's WebGPU. The launches, their shaders and where weights lie come from gpu.json;
// here they become pipelines, buffers and the commands of a step. All values of a step lie in one buffer, the arena.

import { WeftError } from "./core.js";
import { MOST_SIZE, arenaBytes, groupsOf, needsOf, placeOf, readList, sizesOf, valueOf } from "./gpu-list.js";
import { uploadFile } from "./gpu-weights.js";

const PARAMS_BYTES = 256; // between the parameters of two launches: what every device takes as a dynamic offset
const EMBED_TOKENS = 2048, WRITE_TOKENS = 512; // of a step at most
const MOST_ARENA = 256 << 20;
const PAGE = 32; // tokens
const NOT_FINITE = 0xffffffff; // the key of such a logit
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|basic render|software/i;
const USAGE = { MAP_READ: 1, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128 }; // GPUBufferUsage, which Node lacks
const COMPUTE = 4, READ = 1;

const nameOf = ({ info = {} }) => [info.vendor, info.architecture, info.description || info.device].filter(Boolean).join(" ") || "unknown";
const isSoftware = (adapter) => (adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter) || SOFTWARE.test(nameOf(adapter));

/**
 * A runner of the bundle on a GPU, or why there is none: {runner, name, why}. `asked` is "auto" or "gpu"; `contextOf` says
 * how many tokens a text has at most.
 */
export async function findGpu(asked, bundle, { contextOf, gpu = globalThis.navigator?.gpu }) {
  const { manifest } = bundle, told = typeof manifest.gpu_refused === "string" ? manifest.gpu_refused : "it was exported without them";
  if (!manifest.gpu) return { why: `the bundle has no launches for GPUs: ${told}` };
  if (!gpu) return { why: "the browser has no WebGPU" };
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter) return { why: "the browser gives no GPU" };
  const name = nameOf(adapter);
  if (asked === "auto" && isSoftware(adapter)) return { why: `the only GPU is a software one, ${name}` };
  const list = readList(await bundle.bytesOf(String(manifest.gpu.launches)), manifest);
  const pages = manifest.kind === "decoder" ? Math.ceil(contextOf(manifest) / PAGE) : 0;
  const { bindings, bytes } = needsOf(list, pages), { limits } = adapter;
  const largest = Math.min(limits.maxStorageBufferBindingSize, limits.maxBufferSize);
  if (bindings > limits.maxStorageBuffersPerShaderStage) return { why: `${name} binds ${limits.maxStorageBuffersPerShaderStage} buffers, the model needs ${bindings}` };
  if (bytes > largest) return { why: `${name} has buffers of at most ${largest} bytes, the model needs ${bytes}` };
  const longest = Math.min(Math.max(Number(manifest.embed?.max_tokens), 1) || 1, MOST_SIZE - 1);
  const rows = ["first", "last"].includes(manifest.embed?.pooling) ? 1 : longest;
  const step = arenaBytes(list, { T: longest, B: 1, L: rows, blocks: 0 }, list.largest !== null); // of a text, which is never cut
  if (step > largest) return { why: `${name} has buffers of at most ${largest} bytes, a text of ${longest} tokens needs ${step}` };
  const requiredLimits = { maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize, maxBufferSize: limits.maxBufferSize };
  if (bindings > 8) requiredLimits.maxStorageBuffersPerShaderStage = bindings; // what every device has
  let device;
  try {
    device = await adapter.requestDevice({ requiredLimits });
  } catch (error) {
    return { why: `${name} cannot be opened: ${error.message}` };
  }
  return { runner: new GpuRunner(device, list, { name, pages, decodes: manifest.kind === "decoder", largest }), name, why: "" };
}

export class GpuRunner {
  lost = "";
  #arena = null;
  #staging = null;
  #groups = [];
  #pipelines = [];
  #buffers = [];
  #plan = null;
  #params = null;
  #layouts = new Map();

  constructor(device, list, { name, pages = 0, decodes = false, largest }) {
    Object.assign(this, { device, list, name, pages, decodes, largest });
    device.lost?.then(({ message, reason }) => (this.lost = message || String(reason)));
    this.launches = [...list.launches, ...(list.largest?.launches ?? [])];
  }

  /** Tokens of a step: as many as the arena has room for, whatever sequences they are of. */
  get stepTokens() {
    const room = Math.min(this.largest, MOST_ARENA);
    let tokens = this.decodes ? WRITE_TOKENS : EMBED_TOKENS;
    const fits = (T) => arenaBytes(this.list, this.decodes ? { T, B: 1, L: 1, blocks: 0 } : { T, B: T, L: T, blocks: 0 }, this.list.largest !== null) <= room;
    while (tokens > 1 && !fits(tokens)) tokens >>= 1;
    return tokens;
  }

  /** Makes buffers and pipelines, and uploads weights: `bytesOf(name)` gives the bytes of a file of the bundle. */
  async start(bytesOf) {
    await this.#checked("the weights", async () => {
      this.#buffers = this.list.buffers.map(({ bytes, pageBytes }) => this.#buffer(bytes ?? pageBytes * this.pages));
      this.#params = this.#buffer(this.launches.length * PARAMS_BYTES);
      const files = new Set(this.list.buffers.flatMap(({ pieces }) => pieces.map(({ tensor }) => tensor.file)));
      for (const file of files) uploadFile(this.device.queue, this.list, this.#buffers, file, await bytesOf(file));
      await this.device.queue.onSubmittedWorkDone();
    });
    await this.#checked("the shaders", async () => {
      const made = await Promise.all(this.list.shaders.map((shader) => this.#pipeline(shader)));
      this.#pipelines = this.launches.map(({ shader }) => made[shader]);
    });
  }

  #layout(written) {
    const key = written.join();
    if (!this.#layouts.has(key)) {
      const kinds = [{ type: "storage" }, { type: "uniform", hasDynamicOffset: true }, ...written.map((one) => ({ type: one ? "storage" : "read-only-storage" }))];
      const entries = kinds.map((buffer, binding) => ({ binding, visibility: COMPUTE, buffer }));
      this.#layouts.set(key, this.device.createBindGroupLayout({ entries }));
    }
    return this.#layouts.get(key);
  }

  async #pipeline({ name, text, written }) {
    const { device } = this, module = device.createShaderModule({ label: name, code: text });
    const layout = device.createPipelineLayout({ bindGroupLayouts: [this.#layout(written)] });
    try {
      return await device.createComputePipelineAsync({ label: name, layout, compute: { module, entryPoint: "main" } });
    } catch (error) {
      this.#checkLost();
      throw new WeftError("format", `[gpu.json] the shader ${name} does not compile here: ${String(error.message).slice(0, 300)}`);
    }
  }

  #buffer(bytes, usage = USAGE.STORAGE | USAGE.COPY_DST | USAGE.COPY_SRC | USAGE.UNIFORM) {
    return this.device.createBuffer({ size: Math.max(16, Math.ceil(bytes / 16) * 16), usage });
  }

  #checkLost() {
    if (this.lost) throw new WeftError("lost", `[gpu] ${this.name} was lost: ${this.lost}; load the model again, or with device "wasm"`);
  }

  // Errors of the device as weft's own. Commands are only submitted in `work`, so their errors are seen here.
  async #checked(what, work) {
    const { device } = this;
    this.#checkLost();
    device.pushErrorScope("out-of-memory");
    device.pushErrorScope("validation");
    let found, failed;
    try {
      found = await work();
    } catch (error) {
      failed = error;
    }
    const [wrong, none] = await Promise.all([device.popErrorScope(), device.popErrorScope()]).catch(() => []);
    if (failed || wrong || none) await Promise.race([device.lost, new Promise((go) => setTimeout(go, 50))]);
    this.#checkLost();
    const full = none ?? (failed instanceof RangeError ? failed : null); // of the device, or of the tab
    if (full) throw new WeftError("memory", `[gpu] ${this.name} has no memory for ${what}: ${full.message.slice(0, 300)}; use a smaller context, or device "wasm"`);
    if (wrong) throw new WeftError("format", `[gpu.json] ${this.name} refuses ${what}: ${wrong.message.slice(0, 300)}`);
    if (failed) throw failed;
    return found;
  }

  // The arena, parameters and dispatches of steps of these sizes.
  #prepare(sizes, largest) {
    const { device, list } = this, key = JSON.stringify([sizes, largest]);
    const bytes = arenaBytes(list, sizes, largest);
    if (bytes > this.largest) throw new WeftError("memory", `[gpu] a step takes ${bytes} bytes, ${this.name} has buffers of at most ${this.largest}; use device "wasm"`);
    if (!this.#arena || this.#arena.size < bytes) {
      this.#arena?.destroy();
      this.#arena = this.#buffer(bytes);
      this.#plan = null;
      this.#groups = this.launches.map(({ shader, buffers }) => {
        const bound = [this.#arena, { buffer: this.#params, size: PARAMS_BYTES }, ...buffers.map((one) => this.#buffers[one])];
        const entries = bound.map((one, binding) => ({ binding, resource: one.buffer ? one : { buffer: one } }));
        return device.createBindGroup({ layout: this.#layout(list.shaders[shader].written), entries });
      });
    }
    if (this.#plan?.key === key) return this.#plan;
    const numbers = new Uint32Array((this.launches.length * PARAMS_BYTES) / 4), dispatches = [];
    this.launches.forEach((launch, i) => {
      const groups = i < list.launches.length || largest ? groupsOf(launch, sizes) : null;
      if (!groups) return;
      launch.params.forEach((form, at) => (numbers[(i * PARAMS_BYTES) / 4 + at] = valueOf(form, sizes)));
      dispatches.push([i, ...groups]);
    });
    device.queue.writeBuffer(this.#params, 0, numbers);
    const { places, output } = list, end = valueOf(places.end, sizes), inputsEnd = valueOf(places.inputs_end, sizes);
    const read = largest ? placeOf(list.largest, sizes, end, bytes) : placeOf(output, sizes, valueOf(places.outputs_at, sizes), end);
    if (!(inputsEnd >= 0 && inputsEnd <= end && inputsEnd % 4 === 0)) throw new WeftError("format", "[gpu.json] inputs lie outside the memory of a step; export the model again");
    const inputs = list.inputs.map((input) => ({ name: input.name, ...placeOf(input, sizes, 0, inputsEnd) }));
    this.#plan = { key, dispatches, read, inputs, inputsEnd, data: new Uint8Array(inputsEnd) };
    return this.#plan;
  }

  /**
   * Runs a step: {wanted, tokens, sequences, rows, arrays}. Gives the output's rows, a Float32Array; for the wanted "largest"
   * the ids of the largest logits, for "nothing" null.
   */
  async run(step) {
    try {
      return await this.#checked("a step", () => this.#compute(step));
    } catch (error) {
      // Buffers that were refused, or are still mapped, are not those of the next step.
      this.#arena?.destroy();
      this.#staging?.destroy();
      this.#arena = this.#staging = this.#plan = null;
      throw error;
    }
  }

  async #compute(step) {
    const { device, list } = this, largest = step.wanted === "largest" && list.largest !== null;
    const sizes = sizesOf(list, step), { dispatches, read, inputs, data } = this.#prepare(sizes, largest);
    for (const { name, start, bytes } of inputs) {
      const array = step.arrays[name];
      if (array?.byteLength !== bytes) throw new WeftError("format", `[gpu.json] ${name} has ${bytes} bytes, the step has ${array?.byteLength}; export the model again`);
      data.set(new Uint8Array(array.buffer, array.byteOffset, bytes), start);
    }
    device.queue.writeBuffer(this.#arena, 0, data);
    const bytes = step.wanted === "nothing" ? 0 : read.bytes;
    if (bytes && (!this.#staging || this.#staging.size < bytes)) {
      this.#staging?.destroy();
      this.#staging = this.#buffer(bytes, USAGE.MAP_READ | USAGE.COPY_DST);
    }
    const encoder = device.createCommandEncoder(), pass = encoder.beginComputePass();
    for (const [i, across, down] of dispatches) {
      pass.setPipeline(this.#pipelines[i]);
      pass.setBindGroup(0, this.#groups[i], [i * PARAMS_BYTES]);
      pass.dispatchWorkgroups(across, down);
    }
    pass.end();
    if (bytes) encoder.copyBufferToBuffer(this.#arena, read.start, this.#staging, 0, bytes);
    device.queue.submit([encoder.finish()]);
    if (!bytes) return null;
    await this.#staging.mapAsync(READ, 0, bytes);
    const found = this.#staging.getMappedRange(0, bytes).slice(0);
    this.#staging.unmap();
    return largest ? this.#ids(new Uint32Array(found)) : new Float32Array(found);
  }

  // Pairs of a key and an id.
  #ids(pairs) {
    if (pairs.some((key, i) => i % 2 === 0 && key === NOT_FINITE)) {
      throw new WeftError("format", "[generate] the model's logits are not finite numbers; check its weights");
    }
    return Int32Array.from(pairs.filter((_, i) => i % 2 === 1));
  }

  close() {
    this.device.destroy();
  }
}

