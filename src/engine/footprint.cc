// One line for each allocation that matters, in the order in which the model makes them: state.cc, target.cc, blocks.cc, mtp.cc, dflash.cc,
// and the operators' scratch memory. engine/memory_plan_test.cc compares the sums with what a living model takes.
#include "engine/footprint.h"

#include <algorithm>

#include "model/host_memory.h"

namespace foretoken {
namespace {

constexpr uint64_t kFloat = sizeof(float);

class ScratchList {
 public:
  void per_row(int64_t floats) { list_.push_back({.per_row = kFloat * static_cast<uint64_t>(floats)}); }
  void per_row_spare(int64_t floats) { list_.push_back({.per_row = kFloat * static_cast<uint64_t>(floats), .spare = true}); }
  void per_few_rows(int64_t floats, int most) { list_.push_back({.per_row = kFloat * static_cast<uint64_t>(floats), .most_rows = most}); }
  void per_logits_row(int64_t floats) { list_.push_back({.per_logits_row = kFloat * static_cast<uint64_t>(floats)}); }
  void per_lane(int64_t floats) { list_.push_back({.per_lane = kFloat * static_cast<uint64_t>(floats)}); }
  void add(const ScratchBuffer& buffer) { list_.push_back(buffer); }
  std::vector<ScratchBuffer> take() { return std::move(list_); }

 private:
  std::vector<ScratchBuffer> list_;
};

void attention_scratch(const ModelConfig& c, ScratchList& s) {
  const int64_t heads = int64_t{c.attention.query_heads} * c.attention.head_dim;
  for (const int64_t cols : {int64_t{c.attention.packed_columns()}, heads, heads}) s.per_row(cols);
}

// TargetModel. Taps are asked for by a block drafter.
void trunk_scratch(const ModelConfig& c, int64_t taps, ScratchList& s) {
  for (const int64_t cols : {c.hidden, c.hidden, c.hidden, c.hidden, c.rotary.rotary_dim()}) s.per_row(cols);  // x, h, mixed, normed, rotary
  if (taps > 0) s.per_row(taps * c.hidden);
  attention_scratch(c, s);
  for (const int64_t cols : {c.delta_packed_columns(), c.delta.channels(), c.delta_value_columns()}) s.per_row(cols);
  s.per_logits_row(c.hidden);
  s.per_logits_row(c.vocab);
}

// Activations of one product in the integers of a format: bytes, scales, and sums of sub-blocks of 16; two formats at once.
void product_scratch(int64_t most_cols, int64_t rows_each, ScratchList& s) {
  const uint64_t one = static_cast<uint64_t>(most_cols) * static_cast<uint64_t>(rows_each) * 3 / 2;
  for (int i = 0; i < 2; ++i) s.add({.per_row = one});
}

// Operators of the CPU (cpu/operator_scratch.h, cpu/products.h).
void operator_scratch(const ModelConfig& c, int threads, ScratchList& s) {
  const uint64_t t = static_cast<uint64_t>(threads);
  const int64_t keys = int64_t{c.delta.key_heads} * c.delta.key_dim, heads = int64_t{c.attention.query_heads} * c.attention.head_dim;
  for (const int64_t cols : {keys, keys, int64_t{c.delta.value_heads}, int64_t{c.delta.value_heads}}) s.per_row_spare(cols);
  constexpr uint64_t kDeltaBlock = 64, kSavedStates = 8;                       // columns of a thread's block; branches of a tree
  s.add({.fixed = t * (kSavedStates + 1) * static_cast<uint64_t>(c.delta.key_dim) * kDeltaBlock * kFloat, .spare = true});
  s.add({.per_row = t * 48});                                                  // rows of the recurrence
  s.add({.per_row = static_cast<uint64_t>(c.delta.kernel) * sizeof(void*)});   // of the convolution
  constexpr uint64_t kTile = 32;                                               // queries that share a pass over K and V
  const uint64_t dim = static_cast<uint64_t>(c.attention.head_dim);
  s.add({.fixed = t * kFloat * dim * (kTile + 2 * kPageTokens), .spare = true});
  const uint64_t state = kFloat * kTile * (dim + 2);
  s.add({.per_span = t * state, .fixed = 2 * t * state, .spare = true});       // partial sums of long contexts
  s.add({.fixed = t * (64u << 10)});
  if (c.ffn_width > 0) s.per_row(2 * int64_t{c.ffn_width});
  int64_t most_cols = std::max<int64_t>({c.hidden, heads, c.delta_value_columns(), c.ffn_width});
  if (c.moe.experts > 0) {
    for (const int64_t cols : {int64_t{c.moe.experts}, int64_t{c.moe.top_k} * c.hidden, int64_t{c.moe.top_k} * c.hidden, int64_t{c.hidden}})
      s.per_row_spare(cols);
    s.per_row(std::max<int64_t>(2 * int64_t{c.moe.top_k} * c.expert_width, 2 * int64_t{c.shared_width}));
    most_cols = std::max<int64_t>({most_cols, int64_t{c.moe.top_k} * std::max(c.hidden, c.expert_width), c.shared_width});
  }
  product_scratch(most_cols, 1, s);
}

constexpr int kWaitingRows = 256;  // that a drafter lets wait before it works them off, and takes in one call

void mtp_scratch(const ModelConfig& c, ScratchList& s) {
  for (const int64_t cols : {2 * c.hidden, c.hidden, c.hidden, c.hidden, c.hidden, c.rotary.rotary_dim()}) s.per_row(cols);
  attention_scratch(c, s);
  s.per_lane(c.hidden);
  s.per_lane(c.vocab);
}

void block_scratch(const ModelConfig& target, const DflashConfig& c, ScratchList& s) {
  const int64_t taps = static_cast<int64_t>(c.taps.size()), heads = int64_t{c.query_heads} * c.head_dim;
  s.per_few_rows(taps * c.hidden, kWaitingRows);                       // gathered features
  for (const int64_t cols : {c.hidden, c.layers * 2 * c.kv_heads * c.head_dim, c.rotary.rotary_dim()}) s.per_few_rows(cols, kWaitingRows);
  const int64_t block = c.block_size;
  s.per_lane(block * (2 * c.hidden + 2 * heads + 2 * c.kv_heads * c.head_dim + c.hidden));  // h, mixed, queries, keys and values, core, hidden
  if (c.conv_taps > 0) s.per_lane(block * (2 * c.hidden + 2 * c.conv_taps * (c.hidden / std::max(1, c.conv_group))));
  s.per_lane(block * target.vocab);
  s.per_lane(block * (2 * c.top_k * c.selector_rank + c.selector_rank + c.top_k * (c.top_k + 1)));
  if (c.kind == DrafterKind::kDspark) s.add({.fixed = kFloat * static_cast<uint64_t>(target.vocab)});
}

KvLayout one_layer(int heads, int head_dim, KvFormat format) { return {.layers = 1, .heads = heads, .head_dim = head_dim, .format = format}; }

// Rows that wait for a drafter: up to the limit and the chunk that passes it, in vectors that double.
uint64_t waiting(int64_t cols) { return buffer_memory(2 * kFloat * kWaitingRows * static_cast<uint64_t>(cols)); }

void add_mtp(const ModelConfig& c, KvFormat format, ModelFootprint& f) {
  f.drafter_lane += waiting(c.hidden) + waiting(c.hidden) / 2;
  const uint64_t page = one_layer(c.attention.kv_heads, c.attention.head_dim, format).page_bytes();
  f.drafter_page += page;
  f.checkpoint += static_cast<uint64_t>(c.hidden) * kFloat;  // its entries are counted with the pages of the context
}

void add_block(const DflashConfig& c, KvFormat format, ModelFootprint& f) {
  f.drafter_lane += waiting(static_cast<int64_t>(c.taps.size()) * c.hidden);
  const uint64_t page = one_layer(c.kv_heads, c.head_dim, format).page_bytes();
  for (const int window : c.window) {
    if (window == 0) {
      f.drafter_page += page;
      continue;
    }
    const uint64_t ring = static_cast<uint64_t>((window - 1 + c.block_size + kPageTokens - 1) / kPageTokens) * page;
    f.drafter_lane += ring;
    f.checkpoint += ring;
  }
}

}  // namespace

uint64_t ScratchBuffer::bytes(const PassShape& pass) const {
  const auto count = [](auto value) { return static_cast<uint64_t>(std::max<decltype(value)>(value, 0)); };
  const int rows = most_rows > 0 ? std::min(pass.rows, most_rows) : pass.rows;
  const int64_t spans = (pass.context + kSpanTokens - 1) / kSpanTokens;
  const uint64_t sum = per_row * count(rows) + per_logits_row * count(pass.logits_rows) + per_lane * count(pass.lanes) + per_span * count(spans) + fixed;
  return buffer_memory(spare ? sum + sum / 2 : sum);
}

uint64_t ModelFootprint::scratch_of(const PassShape& pass) const {
  uint64_t sum = 0;
  for (const ScratchBuffer& buffer : scratch) sum += buffer.bytes(pass);
  return sum;
}

Result<WeightSizes> weight_sizes(const Bundle& bundle, const ModelConfig& config, const DraftResolution& drafts, const DraftSettings& settings,
                                 uint64_t cached_bytes) {
  ASSIGN_OR_RETURN(const PackingOrder trunk, trunk_packing_order(bundle, config));
  WeightSizes w{.packed = cached_bytes > 0 ? 0 : trunk.memory_bytes(), .mapped = cached_bytes + trunk.borrowed_bytes()};
  if (drafts.mtp) {
    ASSIGN_OR_RETURN(const PackingOrder head, mtp_packing_order(bundle, config));
    w.drafter += head.memory_bytes();
  }
  if (drafts.block) {
    ASSIGN_OR_RETURN(const Bundle drafter, Bundle::open(drafts.drafter_path));
    ASSIGN_OR_RETURN(const DflashConfig shapes, DflashConfig::from_bundle(drafter, config));
    w.drafter += drafter_packed_bytes(drafter, shapes, settings.weights);
  }
  return w;
}

ModelFootprint footprint_of(const ModelConfig& config, const WeightSizes& weights, const DrafterShapes& drafters, const FootprintOptions& options) {
  ModelFootprint f;
  f.vocab = config.vocab;
  f.max_positions = config.max_positions;
  constexpr uint64_t kProgram = 12u << 20, kTokenBytes = 240, kThread = 128u << 10;
  f.program = kProgram + kTokenBytes * static_cast<uint64_t>(config.vocab) + kThread * static_cast<uint64_t>(options.threads);
  f.weights = weights.packed;
  f.mapped = weights.mapped;
  f.drafter_weights = weights.drafter;

  const DeltaShape& d = config.delta;
  const uint64_t tape_row = static_cast<uint64_t>(d.value_heads + d.key_heads * d.key_dim + d.value_heads * d.value_dim + d.channels());
  f.state = buffer_memory(config.recurrent_bytes_per_lane());
  f.tape = buffer_memory(static_cast<uint64_t>(config.delta_layers()) * tape_row * static_cast<uint64_t>(options.tape_rows) * kFloat);
  f.sampling = static_cast<uint64_t>(config.vocab) * (kFloat + sizeof(Sampler::Candidate));
  constexpr uint64_t kIdBytes = 8, kIndexBytes = 24;  // vectors that double; heads and links of the copying drafter
  f.history_token = kIdBytes + (drafters.copy ? kIndexBytes : 0);

  const KvLayout kv = config.kv_layout(options.kv_format);
  f.page = std::max<uint64_t>(kv.page_bytes(), 64);
  f.pages_per_slab = PagePool::pages_per_slab(kv);
  f.checkpoint = config.recurrent_bytes_per_lane();

  ScratchList scratch;
  trunk_scratch(config, drafters.block ? static_cast<int64_t>(drafters.block->taps.size()) : 0, scratch);
  operator_scratch(config, options.threads, scratch);
  if (drafters.mtp) {
    add_mtp(config, options.kv_format, f);
    mtp_scratch(config, scratch);
  }
  if (drafters.block) {
    add_block(*drafters.block, options.kv_format, f);
    block_scratch(config, *drafters.block, scratch);
  }
  f.scratch = scratch.take();
  return f;
}

}  // namespace foretoken
