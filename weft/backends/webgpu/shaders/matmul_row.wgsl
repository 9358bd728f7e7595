// matmul_row: act(x Wᵀ + b) of few rows: lanes share the depth.
//
// Meaning  weft/ops/matmul.py
// Layout   x [rows, depth]; weight rows of `stride` words, `first` to `first` + `cols` of the matrix in this buffer;
//          out [rows, width]; depth at most 32,768
// Method   a workgroup takes a row of x and 4 columns; 16 lanes a column, each a chain over every 16th part of 32. One
//          lane adds the parts in order, as matmul and matmul_tile do
// Bound    memory
#include group
#include math
#include weights
#if BIAS
#bind bias: array<f32>
#endif
#params x, out, rows, depth, width, stride, first, cols

const PART = 32u;
var<workgroup> sums: array<f32, 4096>;  // [column][part]

fn x_at(row: u32, k: u32) -> f32 {
#if WHOLE
  return f(p.x + row * p.depth + k);
#else
  if (k < p.depth) { return f(p.x + row * p.depth + k); }
  return 0.0;
#endif
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let across = (p.cols + 3u) / 4u;
  let group = group_of(at, groups);
  let row = group / across;
  if (row >= p.rows) { return; }
  let col = group % across * 4u + lane / 16u;
  let parts = (p.depth + PART - 1u) / PART;
  if (col < p.cols) {
    for (var part = lane % 16u; part < parts; part += 16u) {
      var sum = 0.0;
      for (var k = part * PART; k < (part + 1u) * PART; k += 4u) {
        let w = weight4(col, p.stride, k);
        sum = fma(x_at(row, k), w.x, sum);
        sum = fma(x_at(row, k + 1u), w.y, sum);
        sum = fma(x_at(row, k + 2u), w.z, sum);
        sum = fma(x_at(row, k + 3u), w.w, sum);
      }
      sums[lane / 16u * 1024u + part] = sum;
    }
  }
  workgroupBarrier();
  if (lane % 16u == 0u && col < p.cols) {
    var total = 0.0;
    for (var part = 0u; part < parts; part++) { total += sums[lane / 16u * 1024u + part]; }
#if BIAS
    total += bias[p.first + col];
#endif
    put(p.out + row * p.width + p.first + col, activated(total));
  }
}
