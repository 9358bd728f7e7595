// split: the pre-tokenizers. Each cuts a text into pieces from left to right; a chain of them cuts pieces of pieces.
//
// The published regular expressions are matched by hand-written code in linear time. An expression that is neither known
// by its exact text nor a run of one class of characters is refused.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "unicode/trace.h"

namespace weft::text {

class Splitter {
 public:
  struct Piece {
    size_t size;
    bool keep = true;  // false: a separator, which is dropped
  };
  virtual ~Splitter() = default;
  // The piece at the start of `rest`, which is not empty and runs to the end of the text being cut. Never empty.
  virtual Piece take(std::string_view rest) const = 0;

  // The text to cut, which is `text` or lies in `buffer`. `first`: `text` is the start of the whole. `trace`, if not
  // null, records the changes when it lies in the buffer.
  virtual std::string_view prepare(std::string_view text, bool first, std::string& buffer, Trace* trace) const;

  bool prepend_space = false;  // before cutting, put a space in front of a text that does not start with one
};

using Splitters = std::vector<std::unique_ptr<Splitter>>;

enum class Pattern { gpt2, llama3, cl100k, qwen2, qwen35, o200k, tekken, deepseek_words };

std::unique_ptr<Splitter> split_by(Pattern pattern);

// Runs of a class of characters, and what lies between them.
std::unique_ptr<Splitter> split_digits(bool individual);       // as the Digits pre-tokenizer
std::unique_ptr<Splitter> split_byte_digits(bool individual);  // the same after ByteLevel
std::unique_ptr<Splitter> split_punctuation(bool individual);  // as the Punctuation pre-tokenizer

// White space is dropped.
std::unique_ptr<Splitter> split_spaces();
std::unique_ptr<Splitter> split_bert();   // punctuation one by one
std::unique_ptr<Splitter> split_words();  // \w+|[^\w\s]+

// U+2581 for spaces and before the text (unless it starts with one); cuts before each where `cuts`.
enum class Prefix { always, first, never };
std::unique_ptr<Splitter> split_marked_spaces(Prefix prefix, bool cuts);

std::unique_ptr<Splitter> split_behind_spaces();  // after each ' '
std::unique_ptr<Splitter> split_nothing();  // the whole text: for prepend_space alone

// The splitter of a Split pre-tokenizer's regular expression; throws Error(unsupported), naming it, for an unknown one.
struct Expression {
  bool matches_only = false;  // what does not match is dropped instead of kept
  bool behind_bytes = false;  // the text is in the byte alphabet
  bool tiktoken = false;      // in its dialect, where {1,3}+ gives nothing back; the tokenizers library repeats it
};
std::unique_ptr<Splitter> split_by_expression(std::string_view expression, const Expression& use = {});

}  // namespace weft::text
