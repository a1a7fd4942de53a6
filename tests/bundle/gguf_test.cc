// GGUF files: what is read from sound ones, and the sentence that refuses each kind of broken one.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "bundle/expect_error.h"
#include "bundle/formats.h"
#include "support/gguf_builder.h"

namespace foretoken {
namespace {

using testing::expect_error;
using testing::GgufBuilder;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Result<ParsedGguf> parse(std::string_view file) { return parse_gguf(bytes_of(file), "a.gguf"); }

template <class T>
std::string raw(T value) {
  return GgufBuilder::raw(value);
}

// One of each type, alone and as an array, with values at the ends of their ranges.
GgufBuilder every_metadata_type() {
  GgufBuilder file;
  file.value("u8", 0, raw(uint8_t{255})).value("i8", 1, raw(int8_t{-128}));
  file.value("u16", 2, raw(uint16_t{65535})).value("i16", 3, raw(int16_t{-32768}));
  file.value("u32", 4, raw(uint32_t{4294967295})).value("i32", 5, raw(std::numeric_limits<int32_t>::min()));
  file.value("f32", 6, raw(0.1f)).value("bool", 7, raw(uint8_t{1})).value("text", 8, GgufBuilder::text("h\xC3\xA9"));
  file.value("u64", 10, raw(std::numeric_limits<uint64_t>::max()))
      .value("i64", 11, raw(std::numeric_limits<int64_t>::min()));
  file.value("f64", 12, raw(0.1));
  file.value("u8s", 9, GgufBuilder::array(0, 2, "\x01\xff"));
  file.value("i8s", 9, GgufBuilder::array(1, 2, "\x01\xff"));
  file.value("u16s", 9, GgufBuilder::array(2, 1, raw(uint16_t{65535})));
  file.value("i16s", 9, GgufBuilder::array(3, 1, raw(int16_t{-2})));
  file.value("u32s", 9, GgufBuilder::array(4, 1, raw(uint32_t{4294967295})));
  file.value("i32s", 9, GgufBuilder::array(5, 2, raw(int32_t{-7}) + raw(int32_t{7})));
  file.value("f32s", 9, GgufBuilder::array(6, 2, raw(0.5f) + raw(-0.25f)));
  file.value("bools", 9, GgufBuilder::array(7, 3, std::string("\1\0\1", 3)));
  file.value("texts", 9,
             GgufBuilder::array(8, 3, GgufBuilder::text("a") + GgufBuilder::text("") + GgufBuilder::text("bc")));
  file.value("u64s", 9, GgufBuilder::array(10, 1, raw(uint64_t{std::numeric_limits<int64_t>::max()})));
  file.value("i64s", 9, GgufBuilder::array(11, 1, raw(std::numeric_limits<int64_t>::min())));
  file.value("f64s", 9, GgufBuilder::array(12, 1, raw(0.1)));
  file.value("empty", 9, GgufBuilder::array(8, 0, ""));
  return file;
}

// Every metadata type comes back with its value and its type in the file; accessors convert only without loss.
TEST(Gguf, ReadsEveryMetadataType) {
  const std::string file = every_metadata_type().build();
  const auto parsed = parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const auto& m = parsed->metadata;
  ASSERT_EQ(m.size(), 25u);
  EXPECT_EQ(m.at("u8").as_int(), 255);
  EXPECT_EQ(m.at("i8").as_int(), -128);
  EXPECT_EQ(m.at("u16").as_int(), 65535);
  EXPECT_EQ(m.at("i16").as_int(), -32768);
  EXPECT_EQ(m.at("u32").as_int(), 4294967295);
  EXPECT_EQ(m.at("i32").as_int(), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(m.at("u64").as_int(), std::nullopt);
  EXPECT_EQ(std::get<uint64_t>(m.at("u64").value), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(m.at("u64").as_double(), 18446744073709551616.0);
  EXPECT_EQ(m.at("i64").as_int(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(m.at("i32").as_double(), -2147483648.0);
  EXPECT_EQ(m.at("f32").as_double(), double{0.1f});
  EXPECT_EQ(m.at("f64").as_double(), 0.1);
  EXPECT_EQ(m.at("f64").as_int(), std::nullopt);
  EXPECT_EQ(m.at("bool").as_bool(), true);
  EXPECT_EQ(m.at("bool").as_int(), std::nullopt);
  EXPECT_EQ(m.at("bool").as_double(), std::nullopt);
  EXPECT_EQ(m.at("u8").as_bool(), std::nullopt);
  EXPECT_EQ(m.at("text").as_text(), "h\xC3\xA9");
  EXPECT_EQ(m.at("u8").as_text(), std::nullopt);
  EXPECT_FALSE(m.at("text").is_array());
  EXPECT_TRUE(m.at("u8s").is_array());
  EXPECT_EQ(*m.at("u8s").as_ints(), (std::vector<int64_t>{1, 255}));
  EXPECT_EQ(*m.at("i8s").as_ints(), (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(*m.at("u16s").as_ints(), (std::vector<int64_t>{65535}));
  EXPECT_EQ(*m.at("i16s").as_ints(), (std::vector<int64_t>{-2}));
  EXPECT_EQ(*m.at("u32s").as_ints(), (std::vector<int64_t>{4294967295}));
  EXPECT_EQ(*m.at("i32s").as_ints(), (std::vector<int64_t>{-7, 7}));
  EXPECT_EQ(*m.at("u64s").as_ints(), (std::vector<int64_t>{std::numeric_limits<int64_t>::max()}));
  EXPECT_EQ(*m.at("i64s").as_ints(), (std::vector<int64_t>{std::numeric_limits<int64_t>::min()}));
  EXPECT_EQ(*m.at("f32s").as_doubles(), (std::vector<double>{0.5, -0.25}));
  EXPECT_EQ(*m.at("f64s").as_doubles(), (std::vector<double>{0.1}));
  EXPECT_EQ(*m.at("bools").as_bools(), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(*m.at("texts").as_texts(), (std::vector<std::string_view>{"a", "", "bc"}));
  EXPECT_TRUE(m.at("empty").as_texts()->empty());
  const std::string_view text = *m.at("text").as_text();
  EXPECT_TRUE(text.data() > file.data() && text.data() < file.data() + file.size()) << "the text is not borrowed";
  const uint32_t types[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12};
  const char* names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "text", "u64", "i64", "f64"};
  for (size_t i = 0; i < std::size(types); ++i) {
    EXPECT_EQ(static_cast<uint32_t>(m.at(names[i]).type), types[i]) << names[i];
    EXPECT_EQ(static_cast<uint32_t>(m.at(std::string(names[i]) + "s").type), types[i]) << names[i];
  }
}

// Shapes are reversed, data is where the offsets say, and the alignment key moves it.
TEST(Gguf, ReadsTensorsAtEveryAlignment) {
  for (uint32_t alignment : {1u, 8u, 32u, 64u, 4096u}) {
    GgufBuilder builder;
    builder.alignment = alignment;
    builder.u32("general.alignment", alignment);
    builder.tensor("m", {32, 3, 2}, 8, std::string(34 * 6, 'q'));
    builder.tensor("v", {5}, 0, "01234567890123456789");
    builder.tensor("s", {}, 27, "8 bytes!");
    builder.tensor("z", {32, 0}, 2, "");
    const std::string file = builder.build();
    const auto parsed = parse(file);
    ASSERT_TRUE(parsed.ok()) << alignment << ": " << parsed.error().message;
    EXPECT_EQ(parsed->alignment, alignment);
    ASSERT_EQ(parsed->tensors.size(), 4u);
    const TensorInfo& m = parsed->tensors[0];
    EXPECT_EQ(m.shape, (std::vector<int64_t>{2, 3, 32}));
    EXPECT_EQ(m.format, QuantFormat::kQ8_0);
    EXPECT_EQ(m.stored_type, "Q8_0");
    EXPECT_EQ(m.data.size(), 34u * 6);
    EXPECT_EQ(static_cast<char>(m.data[0]), 'q');
    EXPECT_EQ(static_cast<size_t>(m.data.data() - bytes_of(file).data()) % alignment, 0u);
    EXPECT_EQ(static_cast<char>(parsed->tensors[1].data[19]), '9');
    EXPECT_EQ(parsed->tensors[2].elements(), 1);
    EXPECT_FALSE(parsed->tensors[2].format.has_value());
    EXPECT_TRUE(parsed->tensors[3].data.empty());
  }
}

// Version 2 has the same layout; a file may hold no tensors; gaps between tensors are allowed.
TEST(Gguf, AcceptsVersionTwoNoTensorsAndGaps) {
  GgufBuilder two;
  two.version = 2;
  two.str("general.architecture", "x");
  EXPECT_TRUE(parse(two.build()).ok());
  EXPECT_TRUE(parse(two.header()).ok());  // no tensors: not even padding is needed
  GgufBuilder gap;
  gap.info("b", {1}, 24, 64).info("a", {1}, 24, 0).data(std::string(65, 'x'));
  EXPECT_TRUE(parse(gap.build()).ok());
}

// The table of block sizes agrees with numerics for every format that is run, and sizes are checked for all others too:
// two rows of one block are accepted with their exact size and refused with one byte less.
TEST(Gguf, ChecksTheSizeOfEveryType) {
  std::set<uint32_t> ids;
  for (const GgmlType& type : ggml_types()) {
    ids.insert(type.id);
    const auto elements = static_cast<uint64_t>(type.block_elements);
    const std::string data(static_cast<size_t>(2 * type.block_bytes), 'x');
    const auto parsed = parse(GgufBuilder().tensor("t", {elements, 2}, type.id, data).build());
    ASSERT_TRUE(parsed.ok()) << type.name << ": " << parsed.error().message;
    EXPECT_EQ(parsed->tensors[0].stored_type, type.name);
    EXPECT_EQ(parsed->tensors[0].data.size(), data.size());
    expect_error(parse(GgufBuilder().tensor("t", {elements, 2}, type.id, data.substr(1)).build()),
                 ErrorCode::kInvalidFile, "reaches past the", "a.gguf");
    if (elements > 1)
      expect_error(parse(GgufBuilder().tensor("t", {elements + 1}, type.id, data).build()), ErrorCode::kInvalidFile,
                   "not a multiple of", "a.gguf");
  }
  EXPECT_EQ(ids.size(), ggml_types().size());
  for (int i = 0; i < kQuantFormatCount; ++i) {
    const FormatInfo& info = format_info(static_cast<QuantFormat>(i));
    const GgmlType* type = ggml_type(info.ggml_type);
    ASSERT_NE(type, nullptr) << info.name;
    EXPECT_EQ(type->name, info.name);
    EXPECT_EQ(type->block_elements, info.block_elements) << info.name;
    EXPECT_EQ(type->block_bytes, info.block_bytes) << info.name;
  }
  // Bits per weight as the community states them: independent of both tables.
  const std::pair<uint32_t, double> bits[] = {
      {2, 4.5},     {3, 5.0},     {6, 5.5},     {7, 6.0},     {8, 8.5},     {10, 2.625},  {11, 3.4375}, {12, 4.5},
      {13, 5.5},    {14, 6.5625}, {16, 2.0625}, {17, 2.3125}, {18, 3.0625}, {19, 1.5625}, {20, 4.5},    {21, 3.4375},
      {22, 2.5625}, {23, 4.25},   {29, 1.75},   {34, 1.6875}, {35, 2.0625}, {39, 4.25},   {40, 4.5},    {41, 1.125}};
  for (const auto& [id, expected] : bits) {
    const GgmlType* type = ggml_type(id);
    ASSERT_NE(type, nullptr) << id;
    EXPECT_EQ(8.0 * static_cast<double>(type->block_bytes) / static_cast<double>(type->block_elements), expected)
        << type->name;
  }
}

struct Broken {
  const char* part;
  ErrorCode code;
  std::function<std::string()> file;
};

// One broken file each; the sentence says what is wrong and with which key or tensor.
TEST(Gguf, RefusesEachKindOfBrokenFile) {
  const ErrorCode bad = ErrorCode::kInvalidFile, unsupported = ErrorCode::kUnsupported;
  const auto with = [](auto change) {
    return [change] {
      GgufBuilder b;
      change(b);
      return b.build();
    };
  };
  const uint64_t huge = std::numeric_limits<uint64_t>::max();
  const std::string byte = "x";
  const Broken cases[] = {
      {"it does not begin with 'GGUF'", bad, with([](auto& b) { b.magic = "GGML"; })},
      {"it does not begin with 'GGUF'", bad, with([](auto& b) { b.magic = "FUGG"; })},
      {"GGUF version 1, which is no longer read", unsupported, with([](auto& b) { b.version = 1; })},
      {"GGUF version 4: this build reads versions 2 and 3", unsupported, with([](auto& b) { b.version = 4; })},
      {"GGUF version 0: this build reads versions 2 and 3", unsupported, with([](auto& b) { b.version = 0; })},
      {"a big-endian GGUF file", unsupported, with([](auto& b) { b.version = 0x03000000; })},
      {"metadata entries cannot fit", bad, with([](auto& b) { b.value_count = std::numeric_limits<int64_t>::max(); })},
      {"metadata entries cannot fit", bad, with([](auto& b) { b.value_count = 3; })},
      {"tensors cannot fit", bad, with([](auto& b) { b.tensor_count = std::numeric_limits<int64_t>::max(); })},
      {"the file ends inside a tensor's name", bad,
       [] {
         GgufBuilder b;
         b.tensor(std::string(40, 'n'), {1}, 24, "x");
         b.tensor_count = 2;
         return b.header() + "1234567";
       }},
      {"a metadata key has a length of", bad, with([&](auto& b) {
         b.value_count = 1;
         b.data(raw(huge) + std::string(32, 'x'));
         b.alignment = 1;
       })},
      {"a metadata key has 65536 bytes", bad, with([](auto& b) { b.u32(std::string(65536, 'k'), 1); })},
      {"the metadata value 'k' has the unknown type 13", bad, with([](auto& b) { b.value("k", 13, "12345678"); })},
      {"the metadata value 'k' has a length of", bad, with([&](auto& b) { b.value("k", 8, raw(huge)); })},
      {"the metadata value 'k' has a length of 100 bytes", bad,
       with([&](auto& b) { b.value("k", 8, raw(uint64_t{100})); })},
      {"the metadata key 'k' occurs twice", bad, with([](auto& b) { b.u32("k", 1).u32("k", 1); })},
      {"holds the byte 2 where a truth value", bad, with([](auto& b) { b.value("k", 7, "\2"); })},
      {"holds the byte 3 where a truth value", bad,
       with([](auto& b) { b.value("k", 9, GgufBuilder::array(7, 2, "\1\3")); })},
      {"the metadata value 'k' is an array of arrays", unsupported,
       with([](auto& b) { b.value("k", 9, GgufBuilder::array(9, 1, GgufBuilder::array(0, 1, "x"))); })},
      {"an array of the unknown type 77", bad, with([](auto& b) { b.value("k", 9, GgufBuilder::array(77, 0, "")); })},
      {"claims 18446744073709551615 elements", bad,
       with([&](auto& b) { b.value("k", 9, GgufBuilder::array(0, huge, "x")); })},
      {"claims 2305843009213693952 elements", bad,
       with([](auto& b) { b.value("k", 9, GgufBuilder::array(8, uint64_t{1} << 61, "x")); })},
      {"claims 100 elements", bad, with([](auto& b) { b.value("k", 9, GgufBuilder::array(10, 100, "x")); })},
      {"the metadata value 'k' has a length of 99 bytes", bad,
       with([](auto& b) { b.value("k", 9, GgufBuilder::array(8, 2, GgufBuilder::text("a") + raw(uint64_t{99}))); })},
      {"which is more than 2^63 - 1", unsupported,
       with([&](auto& b) { b.value("k", 9, GgufBuilder::array(10, 1, raw(huge))); })},
      {"general.alignment is not a power of two", bad, with([](auto& b) { b.u32("general.alignment", 0); })},
      {"general.alignment is not a power of two", bad, with([](auto& b) { b.u32("general.alignment", 48); })},
      {"general.alignment is not a power of two", bad, with([](auto& b) { b.str("general.alignment", "32"); })},
      {"general.alignment is not a power of two", bad,
       with([](auto& b) { b.value("general.alignment", 5, raw(int32_t{-32})); })},
      {"general.alignment is not a power of two", bad,
       with([](auto& b) { b.value("general.alignment", 10, raw(uint64_t{1} << 62)); })},
      {"a tensor has an empty name", bad, with([&](auto& b) { b.tensor("", {1}, 24, byte); })},
      {"a tensor's name has 65536 bytes", bad,
       with([&](auto& b) { b.tensor(std::string(65536, 'n'), {1}, 24, byte); })},
      {"tensor 't' has 5 dimensions, more than 4", bad, with([&](auto& b) {
         b.tensor("t", {1, 1, 1, 1, 1}, 24, byte);
       })},
      {"tensor 't' has the ggml type 4, which is not known", unsupported,
       with([&](auto& b) { b.tensor("t", {1}, 4, byte); })},
      {"tensor 't' has the ggml type 4294967295,", unsupported,
       with([&](auto& b) { b.tensor("t", {1}, 0xFFFFFFFF, byte); })},
      {"rows of 255 elements, not a multiple of the 256 elements of a Q4_K block", bad, with([&](auto& b) {
         b.tensor("t", {255, 2}, 12, std::string(300, 'x'));
       })},
      {"the size of tensor 't' overflows", bad, with([&](auto& b) {
         b.tensor("t", {1u << 31, 1u << 31, 2}, 24, byte);
       })},
      {"the size of tensor 't' overflows", bad, with([&](auto& b) { b.tensor("t", {uint64_t{1} << 62}, 27, byte); })},
      {"the size of tensor 't' overflows", bad, with([&](auto& b) { b.tensor("t", {uint64_t{1} << 63}, 24, byte); })},
      {"the size of tensor 't' overflows", bad, with([&](auto& b) {
         b.tensor("t", {0, uint64_t{1} << 40, uint64_t{1} << 40}, 24, byte);
       })},
      {"begins at byte 16, not a multiple of the alignment 32", bad,
       with([&](auto& b) { b.info("t", {1}, 24, 16).data(std::string(64, 'x')); })},
      {"tensor 't' of 4 bytes at 32 reaches past the 35 bytes", bad,
       with([&](auto& b) { b.info("t", {4}, 24, 32).data(std::string(35, 'x')); })},
      {"tensor 't' of 4 bytes at 18446744073709551584 reaches past", bad,
       with([&](auto& b) { b.info("t", {4}, 24, huge - 31).data(std::string(35, 'x')); })},
      {"the data of tensors 'a' and 'b' overlap", bad,
       with([](auto& b) { b.info("b", {4}, 24, 32).info("a", {33}, 24, 0).data(std::string(64, 'x')); })},
      {"the data of tensors 'a' and 'b' overlap", bad,
       with([](auto& b) { b.info("a", {4}, 24, 0).info("b", {4}, 24, 0).data(std::string(64, 'x')); })},
      {"tensor 't' is listed twice", bad, with([](auto& b) { b.tensor("t", {1}, 24, "x").tensor("t", {1}, 24, "y"); })},
      {"the file ends inside the padding before its data", bad,
       [] {
         GgufBuilder b;
         b.info("t", {0}, 24, 0);
         return b.header();
       }},
  };
  for (const Broken& broken : cases) {
    SCOPED_TRACE(broken.part);
    expect_error(parse(broken.file()), broken.code, broken.part, "a.gguf");
  }
}

// More values than any model has are refused, though the file could hold them: memory stays bounded.
TEST(Gguf, BoundsTheMetadata) {
  const size_t half = kMaxMetadataElements / 2;
  GgufBuilder builder;
  builder.value("a", 9, GgufBuilder::array(0, half, std::string(half, 'x')));
  const std::string once = builder.build();
  EXPECT_TRUE(parse(once).ok());
  builder.value("b", 9, GgufBuilder::array(0, half, std::string(half, 'x')));
  expect_error(parse(builder.build()), ErrorCode::kInvalidFile, "the metadata value 'b' brings the metadata to",
               "a.gguf");
}

// A sound file cut anywhere is refused with a sentence, never read past its end.
TEST(Gguf, RefusesEveryTruncation) {
  GgufBuilder builder = every_metadata_type();
  builder.tensor("a", {32, 2}, 8, std::string(68, 'q')).tensor("b", {3}, 0, "0123456789ab");
  const std::string file = builder.build();
  ASSERT_TRUE(parse(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    const std::string cut(file, 0, size);  // its own allocation, so that sanitizers see a read past it
    const auto parsed = parse(cut);
    ASSERT_FALSE(parsed.ok()) << size;
    EXPECT_NE(parsed.error().message.find("a.gguf: "), std::string::npos);
  }
}

}  // namespace
}  // namespace foretoken
