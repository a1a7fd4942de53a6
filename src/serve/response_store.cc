// A list by use and an index.
#include "serve/response_store.h"

namespace foretoken::serve {

void ResponseStore::put(const std::string& id, StoredResponse response) {
  const std::lock_guard lock(mutex_);
  remove_locked(id);
  if (response.bytes > limit_) return;
  bytes_ += response.bytes;
  order_.push_front({id, std::make_shared<const StoredResponse>(std::move(response))});
  by_id_[id] = order_.begin();
  while (bytes_ > limit_) remove_locked(std::string(order_.back().id));
}

std::shared_ptr<const StoredResponse> ResponseStore::get(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return nullptr;
  order_.splice(order_.begin(), order_, it->second);
  return it->second->response;
}

bool ResponseStore::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return remove_locked(id);
}

bool ResponseStore::remove_locked(const std::string& id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return false;
  bytes_ -= it->second->response->bytes;
  order_.erase(it->second);
  by_id_.erase(it);
  return true;
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

size_t ResponseStore::count() const {
  const std::lock_guard lock(mutex_);
  return order_.size();
}

}  // namespace foretoken::serve
