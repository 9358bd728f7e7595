// scan: every score, or the best k of each query, of all rows or of chosen ones. Work is dealt out in blocks of rows that
// fit the second-level cache; what a thread finds are its own best k, and the best of all are the best of those.
#pragma once
#include <vector>

#include "core/pool.h"
#include "vectors/score.h"

namespace weft {

// Rows [queries, per_query], nearest first; of equal scores the lower row number comes first.
struct Hits {
  int64_t per_query = 0;
  std::vector<int64_t> rows;
  std::vector<float> scores;
};

// All scores, out[query * rows.count + row].
void scan_scores(const Scorer& scorer, float* out, Pool& pool);

// The best k of the rows whose `allowed` byte is not zero; null allows all.
Hits scan_top(const Scorer& scorer, int64_t k, const uint8_t* allowed, Pool& pool);

// The best k of `chosen` [queries, per_query] row numbers, which the caller has checked; -1 stands for none. Where a
// query has fewer than k, its hits end with -1 and NaN.
Hits scan_chosen(const Scorer& scorer, int64_t k, const int64_t* chosen, int64_t per_query, Pool& pool);

}  // namespace weft
