// route: the `top` experts of each token, best first, and their weights.
//
// Meaning  weft/ops/experts.py
// Layout   scores [rows, experts]; bias [experts] or absent; chosen i32 [rows, top], weights [rows, top]
// Method   one workgroup a token. Each round finds the best expert after the last one in the order of (rank, number), so
//          that nothing has to be kept of those chosen before
// Bound    memory; the barriers of top rounds
#include reduce
#include math
#if BIAS
#bind bias: array<f32>
#endif
#params scores, chosen, weights, rows, experts, top, scale: f32, eps: f32

const NONE = 0xffffffffu;
var<workgroup> numbers: array<u32, LANES>;

// The weight of an expert from its score: a sigmoid, or its share of a softmax.
fn share_of(score: f32, largest: f32, total: f32) -> f32 {
#if SIGMOID
  return sigmoid(score);
#else
  return exp_(score - largest) / total;
#endif
}

fn rank_of(score: f32, largest: f32, total: f32, expert: u32) -> f32 {
#if BIAS
  return share_of(score, largest, total) + bias[expert];
#else
  return score;
#endif
}

// Whether the first of two comes first: lanes[] has ranks, numbers[] the experts.
fn before(a: u32, b: u32) -> bool {
  if (numbers[a] == NONE || numbers[b] == NONE) { return numbers[a] != NONE; }
  return lanes[a] > lanes[b] || (lanes[a] == lanes[b] && numbers[a] < numbers[b]);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let row = group_of(at, groups);
  if (row >= p.rows) { return; }
  let source = p.scores + row * p.experts;
  var largest = 0.0;
  var total = 1.0;
#if SIGMOID
#else
  var part = -3.402823e38;
  for (var e = lane; e < p.experts; e += LANES) { part = max(part, f(source + e)); }
  largest = max_lanes(lane, part);
  part = 0.0;
  for (var e = lane; e < p.experts; e += LANES) { part += exp_(f(source + e) - largest); }
  total = sum_lanes(lane, part);
#endif
  var last = 0.0;
  var last_expert = NONE;
  var sum = 0.0;
  for (var i = 0u; i < p.top; i++) {
    var best = 0.0;
    var best_expert = NONE;
    for (var e = lane; e < p.experts; e += LANES) {
      let rank = rank_of(f(source + e), largest, total, e);
      let left = i == 0u || rank < last || (rank == last && e > last_expert);
      if (left && (best_expert == NONE || rank > best)) {
        best = rank;
        best_expert = e;
      }
    }
    lanes[lane] = best;
    numbers[lane] = best_expert;
    workgroupBarrier();
    for (var step = LANES / 2u; step > 0u; step = step >> 1u) {
      if (lane < step && before(lane + step, lane)) {
        lanes[lane] = lanes[lane + step];
        numbers[lane] = numbers[lane + step];
      }
      workgroupBarrier();
    }
    last = lanes[0];
    last_expert = select(numbers[0], i, numbers[0] == NONE);  // scores that are no numbers: any expert there is
    workgroupBarrier();
    if (lane == 0u) {
      let share = share_of(f(source + last_expert), largest, total);
      sum += share;
      arena[p.chosen + row * p.top + i] = last_expert;
      put(p.weights + row * p.top + i, share);
    }
  }
  if (lane == 0u) {
    for (var i = 0u; i < p.top; i++) {
      let place = p.weights + row * p.top + i;
#if NORMALISE
      put(place, f(place) / (sum + p.eps) * p.scale);
#else
      put(place, f(place) * p.scale);
#endif
    }
  }
}
