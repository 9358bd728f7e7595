/* Embed two texts and print how alike they are.  cc embed.c -lweft -lm && ./a.out minilm.weft "a cat" "a kitten" */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, weft_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s BUNDLE TEXT TEXT\n", argv[0]);
    return 2;
  }
  weft_model* model;
  if (weft_open(argv[1], NULL, &model) != WEFT_OK) return failed("open");
  size_t dimension = weft_dimension(model);
  float* vectors = malloc(2 * dimension * sizeof(float));
  const char* const* texts = (const char* const*)(argv + 2);
  if (vectors == NULL || weft_embed(model, texts, 2, NULL, vectors) != WEFT_OK) return failed("embed");
  double dot = 0, a = 0, b = 0;
  for (size_t i = 0; i < dimension; ++i) {
    dot += (double)vectors[i] * vectors[dimension + i];
    a += (double)vectors[i] * vectors[i];
    b += (double)vectors[dimension + i] * vectors[dimension + i];
  }
  printf("%.6f\n", dot / sqrt(a * b));
  free(vectors);
  weft_close(model);
  return 0;
}
