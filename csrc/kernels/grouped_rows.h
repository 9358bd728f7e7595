// grouped_rows: rows that are sorted by the matrix of a stack that they belong to, dealt out in pieces: some rows of one matrix.
#pragma once
#include "kernels/rows.h"

namespace weft::ISA {

struct GroupPiece {
  int64_t matrix, first, count;  // no rows: a task without work
};

// The rows [0, rows), `share` at a time; with starts i32 [matrices + 1] each piece has rows of one matrix.
struct GroupedRows {
  const int32_t* starts;  // null: one matrix for all rows
  int64_t matrices, rows, share;

  // A worker knows only the sizes before its first task, so a stack has as many pieces as any starts could need.
  WEFT_INLINE int64_t pieces() const { return starts ? smaller(matrices, rows) + rows / share : in(rows); }

  WEFT_INLINE GroupPiece piece(int64_t index) const {
    if (!starts) return {0, index * share, smaller(share, rows - index * share)};
    for (int64_t matrix = 0, from = 0, to = 0; matrix < matrices; ++matrix, from = to) {
      to = larger(from, smaller(rows, starts[matrix + 1]));  // whatever starts say, rows exist and are in order
      if (index < in(to - from)) return {matrix, from + index * share, smaller(share, to - from - index * share)};
      index -= in(to - from);
    }
    return {0, 0, 0};
  }

 private:
  WEFT_INLINE int64_t in(int64_t count) const { return (count + share - 1) / share; }
};

}  // namespace weft::ISA
