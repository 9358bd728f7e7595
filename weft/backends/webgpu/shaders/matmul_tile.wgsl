// matmul_tile: act(x Wᵀ + b), a tile of rows and columns a workgroup.
//
// Meaning  weft/ops/matmul.py
// Layout   x [rows, depth]; weight rows of `stride` words, from row `start` of the buffer on, which are columns
//          `first` to `first` + `cols` of the result; out [rows, width]; more in lib/finish
// Method   an invocation computes 4 rows and 4 columns of a tile, or 2 and 2 of a small one, which are for few rows. An
//          element is a chain over 32 columns, then the sum of these parts in order, as in matmul and matmul_row
// Bound    arithmetic
#include group
#include weights
#params x, out, rows, depth, width, stride, start, first, cols
#include finish

#if SMALL
const TALL = 32u;
const WIDE = 16u;
const LANES = 128u;
const ACROSS = 8u;  // invocations on a row of the tile
const EACH = 2u;
alias Few = vec2<f32>;
#else
const TALL = 64u;
const WIDE = 64u;
const LANES = 256u;
const ACROSS = 16u;
const EACH = 4u;
alias Few = vec4<f32>;
#endif
const PART = 32u;
#if GROUPS
var<workgroup> tile: vec3<u32>;  // its first row, its matrix, and where the rows of that end
#endif
var<workgroup> xs: array<f32, {{XS}}>;  // [column][row]
var<workgroup> ws: array<f32, {{WS}}>;

// Four columns of x and of the weight, for the i-th time that all invocations bring some.
fn from_x(i: u32, row0: u32, k0: u32) -> vec4<f32> {
  let row = row0 + i / 8u;
  let k = k0 + i % 8u * 4u;
  let at = p.x + row * p.depth + k;
  var values = vec4<f32>();
  if (row < end_of_rows()) {
#if WHOLE
    if (k < p.depth) { values = vec4<f32>(f(at), f(at + 1u), f(at + 2u), f(at + 3u)); }
#else
    if (k < p.depth) { values.x = f(at); }
    if (k + 1u < p.depth) { values.y = f(at + 1u); }
    if (k + 2u < p.depth) { values.z = f(at + 2u); }
    if (k + 3u < p.depth) { values.w = f(at + 3u); }
#endif
  }
  return values;
}

fn from_weight(i: u32, col0: u32, k0: u32) -> vec4<f32> {
  if (col0 + i / 8u < p.cols && k0 < p.depth) { return weight4(row_of(col0 + i / 8u), p.stride, k0 + i % 8u * 4u); }
  return vec4<f32>();
}

@compute @workgroup_size({{LANES}})
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let across = (p.cols + WIDE - 1u) / WIDE;
  let group = group_of(at, groups);
#if GROUPS
  if (lane == 0u) {
    let first = rows_of(group / across, TALL);
    tile = vec3<u32>(first, matrix, row_end);
  }
  let mine = workgroupUniformLoad(&tile);
  let row0 = mine.x;
  matrix = mine.y;
  row_end = mine.z;
  if (row0 >= mine.z) { return; }
#else
  let row0 = group / across * TALL;
  if (row0 >= p.rows) { return; }
#endif
  let col0 = group % across * WIDE;
  let tx = lane % ACROSS * EACH;
  let ty = lane / ACROSS * EACH;
  var total: array<Few, EACH>;
#each i {{XN}}
  var x{{i}} = from_x(lane + {{i}}u * LANES, row0, 0u);
#end
#each i {{WN}}
  var w{{i}} = from_weight(lane + {{i}}u * LANES, col0, 0u);
#end
  for (var k0 = 0u; k0 < p.depth; k0 += PART) {
    let c = lane % 8u * 4u;
#each i {{XN}}
    let xr{{i}} = (lane + {{i}}u * LANES) / 8u;
    xs[c * TALL + xr{{i}}] = x{{i}}.x;
    xs[(c + 1u) * TALL + xr{{i}}] = x{{i}}.y;
    xs[(c + 2u) * TALL + xr{{i}}] = x{{i}}.z;
    xs[(c + 3u) * TALL + xr{{i}}] = x{{i}}.w;
#end
#each i {{WN}}
    let wr{{i}} = (lane + {{i}}u * LANES) / 8u;
    ws[c * WIDE + wr{{i}}] = w{{i}}.x;
    ws[(c + 1u) * WIDE + wr{{i}}] = w{{i}}.y;
    ws[(c + 2u) * WIDE + wr{{i}}] = w{{i}}.z;
    ws[(c + 3u) * WIDE + wr{{i}}] = w{{i}}.w;
#end
    workgroupBarrier();
    // The next part is on its way while this one is multiplied.
#each i {{XN}}
    x{{i}} = from_x(lane + {{i}}u * LANES, row0, k0 + PART);
#end
#each i {{WN}}
    w{{i}} = from_weight(lane + {{i}}u * LANES, col0, k0 + PART);
#end
    var part = array<Few, EACH>();  // with its value: the variable alone keeps that of the last round
    for (var k = 0u; k < PART; k++) {
      let a = k * TALL + ty;
      let b = k * WIDE + tx;
#if SMALL
      let wide = vec2<f32>(ws[b], ws[b + 1u]);
#else
      let wide = vec4<f32>(ws[b], ws[b + 1u], ws[b + 2u], ws[b + 3u]);
      part[2] = fma(Few(xs[a + 2u]), wide, part[2]);
      part[3] = fma(Few(xs[a + 3u]), wide, part[3]);
#endif
      part[0] = fma(Few(xs[a]), wide, part[0]);
      part[1] = fma(Few(xs[a + 1u]), wide, part[1]);
    }
    for (var i = 0u; i < EACH; i++) { total[i] += part[i]; }
    workgroupBarrier();
  }
  for (var i = 0u; i < EACH; i++) {
    let row = row0 + ty + i;
    if (row < end_of_rows()) {
#if PAIRED
      for (var j = 0u; j < EACH; j += 2u) {
        if (col0 + tx + j < p.cols) { finish_pair(row, col0 + tx + j, total[i][j], total[i][j + 1u]); }
      }
#else
      for (var j = 0u; j < EACH; j++) {
        if (col0 + tx + j < p.cols) { finish(row, col0 + tx + j, total[i][j]); }
      }
#endif
    }
  }
}
