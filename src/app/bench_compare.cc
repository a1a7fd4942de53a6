// foretoken bench compare: the same cohort, weights and threads on this program and on other servers, interleaved,
// greedy.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "app/bench_options.h"
#include "app/dialogue.h"
#include "base/temporary.h"
#include "base/threads.h"
#include "qualify/peer.h"
#include "qualify/trial.h"

namespace foretoken::app {
namespace {

struct BenchCompareOptions {
  CommonOptions common;
  BenchOutput output;
  std::string llama, modes = "none,draft-mtp,draft-dflash,ngram-simple", peer_drafter, peer_model, cohort = "standard";
  std::vector<std::string> urls;  // NAME=URL
  std::vector<std::string> classes;
  int blocks = 4, warm_blocks = 1;
  int64_t tokens = 96;
};

// What each mode of llama.cpp's server is given besides its name: as many guesses as our pinned arms make.
std::vector<std::string> mode_options(const std::string& mode) {
  if (mode == "draft-mtp") return {"--spec-draft-n-max", "3"};
  if (mode == "draft-dflash") return {"--spec-draft-n-max", "7"};
  if (mode == "ngram-simple") return {"--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "7"};
  return {};
}

std::vector<std::string> pieces(const std::string& list) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    if (comma > begin) out.push_back(list.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return out;
}

class Comparison {
 public:
  Comparison(const BenchCompareOptions& o, LoadedModel& model, Measurement& measurement)
      : o_(o), model_(model), measurement_(measurement), scratch_("foretoken-compare") {}

  Status open_peers() {
    OrderedJson left_out = OrderedJson::array();
    if (!o_.llama.empty())
      for (const std::string& mode : pieces(o_.modes)) {
        Peer::LlamaOptions llama{.program = o_.llama,
                                 .model = o_.peer_model.empty() ? model_.bundle().path().string() : o_.peer_model,
                                 .mode = mode,
                                 .drafter = mode == "draft-dflash" ? o_.peer_drafter : "",
                                 .more = mode_options(mode),
                                 .threads = o_.common.threads > 0 ? o_.common.threads : usable_processors(),
                                 .log_file = (scratch_.path() / (mode + ".log")).string()};
        if (mode == "draft-dflash" && o_.peer_drafter.empty()) {
          left_out.push_back("llama.cpp draft-dflash: no --peer-drafter was given");
          continue;
        }
        auto peer = Peer::start_llama(llama);
        if (peer) peers_.push_back(*std::move(peer));
        else left_out.push_back(publishable(fmt::format("llama.cpp {}: {}", mode, peer.error().message)));
      }
    for (const std::string& text : o_.urls) {
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0)
        return Error{ErrorCode::kUsage, fmt::format("--url takes NAME=http://host:port, not \"{}\"", text)};
      ASSIGN_OR_RETURN(const HttpUrl url, parse_http_url(text.substr(equals + 1)));
      peers_.push_back(std::make_unique<Peer>(text.substr(0, equals), url, "default"));
    }
    if (peers_.empty())
      return Error{ErrorCode::kUsage, left_out.empty() ? "name a peer: --llama SERVER or --url NAME=URL"
                                                       : "no peer runs: " + left_out[0].get<std::string>()};
    OrderedJson& design = measurement_.design();
    design["ours"] = OrderedJson::array({"plain", "auto"});
    design["arms"] = OrderedJson::array({"plain", "auto"});
    for (const auto& peer : peers_) design["arms"].push_back(peer->name());
    design["arms_left_out"] = left_out;
    return {};
  }

  Status run(const std::vector<BenchPrompt>& prompts, const std::function<bool(int, int)>& progress) {
    const int arms = 2 + static_cast<int>(peers_.size()),
              total = (o_.blocks + o_.warm_blocks) * static_cast<int>(prompts.size());
    int done = 0;
    for (int block = -o_.warm_blocks; block < o_.blocks; ++block)
      for (size_t p = 0; p < prompts.size(); ++p) {
        std::vector<int> seen(static_cast<size_t>(arms));
        for (const int arm : block_order(arms, block + o_.warm_blocks + static_cast<int>(p))) {
          Json row = Json::object();
          row["row"] = "answer";
          row["block"] = std::max(block, 0);
          row["round"] = seen[static_cast<size_t>(arm)]++;
          if (block < 0) row["warm"] = true;
          row["prompt"] = p;
          row["class"] = prompts[p].kind;
          TRY(arm < 2
                  ? answer_ours(prompts[p], p, arm == 1, row)
                  : answer_peer(prompts[p], p, *peers_[static_cast<size_t>(arm - 2)], block == -o_.warm_blocks, row));
          measurement_.add(std::move(row));
        }
        if (!progress(++done, total))
          return Error{ErrorCode::kCheckFailed, "the comparison was interrupted, and nothing was published"};
      }
    return {};
  }

 private:
  Status answer_ours(const BenchPrompt& prompt, size_t index, bool automatic, Json& row) {
    auto lane = model_.target().make_lane();
    Speculation speculation;
    if (automatic)
      speculation = {.drafters = model_.drafts()->make(), .options = {}, .memory = &model_.drafts()->memory()};
    ASSIGN_OR_RETURN(const MeasuredAnswer answer,
                     measure_answer(model_.target(), *lane, prompt.ids, {},
                                    {.max_tokens = prompt.tokens, .prefill_chunk = o_.common.prefill_chunk},
                                    std::move(speculation), clock_));
    row["arm"] = automatic ? "auto" : "plain";
    answer.fill(row);
    row["timed_tokens"] = answer.tokens.size() - 1;
    known_.resize(std::max(known_.size(), index + 1));
    known_[index] = answer.tokens;
    return {};
  }

  Status answer_peer(const BenchPrompt& prompt, size_t index, Peer& peer, bool compare, Json& row) {
    row["arm"] = peer.name();
    const auto got = peer.decode(prompt.ids, prompt.tokens);
    if (!got) {
      row["failed"] = publishable(got.error().message).substr(0, 300);
      return {};
    }
    row["decode_us"] = got->decode_us;
    row["timed_tokens"] = got->timed_tokens;
    row["timed_outside"] = got->timed_outside;
    row["drafted"] = got->drafted;
    row["accepted"] = got->accepted;
    if (got->tokens.empty()) return {};
    row["ids"] = digest_of(got->tokens);
    if (compare) compare_tokens(prompt, index, peer.name(), got->tokens);
    return {};
  }

  // Once a prompt and peer: where its answer leaves ours, and by how much our model prefers our token there.
  void compare_tokens(const BenchPrompt& prompt, size_t index, const std::string& arm,
                      const std::vector<TokenId>& theirs) {
    if (index >= known_.size() || known_[index].empty() || !compared_.insert({index, arm}).second) return;
    // Ours goes on behind the end of the text, theirs has been told to write something else there.
    const std::vector<TokenId>& stops = model_.config().stop_tokens;
    std::span<const TokenId> mine = known_[index];
    mine = mine.first(
        static_cast<size_t>(std::find_first_of(mine.begin(), mine.end(), stops.begin(), stops.end()) - mine.begin()));
    const size_t common = std::min(mine.size(), theirs.size());
    const size_t at = static_cast<size_t>(
        std::mismatch(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(common), theirs.begin()).first -
        mine.begin());
    Json row = Json::object();
    row["row"] = "agreement";
    row["arm"] = arm;
    row["prompt"] = index;
    row["class"] = prompt.kind;
    row["compared"] = common;
    row["equal"] = at == common;
    if (at < common) {
      row["at"] = at;
      if (theirs[at] >= 0 && theirs[at] < model_.config().vocab)
        row["margin"] = margin(prompt.ids, mine.first(at), mine[at], theirs[at]);
    }
    measurement_.add(std::move(row));
  }

  double margin(const std::vector<TokenId>& prompt, std::span<const TokenId> answer, TokenId mine, TokenId theirs) {
    std::vector<TokenId> all = prompt;
    all.insert(all.end(), answer.begin(), answer.end());
    auto lane = model_.target().make_lane();
    const int64_t last[] = {static_cast<int64_t>(all.size()) - 1};
    double difference = 0;
    run_prompt(model_.target(), *lane, all, o_.common.prefill_chunk, last,
               [&](int64_t, int64_t, const ForwardResult& r) {
                 if (r.logits.rows > 0) difference = double{r.logits.f32(0)[mine]} - double{r.logits.f32(0)[theirs]};
                 return true;
               });
    return difference;
  }

  const BenchCompareOptions& o_;
  LoadedModel& model_;
  Measurement& measurement_;
  SteadyClock clock_;
  TemporaryFolder scratch_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::vector<TokenId>> known_;  // our answers
  std::set<std::pair<size_t, std::string>> compared_;
};

Result<int> bench_compare(BenchCompareOptions o) {
  const SpeculationFlags every{.speculate = "copy,mtp,dflash"};
  ASSIGN_OR_RETURN(auto model, LoadedModel::load(o.common, &every));
  if (o.peer_drafter.empty()) o.peer_drafter = o.common.draft_model;
  Measurement measurement("compare", "Beside other servers: the same weights, threads and prompts");
  ASSIGN_OR_RETURN(Cohort cohort, load_cohort(*model, o.cohort, o.classes));
  measurement.describe_model(*model, o.common);
  measurement.describe_cohort(cohort);
  for (BenchPrompt& p : cohort.prompts)
    if (p.tokens <= 0) p.tokens = o.tokens;
  OrderedJson& design = measurement.design();
  design["order"] =
      "every prompt meets all arms in mirrored order, twice a block; servers that are not asked are stopped meanwhile";
  design["timing"] =
      "decoding alone, as each program reports it; servers that do not are timed from their first piece of text on";
  design["blocks"] = o.blocks;
  design["warm_up_blocks"] = o.warm_blocks;
  design["tokens"] = o.tokens;
  {  // the servers' time is this program's once they have ended
    Comparison comparison(o, *model, measurement);
    TRY(comparison.open_peers());
    TRY(comparison.run(cohort.prompts, bench_progress(o.common)));
  }
  o.output.json = o.common.json;
  return measurement.finish(o.output);
}

}  // namespace

Command add_bench_compare(CLI::App& bench) {
  auto o = std::make_shared<BenchCompareOptions>();
  CLI::App* app = bench.add_subcommand("compare", "The same cohort on this program and on other servers, interleaved");
  add_common_options(*app, o->common);
  add_bench_output(*app, o->output, false);
  app->add_option("--llama", o->llama, "llama.cpp's server program; it is started on the same model and threads");
  app->add_option("--modes", o->modes, "Its speculation modes, comma separated")->capture_default_str();
  app->add_option("--peer-model", o->peer_model, "The GGUF file for it (default: the same as --model)");
  app->add_option("--peer-drafter", o->peer_drafter, "Its drafter file (default: --draft-model)");
  app->add_option("--url", o->urls, "NAME=URL of a running server that speaks OpenAI's completions (repeatable)")
      ->allow_extra_args(false);
  app->add_option("--cohort", o->cohort, "standard, holdout, or a JSON list of prompts")->capture_default_str();
  app->add_option("--classes", o->classes, "Only prompts of these classes")->delimiter(',');
  add_trial_blocks(*app, o->blocks, o->warm_blocks, 1);
  app->add_option("--tokens,-n", o->tokens, "Longest answer")->check(CLI::Range(2, 100000))->capture_default_str();
  return {app, [o] {
            const auto status = bench_compare(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
