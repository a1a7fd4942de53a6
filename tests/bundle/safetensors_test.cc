// Safetensors files and indexes: what is read from sound ones, and the sentence that refuses each kind of broken one.
#include <gtest/gtest.h>

#include <cstring>

#include "bundle/expect_error.h"
#include "bundle/formats.h"
#include "support/safetensors_builder.h"

namespace foretoken {
namespace {

using testing::expect_error;
using testing::safetensors_file;
using testing::SafetensorsBuilder;

Result<std::vector<TensorInfo>> parse(std::string_view file) {
  return parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "a.safetensors");
}

std::string bytes_of(const TensorInfo& tensor) {
  return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
}

// Names, types, shapes and bytes come back as written, also where the data is not aligned.
TEST(Safetensors, ReadsEveryFieldOfASoundFile) {
  const std::string file = SafetensorsBuilder()
                               .add("odd", "U8", {3}, "abc")
                               .add("w", "F32", {2, 3}, std::string(23, 'x') + "y")
                               .add("half", "F16", {1, 2}, "0123")
                               .add("brain", "BF16", {4}, "01234567")
                               .add("scalar", "I64", {}, "8 bytes!")
                               .add("none", "F32", {0, 7}, "")
                               .build();
  const auto tensors = parse(file);
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 6u);
  const auto at = [&](std::string_view name) {
    for (const TensorInfo& tensor : *tensors)
      if (tensor.name == name) return tensor;
    ADD_FAILURE() << name;
    return TensorInfo{};
  };
  EXPECT_EQ(bytes_of(at("odd")), "abc");
  EXPECT_FALSE(at("odd").format.has_value());
  EXPECT_EQ(at("odd").stored_type, "U8");
  EXPECT_EQ(bytes_of(at("w")), std::string(23, 'x') + "y");
  EXPECT_EQ(at("w").format, QuantFormat::kF32);
  EXPECT_EQ(at("w").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(at("w").rows(), 2);
  EXPECT_EQ(at("w").cols(), 3);
  EXPECT_NE(reinterpret_cast<uintptr_t>(at("w").data.data()) % 4, 0u) << "the case of unaligned data was not met";
  EXPECT_EQ(at("half").format, QuantFormat::kF16);
  EXPECT_EQ(at("brain").format, QuantFormat::kBF16);
  EXPECT_EQ(at("scalar").elements(), 1);
  EXPECT_EQ(at("none").elements(), 0);
  EXPECT_TRUE(at("none").data.empty());
}

// Every dtype of the format has its own element size: one byte more or less is refused.
TEST(Safetensors, KnowsEveryDtype) {
  const std::pair<const char*, size_t> types[] = {
      {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
      {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}};
  for (const auto& [name, size] : types) {
    const auto sound = parse(SafetensorsBuilder().add("t", name, {5}, std::string(5 * size, 'z')).build());
    ASSERT_TRUE(sound.ok()) << name << ": " << sound.error().message;
    EXPECT_EQ(sound->front().stored_type, name);
    expect_error(parse(SafetensorsBuilder().add("t", name, {5}, std::string(5 * size + 1, 'z')).build()),
                 ErrorCode::kInvalidFile, "bytes of data where its shape and dtype", "a.safetensors");
  }
}

// Padding after the header, metadata, unknown fields and a file without tensors are sound.
TEST(Safetensors, AcceptsWhatWritersAdd) {
  EXPECT_TRUE(parse(safetensors_file("{}      ", "")).ok());
  const auto tensors = parse(safetensors_file(
      R"({"__metadata__":{"format":"pt"},"t":{"shape":[1],"note":{"a":[1]},"dtype":"U8","data_offsets":[0,1]}}   )",
      "a"));
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  EXPECT_EQ(tensors->size(), 1u);
}

struct Broken {
  const char* header;
  size_t data_bytes;
  ErrorCode code;
  const char* part;
};

// One broken header each; the sentence says what is wrong and with which tensor.
TEST(Safetensors, RefusesEachKindOfBrokenHeader) {
  const ErrorCode bad = ErrorCode::kInvalidFile;
  const Broken cases[] = {
      {"", 0, bad, "the header is not valid JSON"},
      {"{\"t\":", 0, bad, "the header is not valid JSON"},
      {"[1]", 0, bad, "the header is not a JSON object"},
      {"{\"t\":{\"dtype\":\"U8\xff\"}}", 0, bad, "the header is not valid JSON"},
      {R"({"t":1})", 0, bad, "the entry of tensor 't' is not an object"},
      {R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, bad, "a tensor has an empty name"},
      {R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1, bad, "tensor 't' has no dtype"},
      {R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1, bad, "tensor 't' has no shape"},
      {R"({"t":{"dtype":"U8","shape":[1]}})", 1, bad, "tensor 't' has no data_offsets"},
      {R"({"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, bad, "states its dtype twice"},
      {R"({"t":{"dtype":3,"shape":[1],"data_offsets":[0,1]}})", 1, bad, "the dtype of tensor 't' is not a string"},
      {R"({"t":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, bad, "the shape of tensor 't' is not an array"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":{}}})", 1, bad,
       "the data_offsets of tensor 't' is not an array"},
      {R"({"t":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1, ErrorCode::kUnsupported, "the dtype 'F4'"},
      {R"({"t":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4, ErrorCode::kUnsupported, "the dtype 'f32'"},
      {R"({"t":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1, bad, "9 dimensions, more than 8"},
      {R"({"t":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, bad, "other than a whole number"},
      {R"({"t":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, bad, "other than a whole number"},
      {R"({"t":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1, bad, "other than a whole number"},
      {R"({"t":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1, bad,
       "other than a whole number"},
      {R"({"t":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", 1, bad, "not valid JSON"},
      {R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, bad, "overflows 63 bits"},
      {R"({"t":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0, bad, "overflows 63 bits"},
      {R"({"t":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", 0, bad, "overflows 63 bits"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, bad, "are not two numbers"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, bad, "are not two numbers"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1, bad, "are not whole numbers"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1.5]}})", 1, bad, "are not whole numbers"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[2,1]}})", 2, bad,
       "tensor 't' begins at byte 2, after its end at 1"},
      {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, bad,
       "has 4 bytes of data where its shape and dtype F32 need 8"},
      {R"({"t":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 8, bad,
       "ends at byte 9 of 8 bytes of data: the file is truncated"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
       7, bad, "the data of tensors 'a' and 'b' overlap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})",
       6, bad, "no tensor covers bytes 4 to 5"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5, bad, "no tensor covers bytes 0 to 1"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5, bad, "1 bytes follow the last tensor's data"},
      {"{}", 5, bad, "5 bytes follow the last tensor's data"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, bad, "tensor 'a' is listed twice"},
      {R"({"__metadata__":[]})", 0, bad, "__metadata__ is not an object"},
      {R"({"__metadata__":{"a":1}})", 0, bad, "__metadata__ entry 'a' is not a string"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, bad, "states __metadata__ twice"},
      {R"({"a\nb\u0001":1})", 0, bad, R"('a\x0Ab\x01')"},
  };
  for (const Broken& broken : cases) {
    SCOPED_TRACE(broken.header);
    expect_error(parse(safetensors_file(broken.header, std::string(broken.data_bytes, 'd'))), broken.code, broken.part,
                 "a.safetensors");
  }
}

// A header length that the file cannot hold is refused before anything of that size is allocated.
TEST(Safetensors, RefusesImpossibleHeaderLengths) {
  expect_error(parse("1234567"), ErrorCode::kInvalidFile, "too short", "a.safetensors");
  expect_error(parse(""), ErrorCode::kInvalidFile, "too short", "a.safetensors");
  expect_error(parse("\xff\xff\xff\xff\xff\xff\xff\xff{}"), ErrorCode::kInvalidFile, "more than 100000000",
               "a.safetensors");
  std::string file = safetensors_file("{}", "");
  file[0] = 3;
  expect_error(parse(file), ErrorCode::kInvalidFile, "3 bytes reaches past the end", "a.safetensors");
}

// A sound file cut at any length is refused, never read past its end.
TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file =
      SafetensorsBuilder().add("a", "F32", {2}, "01234567").add("b", "BF16", {3}, "012345").build();
  ASSERT_TRUE(parse(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    const std::string cut(file, 0, size);  // its own allocation, so that sanitizers see a read past it
    EXPECT_FALSE(parse(cut).ok()) << size;
  }
}

// The index gives (name, file) pairs in order, whatever else it holds.
TEST(SafetensorsIndex, ReadsTheWeightMap) {
  const auto index = parse_safetensors_index(
      R"({"metadata":{},"weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"mtp/1.safetensors"}})", "index");
  ASSERT_TRUE(index.ok()) << index.error().message;
  const SafetensorsIndex expected = {{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "mtp/1.safetensors"}};
  EXPECT_EQ(*index, expected);
}

// Broken indexes and file names that lead out of the folder are refused.
TEST(SafetensorsIndex, RefusesEachKindOfBrokenIndex) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "the index is not valid JSON"},
      {"7", "the index is not a JSON object"},
      {"{}", "no object 'weight_map'"},
      {R"({"weight_map":[]})", "no object 'weight_map'"},
      {R"({"weight_map":{}})", "the index lists no tensor"},
      {R"({"weight_map":{"a":1}})", "the file of tensor 'a' is not a string"},
      {R"({"weight_map":{"a":"x","a":"y"}})", "the index lists tensor 'a' twice"},
      {R"({"weight_map":{"a":"../x"}})", "'../x', which is not a file of this folder"},
      {R"({"weight_map":{"a":"s/../../x"}})", "which is not a file of this folder"},
      {R"({"weight_map":{"a":"./x"}})", "which is not a file of this folder"},
      {R"({"weight_map":{"a":"."}})", "which is not a file of this folder"},
      {R"({"weight_map":{"a":"x/"}})", "which is not a file of this folder"},
      {R"({"weight_map":{"a":"s//x"}})", "which is not a file of this folder"},
      {R"({"weight_map":{"a":"/etc/x"}})", "'/etc/x', which is not a file of this folder"},
      {R"({"weight_map":{"a":""}})", "which is not a file of this folder"},
      {R"({"weight_map":{"a":"x\u0000y"}})", R"('x\x00y', which is not a file of this folder)"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text);
    expect_error(parse_safetensors_index(text, "the.index"), ErrorCode::kInvalidFile, part, "the.index");
  }
}

// Foreign names are shown on one line, in valid UTF-8 and shortened.
TEST(Printable, EscapesAndShortens) {
  EXPECT_EQ(printable("plain"), "'plain'");
  EXPECT_EQ(printable("h\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), "'h\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80'");
  EXPECT_EQ(printable("\n\x7F\xC2\x85"), R"('\x0A\x7F\xC2\x85')");
  EXPECT_EQ(printable("\xC3(\xED\xA0\x80\xF5\x80\xE0\x80\x80\xF0\x80\x80\x80\xF4\x90\x80\x80"),
            R"('\xC3(\xED\xA0\x80\xF5\x80\xE0\x80\x80\xF0\x80\x80\x80\xF4\x90\x80\x80')");
  EXPECT_EQ(printable("\xE2\x82"), R"('\xE2\x82')");
  EXPECT_EQ(printable(std::string(200, 'a')), "'" + std::string(96, 'a') + "...'");
  // The bound is on what is written, so that two names of control bytes still make a short sentence.
  EXPECT_EQ(printable(std::string(200, '\x7F')).size(), 24 * 4 + 5);
  EXPECT_LT(printable("abc" + std::string(200, '\x7F')).size(), 96 + 8 + 5);
}

}  // namespace
}  // namespace foretoken
