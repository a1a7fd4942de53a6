// Cost of every operator but the products, per call: decode (1 row), verification (8 rows, chain and tree) and prefill
// (512 rows) on the shapes of a 2 B dense hybrid (hidden 2048, 16 delta heads of 128 x 128, attention 8 / 2 heads of
// 256), for every instruction set of the machine. Every round visits all operators; the first call of a visit finds
// cold caches, as recurrent state and K/V do between the layers of a large model, the second warm ones. Operands are
// random: nothing here says what is right.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/threads.h"
#include "numerics/tensor.h"
#include "ops/ops.h"

namespace {

using namespace foretoken;

struct Matrix2 {
  Buffer buffer;
  View view;
  Matrix2(int64_t rows, int64_t cols, float scale, uint32_t seed) : buffer(static_cast<size_t>(rows * cols) * 4) {
    view = buffer.view(rows, cols);
    for (int64_t i = 0; i < rows * cols; ++i) {
      const uint32_t draw = philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {seed, 0})[0];
      view.f32()[i] = scale * (static_cast<float>(draw >> 8) * 0x1p-23f - 1.0f);
    }
  }
};

struct Measured {
  std::string name;
  int rows;
  std::vector<double> cold, warm;
  std::function<void()> run;
  static double quantile(std::vector<double>& ns, double q) {
    std::sort(ns.begin(), ns.end());
    return ns[static_cast<size_t>(q * static_cast<double>(ns.size() - 1))];
  }
};

// All operands of one backend and row count; `prefix` tokens lie in the cache.
class Shapes {
 public:
  static constexpr int kHidden = 2048;

  Shapes(Backend& backend, int rows, int64_t prefix, bool tree, KvFormat format)
      : backend_(backend),
        x_(rows, kHidden, 1, 1),
        y_(rows, kHidden, 1, 2),
        norm_(1, kHidden, 1, 3),
        packed_delta_(rows, 8192, 1, 4),
        conv_weight_(6144, 4, 0.5f, 5),
        conv_(rows, 6144, 1, 6),
        gates_(rows, 32, 1, 7),
        rate_(1, 16, 0.5f, 8),
        bias_(1, 16, 0.5f, 9),
        core_(rows, 2048, 1, 10),
        head_norm_(1, 128, 1, 11),
        state_(16 * 128, 128, 0.1f, 12),
        tail_(3, 6144, 1, 13),
        tape_(rows, 16 + 2048 + 2048 + 6144, 0, 14),
        packed_(rows, attention_.packed_columns(), 1, 15),
        qk_norm_(1, 256, 1, 16),
        rotary_(rows, 64, 1, 17),
        queries_(rows, 2048, 1, 18),
        mixed_(rows, 2048, 1, 19),
        layout_{1, 2, 256, format},
        pages_(layout_.page_bytes() * static_cast<size_t>((prefix + rows + 31) / 32)) {
    for (float& r : std::span<float>(rate_.view.f32(), 16)) r = -std::abs(r);
    for (size_t p = 0; p * layout_.page_bytes() < pages_.size(); ++p)
      table_.push_back(pages_.data() + p * layout_.page_bytes());
    for (int i = 0; i < rows; ++i) parent_.push_back(static_cast<int16_t>(i == 0 ? -1 : (i - 1) / 2));
    lane_ = {0, rows, prefix, tree ? 1 : rows, {}};
    if (tree) lane_.parent = parent_;
    float* t = tape_.view.f32();
    memory_ = {state_.view.f32(), tail_.view.f32(), {t, t + rows * 16, t + rows * 2064, t + rows * 4112}};
    RotarySpec spec;
    for (int j = 0; j < 32; ++j) {
      spec.inverse_frequency.push_back(1.0f / static_cast<float>(1 << (j / 2)));
      spec.axis.push_back(0);
    }
    spec_ = spec;
    inputs_.resize(static_cast<size_t>(rows));
    for (int i = 0; i < rows; ++i) inputs_[static_cast<size_t>(i)].position.fill(static_cast<int32_t>(prefix) + i);
    // The prefix: K and V of random rows.
    const Matrix2 prompt(std::max<int64_t>(1, prefix), attention_.packed_columns(), 1, 20);
    const Matrix2 prompt_rotary(std::max<int64_t>(1, prefix), 64, 1, 21),
        unused(std::max<int64_t>(1, prefix), 2048, 1, 22);
    const LaneRows all{0, static_cast<int>(prefix), 0, static_cast<int>(prefix), {}};
    const PageTable pages = table_;
    backend_.attention_inputs(prompt.view, qk_norm_.view, qk_norm_.view, prompt_rotary.view, attention_,
                              Batch{{}, {&all, 1}, {}}, {&pages, 1}, layout_, 0, unused.view);
  }

  void list(const std::string& suffix, bool all, std::vector<Measured>& out) {
    const int rows = lane_.rows;
    auto add = [&](const std::string& name, std::function<void()> run) {
      out.push_back({name + suffix, rows, {}, {}, std::move(run)});
    };
    if (all) {
      add("rms_norm", [this] { backend_.rms_norm(x_.view, norm_.view, 1e-6f, y_.view); });
      add("add", [this] { backend_.add(x_.view, mixed_.view); });
      add("rotary_table", [this] { backend_.rotary_table(inputs_, spec_, rotary_.view); });
      add("gated_norm", [this] {
        backend_.gated_norm(core_.view, packed_delta_.view.columns(6144, 8192), head_norm_.view, 1e-6f, false,
                            core_.view);
      });
      add("attention_inputs", [this] {
        const PageTable pages = table_;
        backend_.attention_inputs(packed_.view, qk_norm_.view, qk_norm_.view, rotary_.view, attention_, batch(),
                                  {&pages, 1}, layout_, 0, queries_.view);
      });
    }
    add("causal_conv", [this] {
      backend_.causal_conv(packed_delta_.view, conv_weight_.view, delta_, batch(), {&memory_, 1}, conv_.view);
    });
    add("delta_rule", [this] {
      backend_.delta_rule(conv_.view, gates_.view, rate_.view, bias_.view, delta_, batch(), {&memory_, 1}, core_.view);
    });
    add("attention", [this] {
      const PageTable pages = table_;
      backend_.attention(queries_.view, packed_.view, attention_, batch(), {&pages, 1}, layout_, 0, mixed_.view);
    });
    if (lane_.settled == rows) return;
    for (int i = rows - 1; i > 0; i = lane_.parent_of(i)) path_.insert(path_.begin(), i);
    path_.insert(path_.begin(), 0);
    add("commit_delta", [this] { backend_.commit_delta(delta_, memory_, lane_.settled, path_); });
    add("commit_kv", [this] { backend_.commit_kv(table_, layout_, lane_.prefix, path_); });
  }

 private:
  Batch batch() const { return Batch{inputs_, {&lane_, 1}, {}}; }

  Backend& backend_;
  AttentionShape attention_{8, 2, 256, 1e-6f};
  DeltaShape delta_{16, 16, 128, 128, 4, false};
  Matrix2 x_, y_, norm_, packed_delta_, conv_weight_, conv_, gates_, rate_, bias_, core_, head_norm_, state_, tail_,
      tape_, packed_, qk_norm_, rotary_, queries_, mixed_;
  KvLayout layout_;
  Buffer pages_;
  std::vector<std::byte*> table_;
  std::vector<int16_t> parent_;
  std::vector<RowInput> inputs_;
  std::vector<int> path_;
  RotarySpec spec_;
  LaneRows lane_;
  DeltaMemory memory_;
};

void measure(Isa isa, int threads, int repetitions) {
  Result<std::unique_ptr<Backend>> backend = make_cpu_backend({isa, threads});
  if (!backend) return;
  std::vector<Measured> list;
  std::vector<std::unique_ptr<Shapes>> shapes;
  auto add = [&](int rows, int64_t prefix, bool tree, KvFormat format, const std::string& suffix, bool all) {
    shapes.push_back(std::make_unique<Shapes>(**backend, rows, prefix, tree, format));
    shapes.back()->list(suffix, all, list);
  };
  add(1, 512, false, KvFormat::kBF16, "", true);
  add(1, 512, false, KvFormat::kInt8, " int8", false);
  add(8, 512, true, KvFormat::kBF16, " tree", true);
  add(512, 0, false, KvFormat::kBF16, "", true);
  for (int round = -1; round < repetitions; ++round) {
    for (Measured& m : list) {
      for (std::vector<double>* ns : {&m.cold, &m.warm}) {
        const auto begin = std::chrono::steady_clock::now();
        m.run();
        const auto end = std::chrono::steady_clock::now();
        if (round >= 0) ns->push_back(std::chrono::duration<double, std::nano>(end - begin).count());
      }
    }
  }
  fmt::print("\n{}, {} threads, {} rounds\n{:<24}{:>6}{:>14}{:>14}{:>14}\n", (*backend)->info().detail, threads,
             repetitions, "operator", "rows", "cold ns", "warm ns", "least ns");
  for (Measured& m : list)
    fmt::print("{:<24}{:>6}{:>14.0f}{:>14.0f}{:>14.0f}\n", m.name, m.rows, Measured::quantile(m.cold, 0.5),
               Measured::quantile(m.warm, 0.5), Measured::quantile(m.warm, 0));
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  const int threads = argc > 2 ? std::max(1, std::atoi(argv[2])) : foretoken::usable_processors();
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2})
    if (argc <= 3 || std::atoi(argv[3]) == int(isa)) measure(isa, threads, repetitions);
  if (argc <= 3) measure(Isa::kScalar, threads, std::max(1, repetitions / 10));
}
