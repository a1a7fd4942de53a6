// Bundle::open: finds the files of a model, has each parsed, and joins them into one index. Recognises formats that are
// not read, so that the refusal names them. Source: docs/formats.md.
#include "bundle/bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>
#include <system_error>

#include "bundle/formats.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr size_t kIndexBytesLimit = 100'000'000;
constexpr size_t kEdgeBytes = 4096;  // of each end of a tensor, in the fingerprint
constexpr size_t kNamesInNote = 5;

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// Names of the regular files of a folder, sorted.
Result<std::vector<std::string>> file_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (is_file(entry->path())) names.push_back(entry->path().filename().string());
  if (error)
    return Error{ErrorCode::kIo, fmt::format("{}: cannot list the folder: {}", folder.string(), error.message())};
  std::sort(names.begin(), names.end());
  return names;
}

bool ends_with(std::string_view text, std::string_view end) { return lower(std::string(text)).ends_with(end); }

bool is_pickle(std::string_view name) {
  for (std::string_view end : {".bin", ".pt", ".pth", ".ckpt"})
    if (ends_with(name, end)) return true;
  return false;
}

std::string pickle_refusal(const fs::path& path) {
  return fmt::format("{}: a PyTorch checkpoint, which is not read: convert the model to safetensors or GGUF",
                     path.string());
}

// "a, b, c and 4 more"
std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kNamesInNote; ++i) text += (i ? ", " : "") + printable(names[i]);
  if (names.size() > kNamesInNote) text += fmt::format(" and {} more", names.size() - kNamesInNote);
  return text;
}

Result<MappedFile> map_weights(const fs::path& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (text.empty()) return Error{ErrorCode::kInvalidFile, path.string() + ": an empty file: fetch it again"};
  if (text.starts_with("version https://git-lfs"))
    return Error{ErrorCode::kInvalidFile, path.string() + ": a Git LFS pointer, not the file itself: run git lfs pull"};
  return file;
}

// The parts of "name-00002-of-00005.gguf".
struct ShardName {
  std::string stem;           // "name"
  int number = 0, count = 0;  // 1-based, as in the name
};

std::optional<ShardName> shard_name(std::string_view name) {
  constexpr std::string_view kPattern = "-ddddd-of-ddddd.gguf";
  if (name.size() <= kPattern.size()) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kPattern.size());
  const std::string folded = lower(std::string(tail));
  int numbers[2] = {0, 0}, digits = 0;
  for (size_t i = 0; i < tail.size(); ++i) {
    if (kPattern[i] != 'd') {
      if (folded[i] != kPattern[i]) return std::nullopt;
      continue;
    }
    if (tail[i] < '0' || tail[i] > '9') return std::nullopt;
    int& number = numbers[digits++ / 5];
    number = number * 10 + (tail[i] - '0');
  }
  return ShardName{std::string(name.substr(0, name.size() - kPattern.size())), numbers[0], numbers[1]};
}

std::string shard_file(const ShardName& shard, int number) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", shard.stem, number, shard.count);
}

// Length-prefixed fields, so that different lists never give the same bytes.
class FingerprintText {
 public:
  void add(std::string_view text) {
    add(uint64_t{text.size()});
    text_ += text;
  }
  void add(uint64_t number) { text_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  std::string digest() const { return sha256_hex(text_); }

 private:
  std::string text_;
};

struct AddElements {
  FingerprintText& out;
  void operator()(uint64_t v) const { out.add(v); }
  void operator()(int64_t v) const { out.add(static_cast<uint64_t>(v)); }
  void operator()(double v) const { out.add(std::bit_cast<uint64_t>(v)); }
  void operator()(bool v) const { out.add(uint64_t{v}); }
  void operator()(std::string_view v) const { out.add(v); }
  template <class T>
  void operator()(const std::vector<T>& values) const {
    out.add(uint64_t{values.size()});
    for (const T& value : values) (*this)(value);
  }
};

}  // namespace

// Collects the files of one bundle. Each step either succeeds or returns the sentence that open() hands on.
struct BundleBuilder {
  Bundle bundle;

  Result<Bundle> open(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (status.type() == fs::file_type::not_found || status.type() == fs::file_type::none) {
      if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
        return Error{ErrorCode::kIo, fmt::format("{}: cannot be opened: {}", path.string(), error.message())};
      return Error{
          ErrorCode::kNotFound,
          fmt::format("{}: no such file or folder: give a folder with safetensors or a .gguf file", path.string())};
    }
    if (status.type() == fs::file_type::directory) TRY(open_folder(path));
    else if (status.type() == fs::file_type::regular) TRY(open_file(path));
    else return Error{ErrorCode::kUsage, fmt::format("{}: neither a file nor a folder", path.string())};
    TRY(finish());
    return std::move(bundle);
  }

  Status open_file(const fs::path& path) {
    const std::string name = path.filename().string();
    if (ends_with(name, ".safetensors"))
      return Error{
          ErrorCode::kUsage,
          fmt::format("{}: give the folder that holds it, config.json and the tokenizer belong to it", path.string())};
    if (is_pickle(name)) return Error{ErrorCode::kUnsupported, pickle_refusal(path)};
    return open_gguf(path);
  }

  Status open_folder(const fs::path& folder) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, file_names(folder));
    const auto has = [&](std::string_view name) { return std::binary_search(names.begin(), names.end(), name); };
    bundle.path_ = folder;
    if (has(kIndexName)) return open_sharded(folder);
    if (has(kSingleName)) return open_single(folder, names);

    std::vector<std::string> safetensors, pickles, ggufs;
    std::set<std::string> sets;  // one entry per GGUF model
    for (const std::string& name : names) {
      if (ends_with(name, ".safetensors")) safetensors.push_back(name);
      if (is_pickle(name)) pickles.push_back(name);
      if (!ends_with(name, ".gguf")) continue;
      const auto shard = shard_name(name);
      if (sets.insert(shard ? shard_file(*shard, 0) : name).second) ggufs.push_back(name);
    }
    if (!safetensors.empty())
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("{}: holds {} but neither {} nor {}: fetch what is missing", folder.string(),
                               list_of(safetensors), kIndexName, kSingleName)};
    if (ggufs.size() > 1)
      return Error{ErrorCode::kUsage, fmt::format("{}: holds several GGUF models ({}): name the file to use",
                                                  folder.string(), list_of(ggufs))};
    if (ggufs.size() == 1) return open_gguf(folder / ggufs.front());
    if (!pickles.empty()) return Error{ErrorCode::kUnsupported, pickle_refusal(folder / pickles.front())};
    return Error{ErrorCode::kInvalidFile, fmt::format("{}: holds no model: expected {}, {} or a .gguf file",
                                                      folder.string(), kIndexName, kSingleName)};
  }

  // ---- Safetensors

  Status open_sharded(const fs::path& folder) {
    const fs::path index_path = folder / kIndexName;
    ASSIGN_OR_RETURN(const std::string text, read_file(index_path, kIndexBytesLimit));
    ASSIGN_OR_RETURN(const SafetensorsIndex index, parse_safetensors_index(text, index_path.string()));
    std::map<std::string, std::vector<std::string>> shards;  // file -> the tensors promised in it
    for (const auto& [name, file] : index) shards[file].push_back(name);

    std::set<std::string_view> absent;  // shards
    for (const auto& [file, promised] : shards) {
      if (is_file(folder / file)) {
        if (is_pickle(file)) return Error{ErrorCode::kUnsupported, pickle_refusal(folder / file)};
        TRY(add_safetensors(folder / file));
        continue;
      }
      const bool optional = std::all_of(promised.begin(), promised.end(), [](std::string_view name) {
        return name.starts_with("mtp.") || name.starts_with("model.mtp.");
      });
      if (!optional)
        return Error{ErrorCode::kInvalidFile,
                     fmt::format("{}: the shard {} is missing, the index places {} tensors in it: fetch the file",
                                 folder.string(), printable(file), promised.size())};
      absent.insert(file);
      bundle.notes_.push_back(fmt::format("the shard {} is missing and with it the optional head it holds ({})",
                                          printable(file), list_of(promised)));
    }
    TRY(sort_tensors());
    std::vector<std::string> unfulfilled;
    for (const auto& [name, file] : index)
      if (!absent.contains(file) && !bundle.find(name)) unfulfilled.push_back(name);
    if (!unfulfilled.empty())
      bundle.notes_.push_back(fmt::format("the index names {} that no shard holds", list_of(unfulfilled)));
    return open_configuration(folder);
  }

  // Without an index, the other safetensors files of the folder belong to the model too, unless they repeat its
  // tensors.
  Status open_single(const fs::path& folder, const std::vector<std::string>& names) {
    TRY(add_safetensors(folder / kSingleName));
    for (const std::string& name : names) {
      if (!ends_with(name, ".safetensors") || name == kSingleName) continue;
      const size_t before = bundle.tensors_.size();
      TRY(add_safetensors(folder / name));
      std::set<std::string_view> earlier;
      for (size_t i = 0; i < before; ++i) earlier.insert(bundle.tensors_[i].name);
      const bool repeats =
          std::any_of(bundle.tensors_.begin() + static_cast<std::ptrdiff_t>(before), bundle.tensors_.end(),
                      [&](const TensorInfo& tensor) { return earlier.contains(tensor.name); });
      if (!repeats) continue;
      bundle.tensors_.resize(before);
      bundle.files_.pop_back();
      bundle.notes_.push_back(fmt::format("{} repeats tensors of {} and is left out", printable(name), kSingleName));
    }
    TRY(sort_tensors());
    return open_configuration(folder);
  }

  Status add_safetensors(const fs::path& path) {
    ASSIGN_OR_RETURN(MappedFile file, map_weights(path));
    ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, parse_safetensors(file.bytes(), path.string()));
    add(std::move(file), std::move(tensors));
    return {};
  }

  Status open_configuration(const fs::path& folder) {
    ASSIGN_OR_RETURN(bundle.config_, read_object(folder / "config.json", &bundle.config_text_));
    ASSIGN_OR_RETURN(bundle.generation_config_, read_object(folder / "generation_config.json", nullptr));
    if (bundle.config_.is_null()) bundle.notes_.push_back("the folder has no config.json");
    return refuse_packed_weights(folder);
  }

  // The object in a JSON file, or null when there is no such file.
  Result<Json> read_object(const fs::path& path, std::string* text_out) {
    if (!is_file(path)) return Json(nullptr);
    ASSIGN_OR_RETURN(std::string text, read_file(path, JsonLimits{}.bytes));
    ASSIGN_OR_RETURN(Json value, parse_json(text, path.string()));
    if (!value.is_object()) return Error{ErrorCode::kInvalidFile, path.string() + ": not a JSON object"};
    if (text_out) *text_out = std::move(text);
    return value;
  }

  // Weights split into packed integers and scales are no matrices: without their scales they would be read as nonsense.
  Status refuse_packed_weights(const fs::path& folder) {
    const auto refuse = [&](std::string_view format) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("{}: {}: this build runs BF16, F16 and F32 safetensors and GGUF files, use one of these",
                               folder.string(), format)};
    };
    for (const char* name : {"jang_config.json", "jang_cfg.json", "jjqf_config.json", "mxq_config.json"})
      if (is_file(folder / name)) return refuse("a JANG checkpoint");

    const TensorInfo* mlx = nullptr;
    const TensorInfo* packed = nullptr;
    for (const TensorInfo& tensor : bundle.tensors_) {
      const std::string_view name = tensor.name;
      if (name.ends_with(".scales") && !mlx) mlx = &tensor;
      const bool is_packed = name.ends_with(".weight_scale_inv") || name.ends_with(".weight_scale") ||
                             name.ends_with(".weight_packed") || name.ends_with(".qweight") ||
                             tensor.stored_type.starts_with("F8_");
      if (is_packed && !packed) packed = &tensor;
    }
    if (mlx && !packed)
      return refuse(fmt::format("an MLX checkpoint with quantised weights ({})", printable(mlx->name)));
    const std::string method = quantization_method();
    if (packed)
      return refuse(fmt::format("a checkpoint with {} weights ({})",
                                method.empty() ? "FP8 or packed" : printable(method), printable(packed->name)));
    if (!method.empty())
      bundle.notes_.push_back(fmt::format(
          "config.json names the quantisation {} but no tensor is stored so: it is ignored", printable(method)));
    return {};
  }

  // quantization_config.quant_method of config.json or of its text_config; empty when absent.
  std::string quantization_method() const {
    const auto object_at = [](const Json& json, const char* key) {
      const auto found = json.is_object() ? json.find(key) : json.end();
      return found != json.end() && found->is_object() ? *found : Json::object();
    };
    Json settings = object_at(bundle.config_, "quantization_config");
    if (settings.empty()) settings = object_at(object_at(bundle.config_, "text_config"), "quantization_config");
    const auto method = settings.find("quant_method");
    return method != settings.end() && method->is_string() ? method->get<std::string>() : std::string();
  }

  // ---- GGUF

  Status open_gguf(const fs::path& path) {
    bundle.format_ = BundleFormat::kGguf;
    bundle.path_ = path;
    ASSIGN_OR_RETURN(MappedFile file, map_weights(path));
    ASSIGN_OR_RETURN(ParsedGguf parsed, parse_gguf(file.bytes(), path.string()));
    const auto count = number_at(parsed.metadata, "split.count");
    if (count.value_or(1) > 1) return open_split(path, *count);
    if (const auto name = shard_name(path.filename().string()); name && name->count > 1)
      bundle.notes_.push_back("the file's name is that of a shard, its metadata is that of a whole model");
    bundle.metadata_ = std::move(parsed.metadata);
    add(std::move(file), std::move(parsed.tensors));
    return sort_tensors();
  }

  Status open_split(const fs::path& path, int64_t count) {
    const auto invalid = [](const fs::path& file, std::string sentence) {
      return Error{ErrorCode::kInvalidFile, fmt::format("{}: {}", file.string(), sentence)};
    };
    const auto given = shard_name(path.filename().string());
    if (!given || given->count != count || given->number < 1 || given->number > given->count)
      return invalid(
          path,
          fmt::format("one of {} shards, but its name does not end in -NNNNN-of-{:05}.gguf: give the shards their "
                      "original names",
                      count, count));
    int64_t promised = -1;
    for (int number = 1; number <= given->count; ++number) {
      const fs::path shard_path = number == given->number ? path : path.parent_path() / shard_file(*given, number);
      if (!is_file(shard_path))
        return invalid(shard_path, fmt::format("the shard is missing, {} has {} shards: fetch the file",
                                               path.filename().string(), count));
      TRY(add_shard(shard_path, number, count, promised));
    }
    bundle.path_ = bundle.files_.front().path();
    if (promised >= 0 && promised != static_cast<int64_t>(bundle.tensors_.size()))
      return invalid(bundle.path_, fmt::format("split.tensors.count promises {} tensors, the {} shards hold {}",
                                               promised, count, bundle.tensors_.size()));
    return sort_tensors();
  }

  Status add_shard(const fs::path& path, int number, int64_t count, int64_t& promised) {
    ASSIGN_OR_RETURN(MappedFile file, map_weights(path));
    ASSIGN_OR_RETURN(ParsedGguf parsed, parse_gguf(file.bytes(), path.string()));
    const auto invalid = [&](std::string sentence) {
      return Error{ErrorCode::kInvalidFile, fmt::format("{}: {}", path.string(), sentence)};
    };
    if (number_at(parsed.metadata, "split.count") != count)
      return invalid(fmt::format("its split.count is not {} as in the other shards", count));
    if (number_at(parsed.metadata, "split.no") != number - 1)
      return invalid(fmt::format("its split.no is not {} as its name says", number - 1));
    if (const auto total = number_at(parsed.metadata, "split.tensors.count")) {
      if (promised >= 0 && *total != promised)
        return invalid(fmt::format("its split.tensors.count is {} where another shard has {}", *total, promised));
      promised = *total;
    }
    if (number == 1) bundle.metadata_ = std::move(parsed.metadata);
    add(std::move(file), std::move(parsed.tensors));
    return {};
  }

  static std::optional<int64_t> number_at(const GgufMetadata& metadata, std::string_view key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::nullopt : found->second.as_int();
  }

  // ---- Both

  void add(MappedFile file, std::vector<TensorInfo> tensors) {
    for (TensorInfo& tensor : tensors) {
      tensor.file = static_cast<int>(bundle.files_.size());
      bundle.tensors_.push_back(std::move(tensor));
    }
    bundle.files_.push_back(std::move(file));
  }

  Status sort_tensors() {
    auto& tensors = bundle.tensors_;
    std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                          [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
    if (twice == tensors.end()) return {};
    const auto file_of = [&](const TensorInfo& tensor) {
      return bundle.files_[size_t(tensor.file)].path().filename().string();
    };
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("{}: tensor {} is in both {} and {}", bundle.path_.string(), printable(twice->name),
                             file_of(*twice), file_of(*std::next(twice)))};
  }

  Status finish() {
    if (bundle.tensors_.empty())
      return Error{ErrorCode::kInvalidFile, fmt::format("{}: holds no tensors", bundle.path_.string())};
    return {};
  }
};

std::string_view bundle_format_name(BundleFormat format) {
  return format == BundleFormat::kSafetensors ? "safetensors" : "gguf";
}

Result<Bundle> Bundle::open(const fs::path& path) { return BundleBuilder().open(path); }

fs::path Bundle::folder() const {
  if (format_ == BundleFormat::kSafetensors) return path_;
  return path_.has_parent_path() ? path_.parent_path() : fs::path(".");
}

const TensorInfo* Bundle::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorInfo& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

uint64_t Bundle::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const TensorInfo& tensor : tensors_) bytes += tensor.data.size();
  return bytes;
}

Result<std::string> Bundle::side_file(std::string_view name) const {
  const fs::path file(name);
  CHECK(file.filename() == file);  // a name, not a path
  if (format_ != BundleFormat::kSafetensors)
    return Error{ErrorCode::kNotFound, fmt::format("{}: a GGUF file has no {} beside it", path_.string(), name)};
  if (!is_file(path_ / file))
    return Error{ErrorCode::kNotFound, fmt::format("{}: no such file in the bundle", (path_ / file).string())};
  return read_file(path_ / file);
}

const std::string& Bundle::fingerprint() const {
  CHECK(fingerprint_ != nullptr);  // not moved from
  std::call_once(fingerprint_->once, [&] {
    constexpr size_t kTensorsBetweenReleases = 1024;
    FingerprintText text;
    text.add(bundle_format_name(format_));
    text.add(config_text_);
    for (const auto& [key, value] : metadata_) {
      if (key.starts_with("split.")) continue;
      text.add(key);
      text.add(static_cast<uint64_t>(value.type));
      text.add(static_cast<uint64_t>(value.is_array()));
      std::visit(AddElements{text}, value.value);
    }
    size_t seen = 0;
    for (const TensorInfo& tensor : tensors_) {
      text.add(tensor.name);
      text.add(tensor.stored_type);
      text.add(uint64_t{tensor.shape.size()});
      for (int64_t size : tensor.shape) text.add(static_cast<uint64_t>(size));
      text.add(uint64_t{tensor.data.size()});
      const size_t edge = std::min(kEdgeBytes, tensor.data.size());
      text.add(sha256_hex(tensor.data.first(edge)));
      text.add(sha256_hex(tensor.data.last(edge)));
      // The pages just read, and those the system mapped around them, must not pile up as resident memory.
      if (++seen % kTensorsBetweenReleases == 0 || seen == tensors_.size())
        for (const MappedFile& file : files_) file.release(file.bytes());
    }
    fingerprint_->text = text.digest();
  });
  return fingerprint_->text;
}

}  // namespace foretoken
