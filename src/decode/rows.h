// Row inputs of text: shared by prompts, decode cycles and drafters.
#pragma once

#include "ops/batch.h"

namespace foretoken {

// The row input of a text token at rotary position `position`.
inline RowInput text_row(TokenId token, int64_t position) {
  const int32_t p = static_cast<int32_t>(position);
  return {.token = token, .embedding = nullptr, .position = {p, p, p}};
}

}  // namespace foretoken
