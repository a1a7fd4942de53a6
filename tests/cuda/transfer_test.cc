// Transfers beside operators on the CUDA backend: bytes of many pieces both ways, behind what was enqueued before, and
// a lane that went to the host and back. Without a device nothing runs.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "engine/host_tier.h"
#include "support/cuda_device.h"
#include "support/test_model.h"

namespace foretoken::test {
namespace {

class CudaTransfers : public DeviceTest {};

View floats(const Buffer& buffer, size_t first, int64_t count) {
  return View::of(reinterpret_cast<float*>(buffer.data()) + first, 1, count);
}

// Scattered pieces of odd sizes: out behind an operator that is still enqueued, back into cleared memory, while other
// operators run. The sources hold values that the operator has made, so that a copy that began early would show.
TEST_F(CudaTransfers, BytesBehindOperators) {
  Backend& b = *cuda();
  constexpr int64_t kFloats = 1 << 22;
  const Buffer from = b.allocate(kFloats * 4), back = b.allocate(kFloats * 4), other = b.allocate(kFloats * 4);
  const Buffer host = b.allocate_staging(kFloats * 4), staging = b.allocate_staging(kFloats * 4);
  auto* values = reinterpret_cast<float*>(host.data());
  for (int round = 0; round < 4; ++round) {
    for (int64_t i = 0; i < kFloats; ++i) values[i] = static_cast<float>((i * 37 + round) % 65537);
    b.upload(floats(host, 0, kFloats), floats(from, 0, kFloats));
    b.clear(floats(back, 0, kFloats));
    std::memset(staging.data(), 0, staging.size());
    for (int i = 0; i < 8; ++i) b.scale(floats(from, 0, kFloats), i % 2 == 0 ? 2.0f : 0.5f);
    b.scale(floats(from, 0, kFloats), 4.0f);
    std::vector<TransferPiece> out, in;
    for (size_t at = 0, n = 0; at < kFloats; ++n) {  // every second piece
      const size_t count = std::min<size_t>(1 + n * 997 % 40000, kFloats - at);
      if (n % 2 == 0) out.push_back({from.data() + at * 4, staging.data() + at * 4, count * 4});
      if (n % 2 == 0) in.push_back({staging.data() + at * 4, back.data() + at * 4, count * 4});
      at += count;
    }
    const TransferId away = b.begin_transfer(out, TransferWay::kToStaging);
    for (int i = 0; i < 20; ++i) b.scale(floats(other, 0, kFloats), 3.0f);  // beside it
    if (round % 2 == 0) b.finish_transfer(away);
    while (!b.transfer_finished(away)) {
    }
    const TransferId returned = b.begin_transfer(in, TransferWay::kFromStaging);
    for (int i = 0; i < 20; ++i) b.scale(floats(other, 0, kFloats), 3.0f);
    if (round % 2 == 1) b.finish_transfer(returned);
    while (!b.transfer_finished(returned)) {
    }
    std::vector<float> result(kFloats);
    b.download(floats(back, 0, kFloats), View::of(result.data(), 1, kFloats));
    for (size_t at = 0, n = 0; at < kFloats; ++n) {
      const size_t count = std::min<size_t>(1 + n * 997 % 40000, kFloats - at);
      for (size_t i = at; i < at + count; ++i)
        ASSERT_EQ(result[i], n % 2 == 0 ? values[i] * 4 : 0.0f) << "round " << round << " float " << i;
      at += count;
    }
  }
}

// A lane's checkpoint to the host, its pages and memory overwritten, and back: the restored lane has the same hash, and
// another one's is different.
TEST_F(CudaTransfers, ALaneComesBack) {
  auto made = make_cuda_backend();
  ASSERT_TRUE(made.ok());
  const std::filesystem::path source = std::filesystem::path(FORETOKEN_SOURCE_DIR) / "models" / "demo-dense",
                              copy = "models/demo-dense";
  const auto m =
      load_model(std::filesystem::exists(source) ? source : copy, {.kv_format = KvFormat::kBF16}, *std::move(made));
  PagePool& pool = m->target->pages();
  HostTier tier(pool, size_t{1} << 30);
  const auto run = [&](LaneState& lane, int tokens, int seed) {
    std::vector<RowInput> inputs;
    for (int i = 0; i < tokens; ++i)
      inputs.push_back({.token = 300 + (i * 37 + seed * 101) % 900, .position = {i, i, i}});
    const LaneRows rows{0, tokens, lane.length(), tokens, {}};
    LaneState* lanes[] = {&lane};
    m->target->forward({inputs, {&rows, 1}, {}}, lanes);
    std::vector<int> path(static_cast<size_t>(tokens));
    for (int i = 0; i < tokens; ++i) path[static_cast<size_t>(i)] = i;
    m->target->commit(lane, path);
  };
  auto lane = m->target->make_lane(), next = m->target->make_lane();
  run(*lane, 150, 1);
  const std::string hash = lane->hash();
  std::unique_ptr<Checkpoint> checkpoint = lane->give_up();
  HostTier::Moving<HostImage> out = tier.begin_out(*checkpoint, {});
  run(*next, 100, 2);  // beside it
  ASSERT_NE(next->hash(), hash);
  tier.finish(out.transfer);
  EXPECT_GT(out.bytes, checkpoint->recurrent_bytes());
  checkpoint.reset();
  next->reset();
  run(*next, 200, 3);  // in the same pages
  next->reset();
  HostTier::Moving<Checkpoint> in = tier.begin_in(*out.copy, {});
  while (!tier.finished(in.transfer)) {
  }
  lane->restore(*in.copy);
  EXPECT_EQ(lane->hash(), hash);
}

// Prints how fast pages of 2 MiB and of 64 KiB cross.
TEST_F(CudaTransfers, Speed) {
  Backend& b = *cuda();
  constexpr size_t kBytes = size_t{1} << 30;
  const Buffer device = b.allocate(kBytes), host = b.allocate_staging(kBytes);
  for (const size_t piece : {size_t{2} << 20, size_t{64} << 10})
    for (const TransferWay way : {TransferWay::kToStaging, TransferWay::kFromStaging}) {
      std::vector<TransferPiece> pieces;
      for (size_t at = 0; at < kBytes; at += piece) {
        const size_t other = kBytes - piece - at;  // so that nothing continues
        if (way == TransferWay::kToStaging) pieces.push_back({device.data() + at, host.data() + other, piece});
        else pieces.push_back({host.data() + at, device.data() + other, piece});
      }
      double best = 1e9, begun = 1e9;
      for (int round = 0; round < 3; ++round) {
        const auto begin = std::chrono::steady_clock::now();
        const TransferId id = b.begin_transfer(pieces, way);
        begun = std::min(begun, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        b.finish_transfer(id);
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      }
      std::printf("1 GiB in pieces of %zu KiB, %s: %.1f GB/s, begun in %.2f ms\n", piece >> 10,
                  way == TransferWay::kToStaging ? "to the host" : "from the host",
                  static_cast<double>(kBytes) / best / 1e9, begun * 1e3);
    }
}

}  // namespace
}  // namespace foretoken::test
