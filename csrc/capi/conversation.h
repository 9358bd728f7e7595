// conversation: messages to ids, by a chat template that weft/export/templates.py has taken apart: pieces of text around each
// message. Control tokens that a message contains are encoded as text, as in weft/text/chat.py.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/json.h"
#include "text/tokenizer.h"

namespace weft::host {

struct Message {
  std::string_view role, content;
};

class Conversation {
 public:
  Conversation(json::Value manifest, const text::Tokenizer& tokenizer);

  bool can() const { return refused_.empty(); }
  // The prompt, up to where the answer begins. Throws Error(unsupported) where the bundle has no template, or the template does
  // more with such messages than put text around them, and Error(input) for messages that no conversation has.
  text::Ids ids(const std::vector<Message>& messages) const;

 private:
  // A part of the prompt: whether it is a control token that a message contains, and so text.
  using Pieces = std::vector<std::pair<std::string, bool>>;
  struct Role {
    std::string before, after;
    bool trim;
    std::vector<std::string> special;  // texts in a message of which the template makes something else
  };
  void check_order(const std::vector<Message>& messages) const;
  Pieces guarded(const Message& message, const Role& role) const;
  text::Ids inside(const std::string& piece, text::Parse parse) const;

  const text::Tokenizer& tokenizer_;
  std::string refused_;  // why this bundle does not chat
  bool any_order_ = false;
  std::string without_system_, answer_;
  std::unordered_map<std::string, Role> roles_;
  std::vector<std::string> controls_, structural_;  // longest first: special tokens, and others that the template writes
};

}  // namespace weft::host
