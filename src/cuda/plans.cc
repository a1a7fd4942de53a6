// Numbers of the H200 were measured there (docs/gpu.md); other devices get what fits.
#include "cuda/plans.h"

#include <bit>

namespace foretoken::cuda {
namespace {

constexpr size_t kStaticShared = 1024;  // of a block of few_rows at most: its barriers
constexpr int kManyWarps = 10;          // that need no more than two stages: what is requested first arrives first

// Of one multiprocessor, all blocks together. Eight columns leave room for the small kernels between products.
constexpr size_t most_few_rows_shared(int blocks) { return blocks == 1 ? 208 * 1024 : 226 * 1024; }

size_t fixed_bytes(int blocks, int warps) {
  return static_cast<size_t>(warps) *
         (static_cast<size_t>(buffers_of(blocks) * values_of(blocks)) * sizeof(float) + (blocks > 1 ? kKeptBytes : 0));
}

// Dynamic shared memory of one of `resident` blocks.
size_t few_rows_room(int blocks, int resident, const Limits& limits) {
  const size_t n = static_cast<size_t>(resident), own = kStaticShared + kReservedShared;
  const size_t share = limits.multiprocessor_shared / n, most = limits.block_shared - kStaticShared;
  return std::min({most_few_rows_shared(blocks) / n, most, share > own ? share - own : 0});
}

// Blocks that follow each other on a multiprocessor.
double rounds_of(double blocks, const Limits& limits) {
  const double rounds = blocks / limits.multiprocessors;
  return rounds <= 1 ? 1 : rounds + 0.5;
}

}  // namespace

FewRowsPlan plan_few_rows(const FewRowsTask& task, const Limits& limits) {
  FewRowsPlan plan;
  plan.warps = task.slices.most();
  const size_t fixed = fixed_bytes(task.blocks, plan.warps),
               stage = static_cast<size_t>(plan.warps) * static_cast<size_t>(task.unit_bytes);
  // Blocks on a multiprocessor: few idle in the last round, many warps to hide latencies.
  const int64_t items = int64_t{task.tiles} * task.slices.count * task.items * task.groups;
  const int most = std::clamp(task.residents, 1, task.experts ? 24 : 4);
  double best = 0;
  for (int n = 1; n <= most && few_rows_room(task.blocks, n, limits) >= fixed + stage; ++n) {
    const int64_t blocks = int64_t{n} * limits.multiprocessors, rounds = (items + blocks - 1) / blocks;
    const double busy = static_cast<double>(items) / static_cast<double>(rounds * blocks),
                 score = busy * n * plan.warps / (n * plan.warps + 6);
    if (score > best) plan.resident = n, best = score;
  }
  const size_t room = few_rows_room(task.blocks, plan.resident, limits);
  plan.stages =
      std::min(static_cast<int>((room - std::min(room, fixed)) / stage), plan.warps >= kManyWarps ? 2 : kMostStages);
  if (plan.stages > 0) plan.stages = static_cast<int>(std::bit_floor(static_cast<unsigned>(plan.stages)));
  plan.places = static_cast<int>(
      std::clamp<int64_t>(int64_t{plan.resident} * limits.multiprocessors / (task.slices.count * task.groups), 1,
                          int64_t{task.tiles} * task.items));
  plan.shared = static_cast<size_t>(plan.stages) * stage + fixed;
  return plan;
}

int few_rows_at_once(const Slices& slices, int unit_bytes, const Limits& limits) {
  const size_t need = fixed_bytes(2, slices.most()) + static_cast<size_t>(slices.most() * unit_bytes);
  return few_rows_room(2, 1, limits) >= need ? kFewRows : 8;
}

int wide_groups(int64_t items_of_one, int most, const Limits& limits) {
  int best = 1;
  double least = 0;
  for (int groups = 1; groups <= most; ++groups) {
    const int64_t items = (items_of_one + groups - 1) / groups,
                  rounds = (items + limits.multiprocessors - 1) / limits.multiprocessors;
    const double cost = static_cast<double>(rounds) * (groups + 1.5);
    if (groups == 1 || cost < least) best = groups, least = cost;
  }
  return best;
}

namespace {

int64_t places(int64_t units) { return units <= 2 ? units : units <= 4 ? 4 : (units + 7) / 8 * 8; }
int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

}  // namespace

int items_of(const SpanLane& lane, int group, int tiles) {
  const int items = static_cast<int>(parts(int64_t{lane.rows} * group, 16 * tiles));
  return lane.tree ? std::max(items, lane.rows) : items;
}

SpanPlan plan_spans(const SpanShape& shape, const Limits& limits) {
  const int group = shape.query_heads / shape.kv_heads;
  SpanPlan plan{.units = places(parts(shape.most_visible, kSpanTokens))};
  if (!tiles_run(group, shape.dim, shape.format)) return plan;
  const auto fits = [&](int tiles, int stages) {
    return tile_bytes(shape.dim, tiles, stages) + kTileStatic <= limits.block_shared;
  };
  int64_t rows = 0, most_rows = 0;
  for (const SpanLane& lane : shape.lanes) rows += lane.rows, most_rows = std::max<int64_t>(most_rows, lane.rows);
  const int least = static_cast<int>(parts(group, 16));
  int most = static_cast<int>(std::clamp<int64_t>(parts(most_rows * group, 16), least, 4));
  while (most > least && !fits(most, 2)) --most;
  if (!fits(most, 2)) return plan;
  // Few tiles of queries to a block of threads read keys and values more often and take less time while there are
  // multiprocessors for them. A group by one block needs no merge of its spans; spans side by side take less time
  // likewise.
  const int64_t spans = places(parts(shape.most_visible, kTileSpan)),
                groups = places(parts(shape.most_visible, kTileSpan * kTileGroup));
  const double parts_time = static_cast<double>(rows) * shape.query_heads * shape.dim / 4e5;
  double best = 0;
  for (int tiles = least; tiles <= most; ++tiles) {
    int items = 0;
    for (const SpanLane& lane : shape.lanes) items += items_of(lane, group, tiles);
    const double blocks = static_cast<double>(items) * shape.kv_heads, span_time = 3.5 + 3.7 * tiles;
    const auto consider = [&](int64_t units, bool apart) {
      const double spans_of_unit = apart ? 1 : static_cast<double>(std::min<int64_t>(spans, kTileGroup)),
                   cost = rounds_of(blocks * static_cast<double>(units), limits) * (7 + span_time * spans_of_unit) +
                          (units > 1 ? 4 + parts_time * static_cast<double>(units) : 0);
      if (plan.tiles > 0 && cost >= best) return;
      best = cost;
      plan.tiles = tiles;
      plan.items = items;
      plan.units = units;
      plan.unit_tokens = apart ? kTileSpan : kTileSpan * kTileGroup;
      plan.units_of_group = apart ? kTileGroup : 1;
    };
    consider(groups, false);
    consider(spans, true);
  }
  plan.stages = 2;
  while (plan.stages < kMostTileStages && fits(plan.tiles, plan.stages + 1)) ++plan.stages;
  return plan;
}

}  // namespace foretoken::cuda
