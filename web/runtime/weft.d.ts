/** What went wrong: the C interface's codes (csrc/capi/weft.h), and "network" and "aborted" while loading. */
export type WeftErrorCode =
  | "input" | "too_long" | "format" | "unsupported" | "not_found" | "memory" | "space" | "cancelled" | "internal"
  | "network" | "aborted";

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
  /** Where weft.wasm is; default: beside weft.js. */
  wasm?: string | URL;
}

export interface WeftInfo {
  kind: string;
  name: string;
  compute: string;
  level: "wasm128";
  threads: number;
  /** sha-256 of the manifest, and so of everything. */
  digest: string;
  /** Of an embedder: numbers of a vector, and the most tokens of a text. */
  dimension?: number;
  max_tokens?: number;
  version: string;
  /** Whether all files are in the browser's cache now. */
  kept: boolean;
  heapBytes: number;
}

export interface EmbedOptions {
  /** "query", "document" or another prompt of the model. */
  role?: string;
  /** true: keep the beginning of a text that is too long; false: that is an error. */
  truncate?: boolean;
  onProgress?: (progress: { done: number; total: number }) => void;
  signal?: AbortSignal;
}

export class Weft {
  private constructor();
  /** Loads the bundle at `url`, a folder that `weft export` wrote. */
  static load(url: string | URL, options?: LoadOptions): Promise<Weft>;
  readonly info: WeftInfo;
  /** One vector for each text. */
  embed(texts: string | readonly string[], options?: EmbedOptions): Promise<Float32Array[]>;
  tokenise(text: string, options?: { special?: boolean }): Promise<Int32Array>;
  heapBytes(): Promise<number>;
  close(): void;
}
