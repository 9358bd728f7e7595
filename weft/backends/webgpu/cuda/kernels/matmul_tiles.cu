// matmul_tiles: act(x Wᵀ + b) of many rows, where weights are floats.
//
// Meaning  weft/ops/matmul.py
// Layout   x as split_rows left it; the rest as matmul_one. Of x and of the weight a lot has {{CHUNKS}} times 32 columns, in the
//          group's memory as [chunk][part][row][quad] and [chunk][column][quad]: a warp reads 512 bytes that follow each other.
//          Quads of f32 are swapped with their neighbours in every other row, since a lane reads every other one
// Method   a workgroup takes {{ROWS}} rows and {{COLUMNS}} columns, a warp {{TALL}} times 16 rows and {{WIDE}} times 8
//          columns. While it multiplies one lot, the next {{AHEAD}} are on their way. Chains are those of matmul_one
// Bound    matrix units
#include group
#params out, rows, depth, width, stride, start, first, cols
#include finish
#include finish_two
#include fragments
#include from_split
const TALL = {{TALL}}u;
const WIDE = {{WIDE}}u;
const ACROSS = {{ACROSS}}u;  // warps beside each other
const ROWS = {{ROWS}}u;
const COLUMNS = {{COLUMNS}}u;
const LANES = {{LANES}}u;
const CHUNKS = {{CHUNKS}}u;
const AHEAD = {{AHEAD}}u;
#if DTYPE == f32
const QUADS = 8u;  // of 32 columns of the weight
#else
const QUADS = 4u;
#endif
const X_QUADS = PARTS * ROWS * 4u;
const CHUNK = X_QUADS + COLUMNS * QUADS;
const LOT = CHUNKS * CHUNK;
const FROM_X = (X_QUADS + LANES - 1u) / LANES;  // quads that a thread asks for
const FROM_WEIGHT = (COLUMNS * QUADS + LANES - 1u) / LANES;
const WORDS_OF_X = 16u;  // of 32 columns
const WORDS_OF_WEIGHT = QUADS * 4u;
var<launched> tile: array<uint4, {{LAUNCHED}}>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 across = (p.cols + COLUMNS - 1u) / COLUMNS;
  u32 group = group_of(at, groups);
  u32 row0 = group / across * ROWS, col0 = group % across * COLUMNS;
  if (row0 >= p.rows) return;
  u32 warp = index / 32u, lane = index % 32u, g = lane / 4u, t = lane % 4u;
  u32 my_row = warp / ACROSS * (16u * TALL), my_col = warp % ACROSS * (8u * WIDE);
  u32 from_x[FROM_X], from_weight[FROM_WEIGHT];
#pragma unroll
  for (u32 i = 0; i < FROM_X; i++) {
    u32 quad = index + i * LANES, part = quad / (ROWS * 4u), row = w_min(row0 + quad / 4u % ROWS, p.rows - 1u);
    from_x[i] = p.split + (row * PARTS + part) * (p.padded / 2u) + quad % 4u * 4u;
  }
#pragma unroll
  for (u32 i = 0; i < FROM_WEIGHT; i++) {
    u32 quad = index + i * LANES, col = w_min(col0 + quad / QUADS, p.cols - 1u);
    from_weight[i] = row_of(col) * p.stride + quad % QUADS * 4u;
  }
  u32 chunks = (p.depth + 31u) / 32u, lots = (chunks + CHUNKS - 1u) / CHUNKS;
  f32 total[TALL][WIDE][4], sum[TALL][WIDE][4];
#if DTYPE == f32
  f32 rest[TALL][WIDE][4];
#endif
#pragma unroll
  for (u32 m = 0; m < TALL; m++) {
#pragma unroll
    for (u32 j = 0; j < WIDE; j++) {
      for (u32 i = 0; i < 4; i++) total[m][j][i] = sum[m][j][i] = 0;
#if DTYPE == f32
      for (u32 i = 0; i < 4; i++) rest[m][j][i] = 0;
#endif
    }
  }
  u32 asked = 0, to = 0;  // chunks that were asked for; where the next lot goes
  for (u32 i = 0; i < AHEAD; i++) ask(index, from_x, from_weight, chunks, asked, to);
  u32 here = 0;
  for (u32 lot = 0; lot < lots; lot++) {
    wait_but<AHEAD - 1u>();
    w_workgroupBarrier();  // the lot is there for all, and all are done with the one that the next takes the place of
    ask(index, from_x, from_weight, chunks, asked, to);
#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++) {
      if (lot * CHUNKS + c < chunks) {
        u32 x = here + c * CHUNK + (my_row + g) * 4u + t, w = here + c * CHUNK + X_QUADS + (my_col + g) * QUADS;
#if DTYPE == f32
        add(x, w, g, t, sum, rest);
#else
        add(x, w + t, sum);
#endif
      }
    }
    here = here + LOT == (AHEAD + 1u) * LOT ? 0u : here + LOT;
    if ((lot + 1u) * CHUNKS % (SEGMENT / 32u) == 0u || lot + 1u == lots) {
      u32 segment = lot * CHUNKS / (SEGMENT / 32u);
#pragma unroll
      for (u32 m = 0; m < TALL; m++) {
        u32 row = row0 + my_row + m * 16u + g;
        f32 scales[2] = {scale_of(row, segment), scale_of(row + 8u, segment)};
#pragma unroll
        for (u32 j = 0; j < WIDE; j++) {
          for (u32 i = 0; i < 4; i++) {
#if DTYPE == f32
            sum[m][j][i] = w_fma(rest[m][j][i], 0.00048828125, sum[m][j][i]);
            rest[m][j][i] = 0;
#endif
            total[m][j][i] += sum[m][j][i] * scales[i / 2];
            sum[m][j][i] = 0;
          }
        }
      }
    }
  }
#pragma unroll
  for (u32 m = 0; m < TALL; m++) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      u32 row = row0 + my_row + m * 16u + g + half * 8u;
      if (row < p.rows) {
#pragma unroll
        for (u32 j = 0; j < WIDE; j++) {
          u32 col = col0 + my_col + j * 8u + 2u * t;
          finish_two(row, col, total[m][j][2 * half], total[m][j][2 * half + 1]);
        }
      }
    }
  }
}

// The thread's share of the next lot. A lot that is beyond the end is empty.
FN void ask(u32 index, u32 (&from_x)[FROM_X], u32 (&from_weight)[FROM_WEIGHT], u32 chunks, u32& asked, u32& to) {
#pragma unroll
  for (u32 c = 0; c < CHUNKS; c++) {
    if (asked + c < chunks) {
      u32 place = to + c * CHUNK;
#pragma unroll
      for (u32 i = 0; i < FROM_X; i++) {
        u32 quad = index + i * LANES;
        if (quad < X_QUADS) copy16(tile + place + quad, arena + from_x[i]);
        from_x[i] += WORDS_OF_X;
      }
      place += X_QUADS;
#pragma unroll
      for (u32 i = 0; i < FROM_WEIGHT; i++) {
        u32 quad = index + i * LANES;
#if DTYPE == f32
        u32 where = quad ^ (quad / QUADS & 1u);
#else
        u32 where = quad;
#endif
        if (quad < COLUMNS * QUADS) copy16(tile + place + where, weight + from_weight[i]);
        from_weight[i] += WORDS_OF_WEIGHT;
      }
    }
  }
  end_lot();
  asked += CHUNKS;
  to = to + LOT == (AHEAD + 1u) * LOT ? 0u : to + LOT;
}

// Sixteen columns of 16 rows times 8 columns.
FN void product_of(f32 (&d)[4], const uint4& low, const uint4& high, const Pairs& w, u32 at) {
  u32 a[4] = {at ? low.z : low.x, at ? high.z : high.x, at ? low.w : low.y, at ? high.w : high.y};
#if DTYPE == bf16
  mma_bf16(d, a, w.of[2 * at], w.of[2 * at + 1]);
#else
  mma_f16(d, a, w.of[2 * at], w.of[2 * at + 1]);
#endif
}

#if DTYPE == f32
// A chunk of 32 columns added to a segment's sums, in add_chunk's order.
FN void add(u32 x, u32 from, u32 g, u32 t, f32 (&sum)[TALL][WIDE][4], f32 (&rest)[TALL][WIDE][4]) {
  Pairs w[WIDE], less[WIDE];
#pragma unroll
  for (u32 j = 0; j < WIDE; j++) {
    u32 quad = from + j * 8u * QUADS;
    uint4 first = tile[quad + (2u * t ^ (g & 1u))], second = tile[quad + (2u * t + 1u ^ (g & 1u))];
    Raw raw;
    raw.words[0] = first.x; raw.words[1] = first.y; raw.words[2] = first.z; raw.words[3] = first.w;
    raw.words[4] = second.x; raw.words[5] = second.y; raw.words[6] = second.z; raw.words[7] = second.w;
    w[j] = pairs_of(raw, 0u);
    less[j] = rests_of(raw, w[j]);
  }
  uint4 low[PARTS][TALL], high[PARTS][TALL];
#pragma unroll
  for (u32 i = 0; i < PARTS * TALL; i++) {
    u32 quad = x + (i / TALL * ROWS + i % TALL * 16u) * 4u;
    low[i / TALL][i % TALL] = tile[quad];
    high[i / TALL][i % TALL] = tile[quad + 32u];
  }
#pragma unroll
  for (u32 at = 0; at < 2; at++) {
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) {
#pragma unroll
      for (u32 i = 0; i < TALL * WIDE; i++) {
        u32 m = i / WIDE, j = i % WIDE;
        product_of(sum[m][j], low[part][m], high[part][m], w[j], at);
      }
    }
#pragma unroll
    for (u32 i = 0; i < TALL * WIDE; i++) {
      u32 m = i / WIDE, j = i % WIDE;
      product_of(rest[m][j], low[0][m], high[0][m], less[j], at);
    }
  }
}
#else
FN void add(u32 x, u32 from, f32 (&sum)[TALL][WIDE][4]) {
  Pairs w[WIDE];
#pragma unroll
  for (u32 j = 0; j < WIDE; j++) {
    uint4 all = tile[from + j * 8u * QUADS];
    w[j].of[0] = all.x; w[j].of[1] = all.y; w[j].of[2] = all.z; w[j].of[3] = all.w;
  }
#pragma unroll
  for (u32 part = 0; part < PARTS; part++) {
    uint4 low[TALL], high[TALL];
#pragma unroll
    for (u32 m = 0; m < TALL; m++) {
      u32 quad = x + (part * ROWS + m * 16u) * 4u;
      low[m] = tile[quad];
      high[m] = tile[quad + 32u];
    }
#pragma unroll
    for (u32 at = 0; at < 2; at++) {
#pragma unroll
      for (u32 i = 0; i < TALL * WIDE; i++) {
        u32 m = i / WIDE, j = i % WIDE;
        product_of(sum[m][j], low[m], high[m], w[j], at);
      }
    }
  }
}
#endif
