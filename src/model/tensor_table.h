// Access to the tensors of one bundle by name, with every shape and type checked on the way. It knows no model's names.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bundle/bundle.h"
#include "ops/ops.h"

namespace foretoken {

// Rows [begin, begin + rows) of a stored matrix, in the order given. A fused or three-dimensional tensor yields several slices.
struct Slice {
  const TensorInfo* tensor = nullptr;
  int64_t begin = 0, rows = 0, cols = 0;
  std::vector<int32_t> row_order, column_order;
};

inline MatrixSource matrix_source(const Slice& slice) {
  const size_t stride = row_bytes(*slice.tensor->format, slice.cols);
  return {.name = slice.tensor->name,
          .format = *slice.tensor->format,
          .rows = slice.rows,
          .cols = slice.cols,
          .data = slice.tensor->data.subspan(size_t(slice.begin) * stride, size_t(slice.rows) * stride),
          .row_order = slice.row_order,
          .column_order = slice.column_order};
}

// Adds a slice to a list, or returns its error: a name table reads as one line per weight.
inline Status append(std::vector<Slice>& slices, Result<Slice> slice) {
  TRY(slice);
  slices.push_back(*std::move(slice));
  return {};
}

class TensorTable {
 public:
  explicit TensorTable(const Bundle& bundle) : bundle_(bundle) {}
  const Bundle& bundle() const { return bundle_; }
  bool any_with(std::string_view prefix) const {
    for (const TensorInfo& t : bundle_.tensors())
      if (t.name.starts_with(prefix)) return true;
    return false;
  }

  Error fault(const std::string& name, std::string_view what) const {
    return {ErrorCode::kInvalidFile, fmt::format("{}: tensor {} {}", bundle_.path().string(), name, what)};
  }

  // A tensor of exactly `elements` elements whose rows have `cols` elements, of a type we run.
  Result<const TensorInfo*> tensor(const std::string& name, int64_t elements, int64_t cols) const {
    const TensorInfo* t = bundle_.find(name);
    if (!t) return fault(name, "is missing");
    if (!t->format)
      return Error{ErrorCode::kUnsupported,
                   fmt::format("{}: tensor {} is stored as {}, which this program does not run yet", bundle_.path().string(),
                               name, t->stored_type)};
    if (t->elements() != elements || (t->cols() != cols && !(is_float_format(*t->format))))
      return fault(name, fmt::format("has {} elements in rows of {}, expected {} in rows of {}", t->elements(), t->cols(),
                                     elements, cols));
    return t;
  }

  Result<Slice> matrix(const std::string& name, int64_t rows, int64_t cols) const {
    ASSIGN_OR_RETURN(const TensorInfo* t, tensor(name, rows * cols, cols));
    if (t->cols() != cols) return fault(name, fmt::format("has rows of {}, expected {}", t->cols(), cols));
    return Slice{t, 0, rows, cols, {}, {}};
  }

 protected:
  const Bundle& bundle_;
};

}  // namespace foretoken
