// page: generation for a page, which has no function pointers to give: tokens go to an import of the module.
#include "capi/weft.h"

extern "C" {

// Not 0: stop.
__attribute__((import_module("weft"), import_name("token"))) int weft_page_token(int32_t id, const char* text, size_t bytes);

static int tell(void*, int32_t id, const char* text, size_t bytes) { return weft_page_token(id, text, bytes); }

weft_status weft_page_generate(weft_model* model, const char* prompt, const weft_generate_options* options, weft_result* result) {
  return weft_generate(model, prompt, options, tell, nullptr, result);
}

weft_status weft_page_chat(weft_model* model, const weft_message* messages, size_t count, const weft_generate_options* options, weft_result* result) {
  return weft_chat(model, messages, count, options, tell, nullptr, result);
}

weft_status weft_page_begin_generate(weft_model* model, const char* prompt, const weft_generate_options* options) {
  return weft_begin_generate(model, prompt, options, tell, nullptr);
}

weft_status weft_page_begin_chat(weft_model* model, const weft_message* messages, size_t count, const weft_generate_options* options) {
  return weft_begin_chat(model, messages, count, options, tell, nullptr);
}

}  // extern "C"
