// The life of an entry's file: found at the start, written, given up for room, removed when it is of no use. Reading one back is in
// disk_folder_load.cc.
#include "engine/disk_folder.h"

#include <fmt/format.h>

#include <algorithm>

namespace foretoken {
namespace {

constexpr auto kMeasureEvery = std::chrono::seconds(60);

std::string folder_name(const Digest& fingerprint) { return hex(fingerprint).substr(0, kFolderNameDigits); }

}  // namespace

DiskFolder::DiskFolder(Options options, DiskFiles& files, const Clock& clock)
    : options_(std::move(options)), folder_(options_.root / folder_name(options_.fingerprint)), files_(files), clock_(clock),
      others_(files, options_.root, folder_name(options_.fingerprint)) {}

DiskFolder::Mode DiskFolder::mode() const {
  const std::lock_guard guard(mutex_);
  return mode_;
}

std::string DiskFolder::note() const {
  const std::lock_guard guard(mutex_);
  return note_;
}

void DiskFolder::count(DiskTierStatistics& statistics) const {
  const std::lock_guard guard(mutex_);
  statistics.entries = index_.stored_count();
  statistics.bytes = index_.stored_bytes() + aside_bytes_ + passing_bytes_;
  statistics.limit_bytes = options_.limit_bytes;
  statistics.other_bytes = other_bytes_;
  statistics.evicted = evicted_;
  statistics.bytes_read = bytes_read_;
  for (size_t i = 0; i < kDiskFaults; ++i) statistics.faults[i] += faults_[i];
}

int64_t DiskFolder::next_use_ns(size_t count) {
  const int64_t first = std::max(files_.now_ns(), last_use_ns_ + 1);
  last_use_ns_ = first + static_cast<int64_t>(count) - 1;
  return first;
}

// ---- Opening

void DiskFolder::open() {
  CHECK(!lock_);
  Mode mode = Mode::kReads;
  std::string note;
  if (const Status made = files_.make_folder(folder_); !made) {
    mode = Mode::kOff;
    note = made.error().message;
  } else if (auto lock = files_.lock(folder_ / kLockName); !lock) {
    note = lock.error().message + "; entries are read, none are added";
  } else if (!*lock) {
    note = fmt::format("{}: another process adds entries here; they are read, none are added until it ends", folder_.string());
  } else {
    lock_ = *std::move(lock);
    mode = Mode::kWrites;
  }
  if (mode == Mode::kWrites) {  // what a reader knew may have been replaced
    const std::lock_guard guard(mutex_);
    index_.clear();
    ignored_.clear();
  }
  if (mode != Mode::kOff) {
    if (const Status scanned = scan(mode == Mode::kWrites); !scanned) {
      mode = Mode::kOff;
      note = scanned.error().message;
      lock_.reset();
    }
  }
  if (mode == Mode::kWrites) {
    measure_others();
    (void)make_room(0, 0);  // after the limit became smaller; a file that cannot be removed is tried again before the next write
  }
  const std::lock_guard guard(mutex_);
  mode_ = mode;
  note_ = note;
}

Status DiskFolder::scan(bool writer) {
  ASSIGN_OR_RETURN(const std::vector<DiskFiles::Listed> listed, files_.list(folder_));
  std::set<std::string> known;
  {
    const std::lock_guard guard(mutex_);
    for (const Digest& key : index_.keys()) known.insert(entry_file_name(key));
  }
  std::vector<Scanned> found;
  for (const DiskFiles::Listed& file : listed) {
    if (file.folder || known.erase(file.name) > 0) continue;
    if (is_unfinished_file_name(file.name)) {
      if (writer) reject(file, DiskFault::kUnfinished, writer);
      continue;
    }
    if (!is_entry_file_name(file.name) || ignored_.contains(file.name)) continue;
    Scanned scanned{file, {}};
    if (const auto fault = read_scanned(file, scanned.header)) reject(file, *fault, writer);
    else found.push_back(std::move(scanned));
  }
  // Parents first.
  std::sort(found.begin(), found.end(), [](const Scanned& a, const Scanned& b) { return a.header.length < b.header.length; });
  for (const Scanned& scanned : found)
    if (const auto fault = index_scanned(scanned)) reject(scanned.file, *fault, writer);

  const std::lock_guard guard(mutex_);
  for (const Digest& key : index_.keys())
    if (known.contains(entry_file_name(key)))  // not there any more
      if (const DiskIndex::Node* gone = index_.by_key(key)) index_.remove(gone->id);
  return {};
}

std::optional<DiskFault> DiskFolder::read_scanned(const DiskFiles::Listed& file, EntryHeader& header) {
  std::unique_ptr<DiskFiles::Reader> reader;
  if (const auto fault = read_header(files_, path_of(file.name), reader, header)) return fault;
  if (header.fingerprint != options_.fingerprint || header.page_bytes != options_.page_bytes) return DiskFault::kForeign;
  if (entry_file_name(header.key) != file.name) return DiskFault::kDamaged;
  return std::nullopt;
}

std::optional<DiskFault> DiskFolder::index_scanned(const Scanned& scanned) {
  const EntryHeader& header = scanned.header;
  const int64_t used_ns = std::min(scanned.file.modified_ns, files_.now_ns());
  const std::lock_guard guard(mutex_);
  const DiskIndex::Node* parent = nullptr;
  if (header.parent_length > 0) {
    parent = index_.by_key(header.parent_key);
    if (!parent) return DiskFault::kNoParent;
    if (parent->length != header.parent_length) return DiskFault::kDamaged;
  }
  index_.add({.parent = parent ? parent->id : 0,
              .key = header.key,
              .length = header.length,
              .stem = header.stem,
              .path = header.path,
              .disk_bytes = blocks_of(scanned.file.bytes),
              .state_bytes = header.state_bytes,
              .drafter_bytes = header.drafter_bytes,
              .last_used_ns = used_ns,
              .stored = true});
  last_use_ns_ = std::max(last_use_ns_, used_ns);
  return std::nullopt;
}

void DiskFolder::reject(const DiskFiles::Listed& file, DiskFault fault, bool writer) {
  const uint64_t bytes = blocks_of(file.bytes);
  {
    const std::lock_guard guard(mutex_);
    if (!writer && (fault == DiskFault::kNoParent || fault == DiskFault::kGone)) return;  // the writer is at work: look again later
    ++faults_[static_cast<size_t>(fault)];
    if (!writer) {
      ignored_.insert(file.name);
      return;
    }
    passing_bytes_ += bytes;
  }
  if (fault == DiskFault::kUnreadable) set_aside(file.name, bytes);
  else (void)remove_file(file.name, bytes);  // what cannot be removed is set aside
}

// ---- Removing

Status DiskFolder::remove_file(const std::string& name, uint64_t disk_bytes) {
  const Status removed = files_.remove(path_of(name));
  if (!removed) {
    set_aside(name, disk_bytes);
    return removed;
  }
  const std::lock_guard guard(mutex_);
  passing_bytes_ -= disk_bytes;
  return {};
}

void DiskFolder::set_aside(const std::string& name, uint64_t disk_bytes) {
  const std::lock_guard guard(mutex_);
  passing_bytes_ -= disk_bytes;
  if (aside_.emplace(name, disk_bytes).second) aside_bytes_ += disk_bytes;
}

void DiskFolder::remove_subtree(DiskIndex::Id id, DiskFault fault) {
  std::vector<DiskIndex::Node> removed;
  bool writer;
  {
    const std::lock_guard guard(mutex_);
    writer = mode_ == Mode::kWrites;
    removed = index_.remove(id);
    std::erase_if(removed, [](const DiskIndex::Node& node) { return !node.stored; });
    for (const DiskIndex::Node& node : removed) {
      ++faults_[static_cast<size_t>(node.id == id ? fault : DiskFault::kNoParent)];
      if (writer) passing_bytes_ += node.disk_bytes;
    }
  }
  if (!writer) return;
  for (const DiskIndex::Node& node : removed) {
    if (fault == DiskFault::kUnreadable) set_aside(entry_file_name(node.key), node.disk_bytes);
    else (void)remove_file(entry_file_name(node.key), node.disk_bytes);
  }
}

void DiskFolder::discard(DiskIndex::Id id) { remove_subtree(id, DiskFault::kDamaged); }

void DiskFolder::measure_others() {
  others_.measure();
  others_measured_ = clock_.now();
  const std::lock_guard guard(mutex_);
  other_bytes_ = others_.bytes();
}

Result<bool> DiskFolder::make_room(uint64_t bytes, uint64_t kept_bytes) {
  if (clock_.now() - others_measured_ > kMeasureEvery) measure_others();
  if (bytes + kept_bytes > options_.limit_bytes) return false;
  for (;;) {
    {
      const std::lock_guard guard(mutex_);
      if (index_.stored_bytes() + aside_bytes_ + passing_bytes_ + other_bytes_ + bytes <= options_.limit_bytes) {
        passing_bytes_ += bytes;
        return true;
      }
    }
    ASSIGN_OR_RETURN(const bool removed, remove_one());
    if (!removed) return false;
  }
}

// First what nobody uses, then the least recently used: of other fingerprints, or an own entry that no other continues.
Result<bool> DiskFolder::remove_one() {
  std::string name;
  uint64_t bytes = 0;
  bool other = false;
  {
    const std::lock_guard guard(mutex_);
    const DiskIndex::Node* leaf = index_.oldest_leaf();
    if (!aside_.empty()) {
      std::tie(name, bytes) = *aside_.begin();
      aside_.erase(aside_.begin());
      aside_bytes_ -= bytes;
    } else if (others_.oldest_ns() && (!leaf || *others_.oldest_ns() < leaf->last_used_ns)) {
      other = true;
    } else if (leaf) {
      name = entry_file_name(leaf->key);
      bytes = leaf->disk_bytes;
      index_.remove(leaf->id);
      ++evicted_;
    } else {
      return false;
    }
    passing_bytes_ += bytes;
  }
  if (!other) {
    TRY(remove_file(name, bytes));
    return true;
  }
  TRY(others_.remove_oldest());
  const std::lock_guard guard(mutex_);
  other_bytes_ = others_.bytes();
  return true;
}

// ---- Finding

std::optional<DiskMatch> DiskFolder::find(std::span<const TokenId> prompt, int64_t at_most) const {
  const std::lock_guard guard(mutex_);
  const DiskIndex::Node* node = index_.longest(prompt, at_most, DiskIndex::Include::kStored);
  if (!node) return std::nullopt;
  const uint64_t pages = static_cast<uint64_t>(pages_of(node->length)) * options_.page_bytes;
  return DiskMatch{.tokens = node->length,
                   .entry = node->id,
                   .host_bytes = pages + node->state_bytes + node->drafter_bytes + static_cast<uint64_t>(node->length) * sizeof(TokenId)};
}

DiskFolder::Place DiskFolder::place(std::span<const TokenId> tokens) {
  Place place;
  const std::lock_guard guard(mutex_);
  const auto length = static_cast<int64_t>(tokens.size());
  const DiskIndex::Node* node = index_.longest(tokens, length, DiskIndex::Include::kStoredAndQueued);
  if (node && node->length == length) {
    index_.touch(node->id, next_use_ns(index_.chain(node->id).size()));
    return {.taken = true};
  }
  if (node) {
    place.parent = node->id;
    place.parent_length = node->length;
  }
  place.hashes = DiskIndex::hashes_of(tokens);
  return place;
}

DiskIndex::Id DiskFolder::reserve(const Place& place, int64_t length, uint64_t state_bytes, uint64_t drafter_bytes) {
  const std::lock_guard guard(mutex_);
  if (place.parent != 0 && !index_.get(place.parent)) return 0;
  return index_.add({.parent = place.parent,
                     .length = length,
                     .stem = place.hashes.stem,
                     .path = place.hashes.path,
                     .state_bytes = state_bytes,
                     .drafter_bytes = drafter_bytes});
}

void DiskFolder::forget(DiskIndex::Id id) {
  const std::lock_guard guard(mutex_);
  index_.remove(id);
}

// ---- Writing

EntryHeader DiskFolder::header_of(const PendingEntry& entry) const {
  const std::span<const TokenId> tokens(entry.tokens);
  const auto shared = static_cast<size_t>(entry.parent_length);
  EntryHeader header{.fingerprint = options_.fingerprint,
                     .page_bytes = options_.page_bytes,
                     .length = static_cast<int64_t>(tokens.size()),
                     .parent_length = entry.parent_length,
                     .state_bytes = entry.state.bytes.size(),
                     .drafter_bytes = entry.drafter.bytes.size()};
  Sha256 hash;
  add_tokens(start_key(hash, options_.fingerprint), tokens.first(shared));
  if (shared > 0) header.parent_key = hash.digest();
  header.key = add_tokens(hash, tokens.subspan(shared)).digest();
  const auto hashes = DiskIndex::hashes_of(tokens);
  header.stem = hashes.stem;
  header.path = hashes.path;
  return header;
}

// An entry is written after the one it continues; either may have been removed meanwhile.
std::optional<DiskFault> DiskFolder::check_place(const PendingEntry& entry, const EntryHeader& header, uint64_t& kept_bytes) const {
  const std::lock_guard guard(mutex_);
  const DiskIndex::Node* node = index_.get(entry.id);
  if (!node) return DiskFault::kParentGone;
  for (const DiskIndex::Node& link : index_.chain(entry.id)) kept_bytes += link.disk_bytes;
  if (header.parent_length == 0) return std::nullopt;
  const DiskIndex::Node* parent = index_.get(node->parent);
  CHECK(parent != nullptr);  // it would have taken this one with it
  CHECK(parent->stored);     // it was queued before
  return parent->key == header.parent_key ? std::nullopt : std::optional(DiskFault::kOtherTokens);
}

Status DiskFolder::prepare_disk(uint64_t disk_bytes) {
  ASSIGN_OR_RETURN(const uint64_t free_bytes, files_.free_bytes(folder_));
  if (free_bytes >= disk_bytes && free_bytes - disk_bytes >= options_.least_free_bytes) return {};
  return Error{ErrorCode::kIo, fmt::format("{}: {} MiB are free, and {} MiB are left to others", folder_.string(), free_bytes >> 20,
                                           options_.least_free_bytes >> 20)};
}

Status DiskFolder::write_file(const EntryHeader& header, const EntryParts& parts) {
  const std::string name = entry_file_name(header.key);
  const std::string temporary = name + std::string(kUnfinishedSuffix);
  bool renamed = false;
  const auto write = [&]() -> Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<DiskFiles::Writer> file, files_.create(path_of(temporary)));
    TRY(write_entry(*file, header, parts));
    TRY(files_.rename(path_of(temporary), path_of(name)));
    renamed = true;
    return files_.sync_folder(folder_);
  };
  const Status written = write();
  if (!written) (void)remove_file(renamed ? name : temporary, blocks_of(header.file_bytes()));  // what cannot be removed is set aside
  return written;
}

DiskFolder::Written DiskFolder::write(const PendingEntry& entry) {
  EntryHeader header = header_of(entry);
  uint64_t kept_bytes = 0;
  if (const auto fault = check_place(entry, header, kept_bytes)) return {.fault = fault};
  const EntryParts parts{.tokens = std::span(entry.tokens).subspan(static_cast<size_t>(entry.parent_length)),
                         .pages = std::span(entry.pages.data(), entry.pages.size()),
                         .state = entry.state.bytes,
                         .drafter = entry.drafter.bytes};
  seal(header, parts);
  const uint64_t disk_bytes = blocks_of(header.file_bytes());
  const auto room = make_room(disk_bytes, kept_bytes);
  if (!room) return {.fault = DiskFault::kWriteFailed, .refusal = room.error().message};
  if (!*room) return {.fault = DiskFault::kNoRoom};
  if (const Status ready = prepare_disk(disk_bytes); !ready) {
    const std::lock_guard guard(mutex_);
    passing_bytes_ -= disk_bytes;
    return {.fault = DiskFault::kWriteFailed, .refusal = ready.error().message};
  }
  if (const Status written = write_file(header, parts); !written)
    return {.fault = DiskFault::kWriteFailed, .refusal = written.error().message};

  std::vector<DiskIndex::Node> chain;
  int64_t used_ns = 0;
  {
    const std::lock_guard guard(mutex_);
    const std::string name = entry_file_name(header.key);
    if (const auto replaced = aside_.find(name); replaced != aside_.end()) {
      aside_bytes_ -= replaced->second;
      aside_.erase(replaced);
    }
    if (index_.get(entry.id)) {
      index_.mark_stored(entry.id, header.key, disk_bytes);
      passing_bytes_ -= disk_bytes;
      chain = index_.chain(entry.id);
      used_ns = next_use_ns(chain.size());
      index_.touch(entry.id, used_ns);
    }
  }
  if (chain.empty()) {  // what it continues was found damaged while it was written
    (void)remove_file(entry_file_name(header.key), disk_bytes);
    return {.fault = DiskFault::kParentGone};
  }
  touch_files(chain, used_ns);
  return {.bytes = header.file_bytes()};
}

}  // namespace foretoken
