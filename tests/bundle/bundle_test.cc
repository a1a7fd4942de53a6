// Bundle::open: which files make up a model, what is noted, what is refused, and what the fingerprint depends on.
#include "bundle/bundle.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <set>
#include <thread>

#include "bundle/expect_error.h"
#include "support/gguf_builder.h"
#include "support/safetensors_builder.h"
#include "support/shared.h"
#include "support/temp_dir.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::GgufBuilder;
using testing::SafetensorsBuilder;
using testing::TempDir;

const std::string kConfig = R"({"model_type":"toy","layers":3})";

std::string one_tensor(std::string_view name, std::string_view data = "0123") {
  return SafetensorsBuilder().add(name, "BF16", {static_cast<int64_t>(data.size() / 2)}, data).build();
}

// An index that places names[i] in files[i].
std::string index_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string map;
  for (const auto& [name, file] : entries) map += (map.empty() ? "\"" : ",\"") + name + "\":\"" + file + "\"";
  return R"({"metadata":{},"weight_map":{)" + map + "}}";
}

std::string all_notes(const Bundle& bundle) {
  std::string text;
  for (const std::string& note : bundle.notes()) text += note + "\n";
  return text;
}

Bundle open_sound(const fs::path& path) {
  auto bundle = Bundle::open(path);
  if (!bundle.ok()) ADD_FAILURE() << bundle.error().message;
  return bundle.ok() ? *std::move(bundle) : Bundle();
}

// A single file with its configuration: everything the header promises about a safetensors bundle.
TEST(Bundle, OpensASingleSafetensorsFile) {
  const TempDir dir;
  dir.write("model.safetensors",
            SafetensorsBuilder().add("z", "F32", {1, 2}, "01234567").add("a", "I64", {1}, "abcdefgh").build());
  dir.write("config.json", kConfig);
  dir.write("generation_config.json", R"({"eos_token_id":[1,2]})");
  dir.write("tokenizer.json", "{}");
  const Bundle bundle = open_sound(dir.path());
  EXPECT_EQ(bundle.format(), BundleFormat::kSafetensors);
  EXPECT_EQ(bundle_format_name(bundle.format()), "safetensors");
  EXPECT_EQ(bundle.path(), dir.path());
  EXPECT_EQ(bundle.folder(), dir.path());
  ASSERT_EQ(bundle.tensors().size(), 2u);
  EXPECT_EQ(bundle.tensors()[0].name, "a");
  EXPECT_EQ(bundle.tensors()[1].name, "z");
  EXPECT_EQ(bundle.find("z")->format, QuantFormat::kF32);
  EXPECT_FALSE(bundle.find("a")->format.has_value());
  EXPECT_EQ(bundle.find("b"), nullptr);
  EXPECT_EQ(bundle.find("zz"), nullptr);
  EXPECT_EQ(bundle.tensor_bytes(), 16u);
  EXPECT_EQ(bundle.config().at("layers"), 3);
  EXPECT_EQ(bundle.generation_config().at("eos_token_id").size(), 2u);
  EXPECT_TRUE(bundle.metadata().empty());
  EXPECT_TRUE(bundle.notes().empty()) << all_notes(bundle);
  EXPECT_EQ(*bundle.side_file("tokenizer.json"), "{}");
  expect_error(bundle.side_file("chat_template.jinja"), ErrorCode::kNotFound, "no such file in the bundle",
               "chat_template.jinja");
  bundle.release(*bundle.find("z"));
  EXPECT_EQ(static_cast<char>(bundle.find("z")->data[7]), '7');
}

// Without config.json the weights still open; its absence is noted.
TEST(Bundle, NotesAnAbsentConfiguration) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a"));
  const Bundle bundle = open_sound(dir.path());
  EXPECT_TRUE(bundle.config().is_null());
  EXPECT_TRUE(bundle.generation_config().is_null());
  EXPECT_NE(all_notes(bundle).find("no config.json"), std::string::npos);
}

// The index selects the shards, their headers give the names: unlisted tensors count, listed ones that are absent are
// noted, files that the index does not name are not opened.
TEST(Bundle, TheIndexSelectsShardsAndHeadersGiveNames) {
  const TempDir dir;
  dir.write("config.json", kConfig);
  dir.write("one.safetensors",
            SafetensorsBuilder().add("a", "BF16", {1}, "aa").add("unlisted", "BF16", {1}, "uu").build());
  dir.write("sub/two.safetensors", one_tensor("b"));
  dir.write("mtp.safetensors", one_tensor("mtp.x"));
  dir.write("model.safetensors", "not read, since there is an index");
  dir.write("model.safetensors.index.json",
            index_of({{"a", "one.safetensors"}, {"b", "sub/two.safetensors"}, {"ghost", "one.safetensors"}}));
  const Bundle bundle = open_sound(dir.path());
  EXPECT_EQ(bundle.tensors().size(), 3u);
  ASSERT_NE(bundle.find("unlisted"), nullptr);
  EXPECT_EQ(bundle.find("mtp.x"), nullptr);
  EXPECT_EQ(bundle.files()[size_t(bundle.find("b")->file)].path().filename(), "two.safetensors");
  EXPECT_EQ(all_notes(bundle), "the index names 'ghost' that no shard holds\n");
}

// A missing shard is an error that names it, except when it holds nothing but the optional head.
TEST(Bundle, MissingShards) {
  const TempDir dir;
  dir.write("config.json", kConfig);
  dir.write("one.safetensors", one_tensor("a"));
  dir.write(
      "model.safetensors.index.json",
      index_of({{"a", "one.safetensors"}, {"mtp.fc.weight", "m.safetensors"}, {"model.mtp.norm", "m.safetensors"}}));
  const Bundle bundle = open_sound(dir.path());
  EXPECT_EQ(bundle.tensors().size(), 1u);
  EXPECT_EQ(all_notes(bundle),
            "the shard 'm.safetensors' is missing and with it the optional head it holds ('model.mtp.norm', "
            "'mtp.fc.weight')\n");
  dir.write("model.safetensors.index.json",
            index_of({{"a", "one.safetensors"}, {"mtp.fc.weight", "m.safetensors"}, {"mtpx", "m.safetensors"}}));
  expect_error(Bundle::open(dir.path()), ErrorCode::kInvalidFile,
               "the shard 'm.safetensors' is missing, the index places 2 tensors", dir.path().string());
  fs::create_directory(dir.path() / "m.safetensors");  // not a file: missing too
  expect_error(Bundle::open(dir.path()), ErrorCode::kInvalidFile, "the shard 'm.safetensors' is missing",
               dir.path().string());
}

// Long lists of absent names are shortened.
TEST(Bundle, ShortensLongNotes) {
  const TempDir dir;
  dir.write("config.json", kConfig);
  dir.write("one.safetensors", one_tensor("a"));
  std::vector<std::pair<std::string, std::string>> entries = {{"a", "one.safetensors"}};
  for (int i = 0; i < 1000; ++i) entries.emplace_back("ghost" + std::to_string(1000 + i), "one.safetensors");
  dir.write("model.safetensors.index.json", index_of(entries));
  const Bundle bundle = open_sound(dir.path());
  ASSERT_EQ(bundle.notes().size(), 1u);
  EXPECT_NE(bundle.notes()[0].find("'ghost1004' and 995 more"), std::string::npos) << bundle.notes()[0];
}

// One name in two shards is refused: which one is meant cannot be known.
TEST(Bundle, RefusesATensorInTwoShards) {
  const TempDir dir;
  dir.write("config.json", kConfig);
  dir.write("one.safetensors", one_tensor("a"));
  dir.write("two.safetensors", SafetensorsBuilder().add("a", "BF16", {1}, "xx").add("b", "BF16", {1}, "yy").build());
  dir.write("model.safetensors.index.json", index_of({{"a", "one.safetensors"}, {"b", "two.safetensors"}}));
  expect_error(Bundle::open(dir.path()), ErrorCode::kInvalidFile,
               "tensor 'a' is in both one.safetensors and two.safetensors", dir.path().string());
}

// Without an index, further safetensors files count beside model.safetensors, unless they repeat its tensors.
TEST(Bundle, ExtraFilesBesideASingleFile) {
  const TempDir dir;
  dir.write("config.json", kConfig);
  dir.write("model.safetensors", one_tensor("a"));
  dir.write("mtp.safetensors", one_tensor("mtp.x"));
  dir.write("consolidated.safetensors",
            SafetensorsBuilder().add("a", "BF16", {1}, "xx").add("c", "BF16", {1}, "yy").build());
  const Bundle bundle = open_sound(dir.path());
  EXPECT_EQ(bundle.tensors().size(), 2u);
  EXPECT_NE(bundle.find("mtp.x"), nullptr);
  EXPECT_EQ(all_notes(bundle), "'consolidated.safetensors' repeats tensors of model.safetensors and is left out\n");
  dir.write("mtp.safetensors", "broken");
  expect_error(Bundle::open(dir.path()), ErrorCode::kInvalidFile, "too short", "mtp.safetensors");
}

// Every path that is no bundle gets a sentence that says what would be one.
TEST(Bundle, RefusesPathsThatAreNoBundle) {
  const TempDir dir;
  expect_error(Bundle::open(dir.path() / "absent"), ErrorCode::kNotFound, "no such file or folder", "absent");
  expect_error(Bundle::open(dir.write("f", "") / "below"), ErrorCode::kNotFound, "no such file or folder", "below");
  expect_error(Bundle::open(""), ErrorCode::kNotFound, "no such file or folder", ": ");
  fs::create_directory(dir.path() / "empty");
  expect_error(Bundle::open(dir.path() / "empty"), ErrorCode::kInvalidFile,
               "holds no model: expected model.safetensors.index.json, model.safetensors or a .gguf file", "empty");
  ASSERT_EQ(::mkfifo((dir.path() / "pipe").c_str(), 0600), 0);
  expect_error(Bundle::open(dir.path() / "pipe"), ErrorCode::kUsage, "neither a file nor a folder", "pipe");
  expect_error(Bundle::open(dir.write("x.txt", "hello, this is text")), ErrorCode::kInvalidFile, "not a GGUF file",
               "x.txt");
  expect_error(Bundle::open(dir.write("x.gguf", "")), ErrorCode::kInvalidFile, "an empty file", "x.gguf");
  expect_error(Bundle::open(dir.write("l.gguf", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")),
               ErrorCode::kInvalidFile, "a Git LFS pointer", "l.gguf");
  expect_error(Bundle::open(dir.write("x.safetensors", one_tensor("a"))), ErrorCode::kUsage, "give the folder",
               "x.safetensors");
  for (const char* name : {"pytorch_model.bin", "m.pt", "m.PTH", "last.ckpt"})
    expect_error(Bundle::open(dir.write(name, "PK")), ErrorCode::kUnsupported, "a PyTorch checkpoint", name);
  dir.write("torch/pytorch_model.bin", "PK");
  expect_error(Bundle::open(dir.path() / "torch"), ErrorCode::kUnsupported, "a PyTorch checkpoint",
               "pytorch_model.bin");
  dir.write("mixed/model.safetensors.index.json", index_of({{"a", "pytorch_model.bin"}}));
  dir.write("mixed/pytorch_model.bin", "PK");
  expect_error(Bundle::open(dir.path() / "mixed"), ErrorCode::kUnsupported, "a PyTorch checkpoint",
               "pytorch_model.bin");
  dir.write("shards/model-00001-of-00002.safetensors", one_tensor("a"));
  expect_error(Bundle::open(dir.path() / "shards"), ErrorCode::kInvalidFile,
               "holds 'model-00001-of-00002.safetensors' but neither model.safetensors.index.json nor", "shards");
  dir.write("none/model.safetensors", testing::safetensors_file("{}", ""));
  expect_error(Bundle::open(dir.path() / "none"), ErrorCode::kInvalidFile, "holds no tensors", "none");
}

// Broken configurations are named; a configuration that is no object is broken.
TEST(Bundle, RefusesBrokenConfigurations) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a"));
  dir.write("config.json", "{");
  expect_error(Bundle::open(dir.path()), ErrorCode::kInvalidFile, "not valid JSON", "/config.json");
  dir.write("config.json", "[]");
  expect_error(Bundle::open(dir.path()), ErrorCode::kInvalidFile, "not a JSON object", "/config.json");
  dir.write("config.json", kConfig);
  dir.write("generation_config.json", "nope");
  expect_error(Bundle::open(dir.path()), ErrorCode::kInvalidFile, "not valid JSON", "generation_config.json");
}

// Checkpoints of packed integers and scales are recognised by their tensors and refused by the name of their format.
TEST(Bundle, RefusesPackedFormats) {
  struct Packed {
    std::vector<std::pair<const char*, const char*>> tensors;  // name, dtype of one byte or more
    const char* config;
    const char* part;
  };
  const Packed cases[] = {
      {{{"w.weight", "U8"}, {"w.scales", "U8"}}, R"({"quantization":{"bits":4,"group_size":64}})", "an MLX checkpoint"},
      {{{"w.weight", "U8"}, {"w.scales", "U8"}},
       R"({"quantization":{"bits":4},"quantization_config":{"bits":4}})",
       "an MLX checkpoint"},
      {{{"w.weight", "F8_E4M3"}, {"w.weight_scale_inv", "U8"}},
       R"({"quantization_config":{"quant_method":"fp8"}})",
       "a checkpoint with 'fp8' weights"},
      {{{"w.weight", "F8_E4M3"}},
       R"({"text_config":{"quantization_config":{"quant_method":"fp8"}}})",
       "a checkpoint with 'fp8' weights"},
      {{{"w.weight", "F8_E4M3"}}, "{}", "a checkpoint with FP8 or packed weights ('w.weight')"},
      {{{"w.weight_packed", "U8"}, {"w.weight_scale", "U8"}},
       R"({"quantization_config":{"quant_method":"compressed-tensors"}})",
       "'compressed-tensors' weights"},
      {{{"w.qweight", "U8"}, {"w.scales", "U8"}},
       R"({"quantization_config":{"quant_method":"gptq"}})",
       "'gptq' weights"},
  };
  for (const Packed& packed : cases) {
    SCOPED_TRACE(packed.part);
    const TempDir dir;
    SafetensorsBuilder file;
    for (const auto& [name, dtype] : packed.tensors) file.add(name, dtype, {1}, "x");
    dir.write("model.safetensors", file.build());
    dir.write("config.json", packed.config);
    expect_error(Bundle::open(dir.path()), ErrorCode::kUnsupported, packed.part, dir.path().string());
  }
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a"));
  dir.write("jang_config.json", "{}");
  expect_error(Bundle::open(dir.path()), ErrorCode::kUnsupported, "a JANG checkpoint", dir.path().string());
}

// A stale quantisation entry over plain weights is noted and otherwise ignored.
TEST(Bundle, NotesAStaleQuantisationEntry) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a"));
  dir.write("config.json", R"({"quantization":{"bits":4},"quantization_config":{"quant_method":"fp8"}})");
  const Bundle bundle = open_sound(dir.path());
  EXPECT_NE(all_notes(bundle).find("names the quantisation 'fp8' but no tensor is stored so"), std::string::npos);
}

// ---- GGUF

GgufBuilder shard(int number, int count, int total) {
  GgufBuilder file;
  file.value("split.no", 2, GgufBuilder::raw(static_cast<uint16_t>(number)));
  file.value("split.count", 2, GgufBuilder::raw(static_cast<uint16_t>(count)));
  file.value("split.tensors.count", 5, GgufBuilder::raw(int32_t{total}));
  return file;
}

// A .gguf file opens by its path and by the folder that holds nothing else to open.
TEST(Bundle, OpensAGgufFileAndItsFolder) {
  const TempDir dir;
  const fs::path file = dir.write("tiny.gguf", GgufBuilder()
                                                   .str("general.architecture", "toy")
                                                   .tensor("z", {2, 3}, 0, std::string(24, 'z'))
                                                   .tensor("a", {32}, 8, std::string(34, 'a'))
                                                   .build());
  dir.write("README.md", "text");
  for (const fs::path& path : {file, dir.path()}) {
    const Bundle bundle = open_sound(path);
    EXPECT_EQ(bundle.format(), BundleFormat::kGguf);
    EXPECT_EQ(bundle_format_name(bundle.format()), "gguf");
    EXPECT_EQ(bundle.path(), file);
    EXPECT_EQ(bundle.folder(), dir.path());
    ASSERT_EQ(bundle.tensors().size(), 2u);
    EXPECT_EQ(bundle.tensors()[0].name, "a");
    EXPECT_EQ(bundle.find("z")->shape, (std::vector<int64_t>{3, 2}));
    EXPECT_EQ(bundle.metadata().at("general.architecture").as_text(), "toy");
    EXPECT_TRUE(bundle.config().is_null());
    EXPECT_TRUE(bundle.notes().empty()) << all_notes(bundle);
    expect_error(bundle.side_file("tokenizer.json"), ErrorCode::kNotFound, "a GGUF file has no tokenizer.json",
                 "tiny.gguf");
  }
  dir.write("other.gguf", "x");
  expect_error(Bundle::open(dir.path()), ErrorCode::kUsage, "holds several GGUF models ('other.gguf', 'tiny.gguf')",
               dir.path().string());
  dir.write("model.safetensors", one_tensor("a"));
  EXPECT_EQ(open_sound(dir.path()).format(), BundleFormat::kSafetensors) << "safetensors come first in a folder";
}

// A file of metadata alone opens, for its tokenizer; a shard's name on a whole model is noted.
TEST(Bundle, GgufCornerCases) {
  const TempDir dir;
  const Bundle vocabulary = open_sound(dir.write("v.gguf", GgufBuilder().u32("a", 1).build()));
  EXPECT_EQ(vocabulary.metadata().at("a").as_int(), 1);
  EXPECT_EQ(all_notes(vocabulary), "the file holds metadata and no tensors\n");
  const fs::path renamed = dir.write("m-00001-of-00002.gguf", GgufBuilder().tensor("a", {1}, 24, "x").build());
  EXPECT_NE(all_notes(open_sound(renamed)).find("the file's name is that of a shard"), std::string::npos);
}

// Any shard of a split set opens the whole of it; metadata comes from the first shard, which may hold no tensors.
TEST(Bundle, OpensASplitSetFromAnyShard) {
  const TempDir dir;
  const std::string names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};
  dir.write(names[0], shard(0, 3, 2).str("general.architecture", "toy").build());
  dir.write(names[1], shard(1, 3, 2).tensor("a", {4}, 24, "aaaa").build());
  dir.write(names[2], shard(2, 3, 2).tensor("b", {4}, 24, "bbbb").build());
  for (const fs::path& path : {dir.path() / names[0], dir.path() / names[1], dir.path() / names[2], dir.path()}) {
    const Bundle bundle = open_sound(path);
    EXPECT_EQ(bundle.path(), dir.path() / names[0]);
    ASSERT_EQ(bundle.files().size(), 3u);
    EXPECT_EQ(bundle.tensors().size(), 2u);
    EXPECT_EQ(static_cast<char>(bundle.find("b")->data[0]), 'b');
    EXPECT_EQ(bundle.find("b")->file, 2);
    EXPECT_EQ(bundle.metadata().at("general.architecture").as_text(), "toy");
  }
}

// Every way in which a split set can disagree with itself.
TEST(Bundle, RefusesBrokenSplitSets) {
  const TempDir dir;
  const auto tensor = [](GgufBuilder builder, const char* name) {
    return builder.tensor(name, {4}, 24, "xxxx").build();
  };
  const auto expect = [&](const fs::path& path, std::string_view part, std::string_view source) {
    SCOPED_TRACE(part);
    expect_error(Bundle::open(path), ErrorCode::kInvalidFile, part, source);
  };
  const fs::path first = dir.write("m-00001-of-00002.gguf", tensor(shard(0, 2, 2), "a"));
  expect(first, "the shard is missing, m-00001-of-00002.gguf has 2 shards", "m-00002-of-00002.gguf");
  dir.write("m-00002-of-00002.gguf", tensor(shard(0, 2, 2), "b"));
  expect(first, "its split.no is not 1", "m-00002-of-00002.gguf");
  dir.write("m-00002-of-00002.gguf", tensor(shard(1, 3, 2), "b"));
  expect(first, "its split.count is not 2", "m-00002-of-00002.gguf");
  dir.write("m-00002-of-00002.gguf", tensor(GgufBuilder(), "b"));
  expect(first, "its split.count is not 2", "m-00002-of-00002.gguf");
  dir.write("m-00002-of-00002.gguf", tensor(shard(1, 2, 7), "b"));
  expect(first, "its split.tensors.count is 7 where another shard has 2", "m-00002-of-00002.gguf");
  dir.write("m-00002-of-00002.gguf", shard(1, 2, 2).build());
  expect(first, "split.tensors.count promises 2 tensors, the 2 shards hold 1", "m-00001-of-00002.gguf");
  dir.write("m-00002-of-00002.gguf", tensor(shard(1, 2, 2), "a"));
  expect(first, "tensor 'a' is in both m-00001-of-00002.gguf and m-00002-of-00002.gguf", dir.path().string());
  dir.write("m-00002-of-00002.gguf", "GGUF");
  expect(first, "the file ends inside", "m-00002-of-00002.gguf");
  for (const char* name : {"renamed.gguf", "m-00001-of-00003.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf",
                           "m-0001-of-00002.gguf", "m-00001_of-00002.gguf", "-00001-of-00002.gguf"})
    expect(dir.write(name, tensor(shard(0, 2, 2), "a")), "its name does not end in -NNNNN-of-00002.gguf", name);
}

// ---- Fingerprints

// The same weights give one fingerprint wherever they lie and however they are split; any change of name, type, shape,
// data at either end or configuration gives another.
TEST(Bundle, FingerprintFollowsContentNotPlace) {
  const std::string big(20000, 'b');
  const auto print = [](const std::string& config, const SafetensorsBuilder& file) {
    const TempDir dir;
    dir.write("config.json", config);
    dir.write("model.safetensors", file.build());
    return open_sound(dir.path()).fingerprint();
  };
  const std::string base =
      print(kConfig, SafetensorsBuilder().add("a", "BF16", {10000}, big).add("b", "BF16", {1}, "xy"));
  EXPECT_EQ(base.size(), 64u);
  EXPECT_EQ(print(kConfig, SafetensorsBuilder().add("b", "BF16", {1}, "xy").add("a", "BF16", {10000}, big)), base);
  const TempDir sharded;
  sharded.write("config.json", kConfig);
  sharded.write("1.safetensors", SafetensorsBuilder().add("b", "BF16", {1}, "xy").build());
  sharded.write("2.safetensors", SafetensorsBuilder().add("a", "BF16", {10000}, big).build());
  sharded.write("model.safetensors.index.json", index_of({{"a", "2.safetensors"}, {"b", "1.safetensors"}}));
  const Bundle bundle = open_sound(sharded.path());
  EXPECT_EQ(bundle.fingerprint(), base);
  EXPECT_EQ(bundle.fingerprint(), base);

  std::string first = big, last = big;
  first[4095] = 'X';
  last[20000 - 4096] = 'X';
  const std::string others[] = {
      print(kConfig + " ", SafetensorsBuilder().add("a", "BF16", {10000}, big).add("b", "BF16", {1}, "xy")),
      print(kConfig, SafetensorsBuilder().add("a", "BF16", {10000}, first).add("b", "BF16", {1}, "xy")),
      print(kConfig, SafetensorsBuilder().add("a", "BF16", {10000}, last).add("b", "BF16", {1}, "xy")),
      print(kConfig, SafetensorsBuilder().add("a", "F16", {10000}, big).add("b", "BF16", {1}, "xy")),
      print(kConfig, SafetensorsBuilder().add("a", "BF16", {100, 100}, big).add("b", "BF16", {1}, "xy")),
      print(kConfig, SafetensorsBuilder().add("a", "BF16", {10000}, big).add("c", "BF16", {1}, "xy")),
      print(kConfig, SafetensorsBuilder().add("a", "BF16", {10000}, big)),
  };
  std::set<std::string> different(std::begin(others), std::end(others));
  different.insert(base);
  EXPECT_EQ(different.size(), std::size(others) + 1);
}

// A split GGUF has the fingerprint of the whole one; metadata counts, with its types.
TEST(Bundle, FingerprintOfGguf) {
  const TempDir dir;
  const auto print = [&](const GgufBuilder& builder) {
    return open_sound(dir.write("x.gguf", builder.build())).fingerprint();
  };
  const auto tensors = [](GgufBuilder builder) {
    return builder.tensor("a", {4}, 24, "aaaa").tensor("b", {4}, 24, "bbbb");
  };
  const std::string whole = print(tensors(GgufBuilder().u32("k", 1)));
  dir.write("m-00001-of-00002.gguf", shard(0, 2, 2).u32("k", 1).tensor("b", {4}, 24, "bbbb").build());
  dir.write("m-00002-of-00002.gguf", shard(1, 2, 2).tensor("a", {4}, 24, "aaaa").build());
  EXPECT_EQ(open_sound(dir.path() / "m-00002-of-00002.gguf").fingerprint(), whole);
  const std::string others[] = {
      print(tensors(GgufBuilder().u32("k", 2))),
      print(tensors(GgufBuilder().value("k", 5, GgufBuilder::raw(1)))),
      print(tensors(GgufBuilder().u32("l", 1))),
      print(tensors(GgufBuilder().str("k", "1"))),
      print(tensors(GgufBuilder().value("k", 7, "\1"))),
      print(tensors(GgufBuilder().value("k", 12, GgufBuilder::raw(1.0)))),
      print(tensors(GgufBuilder().value("k", 11, GgufBuilder::raw(int64_t{1})))),
      print(tensors(GgufBuilder().value("k", 9, GgufBuilder::array(4, 1, GgufBuilder::raw(uint32_t{1}))))),
      print(tensors(GgufBuilder().value("k", 9, GgufBuilder::array(6, 1, GgufBuilder::raw(1.0f))))),
      print(tensors(GgufBuilder().value("k", 9, GgufBuilder::array(7, 1, "\1")))),
      print(tensors(GgufBuilder().value("k", 9, GgufBuilder::array(8, 1, GgufBuilder::text("1"))))),
      print(GgufBuilder().u32("k", 1).tensor("a", {4}, 24, "aaaa").tensor("b", {4}, 24, "bbbc")),
  };
  std::set<std::string> different(std::begin(others), std::end(others));
  different.insert(whole);
  EXPECT_EQ(different.size(), std::size(others) + 1);
}

// Threads that ask first at the same time get one and the same answer; a moved bundle keeps its tensors and its answer.
TEST(Bundle, FingerprintFromSeveralThreads) {
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("a", std::string(100000, 'x')));
  Bundle opened = open_sound(dir.path());
  const Bundle bundle = std::move(opened);
  std::string prints[4];
  std::vector<std::thread> threads;
  for (std::string& print : prints) threads.emplace_back([&] { print = bundle.fingerprint(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(prints[0].size(), 64u);
  for (const std::string& print : prints) EXPECT_EQ(print, prints[0]);
  EXPECT_EQ(static_cast<char>(bundle.find("a")->data[99999]), 'x');
}

// Opening reads headers only: a sparse 20 GB file opens in well under a second.
TEST(Bundle, OpensAHugeFileWithoutReadingIt) {
  const TempDir dir;
  const uint64_t elements = 10'000'000'000;
  const std::string header = R"({"w":{"dtype":"BF16","shape":[10000000000],"data_offsets":[0,20000000000]}})";
  const fs::path file = dir.write("model.safetensors", testing::safetensors_file(header, ""));
  std::error_code error;
  fs::resize_file(file, 8 + header.size() + 2 * elements, error);
  ASSERT_FALSE(error) << "TMPDIR must lie where a sparse file of 20 GB can be: " << error.message();
  const auto begin = std::chrono::steady_clock::now();
  const Bundle bundle = open_sound(dir.path());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  RecordProperty("open_microseconds", static_cast<int>(seconds * 1e6));
  EXPECT_EQ(bundle.tensor_bytes(), 2 * elements);
  EXPECT_LT(seconds, 1.0);
}

// The trained demo bundles open, with the tensors their indexes name and nothing to remark.
TEST(Bundle, OpensTheDemoBundles) {
  FORETOKEN_NEEDS_SHARED("models");
  for (const char* name : {"demo-dense", "demo-moe", "demo-dense/dflash2", "demo-moe/dflash2"}) {
    const Bundle bundle = open_sound(test::shared_dir() / "models" / name);
    EXPECT_GT(bundle.tensors().size(), 20u) << name;
    EXPECT_TRUE(bundle.notes().empty()) << name << ": " << all_notes(bundle);
    EXPECT_TRUE(bundle.config().is_object()) << name;
    EXPECT_EQ(bundle.fingerprint().size(), 64u);
    for (const TensorInfo& tensor : bundle.tensors()) {
      ASSERT_TRUE(tensor.format.has_value()) << tensor.name;
      EXPECT_EQ(tensor.data.size(), static_cast<uint64_t>(tensor.elements()) *
                                        static_cast<uint64_t>(format_info(*tensor.format).block_bytes));
    }
  }
}

}  // namespace
}  // namespace foretoken
