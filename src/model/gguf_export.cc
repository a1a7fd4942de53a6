// Carries out an export plan: rows are gathered, decoded, mapped and encoded in slabs, so that memory stays small.
#include "model/gguf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <system_error>

#include "bundle/formats.h"
#include "bundle/gguf_writer.h"
#include "model/gguf_export_plan.h"

namespace foretoken {
namespace {

constexpr int64_t kSlabElements = int64_t{4} << 20;
constexpr uint32_t kQuantizationVersion = 2;

// Row `row` of `tensor` seen with `cols` columns.
std::span<const std::byte> stored_row(const TensorInfo& tensor, int64_t row, int64_t cols) {
  const size_t bytes = row_bytes(*tensor.format, cols);
  return tensor.data.subspan(static_cast<size_t>(row) * bytes, bytes);
}

float mapped(ElementMap map, float x) {
  switch (map) {
    case ElementMap::kNone:
      return x;
    case ElementMap::kPlusOne:
      return x + 1.0f;
    case ElementMap::kDecayRate:
      return static_cast<float>(-std::exp(static_cast<double>(x)));
  }
  return x;
}

// The stored row behind row `row` of a planned tensor.
std::pair<const TensorInfo*, int64_t> locate(const PlannedTensor& tensor, int64_t row) {
  for (const SourceRows& part : tensor.parts) {
    if (row < part.rows) return {part.tensor, part.order.empty() ? row : part.order[static_cast<size_t>(row)]};
    row -= part.rows;
  }
  CHECK(false);
  return {};
}

bool is_copy(const PlannedTensor& tensor, QuantFormat format) {
  if (tensor.map != ElementMap::kNone || !tensor.column_order.empty()) return false;
  return std::all_of(tensor.parts.begin(), tensor.parts.end(),
                     [&](const SourceRows& part) { return part.tensor->format == format; });
}

// One row as fp32 values. `scratch` has the row's width.
void decode_row(const PlannedTensor& tensor, int64_t row, std::span<float> out, std::span<float> scratch) {
  const auto [stored, index] = locate(tensor, row);
  const bool is_reordered = !tensor.column_order.empty();
  const std::span<float> raw = is_reordered ? scratch : out;
  dequantize(*stored->format, stored_row(*stored, index, tensor.cols()), raw);
  if (is_reordered)
    for (size_t i = 0; i < out.size(); ++i) out[i] = raw[static_cast<size_t>(tensor.column_order[i])];
  if (tensor.map != ElementMap::kNone)
    for (float& v : out) v = mapped(tensor.map, v);
}

// Whether every value can be stored: finite, and within f16 where that is the format.
bool storable(std::span<const float> values, QuantFormat format) {
  const float limit = format == QuantFormat::kF16 ? 65520.0f : HUGE_VALF;
  return std::all_of(values.begin(), values.end(), [limit](float v) { return std::fabs(v) < limit; });
}

class Exporter {
 public:
  Exporter(const Bundle& bundle, const ExportOptions& options, ThreadPool& pool, uint64_t total_bytes)
      : bundle_(bundle), options_(options), pool_(pool), total_(total_bytes) {}

  Status write(const PlannedTensor& tensor, QuantFormat format, GgufWriter& writer) {
    report(tensor.name, 0);
    if (tensor.verbatim) {
      const std::span<const std::byte> data = tensor.parts[0].tensor->data;
      TRY(writer.append(data));
      report(tensor.name, data.size());
      return {};
    }
    const int64_t slab = std::max<int64_t>(1, kSlabElements / std::max<int64_t>(1, tensor.cols()));
    const size_t packed_row = row_bytes(format, tensor.cols());
    for (int64_t begin = 0; begin < tensor.rows(); begin += slab) {
      const int64_t rows = std::min(slab, tensor.rows() - begin);
      packed_.resize(static_cast<size_t>(rows) * packed_row);
      TRY(is_copy(tensor, format) ? copy(tensor, begin, rows, packed_row)
                                  : encode(tensor, format, begin, rows, packed_row));
      TRY(writer.append(packed_));
      report(tensor.name, packed_.size());
    }
    for (const SourceRows& part : tensor.parts) bundle_.release(*part.tensor);
    return {};
  }

 private:
  Status copy(const PlannedTensor& tensor, int64_t begin, int64_t rows, size_t packed_row) {
    for (int64_t r = 0; r < rows; ++r) {
      const auto [stored, index] = locate(tensor, begin + r);
      const auto row = stored_row(*stored, index, tensor.cols());
      std::copy(row.begin(), row.end(), packed_.begin() + r * static_cast<int64_t>(packed_row));
    }
    return {};
  }

  Status encode(const PlannedTensor& tensor, QuantFormat format, int64_t begin, int64_t rows, size_t packed_row) {
    const size_t cols = static_cast<size_t>(tensor.cols());
    std::vector<char> row_is_bad(static_cast<size_t>(rows));
    pool_.parallel_for(rows, 1, [&](int64_t first, int64_t last, int) {
      std::vector<float> values(cols), scratch(tensor.column_order.empty() ? 0 : cols);
      for (int64_t r = first; r < last; ++r) {
        decode_row(tensor, begin + r, values, scratch);
        row_is_bad[static_cast<size_t>(r)] = !storable(values, format);
        if (row_is_bad[static_cast<size_t>(r)]) continue;
        quantize(format, values, {}, std::span(packed_).subspan(static_cast<size_t>(r) * packed_row, packed_row));
      }
    });
    const auto bad = std::find(row_is_bad.begin(), row_is_bad.end(), char{1});
    if (bad == row_is_bad.end()) return {};
    return Error{
        ErrorCode::kInvalidFile,
        fmt::format("{}: row {} of {} holds a value that is not finite or too large for {}; the weights are damaged or "
                    "need another type",
                    bundle_.path().string(), begin + (bad - row_is_bad.begin()), printable(tensor.name),
                    format_info(format).name)};
  }

  void report(std::string_view tensor, uint64_t more) {
    done_ += more;
    if (options_.progress) options_.progress({done_, total_, tensor});
  }

  const Bundle& bundle_;
  const ExportOptions& options_;
  ThreadPool& pool_;
  std::vector<std::byte> packed_;
  uint64_t done_ = 0, total_ = 0;
};

Error unknown_type(std::string_view name) {
  std::string known;
  for (const std::string_view type : export_types()) known += (known.empty() ? "" : ", ") + std::string(type);
  return {ErrorCode::kUsage,
          fmt::format("{} is not a type that can be written; choose one of {}", printable(name), known)};
}

// Replacing a file that is mapped would not harm this process, but "a bundle is never written to".
Status check_output(const Bundle& bundle, const std::filesystem::path& output) {
  for (const MappedFile& file : bundle.files()) {
    std::error_code error;
    if (std::filesystem::equivalent(file.path(), output, error) && !error)
      return Error{ErrorCode::kUsage,
                   fmt::format("{}: is a file of the model being read; choose another output", output.string())};
  }
  return {};
}

uint32_t verbatim_type(const TensorInfo& tensor) {
  for (const GgmlType& type : ggml_types())
    if (type.name == tensor.stored_type) return type.id;
  CHECK(false);
  return 0;
}

// Every source tensor must be of a type that is decoded here, or be copied as it is.
Status check_sources(const Bundle& bundle, const ExportPlan& plan) {
  for (const PlannedTensor& tensor : plan.tensors)
    for (const SourceRows& part : tensor.parts)
      if (!part.tensor->format && !tensor.verbatim)
        return Error{
            ErrorCode::kUnsupported,
            fmt::format("{}: tensor {} is stored as {}, which cannot be converted; start from the original weights",
                        bundle.path().string(), printable(part.tensor->name), part.tensor->stored_type)};
  return {};
}

}  // namespace

double ExportReport::bits_per_weight() const {
  double bits = 0, count = 0;
  for (const auto& [format, n] : elements) {
    bits += static_cast<double>(n) * 8 * format_info(format).block_bytes / format_info(format).block_elements;
    count += static_cast<double>(n);
  }
  return count > 0 ? bits / count : 0;
}

Result<ExportReport> export_gguf(const Bundle& bundle, const std::filesystem::path& output,
                                 const ExportOptions& options, ThreadPool& pool) {
  const ExportType* type = find_export_type(options.type);
  if (!type) return unknown_type(options.type);
  TRY(check_output(bundle, output));
  ASSIGN_OR_RETURN(ExportPlan plan,
                   bundle.format() == BundleFormat::kGguf ? plan_from_gguf(bundle) : plan_from_folder(bundle));
  TRY(check_sources(bundle, plan));
  plan.set("general.file_type", GgufValue::u32(type->file_type));
  plan.set("general.quantization_version", GgufValue::u32(kQuantizationVersion));

  ExportReport report;
  GgufPlan file{plan.metadata, {}};
  std::vector<QuantFormat> formats;
  for (const PlannedTensor& tensor : plan.tensors) {
    formats.push_back(stored_format(*type, tensor, plan));
    const uint32_t id =
        tensor.verbatim ? verbatim_type(*tensor.parts[0].tensor) : format_info(formats.back()).ggml_type;
    file.tensors.push_back({tensor.name, id, tensor.shape});
    if (!tensor.verbatim) report.elements[formats.back()] += tensor.rows() * tensor.cols();
  }
  ASSIGN_OR_RETURN(GgufWriter writer, GgufWriter::create(output, file));
  uint64_t data_bytes = 0;
  for (const GgufTensorPlan& tensor : file.tensors) data_bytes += gguf_tensor_bytes(tensor);
  Exporter exporter(bundle, options, pool, data_bytes);
  for (size_t i = 0; i < plan.tensors.size(); ++i) TRY(exporter.write(plan.tensors[i], formats[i], writer));
  report.file_bytes = writer.file_bytes();
  report.notes = std::move(plan.notes);
  TRY(writer.finish());
  return report;
}

}  // namespace foretoken
