// Holds the place of the disk tier until it is there: to be deleted with its arrival.
#include "engine/disk_tier.h"
namespace foretoken {
struct DiskTier::State {};
DiskTier::~DiskTier() = default;
std::optional<DiskFault> DiskTier::store(const EntrySource&) { return {}; }
std::optional<DiskMatch> DiskTier::find(std::span<const TokenId>, int64_t) { return {}; }
DiskLoadId DiskTier::begin_load(const DiskMatch&, std::span<const TokenId>) { return 0; }
std::vector<DiskLoad> DiskTier::poll() { return {}; }
void DiskTier::discard(uint64_t) {}
DiskTierStatistics DiskTier::statistics() const { return {}; }
}
