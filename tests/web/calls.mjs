// node calls.mjs RUNTIME BUNDLE < {"texts": [...], "role": ..., "truncate": ..., "tokenise": ..., "repeat": n,
//   "prompts": [...], "messages": [...], "options": {...}, "until": n, "module": name, "threads": n, "adapter": path}
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [runtime, bundle] = process.argv.slice(2);
const { Core } = await import(pathToFileURL(join(runtime, "core.js")));
const asked = JSON.parse(readFileSync(0, "utf8"));
const core = await Core.start(readFileSync(join(runtime, asked.module ?? "weft.wasm")), { threads: asked.threads });
const files = {};
for (const name of readdirSync(bundle)) files[name] = readFileSync(join(bundle, name));
const told = {};
const attempt = (work) => {
  try {
    return work();
  } catch (error) {
    if (error.name !== "WeftError") throw error;
    told.error = { code: error.code, message: error.message };
  }
};
const model = attempt(() => core.open(files));
if (model) {
  told.info = model.info;
  if (asked.tokenise !== undefined) told.ids = Array.from(model.tokenise(asked.tokenise));
  const bytes = asked.adapter && readFileSync(asked.adapter), adapter = bytes && attempt(() => model.loadAdapter(bytes));
  told.adapter = adapter?.info;
  const heaps = [];
  for (let i = 0; i < (asked.repeat ?? 1); ++i) {
    const vectors = asked.texts && attempt(() => model.embed(asked.texts, { role: asked.role, truncate: asked.truncate, adapter }));
    if (vectors) told.vectors = Buffer.from(vectors.buffer).toString("base64");
    if (bytes) attempt(() => model.loadAdapter(bytes).free());
    heaps.push(core.heapBytes);
  }
  const written = (work) => {
    const ids = [];
    const done = work((text, id) => (id >= 0 && ids.push(id), ids.length !== asked.until));
    return { ...done, ids };
  };
  if (asked.prompts) {
    told.written = asked.prompts.map((prompt) =>
      written((onToken) => model.generate(prompt, { ...asked.options, adapter, onToken }))
    );
  }
  if (asked.messages) told.chat = written((onToken) => model.chat(asked.messages, { ...asked.options, adapter, onToken }));
  told.heaps = [heaps[0], heaps.at(-1)];
  adapter?.free();
  model.close();
}
process.stdout.write(JSON.stringify(told));
