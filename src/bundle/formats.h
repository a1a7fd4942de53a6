// The parsers inside the bundle room: from the bytes of one file to a checked list of its tensors. They know nothing of
// folders and of other files. Every span they return lies inside `file` and lives as long as it. `what` names the file
// in errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "bundle/bundle.h"

namespace foretoken {

// More tensors or metadata elements than this are a damaged or hostile file, not a model: both bound memory, not the
// format.
inline constexpr size_t kMaxTensors = size_t{1} << 20;
inline constexpr size_t kMaxMetadataElements = size_t{1} << 25;
inline constexpr size_t kMaxNameBytes = 65535;

// Tensors in the order of their names in the header.
Result<std::vector<TensorInfo>> parse_safetensors(std::span<const std::byte> file, std::string_view what);

// model.safetensors.index.json: (tensor name, file name), sorted. File names are relative and stay inside the folder.
using SafetensorsIndex = std::vector<std::pair<std::string, std::string>>;
Result<SafetensorsIndex> parse_safetensors_index(std::string_view text, std::string_view what);

struct ParsedGguf {
  uint32_t version = 0;
  uint64_t alignment = 0;
  GgufMetadata metadata;
  std::vector<TensorInfo> tensors;  // in the order of the file's tensor infos
};
Result<ParsedGguf> parse_gguf(std::span<const std::byte> file, std::string_view what);

// Storage of one ggml tensor type: a row is a whole number of blocks. Known for more types than are run, so that every
// tensor's size can be checked.
struct GgmlType {
  uint32_t id;
  std::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
};
std::span<const GgmlType> ggml_types();
const GgmlType* ggml_type(uint32_t id);  // null when unknown

// `text` in single quotes for an error message: control bytes and invalid UTF-8 as \xNN; what comes to more
// than 96 bytes when written so is shortened.
std::string printable(std::string_view text);

}  // namespace foretoken
