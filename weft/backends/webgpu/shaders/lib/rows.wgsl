// rows: which rows a workgroup of a product takes, and with GROUPS which matrix of a stack: those of matrix e are starts[e]
// to starts[e + 1], and the buffer has `matrices` of them from number `from_matrix` on. Before anything is computed.
#if GROUPS
#params starts, matrices, from_matrix
var<private> matrix: u32;
var<private> row_end: u32;

fn start_of(e: u32) -> u32 { return u32(n(p.starts + e)); }

// Where tile number `tile` of `tall` rows begins, of those that each matrix has; `row_end` at least where there is none.
fn rows_of(tile: u32, tall: u32) -> u32 {
  var before = 0u;
  for (var e = p.from_matrix; e < p.from_matrix + p.matrices; e++) {
    let first = start_of(e);
    let end = start_of(e + 1u);
    let tiles = (end - first + tall - 1u) / tall;
    if (tile < before + tiles) {
      matrix = e;
      row_end = end;
      return first + (tile - before) * tall;
    }
    before += tiles;
  }
  row_end = 0u;
  return 0u;
}

// The row itself, where the buffer has its matrix.
fn row_alone(row: u32) -> u32 {
  row_end = 0u;
  if (row >= start_of(p.from_matrix) && row < start_of(p.from_matrix + p.matrices)) {
    var low = p.from_matrix;
    var high = p.from_matrix + p.matrices;
    while (low + 1u < high) {
      let middle = (low + high) / 2u;
      if (start_of(middle) <= row) { low = middle; } else { high = middle; }
    }
    matrix = low;
    row_end = row + 1u;
  }
  return row;
}

fn end_of_rows() -> u32 { return row_end; }
fn row_of_matrix() -> u32 { return (matrix - p.from_matrix) * p.width; }
#else
fn rows_of(tile: u32, tall: u32) -> u32 { return tile * tall; }
fn row_alone(row: u32) -> u32 { return row; }
fn end_of_rows() -> u32 { return p.rows; }
fn row_of_matrix() -> u32 { return 0u; }
#endif
