/* Opens a bundle, runs it and closes it, again and again: cycles COUNT FOLDER ADAPTER [FOLDER ADAPTER]; an ADAPTER is a file,
 * or "-". Exits with 1 if memory that the heap has handed out, memory from the host's allocator, or open files are more after
 * the last cycle than before, or if a small adapter takes much memory. */
#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

static size_t taken;

static void* take(size_t bytes, void* user) {
  (void)user;
  void* memory = malloc(bytes);
  if (memory) taken += bytes;
  return memory;
}

static void give(void* memory, size_t bytes, void* user) {
  (void)user;
  taken -= bytes;
  free(memory);
}

static int on_token(void* user, int32_t id, const char* text, size_t bytes) {
  (void)user, (void)id, (void)text, (void)bytes;
  return 0;
}

/* A small adapter, loaded twice: the first time binds the program. One is freed while the model is open, one after it. */
static weft_status adapt(weft_model* model, const char* file, const weft_adapter** used, weft_adapter** later) {
  weft_adapter* first = NULL;
  weft_status status = weft_adapter_load(model, file, &first);
  const size_t before = taken;
  if (!status) status = weft_adapter_load(model, file, later);
  if (taken - before > 1 << 20) {
    fprintf(stderr, "an adapter takes %zu bytes\n", taken - before);
    status = WEFT_ERROR_INTERNAL;
  }
  weft_adapter_free(first);
  *used = *later;
  return status;
}

static int cycle(const char* folder, const char* adapter) {
  static float vector[65536];
  const char* text = "the cat sat";
  const weft_message said = {"user", text};
  weft_options options = WEFT_OPTIONS_INIT;
  weft_generate_options rules = WEFT_GENERATE_OPTIONS_INIT;
  weft_embed_options embedding = WEFT_EMBED_OPTIONS_INIT;
  weft_adapter* later = NULL;
  weft_model* model = NULL;
  options.threads = 2;
  rules.max_tokens = 4;
  weft_status status = weft_open(folder, &options, &model);
  if (!status && strcmp(adapter, "-")) {
    status = adapt(model, adapter, &rules.adapter, &later);
    embedding.adapter = rules.adapter;
  }
  if (!status && weft_dimension(model)) status = weft_embed(model, &text, 1, &embedding, vector);
  else if (!status) {
    status = weft_generate(model, text, &rules, on_token, NULL, NULL);
    if (!status) status = weft_chat(model, &said, 1, &rules, on_token, NULL, NULL);
  }
  if (status) fprintf(stderr, "%s\n", weft_last_error());
  weft_close(model);
  weft_adapter_free(later);
  weft_open("nowhere", NULL, &model); /* a failure leaks nothing either */
  return status;
}

static size_t open_files(void) {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (folder && readdir(folder)) ++count;
  if (folder) closedir(folder);
  return count;
}

int main(int argc, char** argv) {
  weft_set_allocator(take, give, NULL);
  for (int i = 2; i + 1 < argc; i += 2) {
    for (int warm = 0; warm < 5; ++warm)
      if (cycle(argv[i], argv[i + 1])) return 1;
    const size_t heap = mallinfo2().uordblks, files = open_files();
    for (int left = atoi(argv[1]); left > 0; --left)
      if (cycle(argv[i], argv[i + 1])) return 1;
    const size_t heap_after = mallinfo2().uordblks, files_after = open_files();
    printf("%s: heap %zu to %zu, files %zu to %zu, host %zu\n", argv[i], heap, heap_after, files, files_after, taken);
    if (heap_after > heap || files_after > files || taken) return 1;
  }
  return 0;
}
