// matmul_one: act(x Wᵀ + b) of one row.
//
// Meaning  weft/ops/matmul.py
// Layout   x [rows, depth]; weight rows of `stride` words, from row `start` of the buffer on, which are columns
//          `first` to `first` + `cols` of the result; out [rows, width]; more in lib/finish and lib/fragments
// Method   a workgroup takes a row of x and 8 columns, or EIGHTS times 8 one after another, a warp a segment of 256 of the
//          depth. A warp splits its own segments as split_rows does, in the group's memory, while weights are on their
//          way: x is asked for first. With NORM x is divided by its root mean square and multiplied by `gain` before
// Bound    memory
#include group
#params x, out, rows, depth, width, stride, start, first, cols
#include finish
#include split
#include fragments
const LANES = {{LANES}}u;
const WARPS = {{WARPS}}u;
const EIGHTS = {{EIGHTS}}u;  // of columns
const DEEP = {{DEEP}}u;  // = p.depth: loops over it are unrolled
const TURNS_OF_X = {{TURNS_OF_X}}u;  // segments that a warp splits
const EACH = 4u * TURNS_OF_X;  // pairs of columns of a thread
const PADDED = {{PADDED}}u;
#include root
#if NORM
#params eps: f32
#bind gain: array<f32>
#endif
var<workgroup> xs: array<u32, {{XS}}>;  // [part][column / 2]
var<workgroup> sums: array<f32, {{SUMS}}>;  // [warp][column]
var<workgroup> scales: array<f32, {{SEGMENTS}}>;

// A thread's pairs of columns: four of each segment of its warp.
FN u32 pair_of(u32 i, u32 warp, u32 lane) { return (warp + i / 4u * WARPS) * 128u + lane + i % 4u * 32u; }

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 across = (p.cols + 8u * EIGHTS - 1u) / (8u * EIGHTS);
  u32 group = group_of(at, groups);
  u32 row = group / across;
  if (row >= p.rows) return;
  u32 warp = index / 32u, lane = index % 32u, g = lane / 4u, t = lane % 4u;
  u32 col0 = group % across * (8u * EIGHTS);
  u32 mine = row_of(w_min(col0 + g, p.cols - 1u)) * p.stride;
  u32 from_x = p.x + row * DEEP;
#if NORM
  f32 gains[2 * EACH];
#pragma unroll
  for (u32 i = 0; i < 2 * EACH; i++) {
    u32 c = 2u * pair_of(i / 2u, warp, lane) + i % 2u;
    gains[i] = c < DEEP ? gain[c] : 0.0;
  }
#endif
  f32 kept[2 * EACH];
#pragma unroll
  for (u32 i = 0; i < 2 * EACH; i++) {
    u32 c = 2u * pair_of(i / 2u, warp, lane) + i % 2u;
    kept[i] = c < DEEP ? f(from_x + c) : 0.0;
  }
#if ADD
  f32 before = index < 8u && col0 + index < p.cols ? f(p.residual + row * p.width + p.first + col0 + index) : 0.0;
#endif
#if NORM
  Squares squared = squares_of(index, from_x);
#endif
  Raw raw[8];
  for (u32 i = 0; i < 8; i++) {
    if (warp * SEGMENT + i * 32u < DEEP) raw[i] = raw_of(mine, warp * SEGMENT + i * 32u, t);
  }
#if NORM
  f32 root = root_of(index, squared, p.eps);
#endif
#if NORM
#pragma unroll
  for (u32 i = 0; i < 2 * EACH; i++) kept[i] = kept[i] / root * gains[i];
#endif
#pragma unroll
  for (u32 turn = 0; turn < TURNS_OF_X; turn++) {
    f32 part = 0;
#pragma unroll
    for (u32 i = 0; i < 8; i++) part = larger(part, bitcast<u32>(kept[8u * turn + i]));
    f32 largest = largest_of_warp(part), scale = scale_for(largest);
#pragma unroll
    for (u32 i = 4u * turn; i < 4u * turn + 4u; i++) {
      u32 pair = pair_of(i, warp, lane);
      u32 parts[PARTS];
      split_pair(kept[2 * i] * scale, kept[2 * i + 1] * scale, parts);
      if (2u * pair < PADDED) {
        for (u32 j = 0; j < PARTS; j++) xs[j * (PADDED / 2u) + pair] = parts[j];
        if (pair % 128u == 0u) scales[pair / 128u] = inverse_of(largest);
      }
    }
  }
  warp_wait();  // a warp multiplies what it has split
#pragma unroll
  for (u32 eight = 0; eight < EIGHTS; eight++, col0 += 8u) {
    u32 left = row_of(w_min(col0 + 2u * t, p.cols - 1u)) * p.stride;
    u32 right = row_of(w_min(col0 + 2u * t + 1u, p.cols - 1u)) * p.stride;
#if EIGHTS == 1
#else
    Raw next[8];  // of the next eight columns
    u32 following = row_of(w_min(col0 + 8u + g, p.cols - 1u)) * p.stride;
    for (u32 i = 0; i < 8; i++) {
      if (eight + 1u < EIGHTS && warp * SEGMENT + i * 32u < DEEP) next[i] = raw_of(following, warp * SEGMENT + i * 32u, t);
    }
#endif
    f32 total = 0;
    for (u32 begin = 0; begin < DEEP; begin += WARPS * SEGMENT) {
      u32 k = begin + warp * SEGMENT;
      f32 sum[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0}, ones[4] = {0, 0, 0, 0};
      for (u32 i = 0; i < 8; i++) {
        u32 k0 = k + i * 32u;
        if (k0 < DEEP) {
          array<Halves, PARTS> x;
          for (u32 j = 0; j < PARTS; j++) {
            x[j].low = no_pairs();
            x[j].high = no_pairs();
            if (g == 0u) x[j].low = columns_of(j * (PADDED / 2u) + k0 / 2u, t);
          }
          Pairs w = pairs_of(raw[i], k0), less = no_pairs();
#if DTYPE == f32
          less = rests_of(raw[i], w);
#endif
          add_ones(ones, x);
          add_chunk(sum, rest, x, w, less, scales_of(left, k0), scales_of(right, k0), ones);
        }
      }
#if DTYPE == f32
      for (u32 i = 0; i < 4; i++) sum[i] = w_fma(rest[i], 0.00048828125, sum[i]);
#endif
      if (lane < 4u) {
        sums[warp * 8u + 2u * t] = sum[0];
        sums[warp * 8u + 2u * t + 1u] = sum[1];
      }
      w_workgroupBarrier();
      if (index < 8u) {
        for (u32 i = 0; i < WARPS; i++) {
          if (begin + i * SEGMENT < DEEP) total += sums[i * 8u + index] * scales[begin / SEGMENT + i];
        }
      }
      w_workgroupBarrier();
#if EIGHTS == 1
      for (u32 i = 0; i < 8; i++) {
        u32 k0 = k + WARPS * SEGMENT + i * 32u;
        if (k0 < DEEP) raw[i] = raw_of(mine, k0, t);
      }
#else
      for (u32 i = 0; i < 8; i++) raw[i] = next[i];
#endif
    }
#if PAIRED
    if (index < 8u) sums[index] = total;
    w_workgroupBarrier();
    if (index < 4u && col0 + 2u * index < p.cols) finish_pair(row, col0 + 2u * index, sums[2u * index], sums[2u * index + 1u]);
#if EIGHTS == 1
#else
    w_workgroupBarrier();
#endif
#else
    u32 col = col0 + index;
#if ADD
#if EIGHTS == 1
#else
    before = index < 8u && col < p.cols ? f(p.residual + row * p.width + p.first + col) : 0.0;
#endif
    if (index < 8u && col < p.cols) put(place_of(row, col), before + activated(biased(col, total)));
#else
    if (index < 8u && col < p.cols) finish(row, col, total);
#endif
#endif
  }
}

// A lane's eight columns of 32 of a part of x.
FN Pairs columns_of(u32 at, u32 t) {
  Pairs found;
#if DTYPE == q2_k|q3_k|q6_k
  for (u32 i = 0; i < 4; i++) found.of[i] = xs[at + i / 2u * 8u + t * 2u + i % 2u];
#else
  for (u32 i = 0; i < 4; i++) found.of[i] = xs[at + t * 4u + i];
#endif
  return found;
}
