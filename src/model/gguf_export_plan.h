// What is inside an export before a byte is written: each tensor of the file with the source rows it is made of, and
// the metadata. Plans are made by one function per kind of source and carried out by gguf_export.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "bundle/bundle.h"
#include "numerics/quant.h"

namespace foretoken {

// Applied to each element, in fp32; kDecayRate is -exp(x), computed in double and rounded once.
enum class ElementMap : uint8_t { kNone, kPlusOne, kDecayRate };

// Rows of one stored tensor, seen as [rows, cols] whatever its shape says (same elements, same order).
struct SourceRows {
  const TensorInfo* tensor = nullptr;
  int64_t rows = 0;
  std::vector<int64_t> order;  // the stored row behind each of our `rows` rows; empty: 0, 1, 2, ...
};

struct PlannedTensor {
  std::string name;
  std::vector<int64_t> shape;         // outermost first
  std::vector<SourceRows> parts;      // concatenated along the rows
  std::vector<int32_t> column_order;  // the stored column behind each of our columns; empty: in place
  ElementMap map = ElementMap::kNone;
  bool verbatim = false;  // the stored bytes of a type that is not decoded here (I64 tables)

  int64_t cols() const { return shape.back(); }
  int64_t rows() const {
    int64_t n = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
    return n;
  }
};

struct ExportPlan {
  std::vector<PlannedTensor> tensors;
  std::vector<std::pair<std::string, GgufValue>> metadata;
  std::vector<std::string> notes;
  std::deque<std::string> texts;  // strings that `metadata` borrows

  void set(std::string key, GgufValue value) { metadata.emplace_back(std::move(key), std::move(value)); }
  std::string_view keep(std::string text) { return texts.emplace_back(std::move(text)); }
};

// A Hugging Face folder: a target model or a drafter, by its config.
Result<ExportPlan> plan_from_folder(const Bundle& bundle);
// A GGUF file: its own tensors and metadata.
Result<ExportPlan> plan_from_gguf(const Bundle& bundle);

// tokenizer.* keys from tokenizer.json, tokenizer_config.json and chat_template.jinja for `vocab` rows; a note when
// there are none (the file then says that it has no vocabulary).
Status plan_tokenizer(const Bundle& bundle, int64_t vocab, ExportPlan& plan);

// A type as the user names it: the formats it gives to tensors.
struct ExportType {
  std::string_view name;
  QuantFormat base;
  bool mixed;
  uint32_t file_type;  // general.file_type
};
const ExportType* find_export_type(std::string_view name);

// The format of one tensor under `type`. Always one that the tensor's rows can be stored in.
QuantFormat stored_format(const ExportType& type, const PlannedTensor& tensor, const ExportPlan& plan);

}  // namespace foretoken
