// matmul: act(x Wᵀ + b), an invocation for 4 rows and 4 columns.
//
// Meaning  weft/ops/matmul.py
// Layout   x [rows, depth]; weight rows of `stride` words, from row `start` of the buffer on, which are columns
//          `first` to `first` + `cols` of the result; out [rows, width]; more in lib/finish
// Method   nothing is shared: for software devices, whose barriers are slow. An element is a chain over 32 columns, then
//          the sum of these parts in order, as in matmul_tile and matmul_row
//          (p.part is 32, and no constant: software devices take seconds to compile a loop that they unroll)
// Bound    arithmetic
#include group
#include weights
#params x, out, rows, depth, width, stride, start, first, cols, part
#include finish

fn x4(row: u32, k: u32) -> vec4<f32> {
  let at = p.x + row * p.depth + k;
#if WHOLE
  return vec4<f32>(f(at), f(at + 1u), f(at + 2u), f(at + 3u));
#else
  var values = vec4<f32>();
  if (k < p.depth) { values.x = f(at); }
  if (k + 1u < p.depth) { values.y = f(at + 1u); }
  if (k + 2u < p.depth) { values.z = f(at + 2u); }
  if (k + 3u < p.depth) { values.w = f(at + 3u); }
  return values;
#endif
}

fn finish_four(row: u32, col: u32, values: vec4<f32>) {
  if (row >= end_of_rows()) { return; }
#if PAIRED
  if (col < p.cols) { finish_pair(row, col, values.x, values.y); }
  if (col + 2u < p.cols) { finish_pair(row, col + 2u, values.z, values.w); }
#else
  for (var j = 0u; j < 4u; j++) {
    if (col + j < p.cols) { finish(row, col + j, values[j]); }
  }
#endif
}

@compute @workgroup_size(16)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let across = (p.cols + 63u) / 64u;
  let group = group_of(at, groups);
  let row = rows_of(group / across, 4u);
  let col = group % across * 64u + lane * 4u;
  let end = end_of_rows();
  if (row >= end || col >= p.cols) { return; }
  // Rows and columns beyond the end repeat the last one; nothing is written for them.
  let r1 = min(row + 1u, end - 1u);
  let r2 = min(row + 2u, end - 1u);
  let r3 = min(row + 3u, end - 1u);
  let c0 = row_of(col);
  let c1 = row_of(min(col + 1u, p.cols - 1u));
  let c2 = row_of(min(col + 2u, p.cols - 1u));
  let c3 = row_of(min(col + 3u, p.cols - 1u));
  var t0 = vec4<f32>();
  var t1 = vec4<f32>();
  var t2 = vec4<f32>();
  var t3 = vec4<f32>();
  for (var k0 = 0u; k0 < p.depth; k0 += p.part) {
    var s0 = vec4<f32>(0.0);
    var s1 = vec4<f32>(0.0);
    var s2 = vec4<f32>(0.0);
    var s3 = vec4<f32>(0.0);
    for (var k = k0; k < k0 + p.part; k += 4u) {
      let w = transpose(mat4x4<f32>(weight4(c0, p.stride, k), weight4(c1, p.stride, k), weight4(c2, p.stride, k),
                                    weight4(c3, p.stride, k)));  // a column for each k
      let a = x4(row, k);
      let b = x4(r1, k);
      let c = x4(r2, k);
      let d = x4(r3, k);
      s0 = fma(vec4<f32>(a.w), w[3], fma(vec4<f32>(a.z), w[2], fma(vec4<f32>(a.y), w[1], fma(vec4<f32>(a.x), w[0], s0))));
      s1 = fma(vec4<f32>(b.w), w[3], fma(vec4<f32>(b.z), w[2], fma(vec4<f32>(b.y), w[1], fma(vec4<f32>(b.x), w[0], s1))));
      s2 = fma(vec4<f32>(c.w), w[3], fma(vec4<f32>(c.z), w[2], fma(vec4<f32>(c.y), w[1], fma(vec4<f32>(c.x), w[0], s2))));
      s3 = fma(vec4<f32>(d.w), w[3], fma(vec4<f32>(d.z), w[2], fma(vec4<f32>(d.y), w[1], fma(vec4<f32>(d.x), w[0], s3))));
    }
    t0 += s0;
    t1 += s1;
    t2 += s2;
    t3 += s3;
  }
  finish_four(row, col, t0);
  finish_four(row + 1u, col, t1);
  finish_four(row + 2u, col, t2);
  finish_four(row + 3u, col, t3);
}
