// Parts rows and chunks: a row's bits do not depend on the rows beside it, nor a prompt's on how it is cut.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "decode/rows.h"
#include "qualify/certifier.h"

namespace foretoken {
namespace {

constexpr int kPromptChunk = 512;

// First difference of two rows' bits; -1 when equal.
int64_t first_difference(const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return i;
  return -1;
}

std::unique_ptr<LaneState> lane_behind(TargetModel& target, const Tokens& prompt) {
  auto lane = target.make_lane();
  run_prompt(target, *lane, prompt, kPromptChunk, {}, [](int64_t, int64_t, const ForwardResult&) { return true; });
  return lane;
}

// A chain or a random tree of teacher-forced rows.
struct Shape {
  std::vector<int16_t> parent;
  std::vector<int> depth;
  bool tree = false;

  Shape(int width, bool is_tree, Random& random) : tree(is_tree) {
    for (int r = 0; r < width; ++r) {
      parent.push_back(static_cast<int16_t>(r == 0 ? -1 : tree ? static_cast<int>(random.below(static_cast<uint32_t>(r))) : r - 1));
      depth.push_back(parent.back() < 0 ? 0 : depth[static_cast<size_t>(parent.back())] + 1);
    }
  }
  int width() const { return static_cast<int>(parent.size()); }
  // Rows from the first to the last one, along parents.
  std::vector<int> path() const {
    std::vector<int> rows;
    for (int r = width() - 1; r >= 0; r = parent[static_cast<size_t>(r)]) rows.insert(rows.begin(), r);
    return rows;
  }
};

struct RowBits {
  std::vector<float> logits, layers;  // of each row, one behind the other; layers: behind the embedding and every layer
};

RowBits bits_of(TargetModel& target, LaneState& lane, std::span<const RowInput> inputs, const LaneRows& rows) {
  std::vector<int> wanted(inputs.size()), taps(static_cast<size_t>(target.config().layers) + 1);
  std::iota(wanted.begin(), wanted.end(), 0);
  std::iota(taps.begin(), taps.end(), -1);
  LaneState* lanes[] = {&lane};
  const ForwardResult f = target.forward({.inputs = inputs, .lanes = {&rows, 1}, .logits_rows = wanted}, lanes, taps);
  RowBits bits;
  for (int64_t i = 0; i < f.logits.rows; ++i) {
    bits.logits.insert(bits.logits.end(), f.logits.f32(i), f.logits.f32(i) + f.logits.cols);
    bits.layers.insert(bits.layers.end(), f.taps.f32(i), f.taps.f32(i) + f.taps.cols);
  }
  return bits;
}

RowBits together(TargetModel& target, LaneState& lane, const Shape& shape, const Tokens& tokens) {
  std::vector<RowInput> inputs;
  for (int r = 0; r < shape.width(); ++r) inputs.push_back(text_row(tokens[static_cast<size_t>(r)], lane.length() + shape.depth[static_cast<size_t>(r)]));
  return bits_of(target, lane, inputs, {.rows = shape.width(), .prefix = lane.length(), .settled = 0, .parent = shape.parent});
}

RowBits alone(TargetModel& target, LaneState& lane, TokenId token) {
  const RowInput input = text_row(token, lane.length());
  RowBits bits = bits_of(target, lane, {&input, 1}, {.rows = 1, .prefix = lane.length(), .settled = 1, .parent = {}});
  const int first[] = {0};
  target.commit(lane, first);
  return bits;
}

void compare_shape(CertifyCell& cell, TargetModel& target, size_t prompt_index, const Tokens& prompt, const Tokens& tokens, const Shape& shape) {
  const auto where = [&] { return fmt::format("prompt {}, width {}{}", prompt_index, shape.width(), shape.tree ? " (tree)" : ""); };
  const auto lane = lane_behind(target, prompt), single = lane_behind(target, prompt);
  const RowBits all = together(target, *lane, shape, tokens);
  const std::vector<int> path = shape.path();
  for (const int r : path) {
    const RowBits one = alone(target, *single, tokens[static_cast<size_t>(r)]);
    const int64_t columns = static_cast<int64_t>(one.layers.size()), vocab = static_cast<int64_t>(one.logits.size());
    const int64_t at_layer = first_difference(one.layers.data(), all.layers.data() + r * columns, columns);
    const int64_t at_logit = first_difference(one.logits.data(), all.logits.data() + r * vocab, vocab);
    cell.compared_logits += vocab;
    if (at_layer >= 0) fail(cell, fmt::format("{}: row {} differs first behind layer {}", where(), r, at_layer / target.config().hidden - 1));
    else if (at_logit >= 0) fail(cell, fmt::format("{}: row {} differs in the logit of token {}", where(), r, at_logit));
  }
  target.commit(*lane, path);
  ++cell.compared_states;
  if (lane->hash() != single->hash()) fail(cell, where() + ": the committed state differs from decoding the path alone");
}

}  // namespace

// Row i of a pass of any width or tree equals the same row alone, in logits, every layer's output and the state that it leaves.
Status certify_rows(Certifier& c) {
  CertifyCell cell{.part = "rows", .name = fmt::format("widths 1 to {}, chains and trees", c.options().widths)};
  Random random(99);
  for (size_t p = 0; p < std::min<size_t>(c.prompts(), 3); ++p) {
    ASSIGN_OR_RETURN(const PlainAnswer* reference, c.plain(c.prompt(p), certify_sampling(0, 0), c.options().tokens));
    for (int width = 1; width <= c.options().widths; ++width)
      for (const bool tree : {false, true})
        if (!tree || width >= 3) compare_shape(cell, c.target(), p, c.prompt(p), reference->tokens, Shape(width, tree, random));
  }
  return c.finish(std::move(cell));
}

// The prompt in chunks of any size.
Status certify_chunks(Certifier& c) {
  CertifyCell cell{.part = "chunks", .name = "prompt chunks of 1, 7, 64 and 512"};
  for (size_t p = 0; p < std::min<size_t>(c.prompts(), 4); ++p) {
    const Tokens& prompt = c.prompt(p);
    std::vector<int64_t> every(prompt.size());
    std::iota(every.begin(), every.end(), 0);
    std::vector<float> first;
    std::string state;
    for (const int chunk : {512, 64, 7, 1}) {
      auto lane = c.target().make_lane();
      std::vector<float> logits;
      run_prompt(c.target(), *lane, prompt, chunk, every, [&](int64_t, int64_t, const ForwardResult& f) {
        for (int64_t i = 0; i < f.logits.rows; ++i) logits.insert(logits.end(), f.logits.f32(i), f.logits.f32(i) + f.logits.cols);
        return true;
      });
      if (first.empty()) {
        first = std::move(logits);
        state = lane->hash();
        continue;
      }
      cell.compared_logits += static_cast<int64_t>(first.size());
      ++cell.compared_states;
      const int64_t at = first_difference(first.data(), logits.data(), static_cast<int64_t>(first.size()));
      if (at >= 0) fail(cell, fmt::format("prompt {}, chunks of {}: logits of position {} differ", p, chunk, at / c.target().config().vocab));
      else if (lane->hash() != state) fail(cell, fmt::format("prompt {}, chunks of {}: the lane's state differs", p, chunk));
    }
  }
  return c.finish(std::move(cell));
}

}  // namespace foretoken
