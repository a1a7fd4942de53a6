// The GGUF writer: serialises the plan, streams the data, renames at the end.
#include "bundle/gguf_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <set>
#include <system_error>
#include <type_traits>

#include "bundle/formats.h"

namespace foretoken {
namespace {

constexpr size_t kMaxRank = 4;
constexpr std::string_view kAlignmentKey = "general.alignment";

uint64_t aligned(uint64_t bytes) { return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment; }

// Little-endian header bytes.
class HeaderBytes {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text) {
    put(uint64_t{text.size()});
    bytes_.append(text);
  }
  void pad() { bytes_.resize(aligned(bytes_.size()), '\0'); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

void put_integer(HeaderBytes& out, GgufType type, uint64_t bits) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
      return out.put(static_cast<uint8_t>(bits));
    case GgufType::kU16:
    case GgufType::kI16:
      return out.put(static_cast<uint16_t>(bits));
    case GgufType::kU32:
    case GgufType::kI32:
      return out.put(static_cast<uint32_t>(bits));
    default:
      return out.put(bits);
  }
}

// Whether `value` and its stated type agree, numbers within the type's range.
bool fits(const GgufValue& value) {
  const GgufType type = value.type;
  const auto unsigned_fits = [&](uint64_t v) {
    switch (type) {
      case GgufType::kU8:
        return v <= std::numeric_limits<uint8_t>::max();
      case GgufType::kU16:
        return v <= std::numeric_limits<uint16_t>::max();
      case GgufType::kU32:
        return v <= std::numeric_limits<uint32_t>::max();
      default:
        return type == GgufType::kU64;
    }
  };
  const auto within = [](int64_t v, int64_t low, int64_t high) { return v >= low && v <= high; };
  const auto signed_fits = [&](int64_t v) {
    switch (type) {
      case GgufType::kI8:
        return within(v, -128, 127);
      case GgufType::kI16:
        return within(v, -32768, 32767);
      case GgufType::kI32:
        return within(v, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
      default:
        return type == GgufType::kI64;
    }
  };
  const bool is_float = type == GgufType::kF32 || type == GgufType::kF64;
  if (const auto* v = std::get_if<uint64_t>(&value.value)) return unsigned_fits(*v);
  if (const auto* v = std::get_if<int64_t>(&value.value)) return signed_fits(*v);
  if (const auto* v = value.as_ints()) {
    const bool is_integer = signed_fits(0) || unsigned_fits(0);
    return is_integer && std::all_of(v->begin(), v->end(), [&](int64_t i) {
             return signed_fits(i) || (i >= 0 && unsigned_fits(static_cast<uint64_t>(i)));
           });
  }
  if (std::holds_alternative<double>(value.value) || value.as_doubles()) return is_float;
  if (std::holds_alternative<bool>(value.value) || value.as_bools()) return type == GgufType::kBool;
  return type == GgufType::kText;
}

void put_float(HeaderBytes& out, GgufType type, double value) {
  if (type == GgufType::kF32) out.put(static_cast<float>(value));
  else out.put(value);
}

struct PutElements {
  HeaderBytes& out;
  GgufType type;
  void operator()(uint64_t v) const { put_integer(out, type, v); }
  void operator()(int64_t v) const { put_integer(out, type, static_cast<uint64_t>(v)); }
  void operator()(double v) const { put_float(out, type, v); }
  void operator()(bool v) const { out.put(static_cast<uint8_t>(v)); }
  void operator()(std::string_view v) const { out.put_text(v); }
  template <class T>
  void operator()(const std::vector<T>& values) const {
    out.put(static_cast<uint32_t>(type));
    out.put(uint64_t{values.size()});
    for (const T& value : values) (*this)(value);
  }
};

void put_value(HeaderBytes& out, const GgufValue& value) {
  out.put(static_cast<uint32_t>(value.is_array() ? GgufType::kArray : value.type));
  std::visit(PutElements{out, value.type}, value.value);
}

// Empty when the plan is sound, else what is wrong with it.
std::string objection(const GgufPlan& plan) {
  std::set<std::string_view> keys, names;
  for (const auto& [key, value] : plan.metadata) {
    if (key.empty() || key.size() > kMaxNameBytes)
      return fmt::format("the metadata key {} is empty or too long", printable(key));
    if (key == kAlignmentKey) continue;
    if (!keys.insert(key).second) return fmt::format("the metadata key {} is given twice", printable(key));
    if (!fits(value)) return fmt::format("the metadata value of {} does not fit its type", printable(key));
  }
  if (plan.tensors.size() > kMaxTensors)
    return fmt::format("{} tensors, more than {}", plan.tensors.size(), kMaxTensors);
  for (const GgufTensorPlan& tensor : plan.tensors) {
    const std::string shown = printable(tensor.name);
    const GgmlType* type = ggml_type(tensor.ggml_type);
    if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes)
      return fmt::format("the tensor name {} is empty or too long", shown);
    if (!names.insert(tensor.name).second) return fmt::format("the tensor name {} is given twice", shown);
    if (!type) return fmt::format("tensor {} has the unknown ggml type {}", shown, tensor.ggml_type);
    if (tensor.shape.size() > kMaxRank)
      return fmt::format("tensor {} has {} dimensions, more than {}", shown, tensor.shape.size(), kMaxRank);
    int64_t elements = 1;
    for (int64_t size : tensor.shape)
      if (size < 0 || (size > 0 && __builtin_mul_overflow(elements, size, &elements)) || elements > (int64_t{1} << 56))
        return fmt::format("the shape of tensor {} is negative or too large", shown);
    if ((tensor.shape.empty() ? 1 : tensor.shape.back()) % type->block_elements != 0)
      return fmt::format("the rows of tensor {} are not whole {} blocks of {} elements", shown, type->name,
                         type->block_elements);
  }
  return {};
}

std::string header_bytes(const GgufPlan& plan) {
  HeaderBytes out;
  const auto is_written = [](const auto& entry) { return entry.first != kAlignmentKey; };
  out.put(std::array<char, 4>{'G', 'G', 'U', 'F'});
  out.put(uint32_t{3});
  out.put(uint64_t{plan.tensors.size()});
  out.put(static_cast<uint64_t>(std::count_if(plan.metadata.begin(), plan.metadata.end(), is_written)));
  for (const auto& entry : plan.metadata) {
    if (!is_written(entry)) continue;
    out.put_text(entry.first);
    put_value(out, entry.second);
  }
  uint64_t offset = 0;
  for (const GgufTensorPlan& tensor : plan.tensors) {
    out.put_text(tensor.name);
    out.put(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) out.put(static_cast<uint64_t>(tensor.shape[i]));
    out.put(tensor.ggml_type);
    out.put(offset);
    offset += aligned(gguf_tensor_bytes(tensor));
  }
  out.pad();
  return out.bytes();
}

Error io_error(const std::string& path, const char* action) {
  return {ErrorCode::kIo, fmt::format("{}: cannot {}: {}", path, action, std::generic_category().message(errno))};
}

}  // namespace

uint64_t gguf_tensor_bytes(const GgufTensorPlan& tensor) {
  const GgmlType* type = ggml_type(tensor.ggml_type);
  CHECK(type != nullptr);
  uint64_t elements = 1;
  for (int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
  return elements / static_cast<uint64_t>(type->block_elements) * static_cast<uint64_t>(type->block_bytes);
}

Result<GgufWriter> GgufWriter::create(const std::filesystem::path& path, const GgufPlan& plan) {
  if (const std::string reason = objection(plan); !reason.empty())
    return Error{ErrorCode::kUsage, fmt::format("{}: cannot be written: {}", path.string(), reason)};
  ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::beside(path));
  GgufWriter writer(std::move(file));
  writer.path_ = path;
  const int fd = ::fcntl(writer.file_.fd(), F_DUPFD_CLOEXEC, 0);
  if (fd >= 0) writer.stream_.reset(::fdopen(fd, "wb"));
  if (!writer.stream_) {
    const Error error = io_error(path.string(), "create");
    if (fd >= 0) ::close(fd);
    return error;
  }
  const std::string header = header_bytes(plan);
  writer.file_bytes_ = header.size();
  for (const GgufTensorPlan& tensor : plan.tensors) {
    writer.tensor_bytes_.push_back(gguf_tensor_bytes(tensor));
    writer.file_bytes_ += aligned(writer.tensor_bytes_.back());
  }
  TRY(writer.put(header.data(), header.size()));
  TRY(writer.pad());
  return writer;
}

Status GgufWriter::put(const void* data, size_t size) {
  if (size > 0 && std::fwrite(data, 1, size, stream_.get()) != size) return io_error(path_.string(), "write");
  position_ += size;
  return {};
}

// Steps over finished tensors (empty ones too), with zeros up to the next multiple of the alignment.
Status GgufWriter::pad() {
  static constexpr char kZeros[kGgufAlignment] = {};
  while (current_ < tensor_bytes_.size() && written_ == tensor_bytes_[current_]) {
    TRY(put(kZeros, static_cast<size_t>(aligned(position_) - position_)));
    ++current_;
    written_ = 0;
  }
  return {};
}

Status GgufWriter::append(std::span<const std::byte> data) {
  CHECK(stream_ != nullptr);
  if (data.empty()) return {};
  CHECK(current_ < tensor_bytes_.size());
  CHECK(data.size() <= tensor_bytes_[current_] - written_);
  TRY(put(data.data(), data.size()));
  written_ += data.size();
  return pad();
}

Status GgufWriter::finish() {
  CHECK(stream_ != nullptr);
  CHECK(current_ == tensor_bytes_.size());
  CHECK(position_ == file_bytes_);
  if (std::fflush(stream_.get()) != 0 || ::fchmod(file_.fd(), 0644) != 0 || ::fsync(file_.fd()) != 0)
    return io_error(path_.string(), "write");
  stream_.reset();
  return file_.publish();
}

}  // namespace foretoken
