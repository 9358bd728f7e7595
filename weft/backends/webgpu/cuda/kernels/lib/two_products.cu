// two_products: what kernels of one row have in common that multiply twice: by rows of a first weight, and what came of
// it by columns of a second one.
//
// A cluster of eight workgroups has 256 columns of the second weight, which are one chain of its sums. Of the first
// weight a workgroup multiplies {{ROWS}} rows by all columns and gives the results to the others; then it multiplies an eighth
// of the second weight's rows by the cluster's columns, and leaves these parts of the sums. Who reads them adds them up in
// order: the next kernel of this kind (SUMMED), of which a workgroup has an eighth and gives it to the others, or with
// FINAL the workgroup that ends last among those with the same rows. A warp that does nothing else asks for all weights at
// the start; they come into `slots`.
#include group
#include math
#bind weight2: array<u32>
#params x, stride, start, stride2, start2, parts, clusters
#if SUMMED
#params before, kept
const BEFORE = {{SUMMED}}u;  // clusters that left parts of x
#endif
#if FINAL
#bind rw counters: array<u32>
#params out
#endif
#include split
#include fragments
const LANES = 512u;  // beside 32 that ask for weights, which takes as long as they are on their way
const WARPS = 16u;
const ALL_LANES = 544u;
FN void w_workgroupBarrier() { team_wait(1u, LANES); }  // those that ask are not waited for
const TOGETHER = 8u;  // workgroups of a cluster
const DEEP = {{DEEP}}u;
const SEGMENTS = DEEP / SEGMENT;
const ACTIVE = WARPS / SEGMENTS * SEGMENTS;  // warps, of which each has one segment
const FIRST = {{ROWS}}u / 8u * SEGMENTS;  // lots of eight rows and 256 columns of the first weight
const OWN_ROWS = {{ROWS}}u;
const SECOND = {{OUT}}u / 64u;  // and of the second
const ROUNDS = (FIRST + ACTIVE - 1u) / ACTIVE;
const EACH = (DEEP / 2u + LANES - 1u) / LANES;  // pairs of columns of a thread
#params eps: f32
#bind gain: array<f32>
#include segments
#include root
const PITCH = DEEP / 8u + 4u;  // of rows of the first weight, in 16 bytes; those of two rows are in different banks
const PITCH2 = SEGMENT / 8u + 4u;
var<launched> slots: array<uint4, {{SLOTS}}>;  // rows of the first weight, then of the second
var<workgroup> gates: array<u64, 5>;  // of x, what the first weight made, parts of attention, and the weights
var<workgroup> row_x: array<f32, {{DEEP}}>;
var<workgroup> xs: array<uint4, {{XS}}>;  // [part][column / 8]
var<workgroup> sums: array<f32, {{SUMS}}>;  // [lot][row]
var<workgroup> middle: array<f32, 256>;
var<workgroup> scales: array<f32, 16>;
#if FINAL
var<workgroup> last: u32;
#endif

// Gates, by the lanes that ask for weights.
FN void make_gates(u32 lane, u32 made_bytes) {
  if (lane > 0u) return;
  expect(&gates[0], 4u * DEEP);
  expect(&gates[1], made_bytes);
  expect(&gates[3], 2u * DEEP * OWN_ROWS);
  expect(&gates[4], 2u * SEGMENT * 8u * SECOND);
}

// Weights: row_of says which row of the first one is the workgroup's row `row`.
FN void ask(u32 lane, u32 cluster, u32 rank) {
  warp_wait();
  for (u32 row = lane; row < OWN_ROWS; row += 32u) fetch(&slots[row * PITCH], weight + row_of(row) * p.stride, 2u * DEEP, &gates[3]);
  for (u32 row = lane; row < 8u * SECOND; row += 32u) {
    const u32* from = weight2 + (p.start2 + rank * (8u * SECOND) + row) * p.stride2 + cluster * 128u;
    fetch(&slots[{{SECOND_AT}}u + row * PITCH2], from, 2u * SEGMENT, &gates[4]);
  }
}

// What a thread needs of x and of its gain.
#if SUMMED
struct Own { x: f32, gains: array<f32, 2 * EACH>, parts: array<f32, BEFORE> }
#else
struct Own { x: array<f32, 2 * EACH>, gains: array<f32, 2 * EACH> }
#endif

FN Own own_of(u32 index, u32 rank) {
  Own own;
#pragma unroll
  for (u32 i = 0; i < 2 * EACH; i++) {
    u32 c = 2u * (index + i / 2u * LANES) + i % 2u;
#if SUMMED
#else
    own.x[i] = c < DEEP ? f(p.x + c) : 0.0;
#endif
    own.gains[i] = c < DEEP ? gain[c] : 0.0;
  }
#if SUMMED
  u32 c = rank * (DEEP / TOGETHER) + w_min(index, DEEP / TOGETHER - 1u);
  own.x = f(p.x + c);
#pragma unroll
  for (u32 i = 0; i < BEFORE; i++) own.parts[i] = f(p.before + i * DEEP + c);
#endif
  return own;
}

// The workgroup's share of x to all of the cluster, which have begun afterwards.
FN void give_x(const Own& own, u32 index, u32 cluster, u32 rank) {
  all_arrived();
#if SUMMED
  if (index < DEEP / TOGETHER) {
    u32 c = rank * (DEEP / TOGETHER) + index;
    f32 total = 0;
#pragma unroll
    for (u32 i = 0; i < BEFORE; i++) total += own.parts[i];
    total = own.x + total;
    if (cluster == 0u) put(p.kept + c, total);
#pragma unroll
    for (u32 i = 0; i < TOGETHER; i++) send(&row_x[c], i, total, &gates[0]);
  }
#else
#pragma unroll
  for (u32 i = 0; i < 2 * EACH; i++) {
    u32 c = 2u * (index + i / 2u * LANES) + i % 2u;
    if (c < DEEP) row_x[c] = own.x[i];
  }
#endif
}

// The norm of x in parts, and a power of two for each segment.
FN void split_x(const Own& own, u32 index) {
#if SUMMED
  wait_for(&gates[0]);
#else
  w_workgroupBarrier();
#endif
  Squares squared;
#pragma unroll
  for (u32 turn = 0; turn < TURNS; turn++) {
    u32 lane = index + turn * LANES;
    squared.of[turn] = 0;
#pragma unroll
    for (u32 c = 0; c < DEEP; c += {{NORM}}u) {
      if (lane < {{NORM}}u) squared.of[turn] = w_fma(row_x[lane + c], row_x[lane + c], squared.of[turn]);
    }
  }
  f32 root = root_of(index, squared, p.eps);
  f32 found[2 * EACH];
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    u32 pair = index + i * LANES;
    found[2 * i] = 2u * pair < DEEP ? row_x[2u * pair] / root * own.gains[2 * i] : 0.0;
    found[2 * i + 1] = 2u * pair < DEEP ? row_x[2u * pair + 1u] / root * own.gains[2 * i + 1] : 0.0;
  }
  find_largest(index, found);
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    u32 pair = index + i * LANES, segment = pair / 128u;
    if (2u * pair < DEEP) {
      f32 largest = largest_around(pair);
      f32 scale = scale_for(largest);
      u32 both[PARTS];
      split_pair(found[2 * i] * scale, found[2 * i + 1] * scale, both);
      for (u32 j = 0; j < PARTS; j++) ((u32*)&xs[0])[j * (DEEP / 2u) + pair] = both[j];
      if (pair % 128u == 0u) scales[segment] = inverse_of(largest);
    }
  }
  w_workgroupBarrier();
}

// Sums of lots, of which a lane's rows begin at `rows` of `slots`, times the segment of x that begins at 16 bytes `from` of
// each part; parts are `apart` such words long.
template <u32 COUNT>
FN void chains(f32 (&sum)[COUNT][4], const u32 (&rows)[COUNT], u32 from, u32 apart, u32 lane) {
  u32 g = lane / 4u, t = lane % 4u;
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    array<Halves, PARTS> row;
#pragma unroll
    for (u32 j = 0; j < PARTS; j++) {
      uint4 all = xs[j * apart + from + i * 4u + t];
      row[j].high = no_pairs();
      row[j].low.of[0] = g == 0u ? all.x : 0u;
      row[j].low.of[1] = g == 0u ? all.y : 0u;
      row[j].low.of[2] = g == 0u ? all.z : 0u;
      row[j].low.of[3] = g == 0u ? all.w : 0u;
    }
#pragma unroll
    for (u32 one = 0; one < COUNT; one++) {
      uint4 all = slots[rows[one] + i * 4u + t];
      Pairs w;
      w.of[0] = all.x; w.of[1] = all.y; w.of[2] = all.z; w.of[3] = all.w;
#pragma unroll
      for (u32 part = 0; part < PARTS; part++) {
        product16(sum[one], row[part], 0, w.of[0], w.of[1]);
        product16(sum[one], row[part], 1, w.of[2], w.of[3]);
      }
    }
  }
}

FN void multiply_first(u32 index) {
  u32 warp = index / 32u, lane = index % 32u;
  f32 sum[ROUNDS][4];
  u32 rows[ROUNDS], segment = warp % SEGMENTS * 32u;
#pragma unroll
  for (u32 turn = 0; turn < ROUNDS; turn++) {
    for (u32 i = 0; i < 4; i++) sum[turn][i] = 0;
    u32 row = (turn * ACTIVE + warp) / SEGMENTS * 8u + lane / 4u;
    rows[turn] = w_min(row, OWN_ROWS - 1u) * PITCH + segment;
  }
  wait_for(&gates[3]);
  if (warp < ACTIVE) {
    chains<ROUNDS>(sum, rows, segment, DEEP / 8u, lane);
#pragma unroll
    for (u32 turn = 0; turn < ROUNDS; turn++) {
      u32 lot = turn * ACTIVE + warp;
      if (lane < 4u && lot < FIRST) {
        sums[lot * 8u + 2u * lane] = sum[turn][0];
        sums[lot * 8u + 2u * lane + 1u] = sum[turn][1];
      }
    }
  }
  w_workgroupBarrier();
}

// A row of the workgroup times x.
FN f32 first_of(u32 row) {
  f32 total = 0;
#pragma unroll
  for (u32 i = 0; i < SEGMENTS; i++) total += sums[(row / 8u * SEGMENTS + i) * 8u + row % 8u] * scales[i];
  return total;
}

// What the second weight makes of `middle`, which is all there.
FN void multiply_second(u32 index, u32 cluster, u32 rank) {
  u32 warp = index / 32u, lane = index % 32u;
  f32 part = 0;
#pragma unroll
  for (u32 i = 0; i < 8; i++) part = larger(part, bitcast<u32>(middle[lane + 32u * i]));
  f32 largest = largest_of_warp(part), scale = scale_for(largest);
  if (index < 128u) {
    u32 found[PARTS];
    split_pair(middle[2u * index] * scale, middle[2u * index + 1u] * scale, found);
    for (u32 j = 0; j < PARTS; j++) ((u32*)&xs[0])[j * 128u + index] = found[j];
  }
  wait_for(&gates[4]);
  w_workgroupBarrier();
  f32 inverse = inverse_of(largest);
#pragma unroll
  for (u32 turn = 0; turn < (SECOND + WARPS - 1u) / WARPS; turn++) {
    u32 lot = turn * WARPS + warp;
    if (lot >= SECOND) break;
    f32 sum[1][4] = {{0, 0, 0, 0}};
    u32 rows[1] = { {{SECOND_AT}}u + (lot * 8u + lane / 4u) * PITCH2};
    chains<1>(sum, rows, 0, 32u, lane);
    if (lane < 4u) {
      u32 to = p.parts + cluster * (64u * SECOND) + rank * (8u * SECOND) + lot * 8u + 2u * lane;
      put(to, sum[0][0] * inverse);
      put(to + 1u, sum[0][1] * inverse);
    }
  }
#if FINAL
  everybody_sees();
  w_workgroupBarrier();
  if (index == 0u) last = add_one(counters + rank, p.clusters) + 1u == p.clusters ? 1u : 0u;
  w_workgroupBarrier();
  if (last == 0u) return;
  everybody_sees();
  for (u32 i = index; i < 8u * SECOND; i += LANES) {
    u32 row = rank * (8u * SECOND) + i;
    f32 total = 0;
    for (u32 one = 0; one < p.clusters; one++) total += fresh(arena + p.parts + one * (64u * SECOND) + row);
    put(p.out + row, row_x[row] + total);
  }
#endif
}
