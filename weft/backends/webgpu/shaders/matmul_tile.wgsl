// matmul_tile: act(x Wᵀ + b), a tile of rows and columns a workgroup.
//
// Meaning  weft/ops/matmul.py
// Layout   x [rows, depth]; weight rows of `stride` words, `first` to `first` + `cols` of the matrix in this buffer;
//          out [rows, width]
// Method   an invocation computes 4 rows and 4 columns of a tile, or 2 and 2 of a small one, which are for few rows. An
//          element is a chain over 32 columns, then the sum of these parts in order, as in matmul and matmul_row
// Bound    arithmetic
#include group
#include math
#include weights
#if BIAS
#bind bias: array<f32>
#endif
#params x, out, rows, depth, width, stride, first, cols

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
var<workgroup> xs: array<f32, {{XS}}>;  // [column][row]
var<workgroup> ws: array<f32, {{WS}}>;

@compute @workgroup_size({{LANES}})
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let across = (p.cols + WIDE - 1u) / WIDE;
  let group = group_of(at, groups);
  let row0 = group / across * TALL;
  if (row0 >= p.rows) { return; }
  let col0 = group % across * WIDE;
  let tx = lane % ACROSS * EACH;
  let ty = lane / ACROSS * EACH;
  var total: array<Few, EACH>;
  for (var k0 = 0u; k0 < p.depth; k0 += PART) {
    // Neighbouring invocations bring neighbouring columns, four of a row at a time.
    for (var i = lane; i < TALL * 8u; i += LANES) {
      let r = i / 8u;
      let c = i % 8u * 4u;
      for (var j = 0u; j < 4u; j++) {
        var value = 0.0;
        if (row0 + r < p.rows && k0 + c + j < p.depth) { value = f(p.x + (row0 + r) * p.depth + k0 + c + j); }
        xs[(c + j) * TALL + r] = value;
      }
    }
    for (var i = lane; i < WIDE * 8u; i += LANES) {
      let r = i / 8u;
      let c = i % 8u * 4u;
      var values = vec4<f32>();
      if (col0 + r < p.cols) { values = weight4(col0 + r, p.stride, k0 + c); }
      for (var j = 0u; j < 4u; j++) { ws[(c + j) * WIDE + r] = values[j]; }
    }
    workgroupBarrier();
    var part = array<Few, EACH>();  // with its value: the variable alone keeps that of the last round
    for (var k = 0u; k < PART; k++) {
      let a = k * TALL + ty;
      let b = k * WIDE + tx;
#if SMALL
      let w = vec2<f32>(ws[b], ws[b + 1u]);
#else
      let w = vec4<f32>(ws[b], ws[b + 1u], ws[b + 2u], ws[b + 3u]);
      part[2] = fma(Few(xs[a + 2u]), w, part[2]);
      part[3] = fma(Few(xs[a + 3u]), w, part[3]);
#endif
      part[0] = fma(Few(xs[a]), w, part[0]);
      part[1] = fma(Few(xs[a + 1u]), w, part[1]);
    }
    for (var i = 0u; i < EACH; i++) { total[i] += part[i]; }
    workgroupBarrier();
  }
  for (var i = 0u; i < EACH; i++) {
    for (var j = 0u; j < EACH; j++) {
      let row = row0 + ty + i;
      let col = col0 + tx + j;
      if (row < p.rows && col < p.cols) {
        var value = total[i][j];
#if BIAS
        value += bias[p.first + col];
#endif
        put(p.out + row * p.width + p.first + col, activated(value));
      }
    }
  }
}
