// Foreign bytes enter here: sizes are bounded before memory is taken, and every failure is a sentence.
#include "qualify/evidence.h"

#include <fmt/format.h>
#include <zstd.h>

#include <fstream>

#include "base/file.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostUnpacked = size_t{256} << 20;
constexpr size_t kMostRows = 4'000'000;
constexpr int kEvidenceVersion = 1;
constexpr const char* kEvidenceName = "foretoken measurement";

Error damaged(std::string_view what, std::string_view why) {
  return {ErrorCode::kInvalidFile, fmt::format("{} is damaged: {}; publish the measurement again", what, why)};
}

const Json* find(const Json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && it != object.end() ? &*it : nullptr;
}

}  // namespace

std::string Evidence::kind() const {
  const auto it = manifest.find("kind");
  return it != manifest.end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::string pack_rows(const std::vector<Json>& rows) {
  std::string text;
  for (const Json& row : rows) text += row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 15);
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  const size_t size = ZSTD_compress2(context, packed.data(), packed.size(), text.data(), text.size());
  ZSTD_freeCCtx(context);
  CHECK(!ZSTD_isError(size));
  packed.resize(size);
  return packed;
}

Result<std::vector<Json>> unpack_rows(std::string_view packed, std::string_view what) {
  const unsigned long long size = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN)
    return damaged(what, "it is no zstd frame of a known size");
  if (size > kMostUnpacked) return damaged(what, fmt::format("it would unpack to {} bytes", size));
  std::string text(size, '\0');
  const size_t got = ZSTD_decompress(text.data(), text.size(), packed.data(), packed.size());
  if (ZSTD_isError(got)) return damaged(what, ZSTD_getErrorName(got));
  if (got != size) return damaged(what, "it unpacks to fewer bytes than it says");
  std::vector<Json> rows;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (rows.size() == kMostRows) return damaged(what, "it has too many rows");
    auto row = parse_json(std::string_view(text).substr(begin, end - begin),
                          fmt::format("row {} of {}", rows.size() + 1, what), {.depth = 16});
    if (!row) return row.error();
    if (!row->is_object()) return damaged(what, fmt::format("row {} is no object", rows.size() + 1));
    rows.push_back(*std::move(row));
    begin = end + 1;
  }
  return rows;
}

Status write_evidence(const fs::path& folder, Evidence& evidence) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    return Error{ErrorCode::kIo, fmt::format("cannot make the folder {}: {}", folder.string(), error.message())};
  const std::string packed = pack_rows(evidence.rows);
  evidence.manifest["evidence"] = kEvidenceName;
  evidence.manifest["version"] = kEvidenceVersion;
  OrderedJson facts = OrderedJson::object();
  facts["sha256"] = sha256_hex(packed);
  facts["bytes"] = packed.size();
  facts["rows"] = evidence.rows.size();
  evidence.manifest["files"] = OrderedJson::object();
  evidence.manifest["files"][kRowsFile] = facts;
  TRY(write_file_atomically(folder / kRowsFile, packed));
  return write_file_atomically(folder / kManifestFile, dump_json(evidence.manifest, 1) + "\n");
}

Result<ReadEvidence> read_evidence(const fs::path& folder) {
  ReadEvidence read;
  const fs::path manifest = folder / kManifestFile, rows = folder / kRowsFile;
  ASSIGN_OR_RETURN(read.manifest_text, read_file(manifest, size_t{16} << 20));
  ASSIGN_OR_RETURN(read.evidence.manifest, parse_ordered_json(read.manifest_text, manifest.string(), {.depth = 32}));
  const Json known = read.evidence.manifest;  // sorted keys: look-ups below
  const Json *name = find(known, "evidence"), *version = find(known, "version");
  if (!name || *name != kEvidenceName)
    return damaged(manifest.string(), "it does not describe a measurement of Foretoken");
  if (!version || !version->is_number_integer() || *version != kEvidenceVersion)
    return Error{ErrorCode::kUnsupported, fmt::format("{} has a version that this program does not read (it reads {})",
                                                      manifest.string(), kEvidenceVersion)};
  const Json* files = find(known, "files");
  const Json* facts = files ? find(*files, kRowsFile) : nullptr;
  const Json* digest = facts ? find(*facts, "sha256") : nullptr;
  if (!digest || !digest->is_string())
    return damaged(manifest.string(), fmt::format("it says nothing of {}", kRowsFile));
  if (read.evidence.kind().empty()) return damaged(manifest.string(), "it names no kind of measurement");
  ASSIGN_OR_RETURN(const std::string packed, read_file(rows, kMostUnpacked));
  read.changed = sha256_hex(packed) != digest->get<std::string>();
  auto unpacked = unpack_rows(packed, rows.string());
  if (unpacked) read.evidence.rows = *std::move(unpacked);
  else if (!read.changed) return unpacked.error();
  return read;
}

namespace {

// Of one piece without spaces: /any/where/name becomes name, also behind = , : and quotes.
std::string without_folders(std::string_view piece) {
  std::string out;
  for (size_t i = 0; i < piece.size();) {
    const bool begins = i == 0 || std::string_view("=,:'\"(").find(piece[i - 1]) != std::string_view::npos;
    const bool url = i > 0 && piece[i - 1] == ':' && piece.substr(i).starts_with("//");
    if (piece[i] != '/' || !begins || url) {
      out += piece[i++];
      if (url) out += piece[i++];
      continue;
    }
    const size_t end = std::min(piece.find_first_of("=,:'\")", i), piece.size());
    std::string_view path = piece.substr(i, end - i);
    while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
    out += path.substr(path.rfind('/') + 1);
    i = end;
  }
  return out;
}

}  // namespace

std::string publishable(const std::string& word) {
  std::string out;
  for (size_t begin = 0; begin <= word.size();) {
    const size_t end = std::min(word.find(' ', begin), word.size());
    if (begin > 0) out += ' ';
    out += without_folders(std::string_view(word).substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::vector<std::string> publishable(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  bool secret = false;
  for (const std::string& word : words) {
    if (secret) out.push_back("...");
    else if (word.starts_with("--api-key=")) out.push_back("--api-key=...");
    else out.push_back(publishable(word));
    secret = word == "--api-key";
  }
  return out;
}

std::vector<std::string> own_command() {
  std::ifstream line("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(line, word, '\0');) words.push_back(word);
  if (!words.empty()) words[0] = fs::path(words[0]).filename().string();
  return publishable(words);
}

}  // namespace foretoken
