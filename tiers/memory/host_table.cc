// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/host_table.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "tiers/memory/record_word.h"

namespace kvtier {
namespace {

constexpr std::string_view kMagic = "KVTHOST1";
constexpr uint32_t kVersion = 5;
constexpr uint64_t kPageBytes = 4096;

constexpr uint64_t RoundUpToPage(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

uint32_t WordOf(HostSlotState state, RetentionClass retention) {
  return RecordWord({static_cast<uint8_t>(state), retention});
}

HostSlotState StateOfWord(uint32_t word) {
  if (word == kEmptyRecordWord) return HostSlotState::kEmpty;
  const std::optional<RecordState> record = ReadRecordWord(word);
  if (!record) return HostSlotState::kDamaged;
  const auto state = static_cast<HostSlotState>(record->state);
  const bool written = state == HostSlotState::kFilling || state == HostSlotState::kComplete;
  return written ? state : HostSlotState::kDamaged;
}

}  // namespace

// The bytes as they lie in memory. The table never leaves the machine: its byte order is its own.
struct HostTable::Head {
  char magic[8];
  uint32_t version;
  uint32_t unfinished_adoptions;
  uint64_t arena_bytes;
  uint64_t slab_bytes;
  uint64_t arena_id;
  Digest128 boot_id;
  Digest128 disk_set;  // may change; no part of the shape
};
// Another cut would have records vouch for what freed slots have left in between.
struct HostTable::SlabRecord {
  uint64_t cut;  // NumberWord of a slot's pages; zeros if there is none
};
struct HostTable::SlotRecord {
  uint32_t word;
  uint32_t uses;
  uint32_t last_use_s;
  uint32_t created_s;
  uint32_t pinned_until_s;
};

namespace {

// A slab's record and those of its slots follow each other, slab after slab, so that no place
// depends on how many slabs there are. They begin on a page of their own, so that memory is taken
// only for as many records as the slots need.
uint64_t StrideOf(uint64_t slab_bytes) {
  constexpr uint64_t kSlabRecordBytes = 8;
  constexpr uint64_t kSlotRecordBytes = 20;
  return RoundUpToPage(kSlabRecordBytes + slab_bytes / HostTable::kMinSlotBytes * kSlotRecordBytes);
}

}  // namespace

uint64_t HostTable::BytesFor(const HostTableShape& shape) {
  return kPageBytes + shape.arena_bytes / shape.slab_bytes * StrideOf(shape.slab_bytes);
}

void HostTable::Format(const HostTableShape& shape, std::span<std::byte> memory) {
  KVT_CHECK(memory.size() >= BytesFor(shape));
  Head head{};
  std::memcpy(head.magic, kMagic.data(), kMagic.size());
  head.version = kVersion;
  head.arena_bytes = shape.arena_bytes;
  head.slab_bytes = shape.slab_bytes;
  head.arena_id = shape.arena_id;
  head.boot_id = shape.boot_id;
  std::memcpy(memory.data(), &head, sizeof(head));
}

// No checksum: each field must have the one value expected.
Status HostTable::Check(const HostTableShape& shape, std::span<const std::byte> memory) {
  const auto refuse = [](const char* reason) { return MakeError(ErrorCode::kCorrupt, reason); };
  if (memory.size() < kPageBytes) return refuse("damaged");
  Head head;
  std::memcpy(&head, memory.data(), sizeof(head));
  if (std::string_view(head.magic, sizeof(head.magic)) != kMagic) return refuse("damaged");
  if (head.version != kVersion) return refuse("version");
  if (head.slab_bytes != shape.slab_bytes) return refuse("size_changed");
  if (head.boot_id != shape.boot_id) return refuse("other_boot");
  if (head.arena_id != shape.arena_id) return refuse("other_arena");
  if (memory.size() < BytesFor(shape)) return refuse("damaged");
  return {};
}

uint64_t HostTable::ArenaBytesOf(int table_file) {
  Head head;
  if (::pread(table_file, &head, sizeof(head), 0) != static_cast<ssize_t>(sizeof(head))) return 0;
  const bool ours = std::string_view(head.magic, sizeof(head.magic)) == kMagic;
  return ours && head.version == kVersion ? head.arena_bytes : 0;
}

HostTable::HostTable(const HostTableShape& shape, std::span<std::byte> memory)
    : AdoptionCount(&reinterpret_cast<Head*>(memory.data())->unfinished_adoptions),
      shape_(shape),
      memory_(memory) {
  static_assert(sizeof(Head) <= kPageBytes && sizeof(SlabRecord) == 8 && sizeof(SlotRecord) == 20);
  KVT_CHECK(memory.size() >= BytesFor(shape));
}

HostTable::Head& HostTable::head() const { return *reinterpret_cast<Head*>(memory_.data()); }

void HostTable::Resize(uint64_t arena_bytes) {
  shape_.arena_bytes = arena_bytes;
  KVT_CHECK(memory_.size() >= bytes());
  head().arena_bytes = arena_bytes;
}

uint64_t HostTable::arena_bytes() const { return head().arena_bytes; }

void HostTable::SetDiskSet(const Digest128& disk_set) { head().disk_set = disk_set; }

Digest128 HostTable::disk_set() const { return head().disk_set; }

HostTable::SlabRecord& HostTable::SlabOf(uint64_t slab) const {
  KVT_CHECK(slab < slabs());
  return *reinterpret_cast<SlabRecord*>(memory_.data() + kPageBytes +
                                        slab * StrideOf(shape_.slab_bytes));
}

HostTable::SlotRecord* HostTable::RecordsOf(uint64_t slab) const {
  return reinterpret_cast<SlotRecord*>(&SlabOf(slab) + 1);
}

HostTable::SlotRecord& HostTable::RecordOf(uint64_t address) const {
  const uint64_t slab = address / shape_.slab_bytes;
  const uint64_t slot_bytes = SlotBytesOf(slab);
  KVT_CHECK(slot_bytes != 0);
  return RecordsOf(slab)[address % shape_.slab_bytes / slot_bytes];
}

// A slab is cut anew only when all of its slots are empty. The records are cleared all the same:
// there are more of them when slots become smaller, and what lies there may be anything.
void HostTable::BeginFill(uint64_t address, uint64_t slot_bytes) {
  KVT_CHECK(slot_bytes >= kMinSlotBytes && slot_bytes <= shape_.slab_bytes &&
            slot_bytes % kPageBytes == 0);
  const uint64_t slab = address / shape_.slab_bytes;
  const uint64_t cut = NumberWord(static_cast<uint32_t>(slot_bytes / kPageBytes));
  SlabRecord& record = SlabOf(slab);
  if (record.cut != cut) {
    std::atomic_ref(record.cut).store(0, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::memset(RecordsOf(slab), 0, shape_.slab_bytes / slot_bytes * sizeof(SlotRecord));
    std::atomic_ref(record.cut).store(cut, std::memory_order_release);
  }
  StoreRecordWord(&RecordOf(address).word,
                  WordOf(HostSlotState::kFilling, RetentionClass::kMemory));
}

void HostTable::WriteFacts(SlotRecord* record, const HostSlotFacts& facts) {
  record->uses = facts.uses;
  record->last_use_s = facts.last_use_s;
  record->created_s = facts.created_s;
  record->pinned_until_s = facts.pinned_until_s;
  StoreRecordWord(&record->word, WordOf(HostSlotState::kComplete, facts.retention));
}

void HostTable::Complete(uint64_t address, const HostSlotFacts& facts) {
  SlotRecord& record = RecordOf(address);
  const HostSlotState state = StateOfWord(record.word);
  KVT_CHECK(state == HostSlotState::kFilling || state == HostSlotState::kComplete);
  WriteFacts(&record, facts);
}

// Each field is a word of its own: a death between two of them leaves values that were true a
// moment ago.
void HostTable::Update(uint64_t address, const HostSlotFacts& facts) {
  SlotRecord& record = RecordOf(address);
  KVT_CHECK(StateOfWord(record.word) == HostSlotState::kComplete);
  WriteFacts(&record, facts);
}

void HostTable::Clear(uint64_t address) {
  StoreRecordWord(&RecordOf(address).word, kEmptyRecordWord);
}

uint64_t HostTable::SlotBytesOf(uint64_t slab) const {
  const uint64_t cut = SlabOf(slab).cut;
  const auto pages = static_cast<uint32_t>(cut);
  const uint64_t slot_bytes = pages * kPageBytes;
  const bool possible =
      cut == NumberWord(pages) && slot_bytes >= kMinSlotBytes && slot_bytes <= shape_.slab_bytes;
  return possible ? slot_bytes : 0;
}

uint64_t HostTable::cut_slabs() const {
  uint64_t end = slabs();
  while (end > 0 && SlabOf(end - 1).cut == 0) --end;
  return end;
}

void HostTable::ForgetSlab(uint64_t slab) { SlabOf(slab).cut = 0; }

bool HostTable::TakeDamagedCut(uint64_t slab) {
  return SlotBytesOf(slab) == 0 && std::exchange(SlabOf(slab).cut, 0) != 0;
}

HostSlotState HostTable::StateOf(uint64_t address) const {
  return StateOfWord(RecordOf(address).word);
}

HostSlotFacts HostTable::FactsOf(uint64_t address) const {
  const SlotRecord& record = RecordOf(address);
  return {record.uses, record.last_use_s, record.created_s,
          static_cast<RetentionClass>(record.word >> 8 & 0xFF), record.pinned_until_s};
}

}  // namespace kvtier
