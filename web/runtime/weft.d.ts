/** What went wrong: the C interface's codes (csrc/capi/weft.h), "network" and "aborted" while loading, "lost" for a GPU that is gone. */
export type WeftErrorCode =
  | "input" | "too_long" | "format" | "unsupported" | "not_found" | "memory" | "space" | "cancelled" | "internal"
  | "network" | "aborted" | "lost";

export class WeftError extends Error {
  readonly code: WeftErrorCode;
  constructor(code: WeftErrorCode, message: string);
}

/** How far a download is, in bytes of all files. `cached`: this file comes from the browser's cache. */
export interface LoadProgress {
  file: string;
  loaded: number;
  total: number;
  cached: boolean;
}

export interface LoadOptions {
  onProgress?: (progress: LoadProgress) => void;
  signal?: AbortSignal;
  /** false: neither read nor write the browser's cache. */
  cache?: boolean;
  /** Tokens of a text at most, prompt and answer together; default: 4096, or fewer if the model reads fewer. */
  context?: number;
  /** Threads in an isolated page, at most 64; default: one for each core, at most 8. The number changes no result. */
  threads?: number;
  /**
   * Where the model runs; default: "auto", a GPU if the browser gives one that is not software, has what the model needs and
   * takes it, else "wasm". "gpu" is an error where there is none.
   */
  device?: "auto" | "gpu" | "wasm";
  /** Where weft.wasm is, and weft-threads.wasm, which isolated pages take in its place; default: beside weft.js. */
  wasm?: string | URL;
  threaded?: string | URL;
}

export interface WeftDevice {
  kind: "gpu" | "wasm";
  /** The GPU's name, or how many threads there are. */
  name: string;
  /** Why it was chosen. */
  why: string;
}

export interface WeftInfo {
  kind: string;
  name: string;
  /** The arithmetic of activations: "f32" on a GPU. */
  compute: string;
  level: "wasm128";
  /** 1 in pages that are not isolated. */
  threads: number;
  /** sha-256 of the manifest, and so of everything. */
  digest: string;
  /** Of an embedder: numbers of a vector, and the most tokens of a text. */
  dimension?: number;
  max_tokens?: number;
  /** Of a decoder: tokens of a text at most, and whether it chats. */
  context?: number;
  chat?: boolean;
  /** Whether `loadAdapter` works: the bundle was exported with `--adapters`. */
  adapters: boolean;
  version: string;
  /** Whether all files that the device needs are in the browser's cache now. */
  kept: boolean;
  heapBytes: number;
  device: WeftDevice;
}

/** A LoRA adapter beside a model. */
export interface WeftAdapter {
  readonly name: string;
  /** The largest rank of its matrices; 0 where it only replaces weights. */
  readonly rank: number;
  readonly sha256: string;
  /** Gives its memory back; calls may not name it any more. */
  free(): Promise<void>;
}

export interface EmbedOptions {
  /** "query", "document" or another prompt of the model. */
  role?: string;
  /** true: keep the beginning of a text that is too long; false: that is an error. */
  truncate?: boolean;
  /** What `loadAdapter` of this model gave; default: the model alone. */
  adapter?: WeftAdapter | null;
  onProgress?: (progress: { done: number; total: number }) => void;
  signal?: AbortSignal;
}

export interface GenerateOptions {
  /** Text as it comes, always whole characters, often empty; id -1: text that was held back at the end. */
  onToken?: (text: string, id: number) => void;
  /** Ends the text: the result has the finish "cancelled". */
  signal?: AbortSignal;
  /** Default 256; 0: as many as the context has room for. */
  maxTokens?: number;
  /** Default 0: always the most likely token. */
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  repetitionPenalty?: number;
  /** The same seed gives the same text. */
  seed?: number | bigint;
  /** Strings that end the text, which does not include them. */
  stop?: readonly string[];
  /** What `loadAdapter` of this model gave; default: the model alone. */
  adapter?: WeftAdapter | null;
}

export interface Generated {
  text: string;
  promptTokens: number;
  tokens: number;
  finish: "stop" | "length" | "cancelled";
}

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

export class Weft {
  private constructor();
  /** Loads the bundle at `url`, a folder that `weft export` wrote. */
  static load(url: string | URL, options?: LoadOptions): Promise<Weft>;
  /** Deletes what the browser keeps of the bundle or the adapter at `url`, or of all of this origin. */
  static forget(url?: string | URL): Promise<void>;
  readonly info: WeftInfo;
  readonly device: WeftDevice;
  /** A LoRA adapter from the file at `url`, which `weft export MODEL --adapter FOLDER --alone` wrote. */
  loadAdapter(url: string | URL, options?: { signal?: AbortSignal; cache?: boolean }): Promise<WeftAdapter>;
  /** One vector for each text. */
  embed(texts: string | readonly string[], options?: EmbedOptions): Promise<Float32Array[]>;
  /** Continues a prompt, in which special tokens are read as such. */
  generate(prompt: string, options?: GenerateOptions): Promise<Generated>;
  /** Answers a conversation with the model's chat template. */
  chat(messages: readonly Message[], options?: GenerateOptions): Promise<Generated>;
  tokenise(text: string, options?: { special?: boolean }): Promise<Int32Array>;
  heapBytes(): Promise<number>;
  close(): void;
}
