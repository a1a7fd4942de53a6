// MemoryLedger: who uses how much of the planned memory now, and who gives some back when it is short. Accounts have names, limits and, for
// working memory, a floor that no other account can take. It owns no memory. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace foretoken {

class MemoryLedger {
 public:
  struct Account {
    std::string name;
    uint64_t planned = 0;  // its limit
    uint64_t floor = 0;    // kept for it whether used or not
    uint64_t used = 0, peak = 0;
    uint64_t refused = 0;  // calls of take that failed
  };
  using AccountId = size_t;
  // Gives back at least `wanted` bytes of its account if it can, by give_back; what it frees may be more or less.
  using Reclaimer = std::function<void(uint64_t wanted)>;

  // All accounts together use at most `limit`.
  explicit MemoryLedger(uint64_t limit) : limit_(limit) {}
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  AccountId open(std::string name, uint64_t planned, uint64_t floor = 0);
  // Reclaimers are asked in the order in which they were added.
  void add_reclaimer(AccountId account, Reclaimer reclaimer);

  // Books `bytes`, after reclaiming where that helps: from the account itself when its own limit is reached, from all when the whole is. False
  // and nothing booked when it does not fit. Not to be called by a reclaimer.
  bool take(AccountId account, uint64_t bytes);
  void give_back(AccountId account, uint64_t bytes);
  // For what is measured instead of asked for; may exceed the plan, which the report then shows.
  void measured(AccountId account, uint64_t used);

  uint64_t limit() const { return limit_; }
  uint64_t used() const;
  uint64_t peak() const { return peak_; }
  // Planned against actual, in the order of opening.
  const std::vector<Account>& accounts() const { return accounts_; }

 private:
  uint64_t free_for(AccountId account) const;
  bool fits(AccountId account, uint64_t bytes) const;
  void note_peak(AccountId account);

  struct Source {
    AccountId account;
    Reclaimer reclaim;
  };
  uint64_t limit_, peak_ = 0;
  std::vector<Account> accounts_;
  std::vector<Source> sources_;
  bool reclaiming_ = false;
};

}  // namespace foretoken
