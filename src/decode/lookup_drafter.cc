// Suffix copy: the longest earlier occurrence of the current suffix is continued. A running copy is followed token by token, so that a
// small edit does not end it: behind a mismatch the source is found again, and what was replaced by what is remembered and applied where
// the source has it again (a rename through a whole file copies straight through). Deterministic; bounded work per token.
#include <algorithm>
#include <array>

#include "decode/drafter.h"

namespace foretoken {
namespace {

constexpr int kGram = 3;               // tokens hashed per index entry
constexpr int kProbes = 16;            // earlier occurrences compared per search
constexpr int64_t kLongestMatch = 256;  // tokens compared backwards per occurrence
constexpr int64_t kLongCopy = 64;      // tokens after which a copy is trusted across edits
constexpr int64_t kSettledRun = 32;    // a copy this long is not searched for anew
constexpr int64_t kResyncWindow = 64;  // source tokens searched behind a mismatch
constexpr int64_t kLostTokens = 48;    // a mismatch this long ago ends the copy
constexpr int64_t kGuessedTokens = 3;  // an edit that has written more is not guessed to be over
constexpr int64_t kFreshRun = 8;       // a mismatch this soon after finding the source again continues the same edit
constexpr size_t kEdits = 32;          // replacements remembered
constexpr size_t kEditTokens = 16;     // longest side of one

// Every token's position by the hash of the kGram tokens that end there, newest first.
class GramIndex {
 public:
  void clear() {
    heads_.assign(1 << 10, -1);
    previous_.clear();
  }
  // Adds the gram ending at the next position; positions are added in order.
  void add(std::span<const TokenId> tokens) {
    const size_t position = previous_.size();
    if (position + 1 < kGram) {
      previous_.push_back(-1);
      return;
    }
    if (position >= heads_.size()) grow(tokens);
    int32_t& head = heads_[slot(tokens, position)];
    previous_.push_back(head);
    head = static_cast<int32_t>(position);
  }
  // The newest added position whose gram may equal the one ending at `end`; -1: none.
  int64_t newest(std::span<const TokenId> tokens, size_t end) const { return heads_[slot(tokens, end)]; }
  int64_t older(int64_t position) const { return previous_[static_cast<size_t>(position)]; }
  size_t size() const { return previous_.size(); }

 private:
  size_t slot(std::span<const TokenId> tokens, size_t end) const {
    uint64_t h = 0;
    for (size_t i = 0; i < kGram; ++i) h = (h ^ static_cast<uint32_t>(tokens[end - i])) * 0x9E3779B97F4A7C15ull;
    return (h >> 32) & (heads_.size() - 1);
  }
  void grow(std::span<const TokenId> tokens) {
    heads_.assign(heads_.size() * 2, -1);
    for (size_t p = kGram - 1; p < previous_.size(); ++p) {
      int32_t& head = heads_[slot(tokens, p)];
      previous_[p] = head;
      head = static_cast<int32_t>(p);
    }
  }
  std::vector<int32_t> heads_ = std::vector<int32_t>(1 << 10, -1);  // a power of two
  std::vector<int32_t> previous_;
};

// "Where the source said `before`, the answer says `after`."
struct Edit {
  std::vector<TokenId> before, after;
  std::array<TokenId, 2> left{-1, -1};  // the two source tokens in front; asked for when `before` is empty
  int hits = 0, misses = 0;
};

// Where a copy stands: the next expected token is history[source], or after[offset] of an edit that replaces from `source`.
struct Cursor {
  int64_t source = -1;
  int edit = -1;
  size_t offset = 0;
  int64_t literal = -1;  // at this source position edits are not applied
};

// How often the followed source gave the next token, by how long it had matched.
class MatchStatistics {
 public:
  static constexpr int kLostBucket = 0, kEditBucket = 1;
  static int bucket(int64_t run) {
    int b = 2;
    for (const int64_t edge : {4, 5, 7, 10, 16, 32, 64, 128})
      if (run >= edge) ++b;
    return b;
  }
  float probability(int bucket) const {
    const Bucket& b = buckets_[static_cast<size_t>(bucket)];
    return (b.hits + kWeight[static_cast<size_t>(bucket)] * kPrior[static_cast<size_t>(bucket)]) /
           (b.trials + kWeight[static_cast<size_t>(bucket)]);
  }
  void record(int bucket, bool hit) {
    Bucket& b = buckets_[static_cast<size_t>(bucket)];
    b.trials = b.trials * 0.98f + 1;
    b.hits = b.hits * 0.98f + (hit ? 1.0f : 0.0f);
  }

 private:
  static constexpr std::array<float, 11> kPrior = {0.30f, 0.60f, 0.35f, 0.45f, 0.55f, 0.65f, 0.75f, 0.88f, 0.94f, 0.97f, 0.98f};
  static constexpr std::array<float, 11> kWeight = {4, 2, 4, 4, 4, 4, 4, 6, 8, 12, 12};
  struct Bucket {
    float trials = 0, hits = 0;
  };
  std::array<Bucket, 11> buckets_{};
};

class LookupDrafter final : public Drafter {
 public:
  explicit LookupDrafter(const LookupOptions& options) : options_(options) { CHECK(options.min_match >= kGram); }

  Route route() const override { return Route::kCopy; }
  const DrafterNeeds& needs() const override { return needs_; }
  int deepest() const override { return options_.max_width; }

  void restart(std::span<const TokenId> history) override {
    history_.assign(history.begin(), history.end());
    index_.clear();
    edits_.clear();
    statistics_ = {};
    drop_copy();
    offered_.clear();
    width_ = options_.first_width;
    empty_windows_ = silence_ = 0;
    base_ = 0;
  }

  void observe(const Committed& c) override {
    if (history_.empty()) base_ = c.first;
    CHECK(c.first >= base_);
    CHECK(c.first - base_ <= static_cast<int64_t>(history_.size()));
    const size_t known = history_.size() - static_cast<size_t>(c.first - base_);  // the anchor was told as the last `next`
    CHECK(known <= 1);
    if (known == 1) CHECK(history_.back() == c.tokens[0]);
    for (size_t i = known; i < c.tokens.size(); ++i) push(c.tokens[i]);
    push(c.next);
    judge(c, known);
  }

  void propose(const DraftRequest& request, Draft& draft) override {
    draft.by = Route::kCopy;
    offered_.clear();
    offered_at_ = request.position;
    if (!history_.empty() && request.position == base_ + size() + 1) push(request.anchor);  // a lane restored just before its anchor
    if (history_.size() < static_cast<size_t>(options_.min_match) + 1) return;
    CHECK(request.position == base_ + static_cast<int64_t>(history_.size()));
    CHECK(request.anchor == history_.back());
    search();
    // Whoever weighs guesses by what they were worth wants to see all of them.
    if (silence_ > 0 && run_ < 2 * kFreshRun && !request.insist && request.calibration == nullptr) {
      --silence_;
      return;
    }
    const int width = std::min({request.depth, request.nodes, request.insist ? kMaxNodes : width_});
    if (cursor_.source >= 0 && run_ >= options_.min_match) follow(cursor_, run_, width, request.floor, draft);
    else if (lost_) guess_behind_edit(width, request.floor, draft);
    offered_behind_edit_ = lost_;
    for (const DraftNode& n : draft.nodes) offered_.push_back(n.token);
  }

 private:
  int64_t size() const { return static_cast<int64_t>(history_.size()); }

  // ---- Following the source

  void drop_copy() {
    cursor_ = {};
    run_ = copied_ = 0;
    lost_ = false;
  }

  void push(TokenId token) {
    if (cursor_.source >= 0) track(token);
    else if (lost_) find_source_again(token);
    history_.push_back(token);
    while (index_.size() + 1 < history_.size()) index_.add(history_);  // the last token's gram is the one looked up, not found
  }

  // The first edit that applies where `cursor` stands, or -1.
  int applicable_edit(const Cursor& cursor) const {
    if (cursor.literal == cursor.source || cursor.source >= size()) return -1;
    for (size_t i = edits_.size(); i-- > 0;) {
      const Edit& e = edits_[i];
      if (e.misses > e.hits) continue;
      const int64_t s = cursor.source;
      if (s + static_cast<int64_t>(e.before.size()) > size()) continue;
      if (e.before.empty() && (s < 2 || history_[size_t(s - 2)] != e.left[0] || history_[size_t(s - 1)] != e.left[1])) continue;
      if (std::equal(e.before.begin(), e.before.end(), history_.begin() + s)) return static_cast<int>(i);
    }
    return -1;
  }

  // The token expected at `cursor`, which moves into an edit when one begins; `drafted` continues the history. -1: beyond the end.
  TokenId expected(Cursor& cursor, std::span<const TokenId> drafted) const {
    if (cursor.edit < 0) {
      if (const int edit = applicable_edit(cursor); edit >= 0) {
        cursor.edit = edit;
        cursor.offset = 0;
      }
    }
    while (cursor.edit >= 0) {
      const Edit& e = edits_[static_cast<size_t>(cursor.edit)];
      if (cursor.offset < e.after.size()) return e.after[cursor.offset];
      leave_edit(cursor);  // a deletion has nothing to say
    }
    if (cursor.source < size()) return history_[static_cast<size_t>(cursor.source)];
    const size_t beyond = static_cast<size_t>(cursor.source - size());  // the copy has caught up with itself: a loop
    return beyond < drafted.size() ? drafted[beyond] : -1;
  }
  void leave_edit(Cursor& cursor) const {
    const int64_t replaced = static_cast<int64_t>(edits_[static_cast<size_t>(cursor.edit)].before.size());
    if (replaced == 0) cursor.literal = cursor.source;  // an insertion applies once
    cursor.source += replaced;
    cursor.edit = -1;
    cursor.offset = 0;
  }
  void advance(Cursor& cursor) const {
    if (cursor.edit < 0) {
      ++cursor.source;
    } else if (++cursor.offset == edits_[static_cast<size_t>(cursor.edit)].after.size()) {
      leave_edit(cursor);
    }
  }

  // One more real token while a copy runs.
  void track(TokenId token) {
    const int64_t bare = cursor_.source;
    const int entered = cursor_.edit < 0 ? applicable_edit(cursor_) : -1;
    const TokenId guess = expected(cursor_, {});
    statistics_.record(entered >= 0 ? MatchStatistics::kEditBucket : MatchStatistics::bucket(run_), guess == token);
    if (entered >= 0) ++(guess == token ? edits_[size_t(entered)].hits : edits_[size_t(entered)].misses);
    if (guess == token) {
      advance(cursor_);
      ++run_;
      ++copied_;
      ++since_found_;
      return;
    }
    if (entered >= 0 && history_[size_t(bare)] == token) {  // the source's own word after all
      cursor_ = {.source = bare + 1};
      ++run_;
      return;
    }
    if (run_ < kFreshRun && !edited_before_) return drop_copy();
    if (since_found_ >= kFreshRun || !edited_before_) {
      edit_source_ = bare;
      edit_output_ = size();
      edited_before_ = true;
    }
    cursor_ = {};
    lost_ = true;
    find_source_again(token);
  }

  // Behind a mismatch: where do the last two tokens occur in the source that the copy was following? `token` is about to be pushed.
  void find_source_again(TokenId token) {
    const int64_t written = size() - edit_output_ + 1;  // tokens since the mismatch, this one included
    if (written > kLostTokens) return drop_copy();
    if (written < 2) return;
    const TokenId before = history_.back();
    const int64_t limit = std::min(edit_source_ + kResyncWindow, edit_output_ - 1);
    for (int64_t s = edit_source_; s < limit; ++s) {
      if (history_[size_t(s)] != before || history_[size_t(s + 1)] != token) continue;
      remember_edit(edit_source_, s, edit_output_, size() - 1);
      cursor_ = {.source = s + 2};
      run_ = std::max<int64_t>(options_.min_match, run_ / 2);
      since_found_ = 2;
      lost_ = false;
      return;
    }
  }

  void remember_edit(int64_t source_begin, int64_t source_end, int64_t output_begin, int64_t output_end) {
    if (source_end - source_begin > static_cast<int64_t>(kEditTokens) || output_end - output_begin > static_cast<int64_t>(kEditTokens))
      return;
    Edit e;
    e.before.assign(history_.begin() + source_begin, history_.begin() + source_end);
    e.after.assign(history_.begin() + output_begin, history_.begin() + output_end);
    if (e.before == e.after) return;
    if (source_begin >= 2) e.left = {history_[size_t(source_begin - 2)], history_[size_t(source_begin - 1)]};
    std::erase_if(edits_, [&](const Edit& old) { return old.before == e.before && (!e.before.empty() || old.left == e.left); });
    if (edits_.size() == kEdits) edits_.erase(edits_.begin());
    edits_.push_back(std::move(e));
  }

  // The longest earlier occurrence of the suffix, the latest on ties; replaces a copy that has matched less.
  void search() {
    if (run_ >= kSettledRun && cursor_.source >= 0) return;
    const int64_t end = size() - 1;
    int64_t best = 0, best_end = -1, probes = 0;
    for (int64_t p = index_.newest(history_, size_t(end)); p >= 0 && probes < kProbes; p = index_.older(p), ++probes) {
      int64_t length = 0;
      while (length <= p && length < kLongestMatch && history_[size_t(p - length)] == history_[size_t(end - length)]) ++length;
      if (length > best) {
        best = length;
        best_end = p;
      }
      if (length == kLongestMatch) break;
    }
    const int64_t least = cursor_.source >= 0 ? run_ + 1 : lost_ ? kFreshRun : options_.min_match;
    if (best < least) return;
    cursor_ = {.source = best_end + 1};
    run_ = since_found_ = copied_ = best;
    lost_ = edited_before_ = false;
  }

  // ---- Drafting

  void follow(Cursor cursor, int64_t run, int width, float floor, Draft& draft) const {
    std::vector<TokenId> drafted;
    float cumulative = 1;
    for (int step = 0; step < width; ++step) {
      const TokenId token = expected(cursor, drafted);
      if (token < 0) return;
      const bool edit_begins = cursor.edit >= 0 && cursor.offset == 0;
      const float p = statistics_.probability(edit_begins ? MatchStatistics::kEditBucket : MatchStatistics::bucket(run + step));
      cumulative *= p;
      if (cumulative < floor) return;
      draft.add(token, step - 1, p);
      drafted.push_back(token);
      advance(cursor);
    }
  }

  // Nothing behind the edit has been seen again yet: guess that it replaced as many tokens as it wrote.
  void guess_behind_edit(int width, float floor, Draft& draft) const {
    Cursor cursor{.source = edit_source_ + (size() - edit_output_)};
    if (cursor.source >= edit_output_ || size() - edit_output_ > kGuessedTokens) return;
    const float p = statistics_.probability(MatchStatistics::kLostBucket);
    if (p < floor) return;
    follow(cursor, kFreshRun, std::min(width, options_.first_width), floor / p, draft);
    if (!draft.empty()) draft.nodes.front().probability = p;
  }

  // Compares the last offer with what came: widths and silence follow.
  void judge(const Committed& c, size_t known) {
    if (offered_.empty() || known != 1 || c.first + 1 != offered_at_) return;
    const auto actual = [&](size_t i) { return i + 1 < c.tokens.size() ? c.tokens[i + 1] : c.next; };
    size_t hits = 0;
    while (hits < offered_.size() && hits < c.tokens.size() && offered_[hits] == actual(hits)) ++hits;
    const bool open = hits == c.tokens.size() && hits < offered_.size();  // right so far, the rest was not verified
    if (offered_behind_edit_) statistics_.record(MatchStatistics::kLostBucket, hits > 0);
    const bool long_copy = copied_ >= kLongCopy;
    if (hits == offered_.size()) {
      if (width_ < 7) width_ = 7;
      else if (run_ >= 2 * kFreshRun) width_ = std::min(options_.max_width, width_ * (long_copy ? 4 : 2));
    } else if (!open && hits * 2 < offered_.size()) {
      width_ = std::min(options_.max_width, long_copy ? 14 : options_.first_width);
    }
    if (hits > 0) empty_windows_ = 0;
    else if (!long_copy && ++empty_windows_ >= 2) {
      silence_ = options_.silence;
      empty_windows_ = 0;
    }
    offered_.clear();
  }

  LookupOptions options_;
  DrafterNeeds needs_;
  std::vector<TokenId> history_;  // prompt, answer, anchor; history_[0] has sequence index base_
  int64_t base_ = 0;
  GramIndex index_;
  std::vector<Edit> edits_;
  MatchStatistics statistics_;

  Cursor cursor_;                // source < 0: no copy runs
  int64_t run_ = 0;              // tokens the source has matched
  int64_t copied_ = 0;           // tokens of this copy over all its edits
  int64_t since_found_ = 0;      // of them, since it was found again behind an edit
  bool lost_ = false;            // behind a mismatch, the source not yet found again
  bool edited_before_ = false;   // edit_source_ and edit_output_ hold a mismatch of this copy
  int64_t edit_source_ = 0, edit_output_ = 0;

  std::vector<TokenId> offered_;
  int64_t offered_at_ = 0;
  bool offered_behind_edit_ = false;
  int width_ = 3;
  int empty_windows_ = 0, silence_ = 0;
};

}  // namespace

std::unique_ptr<Drafter> make_lookup_drafter(const LookupOptions& options) { return std::make_unique<LookupDrafter>(options); }

}  // namespace foretoken
