// What is free for an account is the limit less what all others use or keep as their floors.
#include "engine/memory_ledger.h"

#include <algorithm>

#include "base/check.h"

namespace foretoken {

MemoryLedger::AccountId MemoryLedger::open(std::string name, uint64_t planned, uint64_t floor) {
  CHECK(floor <= planned);
  uint64_t floors = floor;
  for (const Account& account : accounts_) floors += account.floor;
  CHECK(floors <= limit_);
  accounts_.push_back({.name = std::move(name), .planned = planned, .floor = floor});
  return accounts_.size() - 1;
}

void MemoryLedger::add_reclaimer(AccountId account, Reclaimer reclaimer) {
  CHECK(account < accounts_.size());
  sources_.push_back({account, std::move(reclaimer)});
}

uint64_t MemoryLedger::used() const {
  uint64_t sum = 0;
  for (const Account& account : accounts_) sum += account.used;
  return sum;
}

// What the account may use in all, within its own limit and beside the others.
uint64_t MemoryLedger::free_for(AccountId account) const {
  uint64_t others = 0;
  for (AccountId id = 0; id < accounts_.size(); ++id)
    if (id != account) others += std::max(accounts_[id].used, accounts_[id].floor);
  return limit_ - std::min(limit_, others);
}

bool MemoryLedger::fits(AccountId account, uint64_t bytes) const {
  const Account& a = accounts_[account];
  const uint64_t most = std::min(a.planned, free_for(account));
  return a.used <= most && bytes <= most - a.used;
}

void MemoryLedger::note_peak(AccountId account) {
  Account& a = accounts_[account];
  a.peak = std::max(a.peak, a.used);
  peak_ = std::max(peak_, used());
}

bool MemoryLedger::take(AccountId account, uint64_t bytes) {
  CHECK(account < accounts_.size());
  CHECK(!reclaiming_);
  Account& a = accounts_[account];
  reclaiming_ = true;
  for (const Source& source : sources_) {
    if (fits(account, bytes)) break;
    if (bytes > a.planned) break;  // nothing would help
    const uint64_t most = std::min(a.planned, free_for(account)), wanted = a.used + bytes - std::min(a.used + bytes, most);
    const bool own_limit = a.used > a.planned - bytes;
    if (!own_limit || source.account == account) source.reclaim(wanted);
  }
  reclaiming_ = false;
  if (!fits(account, bytes)) {
    ++a.refused;
    return false;
  }
  a.used += bytes;
  note_peak(account);
  return true;
}

void MemoryLedger::give_back(AccountId account, uint64_t bytes) {
  CHECK(account < accounts_.size());
  CHECK(bytes <= accounts_[account].used);
  accounts_[account].used -= bytes;
}

void MemoryLedger::measured(AccountId account, uint64_t used) {
  CHECK(account < accounts_.size());
  accounts_[account].used = used;
  note_peak(account);
}

}  // namespace foretoken
