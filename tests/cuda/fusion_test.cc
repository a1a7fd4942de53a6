// What the CUDA backend runs together has the bits of its operators one by one: a download between two operators keeps
// them apart. Also passes that the backend has seen before, whose launches are one graph. Without a device nothing
// runs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/ops_world.h"

namespace foretoken::test {
namespace {

constexpr size_t kSmallShared = 99 * 1024;  // of a block of threads: consumer cards

class CudaFusion : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = make_cuda_backend();
    if (!made) GTEST_SKIP() << "no device";
    backend_ = *std::move(made);
  }

  // Rows in the device's memory, random from `seed` on.
  struct Rows {
    Buffer memory;
    View view;
  };
  Rows rows(int64_t count, int64_t cols, uint64_t seed, float scale = 1.0f, float offset = 0.0f) {
    Rows r{backend_->allocate(static_cast<size_t>(count * cols) * sizeof(float)), {}};
    r.view = r.memory.view(count, cols);
    Random random(seed);
    std::vector<float> values(static_cast<size_t>(count * cols));
    for (float& v : values) v = random.value() * scale + offset;
    backend_->upload(View::of(values.data(), count, cols), r.view);
    return r;
  }
  std::vector<float> values(View view) {
    std::vector<float> host(static_cast<size_t>(view.rows * view.cols));
    backend_->download(view, View::of(host.data(), view.rows, view.cols));
    return host;
  }
  std::vector<float> values(const float* data, size_t count) {
    return values(View::of(const_cast<float*>(data), 1, static_cast<int64_t>(count)));
  }
  void apart(bool apart) {
    if (apart) values(View::of(reinterpret_cast<float*>(mark_.data()), 1, 1));
  }
  // Q4_K or Q6_K.
  MatrixPtr random_matrix(QuantFormat format, int64_t outputs, int64_t cols, uint64_t seed) {
    raw_ = random_blocks(format, outputs, cols, seed);
    const MatrixSource source{"weight", format, outputs, cols, raw_, {}, {}};
    return backend_->pack({&source, 1});
  }
  static std::vector<std::byte> random_blocks(QuantFormat format, int64_t outputs, int64_t cols, uint64_t seed) {
    Random random(seed);
    std::vector<std::byte> bytes(static_cast<size_t>(outputs) * row_bytes(format, cols));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.bits());
    const F16 d = to_f16(1e-3f), least = to_f16(7e-3f);
    const bool four = format == QuantFormat::kQ4_K;
    for (size_t at = 0; at < bytes.size(); at += four ? 144 : 210) {
      std::memcpy(bytes.data() + at + (four ? 0 : 208), &d, 2);
      if (four) std::memcpy(bytes.data() + at + 2, &least, 2);
    }
    return bytes;
  }
  // Gates and ups of one feed-forward, two sources, packed as `use` says, and its second product.
  ExpertWeights feed_forward(Backend& backend, QuantFormat format, int64_t width, int64_t cols, bool float_down,
                             uint64_t seed, MatrixUse use) {
    const std::vector<std::byte> gate = random_blocks(format, width, cols, seed),
                                 up = random_blocks(format, width, cols, seed + 1);
    std::vector<std::byte> down;
    if (float_down) {
      Random random(seed + 2);
      std::vector<float> values(static_cast<size_t>(cols * width));
      for (float& v : values) v = random.uniform() * 0.1f;
      down.resize(values.size() * sizeof(float));
      std::memcpy(down.data(), values.data(), down.size());
    } else {
      down = random_blocks(QuantFormat::kQ4_K, cols, width, seed + 2);
    }
    const MatrixSource both[] = {{"gate", format, width, cols, gate, {}, {}}, {"up", format, width, cols, up, {}, {}}};
    const MatrixSource second{"down", float_down ? QuantFormat::kF32 : QuantFormat::kQ4_K, cols, width, down, {}, {}};
    return {backend.pack(both, use), backend.pack({&second, 1})};
  }

  void expect_same_without_wide(size_t most_shared);
  void expect_same_gates(size_t most_shared);
  void expect_near_the_reference(QuantFormat ups);
  void expect_rows_alone_of_chains();

  std::unique_ptr<Backend> backend_;
  Buffer mark_ = Buffer();
  std::vector<std::byte> raw_;  // of the last random_matrix
};

// Many tiles a block of threads, several slices, and every kernel: against sums in double, and every row count against
// the widest, also beside rows of NaN.
TEST_F(CudaFusion, LargeProducts) {
  for (const auto& [format, outputs, cols] : {std::tuple(QuantFormat::kQ4_K, int64_t{17000}, int64_t{5120}),
                                              {QuantFormat::kQ4_K, 9001, 512},
                                              {QuantFormat::kQ4_K, 600, 17408},
                                              {QuantFormat::kQ4_K, 2000, 6144},
                                              {QuantFormat::kQ6_K, 9001, 1024},
                                              {QuantFormat::kQ6_K, 600, 6144}}) {
    const MatrixPtr matrix = random_matrix(format, outputs, cols, 3);
    const int most = 300;
    const Rows x = rows(most, cols, 4), out = rows(most, outputs, 5);
    backend_->linear(x.view, *matrix, out.view);
    std::vector<float> inputs = values(x.view);
    const std::vector<float> whole = values(out.view);
    const std::string what = std::to_string(outputs) + " x " + std::to_string(cols);
    std::vector<float> w(static_cast<size_t>(cols));
    double difference = 0, size = 0;
    for (int64_t o = 0; o < outputs; o += 37) {
      const size_t stride = row_bytes(format, cols);
      dequantize(format, std::span(raw_).subspan(static_cast<size_t>(o) * stride, stride), w);
      for (int r : {0, 7, 39, 128, 299}) {
        double sum = 0;
        for (int64_t k = 0; k < cols; ++k)
          sum +=
              double{w[static_cast<size_t>(k)]} * double{to_float(to_bf16(inputs[static_cast<size_t>(r * cols + k)]))};
        const double d = double{whole[static_cast<size_t>(r * outputs + o)]} - sum;
        difference += d * d;
        size += sum * sum;
      }
    }
    EXPECT_GT(size, 0);
    EXPECT_LT(std::sqrt(difference / size), 2e-5) << what;
    for (int count : {1, 2, 5, 8, 9, 16, 17, 32, 33, 49, 64, 65, 100, 129, 256}) {
      const Rows part = rows(count, outputs, 6);
      backend_->linear(x.view.row_range(3, 3 + count), *matrix, part.view);
      const std::vector<float> got = values(part.view);
      EXPECT_EQ(std::memcmp(got.data(), whole.data() + 3 * outputs, got.size() * sizeof(float)), 0)
          << what << ", " << count << " rows";
    }
    for (int r = 1; r < most; r += 2)
      for (int64_t k = 0; k < cols; ++k) inputs[static_cast<size_t>(r * cols + k)] = r % 4 == 1 ? kNaN : 3e38f;
    const Rows poisoned = rows(most, cols, 4);
    backend_->upload(View::of(inputs.data(), most, cols), poisoned.view);
    for (int count : {17, 40, most}) {
      const Rows beside = rows(count, outputs, 6);
      backend_->linear(poisoned.view.row_range(0, count), *matrix, beside.view);
      const std::vector<float> got = values(beside.view);
      EXPECT_TRUE(std::isnan(got[static_cast<size_t>(outputs)]));
      for (int r = 0; r < count; r += 2)
        EXPECT_EQ(std::memcmp(got.data() + r * outputs, whole.data() + r * outputs,
                              static_cast<size_t>(outputs) * sizeof(float)),
                  0)
            << what << ", " << count << " rows beside NaN, row " << r;
      if (HasFailure()) return;
    }
  }
}

// Kernels of many rows are admitted here, and a backend that never takes them gives the same bits in groups of sixteen
// rows, or of eight with a smaller device's plans: what a device would do that refuses them.
TEST_F(CudaFusion, RowsWithoutTheirKernel) {
  for (const size_t most_shared : {size_t{0}, kSmallShared}) expect_same_without_wide(most_shared);
}
void CudaFusion::expect_same_without_wide(size_t most_shared) {
  auto made = make_cuda_backend({.wide = false, .most_shared = most_shared});
  ASSERT_TRUE(made);
  const std::unique_ptr<Backend> narrow = *std::move(made);
  EXPECT_EQ(backend_->info().detail.find("groups of 16 rows"), std::string::npos);
  for (const auto& [format, outputs, cols] : {std::tuple(QuantFormat::kQ4_K, int64_t{1000}, int64_t{5120}),
                                              {QuantFormat::kQ4_K, 600, 17408},
                                              {QuantFormat::kQ6_K, 600, 6144}}) {
    const MatrixPtr matrix = random_matrix(format, outputs, cols, 3);
    const MatrixSource source{"weight", format, outputs, cols, raw_, {}, {}};
    const MatrixPtr same = narrow->pack({&source, 1});
    for (const int count : {1, 8, 11, 16, 77, 130}) {
      const Rows x = rows(count, cols, 4), out = rows(count, outputs, 5), other = rows(count, outputs, 6);
      backend_->linear(x.view, *matrix, out.view);
      const std::vector<float> expected = values(out.view);
      narrow->linear(x.view, *same, other.view);
      std::vector<float> got(expected.size());
      narrow->download(other.view, View::of(got.data(), count, outputs));
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
          << outputs << " x " << cols << ", " << count << " rows, " << most_shared << " bytes";
      EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](float v) { return v != 0; }), 500);
    }
  }
}

// A product whose slices are added by the sum and norm behind it, which also leave the rows to whoever taps them: rows
// that a norm keeps one or three fours of a thread of, and longer ones.
TEST_F(CudaFusion, ProductSumNorm) {
  mark_ = backend_->allocate(64);
  for (const auto& [width, inputs] : {std::pair<int64_t, int64_t>(512, 17408), {2560, 6144}, {6160, 6144}}) {
    const MatrixPtr matrix = random_matrix(QuantFormat::kQ4_K, width, inputs, 7);
    for (int count : {1, 3, 16, 40}) {
      std::vector<float> results[2];
      for (const bool separate : {false, true}) {
        const Rows in = rows(count, inputs, 8), mixed = rows(count, width, 9), x = rows(count, width, 10),
                   w = rows(1, width, 11), out = rows(count, width, 12), taken = rows(count, 2 * width, 13);
        backend_->linear(in.view, *matrix, mixed.view);
        apart(separate);
        backend_->add(mixed.view, x.view);
        apart(separate);
        backend_->copy(x.view, taken.view.columns(width, 2 * width));
        apart(separate);
        backend_->rms_norm(x.view, w.view, 1e-6f, out.view);
        for (View v : {mixed.view, x.view, out.view, taken.view}) {
          const std::vector<float> more = values(v);
          results[separate].insert(results[separate].end(), more.begin(), more.end());
        }
        EXPECT_EQ(values(taken.view.columns(width, 2 * width)), values(x.view));
      }
      EXPECT_TRUE(is_informative(View::of(results[0].data(), 1, static_cast<int64_t>(results[0].size()))));
      EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)), 0)
          << count << " rows of " << width;
    }
  }
}

// What a block drafter does around a product: its slices or its rows are convolved and added by the norm behind, and
// what comes of it is tapped; or a product reads what was convolved.
TEST_F(CudaFusion, ProductConvolutionSumNorm) {
  mark_ = backend_->allocate(64);
  const MatrixPtr next = random_matrix(QuantFormat::kQ4_K, 48, 512, 6);
  for (const int64_t inputs : {17408, 4096})
    for (const auto& [taps, group] : {std::pair(2, 16), std::pair(4, 32), std::pair(5, 16), std::pair(2, 2)})
      for (const auto& lanes : {std::vector<BlockLane>{{0, 8}}, std::vector<BlockLane>{{0, 1}, {1, 5}, {6, 2}},
                                std::vector<BlockLane>{{0, 3}, {4, 4}}}) {  // the last leave a row out
        const MatrixPtr matrix = random_matrix(QuantFormat::kQ4_K, 512, inputs, 7);
        std::vector<float> results[2];
        for (const bool separate : {false, true}) {
          const Rows in = rows(8, inputs, 8), after = rows(8, 512, 9), mixed = rows(8, 512, 10), x = rows(8, 512, 11),
                     w = rows(1, 512, 12), out = rows(8, 512, 13), taken = rows(8, 1024, 14),
                     base = rows(taps, 512, 15), delta = rows(8, int64_t{taps} * (512 / group), 16),
                     second = rows(8, 512, 17), product = rows(8, 48, 18);
          const View tap = taken.view.columns(512, 1024);
          backend_->linear(in.view, *matrix, after.view);
          apart(separate);
          backend_->block_conv(after.view, base.view, delta.view, group, lanes, mixed.view);
          apart(separate);
          backend_->add(mixed.view, x.view);
          apart(separate);
          backend_->copy(x.view, tap);
          apart(separate);
          backend_->rms_norm(x.view, w.view, 1e-6f, out.view);
          apart(separate);
          backend_->block_conv(out.view, base.view, delta.view, group, lanes, second.view);
          apart(separate);
          backend_->linear(second.view, *next, product.view);
          for (View v : {after.view, mixed.view, x.view, out.view, taken.view, second.view, product.view}) {
            const std::vector<float> more = values(v);
            results[separate].insert(results[separate].end(), more.begin(), more.end());
          }
        }
        EXPECT_TRUE(is_informative(View::of(results[0].data(), 1, static_cast<int64_t>(results[0].size()))));
        EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)), 0)
            << inputs << " inputs, " << taps << " taps, groups of " << group << ", " << lanes.size() << " lanes";
      }
}

// Keys and values of several layers of a block drafter, which one launch stores.
TEST_F(CudaFusion, ContextOfLayers) {
  mark_ = backend_->allocate(64);
  const BlockShape shape{8, 2, 64, 1e-6f, 0, false};
  const KvLayout layout{1, 2, 64, KvFormat::kBF16};
  std::vector<float> results[2];
  for (const bool separate : {false, true}) {
    const size_t page_floats = layout.page_bytes() / sizeof(float);
    const Rows memory = rows(3 * 2 * 2, static_cast<int64_t>(page_floats), 20, 0.0f),
               kv = rows(7, int64_t{3} * 2 * 2 * 64, 21), angles = rows(7, 64, 22), none = rows(1, 64, 23),
               norms = rows(3, 64, 24);
    for (int layer = 0; layer < 3; ++layer) {
      std::vector<std::byte*> pages[2];
      for (int lane = 0; lane < 2; ++lane)
        for (int p = 0; p < 2; ++p)
          pages[lane].push_back(memory.view.data +
                                static_cast<size_t>((layer * 2 + lane) * 2 + p) * layout.page_bytes());
      const BlockLane lanes[] = {{0, 4, 0, 30, 30, pages[0]}, {4, 3, 32, 32, 40, pages[1]}};
      backend_->block_inputs({}, kv.view.columns(layer * 256, (layer + 1) * 256), none.view,
                             norms.view.row_range(layer, layer + 1), angles.view, shape, lanes, layout);
      apart(separate);
    }
    results[separate] = values(memory.view);
  }
  EXPECT_GT(std::count_if(results[0].begin(), results[0].end(), [](float v) { return v != 0; }), 3 * 7 * 2 * 64 / 2);
  EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)), 0);
}

// What becomes of gates and ups: by the kernel of their product, or by one of its own behind a product of matrices that
// are packed for linear. Also in groups, of sixteen rows or of eight with a smaller device's plans.
TEST_F(CudaFusion, GatesInTheirProduct) {
  for (const size_t most_shared : {size_t{0}, kSmallShared}) expect_same_gates(most_shared);
}
void CudaFusion::expect_same_gates(size_t most_shared) {
  auto made = make_cuda_backend({.wide = false, .most_shared = most_shared});
  ASSERT_TRUE(made);
  const std::unique_ptr<Backend> narrow = *std::move(made);
  struct Case {
    QuantFormat format;
    int64_t width, cols;
    bool float_down;
  };
  for (const Case& c : {Case{QuantFormat::kQ4_K, 8704, 5120, false}, Case{QuantFormat::kQ4_K, 512, 2048, false},
                        Case{QuantFormat::kQ4_K, 320, 512, true}, Case{QuantFormat::kQ4_K, 256, 6144, false},
                        Case{QuantFormat::kQ6_K, 256, 1024, false}, Case{QuantFormat::kQ6_K, 192, 2816, true}}) {
    const auto weights = [&](Backend& backend, MatrixUse use) {
      return feed_forward(backend, c.format, c.width, c.cols, c.float_down, 70, use);
    };
    const ExpertWeights apart = weights(*backend_, MatrixUse::kLinear),
                        together = weights(*backend_, MatrixUse::kGateUp),
                        narrowly = weights(*narrow, MatrixUse::kGateUp);
    for (const int count : {1, 2, 7, 8, 9, 16, 17, 32, 33, 70}) {
      const Rows x = rows(count, c.cols, 71), expected = rows(count, c.cols, 72), out = rows(count, c.cols, 73),
                 other = rows(count, c.cols, 74);
      backend_->gated_ffn(x.view, apart, expected.view);
      backend_->gated_ffn(x.view, together, out.view);
      narrow->gated_ffn(x.view, narrowly, other.view);
      const std::vector<float> want = values(expected.view), got = values(out.view);
      std::vector<float> of_narrow(want.size());
      narrow->download(other.view, View::of(of_narrow.data(), count, c.cols));
      const std::string what =
          std::to_string(c.width) + " of " + std::to_string(c.cols) + ", " + std::to_string(count) + " rows";
      EXPECT_TRUE(is_informative(View::of(const_cast<float*>(want.data()), count, c.cols))) << what;
      EXPECT_GT(std::count_if(want.begin(), want.end(), [](float v) { return v != 0; }), count * c.cols / 2) << what;
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << what;
      EXPECT_EQ(std::memcmp(of_narrow.data(), want.data(), got.size() * sizeof(float)), 0)
          << what << ", narrow, " << most_shared;
    }
  }
}

// The same of experts, whose rows are pairs.
TEST_F(CudaFusion, GatesOfExperts) {
  const MoeShape shape{16, 3};
  const int64_t cols = 512;
  for (const QuantFormat format : {QuantFormat::kQ4_K, QuantFormat::kQ6_K}) {
    const auto weights = [&](MatrixUse use) {
      MoeWeights w;
      w.router = random_matrix(QuantFormat::kQ4_K, shape.experts, cols, 80);
      for (int e = 0; e <= shape.experts; ++e) {
        ExpertWeights one = feed_forward(*backend_, format, 256, cols, format == QuantFormat::kQ6_K,
                                         81 + static_cast<uint64_t>(e), use);
        if (e < shape.experts) w.experts.push_back(std::move(one));
        else w.shared = std::move(one);
      }
      w.shared_gate = random_matrix(QuantFormat::kQ4_K, 1, cols, 95);
      return w;
    };
    const MoeWeights apart = weights(MatrixUse::kLinear), together = weights(MatrixUse::kGateUp);
    for (const int count : {1, 2, 5, 8, 30, 100}) {
      const Rows x = rows(count, cols, 96), expected = rows(count, cols, 97), out = rows(count, cols, 98);
      backend_->moe(x.view, shape, apart, expected.view);
      backend_->moe(x.view, shape, together, out.view);
      const std::vector<float> want = values(expected.view), got = values(out.view);
      EXPECT_TRUE(is_informative(View::of(const_cast<float*>(want.data()), count, cols)));
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << count << " rows";
    }
  }
}

// Experts against the reference: gates and ups of one format, whose weights every item knows, and of two, whose
// matrices have two parts, each with a table of its own. 8-bit activations there and bf16 here differ by 0.020 and
// 0.022.
TEST_F(CudaFusion, ExpertsNearTheReference) {
  for (const QuantFormat ups : {QuantFormat::kQ4_K, QuantFormat::kQ6_K}) expect_near_the_reference(ups);
}
void CudaFusion::expect_near_the_reference(QuantFormat ups) {
  const MoeShape shape{16, 3};
  const int64_t cols = 512, width = 256;
  const std::unique_ptr<Backend> reference = make_reference_backend();
  const auto weights = [&](Backend& backend) {
    const auto floats = [&](int64_t outputs, uint64_t seed) {  // so that both backends choose the same experts
      Random random(seed);
      std::vector<float> values(static_cast<size_t>(outputs * cols));
      for (float& v : values) v = random.uniform() * 0.1f;
      const MatrixSource source{"floats", QuantFormat::kF32, outputs, cols, std::as_bytes(std::span(values)), {}, {}};
      return backend.pack({&source, 1});
    };
    MoeWeights w;
    w.router = floats(shape.experts, 200);
    for (int e = 0; e <= shape.experts; ++e) {
      const uint64_t seed = 201 + 3 * static_cast<uint64_t>(e);
      const std::vector<std::byte> gate = random_blocks(QuantFormat::kQ4_K, width, cols, seed),
                                   up = random_blocks(ups, width, cols, seed + 1),
                                   down = random_blocks(QuantFormat::kQ4_K, cols, width, seed + 2);
      const MatrixSource both[] = {{"gate", QuantFormat::kQ4_K, width, cols, gate, {}, {}},
                                   {"up", ups, width, cols, up, {}, {}}};
      const MatrixSource second{"down", QuantFormat::kQ4_K, cols, width, down, {}, {}};
      ExpertWeights one{backend.pack(both, MatrixUse::kGateUp), backend.pack({&second, 1})};
      if (e < shape.experts) w.experts.push_back(std::move(one));
      else w.shared = std::move(one);
    }
    w.shared_gate = floats(1, 199);
    return w;
  };
  const MoeWeights here = weights(*backend_), there = weights(*reference);
  for (const int count : {1, 3, 20, 50}) {
    const Rows x = rows(count, cols, 190), out = rows(count, cols, 191), alone = rows(1, cols, 192);
    std::vector<float> inputs = values(x.view), expected(inputs.size());
    const View want = View::of(expected.data(), count, cols);
    reference->moe(View::of(inputs.data(), count, cols), shape, there, want);
    backend_->moe(x.view, shape, here, out.view);
    std::vector<float> got = values(out.view);
    EXPECT_TRUE(is_informative(want));
    double difference = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      difference += std::pow(double{got[i]} - double{expected[i]}, 2);
      size += std::pow(double{expected[i]}, 2);
    }
    EXPECT_LT(std::sqrt(difference / size), 3e-2) << count << " rows";
    for (int r = 0; r < count; ++r) {
      backend_->moe(x.view.row_range(r, r + 1), shape, here, alone.view);
      const std::vector<float> one = values(alone.view);
      EXPECT_EQ(std::memcmp(one.data(), got.data() + r * cols, one.size() * sizeof(float)), 0)
          << "row " << r << " of " << count;
    }
  }
}

// The sum over a row's experts by the sum and norm behind it: with the shared expert among the others and beside them,
// rows that are read four values at a time and others.
TEST_F(CudaFusion, ExpertsSumNorm) {
  mark_ = backend_->allocate(64);
  const MoeShape shape{16, 3};
  const auto floats = [&](int64_t outputs, int64_t cols, uint64_t seed) {
    Random random(seed);
    std::vector<float> values(static_cast<size_t>(outputs * cols));
    for (float& v : values) v = random.uniform() * 0.1f;
    const MatrixSource source{"weight", QuantFormat::kF32, outputs, cols, std::as_bytes(std::span(values)), {}, {}};
    return backend_->pack({&source, 1});
  };
  for (const auto& [cols, shared_width] :
       {std::pair<int64_t, int64_t>(2048, 32), {2048, 48}, {5120, 32}, {7200, 32}, {90, 32}, {6, 48}}) {
    MoeWeights w;
    w.router = floats(shape.experts, cols, 100);
    for (int e = 0; e <= shape.experts; ++e) {
      const int64_t width = e < shape.experts ? 32 : shared_width;
      ExpertWeights one{floats(2 * width, cols, 101 + 2 * static_cast<uint64_t>(e)),
                        floats(cols, width, 102 + 2 * static_cast<uint64_t>(e))};
      if (e < shape.experts) w.experts.push_back(std::move(one));
      else w.shared = std::move(one);
    }
    w.shared_gate = floats(1, cols, 150);
    for (const int count : {1, 3, 40}) {
      std::vector<float> results[2];
      for (const bool separate : {false, true}) {
        const Rows in = rows(count, cols, 151), mixed = rows(count, cols, 152), x = rows(count, cols, 153),
                   norm = rows(1, cols, 154), out = rows(count, cols, 155), tap = rows(count, cols, 156);
        backend_->moe(in.view, shape, w, mixed.view);
        apart(separate);
        backend_->add(mixed.view, x.view);
        apart(separate);
        backend_->copy(x.view, tap.view);
        apart(separate);
        backend_->rms_norm(x.view, norm.view, 1e-6f, out.view);
        for (View v : {mixed.view, x.view, out.view, tap.view}) {
          const std::vector<float> more = values(v);
          results[separate].insert(results[separate].end(), more.begin(), more.end());
        }
      }
      EXPECT_TRUE(is_informative(View::of(results[0].data(), 1, static_cast<int64_t>(results[0].size()))));
      EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)), 0)
          << cols << " columns, " << count << " rows";
    }
  }
}

// Convolution, delta rule and gated norm of chains and trees of several lanes, everything that they write.
TEST_F(CudaFusion, DeltaNet) {
  mark_ = backend_->allocate(64);
  const std::vector<int16_t> tree = {-1, 0, 1, 1, 2, 3, 4, 0, 7, 5, 9, 10, 6};  // 13 rows: over a chunk of eight
  struct Plan {
    int rows, settled;
    std::vector<int16_t> parent;
  };
  const std::vector<std::vector<Plan>> passes = {
      {{1, 1, {}}},  {{1, 0, {}}},    {{8, 1, {}}},
      {{2, 1, {}}},  {{16, 5, {}}},   {{20, 20, {}}},
      {{19, 3, {}}}, {{13, 1, tree}}, {{13, 1, tree}, {2, 0, {}}, {9, 9, {}}}};
  for (const DeltaShape& shape :
       {DeltaShape{2, 6, 128, 128, 4, false}, DeltaShape{2, 4, 128, 128, 4, true}, DeltaShape{2, 4, 64, 64, 4, false},
        DeltaShape{10, 60, 128, 128, 4, false}})  // three lanes of the last: more blocks than multiprocessors
    for (size_t p = 0; p < passes.size(); ++p) {
      std::vector<float> results[2];
      for (const bool separate : {false, true}) {
        std::vector<LaneRows> lanes;
        std::vector<Rows> memory;
        std::vector<DeltaMemory> memories;
        int count = 0;
        const int channels = shape.channels(), values_wide = shape.value_heads * shape.value_dim;
        for (const Plan& plan : passes[p]) {
          lanes.push_back({count, plan.rows, 5, plan.settled, plan.parent});
          count += plan.rows;
          memory.push_back(
              rows(1, static_cast<int64_t>(shape.state_floats() + shape.tail_floats()), 20 + lanes.size()));
          const int64_t tape =
              plan.rows * (int64_t{shape.value_heads} + shape.key_heads * shape.key_dim + values_wide + channels);
          DeltaMemory m{
              .state = memory.back().view.f32(), .tail = memory.back().view.f32() + shape.state_floats(), .tape = {}};
          memory.push_back(rows(1, tape, 30));
          float* at = memory.back().view.f32();
          m.tape = {at, at + plan.rows * shape.value_heads,
                    at + plan.rows * (shape.value_heads + shape.key_heads * shape.key_dim),
                    at + plan.rows * (shape.value_heads + shape.key_heads * shape.key_dim + values_wide)};
          memories.push_back(m);
        }
        const Rows packed = rows(count, channels + values_wide, 13), weight = rows(channels, shape.kernel, 14),
                   conv = rows(count, channels, 15), core = rows(count, values_wide, 16),
                   factors = rows(count, 2 * shape.value_heads, 17),
                   rate = rows(1, shape.value_heads, 18, 0.05f, -0.5f), bias = rows(1, shape.value_heads, 19),
                   norm = rows(1, shape.value_dim, 20);
        const Batch batch{{}, lanes, {}};
        backend_->causal_conv(packed.view, weight.view, shape, batch, memories, conv.view);
        apart(separate);
        backend_->delta_rule(conv.view, factors.view, rate.view, bias.view, shape, batch, memories, core.view);
        apart(separate);
        backend_->gated_norm(core.view, packed.view.columns(channels, channels + values_wide), norm.view, 1e-6f,
                             p % 2 == 0, core.view);
        std::vector<float>& all = results[separate];
        for (View v : {conv.view, core.view}) {
          const std::vector<float> more = values(v);
          all.insert(all.end(), more.begin(), more.end());
        }
        for (const Rows& m : memory) {
          const std::vector<float> more = values(m.view);
          all.insert(all.end(), more.begin(), more.end());
        }
      }
      ASSERT_EQ(results[0].size(), results[1].size());
      size_t differing = 0;
      for (size_t i = 0; i < results[0].size(); ++i) differing += std::memcmp(&results[0][i], &results[1][i], 4) != 0;
      EXPECT_EQ(differing, 0u) << "heads " << shape.key_heads << "/" << shape.value_heads << " of " << shape.key_dim
                               << ", pass " << p << ", of " << results[0].size();
    }
}

// Rows of one chain share what is staged of keys and values, and take spans side by side or in turn: a row alone has
// the same bits.
TEST_F(CudaFusion, AttentionOfChains) { expect_rows_alone_of_chains(); }
TEST_F(CudaFusion, AttentionOfChainsOfASmallerDevice) {
  backend_ = *make_cuda_backend({.most_shared = kSmallShared});
  expect_rows_alone_of_chains();
}
void CudaFusion::expect_rows_alone_of_chains() {
  const int most = 70;
  const int64_t longest = 9000;
  for (const AttentionShape& shape : {AttentionShape{24, 4, 256, 1e-6f}, AttentionShape{16, 2, 256, 1e-6f},
                                      AttentionShape{9, 3, 64, 1e-6f}, AttentionShape{4, 4, 128, 1e-6f}}) {
    const KvLayout layout{1, shape.kv_heads, shape.head_dim, KvFormat::kBF16};
    const int64_t count = (longest + most) / kPageTokens + 1, floats = static_cast<int64_t>(layout.page_bytes() / 4);
    std::vector<Bf16> numbers(static_cast<size_t>(count * floats * 2));
    Random random(120);
    for (Bf16& n : numbers) n = to_bf16(random.uniform());
    const Buffer memory = backend_->allocate(static_cast<size_t>(count * floats) * 4);
    backend_->upload(View::of(reinterpret_cast<float*>(numbers.data()), count, floats), memory.view(count, floats));
    std::vector<std::byte*> pages;
    for (int64_t p = count; p-- > 0;) pages.push_back(const_cast<std::byte*>(memory.data()) + p * floats * 4);
    const PageTable table = pages;
    const int64_t wide = int64_t{shape.query_heads} * shape.head_dim;
    const Rows queries = rows(most, wide, 121), packed = rows(most, shape.packed_columns(), 122);
    const auto attend = [&](int first, int rows_here, int64_t prefix) {
      const Rows out = rows(rows_here, wide, 123);
      const LaneRows lane{0, rows_here, prefix, 0, {}};
      backend_->attention(queries.view.row_range(first, first + rows_here),
                          packed.view.row_range(first, first + rows_here), shape, Batch{{}, {&lane, 1}, {}},
                          {&table, 1}, layout, 0, out.view);
      return values(out.view);
    };
    for (const int64_t prefix : {int64_t{3}, int64_t{240}, int64_t{1100}, int64_t{2040}, int64_t{5000}, longest}) {
      std::vector<float> alone;
      for (int i = 0; i < most; ++i) {
        const std::vector<float> row = attend(i, 1, prefix + i);
        alone.insert(alone.end(), row.begin(), row.end());
      }
      EXPECT_TRUE(is_informative(View::of(alone.data(), most, wide)));
      for (const int count_here : {2, 3, 4, 5, 8, 11, 16, 33, most}) {
        const std::vector<float> got = attend(0, count_here, prefix);
        EXPECT_EQ(std::memcmp(got.data(), alone.data(), got.size() * sizeof(float)), 0)
            << shape.query_heads << " heads of " << shape.head_dim << ", " << count_here << " rows behind " << prefix;
      }
    }
  }
}

// The same launches again, first one by one, then as a graph, with other data and other addresses.
TEST_F(CudaFusion, RepeatedPasses) {
  mark_ = backend_->allocate(64);
  const MatrixPtr matrix = random_matrix(QuantFormat::kQ4_K, 256, 256, 21);
  const Rows w = rows(1, 256, 22);
  std::vector<Rows> places;
  for (uint64_t i = 0; i < 3; ++i) places.push_back(rows(4, 256, 40 + i));
  for (int turn = 0; turn < 8; ++turn) {
    std::vector<float> results[2];
    for (const bool separate : {true, false}) {
      const Rows start = rows(4, 256, 50 + static_cast<uint64_t>(turn));
      const Rows& x = places[static_cast<size_t>(turn % 3)];
      const Rows h = rows(4, 256, 60);
      backend_->copy(start.view, x.view);
      const std::vector<int> order = {3, turn % 4, 1, 0};
      for (int i = 0; i < 12; ++i) {
        backend_->linear(x.view, *matrix, h.view);
        apart(separate);
        backend_->rms_norm(h.view, w.view, 1e-6f, h.view);
        apart(separate);
        backend_->gather_rows(h.view, order, x.view);
        apart(separate);
      }
      results[separate] = values(x.view);
    }
    EXPECT_TRUE(is_informative(View::of(results[0].data(), 1, static_cast<int64_t>(results[0].size()))));
    EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)), 0)
        << "turn " << turn;
  }
}

}  // namespace
}  // namespace foretoken::test
