// normalise: the normalisers, which rewrite a text before it is cut into words.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "unicode/unicode.h"

namespace weft::text {

// Where a piece of text lies in the whole: added tokens cut it into pieces.
struct Place {
  bool first = true, last = true;
};

class Normaliser {
 public:
  virtual ~Normaliser() = default;
  // Appends the normalised text to `out`; false when `text` stays as it is, and `out` is then left alone. Records its
  // changes in `trace`, if not null.
  virtual bool apply(std::string_view text, Place place, std::string& out, Trace* trace) const = 0;
};

// How long a text of `size` bytes may become, and Error(too_long) for one that is longer.
size_t growth_limit(size_t size);
void check_growth(size_t size, size_t limit);

struct BertRules {
  bool clean = true;          // control characters away, white space to ' '
  bool space_cjk = true;      // ideographs become words
  bool strip_accents = true;  // decompose, then drop accents
  bool lower = true;
};

std::unique_ptr<Normaliser> bert_normaliser(const BertRules& rules);
std::unique_ptr<Normaliser> form_normaliser(Form form);
std::unique_ptr<Normaliser> lowercase_normaliser();
std::unique_ptr<Normaliser> strip_accents_normaliser();
std::unique_ptr<Normaliser> strip_normaliser(bool left, bool right);
std::unique_ptr<Normaliser> prepend_normaliser(std::string_view text);
std::unique_ptr<Normaliser> replace_normaliser(std::string_view from, std::string_view to);
std::unique_ptr<Normaliser> space_run_normaliser(std::string_view to);  // for / {2,}/

// One after another. The result is `text` itself or lies in one of the two buffers. Throws Error(too_long) when the
// text grows too much, which a chain of replacements in a hostile file could cause.
class NormaliserChain {
 public:
  void add(std::unique_ptr<Normaliser> step) { steps_.push_back(std::move(step)); }
  size_t size() const { return steps_.size(); }
  std::string_view apply(std::string_view text, Place place, std::array<std::string, 2>& buffers) const;
  // The same, and moves `origins`, those of the text, to those of the result.
  std::string_view apply(std::string_view text, Place place, std::array<std::string, 2>& buffers,
                         std::array<Trace, 2>& traces, const Origin*& origins) const;

 private:
  std::vector<std::unique_ptr<Normaliser>> steps_;
};

}  // namespace weft::text
