// The three derived files, and their comparison with what is published.
#include "qualify/report.h"

#include <fmt/format.h>

#include "base/file.h"

namespace foretoken {
namespace {

std::string summary_text(const Evidence& evidence, const Summary& summary, const std::string& manifest_text) {
  OrderedJson j = OrderedJson::object();
  j["kind"] = evidence.kind();
  j["manifest_sha256"] = sha256_hex(manifest_text);
  j.update(summary.json());
  return dump_json(j, 1) + "\n";
}

std::string string_of(const OrderedJson& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::string command_line(const Evidence& evidence) {
  std::string line;
  const auto it = evidence.manifest.find("command");
  if (it == evidence.manifest.end() || !it->is_array()) return line;
  for (const OrderedJson& word : *it) {
    if (!word.is_string()) continue;
    const std::string& w = word.get_ref<const std::string&>();
    const bool plain = !w.empty() && w.find_first_of(" \"'$&|;<>()*?") == std::string::npos;
    line += (line.empty() ? "" : " ") + (plain ? w : "\"" + w + "\"");
  }
  return line;
}

std::string table_text(const Evidence& evidence, const Summary& summary) {
  return fmt::format("# {}\n\n{}\n`{}`\n", string_of(evidence.manifest, "title"), summary.markdown(),
                     command_line(evidence));
}

// Where two texts of JSON part: the pointer of the first figure that differs.
std::string first_difference(const OrderedJson& published, const OrderedJson& computed, const std::string& where) {
  if (published.type() != computed.type() || !published.is_structured() || published.size() != computed.size())
    return published == computed ? ""
                                 : fmt::format("{} is published as {} and is {}", where.empty() ? "/" : where,
                                               dump_json(published).substr(0, 80), dump_json(computed).substr(0, 80));
  if (published.is_array()) {
    for (size_t i = 0; i < published.size(); ++i)
      if (std::string d = first_difference(published[i], computed[i], fmt::format("{}/{}", where, i)); !d.empty())
        return d;
    return "";
  }
  for (const auto& [key, value] : published.items()) {
    const auto other = computed.find(key);
    if (other == computed.end()) return fmt::format("{}/{} does not follow from the raw rows", where, key);
    if (std::string d = first_difference(value, *other, where + "/" + key); !d.empty()) return d;
  }
  return "";
}

Status write_derived(const std::filesystem::path& folder, const Evidence& evidence, const Summary& summary,
                     const std::string& manifest_text) {
  TRY(write_file_atomically(folder / kSummaryFile, summary_text(evidence, summary, manifest_text)));
  TRY(write_file_atomically(folder / kTableFile, table_text(evidence, summary)));
  return write_file_atomically(folder / kPageFile, page(evidence, summary));
}

}  // namespace

Result<Summary> publish(const std::filesystem::path& folder, Evidence& evidence) {
  ASSIGN_OR_RETURN(Summary summary, summarize(evidence));
  TRY(write_evidence(folder, evidence));
  ASSIGN_OR_RETURN(const std::string manifest, read_file(folder / kManifestFile));
  TRY(write_derived(folder, evidence, summary, manifest));
  return summary;
}

Result<Summary> derive_anew(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const ReadEvidence read, read_evidence(folder));
  if (read.changed)
    return Error{ErrorCode::kInvalidFile, fmt::format("{} is not the file that the manifest was written for; nothing "
                                                      "was written",
                                                      (folder / kRowsFile).string())};
  ASSIGN_OR_RETURN(Summary summary, summarize(read.evidence));
  TRY(write_derived(folder, read.evidence, summary, read.manifest_text));
  return summary;
}

Result<ReportResult> recompute(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const ReadEvidence read, read_evidence(folder));
  ReportResult result;
  if (read.changed)
    result.differences.push_back(fmt::format("{} is not the file that the manifest was written for", kRowsFile));
  auto computed = summarize(read.evidence);
  if (!computed && !read.changed) return computed.error();
  if (!computed) {
    result.differences.push_back(computed.error().message);
    return result;
  }
  result.summary = *std::move(computed);
  ASSIGN_OR_RETURN(const std::string published, read_file(folder / kSummaryFile, size_t{16} << 20));
  const std::string expected = summary_text(read.evidence, result.summary, read.manifest_text);
  if (published != expected) {
    ASSIGN_OR_RETURN(const OrderedJson was,
                     parse_ordered_json(published, (folder / kSummaryFile).string(), {.depth = 32}));
    ASSIGN_OR_RETURN(const OrderedJson is, parse_ordered_json(expected, "the recomputed summary"));
    const std::string where = first_difference(was, is, "");
    result.differences.push_back(
        fmt::format("{}: {}", kSummaryFile, where.empty() ? "the same figures, but not the same bytes" : where));
  }
  for (const auto& [name, text] :
       {std::pair<const char*, std::string>{kTableFile, table_text(read.evidence, result.summary)},
        {kPageFile, page(read.evidence, result.summary)}}) {
    ASSIGN_OR_RETURN(const std::string file, read_file(folder / name, size_t{64} << 20));
    if (file != text) result.differences.push_back(fmt::format("{} is not what the raw rows give", name));
  }
  return result;
}

}  // namespace foretoken
