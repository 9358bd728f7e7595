// weft: the C interface. Every function that can fail goes through `guarded`: no exception leaves the library.
#include "capi/weft.h"

#include <sched.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "capi/embedder.h"
#include "capi/generator.h"
#include "capi/json_string.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/utf8.h"

#ifndef WEFT_VERSION
#define WEFT_VERSION "0"
#endif

namespace weft {
void set_allocator(void* (*take)(size_t, void*), void (*give)(void*, size_t, void*), void* user);  // core/memory.cpp
}

using namespace weft;

struct weft_model {
  std::unique_ptr<bundle::Bundle> bundle;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<Pool> pool;
  std::unique_ptr<host::Embedder> embedder;
  std::unique_ptr<host::Generator> generator;
  std::unique_ptr<host::Embedder::Batches> batches;  // steps that the host computes: of texts,
  std::unique_ptr<host::Writing> writing;            // or of a text that is written
  host::Step step;                                   // that it computes now
  bool stepped = false;                              // whether it does
  std::string info;
  std::atomic<bool> cancelled{false};
  std::mutex turn;
  std::atomic<std::thread::id> runner{};  // the thread whose turn it is
};

struct weft_adapter {
  host::Held held;
};

namespace {

thread_local std::string last_error;

weft_status status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::input:
    case ErrorKind::shape: return WEFT_ERROR_INPUT;
    case ErrorKind::too_long: return WEFT_ERROR_TOO_LONG;
    case ErrorKind::format:
    case ErrorKind::weight: return WEFT_ERROR_FORMAT;
    case ErrorKind::unsupported:
    case ErrorKind::backend: return WEFT_ERROR_UNSUPPORTED;
    case ErrorKind::not_found: return WEFT_ERROR_NOT_FOUND;
    case ErrorKind::memory: return WEFT_ERROR_MEMORY;
  }
  return WEFT_ERROR_INTERNAL;
}

weft_status told(weft_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

template <class Work>
weft_status guarded(Work&& work) noexcept {
  try {
    return work();
  } catch (const Error& error) {
    try {
      last_error = "[" + error.where + "] " + error.what();
    } catch (...) {
      last_error.clear();
    }
    return status_of(error.kind);
  } catch (const std::bad_alloc&) {
    return told(WEFT_ERROR_MEMORY, "[memory] there is none left");
  } catch (const std::exception& error) {
    return told(WEFT_ERROR_INTERNAL, error.what());
  } catch (...) {
    return told(WEFT_ERROR_INTERNAL, "[weft] an unknown error");
  }
}

[[noreturn]] void bad_input(const char* where, const std::string& what) { fail(ErrorKind::input, where, what); }

// The caller's struct with fields that its version does not have left at their defaults.
template <class T>
T read_options(const T* given, const T& defaults, const char* where) {
  T out = defaults;
  if (!given) return out;
  if (given->size < sizeof(size_t) || given->size > 4096) bad_input(where, "options begin with their size: start from the INIT macro");
  std::memcpy(&out, given, std::min(given->size, sizeof(T)));
  return out;
}

std::string_view checked_text(const char* text, size_t bytes, const char* where) {
  if (!text && bytes) bad_input(where, "a text is null");
  const std::string_view view(text ? text : "", bytes);
  if (utf8::first_malformed(view) != view.size()) bad_input(where, "a text is not UTF-8");
  return view;
}

int threads_here() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Refuses a call that is for models whose steps are computed elsewhere: what one host has computed the other does not have.
void check_host(const weft_model& model, bool stepped) {
  if (model.stepped == stepped) return;
  const char* what = stepped ? "weft computes the steps of this model: open it with step_tokens" : "the host computes the steps of this model: use weft_begin_... and weft_next_step";
  fail(ErrorKind::unsupported, "step", what);
}

host::Adapters& adapters_of(const weft_model& model) { return model.generator ? model.generator->adapters() : model.embedder->adapters(); }

std::string info_of(const weft_model& model, const Level& level) {
  const json::Value root = model.bundle->manifest();
  std::string out = "{\"kind\": " + host::json_string(root.at("kind").string()) + ", \"name\": " + host::json_string(root.string_or("name", ""));
  out += ", \"compute\": " + host::json_string(root.string_or("compute", "")) + ", \"level\": " + host::json_string(level.name);
  out += ", \"threads\": " + std::to_string(model.pool->size()) + ", \"digest\": " + host::json_string(model.bundle->digest());
  if (model.embedder) out += ", \"dimension\": " + std::to_string(model.embedder->dimension()) + ", \"max_tokens\": " + std::to_string(model.embedder->max_tokens());
  if (model.generator) out += ", \"context\": " + std::to_string(model.generator->context()) + ", \"chat\": " + (model.generator->conversation().can() ? "true" : "false");
  out += std::string(", \"adapters\": ") + (adapters_of(model).can() ? "true" : "false");
  return out + "}";
}

weft_status open_model(std::unique_ptr<bundle::Files> files, const weft_options* given, weft_model** out) {
  const weft_options options = read_options<weft_options>(given, WEFT_OPTIONS_INIT, "open");
  if (options.threads < 0 || options.context < 0 || options.step_tokens < 0) bad_input("open", "threads, context and step_tokens must not be negative");
  const Level& level = level_named(options.level ? options.level : "");
  auto model = std::make_unique<weft_model>();
  model->bundle = std::make_unique<bundle::Bundle>(std::move(files), options.trust_digests != 1, options.step_tokens == 0);
  model->stepped = options.step_tokens != 0;
  model->pool = std::make_unique<Pool>(std::min(options.threads ? options.threads : threads_here(), 64));
  model->tokenizer = model->bundle->tokenizer();
  return_freed_memory();
  if (!model->tokenizer) fail(ErrorKind::not_found, bundle::kManifest, "has no tokenizer");
  const std::string_view kind = model->bundle->manifest().at("kind").string();
  if (kind == "encoder") model->embedder = std::make_unique<host::Embedder>(*model->bundle, *model->tokenizer, level, *model->pool, options.step_tokens);
  else if (kind == "decoder") model->generator = std::make_unique<host::Generator>(*model->bundle, *model->tokenizer, level, *model->pool, options.context, options.step_tokens);
  else fail(ErrorKind::unsupported, bundle::kManifest, "models of kind " + std::string(kind) + " are not known to this library");
  model->info = info_of(*model, level);
  if (options.log) options.log(options.user, model->info.c_str());
  *out = model.release();
  return WEFT_OK;
}

// A call that weft_cancel ends. Calls of one model take turns.
class Running {
 public:
  explicit Running(weft_model& model) : model_(model) {
    if (model.runner.load() == std::this_thread::get_id()) bad_input("model", "is running: a callback may not call it");
    lock_ = std::unique_lock(model.turn);
    model.runner.store(std::this_thread::get_id());
    model.cancelled.store(false);
  }
  ~Running() { model_.runner.store({}); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  weft_model& model_;
  std::unique_lock<std::mutex> lock_;
};

// The text whose steps the host computes; while a call is running, no other one ends it.
host::Writing& begun_text(weft_model& model) {
  if (!model.writing) bad_input("step", "no text was begun: use weft_begin_generate or weft_begin_chat");
  return *model.writing;
}

std::vector<std::string_view> texts_of(const char* const* texts, size_t count) {
  if (count && !texts) bad_input("embed", "texts must not be null");
  std::vector<std::string_view> views;
  for (size_t i = 0; i < count; ++i) {
    if (!texts[i]) bad_input("embed", "text " + std::to_string(i) + " is null");
    views.push_back(checked_text(texts[i], std::strlen(texts[i]), "embed"));
  }
  return views;
}

std::vector<host::Message> messages_of(const weft_message* messages, size_t count) {
  if (!messages && count) bad_input("chat", "messages must not be null");
  std::vector<host::Message> all;
  for (size_t i = 0; i < count; ++i) {
    if (!messages[i].role || !messages[i].content) bad_input("chat", "message " + std::to_string(i) + " has no role or no content");
    all.push_back({checked_text(messages[i].role, std::strlen(messages[i].role), "chat"), checked_text(messages[i].content, std::strlen(messages[i].content), "chat")});
  }
  return all;
}

host::EmbedRules rules_of(const weft_embed_options& options) {
  host::EmbedRules rules{std::nullopt, options.truncate == 1, options.adapter ? options.adapter->held : nullptr};
  if (options.role) rules.role = options.role;
  return rules;
}

host::Asked asked_of(const weft_generate_options* given) {
  const weft_generate_options options = read_options<weft_generate_options>(given, WEFT_GENERATE_OPTIONS_INIT, "generate");
  if (options.max_tokens < 0) bad_input("generate", "max_tokens must not be negative");
  if (options.stop_count && !options.stops) bad_input("generate", "stops must not be null");
  host::Asked asked;
  if (options.adapter) asked.adapter = options.adapter->held;
  asked.max_tokens = options.max_tokens;
  asked.sampling = {options.temperature, options.top_p, options.min_p, options.repetition_penalty, options.top_k, options.seed};
  for (size_t i = 0; i < options.stop_count; ++i) {
    if (!options.stops[i] || !*options.stops[i]) bad_input("generate", "a stop string is null or empty");
    asked.stops.emplace_back(checked_text(options.stops[i], std::strlen(options.stops[i]), "generate"));
  }
  return asked;
}

weft_status load_adapter(weft_model* model, std::span<const std::byte> file, weft_adapter** out) {
  const Running running(*model);
  *out = new weft_adapter{adapters_of(*model).load(file)};
  return WEFT_OK;
}

// What generate and chat share: `work` is given the generator, what was asked and where tokens go.
template <class Work>
weft_status generated(weft_model* model, const weft_generate_options* options, weft_on_token on_token, void* user, weft_result* result, Work&& work) {
  return guarded([&] {
    if (!model || !on_token) bad_input("generate", "model and on_token must not be null");
    if (!model->generator) fail(ErrorKind::unsupported, "generate", "this model does not generate text");
    check_host(*model, false);
    const host::Asked asked = asked_of(options);
    const Running running(*model);
    const host::Generated done = work(*model->generator, asked, [&](int32_t id, std::string_view text) { return on_token(user, id, text.data(), text.size()) == 0; });
    if (result) *result = {done.prompt_tokens, done.tokens, static_cast<weft_finish>(done.finish)};
    return done.finish == host::Finish::cancelled ? told(WEFT_CANCELLED, "[generate] was cancelled") : WEFT_OK;
  });
}

// What the beginnings of texts that the host computes share: `work` is given the generator, what was asked and where tokens go.
template <class Work>
weft_status begun(weft_model* model, const weft_generate_options* options, weft_on_token on_token, void* user, Work&& work) {
  return guarded([&] {
    if (!model || !on_token) bad_input("generate", "model and on_token must not be null");
    if (!model->generator) fail(ErrorKind::unsupported, "generate", "this model does not generate text");
    check_host(*model, true);
    const Running running(*model);
    model->batches.reset(), model->writing.reset();
    const host::Asked asked = asked_of(options);
    model->writing = work(*model->generator, asked, [=](int32_t id, std::string_view text) { return on_token(user, id, text.data(), text.size()) == 0; });
    return WEFT_OK;
  });
}

}  // namespace

uint32_t weft_api_version(void) { return WEFT_API_VERSION; }
const char* weft_version(void) { return WEFT_VERSION; }
const char* weft_last_error(void) { return last_error.c_str(); }

weft_status weft_set_allocator(void* (*take)(size_t, void*), void (*give)(void*, size_t, void*), void* user) {
  if (!take != !give) return told(WEFT_ERROR_INPUT, "[allocator] take and give come together");
  set_allocator(take, give, user);
  return WEFT_OK;
}

weft_status weft_open(const char* folder, const weft_options* options, weft_model** model) {
  return guarded([&] {
    if (!folder || !model) bad_input("open", "folder and model must not be null");
    *model = nullptr;
    return open_model(std::make_unique<bundle::Folder>(folder), options, model);
  });
}

weft_status weft_open_memory(const weft_file* files, size_t count, const weft_options* options, weft_model** model) {
  return guarded([&] {
    if ((!files && count) || !model) bad_input("open", "files and model must not be null");
    *model = nullptr;
    auto held = std::make_unique<bundle::InMemory>();
    for (size_t i = 0; i < count; ++i) {
      if (!files[i].name || (!files[i].data && files[i].bytes)) bad_input("open", "a file has no name or no data");
      held->add(files[i].name, {static_cast<const std::byte*>(files[i].data), files[i].bytes});
    }
    return open_model(std::move(held), options, model);
  });
}

void weft_close(weft_model* model) { delete model; }

void weft_cancel(weft_model* model) {
  if (model) model->cancelled.store(true);
}

const char* weft_info(const weft_model* model) { return model ? model->info.c_str() : "{}"; }

weft_status weft_tokenise(weft_model* model, const char* text, size_t bytes, uint32_t flags, int32_t* ids, size_t capacity, size_t* count) {
  return guarded([&] {
    if (!model || !count || (!ids && capacity)) bad_input("tokenise", "model, ids and count must not be null");
    const auto parse = flags & WEFT_PARSE_SPECIAL ? text::Parse::all : text::Parse::ordinary;
    const text::Ids found = model->tokenizer->encode(checked_text(text, bytes, "tokenise"), flags & WEFT_ADD_SPECIAL, parse);
    *count = found.size();
    if (found.size() > capacity) return told(WEFT_ERROR_SPACE, "[tokenise] there are more ids than places for them");
    if (!found.empty()) std::memcpy(ids, found.data(), found.size() * sizeof(int32_t));
    return WEFT_OK;
  });
}

weft_status weft_detokenise(weft_model* model, const int32_t* ids, size_t count, char* text, size_t capacity, size_t* bytes) {
  return guarded([&] {
    if (!model || !bytes || (!ids && count) || (!text && capacity)) bad_input("detokenise", "model, ids, text and bytes must not be null");
    const std::string found = model->tokenizer->decode(ids, count, true);
    *bytes = found.size();
    if (found.size() >= capacity) return told(WEFT_ERROR_SPACE, "[detokenise] the text is longer than the place for it");
    std::memcpy(text, found.c_str(), found.size() + 1);
    return WEFT_OK;
  });
}

weft_status weft_adapter_load(weft_model* model, const char* path, weft_adapter** adapter) {
  return guarded([&] {
    if (!model || !path || !adapter) bad_input("adapter", "model, path and adapter must not be null");
    *adapter = nullptr;
    const std::string_view whole(path);
    const size_t slash = whole.rfind('/');
    const bool beside = slash == std::string_view::npos;
    const bundle::Blob file = bundle::Folder(std::string(beside ? "." : whole.substr(0, slash))).open(std::string(beside ? whole : whole.substr(slash + 1)));
    return load_adapter(model, file.bytes, adapter);
  });
}

weft_status weft_adapter_load_memory(weft_model* model, const void* data, size_t bytes, weft_adapter** adapter) {
  return guarded([&] {
    if (!model || (!data && bytes) || !adapter) bad_input("adapter", "model, data and adapter must not be null");
    *adapter = nullptr;
    return load_adapter(model, {static_cast<const std::byte*>(data), bytes}, adapter);
  });
}

void weft_adapter_free(weft_adapter* adapter) { delete adapter; }

const char* weft_adapter_info(const weft_adapter* adapter) { return adapter ? adapter->held->info().c_str() : "{}"; }

size_t weft_dimension(const weft_model* model) { return model && model->embedder ? static_cast<size_t>(model->embedder->dimension()) : 0; }

weft_status weft_embed(weft_model* model, const char* const* texts, size_t count, const weft_embed_options* given, float* vectors) {
  return guarded([&] {
    if (!model || (count && (!texts || !vectors))) bad_input("embed", "model, texts and vectors must not be null");
    if (!model->embedder) fail(ErrorKind::unsupported, "embed", "this model does not embed");
    check_host(*model, false);
    const weft_embed_options options = read_options<weft_embed_options>(given, WEFT_EMBED_OPTIONS_INIT, "embed");
    const std::vector<std::string_view> views = texts_of(texts, count);
    const Running running(*model);
    if (!model->embedder->embed(views, rules_of(options), model->cancelled, vectors)) return told(WEFT_CANCELLED, "[embed] was cancelled");
    return WEFT_OK;
  });
}

weft_status weft_generate(weft_model* model, const char* prompt, const weft_generate_options* options, weft_on_token on_token, void* user, weft_result* result) {
  return generated(model, options, on_token, user, result, [&](host::Generator& generator, const host::Asked& asked, const host::Generator::OnToken& give) {
    if (!prompt) bad_input("generate", "the prompt is null");
    return generator.generate(checked_text(prompt, std::strlen(prompt), "generate"), asked, model->cancelled, give);
  });
}

weft_status weft_chat(weft_model* model, const weft_message* messages, size_t count, const weft_generate_options* options, weft_on_token on_token, void* user, weft_result* result) {
  return generated(model, options, on_token, user, result, [&](host::Generator& generator, const host::Asked& asked, const host::Generator::OnToken& give) {
    return generator.chat(messages_of(messages, count), asked, model->cancelled, give);
  });
}

weft_status weft_begin_embed(weft_model* model, const char* const* texts, size_t count, const weft_embed_options* given) {
  return guarded([&] {
    if (!model) bad_input("embed", "model must not be null");
    if (!model->embedder) fail(ErrorKind::unsupported, "embed", "this model does not embed");
    check_host(*model, true);
    const Running running(*model);
    model->batches.reset(), model->writing.reset();
    const host::EmbedRules rules = rules_of(read_options<weft_embed_options>(given, WEFT_EMBED_OPTIONS_INIT, "embed"));
    model->embedder->adapters().runner(rules.adapter);  // refuses one of another model
    model->batches = std::make_unique<host::Embedder::Batches>(*model->embedder, texts_of(texts, count), rules);
    return WEFT_OK;
  });
}

weft_status weft_begin_generate(weft_model* model, const char* prompt, const weft_generate_options* options, weft_on_token on_token, void* user) {
  return begun(model, options, on_token, user, [&](host::Generator& generator, const host::Asked& asked, host::Generator::OnToken give) {
    if (!prompt) bad_input("generate", "the prompt is null");
    return generator.start(checked_text(prompt, std::strlen(prompt), "generate"), asked, std::move(give));
  });
}

weft_status weft_begin_chat(weft_model* model, const weft_message* messages, size_t count, const weft_generate_options* options, weft_on_token on_token, void* user) {
  return begun(model, options, on_token, user, [&](host::Generator& generator, const host::Asked& asked, host::Generator::OnToken give) {
    return generator.start(messages_of(messages, count), asked, std::move(give));
  });
}

weft_status weft_next_step(weft_model* model, weft_step* out) {
  return guarded([&] {
    if (!model || !out || out->size != sizeof(weft_step)) bad_input("step", "model and step must not be null, and a step begins with its size");
    const Running running(*model);
    if (!model->batches && !model->writing) bad_input("step", "nothing was begun");
    *out = {};
    out->size = sizeof(weft_step);
    host::Step& step = model->step;
    if (!(model->writing ? model->writing->next(step) : model->batches->next(step))) return WEFT_OK;
    out->wanted = model->writing ? static_cast<weft_wanted>(model->writing->wanted()) : WEFT_WANTED_VECTORS;
    out->tokens = step.ids.size(), out->sequences = step.segments.size() - 1, out->row_count = step.rows.size();
    out->page_width = static_cast<size_t>(step.page_width);
    out->ids = step.ids.data(), out->positions = step.positions.data(), out->types = step.types.data();
    out->segments = step.segments.data(), out->spans = step.spans.empty() ? nullptr : step.spans.data();
    out->rows = step.rows.data(), out->pages = step.pages.data();
    return WEFT_OK;
  });
}

weft_status weft_take_logits(weft_model* model, const float* logits, size_t count) {
  return guarded([&] {
    if (!model || (!logits && count)) bad_input("step", "model and logits must not be null");
    const Running running(*model);
    std::vector<float> all(logits, logits + count);
    begun_text(*model).take(all);
    return WEFT_OK;
  });
}

weft_status weft_take_largest(weft_model* model, int32_t token) {
  return guarded([&] {
    if (!model) bad_input("step", "model must not be null");
    const Running running(*model);
    begun_text(*model).take(token);
    return WEFT_OK;
  });
}

weft_status weft_finish_steps(weft_model* model, weft_result* result) {
  return guarded([&] {
    if (!model) bad_input("step", "model must not be null");
    const Running running(*model);
    host::Writing& writing = begun_text(*model);
    host::Step rest;
    const host::Generated done = writing.next(rest) ? writing.cancel() : writing.done();
    model->writing.reset();
    if (result) *result = {done.prompt_tokens, done.tokens, static_cast<weft_finish>(done.finish)};
    return done.finish == host::Finish::cancelled ? told(WEFT_CANCELLED, "[generate] was cancelled") : WEFT_OK;
  });
}
