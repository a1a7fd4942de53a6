// The model, as one would explain it: embedding, layers of mixer and feed-forward around a residual stream, norm, head.
#include "model/target.h"

#include <algorithm>

namespace foretoken {

TargetModel::TargetModel(const ModelConfig& config, const Weights& weights, Backend& backend, const TargetOptions& options)
    : config_(config), weights_(weights), backend_(backend), options_(options), pages_(config.kv_layout(options.kv_format), backend),
      attention_mixer_(config, backend) {
  CHECK(options.max_rows >= 1);
  CHECK(weights.layers.size() == static_cast<size_t>(config.layers));
}

std::unique_ptr<LaneState> TargetModel::make_lane() {
  return std::make_unique<LaneState>(config_, pages_, options_.tape_rows);
}

ForwardResult TargetModel::forward(const Batch& batch, std::span<LaneState* const> lanes, std::span<const int> tap_layers) {
  prepare(batch, lanes, tap_layers);
  const int64_t rows = static_cast<int64_t>(batch.inputs.size());
  rows_run_ += batch.inputs.size();
  const int hidden = config_.hidden;
  const View x = x_.rows(rows, hidden), h = h_.rows(rows, hidden), mixed = mixed_.rows(rows, hidden);
  const View taps = taps_.rows(rows, static_cast<int64_t>(tap_layers.size()) * hidden);
  const auto tap = [&](int layer) {
    for (size_t i = 0; i < tap_layers.size(); ++i)
      if (tap_layers[i] == layer)
        backend_.copy(x, taps.columns(static_cast<int64_t>(i) * hidden, static_cast<int64_t>(i + 1) * hidden));
  };

  const View rotary = rotary_.rows(rows, config_.rotary.rotary_dim());
  backend_.rotary_table(batch.inputs, config_.rotary, rotary);
  backend_.embed(batch.inputs, weights_.embedding, x);
  tap(-1);
  for (int layer = 0; layer < config_.layers; ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    const int index = config_.kind_index(layer);
    backend_.rms_norm(x, w.mixer_norm, config_.norm_epsilon, h);
    const AttentionMemory memory{batch, page_tables_, pages_.layout(), index};
    if (config_.is_attention(layer)) attention_mixer_.run(w.attention(), rotary, memory, h, mixed);
    else delta_mixer(w.delta(), batch, index, h, mixed);
    backend_.add(mixed, x);
    backend_.rms_norm(x, w.ffn_norm, config_.norm_epsilon, h);
    feed_forward(backend_, config_, w, h, mixed);
    backend_.add(mixed, x);
    tap(layer);
  }
  const View normed = hidden_.rows(rows, hidden);
  backend_.rms_norm(x, weights_.final_norm, config_.norm_epsilon, normed);
  const int64_t wanted = static_cast<int64_t>(batch.logits_rows.size());
  const View last = last_.rows(wanted, hidden), logits = logits_.rows(wanted, config_.vocab);
  if (wanted > 0) {
    backend_.gather_rows(normed, batch.logits_rows, last);
    backend_.linear(last, *weights_.head, logits);
  }
  const bool chooses = !backend_.on_host() && !batch.choices.empty() && wanted > 0;
  if (chooses) backend_.choose(logits, batch.choices, choices_);
  return {host_logits_.of(logits), host_hidden_.of(normed), host_taps_.of(taps), chooses ? &choices_ : nullptr};
}

void TargetModel::delta_mixer(const DeltaWeights& w, const Batch& batch, int index, View h, View out) {
  const DeltaShape& d = config_.delta;
  const int64_t channels = d.channels(), value = config_.delta_value_columns();
  const View packed = packed_.rows(h.rows, config_.delta_packed_columns());
  const View conv = conv_.rows(h.rows, channels), core = core_.rows(h.rows, value);
  for (size_t i = 0; i < lanes_.size(); ++i) delta_memory_[i] = lanes_[i]->delta()[static_cast<size_t>(index)];

  backend_.linear(h, *w.in_proj, packed);  // q | k | v | z | b | a
  backend_.causal_conv(packed, w.conv, d, batch, delta_memory_, conv);
  backend_.delta_rule(conv, packed.columns(channels + value, packed.cols), w.decay_rate, w.dt_bias, d, batch, delta_memory_, core);
  backend_.gated_norm(core, packed.columns(channels, channels + value), w.norm, config_.norm_epsilon,
                      config_.sigmoid_output_gate, core);
  backend_.linear(core, *w.out_proj, out);
}

void TargetModel::prepare(const Batch& batch, std::span<LaneState* const> lanes, std::span<const int> tap_layers) {
  CHECK(batch.lanes.size() == lanes.size());
  CHECK(batch.inputs.size() <= static_cast<size_t>(options_.max_rows));
  CHECK(batch.choices.empty() || batch.choices.size() == batch.logits_rows.size());
  for (const int layer : tap_layers) {
    CHECK(layer >= -1);
    CHECK(layer < config_.layers);
  }
  int next_row = 0;
  page_tables_.clear();
  for (size_t i = 0; i < lanes.size(); ++i) {
    const LaneRows& rows = batch.lanes[i];
    LaneState& lane = *lanes[i];
    CHECK(rows.first_row == next_row);
    CHECK(rows.rows >= 1);
    CHECK(rows.prefix == lane.length_);
    CHECK(rows.settled >= 0);
    CHECK(rows.settled <= rows.rows);
    CHECK(rows.parent.empty() || rows.parent.size() == static_cast<size_t>(rows.rows));
    for (int r = 0; r < rows.rows; ++r) {
      CHECK(rows.parent_of(r) >= -1);
      CHECK(rows.parent_of(r) < r);
      CHECK(r >= rows.settled || rows.parent_of(r) == r - 1);
    }
    if (rows.settled < rows.rows) CHECK(rows.rows <= lane.tape_rows());
    lane.reserve(rows.prefix + rows.rows);
    lane.pending_rows_ = rows.rows;
    lane.pending_settled_ = rows.settled;
    page_tables_.push_back(lane.pages());
    next_row += rows.rows;
  }
  CHECK(static_cast<size_t>(next_row) == batch.inputs.size());
  delta_memory_.resize(lanes.size());
  lanes_ = lanes;
}

void TargetModel::commit(LaneState& lane, std::span<const int> path) {
  const int settled = lane.pending_settled_;
  CHECK(path.size() >= static_cast<size_t>(settled));
  for (size_t j = 0; j < path.size(); ++j) {
    CHECK(path[j] < lane.pending_rows_);
    CHECK(path[j] > (j == 0 ? -1 : path[j - 1]));
    CHECK(j >= static_cast<size_t>(settled) || path[j] == static_cast<int>(j));
  }
  for (const DeltaMemory& memory : lane.delta()) backend_.commit_delta(config_.delta, memory, settled, path);
  backend_.commit_kv(lane.pages(), pages_.layout(), lane.length_, path);
  lane.length_ += static_cast<int64_t>(path.size());
  lane.pending_rows_ = lane.pending_settled_ = 0;
}

}  // namespace foretoken
