// KeywordReader: the keywords of one schema object as one shape. Keywords that combine schemas ($ref, allOf, anyOf,
// oneOf) are left to SchemaReader.
#pragma once

#include "text/schema_shape.h"

namespace foretoken {

class KeywordReader {
 public:
  KeywordReader(SchemaReader& reader, const OrderedJson& schema) : reader_(reader), schema_(schema) {}
  Result<Shape> read();

 private:
  using Read = Status (KeywordReader::*)(const OrderedJson& value);
  struct Keyword {
    std::string_view name;
    Read read;
  };
  static const Keyword kKeywords[];

  Error usage(std::string_view what) const { return reader_.error(ErrorCode::kUsage, schema_, key_, what); }
  Error refused(std::string_view what) const { return reader_.error(ErrorCode::kUnsupported, schema_, key_, what); }
  Status check_schema(const OrderedJson& value) const;
  Result<uint32_t> count(const OrderedJson& value) const;
  Result<NumberRange::Bound> bound(const OrderedJson& value) const;
  const OrderedJson* sibling(const char* name) const;
  bool combines() const;
  bool is_draft4_exclusive(const char* name) const;

  Status combined(const OrderedJson& value);  // checked elsewhere
  Status type(const OrderedJson& value);
  Status nullable(const OrderedJson& value);
  Status enumeration(const OrderedJson& value);
  Status constant(const OrderedJson& value);
  Status minimum(const OrderedJson& value);
  Status maximum(const OrderedJson& value);
  Status exclusive_minimum(const OrderedJson& value);
  Status exclusive_maximum(const OrderedJson& value);
  Status multiple_of(const OrderedJson& value);
  Status min_length(const OrderedJson& value);
  Status max_length(const OrderedJson& value);
  Status pattern(const OrderedJson& value);
  Status format(const OrderedJson& value);
  Status items(const OrderedJson& value);
  Status prefix_items(const OrderedJson& value);
  Status additional_items(const OrderedJson& value);
  Status min_items(const OrderedJson& value);
  Status max_items(const OrderedJson& value);
  Status unique_items(const OrderedJson& value);
  Status unevaluated_items(const OrderedJson& value);
  Status properties(const OrderedJson& value);
  Status required(const OrderedJson& value);
  Status additional_properties(const OrderedJson& value);
  Status pattern_properties(const OrderedJson& value);
  Status property_names(const OrderedJson& value);
  Status min_properties(const OrderedJson& value);
  Status max_properties(const OrderedJson& value);
  Status unevaluated_properties(const OrderedJson& value);

  SchemaReader& reader_;
  const OrderedJson& schema_;
  std::string key_;  // the keyword being read
  Shape shape_;
  bool nullable_ = false;
};

}  // namespace foretoken
