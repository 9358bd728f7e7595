// A whole bundle through the C interface: it is refused with a code and a sentence, or opens; then texts are tokenised, embedded,
// continued and answered, or refused. The input is the bundle's files: for each the length of its name (1 byte), the name,
// its size (4 bytes, little endian), its bytes; the one called "adapter" is loaded beside the model and used. Sizes in the manifest
// and the digest in the adapter are put right in most inputs, since a wrong one ends the reading at once; digests of the bundle
// are not compared.
#include <algorithm>
#include <random>
#include <vector>

#include "bundle/sha256.h"
#include "capi/weft.h"
#include "fuzz/json_edits.h"

using namespace weft;

namespace {

struct File {
  std::string name, bytes;
};

std::vector<File> files_of(const uint8_t* data, size_t size) {
  fuzz::Fields fields(data, size);
  std::vector<File> files;
  while (!fields.rest().empty() && files.size() < 64) {
    const size_t length = fields.byte();
    std::string name(fields.text(length));
    const auto bytes = fields.number<uint32_t>();
    files.push_back({std::move(name), std::string(fields.text(bytes))});
  }
  return files;
}

std::string joined(const std::vector<File>& files) {
  std::string out;
  for (const File& file : files) {
    out += static_cast<char>(file.name.size());
    out += file.name;
    const auto size = static_cast<uint32_t>(file.bytes.size());
    out.append(reinterpret_cast<const char*>(&size), sizeof size);
    out += file.bytes;
  }
  return out;
}

// The manifest with the size that each file has.
void put_sizes_right(std::vector<File>& files) {
  const auto manifest = std::find_if(files.begin(), files.end(), [](const File& file) { return file.name == "manifest.json"; });
  if (manifest == files.end()) return;
  std::string& text = manifest->bytes;
  for (const File& file : files) {
    const size_t named = text.rfind("\"" + file.name + "\": {");
    const size_t key = named == std::string::npos ? named : text.find("\"bytes\": ", named);
    if (key == std::string::npos) continue;
    const size_t start = key + 9, end = std::min(text.find_first_not_of("-0123456789", start), text.size());
    text.replace(start, end - start, std::to_string(file.bytes.size()));
  }
}

constexpr std::string_view kAdapter = "adapter";

// Where the header of an adapter ends, if it has one.
size_t header_end(const std::string& file) {
  uint64_t length = 0;
  if (file.size() >= sizeof length) std::memcpy(&length, file.data(), sizeof length);
  return file.size() < sizeof length || length > file.size() - sizeof length ? 0 : sizeof length + static_cast<size_t>(length);
}

// The adapter with the digest that its tensors have.
void put_digest_right(std::string& file) {
  constexpr std::string_view kKey = "\"sha256\":\"";
  const size_t end = header_end(file), key = std::string_view(file).substr(0, end).find(kKey);
  if (!end || key == std::string_view::npos || key + kKey.size() + 64 > end) return;
  file.replace(key + kKey.size(), 64, bundle::sha256(std::as_bytes(std::span(file).subspan(end))));
}

// Its header or its tensors, changed.
void edit_adapter(std::string& file, std::minstd_rand& random) {
  const size_t end = header_end(file);
  if (!end || random() % 8 == 0) {
    const size_t before = file.size();
    file.resize(before + 256);
    file.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(file.data()), before, before + 256));
    return;
  }
  const size_t begin = random() % 4 ? sizeof(uint64_t) : end, before = (begin == end ? file.size() : end) - begin;
  std::string part = file.substr(begin, before);
  part.resize(before + 256);
  auto* bytes = reinterpret_cast<uint8_t*>(part.data());
  part.resize(begin == end ? LLVMFuzzerMutate(bytes, before, part.size()) : fuzz::edit_json(bytes, before, part.size(), static_cast<unsigned>(random())));
  const uint64_t length = begin == end ? end - sizeof(uint64_t) : part.size();
  file.replace(begin, before, part);
  std::memcpy(file.data(), &length, sizeof length);
}

void check(weft_status status) {
  const std::string_view what = weft_last_error();
  REQUIRE(status >= WEFT_OK && status < WEFT_ERROR_INTERNAL);
  if (status == WEFT_OK) return;
  REQUIRE(!what.empty() && what.size() < 2000 && utf8::first_malformed(what) == what.size());
}

int on_token(void* user, int32_t, const char* text, size_t bytes) {
  REQUIRE(utf8::first_malformed({text, bytes}) == bytes);
  return ++*static_cast<int*>(user) > 8;
}

void use(weft_model* model, const weft_adapter* adapter) {
  REQUIRE(weft_info(model)[0] == '{' && weft_adapter_info(adapter)[0] == '{');
  const char text[] = "Once upon <|im_end|> a \xC3\xA9\xE6\x97\xA5";
  int32_t ids[64];
  size_t count = 0, bytes = 0;
  char back[256];
  const weft_status tokenised = weft_tokenise(model, text, sizeof text - 1, WEFT_ADD_SPECIAL | WEFT_PARSE_SPECIAL, ids, 64, &count);
  check(tokenised);
  if (tokenised == WEFT_OK) check(weft_detokenise(model, ids, count, back, sizeof back, &bytes));
  int tokens = 0;
  weft_generate_options rules = WEFT_GENERATE_OPTIONS_INIT;
  rules.max_tokens = 4;
  rules.adapter = adapter;
  const char* stops[] = {"\n\n"};
  rules.stops = stops, rules.stop_count = 1;
  const weft_message said[] = {{"user", "a <think>"}, {"assistant", " b "}, {"user", text}};
  if (weft_dimension(model) && weft_dimension(model) < 65536) {
    std::vector<float> vectors(2 * weft_dimension(model));
    const char* texts[] = {text, "a"};
    weft_embed_options options = WEFT_EMBED_OPTIONS_INIT;
    options.truncate = 1, options.adapter = adapter;
    check(weft_embed(model, texts, 2, &options, vectors.data()));
    options.role = "query";
    check(weft_embed(model, texts, 1, &options, vectors.data()));
  }
  check(weft_generate(model, text, &rules, on_token, &tokens, nullptr));
  rules.temperature = 0.8, rules.top_p = 0.9, rules.seed = 1, rules.repetition_penalty = 1.1;
  tokens = 0;
  check(weft_chat(model, said, 3, &rules, on_token, &tokens, nullptr));
  tokens = 0;
  check(weft_chat(model, said + 2, 1, &rules, on_token, &tokens, nullptr));
}

size_t opened = 0, adapted = 0, seen = 0;

struct Report {
  ~Report() {
    if (seen) std::printf("bundle: %zu of %zu opened, %zu with an adapter\n", opened, seen, adapted);
  }
} report;

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<File> files = files_of(data, size);
  if (size % 8) put_sizes_right(files);
  std::vector<std::vector<std::byte>> held;  // at addresses that weights may begin at
  std::vector<weft_file> given;
  for (const File& file : files) {
    if (file.name == kAdapter) continue;
    held.emplace_back(file.bytes.size() + 64);
    std::byte* start = held.back().data() + (64 - reinterpret_cast<size_t>(held.back().data()) % 64);
    std::copy_n(reinterpret_cast<const std::byte*>(file.bytes.data()), file.bytes.size(), start);
    given.push_back({file.name.c_str(), start, file.bytes.size()});
  }
  weft_options options = WEFT_OPTIONS_INIT;
  options.threads = 1, options.trust_digests = 1;
  weft_model* model = nullptr;
  const weft_status status = weft_open_memory(given.data(), given.size(), &options, &model);
  ++seen;
  check(status);
  REQUIRE((status == WEFT_OK) == (model != nullptr));
  if (!model) return 0;
  ++opened;
  use(model, nullptr);
  const auto file = std::find_if(files.begin(), files.end(), [](const File& one) { return one.name == kAdapter; });
  if (file == files.end()) return weft_close(model), 0;
  if (size % 8) put_digest_right(file->bytes);
  weft_adapter* adapter = nullptr;
  const weft_status loaded = weft_adapter_load_memory(model, file->bytes.data(), file->bytes.size(), &adapter);
  check(loaded);
  REQUIRE((loaded == WEFT_OK) == (adapter != nullptr));
  if (adapter) ++adapted, use(model, adapter), use(model, nullptr);
  if (size % 2) weft_adapter_free(adapter);
  weft_close(model);
  if (size % 2 == 0) weft_adapter_free(adapter);
  return 0;
}

// One or more files are edited: JSON as JSON, an adapter's header too, all others as bytes.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<File> files = files_of(data, size);
  if (files.empty()) return LLVMFuzzerMutate(data, size, max_size);
  for (unsigned count = 1 + random() % 4 / 3; count--;) {
    File& file = files[random() % files.size()];
    if (file.name == kAdapter) {
      edit_adapter(file.bytes, random);
      continue;
    }
    const size_t before = file.bytes.size(), room = before + 256;
    file.bytes.resize(room);
    auto* bytes = reinterpret_cast<uint8_t*>(file.bytes.data());
    const bool json = file.name.ends_with(".json");
    file.bytes.resize(json ? fuzz::edit_json(bytes, before, room, static_cast<unsigned>(random())) : LLVMFuzzerMutate(bytes, before, room));
    if (random() % 256 == 0) file.name += "x";
  }
  const std::string out = joined(files);
  if (out.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(out.begin(), out.end(), data);
  return out.size();
}
