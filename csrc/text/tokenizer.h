// tokenizer: the whole way from text to ids and back. Built by the readers in load/, then never changed.
//
// text -> added tokens that are not normalised -> normaliser -> normalised added tokens -> splitters -> model
//      -> template
//
// Encoding is const and safe from any number of threads: what it needs to write to is in a Workspace from the pool.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added.h"
#include "text/model.h"
#include "unicode/normalise.h"
#include "text/split/split.h"
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
  pieces,      // U+2581 to a space, and tokens such as <0x0A> to their bytes
};

struct Decoder {
  // What goes away at the start of a text of pieces.
  enum class Lead : uint8_t {
    keep,
    spaces,      // up to `strip` spaces
    marks,       // every U+2581 of the first token
    mark,        // one U+2581
    mark_again,  // one U+2581 of each token, until there is text
  };
  enum class Bytes : uint8_t {
    text,   // <0x0A> is printed so
    whole,  // a run of them that is not UTF-8 is one U+FFFD for each
    each,   // one U+FFFD for each byte that is in no character
  };
  Decoding kind = Decoding::spaced;
  std::string prefix;    // of continuations
  bool cleanup = false;  // no space before . ? ! , and English contractions
  bool spaces = true;    // U+2581 to a space
  Bytes bytes = Bytes::text;
  Lead lead = Lead::keep;
  size_t strip = 0;
};

// The state of decoding one token at a time.
struct DecodeState {
  bool first = true;    // no token yet
  bool text = false;    // some text
  size_t stripped = 0;  // spaces or marks taken from the start
  std::string run;      // bytes that wait for the end of their run
};

// What the file's post-processor does to offsets.
struct Trim {
  bool spaces = false;  // the spaces at the ends of a token are not part of it
  bool prefix = false;  // but a single one before the first token may have been put there
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
  Trim trim;
  std::unordered_map<int32_t, std::string> printed;  // tokens that are not printed as they are written
};

struct Encoded {
  Ids ids;
  std::vector<int32_t> types;
  std::vector<Origin> origins;  // where asked for: of each id, in its text; 0 to 0 for the tokens around the texts
};

enum class Unit : uint8_t { bytes, characters };

class Tokenizer {
 public:
  explicit Tokenizer(Parts parts);

  // `text` must be well-formed UTF-8.
  Ids encode(std::string_view text, bool add_special, Parse parse) const;
  Encoded encode_pair(std::string_view first, std::string_view second, bool add_special, Parse parse) const;
  // With the place of each id in its text; `second` may be left out.
  Encoded encode_located(std::string_view first, std::optional<std::string_view> second, bool add_special, Parse parse,
                         Unit unit) const;
  std::vector<Ids> encode_batch(const std::vector<std::string_view>& texts, bool add_special, Parse parse,
                                size_t threads) const;

  std::string decode(const int32_t* ids, size_t count, bool skip_special) const;
  // What a token adds in the middle of a text, which need not be whole characters; empty for an id without a token.
  std::string bytes_of(int32_t id) const;

  const Vocab& vocab() const { return parts_.vocab; }
  bool is_special(int32_t id) const { return special_[static_cast<size_t>(id)]; }
  const std::vector<AddedToken>& added() const { return parts_.added; }
  const Template& around(bool pair) const { return pair ? parts_.pair : parts_.single; }

  // Decoding one token at a time; bytes that cannot be printed yet (half a character) wait.
  class Stream {
   public:
    Stream(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(&tokenizer), skip_special_(skip_special) {}
    std::string add(int32_t id);
    std::string finish();

   private:
    const Tokenizer* tokenizer_;
    bool skip_special_;
    DecodeState state_;
    std::string waiting_;
  };

 private:
  // The lists that encoding appends to; with offsets also `origins`, and `text` is the whole text.
  struct Out {
    Ids& ids;
    std::vector<Origin>* origins = nullptr;
    std::string_view text = {};
    size_t before = 0;  // ids of other texts
  };
  // A text between stages and, with offsets, the origin of each of its bytes.
  struct Traced {
    std::string_view text;
    const Origin* origins = nullptr;
    Traced part(std::string_view of) const {
      return {of, origins != nullptr ? origins + (of.data() - text.data()) : nullptr};
    }
    Origin origin(size_t start, size_t end) const;
  };
  void encode_plain(std::string_view text, Parse parse, Workspace& work, Out out) const;
  void encode_normalised(Traced text, Place place, Parse parse, Workspace& work, Out out) const;
  void cut(size_t level, Traced text, bool first, Workspace& work, Out out) const;
  void encode_word(Traced word, Workspace& work, Out out) const;
  void append_added(int32_t id, Traced token, Out out) const;
  void append_origin(Origin origin, std::string_view token, Out out) const;
  void append_token(int32_t id, DecodeState& state, std::string& out) const;
  void append_piece(std::string_view token, bool first, DecodeState& state, std::string& out) const;
  void finish_run(DecodeState& state, std::string& out) const;
  void check_id(int32_t id) const;

  // A workspace from the pool, returned when this ends.
  class Lease {
   public:
    explicit Lease(const Tokenizer& owner) : owner_(owner), work_(owner.take()) {}
    ~Lease() {
      work_->trim();
      const std::lock_guard lock(owner_.pool_mutex_);
      if (owner_.pool_.size() < kPooled) owner_.pool_.push_back(std::move(work_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() const { return *work_; }

   private:
    const Tokenizer& owner_;
    std::unique_ptr<Workspace> work_;
  };
  static constexpr size_t kPooled = 64;  // workspaces kept; reserved up front, so giving one back cannot fail
  std::unique_ptr<Workspace> take() const;

  Parts parts_;
  AddedTokens raw_, normalised_;
  std::vector<bool> special_;
  mutable std::mutex pool_mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> pool_;
};

// The readers. Each throws Error(format) for a malformed file and Error(unsupported), naming the part, for what weft
// does not support.
// `around`, where given, replaces the file's template: the texts of bos and eos, each empty where there is to be none.
using Around = std::optional<std::pair<std::string, std::string>>;
std::unique_ptr<Tokenizer> from_json(std::string_view text, std::string_view where, const Around& around = {});

struct VocabFileOptions {
  BertRules rules;
  std::string unknown = "[UNK]", first = "[CLS]", separator = "[SEP]";
  std::vector<std::string> special;  // those of the file that are special, the three above included where present
};
std::unique_ptr<Tokenizer> from_vocab_file(std::string_view text, const VocabFileOptions& options);

struct GgufVocab {
  std::string model, pre;
  std::vector<std::string_view> tokens, merges;
  std::vector<float> scores;   // of SentencePiece's models: one per token
  std::vector<int32_t> types;  // empty, or one per token
  std::string_view charsmap;   // SentencePiece's table of replacements, for the model "t5"
  int32_t bos = kNone, eos = kNone, unknown = kNone, cls = kNone, separator = kNone;
  int add_bos = -1, add_eos = -1, add_space = -1, collapse = -1;  // -1: the file does not say
};
std::unique_ptr<Tokenizer> from_gguf(const GgufVocab& gguf);

// OpenAI's file of ranks, which says nothing else.
struct TiktokenOptions {
  std::string pattern;
  std::vector<std::pair<std::string, int64_t>> special;
  int64_t first_id = 0;  // of rank 0
  int32_t bos = kNone;   // put before a text
  bool nfc = false;
};
std::unique_ptr<Tokenizer> from_tiktoken(std::string_view file, const TiktokenOptions& options);

// Puts the tokens, where they are not kNone, around each text.
void surround(int32_t bos, int32_t eos, Parts& parts);

// SentencePiece's own file. `add_bos`, `add_eos`: which of the tokens that it names surround a text.
std::unique_ptr<Tokenizer> from_sentencepiece(std::string_view file, bool add_bos, bool add_eos);

}  // namespace weft::text
