// Safetensors: any bytes are parsed or refused, as a file and as an index; every span lies inside the input, and the
// tensors of an accepted file cover its data exactly.
#include <cstdlib>
#include <cstring>

#include "bundle/formats.h"

namespace {

using namespace foretoken;

void check(bool condition) {
  if (!condition) std::abort();
}

void check_file(std::span<const std::byte> file) {
  const auto tensors = parse_safetensors(file, "input");
  if (!tensors) {
    check(tensors.error().message.starts_with("input: ") && tensors.error().message.size() < 600);
    return;
  }
  uint64_t covered = 0, header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  for (const TensorInfo& tensor : *tensors) {
    check(tensor.elements() >= 0 && tensor.rows() >= 0);
    check(tensor.data.data() >= file.data() && tensor.data.data() + tensor.data.size() <= file.data() + file.size());
    if (tensor.format)
      check(tensor.data.size() ==
            static_cast<uint64_t>(tensor.elements()) * static_cast<uint64_t>(format_info(*tensor.format).block_bytes));
    covered += tensor.data.size();
  }
  check(covered == file.size() - 8 - header_bytes);
}

void check_index(std::string_view text) {
  const auto index = parse_safetensors_index(text, "input");
  if (!index) {
    check(index.error().message.starts_with("input: ") && index.error().message.size() < 600);
    return;
  }
  check(!index->empty());
  for (const auto& [name, file] : *index) {
    const std::string inside = "/" + file + "/";
    check(inside.find("//") == inside.npos && inside.find("/../") == inside.npos && inside.find("/./") == inside.npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check_file({reinterpret_cast<const std::byte*>(data), size});
  check_index({reinterpret_cast<const char*>(data), size});
  return 0;
}
