/* weft.h: run a model that `weft export` wrote, from C or from anything that calls C.
 *
 * A function that can fail returns a weft_status; weft_last_error() then says what is wrong, and what to do. No exception
 * leaves the library. Texts are UTF-8. Memory that is written to belongs to the caller. A model may be used by several
 * threads at once: they take turns. weft_cancel() may be called from any thread
 * and from a callback; nothing else of the same model may be called from a callback.
 *
 * Structs begin with their size, so that later versions can add fields at their ends: start from WEFT_..._INIT.
 * docs/howto/embed-in-c.md shows how to build and use it.
 */
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_API_VERSION 1

typedef enum weft_status {
  WEFT_OK = 0,
  WEFT_ERROR_INPUT = 1,       /* an argument cannot be used */
  WEFT_ERROR_TOO_LONG = 2,    /* a text has more tokens than the model takes */
  WEFT_ERROR_FORMAT = 3,      /* a file of the bundle is damaged, or not what it should be */
  WEFT_ERROR_UNSUPPORTED = 4, /* this library cannot do it; a later one, or another model, can */
  WEFT_ERROR_NOT_FOUND = 5,   /* there is no such file, or no such part of the model */
  WEFT_ERROR_MEMORY = 6,      /* the system or the host's allocator has no memory left */
  WEFT_ERROR_SPACE = 7,       /* the caller's buffer is too small; how much is needed is told */
  WEFT_CANCELLED = 8,         /* weft_cancel() was called, or a callback asked for it */
  WEFT_ERROR_INTERNAL = 9     /* a bug of weft's */
} weft_status;

typedef struct weft_model weft_model;

WEFT_API uint32_t weft_api_version(void);   /* WEFT_API_VERSION of the library that is linked */
WEFT_API const char* weft_version(void);    /* "1.2.3" */
WEFT_API const char* weft_last_error(void); /* of this thread's last call that failed; never null */

/* Where the memory of weights, states and steps comes from. Call it before the first model is opened, or not at all.
 * `take` returns null where it has none left. */
WEFT_API weft_status weft_set_allocator(void* (*take)(size_t bytes, void* user),
                                        void (*give)(void* memory, size_t bytes, void* user), void* user);

typedef struct weft_options {
  size_t size;          /* sizeof(weft_options) */
  int32_t threads;      /* 0: as many as the machine gives this process, at most 64 */
  const char* level;    /* an instruction set such as "avx2" or "neon"; null: the best of this machine */
  int32_t trust_digests; /* 1: do not compare the files with their sha-256; everything else is checked in any case */
  void (*log)(void* user, const char* message); /* null: nothing is told */
  void* user;
  int32_t context;      /* tokens of a text at most, prompt and answer together; 0: 4096, or fewer if the model reads fewer */
  int32_t step_tokens;  /* 0: weft computes steps; else the host does, of so many tokens each: see the end of this header */
} weft_options;

#define WEFT_OPTIONS_INIT {sizeof(weft_options), 0, NULL, 0, NULL, NULL, 0, 0}

/* Opens the bundle in `folder`. `options` may be null. */
WEFT_API weft_status weft_open(const char* folder, const weft_options* options, weft_model** model);

/* The same from memory: `count` files, which must stay alive until weft_close. */
typedef struct weft_file {
  const char* name;
  const void* data;
  size_t bytes;
} weft_file;
WEFT_API weft_status weft_open_memory(const weft_file* files, size_t count, const weft_options* options, weft_model** model);

WEFT_API void weft_close(weft_model* model); /* null is allowed */
WEFT_API void weft_cancel(weft_model* model); /* ends the call that is running, and no later one */

/* What the model is, as JSON: kind, level, threads, digest, adapters; dimension and max_tokens, or context and chat. It lives as long
 * as the model. */
WEFT_API const char* weft_info(const weft_model* model);

/* Ids of a text. `count` receives how many there are; with fewer places than that the result is WEFT_ERROR_SPACE and
 * nothing is written. `ids` may be null if `capacity` is 0. */
enum { WEFT_ADD_SPECIAL = 1, WEFT_PARSE_SPECIAL = 2 };
WEFT_API weft_status weft_tokenise(weft_model* model, const char* text, size_t bytes, uint32_t flags, int32_t* ids,
                                   size_t capacity, size_t* count);
/* The text of ids, with a zero at its end that `bytes` does not count. */
WEFT_API weft_status weft_detokenise(weft_model* model, const int32_t* ids, size_t count, char* text, size_t capacity,
                                     size_t* bytes);

/* --- Adapters --- */

/* A LoRA adapter beside a model whose bundle has room for it (`weft export MODEL --adapters`; weft_info says "adapters": true). Its file
 * is what `weft export MODEL --adapter FOLDER --alone` wrote, and is checked like a bundle. A call that names an adapter runs the
 * model with it, one that names none the model alone, with the bits that it has without adapters. At most 255 are loaded at a time. */
typedef struct weft_adapter weft_adapter;

WEFT_API weft_status weft_adapter_load(weft_model* model, const char* path, weft_adapter** adapter);
/* The same from memory, which may be freed afterwards. */
WEFT_API weft_status weft_adapter_load_memory(weft_model* model, const void* data, size_t bytes, weft_adapter** adapter);
/* Null is allowed. A call that runs with the adapter keeps it until it ends; the model may be closed before. */
WEFT_API void weft_adapter_free(weft_adapter* adapter);
WEFT_API const char* weft_adapter_info(const weft_adapter* adapter); /* JSON: name, rank, sha256. It lives as long as the adapter. */

/* --- Embedding --- */

typedef struct weft_embed_options {
  size_t size;
  const char* role;    /* "query", "document" or another prompt of the model; null: the prompt for any text, if it has one */
  int32_t truncate;    /* 1: keep the beginning of a text that is too long; 0: that is WEFT_ERROR_TOO_LONG */
  const weft_adapter* adapter; /* one that was loaded for this model; null: the model alone */
} weft_embed_options;

#define WEFT_EMBED_OPTIONS_INIT {sizeof(weft_embed_options), NULL, 0, NULL}

WEFT_API size_t weft_dimension(const weft_model* model); /* numbers of a vector; 0 for a model that does not embed */
/* One vector for each text: `vectors` has room for count * weft_dimension() numbers. */
WEFT_API weft_status weft_embed(weft_model* model, const char* const* texts, size_t count,
                                const weft_embed_options* options, float* vectors);

/* --- Generation --- */

typedef enum weft_finish {
  WEFT_FINISH_STOP = 0,   /* the model ended its text, or a stop string came */
  WEFT_FINISH_LENGTH = 1, /* max_tokens, or the context is full */
  WEFT_FINISH_CANCELLED = 2
} weft_finish;

typedef struct weft_generate_options {
  size_t size;
  int32_t max_tokens;        /* 0: as many as the context has room for */
  int32_t top_k;             /* 0: all tokens */
  double temperature;        /* 0: always the most likely token */
  double top_p, min_p;       /* 1 and 0: off */
  double repetition_penalty; /* 1: off */
  uint64_t seed;             /* the same seed gives the same text */
  const char* const* stops;  /* strings that end the text, which does not include them */
  size_t stop_count;
  const weft_adapter* adapter; /* one that was loaded for this model; null: the model alone */
} weft_generate_options;

#define WEFT_GENERATE_OPTIONS_INIT {sizeof(weft_generate_options), 256, 0, 0.0, 1.0, 0.0, 1.0, 0, NULL, 0, NULL}

typedef struct weft_result {
  size_t prompt_tokens, tokens;
  weft_finish finish;
} weft_result;

/* Receives each token: its id, and the text that can be shown now, always whole characters, often empty, not
 * zero-terminated. At the end it may be called once more, with the id -1 and text that was held back. A result other
 * than 0 cancels. */
typedef int (*weft_on_token)(void* user, int32_t id, const char* text, size_t bytes);

/* Continues a raw prompt, in which special tokens are read as such. `options` and `result` may be null. */
WEFT_API weft_status weft_generate(weft_model* model, const char* prompt, const weft_generate_options* options,
                                   weft_on_token on_token, void* user, weft_result* result);

/* Answers a conversation: the bundle has the model's chat template. Special tokens in messages are text. The answer is what the
 * model writes, with special tokens, and with its reasoning if it has some. WEFT_ERROR_UNSUPPORTED: the template could not
 * be exported, or does more with these messages than put text around them. */
typedef struct weft_message {
  const char* role; /* "system" (the first only), "user" or "assistant" */
  const char* content;
} weft_message;
WEFT_API weft_status weft_chat(weft_model* model, const weft_message* messages, size_t count,
                               const weft_generate_options* options, weft_on_token on_token, void* user,
                               weft_result* result);

/* --- Steps that the host computes --- */

/* A host with a device of its own, such as a browser with WebGPU, opens a model with `step_tokens`. Files with weights are
 * not read then, and need not be given. weft makes texts into steps, the host computes them (with the launches that
 * `weft export --gpu` writes), and weft goes on with the results. A text that is longer than `step_tokens` is embedded in one step.
 * Such a model does not run weft_embed, weft_generate and weft_chat; one without `step_tokens` does not run the calls below.
 *
 * Begin, then call weft_next_step until `sequences` is 0. Beginning again gives up what was begun before, even if it fails. */
WEFT_API weft_status weft_begin_embed(weft_model* model, const char* const* texts, size_t count,
                                      const weft_embed_options* options); /* texts stay alive until the last step */
WEFT_API weft_status weft_begin_generate(weft_model* model, const char* prompt, const weft_generate_options* options,
                                         weft_on_token on_token, void* user);
WEFT_API weft_status weft_begin_chat(weft_model* model, const weft_message* messages, size_t count,
                                     const weft_generate_options* options, weft_on_token on_token, void* user);

typedef enum weft_wanted {
  WEFT_WANTED_NOTHING = 0, /* the state only */
  WEFT_WANTED_LARGEST = 1, /* the token with the largest logit, of equal ones the lowest */
  WEFT_WANTED_LOGITS = 2,
  WEFT_WANTED_VECTORS = 3  /* one for each sequence, in the order of the texts */
} weft_wanted;

/* The inputs of a step; they live until the next call. What the program does not read is left out by the host. */
typedef struct weft_step {
  size_t size;
  weft_wanted wanted;
  size_t tokens, sequences, row_count, page_width;
  const int32_t *ids, *positions, *types; /* [tokens] */
  const int32_t *segments, *spans;        /* [sequences + 1]; spans of embedders only */
  const int32_t* rows;                    /* [row_count] */
  const int32_t* pages;                   /* [sequences, page_width] */
} weft_step;

WEFT_API weft_status weft_next_step(weft_model* model, weft_step* step);
/* What was wanted of the last step of a text that is written: its logits (null where nothing was wanted), or the largest. */
WEFT_API weft_status weft_take_logits(weft_model* model, const float* logits, size_t count);
WEFT_API weft_status weft_take_largest(weft_model* model, int32_t token);
/* Ends a text that is written, now if it has not ended. */
WEFT_API weft_status weft_finish_steps(weft_model* model, weft_result* result);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_H */
