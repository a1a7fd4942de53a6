// Part restore: answers that begin from a kept prefix, in memory, on the host beside a device, or on disk, against plain decoding from the first token; and what was
// drafted for them against the drafts of a run that computed everything itself.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "engine/disk_tier.h"
#include "qualify/engine_trial.h"

namespace foretoken {
namespace {

constexpr int64_t kShortest = 40;  // tokens of the shortest shared prefix: more than a page
constexpr int64_t kOwn = 12;       // tokens of a prompt behind its shared prefix
constexpr int kResidues = kPageTokens;
constexpr int kMostFamilies = 2 * kResidues;

enum class Scene : uint8_t { kCold, kRestored, kPartial, kEvicted, kBranched, kHost, kDisk };
constexpr std::array<const char*, 7> kSceneNames = {"cold", "restored", "partial", "evicted", "branched", "from the host", "from disk"};
constexpr size_t kHostBytes = size_t{4} << 30;  // taken as needed

// Texts of any length out of the prompts. `number` decides where it begins: different numbers share no page.
Tokens text(const Certifier& c, size_t number, int64_t length) {
  Tokens tokens;
  for (size_t p = number; static_cast<int64_t>(tokens.size()) < length; ++p) {
    const Tokens& prompt = c.prompt(p % c.prompts());
    const size_t turn = (number / c.prompts() * 5) % prompt.size();
    tokens.insert(tokens.end(), prompt.begin() + static_cast<ptrdiff_t>(turn), prompt.end());
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  }
  tokens.resize(static_cast<size_t>(length));
  return tokens;
}

// A prompt and two others that leave it at `shared`, each with a token that the others do not have there.
struct Family {
  size_t number;
  int64_t shared;
  Tokens whole, left, right;

  Family(const Certifier& c, size_t n, int64_t shared_tokens)
      : number(n), shared(shared_tokens), whole(text(c, n, shared + kOwn)), left(branch(c, n + 3, shared + kOwn - 5, 1)),
        right(branch(c, n + 4, shared + kOwn + 7, 2)) {}
  Tokens prefix() const { return {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(shared)}; }
  SamplingParams sampling() const { return certify_sampling(number % 2 == 0 ? 0.0f : 0.7f, 77 + number); }

 private:
  Tokens branch(const Certifier& c, size_t n, int64_t length, TokenId other) const {
    Tokens tokens = prefix(), own = text(c, n, length - shared);
    own[0] = (whole[static_cast<size_t>(shared)] + other) % c.vocab();
    tokens.insert(tokens.end(), own.begin(), own.end());
    return tokens;
  }
};

// All scenes of one route under one pinned plan.
class PlanScenes {
 public:
  PlanScenes(Certifier& c, Route route, VerifyMode mode) : c_(c), route_(route), plan_(pinned_plan(route, mode)) {
    const std::string plan = fmt::format("{} {}", route_name(route), verify_mode_name(mode));
    for (const char* scene : kSceneNames) cells_.push_back({.part = "restore", .name = plan + ", " + scene});
    if (!c.options().folder.empty()) folder_ = c.options().folder / plan;
    // Chains go through every residue of a page; live prefixes and trees share them.
    if (c.options().quick) step_ = 8;
    else if (mode != VerifyMode::kChain) step_ = 2;
    first_ = mode == VerifyMode::kTree ? step_ / 2 : 0;
  }

  // All residues, and again in other texts until every scene has drafted and rejected enough.
  Status run() {
    for (int n = 0; n < kMostFamilies && !failed() && (n < residues() || !enough()); n += residues()) {
      uninterrupted_.clear();
      TRY(keep_and_resend(n));
      TRY(part_and_branch(n));
    }
    for (CertifyCell& cell : cells_) {
      if (!has(cell)) continue;
      c_.demand_enough(cell);
      TRY(c_.finish(std::move(cell)));
    }
    return {};
  }
  const std::string& no_disk() const { return no_disk_; }  // why there was no cell of the disk; empty when there was

 private:
  CertifyCell& cell_of(Scene scene) { return cells_[static_cast<size_t>(scene)]; }
  int64_t tokens() const { return std::min(c_.options().tokens, 16); }
  bool failed() const {
    return std::any_of(cells_.begin(), cells_.end(), [](const CertifyCell& cell) { return cell.verdict == Verdict::kFail; });
  }
  bool enough() {
    return std::all_of(cells_.begin(), cells_.end(), [this](const CertifyCell& cell) { return c_.enough(cell) || !has(cell); });
  }
  // Whether the machine offers the cell's scene.
  bool has(const CertifyCell& cell) { return (&cell != &cell_of(Scene::kDisk) || on_disk_) && (&cell != &cell_of(Scene::kHost) || with_host_); }
  // The n-th family: shared prefixes end at this plan's residues in turn, and at others in other texts after that.
  Family family(int n) const {
    const int round = n / residues(), residue = (first_ + n % residues() * step_ + 3 * round) % kResidues;
    return Family(c_, static_cast<size_t>(round * kResidues + residue), kShortest + residue);
  }
  int residues() const { return kResidues / step_; }
  EngineOptions engine_options() const { return {.lanes = 2, .max_context = kShortest + kResidues + kOwn + 16 + tokens(), .cache = {.host_bytes = kHostBytes}}; }

  Result<Question> question(Scene scene, const Family& f, const Tokens& prompt) {
    ASSIGN_OR_RETURN(const PlainAnswer* expected, c_.plain(prompt, f.sampling(), tokens()));
    Question q{.cell = cell_of(scene), .expected = *expected, .name = fmt::format("prompt of {} tokens", prompt.size()),
               .request = {.prompt = prompt, .sampling = f.sampling(), .max_tokens = tokens()}};
    // One checkpoint where the family parts, and one a token later, which the others must not take.
    for (const int64_t at : {f.shared, f.shared + 1})
      if (at < static_cast<int64_t>(prompt.size())) q.request.boundaries.push_back(at);
    q.request.routes = {route_};
    q.request.speculation = plan_;
    return q;
  }
  Result<const TrialAnswer*> ask(EngineTrial& trial, Scene scene, const Family& f, const Tokens& prompt, int64_t cached) {
    ASSIGN_OR_RETURN(Question q, question(scene, f, prompt));
    ASSIGN_OR_RETURN(const TrialAnswer* answer, trial.ask(std::move(q)));
    demand_cached(scene, *answer, cached);
    return answer;
  }
  void demand_cached(Scene scene, const TrialAnswer& answer, int64_t cached) {
    CertifyCell& cell = cell_of(scene);
    if (cell.verdict != Verdict::kPass || answer.result->cached_tokens == cached) return;
    cell.verdict = Verdict::kInconclusive;
    cell.detail = fmt::format("prompt of {} tokens: {} of them were restored instead of {} ({})", answer.result->prompt_tokens, answer.result->cached_tokens, cached,
                              answer.result->cache_note);
  }
  // The entry held the drafter's memory too, so that its drafts are those of the run that computed everything.
  void compare_drafts(Scene scene, const TrialAnswer& uninterrupted, const TrialAnswer& restored) {
    CertifyCell& cell = cell_of(scene);
    cell.compared_drafts += static_cast<int64_t>(uninterrupted.cycles.size());
    if (const std::string where = difference(uninterrupted.cycles, restored.cycles); !where.empty())
      fail(cell, fmt::format("prompt of {} tokens: {}", restored.result->prompt_tokens, where));
  }

  // Cold, sent again, sent again when the prefix had to leave the device's memory, and to an engine that finds it on disk only.
  Status keep_and_resend(int first) {
    std::unique_ptr<DiskTier> disk = open_disk();
    {
      EngineTrial trial(c_, engine_options(), disk.get());
      for (int n = first; n < first + residues() && !failed(); ++n) {
        const Family f = family(n);
        ASSIGN_OR_RETURN(const TrialAnswer* cold, ask(trial, Scene::kCold, f, f.whole, 0));
        ASSIGN_OR_RETURN(const TrialAnswer* again, ask(trial, Scene::kRestored, f, f.whole, f.shared + 1));
        compare_drafts(Scene::kRestored, *cold, *again);
        TRY(resend_from_host(trial, f, *cold));
        uninterrupted_.push_back(*cold);
        trial.engine().cache().clear();
        if (disk) disk->flush();
      }
    }
    disk.reset();
    if (on_disk_) TRY(resend_from_disk(first));
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
    return {};
  }

  Status resend_from_host(EngineTrial& trial, const Family& f, const TrialAnswer& cold) {
    const auto before = trial.engine().status().host;
    with_host_ = before.has_value();
    if (!with_host_) return {};
    while (trial.engine().cache().evict()) {}
    ASSIGN_OR_RETURN(const TrialAnswer* back, ask(trial, Scene::kHost, f, f.whole, f.shared + 1));
    compare_drafts(Scene::kHost, cold, *back);
    CertifyCell& cell = cell_of(Scene::kHost);
    if (cell.verdict != Verdict::kPass || trial.engine().status().host->hits > before->hits) return {};
    cell.verdict = Verdict::kInconclusive;
    cell.detail = fmt::format("prompt of {} tokens: its prefix did not come from the host", f.whole.size());
    return {};
  }

  Status resend_from_disk(int first) {
    const std::unique_ptr<DiskTier> disk = open_disk();
    EngineTrial trial(c_, engine_options(), disk.get());
    for (size_t n = 0; n < uninterrupted_.size() && !failed(); ++n) {
      const Family f = family(first + static_cast<int>(n));
      ASSIGN_OR_RETURN(const TrialAnswer* again, ask(trial, Scene::kDisk, f, f.whole, f.shared));
      compare_drafts(Scene::kDisk, uninterrupted_[n], *again);
      trial.engine().cache().clear();
    }
    return {};
  }

  std::unique_ptr<DiskTier> open_disk() {
    if (folder_.empty()) {
      no_disk_ = "no folder was given";
      return nullptr;
    }
    auto tier = DiskTier::open({.folder = folder_, .fingerprint = "certificate", .page_bytes = c_.engine_target().pages().layout().page_bytes(),
                                .write_bytes_per_hour = 0, .least_free_bytes = 0, .least_gain_tokens = kShortest},
                               files_, c_.clock());
    on_disk_ = tier->statistics().writable;
    no_disk_ = tier->statistics().note;
    if (!on_disk_) tier.reset();
    return tier;
  }

  // Another prompt with the same beginning; the same with nothing kept; and two at once from one kept prefix.
  Status part_and_branch(int first) {
    EngineTrial trial(c_, engine_options());
    PrefixCache& cache = trial.engine().cache();
    for (size_t n = 0; n < uninterrupted_.size() && !failed(); ++n) {
      const Family f = family(first + static_cast<int>(n));
      cache.clear();
      ASSIGN_OR_RETURN(const TrialAnswer* left, ask(trial, Scene::kEvicted, f, f.left, 0));
      ASSIGN_OR_RETURN(const TrialAnswer* partial, ask(trial, Scene::kPartial, f, f.right, f.shared));
      cache.clear();
      ASSIGN_OR_RETURN(const TrialAnswer* right, ask(trial, Scene::kEvicted, f, f.right, 0));
      compare_drafts(Scene::kPartial, *right, *partial);
      TRY(branch(trial, f, *left, uninterrupted_[n]));
    }
    return {};
  }

  // The two others at once, from the prefix that one answer has left.
  Status branch(EngineTrial& trial, const Family& f, const TrialAnswer& left, const TrialAnswer& whole) {
    const uint64_t before = c_.engine_target().rows_run();
    std::array<const TrialAnswer*, 2> answers{};
    for (size_t i = 0; i < 2; ++i) {
      ASSIGN_OR_RETURN(Question q, question(Scene::kBranched, f, i == 0 ? f.left : f.whole));
      ASSIGN_OR_RETURN(answers[i], trial.submit(std::move(q)));
    }
    TRY(trial.run());
    const int64_t ran = static_cast<int64_t>(c_.engine_target().rows_run() - before);
    if (ran != answers[0]->rows() + answers[1]->rows())
      fail(cell_of(Scene::kBranched), fmt::format("{} rows ran and {} were told", ran, answers[0]->rows() + answers[1]->rows()));
    for (const TrialAnswer* answer : answers) demand_cached(Scene::kBranched, *answer, f.shared);
    compare_drafts(Scene::kBranched, left, *answers[0]);
    compare_drafts(Scene::kBranched, whole, *answers[1]);
    return {};
  }

  Certifier& c_;
  Route route_;
  SpeculationOptions plan_;
  int first_ = 0, step_ = 1;  // of the residues
  std::vector<CertifyCell> cells_;
  std::vector<TrialAnswer> uninterrupted_;  // of each family's whole prompt, computed from its first token
  std::filesystem::path folder_;
  PosixFiles files_;
  bool on_disk_ = false, with_host_ = false;
  std::string no_disk_;
};

// A prefix whose entry has nothing of the drafter (a request without speculation left it), against a run that computed everything. A window
// that the restored run has filled with rows of its own holds what the other's holds: from there on the drafts are the same. A drafter
// that attends to everything has no such window; its acceptance is compared behind the same number of tokens.
class WithoutEntry {
 public:
  WithoutEntry(Certifier& c, Route route) : c_(c), route_(route), plan_(pinned_plan(route, VerifyMode::kChain)) {
    if (route == Route::kBlock) reach_ = c.drafts().block()->config().context_reach();
  }

  Status run() {
    CertifyCell cell{.part = "restore", .name = fmt::format("{} chain, without the drafter's entry", route_name(route_))};
    for (size_t n = 0; n < kPrompts && cell.verdict == Verdict::kPass && !(c_.options().quick && c_.enough(cell)); ++n) TRY(compare(cell, n));
    c_.demand_enough(cell);
    if (cell.verdict == Verdict::kPass) cell.detail = report();
    if (cell.verdict == Verdict::kPass && reach_ < 0 && ratio() < kLeastRatio) cell.verdict = Verdict::kInconclusive;
    return c_.finish(std::move(cell));
  }

 private:
  static constexpr size_t kPrompts = 6;
  static constexpr int64_t kKept = 64;       // tokens of the kept prefix
  static constexpr int64_t kUnbounded = 128; // tokens that stand for the window of a drafter that has none
  static constexpr double kLeastRatio = 0.9;

  int64_t window() const { return reach_ >= 0 ? reach_ : kUnbounded; }
  double ratio() const { return uninterrupted_ > 0 ? static_cast<double>(restored_) / static_cast<double>(uninterrupted_) : 1; }
  std::string report() const {
    if (reach_ >= 0) return fmt::format("the same drafts once a window of {} tokens was computed again", window());
    return fmt::format("{} accepted against {} behind {} tokens computed again", restored_, uninterrupted_, window());
  }

  Status compare(CertifyCell& cell, size_t n) {
    const Tokens prompt = text(c_, n, kKept + window() + kOwn);
    const int64_t tokens = std::min(c_.options().tokens, 64);
    const SamplingParams sampling = certify_sampling(n % 2 == 0 ? 0.0f : 0.7f, 7 + n);
    ASSIGN_OR_RETURN(const PlainAnswer* expected, c_.plain(prompt, sampling, tokens));
    EngineTrial trial(c_, {.lanes = 1, .max_context = static_cast<int64_t>(prompt.size()) + tokens});
    const auto question = [&] {
      Question q{.cell = cell, .expected = *expected, .name = fmt::format("prompt of {} tokens", prompt.size()), .request = {.prompt = prompt, .sampling = sampling, .max_tokens = tokens}};
      q.request.routes = {route_};
      q.request.speculation = plan_;
      return q;
    };
    TRY(keep_plainly(trial, cell, prompt));
    ASSIGN_OR_RETURN(const TrialAnswer* restored, trial.ask(question()));
    if (restored->result->cached_tokens != kKept) {
      cell.verdict = Verdict::kInconclusive;
      cell.detail = fmt::format("{} tokens were restored instead of {}", restored->result->cached_tokens, kKept);
      return {};
    }
    trial.engine().cache().clear();
    ASSIGN_OR_RETURN(const TrialAnswer* cold, trial.ask(question()));
    restored_ += restored->result->counters.accepted;
    uninterrupted_ += cold->result->counters.accepted;
    if (reach_ < 0) return {};
    cell.compared_drafts += static_cast<int64_t>(cold->cycles.size());
    if (const std::string where = difference(cold->cycles, restored->cycles); !where.empty()) fail(cell, fmt::format("prompt {}: {}", n, where));
    return {};
  }

  Status keep_plainly(EngineTrial& trial, CertifyCell& cell, const Tokens& prompt) {
    const Tokens kept(prompt.begin(), prompt.begin() + kKept);
    ASSIGN_OR_RETURN(const PlainAnswer* expected, c_.plain(kept, certify_sampling(0, 0), 1));
    Question q{.cell = cell, .expected = *expected, .name = "kept prefix", .request = {.prompt = kept, .max_tokens = 1}};
    q.request.speculate = false;
    TRY(trial.ask(std::move(q)));
    return {};
  }

  Certifier& c_;
  Route route_;
  SpeculationOptions plan_;
  int64_t reach_ = -1;  // rows of context that the drafter can see; negative: all
  int64_t restored_ = 0, uninterrupted_ = 0;  // accepted
};

}  // namespace

Status certify_restore(Certifier& c) {
  std::string no_disk;
  for (const Route route : c.routes())
    for (const VerifyMode mode : {VerifyMode::kChain, VerifyMode::kLive, VerifyMode::kTree}) {
      PlanScenes scenes(c, route, mode);
      TRY(scenes.run());
      no_disk = scenes.no_disk();
    }
  if (!no_disk.empty()) c.leave_out("prefixes from disk: " + no_disk);
  for (const Route route : c.routes())
    if (route != Route::kCopy) TRY(WithoutEntry(c, route).run());
  return {};
}

}  // namespace foretoken
