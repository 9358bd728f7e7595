// split: the pre-tokenizers. Each cuts a text into pieces from left to right; a chain of them cuts pieces of pieces.
//
// The published regular expressions are matched by hand-written code in linear time. An expression that is not known by
// its exact text is refused.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft::text {

class Splitter {
 public:
  struct Piece {
    size_t size;
    bool keep = true;  // false: a separator that goes away
  };
  virtual ~Splitter() = default;
  // The piece at the start of `rest`, which is not empty and runs to the end of the text being cut. Never empty.
  virtual Piece take(std::string_view rest) const = 0;

  // The text to cut, which is `text` or lies in `buffer`. `first`: `text` is the start of the whole.
  virtual std::string_view prepare(std::string_view text, bool first, std::string& buffer) const;

  bool prepend_space = false;  // before cutting, put a space in front of a text that does not start with one
};

using Splitters = std::vector<std::unique_ptr<Splitter>>;

enum class Pattern { gpt2, llama3, qwen2, qwen35, o200k, deepseek_words };

std::unique_ptr<Splitter> split_by(Pattern pattern);

// Runs of a class of characters, and what lies between them.
std::unique_ptr<Splitter> split_numbers(size_t longest);   // \p{N}{1,longest}
std::unique_ptr<Splitter> split_digits(bool individual);   // as the Digits pre-tokenizer
std::unique_ptr<Splitter> split_punctuation();             // one by one, as the Punctuation pre-tokenizer
std::unique_ptr<Splitter> split_marks();                   // [\p{P}\$\+<=>\^~\|]+
std::unique_ptr<Splitter> split_digit_triples();           // [0-9][0-9][0-9]
std::unique_ptr<Splitter> split_ideographs();              // [一-龥぀-ゟ゠-ヿ]+

// White space goes away.
std::unique_ptr<Splitter> split_spaces();
std::unique_ptr<Splitter> split_bert();   // punctuation one by one
std::unique_ptr<Splitter> split_words();  // \w+|[^\w\s]+

// U+2581 for spaces and before the text (unless it starts with one); cuts before each where `cuts`.
enum class Prefix { always, first, never };
std::unique_ptr<Splitter> split_marked_spaces(Prefix prefix, bool cuts);

std::unique_ptr<Splitter> split_behind_spaces();  // after each ' '
std::unique_ptr<Splitter> split_nothing();  // the whole text: for prepend_space alone

// The splitter of a Split pre-tokenizer's regular expression; throws Error(unsupported), naming it, for an unknown one.
// `matches_only`: what does not match is dropped instead of kept.
std::unique_ptr<Splitter> split_by_expression(std::string_view expression, bool matches_only);

}  // namespace weft::text
