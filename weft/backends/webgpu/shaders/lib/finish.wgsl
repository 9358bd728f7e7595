// finish: where the elements of a product lie, and what becomes of them before they are stored.
//
// PAIRED: columns are those of two matrices in turn, a gate and what it lets through, and the result is their product.
// OUTPUTS: the rows of up to three matrices lie one after another in the buffer, and each has a result of its own.
// GROUPS: rows have matrices of a stack: lib/rows.
// ADD: the result is added to `residual`, of the same shape.
#include math
#include rows
#if BIAS
#bind bias: array<f32>
#endif
#if OUTPUTS == 2
#params edge1, out1
#endif
#if OUTPUTS == 3
#params edge1, edge2, out1, out2
#endif
#if ADD
#params residual
#endif

// The row of the weight for a column.
fn row_of(col: u32) -> u32 {
#if PAIRED
  return p.start + (col >> 1u) + (col & 1u) * p.width;
#else
  return p.start + row_of_matrix() + col;
#endif
}

fn biased(col: u32, value: f32) -> f32 {
#if BIAS
  return value + bias[p.first + row_of(col) - p.start];
#else
  return value;
#endif
}

fn place_of(row: u32, col: u32) -> u32 {
#if OUTPUTS == 2|3
  if (col < p.edge1) { return p.out + row * p.edge1 + col; }
#endif
#if OUTPUTS == 2
  return p.out1 + row * (p.width - p.edge1) + col - p.edge1;
#endif
#if OUTPUTS == 3
  if (col < p.edge2) { return p.out1 + row * (p.edge2 - p.edge1) + col - p.edge1; }
  return p.out2 + row * (p.width - p.edge2) + col - p.edge2;
#endif
#if OUTPUTS == 1
#if GROUPS
  return p.out + row * p.width + col;
#else
  return p.out + row * p.width + p.first + col;
#endif
#endif
}

#if PAIRED
// Two neighbouring columns.
fn finish_pair(row: u32, col: u32, gate: f32, up: f32) {
  put(p.out + row * p.width + (col >> 1u), activated(biased(col, gate)) * biased(col + 1u, up));
}
#else
fn finish(row: u32, col: u32, sum: f32) {
  let value = activated(biased(col, sum));
#if ADD
  put(place_of(row, col), f(p.residual + row * p.width + p.first + col) + value);
#else
  put(place_of(row, col), value);
#endif
}
#endif
