// Prompts as clients send them: conversations that share system prompts and grow by turns, with thinking dropped or kept, earlier turns
// edited, exact resends, resends with an end cut off, and prompts of a few tokens. From a seed. Test-only.
#pragma once

#include <algorithm>
#include <vector>

#include "sim/sim_model.h"

namespace foretoken::sim {

class Conversations {
 public:
  struct Prompt {
    Ids tokens;
    std::vector<int64_t> boundaries;
    int talk = -1;  // whose next turn it is
  };

  Conversations(uint64_t seed, int vocab, int64_t longest) : random_(seed ^ 0x5EED), vocab_(vocab), longest_(longest) { forget(); }

  void forget() {
    systems_.clear();
    for (int i = 0; i < 3; ++i) systems_.push_back(words(random_.below(static_cast<int>(longest_ / 3))));
    talks_.assign(6, {});
    sent_.clear();
  }

  Prompt next() {
    Prompt prompt;
    const double kind = random_.uniform();
    if (kind < 0.10) {
      prompt.tokens = words(1 + random_.below(40));
    } else if (kind < 0.25 && !sent_.empty()) {
      prompt = any_sent();  // once more
    } else if (kind < 0.33 && !sent_.empty()) {
      prompt = any_sent();
      const int cut = 1 + random_.below(random_.below(2) == 0 ? 2 : 40);
      prompt.tokens.resize(std::max<size_t>(1, prompt.tokens.size() - std::min(prompt.tokens.size(), static_cast<size_t>(cut))));
    } else if (kind < 0.43 && !sent_.empty()) {
      prompt = any_sent();
      prompt.tokens[static_cast<size_t>(random_.below(static_cast<int>(prompt.tokens.size())))] = random_.below(vocab_);
    } else {
      prompt = turn();
    }
    std::erase_if(prompt.boundaries, [&](int64_t b) { return b > static_cast<int64_t>(prompt.tokens.size()); });
    sent_.push_back(prompt);
    sent_.back().talk = -1;
    if (sent_.size() > 40) sent_.erase(sent_.begin());
    return prompt;
  }

  // The answer of a prompt that was a turn joins its conversation.
  void answered(const Prompt& prompt, const Ids& answer) {
    if (prompt.talk < 0) return;
    Ids& history = talks_[static_cast<size_t>(prompt.talk)];
    if (random_.below(2) == 0) history = prompt.tokens;  // the whole answer stays; else what opened it, and its thinking, go
    const size_t thinking = history.size() == prompt.tokens.size() ? 0 : answer.size() / 2;
    history.insert(history.end(), answer.begin() + static_cast<ptrdiff_t>(thinking), answer.end());
  }

 private:
  Ids words(int count) {
    Ids ids;
    for (int i = 0; i < count; ++i) ids.push_back(i > 12 && random_.below(4) == 0 ? ids[static_cast<size_t>(i - 11)] : random_.below(vocab_));
    return ids;
  }
  Prompt any_sent() { return sent_[static_cast<size_t>(random_.below(static_cast<int>(sent_.size())))]; }

  Prompt turn() {
    Prompt prompt{.tokens = {}, .boundaries = {}, .talk = random_.below(static_cast<int>(talks_.size()))};
    Ids& history = talks_[static_cast<size_t>(prompt.talk)];
    if (history.size() + 40 > static_cast<size_t>(longest_)) history.clear();
    if (history.empty()) history = systems_[static_cast<size_t>(random_.below(static_cast<int>(systems_.size())))];
    prompt.boundaries.push_back(static_cast<int64_t>(history.size()));
    const Ids user = words(3 + random_.below(30));
    history.insert(history.end(), user.begin(), user.end());
    prompt.boundaries.push_back(static_cast<int64_t>(history.size()));
    prompt.tokens = history;
    for (const TokenId opening : {1, 2, 3}) prompt.tokens.push_back(opening);
    if (random_.below(5) == 0) prompt.boundaries.clear();  // a client that gives none
    return prompt;
  }

  test::TestRandom random_;
  int vocab_;
  int64_t longest_;
  std::vector<Ids> systems_, talks_;
  std::vector<Prompt> sent_;
};

}  // namespace foretoken::sim
