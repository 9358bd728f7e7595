// walsh: a row of `dim` numbers in `turning` times Walsh's matrix of SIZE, the largest power of two that divides dim,
// orthonormal: its own inverse. All lanes call it once `turning` has all numbers, and a barrier follows the last step.
var<workgroup> turning: array<f32, 512>;

fn turn(lane: u32, all: u32, dim: u32) {
  workgroupBarrier();
  for (var c = lane; c < dim; c += all) { turning[c] = turning[c] * {{BY}}; }
  workgroupBarrier();
  for (var half = 1u; half < {{SIZE}}u; half = half * 2u) {
    for (var i = lane; i < dim / 2u; i += all) {
      let low = i / half * 2u * half + i % half;
      let a = turning[low];
      let b = turning[low + half];
      turning[low] = a + b;
      turning[low + half] = a - b;
    }
    workgroupBarrier();
  }
}
