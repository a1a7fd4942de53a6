// GGUF v3 (and v2, which has the same layout): metadata and tensor infos of one file. Every length, count and offset is
// compared with what the file can hold before it is used. Knows no keys but general.alignment. Source: docs/formats.md,
// "GGUF".
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <compare>
#include <limits>
#include <numeric>

#include "base/bytes.h"
#include "bundle/formats.h"

namespace foretoken {
namespace {

constexpr uint64_t kDefaultAlignment = 32;
constexpr uint32_t kMaxRank = 4;
// The shortest possible entries: an empty key with a one-byte value; an empty name with no dimensions.
constexpr size_t kLeastKeyValueBytes = 8 + 4 + 1, kLeastTensorInfoBytes = 8 + 4 + 4 + 8;
constexpr uint64_t kInt64Max = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
};

// Bytes of one scalar in the file; 0 for strings, arrays and unknown types.
uint64_t scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    default:
      return 0;
  }
}

bool is_unsigned(GgufType type) {
  return type == GgufType::kU8 || type == GgufType::kU16 || type == GgufType::kU32 || type == GgufType::kU64;
}

// The next integer of `type`, in the 64 bits of a uint64_t (signed types sign-extended).
uint64_t read_integer(ByteReader& reader, GgufType type) {
  switch (type) {
    case GgufType::kU8:
      return reader.read<uint8_t>();
    case GgufType::kI8:
      return static_cast<uint64_t>(int64_t{reader.read<int8_t>()});
    case GgufType::kU16:
      return reader.read<uint16_t>();
    case GgufType::kI16:
      return static_cast<uint64_t>(int64_t{reader.read<int16_t>()});
    case GgufType::kU32:
      return reader.read<uint32_t>();
    case GgufType::kI32:
      return static_cast<uint64_t>(int64_t{reader.read<int32_t>()});
    default:
      return reader.read<uint64_t>();
  }
}

double read_float(ByteReader& reader, GgufType type) {
  return type == GgufType::kF32 ? double{reader.read<float>()} : reader.read<double>();
}

struct Extent {
  uint64_t offset = 0, bytes = 0;  // from the beginning of the data area
  auto operator<=>(const Extent&) const = default;
};

class GgufReader {
 public:
  GgufReader(std::span<const std::byte> file, std::string_view what) : file_(file), what_(what), reader_(file) {}

  Result<ParsedGguf> parse() {
    uint64_t tensor_count = 0, value_count = 0;
    TRY(read_head(tensor_count, value_count));
    for (uint64_t i = 0; i < value_count; ++i) TRY(read_key_value());
    TRY(read_alignment());
    parsed_.tensors.reserve(static_cast<size_t>(tensor_count));
    extents_.reserve(static_cast<size_t>(tensor_count));
    for (uint64_t i = 0; i < tensor_count; ++i) TRY(read_tensor_info());
    TRY(place_tensors());
    TRY(check_overlap());
    TRY(check_tensor_names());
    return std::move(parsed_);
  }

 private:
  Error invalid(std::string sentence) const {
    return {ErrorCode::kInvalidFile, fmt::format("{}: {}", what_, sentence)};
  }
  Error unsupported(std::string sentence) const {
    return {ErrorCode::kUnsupported, fmt::format("{}: {}", what_, sentence)};
  }
  Error truncated(std::string_view part) const {
    return invalid(fmt::format("the file ends inside {}: it is truncated or damaged, fetch it again", part));
  }

  Status read_head(uint64_t& tensor_count, uint64_t& value_count) {
    if (reader_.take_text(4) != "GGUF") return invalid("not a GGUF file: it does not begin with 'GGUF'");
    parsed_.version = reader_.read<uint32_t>();
    if (!reader_.ok()) return truncated("its first 24 bytes");
    if (parsed_.version != 0 && (parsed_.version & 0xFFFFu) == 0)
      return unsupported("a big-endian GGUF file: convert it to little-endian");
    if (parsed_.version == 1) return unsupported("GGUF version 1, which is no longer read: convert the model again");
    if (parsed_.version != 2 && parsed_.version != 3)
      return unsupported(fmt::format("GGUF version {}: this build reads versions 2 and 3", parsed_.version));
    tensor_count = reader_.read<uint64_t>();
    value_count = reader_.read<uint64_t>();
    if (!reader_.ok()) return truncated("its first 24 bytes");
    if (value_count > reader_.remaining() / kLeastKeyValueBytes)
      return invalid(fmt::format("{} metadata entries cannot fit in a file of {} bytes", value_count, file_.size()));
    if (tensor_count > reader_.remaining() / kLeastTensorInfoBytes)
      return invalid(fmt::format("{} tensors cannot fit in a file of {} bytes", tensor_count, file_.size()));
    if (tensor_count > kMaxTensors) return invalid(fmt::format("{} tensors, more than {}", tensor_count, kMaxTensors));
    return {};
  }

  // A length and that many bytes, borrowed. `part` says in errors what the text is.
  Result<std::string_view> read_text(std::string_view part) {
    const auto bytes = reader_.read<uint64_t>();
    if (!reader_.ok()) return truncated(part);
    if (bytes > reader_.remaining())
      return invalid(fmt::format("{} has a length of {} bytes where {} remain: the file is truncated or damaged", part,
                                 bytes, reader_.remaining()));
    return reader_.take_text(bytes);
  }

  Status count_elements(uint64_t count, std::string_view part) {
    element_count_ += count;  // each count is at most the file's size, so that the sum stays far below 2^64
    if (element_count_ > kMaxMetadataElements)
      return invalid(
          fmt::format("{} brings the metadata to {} values, more than {}", part, element_count_, kMaxMetadataElements));
    return {};
  }

  Status read_key_value() {
    ASSIGN_OR_RETURN(const std::string_view key, read_text("a metadata key"));
    if (key.size() > kMaxNameBytes) return invalid(fmt::format("a metadata key has {} bytes", key.size()));
    const std::string part = "the metadata value " + printable(key);
    const auto type = static_cast<GgufType>(reader_.read<uint32_t>());
    if (!reader_.ok()) return truncated(part);
    TRY(count_elements(1, part));
    GgufValue value;
    if (type == GgufType::kArray) TRY(read_array(part, value));
    else TRY(read_scalar(type, part, value));
    if (!parsed_.metadata.emplace(key, std::move(value)).second)
      return invalid(fmt::format("the metadata key {} occurs twice", printable(key)));
    return {};
  }

  Status read_scalar(GgufType type, std::string_view part, GgufValue& out) {
    out.type = type;
    if (type == GgufType::kText) {
      ASSIGN_OR_RETURN(out.value, read_text(part));
      return {};
    }
    if (scalar_bytes(type) == 0)
      return invalid(fmt::format("{} has the unknown type {}", part, static_cast<uint32_t>(type)));
    if (reader_.remaining() < scalar_bytes(type)) return truncated(part);
    if (type == GgufType::kBool) {
      ASSIGN_OR_RETURN(out.value, read_bool(part));
    } else if (type == GgufType::kF32 || type == GgufType::kF64) {
      out.value = read_float(reader_, type);
    } else if (const uint64_t bits = read_integer(reader_, type); is_unsigned(type)) {
      out.value = bits;
    } else {
      out.value = static_cast<int64_t>(bits);
    }
    return {};
  }

  Result<bool> read_bool(std::string_view part) {
    const auto byte = reader_.read<uint8_t>();
    if (byte > 1) return invalid(fmt::format("{} holds the byte {} where a truth value is 0 or 1", part, byte));
    return byte == 1;
  }

  Status read_array(std::string_view part, GgufValue& out) {
    const auto type = static_cast<GgufType>(reader_.read<uint32_t>());
    const auto count = reader_.read<uint64_t>();
    if (!reader_.ok()) return truncated(part);
    if (type == GgufType::kArray) return unsupported(fmt::format("{} is an array of arrays", part));
    const uint64_t least = type == GgufType::kText ? 8 : scalar_bytes(type);
    if (least == 0)
      return invalid(fmt::format("{} is an array of the unknown type {}", part, static_cast<uint32_t>(type)));
    if (count > reader_.remaining() / least)
      return invalid(fmt::format("{} claims {} elements where {} bytes remain: the file is truncated or damaged", part,
                                 count, reader_.remaining()));
    TRY(count_elements(count, part));
    out.type = type;
    const auto size = static_cast<size_t>(count);
    if (type == GgufType::kText) {
      std::vector<std::string_view> texts(size);
      for (std::string_view& text : texts) {
        ASSIGN_OR_RETURN(text, read_text(part));
      }
      out.value = std::move(texts);
    } else if (type == GgufType::kBool) {
      std::vector<bool> bools(size);
      for (size_t i = 0; i < size; ++i) {
        ASSIGN_OR_RETURN(bools[i], read_bool(part));
      }
      out.value = std::move(bools);
    } else if (type == GgufType::kF32 || type == GgufType::kF64) {
      std::vector<double> floats(size);
      for (double& value : floats) value = read_float(reader_, type);
      out.value = std::move(floats);
    } else {
      std::vector<int64_t> integers(size);
      for (int64_t& value : integers) {
        const uint64_t bits = read_integer(reader_, type);
        if (type == GgufType::kU64 && bits > kInt64Max)
          return unsupported(fmt::format("{} holds {}, which is more than 2^63 - 1", part, bits));
        value = static_cast<int64_t>(bits);
      }
      out.value = std::move(integers);
    }
    return {};
  }

  Status read_alignment() {
    parsed_.alignment = kDefaultAlignment;
    const auto found = parsed_.metadata.find("general.alignment");
    if (found == parsed_.metadata.end()) return {};
    const auto alignment = found->second.as_int();
    if (!alignment || *alignment <= 0 || *alignment > std::numeric_limits<uint32_t>::max() ||
        !std::has_single_bit(static_cast<uint64_t>(*alignment)))
      return invalid("general.alignment is not a power of two");
    parsed_.alignment = static_cast<uint64_t>(*alignment);
    return {};
  }

  Status read_tensor_info() {
    ASSIGN_OR_RETURN(const std::string_view name, read_text("a tensor's name"));
    if (name.empty()) return invalid("a tensor has an empty name");
    if (name.size() > kMaxNameBytes) return invalid(fmt::format("a tensor's name has {} bytes", name.size()));
    const std::string shown = printable(name);
    const auto rank = reader_.read<uint32_t>();
    if (!reader_.ok()) return truncated("the description of tensor " + shown);
    if (rank > kMaxRank)
      return invalid(fmt::format("tensor {} has {} dimensions, more than {}", shown, rank, kMaxRank));
    uint64_t sizes[kMaxRank] = {1, 1, 1, 1};
    for (uint32_t i = 0; i < rank; ++i) sizes[i] = reader_.read<uint64_t>();
    const auto type_id = reader_.read<uint32_t>();
    const auto offset = reader_.read<uint64_t>();
    if (!reader_.ok()) return truncated("the description of tensor " + shown);

    const GgmlType* type = ggml_type(type_id);
    if (!type)
      return unsupported(
          fmt::format("tensor {} has the ggml type {}, which is not known to this build", shown, type_id));
    if (sizes[0] % static_cast<uint64_t>(type->block_elements) != 0)
      return invalid(fmt::format("tensor {} has rows of {} elements, not a multiple of the {} elements of a {} block",
                                 shown, sizes[0], type->block_elements, type->name));
    uint64_t blocks = sizes[0] / static_cast<uint64_t>(type->block_elements), elements = 1, bytes = 0;
    bool empty = false, overflow = false;
    for (uint32_t i = 0; i < kMaxRank; ++i) {
      if (sizes[i] == 0) {
        empty = true;
        continue;
      }  // zeros aside, so that partial products are safe too
      overflow |= __builtin_mul_overflow(elements, sizes[i], &elements);
      if (i > 0) overflow |= __builtin_mul_overflow(blocks, sizes[i], &blocks);
    }
    overflow |= __builtin_mul_overflow(blocks, static_cast<uint64_t>(type->block_bytes), &bytes);
    if (overflow || elements > kInt64Max || bytes > kInt64Max)
      return invalid(fmt::format("the size of tensor {} overflows 63 bits", shown));

    TensorInfo info;
    info.name = name;
    info.stored_type = type->name;
    info.format = format_from_ggml(type_id);
    for (uint32_t i = rank; i-- > 0;) info.shape.push_back(static_cast<int64_t>(sizes[i]));
    parsed_.tensors.push_back(std::move(info));
    extents_.push_back({offset, empty ? 0 : bytes});
    return {};
  }

  // Where the data area begins is known only after the last tensor info.
  Status place_tensors() {
    if (extents_.empty()) return {};
    const uint64_t begin = (uint64_t{reader_.offset()} + parsed_.alignment - 1) / parsed_.alignment * parsed_.alignment;
    if (begin > file_.size()) return truncated("the padding before its data");
    const auto data = file_.subspan(static_cast<size_t>(begin));
    for (size_t i = 0; i < extents_.size(); ++i) {
      TensorInfo& tensor = parsed_.tensors[i];
      const auto [offset, bytes] = extents_[i];
      if (offset % parsed_.alignment != 0)
        return invalid(fmt::format("tensor {} begins at byte {}, not a multiple of the alignment {}",
                                   printable(tensor.name), offset, parsed_.alignment));
      if (offset > data.size() || bytes > data.size() - offset)
        return invalid(
            fmt::format("tensor {} of {} bytes at {} reaches past the {} bytes of data: the file is truncated, "
                        "fetch it again",
                        printable(tensor.name), bytes, offset, data.size()));
      tensor.data = data.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes));
    }
    return {};
  }

  Status check_overlap() const {
    std::vector<size_t> order(extents_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return extents_[a] < extents_[b]; });
    for (size_t i = 1; i < order.size(); ++i) {
      const size_t a = order[i - 1], b = order[i];
      if (extents_[a].offset + extents_[a].bytes > extents_[b].offset)
        return invalid(fmt::format("the data of tensors {} and {} overlap", printable(parsed_.tensors[a].name),
                                   printable(parsed_.tensors[b].name)));
    }
    return {};
  }

  Status check_tensor_names() const {
    std::vector<std::string_view> names;
    names.reserve(parsed_.tensors.size());
    for (const TensorInfo& tensor : parsed_.tensors) names.push_back(tensor.name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) return invalid(fmt::format("tensor {} is listed twice", printable(*twice)));
    return {};
  }

  std::span<const std::byte> file_;
  std::string_view what_;
  ByteReader reader_;
  ParsedGguf parsed_;
  std::vector<Extent> extents_;  // of each tensor's data
  uint64_t element_count_ = 0;
};

}  // namespace

std::span<const GgmlType> ggml_types() { return kTypes; }

const GgmlType* ggml_type(uint32_t id) {
  const auto* found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const GgmlType& type) { return type.id == id; });
  return found == std::end(kTypes) ? nullptr : found;
}

Result<ParsedGguf> parse_gguf(std::span<const std::byte> file, std::string_view what) {
  return GgufReader(file, what).parse();
}

std::optional<int64_t> GgufValue::as_int() const {
  if (const auto* v = std::get_if<uint64_t>(&value)) {
    if (*v > kInt64Max) return std::nullopt;
    return static_cast<int64_t>(*v);
  }
  if (const auto* v = std::get_if<int64_t>(&value)) return *v;
  return std::nullopt;
}

std::optional<double> GgufValue::as_double() const {
  if (const auto* v = std::get_if<double>(&value)) return *v;
  if (const auto* v = std::get_if<uint64_t>(&value)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<int64_t>(&value)) return static_cast<double>(*v);
  return std::nullopt;
}

std::optional<bool> GgufValue::as_bool() const {
  if (const auto* v = std::get_if<bool>(&value)) return *v;
  return std::nullopt;
}

std::optional<std::string_view> GgufValue::as_text() const {
  if (const auto* v = std::get_if<std::string_view>(&value)) return *v;
  return std::nullopt;
}

}  // namespace foretoken
