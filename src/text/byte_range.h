// ByteRange: a half-open part of a text, counted in bytes. The templates mark with it what came from outside, the
// tokenizer reads it as "no special token here". It does not know which text it belongs to.
#pragma once

#include <cstddef>

namespace foretoken {

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

}  // namespace foretoken
