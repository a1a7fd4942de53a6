// Identity, memory, packing and the operators' host side.
#include "cuda/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "cuda/plans.h"
#include "ops/checks.h"

namespace foretoken::cuda {
namespace {

Rows rows_of(View v) { return {v.f32(), v.rows, v.cols, v.stride}; }

bool same_shape(const DeltaShape& a, const DeltaShape& b) {
  return a.key_heads == b.key_heads && a.value_heads == b.value_heads && a.key_dim == b.key_dim &&
         a.value_dim == b.value_dim && a.kernel == b.kernel && a.grouped == b.grouped;
}

bool same_layout(const KvLayout& a, const KvLayout& b) {
  return a.layers == b.layers && a.heads == b.heads && a.head_dim == b.head_dim && a.format == b.format;
}

bool same_view(View a, View b) {
  return a.data == b.data && a.rows == b.rows && a.cols == b.cols && a.stride == b.stride;
}

Convolved convolved_of(const auto& c) {
  const auto group = static_cast<unsigned>(c.group);
  return {.x = rows_of(c.x),
          .base = rows_of(c.base),
          .delta = rows_of(c.delta),
          .group_bits = std::has_single_bit(group) ? std::countr_zero(group) : -1,
          .place = c.place};
}

const CudaMatrix& matrix_of(const Matrix& w) { return static_cast<const CudaMatrix&>(w); }

HeadShape head_shape(const AttentionShape& shape, int rotary_dim) {
  return {.query_heads = shape.query_heads,
          .kv_heads = shape.kv_heads,
          .dim = shape.head_dim,
          .query_columns = shape.query_columns(),
          .rotary_dim = rotary_dim,
          .epsilon = shape.norm_epsilon};
}

constexpr size_t kPartialFloats = 64u << 20;  // of one attention launch
constexpr int kMostTopExperts = 32, kMostExperts = 512;

}  // namespace

CudaBackend::CudaBackend(int device, const KernelCode& code, const CudaOptions& options) : device_(device) {
  check(cudaSetDevice(device), "choosing a device");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "asking for properties");
  detail_ = fmt::format("{}, sm_{}{}, {} GiB, kernels of {}", properties.name, properties.major, properties.minor,
                        properties.totalGlobalMem >> 30, name_of(code));
  const Limits all{.code = code,
                   .multiprocessors = properties.multiProcessorCount,
                   .block_shared = properties.sharedMemPerBlockOptin,
                   .multiprocessor_shared = properties.sharedMemPerMultiprocessor};
  queue_ = std::make_unique<Queue>(options.graphs, limited(all, options.most_shared));
  admission_ = Admission(options.wide && code.wgmma && queue_->limits().block_shared >= kWideShared);
  transfers_ = std::make_unique<Transfers>(*queue_);
}

CudaBackend::~CudaBackend() { queue_->synchronize("an operator"); }

BackendInfo CudaBackend::info() const {
  const std::string refused = admission_.refused();
  return {.name = "cuda", .detail = refused.empty() ? detail_ : detail_ + "; " + refused};
}

// ---- Memory

BackendMemory CudaBackend::memory() const {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for memory");
  return {.total_bytes = total, .free_bytes = free};
}

void CudaBackend::upload(View host, View to) {
  begin();
  checks::copy(host, to);
  if (host.empty()) return;
  queue_->flush();
  const size_t element = dtype_bytes(host.dtype), width = static_cast<size_t>(host.cols) * element;
  if (std::byte* staging = queue_->staging(static_cast<size_t>(host.rows) * width)) {
    for (int64_t r = 0; r < host.rows; ++r)
      std::memcpy(staging + static_cast<size_t>(r) * width, host.data + static_cast<size_t>(r * host.stride) * element,
                  width);
    check(cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.stride) * element, staging, width, width,
                            static_cast<size_t>(host.rows), cudaMemcpyHostToDevice, queue_->stream()),
          "an upload");
    return;
  }
  check(cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.stride) * element, host.data,
                          static_cast<size_t>(host.stride) * element, width, static_cast<size_t>(host.rows),
                          cudaMemcpyHostToDevice, queue_->stream()),
        "an upload");
  queue_->synchronize("an upload");
}

void CudaBackend::download(View from, View host) {
  begin();
  checks::copy(from, host);
  if (!from.empty()) {
    queue_->flush();
    const size_t element = dtype_bytes(from.dtype);
    check(cudaMemcpy2DAsync(host.data, static_cast<size_t>(host.stride) * element, from.data,
                            static_cast<size_t>(from.stride) * element, static_cast<size_t>(from.cols) * element,
                            static_cast<size_t>(from.rows), cudaMemcpyDeviceToHost, queue_->stream()),
          "a download");
  }
  queue_->synchronize("an operator");
}

void CudaBackend::copy(View from, View to) {
  checks::copy(from, to);
  if (sum_.x.data && !sum_.tap.data && same_view(sum_.inout, from)) {
    sum_.tap = to;
    return;
  }
  begin();
  if (from.empty()) return;
  if (from.dtype == DType::kF32 && from.rows < 65536) {  // joins the pass
    launch_copy(rows_of(from), rows_of(to), *queue_);
    return;
  }
  queue_->flush();
  const size_t element = dtype_bytes(from.dtype);
  check(cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.stride) * element, from.data,
                          static_cast<size_t>(from.stride) * element, static_cast<size_t>(from.cols) * element,
                          static_cast<size_t>(from.rows), cudaMemcpyDeviceToDevice, queue_->stream()),
        "a copy");
}

void CudaBackend::clear(View memory) {
  begin();
  if (memory.empty()) return;
  queue_->flush();
  const size_t element = dtype_bytes(memory.dtype);
  check(
      cudaMemset2DAsync(memory.data, static_cast<size_t>(memory.stride) * element, 0,
                        static_cast<size_t>(memory.cols) * element, static_cast<size_t>(memory.rows), queue_->stream()),
      "clearing memory");
}

bool CudaBackend::all_finite(std::span<const View> views) {
  begin();
  for (const View& view : views) checks::shape(view, -1, -1);
  if (std::all_of(views.begin(), views.end(), [](const View& view) { return view.empty(); })) return true;
  if (found_.size() == 0) found_ = pinned_memory(sizeof(int));
  int* const found = reinterpret_cast<int*>(found_.data());  // the device writes there: nothing need be copied
  *found = 0;
  for (const View& view : views)
    if (!view.empty()) launch_find_non_finite(rows_of(view), found, *queue_);
  queue_->synchronize("an operator");
  return *found == 0;
}

TransferId CudaBackend::begin_transfer(std::span<const TransferPiece> pieces, TransferWay way) {
  begin();
  return transfers_->begin(pieces, way);
}

namespace {

// A copy of pageable memory: in the order of the stream, and done with the source when it returns.
void send(std::byte* to, const void* from, size_t bytes, Queue& queue) {
  if (bytes == 0) return;
  queue.flush();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, queue.stream()), "an upload");
  queue.synchronize("an upload");
}

}  // namespace

BackendLimits CudaBackend::limits() const {
  return {.key_dim = kMaxKeyDim,
          .experts = kMostExperts,
          .top_k = kMostTopExperts,
          .vocabulary = kMostTopColumns,
          .like_experts = true};
}

void CudaBackend::keep_table(const MatrixSource& table) {
  begin();
  Table kept{device_memory(table.data.size()), device_memory(table.row_order.size() * 4)};
  send(kept.rows.data(), table.data.data(), table.data.size(), *queue_);
  send(kept.order.data(), table.row_order.data(), table.row_order.size() * 4, *queue_);
  tables_.insert_or_assign(table.data.data(), std::move(kept));
}

namespace {

bool has_minimum(QuantFormat format) {
  return format == QuantFormat::kQ4_1 || format == QuantFormat::kQ5_1 || format == QuantFormat::kQ2_K ||
         format == QuantFormat::kQ4_K || format == QuantFormat::kQ5_K;
}

int64_t packed_rows(const MatrixSource& source) {
  return source.row_order.empty() ? source.rows : static_cast<int64_t>(source.row_order.size());
}

Buffer on_device(const std::vector<int32_t>& values, Queue& queue) {
  Buffer buffer = device_memory(values.size() * 4);
  send(buffer.data(), values.data(), values.size() * 4, queue);
  return buffer;
}

// Packs one source into the part's rows from `first_row` on. Sources in file order go through memory of `kChunk` bytes.
void pack_source(const MatrixSource& source, const Part& part, int64_t first_row, Queue& queue) {
  constexpr size_t kChunk = 64u << 20;
  const size_t stride = row_bytes(source.format, source.cols);
  CHECK(source.data.size() >= stride * static_cast<size_t>(source.rows));
  for (const int32_t r : source.row_order) {
    CHECK(r >= 0);
    CHECK(r < source.rows);
  }
  if (!source.column_order.empty()) {
    CHECK(is_float_format(source.format));
    CHECK(static_cast<int64_t>(source.column_order.size()) == source.cols);
    for (const int32_t c : source.column_order) {
      CHECK(c >= 0);
      CHECK(c < source.cols);
    }
  }
  // Orders are looked up by the part's row.
  std::vector<int32_t> order(source.row_order.empty() ? 0 : static_cast<size_t>(first_row), 0);
  order.insert(order.end(), source.row_order.begin(), source.row_order.end());
  const Buffer row_order = on_device(order, queue), column_order = on_device(source.column_order, queue);
  const int64_t rows = packed_rows(source);
  const int64_t chunk =
      source.row_order.empty()
          ? std::max<int64_t>(16, static_cast<int64_t>(kChunk / std::max<size_t>(1, stride)) / 16 * 16)
          : rows;
  const int64_t raw_rows = source.row_order.empty() ? std::min(chunk, rows) : source.rows;
  const Buffer raw = device_memory(static_cast<size_t>(raw_rows) * stride);
  for (int64_t done = 0; done < rows; done += chunk) {
    const int64_t count = std::min(chunk, rows - done), from = source.row_order.empty() ? done : 0;
    const int64_t sent = source.row_order.empty() ? count : source.rows;
    send(raw.data(), source.data.data() + static_cast<size_t>(from) * stride, static_cast<size_t>(sent) * stride,
         queue);
    launch_pack(
        {.format = source.format,
         .source = reinterpret_cast<const uint8_t*>(raw.data()),
         .row_bytes = stride,
         .first_row = first_row + done,
         .rows = count,
         .source_first = source.row_order.empty() ? first_row + done : 0,
         .row_order = source.row_order.empty() ? nullptr : reinterpret_cast<const int32_t*>(row_order.data()),
         .column_order = source.column_order.empty() ? nullptr : reinterpret_cast<const int32_t*>(column_order.data())},
        part, queue);
    queue.synchronize("packing");
  }
}

}  // namespace

MatrixPtr CudaBackend::pack(std::span<const MatrixSource> parts, MatrixUse use) {
  begin();
  CHECK(!parts.empty());
  const int64_t cols = parts[0].cols;
  std::vector<CudaMatrix::Piece> pieces;
  std::vector<std::pair<size_t, int64_t>> places;  // of each source: piece, first row there
  int64_t rows = 0;
  for (const MatrixSource& source : parts) {
    CHECK(source.cols == cols);
    const Layout layout = layout_of(source.format, cols);
    const bool has_min = layout == Layout::kCodes && has_minimum(source.format);
    // Consecutive sources of one layout become one part when the second starts on a whole tile.
    const bool joins = !pieces.empty() && pieces.back().part.layout == layout &&
                       pieces.back().part.has_min == has_min &&
                       (layout == Layout::kFloats || pieces.back().part.rows % 16 == 0);
    if (!joins) {
      pieces.emplace_back();
      pieces.back().part = {.layout = layout, .has_min = has_min, .cols = cols};
      pieces.back().first = rows;
    }
    places.emplace_back(pieces.size() - 1, pieces.back().part.rows);
    pieces.back().part.rows += packed_rows(source);
    rows += packed_rows(source);
  }
  if (use == MatrixUse::kGateUp && pieces.size() == 1) pieces[0].part.paired = may_pair(pieces[0].part);
  size_t bytes = 0;
  for (CudaMatrix::Piece& piece : pieces) {
    Part& part = piece.part;
    piece.codes = device_memory(code_bytes(part));
    piece.scales = device_memory(scale_bytes(part));
    piece.minimums = device_memory(minimum_bytes(part));
    part.codes = piece.codes.data();
    part.scales = piece.scales.data();
    part.minimums = piece.minimums.data();
    bytes += code_bytes(part) + scale_bytes(part) + minimum_bytes(part);
  }
  for (size_t i = 0; i < parts.size(); ++i)
    pack_source(parts[i], pieces[places[i].first].part, places[i].second, *queue_);
  for (CudaMatrix::Piece& piece : pieces) admission_.decide(piece.part, *queue_);
  return std::make_unique<CudaMatrix>(rows, cols, bytes, std::move(pieces));
}

// ---- Rows

void CudaBackend::embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) {
  begin();
  checks::embed(inputs, table, out);
  if (out.empty()) return;
  const TokenTable kept = table_of(table);
  words_.clear();
  float* own = nullptr;
  for (size_t i = 0; i < inputs.size(); ++i) {
    words_.push_back(inputs[i].embedding ? -1 : inputs[i].token);
    if (!inputs[i].embedding) continue;
    if (!own) own = own_rows_.take<float>(inputs.size() * static_cast<size_t>(out.cols));
    upload(View::of(const_cast<float*>(inputs[i].embedding), 1, out.cols),
           View::of(own + i * static_cast<size_t>(out.cols), 1, out.cols));
  }
  launch_embed(queue_->put(std::span<const int32_t>(words_)), own, kept, rows_of(out), *queue_);
}

TokenTable CudaBackend::table_of(const MatrixSource& table) const {
  const auto kept = tables_.find(table.data.data());
  CHECK(kept != tables_.end());
  return {.format = table.format,
          .rows = reinterpret_cast<const uint8_t*>(kept->second.rows.data()),
          .row_bytes = row_bytes(table.format, table.cols),
          .order = reinterpret_cast<const int32_t*>(kept->second.order.data())};
}

void CudaBackend::rms_norm(View x, View w, float epsilon, View out) {
  checks::rms_norm(x, w, out);
  NormAddend add;
  Rows tap;
  if (sum_.x.data && same_view(sum_.inout, x)) {
    add.rows = rows_of(sum_.x);
    add.planes = sliced_.planes;
    if (combined_.of.data) add.experts = combined_.from;
    if (block_convolution_) add.convolved = convolved_of(*block_convolution_);
    if (sum_.tap.data) tap = rows_of(sum_.tap);
    if (block_convolution_ && !norm_convolves(rows_of(x), add, w.f32(), rows_of(out), tap)) {
      add = {};
      tap = {};
    } else {
      sum_ = {};
      sliced_ = {};
      combined_ = {};
      block_convolution_.reset();
    }
  }
  finish_pending();  // as above
  if (x.empty()) return;
  launch_rms_norm(rows_of(x), add, w.f32(), epsilon, rows_of(out), leave_rounded(out), tap, *queue_);
}

void CudaBackend::gated_norm(View x, View gate, View w, float epsilon, bool sigmoid_gate, View out) {
  checks::gated_norm(x, gate, w, out);
  if (rule_ && same_view(rule_->out, x) && same_view(out, x) && w.cols == convolution_->shape.value_dim) {
    const Convolution c = *std::exchange(convolution_, {});
    const Rule rule = *std::exchange(rule_, {});
    rounded_ = {};  // nothing else is pending, and the description of the pass is kept
    const size_t arrivals = c.lanes.size() * static_cast<size_t>(c.shape.key_heads) * sizeof(int);
    if (arrivals_.size() < arrivals) arrivals_ = device_memory(arrivals);
    launch_delta_core({.packed = rows_of(c.packed),
                       .conv = rows_of(c.out),
                       .beta_alpha = rows_of(rule.beta_alpha),
                       .gate = rows_of(gate),
                       .out = rows_of(out),
                       .weight = c.weight.f32(),
                       .decay_rate = rule.decay_rate.f32(),
                       .dt_bias = rule.dt_bias.f32(),
                       .norm = w.f32(),
                       .epsilon = epsilon,
                       .sigmoid_gate = sigmoid_gate,
                       .bf16 = leave_rounded(out),
                       .arrivals = reinterpret_cast<int*>(arrivals_.data())},
                      c.shape, c.pass.desc, lanes_on_device(c.lanes), *queue_);
    return;
  }
  begin();
  if (x.empty()) return;
  launch_gated_norm(rows_of(x), rows_of(gate), w.f32(), static_cast<int>(w.cols), epsilon, sigmoid_gate, rows_of(out),
                    leave_rounded(out), *queue_);
}

void CudaBackend::add(View x, View inout) {
  checks::add(x, inout);
  std::optional<BlockConvolution> convolution;
  if (block_convolution_ && block_convolution_->place && same_view(block_convolution_->out, x))
    convolution = std::exchange(block_convolution_, {});
  const bool takes_slices = same_view(sliced_.of, convolution ? convolution->x : x);
  const Sliced sliced = takes_slices ? std::exchange(sliced_, {}) : Sliced{};
  const Combined combined = same_view(combined_.of, x) ? std::exchange(combined_, {}) : Combined{};
  finish_pending();  // what stays pending has its data where it is
  if (x.empty()) return;
  sum_ = {x, inout, {}};
  sliced_ = sliced;
  combined_ = combined;
  block_convolution_ = convolution;
}

void CudaBackend::scale(View inout, float factor) {
  begin();
  checks::shape(inout, -1, -1);
  if (inout.empty()) return;
  launch_scale(rows_of(inout), factor, *queue_);
}

void CudaBackend::gather_rows(View x, std::span<const int> rows, View out) {
  begin();
  checks::gather_rows(x, rows, out);
  if (out.empty()) return;
  launch_gather(rows_of(x), queue_->put(std::span<const int32_t>(rows)), rows_of(out), leave_rounded(out), *queue_);
}

// ---- Products

void CudaBackend::begin() {
  finish_pending();
  queue_->make_room();
}

void CudaBackend::finish_pending() {
  finish_sum();
  rounded_ = {};
  if (convolution_) finish_delta();
  if (!commits_.empty()) finish_commits();
  if (context_) finish_context();
}

// In the order in which they read each other.
void CudaBackend::finish_sum() {
  if (sliced_.planes.count > 0) launch_merge(sliced_.planes, rows_of(sliced_.of), *queue_);
  sliced_ = {};
  if (combined_.of.data) launch_combine(combined_.from, rows_of(combined_.of), *queue_);
  combined_ = {};
  if (const auto c = std::exchange(block_convolution_, {}))
    launch_block_conv(rows_of(c->x), rows_of(c->base), rows_of(c->delta), c->group, c->lanes, c->lane_count,
                      c->most_rows, rows_of(c->out), c->whole ? leave_rounded(c->out) : nullptr, *queue_);
  const Sum sum = std::exchange(sum_, {});
  if (!sum.x.data) return;
  launch_add(rows_of(sum.x), rows_of(sum.inout), *queue_);
  if (sum.tap.data) launch_copy(rows_of(sum.inout), rows_of(sum.tap), *queue_);
}

const uint16_t* CudaBackend::take_rounded(View x) {
  Rounded left = std::exchange(rounded_, {});
  finish_sum();
  if (rounded_.bf16) left = rounded_;  // of what was enqueued only now
  begin();
  if (left.bf16 && same_view(left.of, x)) return left.bf16;
  // Whole blocks of 64 columns: the rows beyond x's are read and never used.
  uint16_t* to = bf16_.take<uint16_t>(static_cast<size_t>((x.rows + 63) / 64 * 64 * padded_cols(x.cols)));
  launch_to_bf16(rows_of(x), to, *queue_);
  return to;
}

uint16_t* CudaBackend::leave_rounded(View out) {
  if (out.cols % 64 != 0) return nullptr;
  uint16_t* to = bf16_.take<uint16_t>(static_cast<size_t>((out.rows + 63) / 64 * 64 * out.cols));
  rounded_ = {out, to};
  return to;
}

void CudaBackend::products(View x, const uint16_t* bf16, const CudaMatrix& w, View out, bool may_slice) {
  for (const CudaMatrix::Piece& piece : w.pieces()) {
    void* work = work_.take<std::byte>(linear_work_bytes(piece.part, x.rows));
    launch_linear(piece.part, rows_of(x), bf16, rows_of(out), piece.first, work, *queue_);
    if (plane_count(piece.part) == 1) continue;
    const Planes planes = planes_of(piece.part, x.rows, work);
    if (may_slice && w.pieces().size() == 1) sliced_ = {out, planes};
    else launch_merge(planes, rows_of(out.columns(piece.first, piece.first + piece.part.rows)), *queue_);
  }
}

namespace {

bool only_floats(const CudaMatrix& w) {
  return std::all_of(w.pieces().begin(), w.pieces().end(),
                     [](const auto& piece) { return piece.part.layout == Layout::kFloats; });
}
bool any_floats(const CudaMatrix& w) {
  return std::any_of(w.pieces().begin(), w.pieces().end(),
                     [](const auto& piece) { return piece.part.layout == Layout::kFloats; });
}

}  // namespace

void CudaBackend::linear(View x, const Matrix& w, View out) {
  checks::linear(x, w, out);
  const CudaMatrix& matrix = matrix_of(w);
  if (only_floats(matrix) || out.empty()) begin();
  if (out.empty()) return;
  CHECK(!matrix.pieces()[0].part.paired);
  const uint16_t* bf16 = only_floats(matrix) ? nullptr : take_rounded(x);
  products(x, bf16, matrix, out, true);
  if (bf16) rounded_ = {x, bf16};  // another product of the same rows may follow
}

void CudaBackend::gated_ffn(View x, const ExpertWeights& w, View out) {
  checks::gated_ffn(x, w, out);
  if (out.empty()) return begin();
  ffn(x, take_rounded(x), w, out, true);
}

void CudaBackend::ffn(View x, const uint16_t* bf16, const ExpertWeights& w, View out, bool may_slice) {
  const CudaMatrix &gate_up = matrix_of(*w.gate_up), &down = matrix_of(*w.down);
  const Gated to = gated(x.rows, down);
  const Part& part = gate_up.pieces()[0].part;
  if (gives_hidden(part, x.rows)) {
    launch_gated(part, bf16, x.rows, to.wanted, *queue_);
  } else {
    products(x, bf16, gate_up, to.gate_up);
    finish(to, part.paired);
  }
  products(to.hidden, to.wanted.bf16, down, out, may_slice);
}

CudaBackend::Gated CudaBackend::gated(int64_t rows, const CudaMatrix& down) {
  const int64_t width = down.cols();
  float* memory = ffn_.take<float>(static_cast<size_t>(rows * 3 * width));
  Gated to{.gate_up = View::of(memory, rows, 2 * width),
           .hidden = View::of(memory + rows * 2 * width, rows, width),
           .wanted = {.width = width}};
  if (any_floats(down)) to.wanted.floats = to.hidden.f32();
  if (!only_floats(down))
    to.wanted.bf16 = ffn_bf16_.take<uint16_t>(static_cast<size_t>((rows + 63) / 64 * 64 * padded_cols(width)));
  return to;
}

void CudaBackend::finish(const Gated& to, bool paired) {
  const Hidden& wanted = to.wanted;
  if (wanted.floats) launch_silu(rows_of(to.gate_up), wanted.width, paired, rows_of(to.hidden), *queue_);
  if (wanted.bf16) launch_silu_to_bf16(rows_of(to.gate_up), wanted.width, paired, wanted.bf16, *queue_);
}

namespace {

bool alike(const Part& a, const Part& b) {
  return a.layout == b.layout && a.has_min == b.has_min && a.paired == b.paired && a.rows == b.rows && a.cols == b.cols;
}

bool alike(const CudaMatrix& a, const CudaMatrix& b) {
  return std::equal(a.pieces().begin(), a.pieces().end(), b.pieces().begin(), b.pieces().end(),
                    [](const auto& p, const auto& q) { return alike(p.part, q.part); });
}

}  // namespace

CudaBackend::ExpertTable CudaBackend::expert_table(const MoeWeights& w, bool with_shared, bool down) {
  ExpertTable table;
  const size_t experts = w.experts.size() + with_shared;
  const auto matrix = [&](size_t e) -> const CudaMatrix& {
    const ExpertWeights& expert = e < w.experts.size() ? w.experts[e] : w.shared;
    return matrix_of(down ? *expert.down : *expert.gate_up);
  };
  for (size_t e = 1; e < experts; ++e) CHECK(alike(matrix(e), matrix(0)));  // all experts of a layer are stored alike
  for (size_t p = 0; p < matrix(0).pieces().size(); ++p) {
    std::vector<Part> parts;
    for (size_t e = 0; e < experts; ++e) parts.push_back(matrix(e).pieces()[p].part);
    Buffer on = device_memory(parts.size() * sizeof(Part));
    send(on.data(), parts.data(), parts.size() * sizeof(Part), *queue_);
    table.parts.push_back(std::move(on));
    table.like.push_back(&matrix(0).pieces()[p]);
  }
  return table;
}

std::optional<CudaMatrix> CudaBackend::joined(const CudaMatrix& first, const CudaMatrix& second) {
  if (first.pieces().size() != 1 || second.pieces().size() != 1) return {};
  const Part &a = first.pieces()[0].part, &b = second.pieces()[0].part;
  if (a.layout != b.layout || a.has_min != b.has_min || a.cols != b.cols || a.rows % 16 != 0) return {};
  std::vector<CudaMatrix::Piece> pieces(1);
  pieces[0].part = a;
  pieces[0].part.rows = a.rows + b.rows;
  const auto join = [&](size_t a_bytes, const void* a_data, size_t b_bytes, const void* b_data) {
    Buffer to = device_memory(a_bytes + b_bytes);
    if (a_bytes > 0)
      check(cudaMemcpyAsync(to.data(), a_data, a_bytes, cudaMemcpyDeviceToDevice, queue_->stream()), "a copy");
    if (b_bytes > 0)
      check(cudaMemcpyAsync(to.data() + a_bytes, b_data, b_bytes, cudaMemcpyDeviceToDevice, queue_->stream()),
            "a copy");
    return to;
  };
  queue_->flush();
  pieces[0].codes = join(code_bytes(a), a.codes, code_bytes(b), b.codes);
  pieces[0].scales = join(scale_bytes(a), a.scales, scale_bytes(b), b.scales);
  pieces[0].minimums = join(minimum_bytes(a), a.minimums, minimum_bytes(b), b.minimums);
  pieces[0].part.codes = pieces[0].codes.data();
  pieces[0].part.scales = pieces[0].scales.data();
  pieces[0].part.minimums = pieces[0].minimums.data();
  admission_.decide(pieces[0].part, *queue_);
  return CudaMatrix(a.rows + b.rows, a.cols, code_bytes(a) + code_bytes(b), std::move(pieces));
}

const CudaBackend::MoeTables& CudaBackend::tables_of(const MoeWeights& w) {
  const auto [at, is_new] = moe_tables_.try_emplace(&w);
  MoeTables& tables = at->second;
  if (is_new) checks::moe_weights(w);
  std::vector<const void*> codes;
  for (const ExpertWeights* e : {&w.experts.front(), &w.experts[w.experts.size() / 2], &w.experts.back(), &w.shared})
    for (const Matrix* m : {e->gate_up.get(), e->down.get()})
      for (const CudaMatrix::Piece& piece : matrix_of(*m).pieces()) codes.push_back(piece.part.codes);
  if (tables.codes == codes) return tables;
  if (!is_new) checks::moe_weights(w);
  tables = {};
  tables.with_shared = alike(matrix_of(*w.shared.gate_up), matrix_of(*w.experts[0].gate_up)) &&
                       alike(matrix_of(*w.shared.down), matrix_of(*w.experts[0].down));
  tables.gate_up = expert_table(w, tables.with_shared, false);
  tables.down = expert_table(w, tables.with_shared, true);
  if (std::optional<CudaMatrix> both = joined(matrix_of(*w.router), matrix_of(*w.shared_gate)))
    tables.router_and_gate.emplace(*std::move(both));
  tables.codes = std::move(codes);
  return tables;
}

const Part* CudaBackend::only_table(const ExpertTable& table) {
  return table.parts.size() == 1 ? reinterpret_cast<const Part*>(table.parts[0].data()) : nullptr;
}

void CudaBackend::moe(View x, const MoeShape& shape, const MoeWeights& w, View out) {
  checks::moe_rows(x, shape, w, out);
  CHECK(shape.top_k <= kMostTopExperts);
  CHECK(shape.experts <= kMostExperts);
  if (out.empty()) return begin();
  const uint16_t* bf16 = take_rounded(x);
  const MoeTables& tables = tables_of(w);
  const int rows = static_cast<int>(x.rows), ranks = shape.top_k + tables.with_shared, pairs = rows * ranks;
  const int limit = max_items(rows, ranks, shape.experts + tables.with_shared);
  const View all =
      View::of(moe_logits_.take<float>(static_cast<size_t>(rows * (shape.experts + 1))), rows, shape.experts + 1);
  const View logits = all.columns(0, shape.experts), shared_gate = all.columns(shape.experts, shape.experts + 1);
  if (tables.router_and_gate) {
    products(x, bf16, *tables.router_and_gate, all);
  } else {
    products(x, bf16, matrix_of(*w.router), logits);
    products(x, bf16, matrix_of(*w.shared_gate), shared_gate);
  }

  const size_t words = static_cast<size_t>(3 * pairs + 2) / 2 * 2;  // items behind them hold addresses
  int* memory = moe_routing_.take<int>(words + static_cast<size_t>(limit) * sizeof(ExpertItem) / sizeof(int));
  const Routing routing{.top_k = shape.top_k,
                        .ranks = ranks,
                        .pairs = pairs,
                        .experts = shape.experts + tables.with_shared,
                        .gate_up = only_table(tables.gate_up),
                        .down = only_table(tables.down),
                        .chosen = memory,
                        .weights = reinterpret_cast<float*>(memory + pairs),
                        .order = memory + 2 * pairs,
                        .items = reinterpret_cast<ExpertItem*>(memory + words),
                        .item_count = memory + 3 * pairs};
  launch_route(rows_of(logits), routing, *queue_);

  const Gated to = gated(pairs, matrix_of(*w.experts[0].down));
  const View results = View::of(moe_pairs_.take<float>(static_cast<size_t>(pairs * out.cols)), pairs, out.cols);
  const auto products_of = [&](const ExpertTable& table, int divisor, View in, const uint16_t* in_bf16, View to) {
    for (size_t p = 0; p < table.like.size(); ++p) {
      const Part& like = table.like[p]->part;
      void* work = work_.take<std::byte>(linear_work_bytes(like, pairs));
      launch_expert_linear(reinterpret_cast<const Part*>(table.parts[p].data()), like, routing, limit, divisor,
                           rows_of(in), in_bf16, rows_of(to), table.like[p]->first, work, *queue_);
    }
  };
  const Part& part = tables.gate_up.like[0]->part;
  if (part.paired) {
    launch_expert_gated(reinterpret_cast<const Part*>(tables.gate_up.parts[0].data()), part, routing, limit, ranks,
                        bf16, to.wanted, *queue_);
  } else {
    products_of(tables.gate_up, ranks, x, bf16, to.gate_up);
    finish(to, false);
  }
  products_of(tables.down, 1, to.hidden, to.wanted.bf16, results);

  View shared;
  if (!tables.with_shared) {
    shared = View::of(moe_shared_.take<float>(static_cast<size_t>(rows * out.cols)), rows, out.cols);
    ffn(x, bf16, w.shared, shared, false);
  }
  combined_ = {out, {rows_of(results), routing, tables.with_shared ? Rows{} : rows_of(shared), rows_of(shared_gate)}};
}

// ---- A pass

const CudaBackend::Pass& CudaBackend::describe(const Batch& batch, int64_t rows, std::span<const PageTable> pages) {
  static_assert(sizeof(std::byte*) == sizeof(uint64_t));
  queue_->make_room();
  numbers_.clear();
  for (const LaneRows& lane : batch.lanes) {
    numbers_.insert(numbers_.end(),
                    {lane.first_row, lane.rows, lane.prefix, lane.settled, static_cast<int64_t>(lane.parent.size())});
    numbers_.insert(numbers_.end(), lane.parent.begin(), lane.parent.end());
  }
  for (const PageTable& table : pages) {
    numbers_.push_back(static_cast<int64_t>(table.size()));
    for (std::byte* page : table) numbers_.push_back(static_cast<int64_t>(reinterpret_cast<uint64_t>(page)));
  }
  Described& last = described_[pages.empty() ? 0 : 1];
  if (last.epoch == queue_->epoch() && last.rows == rows && last.numbers == numbers_) return last.pass;
  Pass pass;
  last.lanes.clear();
  last.items = nullptr;
  lanes_.clear();
  rows_.assign(static_cast<size_t>(rows), RowDesc{});
  paths_.clear();
  for (size_t l = 0; l < batch.lanes.size(); ++l) {
    const LaneRows& lane = batch.lanes[l];
    const bool chain = is_chain(lane);
    LaneDesc desc{
        .first_row = lane.first_row, .rows = lane.rows, .settled = lane.settled, .chain = chain, .prefix = lane.prefix};
    if (!pages.empty())
      desc.pages = reinterpret_cast<const uint64_t*>(queue_->put(pages[l].data(), pages[l].size_bytes()));
    lanes_.push_back(desc);
    pass.any_settled = pass.any_settled || lane.settled > 0;
    last.lanes.push_back({lane.rows, !chain});
    pass.most_rows = std::max(pass.most_rows, lane.rows);
    const int chain_path = static_cast<int>(paths_.size());
    if (chain)  // every row's path is the beginning of the last row's
      for (int i = 0; i < lane.rows; ++i) paths_.push_back(i);
    for (int i = 0; i < lane.rows; ++i) {
      RowDesc& row = rows_[static_cast<size_t>(lane.first_row + i)];
      row = {.lane = static_cast<int>(l), .row = i, .parent = lane.parent_of(i)};
      if (chain) {
        row.depth = i;
        row.path = chain_path;
      } else {
        const int begin = static_cast<int>(paths_.size());
        if (row.parent >= 0) {
          const RowDesc& parent = rows_[static_cast<size_t>(lane.first_row + row.parent)];
          row.depth = parent.depth + 1;
          for (int j = 0; j <= parent.depth; ++j) paths_.push_back(paths_[static_cast<size_t>(parent.path + j)]);
        }
        paths_.push_back(i);
        row.path = begin;
      }
      pass.most_visible = std::max(pass.most_visible, lane.prefix + row.depth + 1);
    }
  }
  pass.desc = {.lanes = queue_->put(std::span<const LaneDesc>(lanes_)),
               .rows = queue_->put(std::span<const RowDesc>(rows_)),
               .paths = queue_->put(std::span<const int32_t>(paths_)),
               .lane_count = static_cast<int>(lanes_.size()),
               .row_count = static_cast<int>(rows)};
  last.epoch = queue_->epoch();
  last.rows = rows;
  last.numbers = numbers_;
  last.pass = pass;
  return last.pass;
}

// ---- Attention

void CudaBackend::rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) {
  begin();
  checks::rotary_table(inputs, spec, table);
  if (table.empty()) return;
  words_.clear();
  for (const RowInput& input : inputs) words_.insert(words_.end(), input.position.begin(), input.position.end());
  launch_rotary(queue_->put(std::span<const int32_t>(words_)),
                queue_->put(std::span<const float>(spec.inverse_frequency)),
                queue_->put(std::span<const uint8_t>(spec.axis)), spec.magnitude, rows_of(table), *queue_);
}

void CudaBackend::attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape,
                                   const Batch& batch, std::span<const PageTable> pages, const KvLayout& layout,
                                   int layer, View queries) {
  begin();
  checks::attention_inputs(packed, q_norm, k_norm, rotary, shape, batch, pages, layout, layer, queries);
  if (packed.rows == 0) return;
  const Pass& pass = describe(batch, packed.rows, pages);
  launch_attention_inputs(rows_of(packed), q_norm.f32(), k_norm.f32(), rows_of(rotary),
                          head_shape(shape, static_cast<int>(rotary.cols)), pass.desc, layout, layer, rows_of(queries),
                          *queue_);
}

const SpanItem* CudaBackend::items_of_pass(int group, const SpanPlan& plan) {
  Described& pass = described_[1];
  if (plan.tiles == 0 || (pass.items && pass.item_group == group && pass.item_tiles == plan.tiles)) return pass.items;
  std::vector<SpanItem> items;
  for (size_t l = 0; l < pass.lanes.size(); ++l)
    for (int i = 0; i < items_of(pass.lanes[l], group, plan.tiles); ++i) items.push_back({static_cast<int>(l), i});
  pass.item_group = group;
  pass.item_tiles = plan.tiles;
  return pass.items = queue_->put(std::span<const SpanItem>(items));
}

void CudaBackend::attention(View queries, View packed, const AttentionShape& shape, const Batch& batch,
                            std::span<const PageTable> pages, const KvLayout& layout, int layer, View out) {
  begin();
  checks::attention(queries, packed, shape, batch, pages, layout, layer, out);
  if (packed.rows == 0) return;
  const Pass& pass = describe(batch, packed.rows, pages);
  const HeadShape heads = head_shape(shape, 0);
  const SpanPlan plan = plan_spans({.query_heads = shape.query_heads,
                                    .kv_heads = shape.kv_heads,
                                    .dim = shape.head_dim,
                                    .format = layout.format,
                                    .most_visible = pass.most_visible,
                                    .lanes = described_[1].lanes},
                                   queue_->limits());
  const SpanItem* items = items_of_pass(shape.query_heads / shape.kv_heads, plan);
  const int64_t per_row = static_cast<int64_t>(attention_partial_floats(1, heads, plan.units));
  const int64_t at_once = plan.units == 1
                              ? packed.rows
                              : std::clamp<int64_t>(static_cast<int64_t>(kPartialFloats) / per_row, 1, packed.rows);
  float* partial = plan.units == 1 ? nullptr : partial_.take<float>(static_cast<size_t>(at_once * per_row));
  uint16_t* bf16 = leave_rounded(out);
  for (int64_t first = 0; first < packed.rows; first += at_once)
    launch_attention(rows_of(queries), rows_of(packed), heads, pass.desc, static_cast<int>(first),
                     static_cast<int>(std::min(at_once, packed.rows - first)), plan, items, layout, layer, partial,
                     rows_of(out), bf16, *queue_);
}

void CudaBackend::commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) {
  begin();
  checks::commit_kv(pages, layout, prefix, path);
  bool moves = false;
  for (size_t j = 0; j < path.size(); ++j) moves = moves || path[j] != static_cast<int>(j);
  if (!moves) return;
  launch_commit_kv(static_cast<const uint64_t*>(queue_->put(pages.data(), pages.size_bytes())), layout, prefix,
                   queue_->put(std::span<const int32_t>(path)), static_cast<int>(path.size()), *queue_);
}

// ---- Gated delta net

DeltaLanes CudaBackend::lanes_on_device(std::span<const DeltaMemory> lanes) {
  if (lanes.size() == 1) return {nullptr, lanes[0]};
  return {queue_->put(lanes), {}};
}

void CudaBackend::causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch,
                              std::span<const DeltaMemory> lanes, View out) {
  begin();
  checks::causal_conv(packed, weight, shape, batch, lanes, out);
  CHECK(weight.stride == weight.cols);
  if (packed.rows == 0) return;
  convolution_ = {packed, weight, out, shape, describe(batch, packed.rows, {}), {lanes.begin(), lanes.end()}};
  if (!delta_core_runs(shape, convolution_->pass.most_rows)) finish_delta();
}

void CudaBackend::delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape,
                             const Batch& batch, std::span<const DeltaMemory> lanes, View out) {
  checks::delta_rule(conv, beta_alpha, decay_rate, dt_bias, shape, batch, lanes, out);
  CHECK(shape.key_dim <= kMaxKeyDim);
  if (convolution_ && !rule_ && same_view(convolution_->out, conv)) {
    rule_ = {beta_alpha, decay_rate, dt_bias, out};
    return;
  }
  begin();
  if (conv.rows == 0) return;
  launch_rule(conv, {beta_alpha, decay_rate, dt_bias, out}, shape, describe(batch, conv.rows, {}), lanes);
}

void CudaBackend::launch_rule(View conv, const Rule& rule, const DeltaShape& shape, const Pass& pass,
                              std::span<const DeltaMemory> lanes) {
  const size_t rows = static_cast<size_t>(conv.rows),
               keys = rows * static_cast<size_t>(shape.key_heads * shape.key_dim);
  const size_t heads = rows * static_cast<size_t>(shape.value_heads);
  float* memory = delta_.take<float>(2 * keys + 2 * heads);
  launch_delta_rule(
      rows_of(conv), rows_of(rule.beta_alpha), rule.decay_rate.f32(), rule.dt_bias.f32(), shape, pass.desc,
      lanes_on_device(lanes),
      {.query = memory, .key = memory + keys, .beta = memory + 2 * keys, .decay = memory + 2 * keys + heads},
      rows_of(rule.out), *queue_);
}

void CudaBackend::finish_delta() {
  const Convolution c = *std::exchange(convolution_, {});
  const std::optional<Rule> rule = std::exchange(rule_, {});
  launch_causal_conv(rows_of(c.packed), c.weight.f32(), c.shape, c.pass.desc, lanes_on_device(c.lanes),
                     c.pass.any_settled, rows_of(c.out), *queue_);
  if (rule) launch_rule(c.out, *rule, c.shape, c.pass, c.lanes);
}

void CudaBackend::commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled,
                               std::span<const int> path) {
  checks::commit_delta(shape, lane, settled, path);
  const std::span<const int> rows = path.subspan(static_cast<size_t>(settled));
  const bool joins = !commits_.empty() &&
                     std::equal(rows.begin(), rows.end(), committed_rows_.begin(), committed_rows_.end()) &&
                     same_shape(shape, committed_shape_);
  if (!joins) begin();
  if (rows.empty()) return;
  committed_shape_ = shape;
  committed_rows_.assign(rows.begin(), rows.end());
  commits_.push_back(lane);
}

void CudaBackend::finish_commits() {
  const std::vector<DeltaMemory> lanes = std::exchange(commits_, {});
  words_.assign(1, static_cast<int32_t>(committed_rows_.size()));
  words_.insert(words_.end(), committed_rows_.begin(), committed_rows_.end());
  launch_commit_delta(committed_shape_, queue_->put(std::span<const DeltaMemory>(lanes)),
                      static_cast<int>(lanes.size()), queue_->put(std::span<const int32_t>(words_)), *queue_);
}

// ---- Block drafters

const BlockLaneDesc* CudaBackend::describe(std::span<const BlockLane> lanes, int& most_rows) {
  queue_->make_room();
  block_lanes_.clear();
  most_rows = 0;
  for (const BlockLane& lane : lanes) {
    block_lanes_.push_back(
        {.first_row = lane.first_row,
         .rows = lane.rows,
         .page_count = static_cast<int>(lane.pages.size()),
         .base = lane.base,
         .begin = lane.begin,
         .end = lane.end,
         .pages = static_cast<const uint64_t*>(queue_->put(lane.pages.data(), lane.pages.size_bytes()))});
    most_rows = std::max(most_rows, lane.rows);
  }
  return queue_->put(std::span<const BlockLaneDesc>(block_lanes_));
}

namespace {

// Where every row is in its block; -1: in none.
void places_of(std::span<const BlockLane> lanes, int64_t rows, std::vector<int32_t>& places) {
  places.assign(static_cast<size_t>(rows), -1);
  for (const BlockLane& lane : lanes)
    for (int t = 0; t < lane.rows; ++t) places[static_cast<size_t>(lane.first_row + t)] = t;
}

BlockHeads block_heads(const BlockShape& shape, int rotary_dim) {
  return {.query_heads = shape.query_heads,
          .kv_heads = shape.kv_heads,
          .dim = shape.head_dim,
          .window = shape.window,
          .causal = shape.causal,
          .rotary_dim = rotary_dim,
          .epsilon = shape.norm_epsilon};
}

}  // namespace

void CudaBackend::block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& shape,
                               std::span<const BlockLane> lanes, const KvLayout& layout) {
  checks::block_inputs(q, kv, q_norm, k_norm, rotary, shape, lanes, layout);
  std::vector<int> rows;
  for (const BlockLane& lane : lanes) rows.insert(rows.end(), {lane.first_row, lane.rows});
  const BlockHeads heads = block_heads(shape, static_cast<int>(rotary.cols));
  const bool joins = context_ && q.empty() && context_->rows == rows && same_layout(context_->layout, layout) &&
                     queue_->has_room();  // data of the layers before must stay where it is
  if (!joins) begin();
  int most_rows;
  const BlockLaneDesc* descs = describe(lanes, most_rows);
  if (most_rows == 0) return;
  const BlockInputs inputs{.q = q.empty() ? Rows{} : rows_of(q),
                           .kv = rows_of(kv),
                           .rotary = rows_of(rotary),
                           .q_norm = q_norm.f32(),
                           .k_norm = k_norm.f32(),
                           .shape = heads,
                           .lanes = descs};
  if (!q.empty()) {
    launch_block_inputs(inputs, nullptr, 1, static_cast<int>(lanes.size()), most_rows, layout, *queue_);
    return;
  }
  if (!joins) context_ = {.layers = {}, .layout = layout, .rows = rows, .most_rows = most_rows};
  context_->layers.push_back(inputs);
}

void CudaBackend::finish_context() {
  const ContextInputs context = *std::exchange(context_, {});
  const int layers = static_cast<int>(context.layers.size());
  launch_block_inputs(context.layers[0],
                      layers > 1 ? queue_->put(std::span<const BlockInputs>(context.layers)) : nullptr, layers,
                      static_cast<int>(context.rows.size() / 2), context.most_rows, context.layout, *queue_);
}

void CudaBackend::block_attention(View queries, const BlockShape& shape, std::span<const BlockLane> lanes,
                                  const KvLayout& layout, View out) {
  begin();
  checks::block_attention(queries, shape, lanes, layout, out);
  int rows;
  const BlockLaneDesc* descs = describe(lanes, rows);
  if (rows == 0) return;
  const BlockHeads heads = block_heads(shape, 0);
  const int count = static_cast<int>(lanes.size());
  if (!block_spans_run(heads, layout)) {
    launch_block_attention(rows_of(queries), heads, descs, count, rows, layout, rows_of(out), *queue_);
    return;
  }
  int64_t positions = 0;
  for (const BlockLane& lane : lanes) {
    const int64_t begin = shape.window > 0 ? std::max(lane.begin, lane.end - shape.window + 1) : lane.begin;
    positions = std::max(positions, lane.end + lane.rows - std::min(begin, lane.end));
  }
  places_of(lanes, queries.rows, words_);
  const bool whole = std::find(words_.begin(), words_.end(), -1) == words_.end();
  const int splits = block_splits(positions);
  float* partial = partial_.take<float>(block_partial_floats(heads, queries.rows, splits));
  launch_block_spans(rows_of(queries), heads, descs, count, rows, splits, layout, partial, rows_of(out),
                     whole ? leave_rounded(out) : nullptr, *queue_);
}

void CudaBackend::block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) {
  checks::block_conv(x, base, delta, group, lanes, out);
  const Sliced sliced = same_view(sliced_.of, x) ? std::exchange(sliced_, {}) : Sliced{};
  begin();
  BlockConvolution c{.x = x, .base = base, .delta = delta, .out = out, .group = group};
  c.lanes = describe(lanes, c.most_rows);
  c.lane_count = static_cast<int>(lanes.size());
  if (c.most_rows == 0) return;
  places_of(lanes, x.rows, words_);
  c.whole = std::find(words_.begin(), words_.end(), -1) == words_.end();
  if (c.whole && norm_convolves(convolved_of(c), sliced.planes))
    c.place = queue_->put(std::span<const int32_t>(words_));
  sliced_ = sliced;
  block_convolution_ = c;
}

// The ids are the host's: this waits.
void CudaBackend::top_k(View logits, int k, std::span<TokenId> ids, View values) {
  begin();
  checks::top_k(logits, k, ids, values);
  CHECK(k <= kMaxTopK && logits.cols <= kMostTopColumns);
  if (logits.rows == 0) return;
  int32_t* on_device = top_ids_.take<int32_t>(ids.size());
  launch_top_k(rows_of(logits), k, top_.take<std::byte>(top_k_scratch_bytes(logits.rows, logits.cols, k)), on_device,
               rows_of(values), *queue_);
  queue_->flush();
  check(cudaMemcpyAsync(ids.data(), on_device, ids.size_bytes(), cudaMemcpyDeviceToHost, queue_->stream()),
        "a download");
  queue_->synchronize("top_k");
}

const std::byte* CudaBackend::bring(const std::byte* found, size_t bytes, const char* what) {
  queue_->flush();
  if (brought_.size() < bytes) brought_ = pinned_memory(2 * bytes);
  check(cudaMemcpyAsync(brought_.data(), found, bytes, cudaMemcpyDeviceToHost, queue_->stream()), "a download");
  queue_->synchronize(what);
  return brought_.data();
}

namespace {

template <class T>
void take(std::vector<T>& to, size_t count, const std::byte* from) {
  to.resize(count);
  if (count > 0) std::memcpy(to.data(), from, count * sizeof(T));
}

}  // namespace

// One copy brings everything: choices, then leaders' ids, then their values.
void CudaBackend::choose(View logits, std::span<const ChoiceSpec> specs, Choices& out) {
  begin();
  checks::choose(logits, specs);
  out = {};
  if (logits.rows == 0) return;
  bool candidates = false, leaders = false;
  for (const ChoiceSpec& spec : specs) candidates |= spec.noisy || spec.mass, leaders |= spec.leaders;
  out.leader_count = leaders ? static_cast<int>(std::min<int64_t>(kLeaders, logits.cols)) : 0;
  const size_t rows = static_cast<size_t>(logits.rows), count = rows * static_cast<size_t>(out.leader_count);
  const size_t ids_at = rows * sizeof(RowChoice), values_at = ids_at + count * sizeof(TokenId),
               bytes = values_at + count * sizeof(float);
  std::byte* const found = chosen_.take<std::byte>(bytes);
  launch_choose(rows_of(logits), queue_->put(specs), candidates,
                work_.take<std::byte>(choose_scratch_bytes(logits.rows)), reinterpret_cast<RowChoice*>(found), *queue_);
  if (leaders)
    launch_top_k(rows_of(logits), out.leader_count,
                 top_.take<std::byte>(top_k_scratch_bytes(logits.rows, logits.cols, out.leader_count)),
                 reinterpret_cast<TokenId*>(found + ids_at),
                 rows_of(View::of(reinterpret_cast<float*>(found + values_at), logits.rows, out.leader_count)),
                 *queue_);
  const std::byte* here = bring(found, bytes, "choosing tokens");
  take(out.rows, rows, here);
  take(out.leaders, count, here + ids_at);
  take(out.values, count, here + values_at);
}

void CudaBackend::selector_edges(View weights, View predecessors, View successors, View edges) {
  begin();
  checks::selector_edges(weights, predecessors, successors, edges);
  if (edges.empty()) return;
  launch_selector_edges(rows_of(weights), rows_of(predecessors), rows_of(successors), rows_of(edges), *queue_);
}

// One copy brings everything: ids, then their logits, then edges.
void CudaBackend::lattice(View logits, int k, View weights, const MatrixSource& predecessor,
                          const MatrixSource& successor, std::span<const LatticeBlock> blocks, Lattice& out) {
  begin();
  checks::lattice(logits, k, weights, predecessor, successor, blocks);
  CHECK(k <= kMaxTopK && logits.cols <= kMostTopColumns);
  const size_t count = static_cast<size_t>(logits.rows * k),
               edge_count = weights.empty() ? 0 : count * static_cast<size_t>(k);
  if (count == 0) {
    out = {};
    return;
  }
  static_assert(sizeof(TokenId) == 4 && sizeof(float) == 4);
  std::byte* const found = lattice_.take<std::byte>(4 * (2 * count + edge_count));
  auto* const ids = reinterpret_cast<TokenId*>(found);
  auto* const unary = reinterpret_cast<float*>(found) + count;
  launch_top_k(rows_of(logits), k, top_.take<std::byte>(top_k_scratch_bytes(logits.rows, logits.cols, k)), ids,
               rows_of(View::of(unary, logits.rows, k)), *queue_);
  if (edge_count > 0) {
    words_.assign(static_cast<size_t>(logits.rows), -1);
    for (const LatticeBlock& block : blocks)
      if (block.slots > 0) words_[static_cast<size_t>(block.first)] = block.anchor;
    launch_lattice_edges(rows_of(weights), table_of(predecessor), table_of(successor), ids,
                         queue_->put(std::span<const int32_t>(words_)),
                         rows_of(View::of(unary + count, logits.rows * k, k)), *queue_);
  }
  const std::byte* here = bring(found, 4 * (2 * count + edge_count), "candidates");
  take(out.ids, count, here);
  take(out.unary, count, here + 4 * count);
  take(out.edges, edge_count, here + 8 * count);
}

}  // namespace foretoken::cuda
