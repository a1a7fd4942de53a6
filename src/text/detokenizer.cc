// Streaming in both classes is a matter of holding back the smallest tail that later bytes could still change.
#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace foretoken {

std::string Utf8Stream::add(std::string_view bytes) {
  if (bytes.empty()) return {};
  pending_ += bytes;
  const size_t certain = pending_.size() - incomplete_utf8_tail(pending_);
  std::string text = repair_utf8(std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
  return text;
}

std::string Utf8Stream::flush() { return repair_utf8(std::exchange(pending_, {})); }

std::string Detokenizer::add(TokenId id) {
  if (options_.skip_special && tokenizer_->is_special(id)) return {};
  return stream_.add(tokenizer_->bytes(id));
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
  for (const std::string& stop : stops_) {
    std::vector<size_t> border(stop.size() + 1, 0);
    for (size_t i = 1, k = 0; i < stop.size(); ++i) {
      while (k > 0 && stop[i] != stop[k]) k = border[k];
      if (stop[i] == stop[k]) ++k;
      border[i + 1] = k;
    }
    borders_.push_back(std::move(border));
  }
  lengths_.assign(stops_.size(), 0);
}

std::string StopMatcher::add(std::string_view piece) {
  if (stopped_) return {};
  for (size_t i = 0; i < piece.size(); ++i) {
    size_t longest = 0;
    for (size_t s = 0; s < stops_.size(); ++s) {
      const std::string& stop = stops_[s];
      size_t k = lengths_[s];
      while (k > 0 && stop[k] != piece[i]) k = borders_[s][k];
      if (stop[k] == piece[i]) ++k;
      lengths_[s] = k;
      if (k == stop.size() && k > longest) {
        longest = k;
        stopped_ = s;
      }
    }
    if (!stopped_) continue;
    held_.append(piece, 0, i + 1);
    held_.resize(held_.size() - longest);
    return flush();
  }
  held_ += piece;
  size_t keep = 0;
  for (const size_t length : lengths_) keep = std::max(keep, length);
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  emitted_ += text.size();
  return text;
}

std::string StopMatcher::flush() {
  emitted_ += held_.size();
  return std::exchange(held_, {});
}

}  // namespace foretoken
