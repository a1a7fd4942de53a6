// Writes any bundle as one GGUF file in a chosen type: Hugging Face names and layouts become those of the file (the
// inverse of what weights.cc reads), a GGUF source is requantised. Knows names, transforms and which tensor deserves
// which format; it does not run models. Formats and keys: docs/formats.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "bundle/bundle.h"
#include "numerics/quant.h"

namespace foretoken {

struct ExportProgress {
  uint64_t done_bytes, total_bytes;  // of tensor data written
  std::string_view tensor;           // being written
};

struct ExportOptions {
  std::string type = "Q4_K_M";  // one of export_types(), any case
  std::function<void(const ExportProgress&)> progress;
};

struct ExportReport {
  uint64_t file_bytes = 0;
  std::map<QuantFormat, int64_t> elements;  // weights stored in each format
  std::vector<std::string> notes;           // tensors left out, a missing tokenizer: things the caller should hear
  double bits_per_weight() const;
};

// Type names: plain ones store every eligible matrix in that format; the mixes ("_M") spend more bits where they pay.
std::span<const std::string_view> export_types();

// Reads target models (qwen3_5, qwen3_5_moe, qwen3_next, with or without MTP head) and DFlash drafters as Hugging Face
// folders, and GGUF files of both
// whose formats are decoded here. Streams: at most a few tens of MiB beside the source's
// mapping. The output appears under its name only when complete; it must not be one of the bundle's own files. The
// bytes do not depend on the number of threads.
Result<ExportReport> export_gguf(const Bundle& bundle, const std::filesystem::path& output,
                                 const ExportOptions& options, ThreadPool& pool);

}  // namespace foretoken
