// The operator vocabulary. `Backend` is implemented by the scalar reference (here, the oracle of all others), by cpu/ and by
// cuda/; the model calls nothing else. Every operator is kBitwise on the CPU backends and kRowExact on CUDA: a row's bits depend
// on that row's own inputs and its lane's committed prefix alone. Views are fp32 unless said; outputs never alias inputs
// unless said; shapes are checked on entry. Formulas: docs/numerics.md, docs/model.md.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/contract.h"
#include "numerics/quant.h"
#include "numerics/tensor.h"
#include "ops/batch.h"

namespace foretoken {

// One weight as a file holds it: rows x cols, row-major, rows of row_bytes(format, cols) bytes (borrowed, maybe unaligned).
struct MatrixSource {
  std::string name;
  QuantFormat format = QuantFormat::kF32;
  int64_t rows = 0, cols = 0;
  std::span<const std::byte> data;
  std::vector<int32_t> row_order;     // packed row r is source row row_order[r]; empty: identity
  std::vector<int32_t> column_order;  // packed column c is source column column_order[c]; float formats only
  // Where set: called while packing with parts of `data` that will not be read again, so that a large source need not stay resident.
  std::function<void(std::span<const std::byte>)> release;
};

// A weight packed for one backend: y = W x for x of `cols` values. The format ends here.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  size_t bytes() const { return bytes_; }
  // All of it, as Backend::adopt takes it back; empty where BackendInfo::packing is.
  virtual std::span<const std::byte> packed() const { return {}; }

 protected:
  Matrix(int64_t rows, int64_t cols, size_t bytes) : rows_(rows), cols_(cols), bytes_(bytes) {}
  int64_t rows_, cols_;
  size_t bytes_;
};
using MatrixPtr = std::unique_ptr<const Matrix>;

// Rotary embedding of the first rotary_dim dimensions, half-split pairs (j, j + rotary_dim / 2). Frequency j takes the angle of
// position axis `axis[j]`; sin and cos are multiplied by `magnitude` (YaRN; else 1).
struct RotarySpec {
  std::vector<float> inverse_frequency;  // [rotary_dim / 2], fp32
  std::vector<uint8_t> axis;             // [rotary_dim / 2], 0 t, 1 h, 2 w
  float magnitude = 1.0f;
  int rotary_dim() const { return 2 * static_cast<int>(inverse_frequency.size()); }
};

// Query head n reads K/V head n / (query_heads / kv_heads). head_dim is at most 256: an int8 row of K or V is one block.
struct AttentionShape {
  int query_heads = 0, kv_heads = 0, head_dim = 0;
  float norm_epsilon = 1e-6f;
  // Columns of the packed projection: per query head [query: head_dim | gate: head_dim], then keys, then values.
  int query_columns() const { return 2 * query_heads * head_dim; }
  int packed_columns() const { return query_columns() + 2 * kv_heads * head_dim; }
};

// Pages of one lane for one KvLayout: page p holds slots [p * kPageTokens, (p + 1) * kPageTokens).
using PageTable = std::span<std::byte* const>;

// What reads a packed matrix: linear, or gated_ffn and moe alone (gate_up of ExpertWeights). The second may be laid out in an order of
// the backend's own.
enum class MatrixUse : uint8_t { kLinear, kGateUp };

struct MoeShape {
  int experts = 0, top_k = 0;
};
struct ExpertWeights {
  MatrixPtr gate_up;  // [2 * width, hidden]: gate rows, then up rows
  MatrixPtr down;     // [hidden, width]
};
struct MoeWeights {
  MatrixPtr router;  // [experts, hidden]
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
  MatrixPtr shared_gate;  // [1, hidden]
};

// ---- Block drafters. A lane's context K/V lie in pages of one layer; position p has slot (p - base) modulo the slots there are, so
// that a window is a ring and anything else grows.

struct BlockShape {
  int query_heads = 0, kv_heads = 0, head_dim = 0;
  float norm_epsilon = 1e-6f;
  int window = 0;       // a row at position n sees context positions p > n - window; 0: all
  bool causal = false;  // rows see only earlier rows of their block and themselves
};

// Rows [first_row, first_row + rows) of a pass belong to one lane and have positions end, end + 1, ...; its context is [begin, end).
struct BlockLane {
  int first_row = 0, rows = 0;
  int64_t base = 0, begin = 0, end = 0;  // base: position of slot 0, a multiple of kPageTokens, <= begin
  PageTable pages;

  int64_t slot(int64_t position) const {
    return (position - base) % (static_cast<int64_t>(pages.size()) * kPageTokens);
  }
};

// Slots [first, first + slots) of a lattice belong to one block; the first follows the anchor, every other the one before it.
struct LatticeBlock {
  int first = 0, slots = 0;
  TokenId anchor = -1;
};
// On the host.
struct Lattice {
  std::vector<TokenId> ids;         // [slots, k], as Backend::top_k gives them
  std::vector<float> unary, edges;  // [slots, k] their logits; [slots, k, k], or empty without a selector
  std::vector<float> work;          // an operator's own, kept so that it is allocated once
};

struct BackendInfo {
  std::string name;    // "reference", "cpu"
  std::string detail;  // instruction set, threads or device, for logs and certificates
  // Names the layout of packed matrices, which is then a function of their sources alone; empty: they cannot outlive the process.
  std::string packing;
};

// What a backend's kernels cannot exceed. A bundle beyond it is refused before anything of it is packed.
struct BackendLimits {
  int key_dim = std::numeric_limits<int>::max();  // of the delta rule
  int experts = std::numeric_limits<int>::max(), top_k = std::numeric_limits<int>::max();
  int vocabulary = std::numeric_limits<int>::max();  // tokens that top_k and choose look through
  bool like_experts = false;                      // all experts of a layer are stored in the same formats
};

// Of the memory that operators compute in; zeros where it is the host's.
struct BackendMemory {
  uint64_t total_bytes = 0, free_bytes = 0;
};

// A copy that goes on beside the operators; `from` and `to` do not overlap.
struct TransferPiece {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
};
enum class TransferWay : uint8_t { kToStaging, kFromStaging };
using TransferId = int64_t;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendInfo info() const = 0;
  virtual BackendLimits limits() const { return {}; }

  // ---- Memory. Views, pages, lanes' memory and small parameters that operators take lie where `allocate` puts them. On the host lie
  // the descriptions: inputs, batches, tables of page pointers, paths and token ids. By default a backend computes in host memory.

  virtual bool on_host() const { return true; }
  virtual BackendMemory memory() const { return {}; }
  // Zeroed memory for operators.
  virtual Buffer allocate(size_t bytes);
  // Host memory that transfers are fastest with.
  virtual Buffer allocate_staging(size_t bytes);
  // Copies of one shape: host to operators' memory and back, and within operators' memory. They keep the order of the calls;
  // `upload` is done with `host` when it returns, and `download` has waited for every operator before it.
  virtual void upload(View host, View to);
  virtual void download(View from, View host);
  virtual void copy(View from, View to);
  virtual void clear(View memory);
  // Whether no value of `views`, which are fp32, is a NaN or an infinity; true of no values. The answer is the host's: this waits.
  // By default the host reads them all.
  virtual bool all_finite(std::span<const View> views);
  // Copies between operators' memory and memory of allocate_staging, which begin behind every operator called before and go on beside
  // those called later; those of one way are done in the order of the calls. Until one has finished, what it reads is not to be written
  // and what it writes not to be touched: by operators, the host or other copies. By default it is done when it begins.
  virtual TransferId begin_transfer(std::span<const TransferPiece> pieces, TransferWay way);
  virtual bool transfer_finished(TransferId) { return true; }  // does not wait
  virtual void finish_transfer(TransferId) {}                  // waits
  // Announces a table of `embed` before its first use; a backend with its own memory copies the rows there. The source's bytes
  // must outlive the backend's use of the table, which is known by their address.
  virtual void keep_table(const MatrixSource& table);

  // Packs `parts` (same cols) into one matrix whose outputs are the parts' rows in order. A part's format is kept: nothing is
  // requantised. Source bytes are not used after the call.
  virtual MatrixPtr pack(std::span<const MatrixSource> parts, MatrixUse use = MatrixUse::kLinear) = 0;
  // The matrix that pack(parts) gave when its packed() was `packed`, which is borrowed (64-byte aligned, must outlive the result); the
  // parts' data are not read. Null when it has another size than these parts have. Only where info().packing is not empty.
  virtual MatrixPtr adopt(std::span<const MatrixSource> /*parts*/, std::span<const std::byte> /*packed*/) {
    CHECK(!info().packing.empty());
    return nullptr;
  }

  // ---- Rows

  // out[i] = the input's own embedding, or row `token` of `table` decoded exactly. out [rows, hidden].
  virtual void embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) = 0;
  // y = x * rsqrt(mean(x^2) + epsilon) * w; the sum in canonical order, mean by division, rsqrt as 1 / sqrt, then (x * r) * w.
  // w [1, cols]; in place allowed.
  virtual void rms_norm(View x, View w, float epsilon, View out) = 0;
  // out[r, o] = sum_k W[o, k] x[r, k]. Float weights: 16-lane order on fp32 activations. Block-quantised: activations are
  // quantised per row and block, canonical::add_block over ascending blocks.
  virtual void linear(View x, const Matrix& w, View out) = 0;
  // inout += x.
  virtual void add(View x, View inout) = 0;
  // inout *= factor. Scalar code by default.
  virtual void scale(View inout, float factor);
  virtual void gather_rows(View x, std::span<const int> rows, View out) = 0;

  // ---- Feed-forward

  // out = down(silu(gate x) * up x); gate_up holds gate rows, then up rows. out [rows, hidden].
  virtual void gated_ffn(View x, const ExpertWeights& w, View out) = 0;
  // Router logits in fp32; the top_k experts by logit descending, id ascending (a NaN ranks first); weights
  // e_j = exp(l_j - l_0) / sum in that order; out = sum_j e_j * ffn_j(x) by fma in that order from +0, then
  // + sigmoid(shared_gate x) * shared(x) by fma.
  virtual void moe(View x, const MoeShape& shape, const MoeWeights& w, View out) = 0;

  // ---- Attention

  // table [rows, rotary_dim]: cos of every pair, then sin, from each row's positions.
  virtual void rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) = 0;
  // From packed [rows, packed_columns]: q and k are RMS-normed per head (weights q_norm, k_norm [1, head_dim]) and rotated; k and v
  // are stored, rounded, into slot prefix + i of `layer`; q goes to `queries` [rows, query_heads * head_dim]. One page table per
  // batch lane.
  virtual void attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape,
                                const Batch& batch, std::span<const PageTable> pages, const KvLayout& layout, int layer,
                                View queries) = 0;
  // Softmax attention over the committed prefix and the row's own ancestors, in blocks of kPageTokens and spans of kSpanTokens
  // logical positions; multiplied by sigmoid(gate) read from `packed`. out [rows, query_heads * head_dim].
  virtual void attention(View queries, View packed, const AttentionShape& shape, const Batch& batch,
                         std::span<const PageTable> pages, const KvLayout& layout, int layer, View out) = 0;
  // Moves accepted rows of all layers from slots prefix + path[j] to prefix + j. `path` ascends.
  virtual void commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) = 0;

  // ---- Gated delta net

  // out [rows, channels] = silu(causal depthwise convolution), taps oldest first: acc = fma(w[j], x[t - kernel + 1 + j], acc) from
  // +0. packed's first `channels` columns are the input; weight [channels, kernel]. Unsettled rows are copied to the tape; the tail
  // advances over settled rows after they were used.
  virtual void causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch,
                           std::span<const DeltaMemory> lanes, View out) = 0;
  // The gated delta rule, token by token (docs/numerics.md gives the operations in order). conv [rows, channels] holds q | k | v;
  // beta_alpha [rows, 2 * value_heads] holds b | a; decay_rate and dt_bias [1, value_heads], decay_rate = -exp(A_log).
  // out [rows, value_heads * value_dim]. State advances over settled rows; other rows leave tape.
  virtual void delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape,
                          const Batch& batch, std::span<const DeltaMemory> lanes, View out) = 0;
  // Per value head: x * rsqrt(mean(x^2) + epsilon) * w, then * silu(gate) (or sigmoid). In place allowed. w [1, value_dim].
  virtual void gated_norm(View x, View gate, View w, float epsilon, bool sigmoid_gate, View out) = 0;
  // Applies the tape rows path[settled..] to state and tail: S = fma(k, d, decay * S), the same operations as delta_rule.
  virtual void commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled, std::span<const int> path) = 0;

  // ---- Block drafters: guesses only, so kBounded between backends, and kRowExact in each: a lane's bits do not depend on the other
  // lanes. draft.cc defines them in scalar code, which a backend keeps for those it has no kernel of its own for.

  // q [rows, query_heads * head_dim], in place, or empty: RMS-normed per head and rotated. kv [rows, keys | values]: keys are normed
  // and rotated; both are stored, rounded, into the slots of the rows' positions, in layer 0 of `layout`.
  virtual void block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& shape,
                            std::span<const BlockLane> lanes, const KvLayout& layout);
  // Softmax attention over the context and the rows of the own block, whose K and V block_inputs has stored. No gate.
  // out [rows, query_heads * head_dim].
  virtual void block_attention(View queries, const BlockShape& shape, std::span<const BlockLane> lanes, const KvLayout& layout,
                               View out);
  // out[t, c] = sum_j (base[j, c] + delta[t, j * groups + c / group]) * x[t - j, c] by fma over ascending j from +0, rows before the
  // block's first counting as zero. base [taps, cols], delta [rows, taps * groups], groups = cols / group.
  virtual void block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out);
  // The k largest of each row, falling, ties to the lower index; NaN counts as the smallest. ids [rows * k], values [rows, k].
  virtual void top_k(View logits, int k, std::span<TokenId> ids, View values);
  // What is asked of each row (choice.h); the same bits in every backend. The result is the host's: this waits.
  virtual void choose(View logits, std::span<const ChoiceSpec> specs, Choices& out);
  // edges[s * k + a, b] = sum_r predecessors[s * k + a, r] * weights[s, r] * successors[s * k + b, r]. weights [slots, rank].
  virtual void selector_edges(View weights, View predecessors, View successors, View edges);
  // top_k of every row of `logits`, and selector_edges between the candidates of neighbouring slots, whose rows of `predecessor` and
  // `successor` are embed's: edges[s, a, b] is of candidate a of the slot before (of the anchor, for every a, where there is none)
  // and candidate b. weights [slots, rank]; empty: no edges. The result is the host's: this waits, once.
  virtual void lattice(View logits, int k, View weights, const MatrixSource& predecessor, const MatrixSource& successor,
                       std::span<const LatticeBlock> blocks, Lattice& out);
};

// The number that a backend in a shared library must have been built with: raised when anything in this file or batch.h changes.
inline constexpr int kBackendInterface = 9;

enum class Isa : uint8_t { kAuto, kScalar, kAvx2, kAvx512 };
struct CpuOptions {
  Isa isa = Isa::kAuto;
  int threads = 0;  // 0: all usable processors
};

struct CudaOptions {
  bool graphs = true;  // passes of a shape seen before are one graph; false: every launch by itself, for tools that time kernels
  bool wide = true;    // products of many rows have kernels of their own where those give the same bits; false: never, to compare
  size_t most_shared = 0;  // bytes of shared memory that a block of threads may ask for; 0: all there are. To try a smaller device's plans
};

std::unique_ptr<Backend> make_reference_backend();
// Error when the processor lacks the requested instruction set (AVX2, FMA and F16C at least).
Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options);
// From libforetoken_cuda.so, looked for beside the program. Error when it or a device that it has kernels for is missing.
Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options = {});

}  // namespace foretoken
