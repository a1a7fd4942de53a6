// Block formats are taken apart by unpack_block and written into the planes of packed_layout.h; floats are interleaved in
// lines. The last group is padded with zero weights.
#include "cpu/packing.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cpu/packed_layout.h"
#include "numerics/dtype.h"

namespace foretoken::cpu {
namespace {

constexpr size_t kPrefetchSlack = 4096;  // kernels prefetch ahead of what they read

void put_f16(uint8_t* to, float value) {
  const uint16_t bits = to_f16(value).bits;
  std::memcpy(to, &bits, sizeof bits);
}

// IQ4 index of every table value plus 128; other entries are not asked for.
constexpr std::array<uint8_t, 256> kIq4Index = [] {
  std::array<uint8_t, 256> index{};
  for (uint8_t i = 0; i < 16; ++i) index[kIq4Bytes[i]] = i;
  return index;
}();

// The unsigned value that the planes hold for the signed weight q.
uint32_t stored_value(const PackedLayout& layout, int q) {
  return layout.table ? kIq4Index[static_cast<uint8_t>(q + 128)] : static_cast<uint32_t>(q + layout.offset);
}

// Writes the four weights of a quad of output `output` (0..31), one per byte of `values`, into the planes of their sub-block,
// which are zero.
void put_quad(const PackedLayout& layout, uint8_t* planes, int quad, int output, uint32_t values) {
  const int half = output / 16, at = 4 * (output % 16);
  auto put = [at](uint8_t* line, uint32_t bits, int shift) {
    uint32_t word;
    std::memcpy(&word, line + at, sizeof word);
    word |= bits << shift;
    std::memcpy(line + at, &word, sizeof word);
  };
  if (layout.byte) {
    put(planes + 64 * (2 * quad + half), values, 0);
    return;
  }
  uint8_t* two_bits = planes + layout.nibble_bytes();
  uint8_t* one_bits = two_bits + layout.two_bit_bytes();
  if (layout.nibble) {
    put(planes + 64 * quad, values & 0x0F0F0F0Fu, 4 * half);
    values >>= 4;
  }
  if (layout.two_bit) {
    put(two_bits + 64 * (quad / 2), values & 0x03030303u, 4 * (quad % 2) + 2 * half);
    values >>= 2;
  }
  if (layout.one_bit) put(one_bits + 64 * (quad / 4), values & 0x01010101u, 2 * (quad % 4) + half);
}

void pack_block(const PackedLayout& layout, const UnpackedBlock& w, int output, uint8_t* block) {
  put_f16(block + 2 * output, w.d);
  if (layout.has_min) put_f16(block + layout.dmin_at() + 2 * output, w.dmin);
  for (int s = 0; s < layout.subs(); ++s) {
    if (layout.has_scales()) {
      block[layout.scales_at() + 32 * s + output] = static_cast<uint8_t>(static_cast<int8_t>(w.scale[s]));
      if (layout.has_min)
        block[layout.minimums_at() + 32 * ((output / 16) * (layout.subs() / 2) + s / 2) + 2 * (output % 16) + s % 2] =
            static_cast<uint8_t>(w.min[s]);
    }
    uint8_t* planes = block + layout.planes_at() + s * layout.sub_bytes();
    const int16_t* q = w.q + s * layout.sub;
    for (int quad = 0; quad < layout.quads(); ++quad, q += 4)
      put_quad(layout, planes, quad, output,
               stored_value(layout, q[0]) | stored_value(layout, q[1]) << 8 | stored_value(layout, q[2]) << 16 |
                   stored_value(layout, q[3]) << 24);
  }
}

const std::byte* source_row(const MatrixSource& source, int64_t row) {
  const int64_t from = source.row_order.empty() ? row : source.row_order[static_cast<size_t>(row)];
  CHECK(from >= 0);
  CHECK(from < source.rows);
  return source.data.data() + static_cast<size_t>(from) * row_bytes(source.format, source.cols);
}

void pack_block_group(const MatrixSource& source, int64_t group, int64_t outputs, uint8_t* to) {
  const PackedLayout layout = packed_layout(source.format);
  const auto block_bytes = static_cast<size_t>(format_info(source.format).block_bytes);
  for (int output = 0; output < kGroupOutputs; ++output) {
    const int64_t row = group * kGroupOutputs + output;
    if (row >= outputs) return;
    const std::byte* from = source_row(source, row);
    for (int64_t b = 0; b < source.cols / layout.block; ++b) {
      UnpackedBlock w;
      unpack_block(source.format, from + static_cast<size_t>(b) * block_bytes, w);
      DCHECK(w.elements == layout.block);
      DCHECK(w.sub_elements == layout.sub);
      DCHECK(w.has_min == layout.has_min);
      pack_block(layout, w, output, to + b * layout.block_bytes());
    }
  }
}

void pack_float_group(const MatrixSource& source, int64_t group, int64_t outputs, uint8_t* to) {
  const int chunk = float_chunk(source.format);
  const size_t element = source.format == QuantFormat::kF32 ? 4 : 2;
  for (int output = 0; output < kFloatGroupOutputs; ++output) {
    const int64_t row = group * kFloatGroupOutputs + output;
    if (row >= outputs) return;
    const std::byte* from = source_row(source, row);
    auto line_of = [&](int64_t column) { return to + (column / chunk * kFloatGroupOutputs + output) * 64; };
    // Where element `place` of a chunk lies in its line.
    auto put = [&](uint8_t* line, int64_t place, int64_t column) {
      if (source.format == QuantFormat::kBF16) place = place % 16 * 2 + place / 16;
      std::memcpy(line + static_cast<size_t>(place) * element, from + static_cast<size_t>(column) * element, element);
    };
    if (!source.column_order.empty()) {
      for (int64_t c = 0; c < source.cols; ++c) {
        const int64_t column = source.column_order[static_cast<size_t>(c)];
        CHECK(column >= 0);
        CHECK(column < source.cols);
        put(line_of(c), c % chunk, column);
      }
      continue;
    }
    int64_t c = 0;
    for (; c + chunk <= source.cols; c += chunk) {
      uint8_t* line = line_of(c);
      std::memcpy(line, from + static_cast<size_t>(c) * element, 64);
      if (source.format == QuantFormat::kBF16) {
        uint16_t words[32];
        std::memcpy(words, line, 64);
        for (int i = 0; i < 16; ++i) {
          const uint32_t pair = words[i] | static_cast<uint32_t>(words[i + 16]) << 16;
          std::memcpy(line + 4 * i, &pair, sizeof pair);
        }
      }
    }
    for (; c < source.cols; ++c) put(line_of(c), c % chunk, c);
  }
}

int64_t rows_of(const MatrixSource& source) {
  return source.row_order.empty() ? source.rows : static_cast<int64_t>(source.row_order.size());
}

size_t packed_group_bytes(QuantFormat format, int64_t cols) {
  if (is_float_format(format)) {
    const int chunk = float_chunk(format);
    return static_cast<size_t>((cols + chunk - 1) / chunk) * kFloatGroupOutputs * 64;
  }
  const PackedLayout layout = packed_layout(format);
  return static_cast<size_t>(cols / layout.block) * static_cast<size_t>(layout.block_bytes());
}

}  // namespace

int group_outputs(QuantFormat format) { return is_float_format(format) ? kFloatGroupOutputs : kGroupOutputs; }

int64_t group_count(const PackedPart& part) {
  const int outputs = group_outputs(static_cast<QuantFormat>(part.format));
  return (part.outputs + outputs - 1) / outputs;
}

namespace {

// The parts' places in the packed bytes, as offsets while `base` is null.
struct Plan {
  std::vector<PackedPart> parts;
  int64_t rows = 0;
  size_t bytes = 0;

  void place(const std::byte* base) {
    for (PackedPart& part : parts) {
      part.data = base;
      base += static_cast<size_t>(group_count(part)) * part.group_bytes;
    }
  }
};

Plan plan_of(std::span<const MatrixSource> sources) {
  CHECK(!sources.empty());
  Plan plan;
  for (const MatrixSource& source : sources) {
    CHECK(source.cols == sources[0].cols);
    CHECK(source.cols > 0);
    CHECK(source.rows > 0);
    if (!source.column_order.empty()) {
      CHECK(is_float_format(source.format));
      CHECK(source.column_order.size() == static_cast<size_t>(source.cols));
    }
    const PackedPart part{.data = nullptr,
                          .group_bytes = packed_group_bytes(source.format, source.cols),
                          .outputs = rows_of(source),
                          .cols = source.cols,
                          .format = static_cast<int>(source.format)};
    plan.rows += part.outputs;
    plan.bytes += static_cast<size_t>(group_count(part)) * part.group_bytes;
    plan.parts.push_back(part);
  }
  return plan;
}

// Groups between two releases of the source: what is resident at once stays small. One go where rows are not read in order.
int64_t groups_at_once(const MatrixSource& source, const PackedPart& part) {
  constexpr size_t kResidentBytes = 32u << 20;
  if (!source.release || !source.row_order.empty()) return group_count(part);
  const size_t group = static_cast<size_t>(group_outputs(source.format)) * row_bytes(source.format, source.cols);
  return std::max<int64_t>(1, static_cast<int64_t>(kResidentBytes / group));
}

}  // namespace

std::unique_ptr<const PackedMatrix> pack_matrix(std::span<const MatrixSource> sources, ThreadPool& pool) {
  Plan plan = plan_of(sources);
  Buffer memory(plan.bytes + kPrefetchSlack);
  plan.place(memory.data());
  auto* to = reinterpret_cast<uint8_t*>(memory.data());
  for (size_t i = 0; i < sources.size(); ++i) {
    const MatrixSource& source = sources[i];
    const PackedPart& part = plan.parts[i];
    CHECK(source.data.size() == static_cast<size_t>(source.rows) * row_bytes(source.format, source.cols));
    const int64_t groups = group_count(part), step = groups_at_once(source, part);
    for (int64_t first = 0; first < groups; first += step) {
      const int64_t count = std::min(step, groups - first);
      pool.parallel_for(count, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t g = first + begin; g < first + end; ++g) {
          uint8_t* group = to + static_cast<size_t>(g) * part.group_bytes;
          if (is_float_format(source.format)) pack_float_group(source, g, part.outputs, group);
          else pack_block_group(source, g, part.outputs, group);
        }
      });
      if (!source.release) continue;
      const size_t stride = static_cast<size_t>(group_outputs(source.format)) * row_bytes(source.format, source.cols);
      const size_t from = source.row_order.empty() ? static_cast<size_t>(first) * stride : 0;
      const size_t until = first + count == groups ? source.data.size() : static_cast<size_t>(first + count) * stride;
      source.release(source.data.subspan(from, until - from));
    }
    to += static_cast<size_t>(groups) * part.group_bytes;
  }
  const std::span<const std::byte> packed(memory.data(), plan.bytes);
  return std::make_unique<const PackedMatrix>(plan.rows, sources[0].cols, std::move(memory), packed, std::move(plan.parts));
}

std::unique_ptr<const PackedMatrix> adopt_matrix(std::span<const MatrixSource> sources, std::span<const std::byte> packed) {
  Plan plan = plan_of(sources);
  if (packed.size() != plan.bytes) return nullptr;
  CHECK(reinterpret_cast<uintptr_t>(packed.data()) % 64 == 0);
  plan.place(packed.data());
  return std::make_unique<const PackedMatrix>(plan.rows, sources[0].cols, Buffer(), packed, std::move(plan.parts));
}

}  // namespace foretoken::cpu
