// reduce: sums and maxima over the lanes of a workgroup, 64 or with WIDE 256, always in the same order.
#include group
#if WIDE
const LANES = 256u;
#else
const LANES = 64u;
#endif
var<workgroup> lanes: array<f32, LANES>;

fn sum_lanes(lane: u32, value: f32) -> f32 {
  lanes[lane] = value;
  workgroupBarrier();
  for (var step = LANES / 2u; step > 0u; step = step >> 1u) {
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
  for (var step = LANES / 2u; step > 0u; step = step >> 1u) {
    if (lane < step) { lanes[lane] = max(lanes[lane], lanes[lane + step]); }
    workgroupBarrier();
  }
  let largest = lanes[0];
  workgroupBarrier();
  return largest;
}
