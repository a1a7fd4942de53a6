// Every operator handed on, under its own name.
#include "qualify/timed_backend.h"

namespace foretoken {

void TimedBackend::upload(View host, View to) {
  timed("upload", [&] { inner_.upload(host, to); });
}
void TimedBackend::download(View from, View host) {
  timed("download", [&] { inner_.download(from, host); });
}
void TimedBackend::copy(View from, View to) {
  timed("copy", [&] { inner_.copy(from, to); });
}
bool TimedBackend::all_finite(std::span<const View> views) {
  bool finite = false;
  timed("all_finite", [&] { finite = inner_.all_finite(views); });
  return finite;
}
void TimedBackend::embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) {
  timed("embed", [&] { inner_.embed(inputs, table, out); });
}
void TimedBackend::rms_norm(View x, View w, float epsilon, View out) {
  timed("rms_norm", [&] { inner_.rms_norm(x, w, epsilon, out); });
}
void TimedBackend::linear(View x, const Matrix& w, View out) {
  timed("linear", [&] { inner_.linear(x, w, out); });
}
void TimedBackend::add(View x, View inout) {
  timed("add", [&] { inner_.add(x, inout); });
}
void TimedBackend::scale(View inout, float factor) {
  timed("scale", [&] { inner_.scale(inout, factor); });
}
void TimedBackend::gather_rows(View x, std::span<const int> rows, View out) {
  timed("gather_rows", [&] { inner_.gather_rows(x, rows, out); });
}
void TimedBackend::gated_ffn(View x, const ExpertWeights& w, View out) {
  timed("gated_ffn", [&] { inner_.gated_ffn(x, w, out); });
}
void TimedBackend::moe(View x, const MoeShape& shape, const MoeWeights& w, View out) {
  timed("moe", [&] { inner_.moe(x, shape, w, out); });
}
void TimedBackend::rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) {
  timed("rotary_table", [&] { inner_.rotary_table(inputs, spec, table); });
}
void TimedBackend::attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape,
                                    const Batch& batch, std::span<const PageTable> pages, const KvLayout& layout,
                                    int layer, View queries) {
  timed("attention_inputs",
        [&] { inner_.attention_inputs(packed, q_norm, k_norm, rotary, shape, batch, pages, layout, layer, queries); });
}
void TimedBackend::attention(View queries, View packed, const AttentionShape& shape, const Batch& batch,
                             std::span<const PageTable> pages, const KvLayout& layout, int layer, View out) {
  timed("attention", [&] { inner_.attention(queries, packed, shape, batch, pages, layout, layer, out); });
}
void TimedBackend::commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) {
  timed("commit_kv", [&] { inner_.commit_kv(pages, layout, prefix, path); });
}
void TimedBackend::causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch,
                               std::span<const DeltaMemory> lanes, View out) {
  timed("causal_conv", [&] { inner_.causal_conv(packed, weight, shape, batch, lanes, out); });
}
void TimedBackend::delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape,
                              const Batch& batch, std::span<const DeltaMemory> lanes, View out) {
  timed("delta_rule", [&] { inner_.delta_rule(conv, beta_alpha, decay_rate, dt_bias, shape, batch, lanes, out); });
}
void TimedBackend::gated_norm(View x, View gate, View w, float epsilon, bool sigmoid_gate, View out) {
  timed("gated_norm", [&] { inner_.gated_norm(x, gate, w, epsilon, sigmoid_gate, out); });
}
void TimedBackend::commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled,
                                std::span<const int> path) {
  timed("commit_delta", [&] { inner_.commit_delta(shape, lane, settled, path); });
}
void TimedBackend::block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& shape,
                                std::span<const BlockLane> lanes, const KvLayout& layout) {
  timed("block_inputs", [&] { inner_.block_inputs(q, kv, q_norm, k_norm, rotary, shape, lanes, layout); });
}
void TimedBackend::block_attention(View queries, const BlockShape& shape, std::span<const BlockLane> lanes,
                                   const KvLayout& layout, View out) {
  timed("block_attention", [&] { inner_.block_attention(queries, shape, lanes, layout, out); });
}
void TimedBackend::block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) {
  timed("block_conv", [&] { inner_.block_conv(x, base, delta, group, lanes, out); });
}
void TimedBackend::top_k(View logits, int k, std::span<TokenId> ids, View values) {
  timed("top_k", [&] { inner_.top_k(logits, k, ids, values); });
}
void TimedBackend::choose(View logits, std::span<const ChoiceSpec> specs, Choices& out) {
  timed("choose", [&] { inner_.choose(logits, specs, out); });
}
void TimedBackend::selector_edges(View weights, View predecessors, View successors, View edges) {
  timed("selector_edges", [&] { inner_.selector_edges(weights, predecessors, successors, edges); });
}
void TimedBackend::lattice(View logits, int k, View weights, const MatrixSource& predecessor, const MatrixSource& successor,
                           std::span<const LatticeBlock> blocks, Lattice& out) {
  timed("lattice", [&] { inner_.lattice(logits, k, weights, predecessor, successor, blocks, out); });
}

}  // namespace foretoken
