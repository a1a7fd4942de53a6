#include "model/packed_set.h"

#include <fmt/format.h>

#include "model/host_memory.h"

namespace foretoken {
namespace {

std::vector<float> noise(size_t count) {
  std::vector<float> values(count);
  uint32_t state = 1;
  for (float& v : values) v = static_cast<float>(static_cast<int32_t>(state = state * 1664525u + 1013904223u)) * 0x1p-31f;
  return values;
}

// How matrices are encoded in `format`: its name, and the checksum of what this program makes of a few values.
std::string encoding_of(QuantFormat format) {
  const std::vector<float> values = noise(8 * 256);
  std::vector<std::byte> encoded(row_bytes(format, static_cast<int64_t>(values.size())));
  quantize(format, values, {}, encoded);
  return fmt::format("{} {}", format_info(format).name, checksum(encoded).hex());
}

}  // namespace

void PackingOrder::add(std::span<const Slice> slices) {
  const auto order = [](const std::vector<int32_t>& indices) {
    return indices.empty() ? std::string("-") : checksum(std::as_bytes(std::span(indices))).hex();
  };
  uint64_t bytes = 0, super_blocks = 0;
  for (const Slice& s : slices) {
    bytes += source_bytes(s);
    if (format_info(*s.tensor->format).block_elements == 256) super_blocks += source_bytes(s);
  }
  bytes_ += bytes;
  memory_bytes_ += packed_memory(bytes, super_blocks);
  for (const Slice& s : slices)
    text_ += fmt::format("{} {} {} {} {} {} {};", s.tensor->name, format_info(*s.tensor->format).name, s.begin, s.rows, s.cols,
                         order(s.row_order), order(s.column_order));
  text_ += '\n';
}

std::string PackingOrder::digest() const {
  return checksum(reencoded_ ? text_ + "as " + encoding_of(*reencoded_) : text_).hex();
}

std::string packing_of(Backend& backend) {
  const std::string name = backend.info().packing;
  if (name.empty()) return {};
  std::string sums;
  uint32_t state = 1;
  for (int i = 0; i < kQuantFormatCount; ++i) {
    const auto format = static_cast<QuantFormat>(i);
    constexpr int64_t kRows = 70;                                     // whole groups of outputs, and a part of one
    const int64_t cols = is_float_format(format) ? 2 * 256 + 40 : 2 * 256;  // whole lines or blocks, and for floats a part of one
    std::vector<std::byte> data(static_cast<size_t>(kRows) * row_bytes(format, cols));
    for (std::byte& byte : data) byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
    MatrixSource in_order{.format = format, .rows = kRows, .cols = cols, .data = data};
    MatrixSource reordered = in_order;
    for (int32_t row = kRows; row-- > 0;) reordered.row_order.push_back(row);
    if (is_float_format(format))
      for (auto column = static_cast<int32_t>(cols); column-- > 0;) reordered.column_order.push_back(column);
    const MatrixSource parts[] = {std::move(in_order), std::move(reordered)};
    const MatrixPtr packed = backend.pack(parts);
    sums += checksum(packed->packed()).hex();
  }
  return name + " " + checksum(sums).hex();
}

PackedKey packed_key(std::string set, Backend& backend, const PackingOrder& order) {
  return {.set = std::move(set), .backend = backend.info().name, .packing = packing_of(backend), .matrices = order.digest()};
}

PackedSet::PackedSet(const Bundle& bundle, Backend& backend, PackedCache* cache, std::string set, const PackingOrder& order)
    : bundle_(bundle), backend_(backend), cache_(cache) {
  if (!cache_ || !cache_->serves(bundle)) return;
  const PackedKey key = packed_key(std::move(set), backend, order);
  if (key.packing.empty()) return;
  file_ = cache_->find(bundle, key);
  if (file_) return;
  if (auto started = cache_->start(bundle, key, order.bytes())) writer_.emplace(*std::move(started));
}

MatrixPtr PackedSet::adopt(std::span<const MatrixSource> shapes) {
  return file_ && next_ < file_->size() ? backend_.adopt(shapes, (*file_)[next_++]) : nullptr;
}

MatrixPtr PackedSet::pack(std::span<const MatrixSource> parts, MatrixUse use) {
  MatrixPtr matrix = adopt(parts);
  return matrix ? std::move(matrix) : pack_anew(parts, use);
}

MatrixPtr PackedSet::pack_anew(std::span<const MatrixSource> parts, MatrixUse use) {
  MatrixPtr matrix = backend_.pack(parts, use);
  if (writer_)
    if (const Status added = writer_->add(matrix->packed()); !added) {
      cache_->give_up(added.error());
      writer_.reset();
    }
  return matrix;
}

std::optional<PackedFile> PackedSet::finish() {
  if (writer_) cache_->publish(bundle_, *std::move(writer_));
  writer_.reset();
  return std::move(file_);
}

}  // namespace foretoken
