// JSON as configurations and requests use it: any text is parsed or refused with one sentence; what is accepted can be
// walked, printed and read again as the same value.
#include <cstdint>
#include <cstdlib>

#include "base/json.h"

namespace {

using namespace foretoken;

void check(bool condition) {
  if (!condition) std::abort();
}

// The accesses of a configuration reader: look up by key, test the kind, then convert.
uint64_t walk(const Json& value) {
  if (value.is_object()) {
    uint64_t sum = 0;
    for (const auto& [key, child] : value.items()) sum += key.size() + walk(child);
    if (const auto found = value.find("model_type"); found != value.end() && found->is_string())
      sum += found->get<std::string>().size();
    if (const auto found = value.find("num_hidden_layers"); found != value.end() && found->is_number_integer())
      sum += static_cast<uint64_t>(found->get<int64_t>());
    return sum;
  }
  if (value.is_array()) {
    uint64_t sum = 1;
    for (const Json& child : value) sum += walk(child);
    return sum;
  }
  if (value.is_string()) return value.get_ref<const std::string&>().size();
  if (value.is_number()) return value.get<double>() > 0;
  return value.is_boolean() && value.get<bool>();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const JsonLimits limits{.bytes = 1u << 16, .depth = 32};
  const auto value = parse_json(text, "input", limits);
  const auto ordered = parse_ordered_json(text, "input", limits);
  check(value.ok() == ordered.ok());
  if (!value) {
    check(value.error().message.starts_with("input: "));
    return 0;
  }
  volatile uint64_t sink = walk(*value);
  (void)sink;
  for (int indent : {-1, 2}) {
    const auto again = parse_ordered_json(dump_json(*ordered, indent), "printed", {.depth = 64});
    check(again.ok());
    check(*again == *ordered);
  }
  if (value->is_number()) {
    const float number = value->get<float>();
    const OrderedJson printed = json_float(number);
    check(printed.is_null() ? !(number - number == 0) : printed.get<float>() == number);
  }
  return 0;
}
