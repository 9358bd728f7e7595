// runner: a program of a bundle, ready to run steps.
#pragma once
#include <memory>
#include <vector>

#include "bundle/bundle.h"
#include "core/executable.h"
#include "core/pool.h"

namespace weft::host {

// The arrays of a step. A program gets those that it has as inputs.
struct Step {
  std::vector<int32_t> ids, positions, segments, rows, types, spans, pages, adapters;
  int64_t page_width = 0;
};

class Runner {
 public:
  // Binds the program `name`. Steps have at most `tokens` tokens. Not `here`: the program is only looked at, and the host
  // computes the steps.
  Runner(const bundle::Bundle& bundle, std::string_view name, const Level& level, Pool& pool, int64_t tokens, bool here);

  // Makes the states, `pages` pages of each, and binds the executable: once, before the first run.
  void start(int64_t pages);

  // The program `name` of the same model, with the weights and the states of this one, which has started, and with tables of
  // adapters of its own. Throws Error(format) unless it runs every step that this one runs.
  std::unique_ptr<Runner> beside(const bundle::Bundle& bundle, std::string_view name) const;
  const Executable::Tables& tables() const { return tables_; }

  // The output of this name, rows after rows. `limits` hold for every index of the step, which the caller guarantees.
  std::vector<float> run(const Step& step, std::string_view output);

  bool here() const { return here_; }
  const bundle::Limits& limits() const { return limits_; }
  bool reads(std::string_view input) const;
  // The columns of an output whose rows are those of the step's sequences (B) or asked for (L). Throws Error(format).
  int64_t columns(std::string_view output, bool of_sequences_too) const;
  int64_t page_bytes() const;  // of all layers

 private:
  void bind();

  Program program_;
  bundle::Limits limits_;
  Executable::Weights weights_;
  Executable::States states_;
  Executable::Tables tables_;
  const Level& level_;
  Pool& pool_;
  int64_t tokens_;
  bool here_;
  std::unique_ptr<Executable> executable_;
};

}  // namespace weft::host
