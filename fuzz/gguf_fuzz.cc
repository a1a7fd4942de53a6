// GGUF: any bytes are parsed or refused; every span that comes out lies inside the input and every text in it can be
// read.
#include <cstdlib>
#include <numeric>

#include "bundle/formats.h"

namespace {

using namespace foretoken;

void check(bool condition) {
  if (!condition) std::abort();
}

struct Touch {
  uint64_t& sum;
  void operator()(std::string_view text) const { sum = std::accumulate(text.begin(), text.end(), sum); }
  void operator()(const std::vector<std::string_view>& texts) const {
    for (std::string_view text : texts) (*this)(text);
  }
  template <class T>
  void operator()(const T&) const {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto parsed = parse_gguf(file, "input");
  if (!parsed) {
    check(parsed.error().message.starts_with("input: ") && parsed.error().message.size() < 600);
    return 0;
  }
  uint64_t sum = 0;
  for (const auto& [key, value] : parsed->metadata) {
    std::visit(Touch{sum}, value.value);
    if (const auto number = value.as_int()) sum += static_cast<uint64_t>(*number);
    sum += value.as_double() && value.as_bool() ? 1 : 0;
    sum += value.as_text() ? printable(*value.as_text()).size() : 0;
  }
  for (const TensorInfo& tensor : parsed->tensors) {
    check(tensor.elements() >= 0 && tensor.rows() >= 0);
    if (tensor.data.empty()) continue;
    check(tensor.data.data() >= file.data() && tensor.data.size() <= size);
    check(tensor.data.data() + tensor.data.size() <= file.data() + size);
    sum += static_cast<uint64_t>(tensor.data.front()) + static_cast<uint64_t>(tensor.data.back());
  }
  volatile uint64_t sink = sum;
  (void)sink;
  return 0;
}
