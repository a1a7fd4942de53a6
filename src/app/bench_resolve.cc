// foretoken bench resolve: what every bundle in a folder would use and why, from headers alone.
#include <fmt/format.h>

#include <algorithm>

#include "app/bench_options.h"

namespace foretoken::app {
namespace {

namespace fs = std::filesystem;

struct BenchResolveOptions {
  CommonOptions common;
  BenchOutput output;
  std::string folder;
};

constexpr int kDeepest = 4;
constexpr size_t kMostBundles = 10000, kLongestText = 360;

bool is_drafter_folder(const fs::path& path) { return path.filename() == "dflash2" || path.filename() == "dflash"; }

// Bundles below `folder`, in order of their names: folders with a config.json, and .gguf files (of split ones the first
// part).
void find_bundles(const fs::path& folder, int depth, std::vector<fs::path>& found) {
  std::error_code ignored;
  if (fs::exists(folder / "config.json", ignored)) {
    found.push_back(folder);
    return;
  }
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  for (const fs::path& entry : entries) {
    if (found.size() >= kMostBundles) return;
    const std::string name = entry.filename().string();
    const bool later_part = name.find("-of-") != std::string::npos && name.find("-00001-of-") == std::string::npos;
    if (fs::is_directory(entry, ignored)) {
      if (depth < kDeepest && !is_drafter_folder(entry)) find_bundles(entry, depth + 1, found);
    } else if (entry.extension() == ".gguf" && !later_part) {
      found.push_back(entry);
    }
  }
}

std::string short_text(std::string text, const fs::path& root) {
  for (const std::string prefix = root.string() + "/"; text.find(prefix) != std::string::npos;)
    text.erase(text.find(prefix), prefix.size());
  return publishable(text).substr(0, kLongestText);
}

Result<Json> facts_of(const fs::path& path, const fs::path& root, const CommonOptions& common) {
  Json row = Json::object();
  CommonOptions own = common;
  own.model = path.string();
  ASSIGN_OR_RETURN(const OpenedBundle opened, open_bundle(own));
  ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_bundle(opened.bundle));
  ASSIGN_OR_RETURN(const DraftSettings settings, DraftSettings::parse("auto", common.draft_model));
  const DraftResolution drafts = resolve_drafters(opened.bundle, config, settings);
  const Status trunk = check_trunk(opened.bundle, config);
  row["architecture"] = config.architecture.substr(0, 100);
  row["bytes"] = opened.bundle.tensor_bytes();
  row["runs"] = trunk.ok();
  row["mtp"] = drafts.head.complete       ? "complete"
               : drafts.head.present      ? "incomplete"
               : drafts.head.declared > 0 ? "declared, not present"
                                          : "none";
  row["drafter"] = drafts.drafter_path.empty() ? "none"
                                               : std::string(drafter_kind_name(drafts.drafter.kind)) +
                                                     (drafts.drafter.fits ? "" : ", does not fit");
  row["resolved"] = drafts.resolved;
  row["why"] = short_text(trunk ? drafts.why : trunk.error().message, root);
  return row;
}

Result<int> bench_resolve(BenchResolveOptions o) {
  std::error_code error;
  if (!fs::is_directory(o.folder, error))
    return Error{ErrorCode::kUsage, fmt::format("{} is no folder; name one that holds models", o.folder)};
  Measurement measurement("resolve", "What every bundle would use, and why");
  std::vector<fs::path> bundles;
  const fs::path root = fs::path(o.folder).lexically_normal();
  find_bundles(root, 0, bundles);
  if (bundles.empty())
    return Error{ErrorCode::kNotFound,
                 fmt::format("{} holds neither a folder with a config.json nor a .gguf file", o.folder)};
  for (const fs::path& path : bundles) {
    auto facts = facts_of(path, root, o.common);
    Json row = facts ? *std::move(facts) : Json::object();
    if (!facts) row["refused"] = short_text(facts.error().message, root);
    row["row"] = "bundle";
    row["name"] = path == root ? root.filename().string() : path.lexically_relative(root).string();
    measurement.add(std::move(row));
  }
  o.output.json = o.common.json;
  return measurement.finish(o.output);
}

}  // namespace

Command add_bench_resolve(CLI::App& bench) {
  auto o = std::make_shared<BenchResolveOptions>();
  CLI::App* app =
      bench.add_subcommand("resolve", "What every bundle in a folder would use and why, from headers alone");
  add_common_options(*app, o->common);
  add_bench_output(*app, o->output, false);
  app->add_option("folder", o->folder, "Folder with models, searched four levels deep")->required();
  return {app, [o] {
            const auto status = bench_resolve(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
