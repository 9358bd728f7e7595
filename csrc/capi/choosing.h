// choosing: the next token from logits, by the rules of weft/generate/choice/sampling.py and in their order.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

namespace weft::host {

struct Sampling {
  double temperature = 0, top_p = 1, min_p = 0, repetition_penalty = 1;
  int64_t top_k = 0;  // 0: all
  uint64_t seed = 0;
};

class Chooser {
 public:
  // Throws Error(input) for a rule out of range.
  Chooser(const Sampling& sampling, std::span<const int32_t> prompt);

  int32_t choose(std::vector<float>& logits);  // changes the logits
  void note(int32_t token);                    // which is now part of the text

 private:
  struct Candidates {
    std::vector<int32_t> ids;  // every token that can be drawn is among them
    double beyond = 0;         // the weight of the others; that of the largest logit is 1
  };
  int32_t draw(const std::vector<float>& logits, double r) const;  // r is from [0, 1)
  Candidates candidates(const std::vector<float>& logits, float top, double r) const;
  Candidates head(const std::vector<float>& logits, float top, double r) const;

  Sampling rules_;
  std::unordered_set<int32_t> seen_;
  uint64_t index_ = 0;
};

}  // namespace weft::host
