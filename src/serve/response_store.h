// ResponseStore: answered responses by id, so that later requests can go on from them. Bounded in bytes: the ones used longest ago go first.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/json.h"

namespace foretoken::serve {

struct StoredResponse {
  OrderedJson body;      // as it was answered
  OrderedJson messages;  // the conversation with the answer, in the form of templates
  size_t bytes = 0;      // of both as text, about
};

// Any thread may call it.
class ResponseStore {
 public:
  explicit ResponseStore(size_t limit_bytes) : limit_(limit_bytes) {}
  // One that alone is larger than the limit is not kept.
  void put(const std::string& id, StoredResponse response);
  std::shared_ptr<const StoredResponse> get(const std::string& id);  // null: none, or gone
  bool remove(const std::string& id);
  size_t bytes() const;
  size_t count() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
  };
  bool remove_locked(const std::string& id);
  mutable std::mutex mutex_;
  size_t limit_, bytes_ = 0;
  std::list<Entry> order_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_id_;
};

}  // namespace foretoken::serve
