// Identity, memory, packing and the operators' host side.
#include "cuda/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ops/checks.h"

namespace foretoken::cuda {
namespace {

Rows rows_of(View v) { return {v.f32(), v.rows, v.cols, v.stride}; }

const CudaMatrix& matrix_of(const Matrix& w) { return static_cast<const CudaMatrix&>(w); }

void launched(const char* op) { check(cudaGetLastError(), op); }

HeadShape head_shape(const AttentionShape& shape, int rotary_dim) {
  return {.query_heads = shape.query_heads, .kv_heads = shape.kv_heads, .dim = shape.head_dim,
          .query_columns = shape.query_columns(), .rotary_dim = rotary_dim, .epsilon = shape.norm_epsilon};
}

constexpr size_t kPartialFloats = 64u << 20;  // of one attention launch
constexpr int kMostTopExperts = 32, kMostExperts = 512;

}  // namespace

CudaBackend::CudaBackend(int device) : device_(device) {
  check(cudaSetDevice(device), "choosing a device");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "asking for properties");
  detail_ = fmt::format("{}, sm_{}{}, {} GiB", properties.name, properties.major, properties.minor, properties.totalGlobalMem >> 30);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  uploads_ = std::make_unique<Uploads>(stream_);
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

BackendInfo CudaBackend::info() const { return {.name = "cuda", .detail = detail_}; }

// ---- Memory

void CudaBackend::upload(View host, View to) {
  begin();
  checks::copy(host, to);
  if (host.empty()) return;
  const size_t element = dtype_bytes(host.dtype), width = static_cast<size_t>(host.cols) * element;
  if (std::byte* staging = uploads_->staging(static_cast<size_t>(host.rows) * width)) {
    for (int64_t r = 0; r < host.rows; ++r)
      std::memcpy(staging + static_cast<size_t>(r) * width, host.data + static_cast<size_t>(r * host.stride) * element, width);
    check(cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.stride) * element, staging, width, width, static_cast<size_t>(host.rows),
                            cudaMemcpyHostToDevice, stream_),
          "an upload");
    return;
  }
  check(cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.stride) * element, host.data, static_cast<size_t>(host.stride) * element,
                          width, static_cast<size_t>(host.rows), cudaMemcpyHostToDevice, stream_),
        "an upload");
  check(cudaStreamSynchronize(stream_), "an upload");
}

void CudaBackend::download(View from, View host) {
  begin();
  checks::copy(from, host);
  if (!from.empty()) {
    const size_t element = dtype_bytes(from.dtype);
    check(cudaMemcpy2DAsync(host.data, static_cast<size_t>(host.stride) * element, from.data, static_cast<size_t>(from.stride) * element,
                            static_cast<size_t>(from.cols) * element, static_cast<size_t>(from.rows), cudaMemcpyDeviceToHost, stream_),
          "a download");
  }
  check(cudaStreamSynchronize(stream_), "an operator");
}

void CudaBackend::copy(View from, View to) {
  begin();
  checks::copy(from, to);
  if (from.empty()) return;
  const size_t element = dtype_bytes(from.dtype);
  check(cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.stride) * element, from.data, static_cast<size_t>(from.stride) * element,
                          static_cast<size_t>(from.cols) * element, static_cast<size_t>(from.rows), cudaMemcpyDeviceToDevice, stream_),
        "a copy");
}

void CudaBackend::clear(View memory) {
  begin();
  if (memory.empty()) return;
  const size_t element = dtype_bytes(memory.dtype);
  check(cudaMemset2DAsync(memory.data, static_cast<size_t>(memory.stride) * element, 0, static_cast<size_t>(memory.cols) * element,
                          static_cast<size_t>(memory.rows), stream_),
        "clearing memory");
}

namespace {

// A copy of pageable memory: in the order of the stream, and done with the source when it returns.
void send(std::byte* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "an upload");
  check(cudaStreamSynchronize(stream), "an upload");
}

}  // namespace

BackendLimits CudaBackend::limits() const {
  return {.key_dim = kMaxKeyDim, .experts = kMostExperts, .top_k = kMostTopExperts, .like_experts = true};
}

void CudaBackend::keep_table(const MatrixSource& table) {
  Table kept{device_memory(table.data.size()), device_memory(table.row_order.size() * 4)};
  send(kept.rows.data(), table.data.data(), table.data.size(), stream_);
  send(kept.order.data(), table.row_order.data(), table.row_order.size() * 4, stream_);
  tables_.insert_or_assign(table.data.data(), std::move(kept));
}

namespace {

bool has_minimum(QuantFormat format) {
  return format == QuantFormat::kQ4_1 || format == QuantFormat::kQ5_1 || format == QuantFormat::kQ2_K || format == QuantFormat::kQ4_K ||
         format == QuantFormat::kQ5_K;
}

int64_t packed_rows(const MatrixSource& source) {
  return source.row_order.empty() ? source.rows : static_cast<int64_t>(source.row_order.size());
}

Buffer on_device(const std::vector<int32_t>& values, cudaStream_t stream) {
  Buffer buffer = device_memory(values.size() * 4);
  send(buffer.data(), values.data(), values.size() * 4, stream);
  return buffer;
}

// Packs one source into the part's rows from `first_row` on. Sources in file order go through memory of `kChunk` bytes.
void pack_source(const MatrixSource& source, const Part& part, int64_t first_row, cudaStream_t stream) {
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
  const Buffer row_order = on_device(order, stream), column_order = on_device(source.column_order, stream);
  const int64_t rows = packed_rows(source);
  const int64_t chunk = source.row_order.empty() ? std::max<int64_t>(16, static_cast<int64_t>(kChunk / std::max<size_t>(1, stride)) / 16 * 16) : rows;
  const int64_t raw_rows = source.row_order.empty() ? std::min(chunk, rows) : source.rows;
  const Buffer raw = device_memory(static_cast<size_t>(raw_rows) * stride);
  for (int64_t done = 0; done < rows; done += chunk) {
    const int64_t count = std::min(chunk, rows - done), from = source.row_order.empty() ? done : 0;
    const int64_t sent = source.row_order.empty() ? count : source.rows;
    send(raw.data(), source.data.data() + static_cast<size_t>(from) * stride, static_cast<size_t>(sent) * stride, stream);
    launch_pack({.format = source.format,
                 .source = reinterpret_cast<const uint8_t*>(raw.data()),
                 .row_bytes = stride,
                 .first_row = first_row + done,
                 .rows = count,
                 .source_first = source.row_order.empty() ? first_row + done : 0,
                 .row_order = source.row_order.empty() ? nullptr : reinterpret_cast<const int32_t*>(row_order.data()),
                 .column_order = source.column_order.empty() ? nullptr : reinterpret_cast<const int32_t*>(column_order.data())},
                part, stream);
    launched("packing");
    check(cudaStreamSynchronize(stream), "packing");
  }
}

}  // namespace

MatrixPtr CudaBackend::pack(std::span<const MatrixSource> parts) {
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
    const bool joins = !pieces.empty() && pieces.back().part.layout == layout && pieces.back().part.has_min == has_min &&
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
  for (size_t i = 0; i < parts.size(); ++i) pack_source(parts[i], pieces[places[i].first].part, places[i].second, stream_);
  return std::make_unique<CudaMatrix>(rows, cols, bytes, std::move(pieces));
}

// ---- Rows

void CudaBackend::embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) {
  begin();
  checks::embed(inputs, table, out);
  if (out.empty()) return;
  const auto kept = tables_.find(table.data.data());
  CHECK(kept != tables_.end());
  words_.clear();
  float* own = nullptr;
  for (size_t i = 0; i < inputs.size(); ++i) {
    words_.push_back(inputs[i].embedding ? -1 : inputs[i].token);
    if (!inputs[i].embedding) continue;
    if (!own) own = own_rows_.take<float>(inputs.size() * static_cast<size_t>(out.cols));
    upload(View::of(const_cast<float*>(inputs[i].embedding), 1, out.cols),
           View::of(own + i * static_cast<size_t>(out.cols), 1, out.cols));
  }
  launch_embed(uploads_->once(std::span<const int32_t>(words_)), own, table.format,
               reinterpret_cast<const uint8_t*>(kept->second.rows.data()), row_bytes(table.format, table.cols),
               reinterpret_cast<const int32_t*>(kept->second.order.data()), rows_of(out), stream_);
  launched("embed");
}

void CudaBackend::rms_norm(View x, View w, float epsilon, View out) {
  checks::rms_norm(x, w, out);
  const bool takes_sum = sum_.inout.data == x.data && sum_.inout.rows == x.rows && sum_.inout.cols == x.cols && sum_.inout.stride == x.stride;
  const Rows addend = takes_sum ? rows_of(std::exchange(sum_, {}).x) : Rows{};
  begin();
  if (x.empty()) return;
  launch_rms_norm(rows_of(x), addend, w.f32(), epsilon, rows_of(out), leave_rounded(out), stream_);
  launched("rms_norm");
}

void CudaBackend::gated_norm(View x, View gate, View w, float epsilon, bool sigmoid_gate, View out) {
  begin();
  checks::gated_norm(x, gate, w, out);
  if (x.empty()) return;
  launch_gated_norm(rows_of(x), rows_of(gate), w.f32(), static_cast<int>(w.cols), epsilon, sigmoid_gate, rows_of(out),
                    leave_rounded(out), stream_);
  launched("gated_norm");
}

void CudaBackend::add(View x, View inout) {
  checks::add(x, inout);
  begin();
  if (!x.empty()) sum_ = {x, inout};
}

void CudaBackend::scale(View inout, float factor) {
  begin();
  checks::shape(inout, -1, -1);
  if (inout.empty()) return;
  launch_scale(rows_of(inout), factor, stream_);
  launched("scale");
}

void CudaBackend::gather_rows(View x, std::span<const int> rows, View out) {
  begin();
  checks::gather_rows(x, rows, out);
  if (out.empty()) return;
  launch_gather(rows_of(x), uploads_->known(std::span<const int32_t>(rows)), rows_of(out), stream_);
  launched("gather_rows");
}

// ---- Products

void CudaBackend::begin() {
  rounded_ = {};
  if (sum_.x.data) {
    launch_add(rows_of(sum_.x), rows_of(sum_.inout), stream_);
    launched("add");
  }
  sum_ = {};
}

const uint16_t* CudaBackend::take_rounded(View x) {
  const Rounded left = rounded_;
  begin();
  if (left.bf16 && left.of.data == x.data && left.of.rows == x.rows && left.of.cols == x.cols && left.of.stride == x.stride) return left.bf16;
  // Whole blocks of 64 columns: the rows beyond x's are read and never used.
  uint16_t* to = bf16_.take<uint16_t>(static_cast<size_t>((x.rows + 63) / 64 * 64 * padded_cols(x.cols)));
  launch_to_bf16(rows_of(x), to, stream_);
  return to;
}

uint16_t* CudaBackend::leave_rounded(View out) {
  if (out.cols % 64 != 0) return nullptr;
  uint16_t* to = bf16_.take<uint16_t>(static_cast<size_t>((out.rows + 63) / 64 * 64 * out.cols));
  rounded_ = {out, to};
  return to;
}

void CudaBackend::products(View x, const uint16_t* bf16, const CudaMatrix& w, View out) {
  for (const CudaMatrix::Piece& piece : w.pieces()) launch_linear(piece.part, rows_of(x), bf16, rows_of(out), piece.first, stream_);
  launched("linear");
}

namespace {

bool only_floats(const CudaMatrix& w) {
  return std::all_of(w.pieces().begin(), w.pieces().end(), [](const auto& piece) { return piece.part.layout == Layout::kFloats; });
}
bool any_floats(const CudaMatrix& w) {
  return std::any_of(w.pieces().begin(), w.pieces().end(), [](const auto& piece) { return piece.part.layout == Layout::kFloats; });
}

}  // namespace

void CudaBackend::linear(View x, const Matrix& w, View out) {
  checks::linear(x, w, out);
  const CudaMatrix& matrix = matrix_of(w);
  if (only_floats(matrix) || out.empty()) begin();
  if (out.empty()) return;
  products(x, only_floats(matrix) ? nullptr : take_rounded(x), matrix, out);
}

void CudaBackend::gated_ffn(View x, const ExpertWeights& w, View out) {
  checks::gated_ffn(x, w, out);
  if (out.empty()) return begin();
  ffn(x, take_rounded(x), w, out);
}

void CudaBackend::ffn(View x, const uint16_t* bf16, const ExpertWeights& w, View out) {
  const int64_t width = w.down->cols();
  const View gate_up = View::of(ffn_.take<float>(static_cast<size_t>(x.rows * 3 * width)), x.rows, 2 * width);
  products(x, bf16, matrix_of(*w.gate_up), gate_up);
  const CudaMatrix& down = matrix_of(*w.down);
  const View hidden = View::of(gate_up.f32() + x.rows * 2 * width, x.rows, width);
  if (any_floats(down)) launch_silu(rows_of(gate_up), width, rows_of(hidden), stream_);
  uint16_t* hidden_bf16 = ffn_bf16_.take<uint16_t>(static_cast<size_t>((x.rows + 63) / 64 * 64 * padded_cols(width)));
  if (!only_floats(down)) launch_silu_to_bf16(rows_of(gate_up), width, hidden_bf16, stream_);
  products(hidden, hidden_bf16, down, out);
}

CudaBackend::ExpertTable CudaBackend::expert_table(std::span<const ExpertWeights> experts, bool down) {
  ExpertTable table;
  const auto matrix = [&](size_t e) -> const CudaMatrix& { return matrix_of(down ? *experts[e].down : *experts[e].gate_up); };
  const size_t pieces = matrix(0).pieces().size();
  for (size_t p = 0; p < pieces; ++p) {
    std::vector<Part> parts;
    const CudaMatrix::Piece& like = matrix(0).pieces()[p];
    for (size_t e = 0; e < experts.size(); ++e) {
      CHECK(matrix(e).pieces().size() == pieces);  // all experts of a layer are stored alike
      const Part& part = matrix(e).pieces()[p].part;
      CHECK(part.layout == like.part.layout);
      CHECK(part.has_min == like.part.has_min);
      CHECK(part.rows == like.part.rows);
      CHECK(part.cols == like.part.cols);
      parts.push_back(part);
    }
    Buffer on = device_memory(parts.size() * sizeof(Part));
    send(on.data(), parts.data(), parts.size() * sizeof(Part), stream_);
    table.parts.push_back(std::move(on));
    table.like.push_back(&like);
  }
  return table;
}

const CudaBackend::MoeTables& CudaBackend::tables_of(const MoeWeights& w) {
  std::vector<const void*> codes;
  for (const ExpertWeights* e : {&w.experts.front(), &w.experts[w.experts.size() / 2], &w.experts.back()})
    for (const Matrix* m : {e->gate_up.get(), e->down.get()})
      for (const CudaMatrix::Piece& piece : matrix_of(*m).pieces()) codes.push_back(piece.part.codes);
  MoeTables& tables = moe_tables_[&w];
  if (tables.codes != codes) tables = {expert_table(w.experts, false), expert_table(w.experts, true), std::move(codes)};
  return tables;
}

void CudaBackend::moe(View x, const MoeShape& shape, const MoeWeights& w, View out) {
  checks::moe(x, shape, w, out);
  CHECK(shape.top_k <= kMostTopExperts);
  CHECK(shape.experts <= kMostExperts);
  if (out.empty()) return begin();
  const uint16_t* bf16 = take_rounded(x);
  const MoeTables& tables = tables_of(w);
  const int rows = static_cast<int>(x.rows), pairs = rows * shape.top_k, limit = max_items(rows, shape.top_k, shape.experts);
  const View logits = View::of(moe_logits_.take<float>(static_cast<size_t>(rows * shape.experts)), rows, shape.experts);
  products(x, bf16, matrix_of(*w.router), logits);

  const size_t words = static_cast<size_t>(3 * pairs + 1);
  int* memory = moe_routing_.take<int>(words + static_cast<size_t>(limit) * sizeof(ExpertItem) / sizeof(int));
  const Routing routing{.chosen = memory,
                        .weights = reinterpret_cast<float*>(memory + pairs),
                        .order = memory + 2 * pairs,
                        .items = reinterpret_cast<ExpertItem*>(memory + words),
                        .item_count = memory + 3 * pairs};
  launch_route(rows_of(logits), shape.top_k, routing, stream_);

  const int64_t width = w.experts[0].down->cols();
  const View gate_up = View::of(ffn_.take<float>(static_cast<size_t>(pairs * 3 * width)), pairs, 2 * width);
  const View hidden = View::of(gate_up.f32() + pairs * 2 * width, pairs, width);
  const View results = View::of(moe_pairs_.take<float>(static_cast<size_t>(pairs * out.cols)), pairs, out.cols);
  for (size_t p = 0; p < tables.gate_up.like.size(); ++p)
    launch_expert_linear(reinterpret_cast<const Part*>(tables.gate_up.parts[p].data()), tables.gate_up.like[p]->part, routing, limit,
                         shape.top_k, rows_of(x), bf16, rows_of(gate_up), tables.gate_up.like[p]->first, stream_);
  launch_silu(rows_of(gate_up), width, rows_of(hidden), stream_);
  uint16_t* hidden_bf16 = ffn_bf16_.take<uint16_t>(static_cast<size_t>((pairs + 63) / 64 * 64 * padded_cols(width)));
  launch_silu_to_bf16(rows_of(gate_up), width, hidden_bf16, stream_);
  for (size_t p = 0; p < tables.down.like.size(); ++p)
    launch_expert_linear(reinterpret_cast<const Part*>(tables.down.parts[p].data()), tables.down.like[p]->part, routing, limit, 1,
                         rows_of(hidden), hidden_bf16, rows_of(results), tables.down.like[p]->first, stream_);
  launched("moe");

  const View shared = View::of(moe_shared_.take<float>(static_cast<size_t>(rows * out.cols)), rows, out.cols);
  const View shared_gate = View::of(moe_gate_.take<float>(static_cast<size_t>(rows)), rows, 1);
  ffn(x, bf16, w.shared, shared);
  products(x, bf16, matrix_of(*w.shared_gate), shared_gate);
  launch_combine(rows_of(results), routing, shape.top_k, rows_of(shared), rows_of(shared_gate), rows_of(out), stream_);
  launched("moe");
}

// ---- A pass

const CudaBackend::Pass& CudaBackend::describe(const Batch& batch, int64_t rows, std::span<const PageTable> pages) {
  static_assert(sizeof(std::byte*) == sizeof(uint64_t));
  uploads_->make_room();
  numbers_.clear();
  for (const LaneRows& lane : batch.lanes) {
    numbers_.insert(numbers_.end(), {lane.first_row, lane.rows, lane.prefix, lane.settled, static_cast<int64_t>(lane.parent.size())});
    numbers_.insert(numbers_.end(), lane.parent.begin(), lane.parent.end());
  }
  for (const PageTable& table : pages) {
    numbers_.push_back(static_cast<int64_t>(table.size()));
    for (std::byte* page : table) numbers_.push_back(static_cast<int64_t>(reinterpret_cast<uint64_t>(page)));
  }
  Described& last = described_[pages.empty() ? 0 : 1];
  if (last.age == uploads_->age() && last.rows == rows && last.numbers == numbers_) return last.pass;
  Pass pass;
  lanes_.clear();
  rows_.assign(static_cast<size_t>(rows), RowDesc{});
  paths_.clear();
  for (size_t l = 0; l < batch.lanes.size(); ++l) {
    const LaneRows& lane = batch.lanes[l];
    const bool chain = is_chain(lane);
    LaneDesc desc{.first_row = lane.first_row, .rows = lane.rows, .settled = lane.settled, .chain = chain, .prefix = lane.prefix};
    if (!pages.empty())
      desc.pages = reinterpret_cast<const uint64_t*>(uploads_->known(pages[l].data(), pages[l].size_bytes()));
    lanes_.push_back(desc);
    pass.any_settled = pass.any_settled || lane.settled > 0;
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
  pass.desc = {.lanes = uploads_->known(std::span<const LaneDesc>(lanes_)),
               .rows = uploads_->known(std::span<const RowDesc>(rows_)),
               .paths = uploads_->known(std::span<const int32_t>(paths_)),
               .lane_count = static_cast<int>(lanes_.size()),
               .row_count = static_cast<int>(rows)};
  last = {uploads_->age(), rows, numbers_, pass};
  return last.pass;
}

// ---- Attention

void CudaBackend::rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) {
  begin();
  checks::rotary_table(inputs, spec, table);
  if (table.empty()) return;
  words_.clear();
  for (const RowInput& input : inputs) words_.insert(words_.end(), input.position.begin(), input.position.end());
  launch_rotary(uploads_->once(std::span<const int32_t>(words_)), uploads_->known(std::span<const float>(spec.inverse_frequency)),
                uploads_->known(std::span<const uint8_t>(spec.axis)), spec.magnitude, rows_of(table), stream_);
  launched("rotary_table");
}

void CudaBackend::attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape, const Batch& batch,
                                   std::span<const PageTable> pages, const KvLayout& layout, int layer, View queries) {
  begin();
  checks::attention_inputs(packed, q_norm, k_norm, rotary, shape, batch, pages, layout, layer, queries);
  if (packed.rows == 0) return;
  const Pass& pass = describe(batch, packed.rows, pages);
  launch_attention_inputs(rows_of(packed), q_norm.f32(), k_norm.f32(), rows_of(rotary), head_shape(shape, static_cast<int>(rotary.cols)),
                          pass.desc, layout, layer, rows_of(queries), stream_);
  launched("attention_inputs");
}

void CudaBackend::attention(View queries, View packed, const AttentionShape& shape, const Batch& batch, std::span<const PageTable> pages,
                            const KvLayout& layout, int layer, View out) {
  begin();
  checks::attention(queries, packed, shape, batch, pages, layout, layer, out);
  if (packed.rows == 0) return;
  const Pass& pass = describe(batch, packed.rows, pages);
  const HeadShape heads = head_shape(shape, 0);
  const int64_t spans = (pass.most_visible + kSpanTokens - 1) / kSpanTokens;
  const int64_t per_row = static_cast<int64_t>(attention_partial_floats(1, heads, spans));
  const int64_t at_once = spans == 1 ? packed.rows : std::clamp<int64_t>(static_cast<int64_t>(kPartialFloats) / per_row, 1, packed.rows);
  float* partial = spans == 1 ? nullptr : partial_.take<float>(static_cast<size_t>(at_once * per_row));
  uint16_t* bf16 = leave_rounded(out);
  for (int64_t first = 0; first < packed.rows; first += at_once)
    launch_attention(rows_of(queries), rows_of(packed), heads, pass.desc, static_cast<int>(first),
                     static_cast<int>(std::min(at_once, packed.rows - first)), spans, layout, layer, partial, rows_of(out), bf16, stream_);
  launched("attention");
}

void CudaBackend::commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) {
  begin();
  checks::commit_kv(pages, layout, prefix, path);
  bool moves = false;
  for (size_t j = 0; j < path.size(); ++j) moves = moves || path[j] != static_cast<int>(j);
  if (!moves) return;
  launch_commit_kv(static_cast<const uint64_t*>(uploads_->known(pages.data(), pages.size_bytes())), layout, prefix,
                   uploads_->known(std::span<const int32_t>(path)), static_cast<int>(path.size()), stream_);
  launched("commit_kv");
}

// ---- Gated delta net

void CudaBackend::causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch, std::span<const DeltaMemory> lanes,
                              View out) {
  begin();
  checks::causal_conv(packed, weight, shape, batch, lanes, out);
  CHECK(weight.stride == weight.cols);
  if (packed.rows == 0) return;
  const Pass& pass = describe(batch, packed.rows, {});
  launch_causal_conv(rows_of(packed), weight.f32(), shape, pass.desc, uploads_->known(lanes), pass.any_settled, rows_of(out), stream_);
  launched("causal_conv");
}

void CudaBackend::delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape, const Batch& batch,
                             std::span<const DeltaMemory> lanes, View out) {
  begin();
  checks::delta_rule(conv, beta_alpha, decay_rate, dt_bias, shape, batch, lanes, out);
  CHECK(shape.key_dim <= kMaxKeyDim);
  if (conv.rows == 0) return;
  const Pass& pass = describe(batch, conv.rows, {});
  const size_t rows = static_cast<size_t>(conv.rows), keys = rows * static_cast<size_t>(shape.key_heads * shape.key_dim);
  const size_t heads = rows * static_cast<size_t>(shape.value_heads);
  float* memory = delta_.take<float>(2 * keys + 2 * heads);
  launch_delta_rule(rows_of(conv), rows_of(beta_alpha), decay_rate.f32(), dt_bias.f32(), shape, pass.desc, uploads_->known(lanes),
                    {.query = memory, .key = memory + keys, .beta = memory + 2 * keys, .decay = memory + 2 * keys + heads}, rows_of(out),
                    stream_);
  launched("delta_rule");
}

void CudaBackend::commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled, std::span<const int> path) {
  begin();
  checks::commit_delta(shape, lane, settled, path);
  const std::span<const int> rows = path.subspan(static_cast<size_t>(settled));
  if (rows.empty()) return;
  launch_commit_delta(shape, lane, uploads_->known(std::span<const int32_t>(rows)), static_cast<int>(rows.size()), stream_);
  launched("commit_delta");
}

// ---- Block drafters

const BlockLaneDesc* CudaBackend::describe(std::span<const BlockLane> lanes, int& most_rows) {
  uploads_->make_room();
  block_lanes_.clear();
  most_rows = 0;
  for (const BlockLane& lane : lanes) {
    block_lanes_.push_back({.first_row = lane.first_row,
                            .rows = lane.rows,
                            .page_count = static_cast<int>(lane.pages.size()),
                            .base = lane.base,
                            .begin = lane.begin,
                            .end = lane.end,
                            .pages = static_cast<const uint64_t*>(uploads_->known(lane.pages.data(), lane.pages.size_bytes()))});
    most_rows = std::max(most_rows, lane.rows);
  }
  return uploads_->known(std::span<const BlockLaneDesc>(block_lanes_));
}

namespace {

BlockHeads block_heads(const BlockShape& shape, int rotary_dim) {
  return {.query_heads = shape.query_heads, .kv_heads = shape.kv_heads, .dim = shape.head_dim, .window = shape.window,
          .causal = shape.causal, .rotary_dim = rotary_dim, .epsilon = shape.norm_epsilon};
}

}  // namespace

void CudaBackend::block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& shape,
                               std::span<const BlockLane> lanes, const KvLayout& layout) {
  begin();
  checks::block_inputs(q, kv, q_norm, k_norm, rotary, shape, lanes, layout);
  int rows;
  const BlockLaneDesc* descs = describe(lanes, rows);
  if (rows == 0) return;
  launch_block_inputs(q.empty() ? Rows{} : rows_of(q), rows_of(kv), q_norm.f32(), k_norm.f32(), rows_of(rotary),
                      block_heads(shape, static_cast<int>(rotary.cols)), descs, static_cast<int>(lanes.size()), rows, layout, stream_);
  launched("block_inputs");
}

void CudaBackend::block_attention(View queries, const BlockShape& shape, std::span<const BlockLane> lanes, const KvLayout& layout,
                                  View out) {
  begin();
  checks::block_attention(queries, shape, lanes, layout, out);
  int rows;
  const BlockLaneDesc* descs = describe(lanes, rows);
  if (rows == 0) return;
  launch_block_attention(rows_of(queries), block_heads(shape, 0), descs, static_cast<int>(lanes.size()), rows, layout, rows_of(out),
                         stream_);
  launched("block_attention");
}

void CudaBackend::block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) {
  begin();
  checks::block_conv(x, base, delta, group, lanes, out);
  int rows;
  const BlockLaneDesc* descs = describe(lanes, rows);
  if (rows == 0) return;
  launch_block_conv(rows_of(x), rows_of(base), rows_of(delta), group, descs, static_cast<int>(lanes.size()), rows_of(out), stream_);
  launched("block_conv");
}

// The ids are the host's: this waits.
void CudaBackend::top_k(View logits, int k, std::span<TokenId> ids, View values) {
  begin();
  checks::top_k(logits, k, ids, values);
  if (logits.rows == 0) return;
  int32_t* on_device = top_ids_.take<int32_t>(ids.size());
  launch_top_k(rows_of(logits), k, top_.take<std::byte>(top_k_scratch_bytes(logits.rows, k)), on_device, rows_of(values), stream_);
  launched("top_k");
  check(cudaMemcpyAsync(ids.data(), on_device, ids.size_bytes(), cudaMemcpyDeviceToHost, stream_), "a download");
  check(cudaStreamSynchronize(stream_), "top_k");
}

void CudaBackend::selector_edges(View weights, View predecessors, View successors, View edges) {
  begin();
  checks::selector_edges(weights, predecessors, successors, edges);
  if (edges.empty()) return;
  launch_selector_edges(rows_of(weights), rows_of(predecessors), rows_of(successors), rows_of(edges), stream_);
  launched("selector_edges");
}

}  // namespace foretoken::cuda
