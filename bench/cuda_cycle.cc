// Decode cycles of the released shapes on the CUDA backend, with random Q4_K weights: draft, verify, choose, commit, extend the
// drafter's memory, with the parts that decode sequences (decode/). What would be accepted is replayed: so many tokens a cycle as
// published acceptance gives, in a fixed order. Each pass is verified whole and costs what it costs; only which of its rows join the
// sequence is prescribed. Figures are medians of host times.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>

#include "decode/drafter.h"
#include "decode/pass.h"
#include "decode/proposal.h"
#include "decode/rows.h"
#include "decode/sampling.h"
#include "random_shapes.h"
#include "timing.h"

namespace foretoken {
namespace {

struct Options {
  std::string shape = "27b", drafter = "dflash";
  std::vector<double> tokens = {3.2, 4.8, 6.2};
  std::vector<int> rows = {8}, lanes = {1};
  int layers = 0, prefix = 1024, cycles = 48;
  int64_t filled = 0;
  double temperature = 0;
  bool no_graphs = false;
};

struct Times {
  std::vector<double> draft, verify, settle, whole;
};

// One lane of the benchmark: what it drafts with and where it stands.
struct Lane {
  std::unique_ptr<LaneState> state;
  std::unique_ptr<Drafter> drafter;
  TokenId anchor = 1;
  double owed = 0;  // tokens that the replayed acceptance is behind its mean
};

class Cycles {
 public:
  Cycles(const Options& o, Backend& backend) : o_(o), backend_(backend), config_(config_of(o.shape, o.layers)),
      blocks_(size_t{248320} * row_bytes(QuantFormat::kQ4_K, config_.hidden)),
      weights_(random_weights(config_, backend, blocks_, config_.vocab)),
      target_(config_, weights_, backend, {.max_rows = 1024, .tape_rows = 72}) {
    sampling_.temperature = static_cast<float>(o.temperature);
    sampling_.top_k = o.temperature > 0 ? 20 : 0;
    sampling_.top_p = o.temperature > 0 ? 0.95f : 1.0f;
    if (o.drafter == "dflash") {
      const DflashConfig d = drafter_config_of(o.shape, config_);
      block_ = std::make_unique<DflashModel>(config_, weights_, backend, DflashOptions{}, d, random_drafter(d, backend, blocks_));
    }
    if (o.drafter == "mtp") {
      mtp_weights_ = std::make_unique<MtpWeights>(random_mtp(config_, backend, blocks_));
      head_ = std::make_unique<MtpHead>(config_, weights_, *mtp_weights_, backend, MtpOptions{});
    }
  }

  void measure(int lanes, int rows) {
    std::vector<Lane> group;
    for (int i = 0; i < lanes; ++i) group.push_back(make_lane());
    if (rows > 1)
      for (const double tokens : o_.tokens) report(group, rows, tokens);
    else report(group, 1, 1);
  }

 private:
  Lane make_lane() {
    Lane lane{.state = target_.make_lane(), .drafter = nullptr};
    if (block_) lane.drafter = make_block_drafter(*block_);
    if (head_) lane.drafter = make_mtp_drafter(config_, *head_);
    if (o_.filled > 0) fill_context(target_, *lane.state, o_.filled);
    const std::vector<TokenId> before(static_cast<size_t>(o_.filled));
    if (lane.drafter) lane.drafter->restart(before);
    const int chunk = std::min(512, o_.prefix);
    for (int done = 0; done < o_.prefix; done += chunk) {
      Pass pass;
      std::vector<RowInput> inputs;
      std::vector<TokenId> tokens;
      for (int i = 0; i < chunk; ++i) {
        tokens.push_back((done + i) * 37 % config_.vocab);
        inputs.push_back(text_row(tokens.back(), o_.filled + done + i));
      }
      pass.add(*lane.state, inputs, chunk, {}, Pass::Logits::kNone, taps(lane));
      const ForwardResult result = pass.run(target_);
      std::vector<int> all(static_cast<size_t>(chunk));
      std::iota(all.begin(), all.end(), 0);
      target_.commit(*lane.state, all);
      if (lane.drafter)
        lane.drafter->observe({.first = o_.filled + done, .tokens = tokens, .next = lane.anchor, .rows = all, .hidden = result.hidden.computed(),
                               .taps = result.taps.computed(), .upcoming = o_.prefix - done - chunk});
    }
    return lane;
  }

  static std::span<const int> taps(const Lane& lane) {
    return lane.drafter ? std::span<const int>(lane.drafter->needs().tap_layers) : std::span<const int>();
  }

  // One cycle of all lanes, `rows` each; returns the tokens that joined.
  int cycle(std::vector<Lane>& lanes, int rows, double tokens, Times& times) {
    const double begin = seconds();
    std::vector<Draft> drafts(lanes.size());
    if (rows > 1) {
      std::vector<Drafter*> drafters;
      std::vector<DraftRequest> requests;
      for (Lane& lane : lanes) {
        drafters.push_back(lane.drafter.get());
        requests.push_back({.position = lane.state->length() + 1, .anchor = lane.anchor, .depth = rows - 1, .nodes = rows - 1, .insist = true,
                            .sampling = &sampling_});
      }
      drafters[0]->propose_group(drafters, requests, drafts);
    }
    const double drafted = seconds();
    Pass pass;
    std::vector<Pass::Share> shares;
    std::vector<std::vector<RowInput>> inputs;
    for (size_t l = 0; l < lanes.size(); ++l) {
      const int64_t first = lanes[l].state->length();
      inputs.push_back({text_row(lanes[l].anchor, first)});
      for (const DraftNode& node : drafts[l].nodes) inputs.back().push_back(text_row(node.token, first + static_cast<int64_t>(inputs.back().size())));
      CHECK(static_cast<int>(inputs.back().size()) == rows);
      std::vector<ChoiceSpec> choices;
      for (int i = 0; i < rows; ++i) choices.push_back(Sampler::spec(sampling_, static_cast<uint64_t>(first + 1 + i)));
      shares.push_back(pass.add(*lanes[l].state, inputs.back(), 1, {}, Pass::Logits::kAll, taps(lanes[l]), choices));
    }
    const ForwardResult result = pass.run(target_);
    const double verified = seconds();
    int joined = 0;
    for (size_t l = 0; l < lanes.size(); ++l) {
      Lane& lane = lanes[l];
      lane.owed += tokens;
      const int take = std::clamp(static_cast<int>(lane.owed), 1, rows);
      lane.owed -= take;
      std::vector<int> path, in_pass;
      std::vector<TokenId> committed;
      const int64_t first = lane.state->length();
      for (int i = 0; i < take; ++i) {
        const auto token = sampler_.select(*result.choices, shares[l].first_logits + i, config_.vocab, sampling_, static_cast<uint64_t>(first + 1 + i));
        CHECK(token.has_value());
        path.push_back(i);
        in_pass.push_back(shares[l].first_row + i);
        committed.push_back(inputs[l][static_cast<size_t>(i)].token);
        lane.anchor = *token;
      }
      target_.commit(*lane.state, path);
      if (lane.drafter)
        lane.drafter->observe({.first = first, .tokens = committed, .next = lane.anchor, .rows = in_pass, .hidden = result.hidden.computed(),
                               .taps = result.taps.computed()});
      joined += take;
    }
    const double end = seconds();
    times.draft.push_back(drafted - begin);
    times.verify.push_back(verified - drafted);
    times.settle.push_back(end - verified);
    times.whole.push_back(end - begin);
    return joined;
  }

  void report(std::vector<Lane>& lanes, int rows, double tokens) {
    Times times, warm;
    for (int i = 0; i < 24; ++i) cycle(lanes, rows, tokens, warm);  // every number of accepted rows has had its graph
    int64_t joined = 0;
    for (int i = 0; i < o_.cycles; ++i) joined += cycle(lanes, rows, tokens, times);
    const double each = static_cast<double>(joined) / o_.cycles, whole = median(times.whole);
    fmt::print("{:>2} lanes, {:>2} rows each, {:4.2f} tokens a cycle and lane: {:8.1f} tokens/s together; cycle {:6.2f} ms: draft {:5.2f} ({:2.0f} %), "
               "verify {:6.2f}, settle {:5.2f}; at position {}\n",
               lanes.size(), rows, each / static_cast<double>(lanes.size()), each / whole, whole * 1e3, median(times.draft) * 1e3,
               100 * median(times.draft) / whole, median(times.verify) * 1e3, median(times.settle) * 1e3, lanes[0].state->length());
    std::fflush(stdout);
  }

  const Options& o_;
  Backend& backend_;
  const ModelConfig config_;
  RandomBlocks blocks_;
  const Weights weights_;
  TargetModel target_;
  std::unique_ptr<DflashModel> block_;
  std::unique_ptr<MtpWeights> mtp_weights_;
  std::unique_ptr<MtpHead> head_;
  SamplingParams sampling_;
  Sampler sampler_;
};

int run(const Options& o) {
  auto made = make_cuda_backend({.graphs = !o.no_graphs});
  if (!made) {
    fmt::print(stderr, "cuda_cycle: {}\n", made.error().message);
    return 4;
  }
  fmt::print("device: {}\n{} shape, random Q4_K weights, drafter {} (Q4_K), acceptance is replayed, temperature {}\n", (*made)->info().detail, o.shape,
             o.drafter, o.temperature);
  Cycles cycles(o, **made);
  for (const int lanes : o.lanes)
    for (const int rows : o.rows)
      if (lanes * rows <= 1024) cycles.measure(lanes, rows);
  return 0;
}

}  // namespace
}  // namespace foretoken

int main(int argc, char** argv) {
  foretoken::Options o;
  CLI::App app("Times decode cycles of released shapes on the CUDA backend", "cuda_cycle");
  app.add_option("--shape", o.shape, "27b or a3b")->check(CLI::IsMember({"27b", "a3b"}))->capture_default_str();
  app.add_option("--drafter", o.drafter, "dflash, mtp or none")->check(CLI::IsMember({"dflash", "mtp", "none"}))->capture_default_str();
  app.add_option("--layers", o.layers, "Layers (0: all)")->capture_default_str();
  app.add_option("--rows", o.rows, "Rows of a lane's verification, the anchor's included (1: plain)")->delimiter(',')->capture_default_str();
  app.add_option("--lanes", o.lanes, "Lanes that decode together")->delimiter(',')->capture_default_str();
  app.add_option("--tokens", o.tokens, "Tokens a cycle, replayed")->delimiter(',')->capture_default_str();
  app.add_option("--prefix", o.prefix, "Tokens of every lane before its first cycle")->capture_default_str();
  app.add_option("--filled", o.filled, "Tokens before those, of keys and values that nothing computed (a multiple of 32)")->capture_default_str();
  app.add_option("--cycles", o.cycles, "Timed cycles of each kind")->capture_default_str();
  app.add_option("--temperature", o.temperature, "0: greedy; else with top_k 20 and top_p 0.95")->capture_default_str();
  app.add_flag("--no-graphs", o.no_graphs, "Launch kernels one by one, for tools that time them");
  CLI11_PARSE(app, argc, argv);
  return foretoken::run(o);
}
