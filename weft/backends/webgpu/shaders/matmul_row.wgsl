// matmul_row: act(x Wᵀ + b) of few rows: lanes share the depth.
//
// Meaning  weft/ops/matmul.py
// Layout   x [rows, depth]; weight rows of `stride` words, from row `start` of the buffer on, which are columns
//          `first` to `first` + `cols` of the result; out [rows, width]; more in lib/finish
// Method   a workgroup takes a row of x and 8 columns, 32 lanes each: a lane has a chain over one part of 32 columns of
//          every 1,024, which it reads before x comes through the group's memory. One lane adds the parts in order, as
//          matmul and matmul_tile do. With NORM, x is divided by its root mean square first and multiplied by `gain`:
//          every workgroup computes that again, which takes less time than a dispatch
// Bound    memory
#include group
#include weights
#params x, out, rows, depth, width, stride, start, first, cols
#include finish
#if NORM
#params eps: f32
#bind gain: array<f32>
#endif

const PART = 32u;
const TEAM = 32u;
const TEAMS = 8u;
const ROUND = 1024u;
#if GROUPS
var<workgroup> tile: vec3<u32>;  // the row, its matrix, and one more than the row where the buffer has that
#endif
var<workgroup> xs: array<f32, 1056>;  // [part][column], a word apart so that lanes read different banks
var<workgroup> sums: array<f32, 256>;

#if NORM
// What the row is divided by, added up as rms_norm does.
fn root_of(index: u32, from_x: u32) -> f32 {
  var part = 0.0;
  if (index < {{NORM}}u) {
    for (var c = index; c < p.depth; c += {{NORM}}u) { part = fma(f(from_x + c), f(from_x + c), part); }
  }
  sums[index] = part;
  workgroupBarrier();
  for (var step = {{NORM}}u / 2u; step > 0u; step = step >> 1u) {
    if (index < step) { sums[index] = sums[index] + sums[index + step]; }
    workgroupBarrier();
  }
  return sqrt(sums[0] / f32(p.depth) + p.eps);
}
#endif

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  let across = (p.cols + TEAMS - 1u) / TEAMS;
  let group = group_of(at, groups);
#if GROUPS
  if (index == 0u) {
    let alone = row_alone(group / across);
    tile = vec3<u32>(alone, matrix, row_end);
  }
  let mine = workgroupUniformLoad(&tile);
  let row = mine.x;
  matrix = mine.y;
  if (row >= mine.z) { return; }
#else
  let row = group / across;
  if (row >= p.rows) { return; }
#endif
  let lane = index % TEAM;
  let col0 = group % across * TEAMS;
  let col = col0 + index / TEAM;
  let from_x = p.x + row * p.depth;
  var total = 0.0;
#if NORM
  let root = root_of(index, from_x);
#endif
  for (var k0 = 0u; k0 < p.depth; k0 += ROUND) {
    let k = k0 + lane * PART;
    let here = k < p.depth && col < p.cols;
#each i 8
    var w{{i}} = vec4<f32>();
#end
    if (here) {
#each i 8
      w{{i}} = weight4(row_of(col), p.stride, k + 4u * {{i}}u);
#end
    }
    workgroupBarrier();
    for (var c = index; c < ROUND; c += 256u) {
      var value = 0.0;
#if NORM
      if (k0 + c < p.depth) { value = f(from_x + k0 + c) / root * gain[k0 + c]; }
#else
      if (k0 + c < p.depth) { value = f(from_x + k0 + c); }
#endif
      xs[c + c / PART] = value;
    }
    workgroupBarrier();
    var sum = 0.0;
    if (here) {
      let base = lane * (PART + 1u);
#each i 8
      sum = fma(xs[base + 4u * {{i}}u], w{{i}}.x, sum);
      sum = fma(xs[base + 4u * {{i}}u + 1u], w{{i}}.y, sum);
      sum = fma(xs[base + 4u * {{i}}u + 2u], w{{i}}.z, sum);
      sum = fma(xs[base + 4u * {{i}}u + 3u], w{{i}}.w, sum);
#end
    }
    sums[index] = sum;
    workgroupBarrier();
    if (lane == 0u) {
#each i 32
      total += sums[index + {{i}}u];
#end
    }
  }
#if PAIRED
  workgroupBarrier();
  if (lane == 0u) { sums[index / TEAM] = total; }
  workgroupBarrier();
  if (index < TEAMS / 2u && col0 + 2u * index < p.cols) {
    finish_pair(row, col0 + 2u * index, sums[2u * index], sums[2u * index + 1u]);
  }
#else
  if (lane == 0u && col < p.cols) { finish(row, col, total); }
#endif
}
