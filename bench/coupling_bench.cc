// What the target's own noise is worth to a block drafter of sampled requests. Along plain sampled answers it drafts at every position and
// compares expected tokens per cycle, averaged over all positions: greedy answers; drafts that choose with the target's noise (as the
// product does); with noise of their own; by the largest score; and the bound, what optimal coupling accepts on the same nodes: a token x
// of the answer passes with probability min(1, q(x) / p(x)), p the target's and q the drafter's filtered distribution after the same
// prefix, so that a node passes with the sum of min(p, q) on average.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>

#include "cohort.h"
#include "decode/generation.h"

namespace foretoken {
namespace {

struct Options {
  std::string model = "models/demo-dense", drafter, cohort = "bench/cohort.json";
  std::vector<double> temperatures = {0.7, 1.0};
  int tokens = 160, threads = 0, seeds = 2;
};

// A lattice that outlives the pass it came from.
struct Lattice {
  DflashDraft shape;
  std::vector<TokenId> candidates;
  std::vector<float> unary, edges;
  explicit Lattice(const DflashDraft& d)
      : shape(d), candidates(d.candidates.begin(), d.candidates.end()), unary(d.unary.begin(), d.unary.end()), edges(d.edges.begin(), d.edges.end()) {
    shape.candidates = candidates;
    shape.unary = unary;
    shape.edges = edges;
  }
  Lattice(const Lattice&) = delete;
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<double> p;  // p[i]: filtered probability of tokens[i]
  std::vector<std::unique_ptr<Lattice>> lattices;  // [i]: drafted when tokens[i] was the anchor
};

SamplingParams sampling_of(double temperature, uint64_t seed) {
  SamplingParams s{.temperature = static_cast<float>(temperature), .seed = seed};
  if (temperature > 0) s.top_k = 20, s.top_p = 0.95f;
  return s;
}

Result<Answer> decode(TargetModel& target, DflashModel& block, const std::vector<TokenId>& prompt, const SamplingParams& sampling, int tokens) {
  Answer answer;
  auto lane = target.make_lane();
  auto window = block.make_lane();
  Sampler sampler;
  Status status;
  std::vector<TokenId> chunk = prompt;
  while (static_cast<int>(answer.tokens.size()) < tokens) {
    const std::vector<int64_t> last = {static_cast<int64_t>(chunk.size()) - 1};
    run_prompt(target, *lane, chunk, 256, last, [&](int64_t first, int64_t rows, const ForwardResult& r) {
      std::vector<int> all;
      for (int i = 0; i < rows; ++i) all.push_back(i);
      const DflashContext context{.lane = window.get(), .rows = all};
      block.extend(r.taps, {&context, 1});
      if (first + rows < static_cast<int64_t>(chunk.size())) return true;
      const std::span<const float> logits(r.logits.f32(), static_cast<size_t>(r.logits.cols));
      const auto token = sampler.select(logits, sampling, static_cast<uint64_t>(lane->length()));
      const auto kept = sampler.kept(logits, sampling);
      if (!token || !kept) {
        status = token ? kept.error() : token.error();
        return true;
      }
      double sum = 0, own = 0;
      for (const Sampler::Candidate& c : *kept) {
        sum += std::exp(static_cast<double>(c.z));
        if (c.id == *token) own = std::exp(static_cast<double>(c.z));
      }
      answer.tokens.push_back(*token);
      answer.p.push_back(own / sum);
      return true;
    }, block.config().taps);
    TRY(status);
    const DflashBlock one{.lane = window.get(), .anchor = answer.tokens.back(), .rows = block.config().block_size};
    answer.lattices.push_back(std::make_unique<Lattice>(block.draft({&one, 1})[0]));
    chunk = {answer.tokens.back()};
  }
  return answer;
}

std::vector<ScoredCandidate> scored(const DflashDraft& lattice, int slot, int previous) {
  std::vector<ScoredCandidate> all;
  for (int k = 0; k < lattice.top_k; ++k) all.push_back({lattice.candidate(slot, k), lattice.score(slot, previous, k)});
  return all;
}

// The drafter's filtered distribution without noise, of `token`.
double filtered(std::vector<ScoredCandidate> all, const SamplingParams& s, TokenId token) {
  std::sort(all.begin(), all.end(), [](const ScoredCandidate& a, const ScoredCandidate& b) { return a.score != b.score ? a.score > b.score : a.token < b.token; });
  if (s.greedy()) return all[0].token == token ? 1 : 0;
  if (s.top_k > 0 && all.size() > static_cast<size_t>(s.top_k)) all.resize(static_cast<size_t>(s.top_k));
  std::vector<double> mass;
  double sum = 0;
  for (const ScoredCandidate& c : all) sum += mass.emplace_back(std::exp((static_cast<double>(c.score) - all[0].score) / s.temperature));
  double before = 0, kept = 0, own = 0;
  for (size_t i = 0; i < all.size() && before < s.top_p; before += mass[i++] / sum) {
    kept += mass[i];
    if (all[i].token == token) own = mass[i];
  }
  return own / kept;
}

// How many leading tokens of the answer behind position `at` a chain drafted with `s` hits.
int hits(const Answer& answer, size_t at, const SamplingParams& s, int64_t position) {
  const DflashDraft& lattice = answer.lattices[at]->shape;
  std::vector<RankedCandidate> ranked;
  int previous = 0, count = 0;
  for (int slot = 0; slot < lattice.slots; ++slot) {
    const auto candidates = scored(lattice, slot, previous);
    rank_candidates(candidates, s, nullptr, {}, position + slot, ranked);
    if (ranked.empty() || ranked[0].token != answer.tokens[at + 1 + static_cast<size_t>(slot)]) break;
    previous = ranked[0].index;
    ++count;
  }
  return count;
}

double bound(const Answer& answer, size_t at, const SamplingParams& s) {
  const DflashDraft& lattice = answer.lattices[at]->shape;
  double passed = 1, sum = 0;
  int previous = 0;
  for (int slot = 0; slot < lattice.slots; ++slot) {
    const size_t next = at + 1 + static_cast<size_t>(slot);
    const double q = filtered(scored(lattice, slot, previous), s, answer.tokens[next]);
    if (q == 0) break;
    passed *= std::min(1.0, q / answer.p[next]);
    sum += passed;
    previous = 0;
    while (lattice.candidate(slot, previous) != answer.tokens[next]) ++previous;
  }
  return sum;
}

struct Sums {
  double positions = 0, greedy_positions = 0, greedy = 0, coupled = 0, own_noise = 0, largest = 0, bound = 0;
};

Status run(const Options& o) {
  app::CommonOptions common{.model = o.model, .threads = o.threads, .draft_model = o.drafter};
  const app::SpeculationFlags every{.speculate = "dflash"};
  ASSIGN_OR_RETURN(auto loaded, app::LoadedModel::load(common, &every));
  if (!loaded->drafts()->block()) return Error{ErrorCode::kUsage, o.model + " has no block drafter: " + loaded->drafts()->resolution().drafter.reason};
  DflashModel& block = *loaded->drafts()->block();
  ASSIGN_OR_RETURN(const auto prompts, bench::load_cohort(*loaded, o.cohort));
  fmt::print("{}: {}, {} tokens, {} seeds, top-k 20, top-p 0.95; cohort {}\n", o.model, loaded->backend().info().detail, o.tokens, o.seeds, o.cohort);
  const auto each_position = [&](const Answer& answer, const auto& visit) {
    const size_t slots = static_cast<size_t>(answer.lattices[0]->shape.slots);
    for (size_t at = 0; at + slots < answer.tokens.size(); ++at) visit(at);
  };
  std::map<std::string, Sums> greedy;
  for (const bench::Prompt& prompt : prompts) {
    ASSIGN_OR_RETURN(const Answer answer, decode(loaded->target(), block, prompt.ids, sampling_of(0, 1), o.tokens));
    each_position(answer, [&](size_t at) {
      for (const std::string& key : {prompt.kind, std::string("all")}) {
        greedy[key].greedy += 1 + hits(answer, at, sampling_of(0, 1), 0);
        greedy[key].greedy_positions += 1;
      }
    });
  }
  for (const double temperature : o.temperatures) {
    std::map<std::string, Sums> sums = greedy;
    for (const bench::Prompt& prompt : prompts)
      for (int seed = 0; seed < o.seeds; ++seed) {
        const SamplingParams s = sampling_of(temperature, static_cast<uint64_t>(101 + 13 * seed));
        SamplingParams other = s, largest = s;
        other.seed ^= 0x5DEECE66Dull;
        largest.temperature = 0;
        ASSIGN_OR_RETURN(const Answer answer, decode(loaded->target(), block, prompt.ids, s, o.tokens));
        each_position(answer, [&](size_t at) {
          const int64_t position = static_cast<int64_t>(prompt.ids.size() + at) + 1;  // of the first guess
          const double coupled = 1 + hits(answer, at, s, position), own = 1 + hits(answer, at, other, position);
          const double top = 1 + hits(answer, at, largest, position), most = 1 + bound(answer, at, s);
          for (const std::string& key : {prompt.kind, std::string("all")}) {
            Sums& sum = sums[key];
            sum.positions += 1;
            sum.coupled += coupled;
            sum.own_noise += own;
            sum.largest += top;
            sum.bound += most;
          }
        });
      }
    fmt::print("\nT={:g}: tokens per cycle over all positions\n{:<16} {:>9} {:>8} {:>8} {:>9} {:>10} {:>8} {:>14} {:>15}\n", temperature, "class", "positions", "greedy",
               "coupled", "own noise", "by largest", "bound", "coupled/bound", "coupled/greedy");
    for (const auto& [kind, s] : sums)
      fmt::print("{:<16} {:>9.0f} {:>8.3f} {:>8.3f} {:>9.3f} {:>10.3f} {:>8.3f} {:>13.1f}% {:>14.1f}%\n", kind, s.positions, s.greedy / s.greedy_positions,
                 s.coupled / s.positions, s.own_noise / s.positions, s.largest / s.positions, s.bound / s.positions, 100 * s.coupled / s.bound,
                 100 * s.coupled / s.positions / (s.greedy / s.greedy_positions));
  }
  return {};
}

}  // namespace
}  // namespace foretoken

int main(int argc, char** argv) {
  foretoken::Options o;
  CLI::App program("Sampled requests: what coupled drafts accept against optimal coupling");
  program.add_option("--model,-m", o.model, "bundle")->capture_default_str();
  program.add_option("--draft-model", o.drafter, "drafter (default: beside the weights)");
  program.add_option("--cohort", o.cohort, "JSON list of prompts")->capture_default_str();
  program.add_option("--temperature", o.temperatures, "temperatures")->delimiter(',')->capture_default_str();
  program.add_option("--tokens,-n", o.tokens, "tokens of an answer")->check(CLI::Range(16, 4096));
  program.add_option("--seeds", o.seeds, "sampled answers of each prompt")->check(CLI::PositiveNumber);
  program.add_option("--threads,-t", o.threads, "threads (0: all)")->check(CLI::Range(0, 64));
  CLI11_PARSE(program, argc, argv);
  const auto status = foretoken::run(o);
  if (status) return 0;
  fmt::print(stderr, "coupling_bench: {}\n", status.error().message);
  return foretoken::exit_status(status.error().code);
}
