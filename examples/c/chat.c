/* Answer a question from the text that fits it best: chat EMBEDDER GENERATOR QUESTION TEXT...
 * cc chat.c -lweft && ./a.out minilm.weft smol.weft "Where do cats sleep?" "Cats sleep on warm stones." "Dogs bark." */
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

static int failed(const char* what) { return fprintf(stderr, "%s: %s\n", what, weft_last_error()), 1; }

static int show(void* user, int32_t id, const char* text, size_t bytes) {
  (void)user, (void)id;
  fwrite(text, 1, bytes, stdout);
  return fflush(stdout); /* anything but 0 cancels */
}

int main(int argc, char** argv) {
  if (argc < 5) return fprintf(stderr, "usage: %s EMBEDDER GENERATOR QUESTION TEXT...\n", argv[0]), 2;
  weft_model *embedder, *generator;
  if (weft_open(argv[1], NULL, &embedder)) return failed(argv[1]);
  const size_t size = weft_dimension(embedder), count = (size_t)argc - 3;
  float* vectors = malloc((count * size + 1) * sizeof *vectors);
  if (!vectors || weft_embed(embedder, (const char* const*)argv + 3, count, NULL, vectors)) return failed("embed");
  size_t best = 1;
  double most = -1e30;
  for (size_t i = 1; i < count; ++i) {
    double dot = 0;
    for (size_t d = 0; d < size; ++d) dot += (double)vectors[d] * vectors[i * size + d];
    if (dot > most) most = dot, best = i;
  }
  free(vectors);
  weft_close(embedder);
  if (weft_open(argv[2], NULL, &generator)) return failed(argv[2]);
  weft_generate_options options = WEFT_GENERATE_OPTIONS_INIT;
  options.max_tokens = 48;
  weft_message said[] = {{"system", argv[3 + best]}, {"user", argv[3]}};
  if (weft_chat(generator, said, 2, &options, show, NULL, NULL)) return failed("chat");
  puts("");
  weft_close(generator);
  return 0;
}
