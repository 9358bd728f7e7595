// The team's size is found by measurement, and a part of a team runs a job.
#include <atomic>

#include "core/pool.h"
#include "tests/test.h"

namespace weft::test {

TEST(team_finds_the_quickest_size) {
  for (int quickest : {1, 2, 4, 6, 8, 12, 16}) {
    TeamSizes teams;
    int workers = 0;
    for (int step = 0; step < 4000; ++step) {
      workers = teams.pick(1, 16);
      const int distance = workers > quickest ? workers - quickest : quickest - workers;
      const int64_t interrupted = step % 37 ? 0 : 5'000'000;
      teams.learn(1'000'000 + 100'000 * distance + 2'000 * (step % 5) + interrupted);
    }
    int most = 0;
    for (int step = 0; step < 200; ++step) most += teams.pick(1, 16) == quickest, teams.learn(1'000'000);
    CHECK(most >= 150);
  }
}

TEST(team_has_all_workers_where_there_are_few) {
  TeamSizes teams;
  for (int step = 0; step < 1000; ++step) {
    CHECK(teams.pick(1, 4) == 4);
    teams.learn(1000 * step);
  }
}

TEST(pool_runs_a_job_on_a_part_of_it) {
  Pool pool(13);
  for (int round = 0; round < 400; ++round) {
    const int workers = 1 + round * 7 % 13;
    std::atomic<int> calls{0}, indices{0};
    struct Counts {
      std::atomic<int>&calls, &indices;
    } counts{calls, indices};
    pool.run(
        [](void* context, int index) {
          static_cast<Counts*>(context)->calls += 1;
          static_cast<Counts*>(context)->indices += index;
        },
        &counts, workers);
    CHECK(calls == workers);
    CHECK(indices == workers * (workers - 1) / 2);
  }
}

}  // namespace weft::test
