// matmul_tile: act(x Wᵀ + b), tiles of 64 rows and 64 columns.
//
// Meaning  weft/ops/matmul.py
// Layout   x [rows, depth]; weight rows of `stride` words, `first` to `first` + `cols` of the matrix in this buffer;
//          out [rows, width]
// Method   a workgroup of 256 computes a tile, an invocation 4 x 4 of it. An element is a chain over 32 columns, then the
//          sum of these parts in order, as in matmul and matmul_row
// Bound    arithmetic
#include group
#include math
#include weights
#if BIAS
#bind bias: array<f32>
#endif
#params x, out, rows, depth, width, stride, first, cols

const SIDE = 64u;
const PART = 32u;
var<workgroup> xs: array<f32, 2048>;  // [column][row]
var<workgroup> ws: array<f32, 2048>;

fn four(from_x: bool, at: u32) -> vec4<f32> {
  if (from_x) { return vec4<f32>(xs[at], xs[at + 1u], xs[at + 2u], xs[at + 3u]); }
  return vec4<f32>(ws[at], ws[at + 1u], ws[at + 2u], ws[at + 3u]);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let across = (p.cols + SIDE - 1u) / SIDE;
  let group = group_of(at, groups);
  let row0 = group / across * SIDE;
  if (row0 >= p.rows) { return; }
  let col0 = group % across * SIDE;
  let tx = lane % 16u;
  let ty = lane / 16u;
  var total: array<vec4<f32>, 4>;
  for (var k0 = 0u; k0 < p.depth; k0 += PART) {
    // Each invocation brings 8 numbers of x and of the weight: of row lane / 4, from column lane % 4 * 8 on.
    let r = lane / 4u;
    let c = lane % 4u * 8u;
    for (var j = 0u; j < 8u; j++) {
      var value = 0.0;
      if (row0 + r < p.rows && k0 + c + j < p.depth) { value = f(p.x + (row0 + r) * p.depth + k0 + c + j); }
      xs[(c + j) * SIDE + r] = value;
    }
    for (var j = 0u; j < 8u; j += 4u) {
      var values = vec4<f32>();
      if (col0 + r < p.cols) { values = weight4(col0 + r, p.stride, k0 + c + j); }
      for (var i = 0u; i < 4u; i++) { ws[(c + j + i) * SIDE + r] = values[i]; }
    }
    workgroupBarrier();
    var part = array<vec4<f32>, 4>();  // with its value: the variable alone keeps that of the last round
    for (var k = 0u; k < PART; k++) {
      let a = four(true, k * SIDE + ty * 4u);
      let b = four(false, k * SIDE + tx * 4u);
      part[0] = fma(vec4<f32>(a.x), b, part[0]);
      part[1] = fma(vec4<f32>(a.y), b, part[1]);
      part[2] = fma(vec4<f32>(a.z), b, part[2]);
      part[3] = fma(vec4<f32>(a.w), b, part[3]);
    }
    for (var i = 0u; i < 4u; i++) { total[i] += part[i]; }
    workgroupBarrier();
  }
  for (var i = 0u; i < 4u; i++) {
    let row = row0 + ty * 4u + i;
    for (var j = 0u; j < 4u; j++) {
      let col = col0 + tx * 4u + j;
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
