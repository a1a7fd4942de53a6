// Reading an entry back: its ancestors from the first on, each file's part straight into its place. Nothing is used before its
// checksum was compared, and all tokens are compared with the prompt's.
#include <algorithm>

#include "engine/disk_folder.h"

namespace foretoken {
namespace {

std::span<std::byte> all_of(const Buffer& buffer) { return {buffer.data(), buffer.size()}; }

bool allocate(DiskEntry& entry, const DiskIndex::Node& leaf, uint64_t page_bytes) {
  auto pages = host_buffer(static_cast<uint64_t>(pages_of(leaf.length)) * page_bytes);
  auto state = host_buffer(leaf.state_bytes);
  auto drafter = host_buffer(leaf.drafter_bytes);
  if (!pages || !state || !drafter) return false;
  entry.tokens.resize(static_cast<size_t>(leaf.length));
  entry.pages = *std::move(pages);
  entry.state = *std::move(state);
  entry.drafter = *std::move(drafter);
  return true;
}

}  // namespace

void DiskFolder::pin(DiskIndex::Id id) {
  const std::lock_guard guard(mutex_);
  index_.pin(id);
}

DiskLoad DiskFolder::load(DiskIndex::Id id, std::span<const TokenId> prompt) {
  const TimePoint begin = clock_.now();
  DiskLoad load;
  std::vector<DiskIndex::Node> chain;
  {
    const std::lock_guard guard(mutex_);
    chain = index_.chain(id);
    if (chain.empty()) {
      ++faults_[static_cast<size_t>(DiskFault::kGone)];
      load.fault = DiskFault::kGone;
      return load;
    }
  }
  CHECK(prompt.size() >= static_cast<size_t>(chain.back().length));
  const auto fault = read_chain(chain, prompt, load.entry);
  int64_t used_ns = 0;
  {
    const std::lock_guard guard(mutex_);
    index_.unpin(id);
    if (!fault) {
      used_ns = next_use_ns(chain.size());
      index_.touch(id, used_ns);
      bytes_read_ += load.entry.pages.size() + load.entry.state.size() + load.entry.drafter.size();
    }
  }
  load.seconds = seconds_between(begin, clock_.now());
  if (!fault) {
    touch_files(chain, used_ns);
    return load;
  }
  load.entry = {};
  load.fault = fault->fault;
  if (fault->fault != DiskFault::kOtherTokens && fault->fault != DiskFault::kNoMemory) {
    remove_subtree(fault->id, fault->fault);
  } else {
    const std::lock_guard guard(mutex_);
    ++faults_[static_cast<size_t>(fault->fault)];
  }
  return load;
}

std::optional<DiskFolder::Fault> DiskFolder::read_chain(const std::vector<DiskIndex::Node>& chain, std::span<const TokenId> prompt,
                                                        DiskEntry& entry) {
  const DiskIndex::Node& leaf = chain.back();
  if (!allocate(entry, leaf, options_.page_bytes)) return Fault{DiskFault::kNoMemory, leaf.id};
  for (size_t i = 0; i < chain.size(); ++i) {
    const bool last = i + 1 == chain.size();
    if (const auto fault = read_link(chain[i], i > 0 ? &chain[i - 1] : nullptr, last, prompt, entry)) return Fault{*fault, chain[i].id};
  }
  Sha256 hash;
  if (add_tokens(start_key(hash, options_.fingerprint), entry.tokens).digest() != leaf.key) return Fault{DiskFault::kDamaged, leaf.id};
  return std::nullopt;
}

std::optional<DiskFault> DiskFolder::read_link(const DiskIndex::Node& link, const DiskIndex::Node* parent, bool last,
                                               std::span<const TokenId> prompt, DiskEntry& entry) {
  std::unique_ptr<DiskFiles::Reader> file;
  EntryHeader header;
  if (const auto fault = read_header(files_, path_of(entry_file_name(link.key)), file, header)) return fault;
  const bool expected = header.fingerprint == options_.fingerprint && header.page_bytes == options_.page_bytes && header.key == link.key &&
                        header.length == link.length && header.parent_length == (parent ? parent->length : 0) &&
                        header.parent_key == (parent ? parent->key : Digest{}) && header.state_bytes == link.state_bytes &&
                        header.drafter_bytes == link.drafter_bytes;
  if (!expected) return DiskFault::kGone;  // replaced since the folder was scanned

  const auto begin = static_cast<size_t>(header.parent_length), count = static_cast<size_t>(header.length) - begin;
  const auto tokens = std::span(entry.tokens).subspan(begin, count);
  if (const auto fault = read_part(*file, header.tokens(), header.tokens_sum, std::as_writable_bytes(tokens))) return fault;
  if (!std::equal(tokens.begin(), tokens.end(), prompt.begin() + static_cast<ptrdiff_t>(begin))) return DiskFault::kOtherTokens;

  // A page that this entry's tokens fill further replaces the parent's.
  const auto pages = all_of(entry.pages).subspan(static_cast<uint64_t>(header.first_page()) * options_.page_bytes, header.pages().bytes);
  if (const auto fault = read_part(*file, header.pages(), header.pages_sum, pages)) return fault;
  if (!last) return std::nullopt;
  if (const auto fault = read_part(*file, header.state(), header.state_sum, all_of(entry.state))) return fault;
  return read_part(*file, header.drafter(), header.drafter_sum, all_of(entry.drafter));
}

// Ancestors are written last, so that no file is older than one that continues it. A refusal makes an entry go sooner, no more.
void DiskFolder::touch_files(const std::vector<DiskIndex::Node>& chain, int64_t first_ns) {
  for (size_t i = chain.size(); i-- > 0;) (void)files_.touch(path_of(entry_file_name(chain[i].key)), first_ns++);
}

}  // namespace foretoken
