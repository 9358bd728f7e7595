// llama.cpp in the process that measures it, so that short turns of two engines can alternate (benchmarks/block_types.py).
//
//     c++ -O2 -shared -fPIC -I LLAMA/include -I LLAMA/ggml/include llama_steps.cpp -L LLAMA/build/bin -lllama -lggml
//         -Wl,-rpath,LLAMA/build/bin -o llama_steps.so
//
// With AMX, llama.cpp loads the shapes of its tiles once a thread, and weft's would stay loaded: peers/README.md.
//
// Options are those of `llama-bench -p N -n N`: weights repacked where it can, keys and values in f16, logits of the last
// token only.
#include <cstdint>
#include <vector>

#include "llama.h"

struct Steps {
  llama_model* model;
  llama_context* context;
};

extern "C" {

Steps* steps_open(const char* path, int context_tokens, int threads) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(path, llama_model_default_params());
  if (!model) return nullptr;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(context_tokens);
  params.n_batch = 2048, params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = threads;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) return llama_model_free(model), nullptr;
  return new Steps{model, context};
}

void steps_clear(Steps* s) { llama_memory_clear(llama_get_memory(s->context), false); }

// Computes `count` tokens after those before: one step.
int steps_run(Steps* s, const int32_t* ids, int count) {
  std::vector<llama_token> tokens(ids, ids + count);
  const int failed = llama_decode(s->context, llama_batch_get_one(tokens.data(), count));
  llama_synchronize(s->context);
  return failed;
}

void steps_close(Steps* s) {
  llama_free(s->context);
  llama_model_free(s->model);
  delete s;
}

}  // extern "C"
