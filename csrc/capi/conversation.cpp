#include "capi/conversation.h"

#include <algorithm>

#include "bundle/bundle.h"
#include "core/error.h"

namespace weft::host {

namespace {

void longest_first(std::vector<std::string>& texts) {
  std::sort(texts.begin(), texts.end(), [](const std::string& a, const std::string& b) { return a.size() != b.size() ? a.size() > b.size() : a < b; });
}

// The bytes of the white space that Python's str.strip removes, at the start or at the end of a text; 0 where there is none.
size_t space_at(std::string_view text, bool end) {
  static constexpr std::string_view kWide[] = {"\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
  if (text.empty()) return 0;
  const auto edge = static_cast<unsigned char>(end ? text.back() : text.front());
  if ((edge >= 9 && edge <= 13) || (edge >= 28 && edge <= 32)) return 1;
  for (const std::string_view space : kWide)
    if (end ? text.ends_with(space) : text.starts_with(space)) return space.size();
  if (text.size() < 3) return 0;
  const std::string_view three = end ? text.substr(text.size() - 3) : text.substr(0, 3);  // U+2000 to U+200A
  return three.starts_with("\xE2\x80") && static_cast<unsigned char>(three[2]) >= 0x80 && static_cast<unsigned char>(three[2]) <= 0x8A ? 3 : 0;
}

void trim(std::string& text, bool end) {
  while (const size_t size = space_at(text, end)) end ? text.erase(text.size() - size) : text.erase(0, size);
}

}  // namespace

Conversation::Conversation(json::Value manifest, const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  const json::Value chat = manifest.find("chat");
  if (!chat || chat.is_null()) {
    refused_ = manifest.string_or("chat_refused", "");
    if (refused_.empty()) refused_ = "the model has no chat template";
    return;
  }
  any_order_ = chat.at("any_order").boolean();
  without_system_ = chat.at("without_system").string();
  answer_ = chat.at("answer").string();
  for (const auto& [name, about] : chat.at("roles").members()) {
    Role role{std::string(about.at("before").string()), std::string(about.at("after").string()), about.at("trim").boolean(), {}};
    for (const json::Value text : about.at("special").items()) role.special.emplace_back(text.string());
    roles_.emplace(name, std::move(role));
  }
  for (const text::AddedToken& token : tokenizer_.added())
    if (token.special && !token.content.empty()) controls_.push_back(token.content);
  structural_ = controls_;
  for (const json::Value token : chat.at("structural").items())
    if (!token.string().empty()) structural_.emplace_back(token.string());
  longest_first(controls_);
  longest_first(structural_);
}

void Conversation::check_order(const std::vector<Message>& messages) const {
  const auto wrong = [](size_t index, const std::string& what) { fail(ErrorKind::input, "chat", "message " + std::to_string(index) + " " + what); };
  if (messages.empty()) fail(ErrorKind::input, "chat", "there must be at least one message");
  bool users = true;  // whose turn it is
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string_view role = messages[i].role;
    if (!roles_.contains(std::string(role))) wrong(i, "has a role that this model's template does not have here: " + std::string(role));
    if (role == "system" && i) wrong(i, "is a system message, which must be the first");
    if (role == "system" || any_order_) continue;
    if (role != (users ? "user" : "assistant")) wrong(i, "is out of turn: user and assistant must take turns, the user first");
    users = !users;
  }
  if (messages.back().role != "user") wrong(messages.size() - 1, "must be the user's: the last message is the one that is answered");
}

Conversation::Pieces Conversation::guarded(const Message& message, const Role& role) const {
  const std::vector<std::string>& tokens = message.role == "assistant" ? controls_ : structural_;
  Pieces pieces{{"", false}};
  for (size_t at = 0; at < message.content.size();) {
    const std::string_view rest = message.content.substr(at);
    const auto found = std::find_if(tokens.begin(), tokens.end(), [&](const std::string& token) { return rest.starts_with(token); });
    if (found == tokens.end()) {
      pieces.back().first += rest[0];
      ++at;
    } else {
      pieces.emplace_back(*found, true);
      pieces.emplace_back("", false);
      at += found->size();
    }
  }
  if (role.trim) trim(pieces.front().first, false), trim(pieces.back().first, true);
  return pieces;
}

// The ids of a piece inside a text, without the space that some tokenizers put before a text.
text::Ids Conversation::inside(const std::string& piece, text::Parse parse) const {
  const auto encode = [&](const std::string& text) { return tokenizer_.encode(text, false, parse); };
  const text::Ids line = encode("\n"), lined = encode("\na"), alone = encode("a");
  if (lined.size() >= line.size() && std::equal(lined.begin() + static_cast<ptrdiff_t>(line.size()), lined.end(), alone.begin(), alone.end())) return encode(piece);
  const text::Ids both = encode("\n" + piece);
  if (both.size() < line.size() || !std::equal(line.begin(), line.end(), both.begin())) return encode(piece);
  return {both.begin() + static_cast<ptrdiff_t>(line.size()), both.end()};
}

text::Ids Conversation::ids(const std::vector<Message>& messages) const {
  if (!refused_.empty()) fail(ErrorKind::unsupported, "chat", refused_ + "; write the prompt yourself and use weft_generate");
  check_order(messages);
  Pieces all{{messages[0].role == "system" ? "" : without_system_, false}};
  for (size_t i = 0; i < messages.size(); ++i) {
    const Role& role = roles_.at(std::string(messages[i].role));
    for (const std::string& text : role.special)
      if (messages[i].content.find(text) != std::string_view::npos)
        fail(ErrorKind::unsupported, "chat", "message " + std::to_string(i) + " contains " + text + ", of which the model's template makes something else than text; remove it");
    all.back().first += role.before;
    const Pieces content = guarded(messages[i], role);
    all.back().first += content.front().first;
    all.insert(all.end(), content.begin() + 1, content.end());
    all.back().first += role.after;
  }
  all.back().first += answer_;
  text::Ids ids;
  for (size_t i = 0, count = 0; i < all.size(); ++i) {
    const auto& [piece, is_text] = all[i];
    if (piece.empty()) continue;
    const text::Parse parse = is_text ? text::Parse::none : text::Parse::all;
    const text::Ids more = count++ ? inside(piece, parse) : tokenizer_.encode(piece, false, parse);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

}  // namespace weft::host
