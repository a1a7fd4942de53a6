// Times products of packed matrices against the limits of this machine, which are measured in the same run between the passes:
// reading memory and byte products with the same number of threads. A pass of R rows takes at least
// max(packed bytes / read bandwidth, R * multiply-adds / byte-product rate); the share of that limit is what counts, since
// neighbours move the absolute numbers. Figures are medians over rounds.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/threads.h"
#include "cpu/packing.h"
#include "cpu/products.h"
#include "cpu/select.h"
#include "numerics/dtype.h"

namespace foretoken {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The value at `place` (0 smallest, 0.5 median) of a series.
double quantile(std::vector<double> values, double place) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(place * static_cast<double>(values.size())))];
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

struct Options {
  std::vector<std::string> formats = {"Q4_K", "Q8_0", "Q6_K", "BF16"};
  std::vector<std::string> isas = {"avx512", "avx2", "scalar"};
  std::vector<int> rows = {1, 2, 4, 8, 16, 32, 512};
  int threads = 0, rounds = 7;
  int64_t outputs = 6144, cols = 2048;
  int megabytes = 600;
  double slow_limit = 4;
  int64_t dot_steps = 100000;
  bool best = false;
};

// Random bits; the f16 factors of a block are whatever they are, except never NaN or infinite.
std::vector<std::byte> random_weights(QuantFormat format, int64_t rows, int64_t cols) {
  std::vector<std::byte> data(static_cast<size_t>(rows) * row_bytes(format, cols));
  uint64_t state = 1;
  for (size_t i = 0; i + 8 <= data.size(); i += 8) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const uint64_t bits = (state ^ state >> 29) & 0xBFFFBFFFBFFFBFFFull;  // clears an exponent bit of every 16-bit word
    std::memcpy(data.data() + i, &bits, 8);
  }
  return data;
}

// One packed matrix and as many copies of its bytes as make a working set that no cache holds.
struct Ring {
  std::unique_ptr<const cpu::PackedMatrix> first;
  std::vector<std::unique_ptr<const cpu::PackedMatrix>> matrices;
  size_t bytes = 0;
  double multiply_adds = 0, pack_seconds = 0;

  Ring(QuantFormat format, const Options& o, size_t limit_bytes, ThreadPool& pool) {
    const std::vector<std::byte> data = random_weights(format, o.outputs, o.cols);
    const MatrixSource source{.name = "w", .format = format, .rows = o.outputs, .cols = o.cols, .data = data};
    const double start = seconds_now();
    first = cpu::pack_matrix({&source, 1}, pool);
    pack_seconds = seconds_now() - start;
    while (bytes < limit_bytes || matrices.empty()) {
      Buffer memory(first->bytes());
      std::memcpy(memory.data(), first->parts()[0].data, first->bytes());
      cpu::PackedPart part = first->parts()[0];
      part.data = memory.data();
      bytes += static_cast<size_t>(cpu::group_count(part)) * part.group_bytes;
      multiply_adds += static_cast<double>(part.outputs) * static_cast<double>(part.cols);
      const std::span<const std::byte> packed(memory.data(), first->bytes());
      matrices.push_back(std::make_unique<const cpu::PackedMatrix>(part.outputs, part.cols, std::move(memory), packed,
                                                                   std::vector<cpu::PackedPart>{part}));
    }
  }
};

struct Limits {
  double read_bytes_per_second, multiply_adds_per_second;
};

class Bench {
 public:
  explicit Bench(const Options& o)
      : o_(o), pool_(o.threads > 0 ? o.threads : usable_processors()), best_(*cpu::find_kernels(Isa::kAuto)) {}

  void run() {
    fmt::print("machine  {}, {} threads, kernels up to {}\n", processor_name(), pool_.size(), best_.name);
    fmt::print("matrices {} x {} in a ring of {} MB; medians of {} rounds\n", o_.outputs, o_.cols, o_.megabytes, o_.rounds);
    fmt::print("limits   read = memory bandwidth, dot = byte products ({}); both measured in every round\n\n", best_.name);
    fmt::print("{:7} {:7} {:>5} {:>9} {:>7} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>8}\n", "format", "isa", "rows", "ms",
               "GB/s", "GMAC/s", "read", "dot", "share", "of read", "of dot", "x 1 row");
    for (const std::string& format : o_.formats) {
      const auto f = format_from_name(format);
      if (!f) {
        fmt::print("{}: unknown format\n", format);
        continue;
      }
      const Ring ring(*f, o_, static_cast<size_t>(o_.megabytes) << 20, pool_);
      fmt::print("{:7} packed at {:.0f} million weights per second, {:.3f} of the file's bytes\n", format,
                 static_cast<double>(o_.outputs * o_.cols) / ring.pack_seconds * 1e-6,
                 static_cast<double>(ring.bytes) / static_cast<double>(ring.matrices.size()) /
                     (static_cast<double>(o_.outputs) * static_cast<double>(row_bytes(*f, o_.cols))));
      for (const std::string& isa : o_.isas) measure(*f, ring, isa);
    }
  }

 private:
  Limits limits(const Ring& ring) {
    const double start = seconds_now();
    pool_.parallel_for(static_cast<int64_t>(ring.matrices.size()), 1, [&](int64_t begin, int64_t end, int thread) {
      uint64_t sum = 0;
      for (int64_t i = begin; i < end; ++i) {
        const cpu::PackedMatrix& m = *ring.matrices[static_cast<size_t>(i)];
        sum += best_.probe.read_bytes(m.parts()[0].data, m.bytes() / 512 * 512);
      }
      sink_[thread] = static_cast<int32_t>(sum);
    });
    const double middle = seconds_now();
    int64_t count[64] = {};
    pool_.parallel_for(pool_.size(), 1, [&](int64_t, int64_t, int thread) {
      count[thread] = best_.probe.dot_bytes(o_.dot_steps, sink_ + 16 * thread);
    });
    const double end = seconds_now();
    double total = 0;
    for (int64_t c : count) total += static_cast<double>(c);
    return {static_cast<double>(ring.bytes) / (middle - start), total / (end - middle)};
  }

  void measure(QuantFormat format, const Ring& ring, const std::string& isa_name) {
    const Isa isa = isa_name == "avx512" ? Isa::kAvx512 : isa_name == "avx2" ? Isa::kAvx2 : Isa::kScalar;
    const cpu::KernelTable* kernels = cpu::find_kernels(isa);
    if (!kernels) {
      fmt::print("{:7} {:7} this processor has no {}\n", format_info(format).name, isa_name, isa_name);
      return;
    }
    cpu::Products products(*kernels, pool_);
    struct Series {
      int rows;
      size_t matrices;  // long passes take a part of the ring
      std::vector<double> seconds, limit, read, dot;
    };
    std::vector<Series> all;
    for (int rows : o_.rows) all.push_back({.rows = rows, .matrices = ring.matrices.size()});
    const int most = *std::max_element(o_.rows.begin(), o_.rows.end());
    Buffer x_memory(static_cast<size_t>(most * o_.cols) * sizeof(float)), out_memory(static_cast<size_t>(most * o_.outputs) * sizeof(float));
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < most * o_.cols; ++i) x_memory.view(1, most * o_.cols).f32()[i] = normal(random);

    for (int round = -1; round < o_.rounds; ++round) {
      for (Series& s : all) {
        const Limits l = limits(ring);
        const double part = static_cast<double>(s.matrices) / static_cast<double>(ring.matrices.size());
        const double start = seconds_now();
        for (size_t i = 0; i < s.matrices; ++i)
          products.linear(x_memory.view(s.rows, o_.cols), *ring.matrices[i], out_memory.view(s.rows, o_.outputs));
        const double seconds = seconds_now() - start;
        if (round < 0) {  // the first round warms up and decides how much of the ring a pass takes
          while (s.matrices > 1 && seconds * static_cast<double>(s.matrices) / static_cast<double>(ring.matrices.size()) >
                                       o_.slow_limit) s.matrices /= 2;
          continue;
        }
        const double bytes = part * static_cast<double>(ring.bytes), macs = part * s.rows * ring.multiply_adds;
        s.seconds.push_back(seconds / part);
        s.limit.push_back(std::max(bytes / l.read_bytes_per_second, macs / l.multiply_adds_per_second) / seconds);
        s.read.push_back(l.read_bytes_per_second);
        s.dot.push_back(l.multiply_adds_per_second);
      }
    }
    const double low = o_.best ? 0.0 : 0.5, high = o_.best ? 1.0 : 0.5;
    const double one = quantile(all[0].seconds, low) / all[0].rows;
    for (const Series& s : all) {
      const double seconds = quantile(s.seconds, low), read = quantile(s.read, high), dot = quantile(s.dot, high);
      const double bytes = static_cast<double>(ring.bytes), macs = s.rows * ring.multiply_adds;
      const double share = o_.best ? std::max(bytes / read, macs / dot) / seconds : quantile(s.limit, 0.5);
      fmt::print("{:7} {:7} {:5} {:9.3f} {:7.1f} {:8.1f} {:8.1f} {:8.1f} {:6.1f}% {:6.1f}% {:6.1f}% {:8.2f}\n",
                 format_info(format).name, kernels->name, s.rows, seconds * 1e3, bytes / seconds * 1e-9, macs / seconds * 1e-9,
                 read * 1e-9, dot * 1e-9, share * 100, bytes / seconds / read * 100, macs / seconds / dot * 100, seconds / one);
      std::fflush(stdout);
    }
    fmt::print("\n");
  }

  Options o_;
  ThreadPool pool_;
  const cpu::KernelTable& best_;
  int32_t sink_[64 * 16] = {};
};

}  // namespace
}  // namespace foretoken

int main(int argc, char** argv) {
  foretoken::Options o;
  CLI::App app("Products of packed matrices against the limits of this machine");
  app.add_option("--format", o.formats, "weight formats")->delimiter(',')->capture_default_str();
  app.add_option("--isa", o.isas, "instruction sets")->delimiter(',')->check(CLI::IsMember({"avx512", "avx2", "scalar"}));
  app.add_option("--rows", o.rows, "row counts")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--threads", o.threads, "threads (0: all)")->check(CLI::Range(0, 64));
  app.add_option("--rounds", o.rounds, "measured rounds")->check(CLI::PositiveNumber);
  app.add_option("--outputs", o.outputs, "matrix rows")->check(CLI::PositiveNumber);
  app.add_option("--cols", o.cols, "matrix columns, a multiple of 256")->check(CLI::PositiveNumber);
  app.add_option("--megabytes", o.megabytes, "packed bytes that one pass reads")->check(CLI::PositiveNumber);
  app.add_option("--slow-limit", o.slow_limit, "seconds after which a pass takes only a part of the ring");
  app.add_flag("--best", o.best, "report the fastest round instead of medians: for short passes on a busy machine");
  app.add_option("--dot-steps", o.dot_steps, "length of the byte-product probe");
  CLI11_PARSE(app, argc, argv);
  if (o.cols % 256 != 0) {
    fmt::print(stderr, "--cols {} is not a multiple of 256, which block formats need.\n", o.cols);
    return 2;
  }
  foretoken::Bench(o).run();
  return 0;
}
