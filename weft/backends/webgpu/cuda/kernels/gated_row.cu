// gated_row: of one row, x + W2 (act(G n) * (U n)), n the rms_norm of x: the products of a layer after its attention.
//
// Meaning  weft/ops/matmul.py, weft/ops/gated.py
// Layout   rows of G and then of U follow each other in `weight`, from row `start` on; more in lib/two_products
// Method   a workgroup has 32 rows of each
// Bound    memory
#params width
#include two_products

FN u32 row_of(u32 row) {
  u32 here = row % 32u + (blockIdx.x / TOGETHER) * 256u + blockIdx.x % TOGETHER * 32u;
  return p.start + here + (row >= 32u ? p.width : 0u);
}

@compute @cluster_size(8) @workgroup_size(ALL_LANES)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 group = group_of(at, groups), cluster = group / TOGETHER, rank = group % TOGETHER;
  if (index >= LANES) {
    make_gates(index - LANES, 4u * SEGMENT);
    arrive();
    ask(index - LANES, cluster, rank);
    all_arrived();
    return;
  }
  those_before_end();
  Own own = own_of(index, rank);
  arrive();
  give_x(own, index, cluster, rank);
  split_x(own, index);
  multiply_first(index);
  if (index < 256u) {
    u32 row = index % 32u;
    send(&middle[rank * 32u + row], index / 32u, activated(first_of(row)) * first_of(32u + row), &gates[1]);
  }
  those_after_begin();
  wait_for(&gates[1]);
  multiply_second(index, cluster, rank);
}
