// reduce: sums and maxima over the 64 lanes of a workgroup, always in the same order.
#include group
const LANES = 64u;
var<workgroup> lanes: array<f32, 64>;

fn sum_lanes(lane: u32, value: f32) -> f32 {
  lanes[lane] = value;
  workgroupBarrier();
  for (var step = 32u; step > 0u; step = step >> 1u) {
    if (lane < step) { lanes[lane] = lanes[lane] + lanes[lane + step]; }
    workgroupBarrier();
  }
  let total = lanes[0];
  workgroupBarrier();
  return total;
}

fn max_lanes(lane: u32, value: f32) -> f32 {
  lanes[lane] = value;
  workgroupBarrier();
  for (var step = 32u; step > 0u; step = step >> 1u) {
    if (lane < step) { lanes[lane] = max(lanes[lane], lanes[lane + step]); }
    workgroupBarrier();
  }
  let largest = lanes[0];
  workgroupBarrier();
  return largest;
}
