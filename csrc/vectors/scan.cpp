#include "vectors/scan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

namespace weft {
namespace {

constexpr int64_t kBlockBytes = int64_t{128} << 10;  // of rows, in the second-level cache while queries pass over it
constexpr int64_t kMostRows = 2048, kMostTogether = 256;  // rows of a block, for one query and for several
constexpr int64_t kQueriesTogether = 64;
constexpr int64_t kAloneBytes = int64_t{512} << 10;  // less than this is read faster than a second thread wakes up

struct Bad {  // the first score that is not a number
  int64_t row = std::numeric_limits<int64_t>::max(), query = 0;
  void note(int64_t query_, int64_t row_) {
    if (row_ < row || (row_ == row && query_ < query)) row = row_, query = query_;
  }
  bool any() const { return row != std::numeric_limits<int64_t>::max(); }
};

struct Hit {
  float key;  // larger is nearer
  int64_t row;
};
bool nearer(const Hit& a, const Hit& b) { return a.key > b.key || (a.key == b.key && a.row < b.row); }

// The best k seen, the worst of them in front.
class Best {
 public:
  void start(int64_t k) {
    k_ = static_cast<size_t>(k);
    heap_.clear();
  }
  float floor() const { return heap_.size() < k_ ? -std::numeric_limits<float>::infinity() : heap_.front().key; }
  void offer(Hit hit) {
    if (heap_.size() < k_) {
      heap_.push_back(hit);
      std::push_heap(heap_.begin(), heap_.end(), nearer);
    } else if (nearer(hit, heap_.front())) {
      std::pop_heap(heap_.begin(), heap_.end(), nearer);
      heap_.back() = hit;
      std::push_heap(heap_.begin(), heap_.end(), nearer);
    }
  }
  std::vector<Hit>& hits() { return heap_; }

 private:
  size_t k_ = 0;
  std::vector<Hit> heap_;
};

bool finite(const float* x, int64_t n) {
  int bad = 0;
  for (int64_t i = 0; i < n; ++i) bad |= !(std::fabs(x[i]) <= std::numeric_limits<float>::max());
  return !bad;
}

void note_bad(Bad& bad, const float* scores, int64_t query, int64_t first, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (!std::isfinite(scores[i])) return bad.note(query, first + i);
}

// How the rows and queries of a scan are cut into tasks; a task is a block of rows for a group of queries.
struct Cut {
  int64_t rows_each, queries_each, blocks, groups;
  explicit Cut(const Scorer& scorer) {
    const int64_t apart = std::max<int64_t>(1, std::abs(scorer.rows().stride)), queries = scorer.n_queries();
    const int64_t most = queries > 1 ? kMostTogether : kMostRows;
    rows_each = std::clamp<int64_t>(kBlockBytes / apart, 12, most);
    queries_each = std::min(queries, kQueriesTogether);
    blocks = (scorer.rows().count + rows_each - 1) / rows_each;
    groups = queries ? (queries + queries_each - 1) / queries_each : 0;
  }
  int64_t tasks() const { return blocks * groups; }
};

struct Task {
  int64_t query, n_queries, first, n;
  Task(const Cut& cut, const Scorer& scorer, int64_t number) {
    query = number % cut.groups * cut.queries_each;
    n_queries = std::min(cut.queries_each, scorer.n_queries() - query);
    first = number / cut.groups * cut.rows_each;
    n = std::min(cut.rows_each, scorer.rows().count - first);
  }
};

// Calls work(worker, task) for every task number, by the team where there is enough to do.
template <class F>
void deal(int64_t tasks, int64_t bytes, Pool& pool, F work) {
  if (bytes < kAloneBytes || pool.size() == 1 || tasks < 2) {
    for (int64_t task = 0; task < tasks; ++task) work(0, task);
    return;
  }
  std::atomic<int64_t> counter{0};
  auto job = [&](int worker) {
    for (int64_t task; (task = counter.fetch_add(1, std::memory_order_relaxed)) < tasks;) work(worker, task);
  };
  pool.run([](void* context, int index) { (*static_cast<decltype(job)*>(context))(index); }, &job);
}

int64_t bytes_read(const Scorer& scorer) {
  return scorer.rows().count * std::abs(scorer.rows().stride) * std::max<int64_t>(1, scorer.n_queries());
}

struct Seat {  // the state of one worker
  Scorer::Scratch scratch;
  std::vector<float> scores;
  std::vector<Best> best;
  Bad bad;
};

void report(const Scorer& scorer, const std::vector<Seat>& seats) {
  Bad first;
  for (const Seat& seat : seats)
    if (seat.bad.any()) first.note(seat.bad.query, seat.bad.row);
  if (first.any()) scorer.explain(first.query, first.row);
}

void offer_scores(Seat& seat, int64_t query, int64_t first, int64_t n, const float* scores, float sign) {
  if (!finite(scores, n)) return note_bad(seat.bad, scores, query, first, n);
  Best& best = seat.best[static_cast<size_t>(query)];
  float floor = best.floor();
  for (int64_t i = 0; i < n; ++i)
    if (const float key = sign * scores[i]; key >= floor) {
      best.offer({key, first + i});
      floor = best.floor();
    }
}

// The task's rows as runs of neighbours that are allowed: a row's score is the same in any run.
template <class F>
void each_run(const Task& task, const uint8_t* allowed, F f) {
  if (!allowed) return f(task.first, task.n);
  for (int64_t at = task.first, end = task.first + task.n; at < end;) {
    while (at < end && !allowed[at]) ++at;
    const int64_t from = at;
    while (at < end && allowed[at]) ++at;
    if (at > from) f(from, at - from);
  }
}

Hits collect(const Scorer& scorer, std::vector<Seat>& seats, int64_t k, float sign) {
  Hits hits;
  hits.per_query = k;
  const auto total = static_cast<size_t>(k * scorer.n_queries());
  hits.rows.assign(total, -1);
  hits.scores.assign(total, std::numeric_limits<float>::quiet_NaN());
  std::vector<Hit> all;
  for (int64_t q = 0; q < scorer.n_queries(); ++q) {
    all.clear();
    for (Seat& seat : seats) {
      if (seat.best.empty()) continue;
      const std::vector<Hit>& found = seat.best[static_cast<size_t>(q)].hits();
      all.insert(all.end(), found.begin(), found.end());
    }
    std::sort(all.begin(), all.end(), nearer);
    for (size_t i = 0; i < std::min(all.size(), static_cast<size_t>(k)); ++i) {
      hits.rows[static_cast<size_t>(q * k) + i] = all[i].row;
      hits.scores[static_cast<size_t>(q * k) + i] = sign * all[i].key;
    }
  }
  return hits;
}

std::vector<Seat> seats_for(const Scorer& scorer, int64_t k, Pool& pool) {
  std::vector<Seat> seats(static_cast<size_t>(pool.size()));
  for (Seat& seat : seats) {
    seat.best.resize(static_cast<size_t>(scorer.n_queries()));
    for (Best& best : seat.best) best.start(k);
  }
  return seats;
}

}  // namespace

void scan_scores(const Scorer& scorer, float* out, Pool& pool) {
  const Cut cut(scorer);
  const int64_t count = scorer.rows().count;
  std::vector<Seat> seats(static_cast<size_t>(pool.size()));
  deal(cut.tasks(), bytes_read(scorer), pool, [&](int worker, int64_t number) {
    const Task task(cut, scorer, number);
    Seat& seat = seats[static_cast<size_t>(worker)];
    const bool direct = task.n_queries == 1;
    if (!direct) seat.scores.resize(static_cast<size_t>(cut.rows_each * cut.queries_each));
    float* scores = direct ? out + task.query * count + task.first : seat.scores.data();
    scorer.block(task.query, task.n_queries, task.first, task.n, scores, seat.scratch);
    for (int64_t q = 0; q < task.n_queries; ++q) {
      const float* from = scores + q * task.n;
      if (!finite(from, task.n)) note_bad(seat.bad, from, task.query + q, task.first, task.n);
      if (!direct)
        std::memcpy(out + (task.query + q) * count + task.first, from, static_cast<size_t>(task.n) * sizeof(float));
    }
  });
  report(scorer, seats);
}

Hits scan_top(const Scorer& scorer, int64_t k, const uint8_t* allowed, Pool& pool) {
  const Cut cut(scorer);
  const float sign = larger_is_nearer(scorer.metric()) ? 1.0f : -1.0f;
  std::vector<Seat> seats = seats_for(scorer, k, pool);
  deal(cut.tasks(), bytes_read(scorer), pool, [&](int worker, int64_t number) {
    const Task task(cut, scorer, number);
    Seat& seat = seats[static_cast<size_t>(worker)];
    seat.scores.resize(static_cast<size_t>(cut.rows_each * cut.queries_each));
    each_run(task, allowed, [&](int64_t first, int64_t n) {
      scorer.block(task.query, task.n_queries, first, n, seat.scores.data(), seat.scratch);
      for (int64_t q = 0; q < task.n_queries; ++q)
        offer_scores(seat, task.query + q, first, n, seat.scores.data() + q * n, sign);
    });
  });
  report(scorer, seats);
  return collect(scorer, seats, k, sign);
}

Hits scan_chosen(const Scorer& scorer, int64_t k, const int64_t* chosen, int64_t per_query, Pool& pool) {
  const float sign = larger_is_nearer(scorer.metric()) ? 1.0f : -1.0f;
  std::vector<Seat> seats = seats_for(scorer, k, pool);
  const int64_t bytes = scorer.n_queries() * per_query * std::abs(scorer.rows().stride);
  deal(scorer.n_queries(), bytes, pool, [&](int worker, int64_t query) {
    Seat& seat = seats[static_cast<size_t>(worker)];
    for (int64_t i = 0; i < per_query; ++i) {
      const int64_t row = chosen[query * per_query + i];
      if (row < 0) continue;
      float score;
      scorer.block(query, 1, row, 1, &score, seat.scratch);
      offer_scores(seat, query, row, 1, &score, sign);
    }
  });
  report(scorer, seats);
  return collect(scorer, seats, k, sign);
}

}  // namespace weft
