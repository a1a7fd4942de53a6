// Safetensors: one file's header and the index of a sharded model, parsed with simdjson. Knows no tensor names.
// Source: docs/formats.md, "Safetensors".
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/bytes.h"
#include "bundle/formats.h"

namespace foretoken {
namespace {

namespace dom = simdjson::dom;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 8;

struct StoredType {
  std::string_view name;
  uint64_t bytes;
  std::optional<QuantFormat> format;
};

constexpr StoredType kStoredTypes[] = {
    {"BF16", 2, QuantFormat::kBF16},
    {"F16", 2, QuantFormat::kF16},
    {"F32", 4, QuantFormat::kF32},
    {"BOOL", 1, {}},
    {"U8", 1, {}},
    {"I8", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I32", 4, {}},
    {"U32", 4, {}},
    {"F64", 8, {}},
    {"I64", 8, {}},
    {"U64", 8, {}},
};

const StoredType* stored_type(std::string_view name) {
  const auto* found = std::find_if(std::begin(kStoredTypes), std::end(kStoredTypes),
                                   [&](const StoredType& type) { return type.name == name; });
  return found == std::end(kStoredTypes) ? nullptr : found;
}

Error invalid(std::string_view what, std::string sentence) {
  return {ErrorCode::kInvalidFile, fmt::format("{}: {}", what, sentence)};
}

// A whole number from 0 to 2^63 - 1.
std::optional<uint64_t> natural(dom::element element) {
  int64_t value = 0;
  if (!element.is_int64() || element.get(value) != simdjson::SUCCESS || value < 0) return std::nullopt;
  return static_cast<uint64_t>(value);
}

struct Entry {
  std::string_view dtype;
  dom::array shape, offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// The three fields of one tensor's object; fields of other names are ignored.
Status read_fields(dom::object object, std::string_view name, std::string_view what, Entry& entry) {
  for (const auto& [key, value] : object) {
    const bool known = key == "dtype" || key == "shape" || key == "data_offsets";
    if (!known) continue;
    bool& seen = key == "dtype" ? entry.has_dtype : key == "shape" ? entry.has_shape : entry.has_offsets;
    if (seen) return invalid(what, fmt::format("tensor {} states its {} twice", printable(name), key));
    seen = true;
    const auto error = key == "dtype"   ? value.get(entry.dtype)
                       : key == "shape" ? value.get(entry.shape)
                                        : value.get(entry.offsets);
    if (error)
      return invalid(what, fmt::format("the {} of tensor {} is not {}", key, printable(name),
                                       key == "dtype" ? "a string" : "an array"));
  }
  const char* missing = !entry.has_dtype     ? "dtype"
                        : !entry.has_shape   ? "shape"
                        : !entry.has_offsets ? "data_offsets"
                                             : nullptr;
  if (missing) return invalid(what, fmt::format("tensor {} has no {}", printable(name), missing));
  return {};
}

struct Placed {
  TensorInfo info;
  uint64_t begin = 0, end = 0;
};

Result<Placed> read_tensor(std::string_view name, dom::element element, std::string_view what,
                           std::span<const std::byte> data) {
  dom::object object;
  if (element.get(object))
    return invalid(what, fmt::format("the entry of tensor {} is not an object", printable(name)));
  Entry entry;
  TRY(read_fields(object, name, what, entry));

  const StoredType* type = stored_type(entry.dtype);
  if (!type)
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{}: tensor {} has the dtype {}, which is not known to this build", what, printable(name),
                             printable(entry.dtype))};
  Placed placed;
  if (entry.shape.size() > kMaxRank)
    return invalid(
        what, fmt::format("tensor {} has {} dimensions, more than {}", printable(name), entry.shape.size(), kMaxRank));
  uint64_t bytes = type->bytes;
  bool empty = false, overflow = false;
  for (dom::element dimension : entry.shape) {
    const auto size = natural(dimension);
    if (!size)
      return invalid(what,
                     fmt::format("the shape of tensor {} holds something other than a whole number from 0 to 2^63 - 1",
                                 printable(name)));
    placed.info.shape.push_back(static_cast<int64_t>(*size));
    if (*size == 0) empty = true;
    else
      overflow |= __builtin_mul_overflow(bytes, *size, &bytes);  // zeros aside, so that partial products are safe too
  }
  if (overflow || bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return invalid(what, fmt::format("the size of tensor {} overflows 63 bits", printable(name)));
  if (empty) bytes = 0;

  std::optional<uint64_t> offsets[2];
  if (entry.offsets.size() != 2)
    return invalid(what, fmt::format("the data_offsets of tensor {} are not two numbers", printable(name)));
  size_t i = 0;
  for (dom::element offset : entry.offsets) offsets[i++] = natural(offset);
  if (!offsets[0] || !offsets[1])
    return invalid(
        what, fmt::format("the data_offsets of tensor {} are not whole numbers from 0 to 2^63 - 1", printable(name)));
  placed.begin = *offsets[0];
  placed.end = *offsets[1];
  if (placed.begin > placed.end)
    return invalid(what, fmt::format("tensor {} begins at byte {}, after its end at {}", printable(name), placed.begin,
                                     placed.end));
  if (placed.end - placed.begin != bytes)
    return invalid(what, fmt::format("tensor {} has {} bytes of data where its shape and dtype {} need {}",
                                     printable(name), placed.end - placed.begin, type->name, bytes));
  if (placed.end > data.size())
    return invalid(what,
                   fmt::format("tensor {} ends at byte {} of {} bytes of data: the file is truncated, fetch it again",
                               printable(name), placed.end, data.size()));
  placed.info.name = name;
  placed.info.stored_type = type->name;
  placed.info.format = type->format;
  placed.info.data = data.subspan(static_cast<size_t>(placed.begin), static_cast<size_t>(bytes));
  return placed;
}

// The tensors cover the data area exactly: no overlap, no hole, nothing behind the last.
Status check_cover(std::vector<Placed>& tensors, uint64_t data_bytes, std::string_view what) {
  std::sort(tensors.begin(), tensors.end(),
            [](const Placed& a, const Placed& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t covered = 0;
  std::string_view previous;
  for (const Placed& tensor : tensors) {
    if (tensor.begin < covered)
      return invalid(
          what, fmt::format("the data of tensors {} and {} overlap", printable(previous), printable(tensor.info.name)));
    if (tensor.begin > covered)
      return invalid(what, fmt::format("the data has a hole: no tensor covers bytes {} to {}", covered, tensor.begin));
    covered = tensor.end;
    previous = tensor.info.name;
  }
  if (covered != data_bytes)
    return invalid(what, fmt::format("{} bytes follow the last tensor's data, which ends at byte {}",
                                     data_bytes - covered, covered));
  return {};
}

Status check_names(std::vector<Placed>& tensors, std::string_view what) {
  std::sort(tensors.begin(), tensors.end(), [](const Placed& a, const Placed& b) { return a.info.name < b.info.name; });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [](const Placed& a, const Placed& b) { return a.info.name == b.info.name; });
  if (twice != tensors.end())
    return invalid(what, fmt::format("tensor {} is listed twice", printable(twice->info.name)));
  return {};
}

Status check_file_metadata(dom::element element, std::string_view what) {
  dom::object object;
  if (element.get(object)) return invalid(what, "__metadata__ is not an object");
  for (const auto& [key, value] : object)
    if (!value.is_string()) return invalid(what, fmt::format("__metadata__ entry {} is not a string", printable(key)));
  return {};
}

Error json_error(std::string_view what, std::string_view part, simdjson::error_code code) {
  if (code == simdjson::MEMALLOC)
    return {ErrorCode::kOutOfMemory, fmt::format("{}: not enough memory to parse the {}", what, part)};
  return invalid(what, fmt::format("the {} is not valid JSON: {}", part, simdjson::error_message(code)));
}

}  // namespace

Result<std::vector<TensorInfo>> parse_safetensors(std::span<const std::byte> file, std::string_view what) {
  ByteReader reader(file);
  const auto header_bytes = reader.read<uint64_t>();
  if (!reader.ok()) return invalid(what, "too short for a safetensors file: fetch it again");
  if (header_bytes > kMaxHeaderBytes)
    return invalid(what, fmt::format("not a safetensors file: its header would have {} bytes, more than {}",
                                     header_bytes, kMaxHeaderBytes));
  if (header_bytes > reader.remaining())
    return invalid(
        what, fmt::format("the header of {} bytes reaches past the end of the file: fetch it again", header_bytes));
  const simdjson::padded_string header(reader.take_text(header_bytes));
  const auto data = file.subspan(reader.offset());

  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(header).get(root)) return json_error(what, "header", error);
  dom::object object;
  if (root.get(object)) return invalid(what, "the header is not a JSON object");

  std::vector<Placed> tensors;
  bool has_metadata = false;
  for (const auto& [name, element] : object) {
    if (name == "__metadata__") {
      if (has_metadata) return invalid(what, "the header states __metadata__ twice");
      has_metadata = true;
      TRY(check_file_metadata(element, what));
      continue;
    }
    if (name.empty()) return invalid(what, "a tensor has an empty name");
    if (name.size() > kMaxNameBytes) return invalid(what, fmt::format("a tensor's name has {} bytes", name.size()));
    if (tensors.size() == kMaxTensors) return invalid(what, fmt::format("more than {} tensors", kMaxTensors));
    ASSIGN_OR_RETURN(Placed placed, read_tensor(name, element, what, data));
    tensors.push_back(std::move(placed));
  }
  TRY(check_cover(tensors, data.size(), what));
  TRY(check_names(tensors, what));

  std::vector<TensorInfo> infos;
  infos.reserve(tensors.size());
  for (Placed& tensor : tensors) infos.push_back(std::move(tensor.info));
  return infos;
}

Result<SafetensorsIndex> parse_safetensors_index(std::string_view text, std::string_view what) {
  if (text.size() > kMaxHeaderBytes)
    return invalid(what, fmt::format("an index of {} bytes, more than {}", text.size(), kMaxHeaderBytes));
  const simdjson::padded_string padded(text);
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(padded).get(root)) return json_error(what, "index", error);
  dom::object object, map;
  if (root.get(object)) return invalid(what, "the index is not a JSON object");
  if (object["weight_map"].get(map)) return invalid(what, "the index has no object 'weight_map'");

  SafetensorsIndex index;
  for (const auto& [name, element] : map) {
    std::string_view file;
    if (element.get(file)) return invalid(what, fmt::format("the file of tensor {} is not a string", printable(name)));
    if (index.size() == kMaxTensors) return invalid(what, fmt::format("more than {} tensors", kMaxTensors));
    const std::filesystem::path path(file);
    // One spelling per file, so that no file is opened twice.
    const bool inside = !file.empty() && file.find('\0') == file.npos && path.is_relative() && path.has_filename() &&
                        path.lexically_normal().native() == file && *path.begin() != ".." && *path.begin() != ".";
    if (!inside)
      return invalid(what, fmt::format("tensor {} is placed in {}, which is not a file of this folder", printable(name),
                                       printable(file)));
    index.emplace_back(name, file);
  }
  if (index.empty()) return invalid(what, "the index lists no tensor");
  std::sort(index.begin(), index.end());
  const auto twice =
      std::adjacent_find(index.begin(), index.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != index.end())
    return invalid(what, fmt::format("the index lists tensor {} twice", printable(twice->first)));
  return index;
}

}  // namespace foretoken
