// ValueSet: the values of enum and const, in their order, and whether a value is one of them without a look at each.
// Equal is as JSON means it: 1 and 1.0 are one value.
#pragma once

#include <unordered_set>
#include <vector>

#include "base/json.h"

namespace foretoken {

class ValueSet {
 public:
  // The values are borrowed. One that is there already is left out.
  void add(const OrderedJson& value) {
    if (index_.insert(&value).second) list_.push_back(&value);
  }
  bool contains(const OrderedJson& value) const { return index_.contains(&value); }
  // Drops what `other` does not contain.
  void keep_common(const ValueSet& other) {
    std::erase_if(list_, [&](const OrderedJson* v) { return !other.contains(*v) && index_.erase(v) > 0; });
  }
  bool empty() const { return list_.empty(); }
  size_t size() const { return list_.size(); }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }

 private:
  struct Hash {
    size_t operator()(const OrderedJson* value) const { return hash(*value); }
    static size_t hash(const OrderedJson& value);
  };
  struct Equal {
    bool operator()(const OrderedJson* a, const OrderedJson* b) const { return *a == *b; }
  };
  std::vector<const OrderedJson*> list_;
  std::unordered_set<const OrderedJson*, Hash, Equal> index_;
};

inline size_t ValueSet::Hash::hash(const OrderedJson& value) {
  const auto mixed = [](size_t seed, size_t more) { return (seed ^ more) * 0x9E3779B97F4A7C15u; };
  if (value.is_string()) return std::hash<std::string>()(value.get_ref<const std::string&>());
  if (value.is_number()) return std::hash<double>()(value.get<double>());
  size_t h = mixed(static_cast<size_t>(value.type()), value.size());
  if (value.is_boolean()) return mixed(h, value.get<bool>());
  if (value.is_structured())
    for (const OrderedJson& child : value) h = mixed(h, hash(child));
  return h;
}

}  // namespace foretoken
