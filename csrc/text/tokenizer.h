// tokenizer: the whole way from text to ids and back. Built by the readers in load_*.cpp, then never changed.
//
// text -> added tokens that are not normalised -> normaliser -> normalised added tokens -> splitters -> model
//      -> template
//
// Encoding is const and safe from any number of threads: what it needs to write to is in a Workspace from the pool.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added.h"
#include "text/model.h"
#include "text/normalise.h"
#include "text/split.h"
#include "text/vocab.h"

namespace weft::text {

inline constexpr size_t kMaxTextBytes = size_t{1} << 30;

// Where special tokens go: a list of parts, each a token, or the first or the second text.
struct Part {
  enum class Kind : uint8_t { token, first, second } kind;
  int32_t id = kNone;
  int32_t type = 0;
};
using Template = std::vector<Part>;

enum class Decoding : uint8_t {
  spaced,      // tokens with a space between
  joined,      // tokens as they are
  bytes,       // the byte alphabet
  word_piece,  // continuation prefix away, a space before other tokens
};

struct Decoder {
  Decoding kind = Decoding::spaced;
  std::string prefix;    // of continuations
  bool cleanup = false;  // no space before . ? ! , and English contractions
};

struct Parts {
  Vocab vocab;  // with the added tokens
  std::vector<AddedToken> added;
  NormaliserChain normaliser;
  Splitters splitters;
  std::unique_ptr<Model> model;
  Template single{{Part::Kind::first, kNone, 0}};
  Template pair{{Part::Kind::first, kNone, 0}, {Part::Kind::second, kNone, 1}};
  Decoder decoder;
};

struct Encoded {
  Ids ids;
  std::vector<int32_t> types;
};

class Tokenizer {
 public:
  explicit Tokenizer(Parts parts);

  // `text` must be well-formed UTF-8.
  Ids encode(std::string_view text, bool add_special, Parse parse) const;
  Encoded encode_pair(std::string_view first, std::string_view second, bool add_special, Parse parse) const;
  std::vector<Ids> encode_batch(const std::vector<std::string_view>& texts, bool add_special, Parse parse,
                                size_t threads) const;

  std::string decode(const int32_t* ids, size_t count, bool skip_special) const;

  const Vocab& vocab() const { return parts_.vocab; }
  bool is_special(int32_t id) const { return special_[static_cast<size_t>(id)]; }
  const std::vector<AddedToken>& added() const { return parts_.added; }

  // Decoding one token at a time; what cannot be printed yet (half a character) waits.
  class Stream {
   public:
    Stream(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(&tokenizer), skip_special_(skip_special) {}
    std::string add(int32_t id);
    std::string finish();

   private:
    const Tokenizer* tokenizer_;
    bool skip_special_;
    bool first_ = true;
    std::string waiting_;
  };

 private:
  void encode_plain(std::string_view text, Parse parse, Workspace& work, Ids& out) const;
  void encode_normalised(std::string_view text, Parse parse, Workspace& work, Ids& out) const;
  void cut(size_t level, std::string_view text, Workspace& work, Ids& out) const;
  void append_token(int32_t id, bool first, std::string& out) const;
  void check_id(int32_t id) const;

  class Lease;  // a workspace, taken from the pool and given back
  std::unique_ptr<Workspace> take() const;

  Parts parts_;
  AddedTokens raw_, normalised_;
  std::vector<bool> special_;
  std::unordered_map<int32_t, std::string> printed_;  // added tokens that print as they are after normalising
  mutable std::mutex pool_mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> pool_;
};

// The readers. Each throws Error(format) for a malformed file and Error(unsupported), naming the part, for what weft
// does not do.
std::unique_ptr<Tokenizer> from_json(std::string_view text, std::string_view where);

struct VocabFileOptions {
  BertRules rules;
  std::string unknown = "[UNK]", first = "[CLS]", separator = "[SEP]";
  std::vector<std::string> special;  // those of the file that are special, the three above included where present
};
std::unique_ptr<Tokenizer> from_vocab_file(std::string_view text, const VocabFileOptions& options);

struct GgufVocab {
  std::string model, pre;
  std::vector<std::string_view> tokens, merges;
  std::vector<int32_t> types;  // empty, or one per token
  int32_t bos = kNone, eos = kNone, unknown = kNone, cls = kNone, separator = kNone;
  int add_bos = -1, add_eos = -1;  // -1: the file does not say
};
std::unique_ptr<Tokenizer> from_gguf(const GgufVocab& gguf);

}  // namespace weft::text
