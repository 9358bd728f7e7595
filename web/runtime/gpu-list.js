// gpu-list: gpu.json of a bundle, the launches of a program on a GPU (docs/design/bundle.md), read without trust: every number
// is checked before it is a size, an index or a place. What shaders read and write is bounded by the browser.

import { WeftError } from "./core.js";

export const VERSION = 1;
const MOST = { shaders: 1024, text: 1 << 18, launches: 1 << 15, buffers: 1 << 15, params: 64, bindings: 16, pieces: 64 };
const MOST_NUMBER = 2 ** 32; // of a coefficient: with sizes below 2^20, forms are exact
export const MOST_SIZE = 2 ** 20; // tokens, sequences or rows of a step
const MOST_GROUPS = 65_535; // on one axis, of every device
const KNOWN = new Set(["ids", "positions", "segments", "rows", "types", "spans", "pages"]);
const decoder = new TextDecoder("utf-8", { fatal: true });

function need(holds, what) {
  if (!holds) throw new WeftError("format", `[gpu.json] ${what}; export the model again`);
}

const whole = (value, what, least = 0, most = Number.MAX_SAFE_INTEGER) => {
  need(Number.isSafeInteger(value) && value >= least && value <= most, `${what} must be ${least} to ${most}`);
  return value;
};

const listOf = (value, what, most) => {
  need(Array.isArray(value) && value.length <= most, `${what} must be a list of at most ${most}`);
  return value;
};

// A linear form of T, B, L, 1 and the blocks of attention.
function formOf(value, what) {
  if (value === "blocks") return [0, 0, 0, 0, 1];
  const parts = typeof value === "number" ? [0, 0, 0, value] : value;
  need(Array.isArray(parts) && parts.length === 4 && parts.every((part) => Number.isSafeInteger(part) && Math.abs(part) < MOST_NUMBER), `${what} is not a linear form`);
  return [...parts, 0];
}

/** The value of a form in a step. */
export const valueOf = ([t, b, l, one, each], { T, B, L, blocks = 0 }) => t * T + b * B + l * L + one + each * blocks;

function readValue(about, kinds) {
  need(typeof about?.name === "string" && kinds.includes(about.dtype), "has a value of another type than GPUs hold");
  const shape = listOf(about.shape, `the shape of ${about.name}`, 4).map((size) => formOf(size, `the shape of ${about.name}`));
  return { name: about.name, shape, at: formOf(about.at, `the place of ${about.name}`) };
}

function readShader(about) {
  need(typeof about?.name === "string" && typeof about.text === "string" && about.text.length <= MOST.text, "has a shader without its text");
  const written = listOf(about.written, `the buffers of ${about.name}`, MOST.bindings);
  need(written.every((one) => typeof one === "boolean"), `the buffers of ${about.name} are not what they should be`);
  return { name: about.name, text: about.text, written, params: whole(about.params, `the parameters of ${about.name}`, 0, MOST.params) };
}

// Where the rows of a weight come from, and whether they fit.
function readPiece(about, weights, bytes) {
  const tensor = weights.get(about?.weight);
  need(tensor, `needs a weight that the bundle does not have: ${about?.weight}`);
  const { name } = tensor, at = whole(about.at ?? 0, `the place of ${name}`, 0, bytes);
  need(at % 4 === 0, `the place of ${name} must be a multiple of 4`);
  if (about.rows === undefined) {
    need(tensor.dtype === "f32" && tensor.bytes % 4 === 0 && at + tensor.bytes <= bytes, `${name} does not fit into its buffer`);
    return { tensor, at, first: 0, rows: 1, row: tensor.bytes, stride: tensor.bytes, codes: null };
  }
  const total = tensor.shape.slice(0, -1).reduce((product, size) => product * size, 1);
  need(Number.isSafeInteger(total) && total > 0 && tensor.bytes % total === 0, `${name} has no whole rows`);
  const row = tensor.bytes / total, stride = whole(about.stride, `the rows of ${name}`, row, bytes);
  const first = whole(about.first ?? 0, `the first row of ${name}`, 0, total), rows = whole(about.rows, `the rows of ${name}`, 1, total - first);
  need(stride % 16 === 0 && at + rows * stride <= bytes, `${name} does not fit into its buffer`);
  const codes = about.codes === undefined ? null : listOf(about.codes, `the codes of ${name}`, 4);
  if (codes) {
    need(codes.length === 4 && codes.every((one) => Number.isSafeInteger(one) && one >= 0 && one <= 1024), `the codes of ${name} are not places in a block`);
    const [scale, wide, from, to] = codes, block = to - from + wide;
    need(to > from && scale + wide <= block && to <= block && row % block === 0, `the codes of ${name} do not fit its blocks`);
  }
  return { tensor, at, first, rows, row, stride, codes };
}

function readBuffer(about, weights) {
  if (about?.state !== undefined) {
    const pageBytes = whole(about.page_bytes, "a page", 4, 1 << 28);
    need(pageBytes % 4 === 0, "a page must be whole words");
    return { pageBytes, pieces: [] };
  }
  const bytes = whole(about?.bytes, "a buffer", 4, 2 ** 32);
  need(bytes % 4 === 0, "a buffer must be whole words");
  return { bytes, pieces: listOf(about.pieces, "the weights of a buffer", MOST.pieces).map((one) => readPiece(one, weights, bytes)) };
}

function readLaunch(about, { shaders, buffers }) {
  const shader = shaders[whole(about?.shader, "the shader of a launch", 0, shaders.length - 1)];
  const params = listOf(about.params, "the parameters of a launch", MOST.params).map((one) => formOf(one, "a parameter"));
  const bound = listOf(about.buffers, "the buffers of a launch", MOST.bindings).map((one) => whole(one, "a buffer of a launch", 0, buffers.length - 1));
  need(params.length === shader.params && bound.length === shader.written.length, `a launch of ${shader.name} has not what it binds`);
  need(bound.every((one, i) => !shader.written[i] || buffers[one].pageBytes), `a launch of ${shader.name} writes to weights`);
  const split = about.split ?? null;
  need(split === null || typeof split === "boolean", "a launch does not say whether attention is split");
  return {
    shader: about.shader, params, buffers: bound, split,
    items: formOf(about.items, "the items of a launch"),
    per: whole(about.per ?? 1, "the items of a workgroup", 1, MOST_NUMBER),
    times: whole(about.times ?? 1, "the workgroups of an item", 0, MOST_NUMBER),
    least: whole(about.least ?? 0, "the least items", 0),
    most: whole(about.most ?? Number.MAX_SAFE_INTEGER, "the most items", 0),
    beside: formOf(about.beside ?? 0, "the memory of a launch"),
  };
}

function readSplit(about) {
  const names = ["heads", "part_words", "busy", "block", "few", "most_bytes"];
  const found = Object.fromEntries(names.map((name) => [name, whole(about?.[name], name, 0, MOST_NUMBER)]));
  need(found.block > 0, "blocks of keys must have some");
  return found;
}

function tensorsOf(manifest) {
  const found = new Map();
  for (const { name, dtype, shape, file, offset, bytes } of listOf(manifest.weights, "weights", 1 << 20)) {
    need(typeof name === "string" && Array.isArray(shape) && shape.length > 0 && shape.every((size) => Number.isSafeInteger(size) && size > 0), "weights have no shapes");
    const size = manifest.files[file]?.bytes;
    need(whole(offset, `the place of ${name}`) + whole(bytes, `the bytes of ${name}`, 1) <= size, `${name} lies outside its file`);
    found.set(name, { name, dtype, shape, file, offset, bytes });
  }
  return found;
}

/** What gpu.json says, checked; `manifest` is that of the bundle. */
export function readList(bytes, manifest) {
  try {
    return listIn(bytes, manifest);
  } catch (error) {
    if (error instanceof WeftError) throw error;
    return need(false, `is not a list: ${error.message}`); // null where something should be, for example
  }
}

function listIn(bytes, manifest) {
  let about;
  try {
    about = JSON.parse(decoder.decode(bytes));
  } catch {
    need(false, "is not JSON");
  }
  if (about?.weft_gpu !== VERSION) {
    throw new WeftError("unsupported", `[gpu.json] is version ${about?.weft_gpu} of lists; this runtime reads version ${VERSION}: export the model again`);
  }
  const weights = tensorsOf(manifest);
  const shaders = listOf(about.shaders, "shaders", MOST.shaders).map(readShader);
  const buffers = listOf(about.buffers, "buffers", MOST.buffers).map((one) => readBuffer(one, weights));
  const launchesOf = (value) => listOf(value, "launches", MOST.launches).map((one) => readLaunch(one, { shaders, buffers }));
  const inputs = listOf(about.inputs, "inputs", KNOWN.size).map((one) => readValue(one, ["i32"]));
  need(inputs.every(({ name }) => KNOWN.has(name)), "reads what no step has");
  const outputs = listOf(about.outputs, "outputs", 1).map((one) => readValue(one, ["f32"]));
  need(outputs.length === 1 && outputs[0].shape.length === 2, "must have one output of rows");
  const places = Object.fromEntries(["inputs_end", "outputs_at", "end"].map((name) => [name, formOf(about[name], name)]));
  const pairs = { name: "the largest", shape: [formOf([0, 0, 2, 0])] };
  const largest = about.largest ? { ...pairs, launches: launchesOf(about.largest.launches), at: formOf(about.largest.at, "the largest") } : null;
  return { shaders, buffers, inputs, output: outputs[0], places, split: readSplit(about.split), launches: launchesOf(about.launches), largest };
}

/** The storage buffers that one shader binds at most, and the bytes of the largest buffer with `pages` pages. */
export function needsOf({ shaders, buffers }, pages) {
  return {
    bindings: Math.max(...shaders.map(({ written }) => 1 + written.length)),
    bytes: Math.max(4, ...buffers.map(({ bytes, pageBytes }) => bytes ?? pageBytes * pages)),
  };
}

// Into how many blocks of keys attention is split: as GpuExecutable does, for the same bits.
function blocksOf({ heads, part_words: words, busy, block, few, most_bytes: most }, tokens, positions) {
  if (!positions || tokens * heads === 0 || tokens * heads >= busy) return 0;
  const blocks = Math.floor((positions.reduce((most, one) => Math.max(most, one), 0) + block) / block);
  const rounded = 2 ** Math.ceil(Math.log2(blocks));
  return blocks <= few || 4 * words * tokens * rounded > most ? 0 : rounded;
}

/** T, B, L and the blocks of attention of a step: {tokens, sequences, rows, arrays}. */
export function sizesOf(list, { tokens, sequences, rows, arrays }) {
  const sizes = { T: tokens, B: sequences, L: rows, blocks: 0 };
  need(Object.values(sizes).every((size) => size < MOST_SIZE), "a step is larger than one can be");
  return { ...sizes, blocks: blocksOf(list.split, tokens, arrays.positions) };
}

/** Bytes of the arena: all values, and what launches keep beside them. `largest`: the largest of each row are found, too. */
export function arenaBytes(list, sizes, largest) {
  const end = valueOf(list.places.end, sizes), launches = largest ? [...list.launches, ...list.largest.launches] : list.launches;
  const beside = Math.max(0, 4 * list.split.part_words * sizes.T * sizes.blocks, ...launches.map((one) => 4 * valueOf(one.beside, sizes)));
  // The pairs of the last pass end where the largest memory of the passes does.
  const pairs = largest ? valueOf(list.largest.at, sizes) + 8 * sizes.L - end : 0;
  return end + Math.max(beside, pairs);
}

/** The place and bytes of an input or output; refused where it is not in the arena. */
export function placeOf(value, sizes, from, to) {
  const start = valueOf(value.at, sizes), bytes = 4 * value.shape.reduce((product, size) => product * valueOf(size, sizes), 1);
  need(start >= from && start % 4 === 0 && Number.isSafeInteger(bytes) && bytes >= 0 && start + bytes <= to, `${value.name} lies outside the memory of a step`);
  return { start, bytes };
}

/** The workgroups of a launch in a step, on two axes; null where it is left out. */
export function groupsOf(launch, sizes) {
  const items = valueOf(launch.items, sizes);
  if (items < launch.least || items > launch.most || launch.split === (sizes.blocks === 0)) return null;
  const groups = Math.ceil(items / launch.per) * (launch.times || sizes.blocks);
  if (groups <= 0) return null;
  const across = Math.min(groups, MOST_GROUPS), down = Math.ceil(groups / across);
  need(down <= MOST_GROUPS, "a launch has more workgroups than devices take");
  return [across, down];
}
