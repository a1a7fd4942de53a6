// The GGUF writer, read back by the parser: values, shapes, bytes, alignment; and files that appear only when complete.
#include "bundle/gguf_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bundle/expect_error.h"
#include "bundle/formats.h"
#include "support/gguf_builder.h"
#include "support/temp_dir.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::GgufBuilder;
using testing::TempDir;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string pattern(size_t size, int seed) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 131 + static_cast<size_t>(seed) * 17 + i / 251);
  return bytes;
}

size_t files_in(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// Metadata of every type, alone and in arrays, comes back equal in value and in type.
GgufPlan every_metadata_type() {
  GgufPlan plan;
  auto& m = plan.metadata;
  m.emplace_back("general.architecture", GgufValue::text("toy"));
  m.emplace_back("u8", GgufValue{uint64_t{255}, GgufType::kU8});
  m.emplace_back("i8", GgufValue{int64_t{-128}, GgufType::kI8});
  m.emplace_back("u16", GgufValue::u16(65535));
  m.emplace_back("i16", GgufValue{int64_t{-32768}, GgufType::kI16});
  m.emplace_back("u32", GgufValue::u32(4294967295));
  m.emplace_back("i32", GgufValue::i32(std::numeric_limits<int32_t>::min()));
  m.emplace_back("f32", GgufValue::f32(0.1f));
  m.emplace_back("bool", GgufValue::boolean(true));
  m.emplace_back("u64", GgufValue{std::numeric_limits<uint64_t>::max(), GgufType::kU64});
  m.emplace_back("i64", GgufValue{std::numeric_limits<int64_t>::min(), GgufType::kI64});
  m.emplace_back("f64", GgufValue{0.1, GgufType::kF64});
  m.emplace_back("u8s", GgufValue{std::vector<int64_t>{0, 255}, GgufType::kU8});
  m.emplace_back("i16s", GgufValue{std::vector<int64_t>{-32768, 32767}, GgufType::kI16});
  m.emplace_back("u32s", GgufValue{std::vector<int64_t>{4294967295}, GgufType::kU32});
  m.emplace_back("i32s", GgufValue::i32s({-1, 0, 1}));
  m.emplace_back("i64s", GgufValue{std::vector<int64_t>{std::numeric_limits<int64_t>::min()}, GgufType::kI64});
  m.emplace_back("f32s", GgufValue::f32s({0.5, -0.25}));
  m.emplace_back("f64s", GgufValue{std::vector<double>{0.1}, GgufType::kF64});
  m.emplace_back("bools", GgufValue::bools({true, false, true}));
  m.emplace_back("texts", GgufValue::texts({"a", "", "h\xC3\xA9"}));
  m.emplace_back("none", GgufValue::texts({}));
  return plan;
}

TEST(GgufWriter, MetadataOfEveryTypeRoundTrips) {
  const TempDir dir;
  const GgufPlan plan = every_metadata_type();
  auto writer = GgufWriter::create(dir.path() / "a.gguf", plan);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ASSERT_TRUE(writer->finish().ok());
  const auto file = MappedFile::open(dir.path() / "a.gguf");
  ASSERT_TRUE(file.ok());
  const auto parsed = parse_gguf(file->bytes(), "a.gguf");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->version, 3u);
  ASSERT_EQ(parsed->metadata.size(), plan.metadata.size());
  for (const auto& [key, value] : plan.metadata) {
    ASSERT_TRUE(parsed->metadata.contains(key)) << key;
    EXPECT_TRUE(parsed->metadata.at(key).value == value.value) << key;
    EXPECT_EQ(parsed->metadata.at(key).type, value.type) << key;
  }
}

// The bytes on disk are those of the format: compared with a file put together by hand.
TEST(GgufWriter, WritesTheExactLayout) {
  const TempDir dir;
  GgufPlan plan;
  plan.metadata.emplace_back("general.architecture", GgufValue::text("toy"));
  plan.metadata.emplace_back("n", GgufValue::u32(7));
  plan.metadata.emplace_back("list", GgufValue::i32s({1, -1}));
  plan.tensors.push_back({"m", 8, {2, 32}});
  plan.tensors.push_back({"v", 0, {3}});
  GgufBuilder expected;
  expected.str("general.architecture", "toy").u32("n", 7);
  expected.value("list", 9, GgufBuilder::array(5, 2, GgufBuilder::raw(1) + GgufBuilder::raw(-1)));
  expected.tensor("m", {32, 2}, 8, pattern(68, 1)).tensor("v", {3}, 0, pattern(12, 2)).data(std::string(20, '\0'));

  auto writer = GgufWriter::create(dir.path() / "a.gguf", plan);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ASSERT_TRUE(writer->append(bytes_of(pattern(68, 1))).ok());
  ASSERT_TRUE(writer->append(bytes_of(pattern(12, 2))).ok());
  const uint64_t promised = writer->file_bytes();
  ASSERT_TRUE(writer->finish().ok());
  const auto content = read_file(dir.path() / "a.gguf");
  ASSERT_TRUE(content.ok());
  EXPECT_TRUE(*content == expected.build());
  EXPECT_EQ(content->size(), promised);
  EXPECT_EQ(content->size() % 32, 0u);
}

// Tensors of every stored type, streamed in pieces of awkward sizes, come back byte for byte at aligned places.
TEST(GgufWriter, TensorsStreamedInPiecesRoundTrip) {
  const TempDir dir;
  GgufPlan plan;
  for (const GgmlType& type : ggml_types())
    plan.tensors.push_back({"t." + std::string(type.name), type.id, {3, 2 * type.block_elements}});
  plan.tensors.push_back({"empty", 0, {0, 4}});
  plan.tensors.push_back({"scalar", 0, {}});
  plan.tensors.push_back({"four", 24, {2, 1, 3, 5}});
  auto writer = GgufWriter::create(dir.path() / "a.gguf", plan);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const std::string data = pattern(gguf_tensor_bytes(plan.tensors[i]), static_cast<int>(i));
    for (size_t at = 0; at < data.size(); at += 13)
      ASSERT_TRUE(writer->append(bytes_of(std::string_view(data).substr(at, 13))).ok());
  }
  ASSERT_TRUE(writer->finish().ok());
  const auto bundle = Bundle::open(dir.path() / "a.gguf");
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  ASSERT_EQ(bundle->tensors().size(), plan.tensors.size());
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorInfo* tensor = bundle->find(plan.tensors[i].name);
    ASSERT_NE(tensor, nullptr) << plan.tensors[i].name;
    EXPECT_EQ(tensor->shape, plan.tensors[i].shape);
    const std::string expected = pattern(gguf_tensor_bytes(plan.tensors[i]), static_cast<int>(i));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size()), expected)
        << tensor->name;
    EXPECT_EQ(static_cast<size_t>(tensor->data.data() - bundle->files()[0].bytes().data()) % 32, 0u) << tensor->name;
  }
}

// Metadata read from one file is written to another unchanged, but for the alignment, which is the writer's.
TEST(GgufWriter, CopiesMetadataOfAnotherFile) {
  const TempDir dir;
  GgufBuilder source;
  source.alignment = 64;
  source.u32("general.alignment", 64).value("f", 6, GgufBuilder::raw(0.1f)).str("s", "x").tensor("t", {1}, 24, "x");
  dir.write("source.gguf", source.build());
  const auto bundle = Bundle::open(dir.path() / "source.gguf");
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  GgufPlan plan;
  for (const auto& [key, value] : bundle->metadata()) plan.metadata.emplace_back(key, value);
  plan.tensors.push_back({"t", 24, {1}});
  auto writer = GgufWriter::create(dir.path() / "copy.gguf", plan);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ASSERT_TRUE(writer->append(bundle->tensors()[0].data).ok());
  ASSERT_TRUE(writer->finish().ok());
  const auto copy = Bundle::open(dir.path() / "copy.gguf");
  ASSERT_TRUE(copy.ok()) << copy.error().message;
  EXPECT_EQ(copy->metadata().size(), 2u);
  EXPECT_EQ(copy->metadata().at("f").as_double(), double{0.1f});
  EXPECT_FALSE(copy->metadata().contains("general.alignment"));
}

// Nothing appears under the name before finish(), an abandoned writer leaves nothing, and an old file stays until then.
TEST(GgufWriter, AppearsOnlyWhenFinished) {
  const TempDir dir;
  dir.write("a.gguf", "old");
  const GgufPlan plan{{}, {{"t", 24, {4}}}};
  {
    auto writer = GgufWriter::create(dir.path() / "a.gguf", plan);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->append(bytes_of("12")).ok());
    EXPECT_EQ(files_in(dir.path()), 2u);
    EXPECT_EQ(*read_file(dir.path() / "a.gguf"), "old");
  }
  EXPECT_EQ(files_in(dir.path()), 1u);
  EXPECT_EQ(*read_file(dir.path() / "a.gguf"), "old");
  auto writer = GgufWriter::create(dir.path() / "a.gguf", plan);
  ASSERT_TRUE(writer.ok());
  GgufWriter moved = *std::move(writer);
  ASSERT_TRUE(moved.append(bytes_of("1234")).ok());
  ASSERT_TRUE(moved.finish().ok());
  EXPECT_EQ(files_in(dir.path()), 1u);
  EXPECT_TRUE(Bundle::open(dir.path() / "a.gguf").ok());
}

// Plans that are no GGUF file, and places that cannot be written, are refused with a sentence.
TEST(GgufWriter, RefusesImpossiblePlans) {
  const TempDir dir;
  const auto refuse = [&](GgufPlan plan, std::string_view part) {
    SCOPED_TRACE(part);
    expect_error(GgufWriter::create(dir.path() / "a.gguf", plan), ErrorCode::kUsage, part, "a.gguf");
  };
  refuse({{{"", GgufValue::u32(1)}}, {}}, "is empty or too long");
  refuse({{{"k", GgufValue::u32(1)}, {"k", GgufValue::u32(2)}}, {}}, "metadata key 'k' is given twice");
  refuse({{{"k", GgufValue{uint64_t{256}, GgufType::kU8}}}, {}}, "value of 'k' does not fit its type");
  refuse({{{"k", GgufValue{uint64_t{65536}, GgufType::kU16}}}, {}}, "does not fit its type");
  refuse({{{"k", GgufValue{uint64_t{1} << 32, GgufType::kU32}}}, {}}, "does not fit its type");
  refuse({{{"k", GgufValue{int64_t{128}, GgufType::kI8}}}, {}}, "does not fit its type");
  refuse({{{"k", GgufValue{int64_t{32768}, GgufType::kI16}}}, {}}, "does not fit its type");
  refuse({{{"k", GgufValue{int64_t{1} << 31, GgufType::kI32}}}, {}}, "does not fit its type");
  refuse({{{"k", GgufValue{int64_t{1}, GgufType::kText}}}, {}}, "does not fit its type");
  refuse({{{"k", GgufValue{0.5, GgufType::kU32}}}, {}}, "does not fit its type");
  refuse({{{"k", GgufValue{true, GgufType::kU8}}}, {}}, "does not fit its type");
  refuse({{{"k", GgufValue{std::string_view("x"), GgufType::kArray}}}, {}}, "does not fit its type");
  refuse({{{"k", GgufValue{std::vector<int64_t>{-1}, GgufType::kU64}}}, {}}, "does not fit its type");
  refuse({{{"k", GgufValue{std::vector<int64_t>{}, GgufType::kF32}}}, {}}, "does not fit its type");
  refuse({{}, {{"", 24, {1}}}}, "tensor name '' is empty");
  refuse({{}, {{"t", 24, {1}}, {"t", 24, {1}}}}, "tensor name 't' is given twice");
  refuse({{}, {{"t", 5, {1}}}}, "tensor 't' has the unknown ggml type 5");
  refuse({{}, {{"t", 24, {1, 1, 1, 1, 1}}}}, "has 5 dimensions, more than 4");
  refuse({{}, {{"t", 24, {-1}}}}, "shape of tensor 't' is negative or too large");
  refuse({{}, {{"t", 24, {int64_t{1} << 40, int64_t{1} << 40}}}}, "is negative or too large");
  refuse({{}, {{"t", 12, {2, 255}}}}, "rows of tensor 't' are not whole Q4_K blocks of 256 elements");
  refuse({{}, {{"t", 8, {}}}}, "are not whole Q8_0 blocks of 32 elements");
  EXPECT_EQ(files_in(dir.path()), 0u);
  expect_error(GgufWriter::create(dir.path() / "absent" / "a.gguf", GgufPlan{}), ErrorCode::kNotFound, "cannot create",
               "a.gguf");
}

}  // namespace
}  // namespace foretoken
