// The packed matrices of one load: taken from the cache file of an earlier load, or packed and kept for the next. It knows neither the
// layout of packed bytes nor the place of the file.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bundle/packed_cache.h"
#include "model/tensor_table.h"
#include "ops/ops.h"

namespace foretoken {

// The slices of all matrices in the order in which they will be packed, as text: with the bundle's content and the backend's packing it
// determines every packed byte.
class PackingOrder {
 public:
  void add(std::span<const Slice> slices);
  // Matrices that are stored larger than in `format` are re-encoded in it before they are packed.
  void reencoded(QuantFormat format) { reencoded_ = format; }
  // A table whose rows are looked up where the bundle's mapping has them.
  void borrow(const Slice& table) { borrowed_bytes_ += source_bytes(table); }
  std::string digest() const;
  // What packing will take, but for a few percent; what that is in memory; what is borrowed.
  uint64_t bytes() const { return bytes_; }
  uint64_t memory_bytes() const { return memory_bytes_; }
  uint64_t borrowed_bytes() const { return borrowed_bytes_; }

 private:
  static uint64_t source_bytes(const Slice& slice) {
    return static_cast<uint64_t>(slice.rows) * row_bytes(*slice.tensor->format, slice.cols);
  }

  std::string text_;
  uint64_t bytes_ = 0, memory_bytes_ = 0, borrowed_bytes_ = 0;
  std::optional<QuantFormat> reencoded_;
};

// How `backend` lays matrices out: its own name for it, and the checksum of what it makes of a few small matrices in every format, so that
// a change that forgot to rename the layout is seen as well. Empty where packed bytes cannot be kept.
std::string packing_of(Backend& backend);

PackedKey packed_key(std::string set, Backend& backend, const PackingOrder& order);

class PackedSet {
 public:
  // `cache` null: everything is packed and nothing kept. All must outlive the set.
  PackedSet(const Bundle& bundle, Backend& backend, PackedCache* cache, std::string set, const PackingOrder& order);

  // The next matrix of the order. Its parts are not read when it was found.
  MatrixPtr pack(std::span<const MatrixSource> parts, MatrixUse use = MatrixUse::kLinear);
  // The same in two steps, for parts that cost time to make: null when it was not found, and must be packed. `shapes`: parts without data.
  MatrixPtr adopt(std::span<const MatrixSource> shapes);
  MatrixPtr pack_anew(std::span<const MatrixSource> parts, MatrixUse use = MatrixUse::kLinear);
  bool found() const { return file_.has_value(); }
  Backend& backend() const { return backend_; }
  // Call when all matrices were asked for: keeps what was packed. The file, if any, that the matrices lie in; it must outlive them.
  std::optional<PackedFile> finish();

 private:
  const Bundle& bundle_;
  Backend& backend_;
  PackedCache* cache_;
  std::optional<PackedFile> file_;
  std::optional<PackedFileWriter> writer_;
  size_t next_ = 0;
};

}  // namespace foretoken
