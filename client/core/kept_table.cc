// SPDX-License-Identifier: Apache-2.0
#include "client/core/kept_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/memory_file.h"
#include "protocol/kept_table_layout.h"
#include "protocol/limits.h"

namespace kvtier::client {
namespace {

constexpr std::array<char, 8> kMagic = {'K', 'V', 'T', 'T', 'A', 'B', 'L', 'E'};
constexpr uint32_t kVersion = 1;
// A sequence number beyond this was not counted up to: the table is not one of ours.
constexpr uint64_t kMaxSequence = uint64_t{1} << 62;

using HashWords = wire::KeptHashWords;

// Words of shared memory, which another process may read or write at the same time.
template <typename Word>
Word Load(Word& word, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref(word).load(order);
}
template <typename Word>
void Store(Word& word, Word value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref(word).store(value, order);
}

HashWords WordsOf(const Digest256& digest) {
  HashWords words;
  std::memcpy(words.data(), digest.bytes.data(), sizeof(words));
  return words;
}

Digest256 LoadDigest(HashWords& words) {
  Digest256 digest;
  for (size_t i = 0; i < words.size(); ++i) {
    const uint64_t word = Load(words[i]);
    std::memcpy(digest.bytes.data() + i * sizeof(word), &word, sizeof(word));
  }
  return digest;
}

void StoreDigest(HashWords& words, const Digest256& digest) {
  const HashWords values = WordsOf(digest);
  for (size_t i = 0; i < words.size(); ++i) Store(words[i], values[i]);
}

tl::unexpected<Error> BadTable(std::string why) {
  return MakeError(ErrorCode::kCorrupt, "kept_table", std::move(why));
}

}  // namespace

Status CheckMemoryFile(int fd, uint64_t bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return MakeError(ErrorCode::kCorrupt, "kept_memory", "no memory file of a fixed size");
  }
  const uint64_t there = FileBytes(fd);
  if (there >= bytes) return {};
  return MakeError(ErrorCode::kCorrupt, "kept_memory",
                   fmt::format("{} bytes instead of {}", there, bytes));
}

uint64_t KeptTable::BytesOf(uint32_t blocks) {
  return sizeof(Header) + uint64_t{blocks} * sizeof(Record);
}

KeptTable::Record* KeptTable::RecordsOf(Header* header) {
  // Records follow the header in the file. A header and a record have 64 bytes each, so that every
  // record is aligned as the page is.
  return reinterpret_cast<Record*>(header + 1);
}

Result<std::unique_ptr<KeptTable>> KeptTable::Map(UniqueFd fd, uint32_t blocks) {
  KVT_RETURN_IF_ERROR(CheckMemoryFile(fd.get(), BytesOf(blocks)));
  void* const mapping =
      ::mmap(nullptr, BytesOf(blocks), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) {
    return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "mapping a table"));
  }
  return std::unique_ptr<KeptTable>(
      new KeptTable(std::move(fd), static_cast<Header*>(mapping), blocks));
}

Result<std::unique_ptr<KeptTable>> KeptTable::Create(uint32_t blocks) {
  KVT_ASSIGN_OR_RETURN(UniqueFd fd, MakeMemoryFile("kvtier-kept-table", BytesOf(blocks)));
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<KeptTable> table, Map(std::move(fd), blocks));
  *table->header_ = {.magic = kMagic, .version = kVersion, .blocks = blocks};
  return table;
}

Status KeptTable::CheckHeader(const Header& header, uint64_t file_bytes) {
  if (header.magic != kMagic || header.version != kVersion) return BadTable("another version");
  if (header.blocks > wire::kMaxRegionBlocks || BytesOf(header.blocks) > file_bytes) {
    return BadTable(fmt::format("{} blocks in {} bytes", header.blocks, file_bytes));
  }
  return header.sequence <= kMaxSequence ? Status() : BadTable("a sequence number out of range");
}

Result<std::unique_ptr<KeptTable>> KeptTable::Open(UniqueFd fd, uint32_t blocks) {
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<KeptTable> table, Map(std::move(fd), blocks));
  KVT_RETURN_IF_ERROR(CheckHeader(*table->header_, BytesOf(blocks)));
  if (table->header_->blocks == blocks) return table;
  return BadTable(fmt::format("{} blocks instead of {}", table->header_->blocks, blocks));
}

Result<KeptTableContents> KeptTable::Read(int fd) {
  KVT_RETURN_IF_ERROR(CheckMemoryFile(fd, BytesOf(0)));
  const uint64_t bytes = FileBytes(fd);
  void* const mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) {
    return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "mapping a table"));
  }
  // A copy is checked and used: the other process may write to the header at any time.
  Header header;
  std::memcpy(&header, mapping, sizeof(header));
  const Status usable = CheckHeader(header, bytes);
  KeptTableContents contents;
  if (usable) contents = Copy(static_cast<Header*>(mapping), header.blocks);
  (void)::munmap(mapping, bytes);
  if (!usable) return tl::unexpected(usable.error());
  return contents;
}

KeptTable::~KeptTable() { (void)::munmap(header_, bytes()); }

Status KeptTable::CheckBlocks(std::span<const uint32_t> blocks) const {
  const auto bad = std::ranges::find_if(blocks, [&](uint32_t block) { return block >= blocks_; });
  if (bad == blocks.end()) return {};
  return MakeError(ErrorCode::kInvalidArgument, "block_out_of_range",
                   fmt::format("block {} of {}", *bad, blocks_));
}

Status KeptTable::Publish(uint32_t group, std::span<const uint32_t> blocks,
                          std::span<const BlockHash> hashes) {
  if (group >= kMaxGroups) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_group",
                     fmt::format("{}, at most {}", group, kMaxGroups - 1));
  }
  KVT_RETURN_IF_ERROR(CheckBlocks(blocks));
  const std::lock_guard lock(mutex_);
  uint64_t sequence = header_->sequence;
  // Ahead of the states, so that none is ever beyond it.
  Store(header_->sequence, sequence + blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    Record& record = RecordsOf(header_)[blocks[i]];
    if (Load(record.state) != 0) {
      Store(record.state, uint64_t{0});
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    Store(record.group, group);
    StoreDigest(record.hash, hashes[i]);
    Store(record.state, ++sequence, std::memory_order_release);
  }
  return {};
}

Status KeptTable::Retract(std::span<const uint32_t> blocks) {
  KVT_RETURN_IF_ERROR(CheckBlocks(blocks));
  const std::lock_guard lock(mutex_);
  for (const uint32_t block : blocks) Store(RecordsOf(header_)[block].state, uint64_t{0});
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return {};
}

void KeptTable::ClearLocked() {
  for (uint32_t i = 0; i < blocks_; ++i) Store(RecordsOf(header_)[i].state, uint64_t{0});
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void KeptTable::Clear() {
  const std::lock_guard lock(mutex_);
  ClearLocked();
}

void KeptTable::SetRoot(const Digest256& root) {
  const std::lock_guard lock(mutex_);
  if (LoadDigest(header_->root) == root) return;
  ClearLocked();
  StoreDigest(header_->root, root);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

Digest256 KeptTable::root() const {
  const std::lock_guard lock(mutex_);
  return LoadDigest(header_->root);
}

// The order of the reads is that of the writes turned round: a record whose state is the same
// before and after was not changed between.
KeptTableContents KeptTable::Copy(Header* header, uint32_t blocks) {
  std::vector<std::pair<uint64_t, KeptTableContents::Block>> published;
  KeptTableContents contents{.root = LoadDigest(header->root), .blocks = {}};
  for (uint32_t i = 0; i < blocks; ++i) {
    Record& record = RecordsOf(header)[i];
    const uint64_t state = Load(record.state, std::memory_order_acquire);
    if (state == 0) continue;
    const KeptTableContents::Block block{i, Load(record.group), LoadDigest(record.hash)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (Load(record.state) == state && block.group < kMaxGroups)
      published.push_back({state, block});
  }
  const uint64_t last = Load(header->sequence);
  std::erase_if(published, [last](const auto& item) { return item.first > last; });
  std::ranges::sort(published, {}, [](const auto& item) { return item.first; });
  for (const auto& [state, block] : published) contents.blocks.push_back(block);
  return contents;
}

KeptTableContents KeptTable::Contents() const { return Copy(header_, blocks_); }

}  // namespace kvtier::client
