// Writes a GGUF v3 file: the whole header first, then the tensors' data streamed in order. It knows nothing of models;
// the caller chooses keys, names and types. Layout: docs/formats.md, "What the writer lays down".
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/temporary.h"
#include "bundle/bundle.h"

namespace foretoken {

inline constexpr uint64_t kGgufAlignment = 32;

struct GgufTensorPlan {
  std::string name;
  uint32_t ggml_type = 0;      // format_info(format).ggml_type, or any type of docs/formats.md
  std::vector<int64_t> shape;  // outermost dimension first, at most four; rows are whole blocks
};

struct GgufPlan {
  std::vector<std::pair<std::string, GgufValue>>
      metadata;                         // written in this order; general.alignment is the writer's own
  std::vector<GgufTensorPlan> tensors;  // data follows in this order
};

// Bytes of a tensor's data, without padding.
uint64_t gguf_tensor_bytes(const GgufTensorPlan& tensor);

// Use: create, then append() every tensor's bytes in order in pieces of any size, then finish(). The file appears under
// its name only with finish(); a writer destroyed before leaves nothing behind. Move-only.
class GgufWriter {
 public:
  // Writes the header to a temporary file beside `path`. kUsage when the plan cannot be a GGUF file (a name twice, a
  // row that is not whole blocks, more than four dimensions, an unknown type).
  static Result<GgufWriter> create(const std::filesystem::path& path, const GgufPlan& plan);

  // The next bytes of the current tensor; never more than it has left. Zero padding follows its last byte by itself.
  Status append(std::span<const std::byte> data);

  uint64_t file_bytes() const { return file_bytes_; }  // size of the finished file

  // All tensors must be complete. Flushes to disk and renames.
  Status finish();

  GgufWriter(GgufWriter&&) noexcept = default;
  ~GgufWriter() = default;

 private:
  struct CloseStream {
    void operator()(std::FILE* stream) const { std::fclose(stream); }
  };
  explicit GgufWriter(TemporaryFile file) : file_(std::move(file)) {}
  Status put(const void* data, size_t size);
  Status pad();

  std::filesystem::path path_;
  TemporaryFile file_;
  std::unique_ptr<std::FILE, CloseStream> stream_;  // buffers what goes to the file; null once finished
  std::vector<uint64_t> tensor_bytes_;
  size_t current_ = 0;     // tensor being written
  uint64_t written_ = 0;   // its bytes so far
  uint64_t position_ = 0;  // bytes in the file so far
  uint64_t file_bytes_ = 0;
};

}  // namespace foretoken
