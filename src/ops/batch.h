// What one pass computes: rows of lanes, and where the lanes' memory lies. Plain data shared by the model and the backends;
// prefill, plain decode, chain verify and tree verify differ only in this description.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "numerics/dtype.h"
#include "ops/choice.h"

namespace foretoken {

inline constexpr int kPageTokens = 32;  // sequence positions per K/V page; also the softmax block of attention
inline constexpr int kSpanTokens = 512; // positions per attention span; spans are merged in ascending order
inline constexpr int kKeyPieces = 8;    // pieces of the keys that the delta rule sums apart; neighbours are folded

struct RowInput {
  TokenId token = -1;                    // row of the embedding table, or
  const float* embedding = nullptr;      // [hidden], used instead of the table when set
  std::array<int32_t, 3> position{};     // rotary position (t, h, w); equal for text
};

// Rows [first_row, first_row + rows) of the batch belong to one lane. `parent[i]` is the index within these rows of the row
// that precedes row i, or -1 when row i continues the committed prefix; empty means a chain (parent[i] == i - 1).
// parent[i] < i. Row i has depth prefix + 1 + (number of its ancestors among the rows) tokens behind and including it.
//
// The first `settled` rows are decided tokens (a prompt chunk, or the anchor of a decode cycle); they form a chain. Their
// recurrent updates go straight into the lane's state, so a prompt needs no tape; all other rows leave committed state
// untouched. `commit` must then accept at least these rows. settled == 0 makes the pass pure. Every other row descends from the
// last settled row: parent[i] >= settled - 1.
struct LaneRows {
  int first_row = 0, rows = 0;
  int64_t prefix = 0;  // committed tokens before these rows
  int settled = 0;
  std::span<const int16_t> parent;

  int parent_of(int row) const { return parent.empty() ? row - 1 : parent[row]; }
};

struct Batch {
  std::span<const RowInput> inputs;
  std::span<const LaneRows> lanes;
  std::span<const int> logits_rows;  // rows whose logits are wanted, ascending
  // One per row of logits_rows: what a backend away from the host finds out about it in the pass. Or empty.
  std::span<const ChoiceSpec> choices;
};

// ---- K/V pages. One page holds kPageTokens consecutive sequence slots of every attention layer of a model. Uncommitted row
// i of a pass uses slot prefix + i; `commit` moves accepted rows down to their final slots.

enum class KvFormat : uint8_t { kF32, kBF16, kInt8 };

// Inside a page: layer, then K/V head, then the K block [head_dim][kPageTokens], the V block [kPageTokens][head_dim], and for
// int8 the fp32 scales of K [kPageTokens] and of V [kPageTokens] (one per token and head, applied after the integer value).
struct KvLayout {
  int layers = 0, heads = 0, head_dim = 0;
  KvFormat format = KvFormat::kBF16;

  constexpr size_t element_bytes() const { return format == KvFormat::kF32 ? 4 : format == KvFormat::kBF16 ? 2 : 1; }
  constexpr size_t block_bytes() const { return size_t(kPageTokens) * size_t(head_dim) * element_bytes(); }
  constexpr size_t scale_bytes() const { return format == KvFormat::kInt8 ? kPageTokens * sizeof(float) : 0; }
  constexpr size_t head_bytes() const { return (2 * (block_bytes() + scale_bytes()) + 63) / 64 * 64; }
  constexpr size_t page_bytes() const { return head_bytes() * size_t(heads) * size_t(layers); }
  constexpr size_t key_offset(int layer, int head) const { return (size_t(layer) * size_t(heads) + size_t(head)) * head_bytes(); }
  constexpr size_t value_offset(int layer, int head) const { return key_offset(layer, head) + block_bytes(); }
  constexpr size_t key_scale_offset(int layer, int head) const { return value_offset(layer, head) + block_bytes(); }
  constexpr size_t value_scale_offset(int layer, int head) const { return key_scale_offset(layer, head) + scale_bytes(); }
};

// ---- Recurrent state.

struct DeltaShape {
  int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, kernel = 0;
  // Key head of value head h: h % key_heads (Qwen3.5 after normalisation, as GGUF stores it), or h / (value_heads / key_heads)
  // (Qwen3-Next).
  bool grouped = false;

  constexpr int piece_keys() const { return (key_dim + kKeyPieces - 1) / kKeyPieces; }  // the last pieces may have less
  constexpr int channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  constexpr int key_head_of(int value_head) const {
    return grouped ? value_head / (value_heads / key_heads) : value_head % key_heads;
  }
  constexpr size_t state_floats() const { return size_t(value_heads) * size_t(key_dim) * size_t(value_dim); }
  constexpr size_t tail_floats() const { return size_t(kernel - 1) * size_t(channels()); }
};

// What forward leaves per unsettled row and delta layer, enough to replay it without reductions. Row-major fp32; row i of the
// tape belongs to row i of the lane, so the settled rows' places stay unused.
struct DeltaTape {
  float* decay = nullptr;     // [rows, value_heads]: exp(g)
  float* key = nullptr;       // [rows, key_heads * key_dim]: l2-normalised, as used
  float* delta = nullptr;     // [rows, value_heads * value_dim]: beta * (v - k^T S)
  float* conv_row = nullptr;  // [rows, channels]: before the convolution
};

// The memory of one lane in one delta layer. `state` [value_heads, key_dim, value_dim], `tail` [kernel - 1, channels] oldest
// first, both fp32; `tape` has room for the pass's rows and may be empty when all of them are settled.
struct DeltaMemory {
  float* state = nullptr;
  float* tail = nullptr;
  DeltaTape tape;
};

}  // namespace foretoken
