// Bundle: a model on disk, opened and indexed. Every offset is checked against the file before a pointer exists;
// weights stay in read-only mappings. It knows file formats and nothing of layers or devices. Source: docs/formats.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/result.h"
#include "numerics/quant.h"

namespace foretoken {

enum class BundleFormat : uint8_t { kSafetensors, kGguf };
std::string_view bundle_format_name(BundleFormat format);

// One tensor as it lies in a file. `shape` is row-major, outermost dimension first (GGUF's ne reversed). `format` is
// empty for a stored type that no kernel reads (I64, F8_E4M3, IQ2_XS, ...): the tensor is still listed, with its stored
// type's name.
struct TensorInfo {
  std::string name;
  std::string stored_type;  // as the file's format calls it: "BF16", "Q4_K", "I64"
  std::optional<QuantFormat> format;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  int file = 0;  // index into Bundle::files()

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const { return cols() == 0 ? 0 : elements() / cols(); }
};

// Types of GGUF metadata, numbered as in the file.
enum class GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kText, kArray, kU64, kI64, kF64 };

// A GGUF metadata value: widened for reading, with the type it has in the file so that it can be written again
// unchanged. Strings borrow: from the mapping when read, from the caller when made to be written.
struct GgufValue {
  using Payload = std::variant<uint64_t, int64_t, double, bool, std::string_view, std::vector<std::string_view>,
                               std::vector<int64_t>, std::vector<double>, std::vector<bool>>;
  Payload value;
  GgufType type = GgufType::kU64;  // of the elements when `value` is an array; never kArray

  bool is_array() const { return value.index() > 4; }
  std::optional<int64_t> as_int() const;    // integers only, within int64
  std::optional<double> as_double() const;  // integers convert
  std::optional<bool> as_bool() const;
  std::optional<std::string_view> as_text() const;
  const std::vector<std::string_view>* as_texts() const { return std::get_if<std::vector<std::string_view>>(&value); }
  const std::vector<int64_t>* as_ints() const { return std::get_if<std::vector<int64_t>>(&value); }
  const std::vector<double>* as_doubles() const { return std::get_if<std::vector<double>>(&value); }
  const std::vector<bool>* as_bools() const { return std::get_if<std::vector<bool>>(&value); }

  static GgufValue u16(uint16_t v) { return {uint64_t{v}, GgufType::kU16}; }
  static GgufValue u32(uint32_t v) { return {uint64_t{v}, GgufType::kU32}; }
  static GgufValue i32(int32_t v) { return {int64_t{v}, GgufType::kI32}; }
  static GgufValue f32(float v) { return {double{v}, GgufType::kF32}; }
  static GgufValue boolean(bool v) { return {v, GgufType::kBool}; }
  static GgufValue text(std::string_view v) { return {v, GgufType::kText}; }
  static GgufValue texts(std::vector<std::string_view> v) { return {std::move(v), GgufType::kText}; }
  static GgufValue i32s(std::vector<int64_t> v) { return {std::move(v), GgufType::kI32}; }
  static GgufValue f32s(std::vector<double> v) { return {std::move(v), GgufType::kF32}; }
  static GgufValue bools(std::vector<bool> v) { return {std::move(v), GgufType::kBool}; }
};
using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

class Bundle {
 public:
  // `path`: a folder with safetensors (config.json beside them), a .gguf file (any shard of a split file), or a folder
  // that holds one of these and no safetensors. Reads headers only. Errors are one sentence naming the file, what is
  // wrong with it and what to do. Formats that are recognised but not read (MLX, FP8, JANG, PyTorch pickles) are
  // ErrorCode::kUnsupported.
  static Result<Bundle> open(const std::filesystem::path& path);

  BundleFormat format() const { return format_; }
  // The folder of a safetensors bundle; the (first) file of a GGUF one.
  const std::filesystem::path& path() const { return path_; }
  // The folder that holds the weights, where drafters and other files that belong to them lie.
  std::filesystem::path folder() const;
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // sorted by name
  const TensorInfo* find(std::string_view name) const;
  const std::vector<MappedFile>& files() const { return files_; }
  uint64_t tensor_bytes() const;

  // Safetensors: the objects of config.json and generation_config.json (null when absent). GGUF: null.
  const Json& config() const { return config_; }
  const Json& generation_config() const { return generation_config_; }
  // GGUF: the metadata of the first shard. Safetensors: empty.
  const GgufMetadata& metadata() const { return metadata_; }

  // Text of a file beside the weights ("tokenizer.json", "chat_template.jinja"), or NotFound. Safetensors folders only.
  Result<std::string> side_file(std::string_view name) const;

  // Names the index promised and no shard holds, and other facts a reader should hear; never fatal by themselves.
  const std::vector<std::string>& notes() const { return notes_; }

  // Pages of this tensor's data need not stay resident (they are re-read from the file when touched again).
  void release(const TensorInfo& tensor) const { files_[size_t(tensor.file)].release(tensor.data); }

  // SHA-256 over names, types, shapes and sizes of all tensors, configuration (the text of config.json, or the metadata
  // but for its split.* keys), and each tensor's first and last 4 KiB: identifies the weights without reading all of
  // them. The same for any place, sharding and order of the same tensors. Computed at the first call; safe from any
  // thread.
  const std::string& fingerprint() const;

 private:
  friend struct BundleBuilder;
  struct Fingerprint {
    std::once_flag once;
    std::string text;
  };
  BundleFormat format_ = BundleFormat::kSafetensors;
  std::filesystem::path path_;
  std::vector<MappedFile> files_;
  std::vector<TensorInfo> tensors_;
  std::string config_text_;
  Json config_, generation_config_;
  GgufMetadata metadata_;
  std::vector<std::string> notes_;
  std::unique_ptr<Fingerprint> fingerprint_ = std::make_unique<Fingerprint>();
};

}  // namespace foretoken
