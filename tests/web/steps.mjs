// node steps.mjs RUNTIME ENCODER DECODER URL: what core.js makes of a host's steps that fail, and how much memory is left of
// them; and what loading.js makes of the bundle at URL, which says that a file is larger than one can be.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [runtime, encoder, decoder, url] = process.argv.slice(2);
const { Core } = await import(pathToFileURL(join(runtime, "core.js")));
const { findBundle } = await import(pathToFileURL(join(runtime, "loading.js")));
const codeOf = async (work) => {
  try {
    await work();
    return "";
  } catch (error) {
    if (error.name !== "WeftError") throw error;
    return error.code;
  }
};
const open = async (bundle) => {
  const core = await Core.start(readFileSync(join(runtime, "weft.wasm"))), files = {};
  for (const name of readdirSync(bundle)) if (!name.startsWith("weights")) files[name] = readFileSync(join(bundle, name));
  return { core, model: core.open(files, { stepTokens: 64 }) };
};

const told = {}, texts = Array.from({ length: 50 }, (_, i) => `text ${i} of a host`.repeat(2));
const { core, model } = await open(encoder);
told.nothing = await codeOf(() => model.embedOn(async () => null, texts));
told.few = await codeOf(() => model.embedOn(async () => new Float32Array(3), texts));
told.room = await codeOf(() => core.room(2 ** 32 + 64));
const writer = await open(decoder);
told.file = await codeOf(async () => (await findBundle(url)).bytesOf("gpu.json"));
const lost = async () => {
  throw Object.assign(new Error("gone"), { name: "WeftError", code: "lost" });
};
const once = async () => {
  await codeOf(() => model.embedOn(lost, texts));
  return codeOf(() => writer.model.generateOn(lost, "Once upon a time", { maxTokens: 9 }));
};
for (let i = 0; i < 50; ++i) told.lost = await once();
const before = [core.heapBytes, writer.core.heapBytes];
for (let i = 0; i < 2000; ++i) await once();
told.grown = [core.heapBytes - before[0], writer.core.heapBytes - before[1]];
process.stdout.write(JSON.stringify(told));
