// node lists.mjs RUNTIME < {"manifest": {...}, "lists": [{...}, ...], "step": {...}}: for each list the bytes of a step, or the error.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const { arenaBytes, groupsOf, needsOf, placeOf, readList, valueOf } = await import(pathToFileURL(join(process.argv[2], "gpu-list.js")));
const { manifest, lists, sizes } = JSON.parse(readFileSync(0, "utf8"));
const told = lists.map((about) => {
  try {
    const list = readList(new TextEncoder().encode(typeof about === "string" ? about : JSON.stringify(about)), manifest);
    const end = valueOf(list.places.inputs_end, sizes);
    list.inputs.forEach((input) => placeOf(input, sizes, 0, end));
    const groups = list.launches.map((launch) => groupsOf(launch, sizes));
    return { bytes: arenaBytes(list, sizes, false), needs: needsOf(list, 4), used: groups.filter(Boolean).length };
  } catch (error) {
    if (error.name !== "WeftError") throw error;
    return { code: error.code, message: error.message };
  }
});
process.stdout.write(JSON.stringify(told));
