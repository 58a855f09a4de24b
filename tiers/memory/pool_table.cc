// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/pool_table.h"

#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "tiers/memory/record_word.h"

namespace kvtier {
namespace {

constexpr std::string_view kMagic = "KVTPOOL1";
constexpr uint32_t kVersion = 3;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kSessionBytes = 64;
constexpr uint64_t kStateBytes = 8;
constexpr uint64_t kRecordBytes = 128;

// Where the parts of the table lie.
constexpr uint64_t kSessionsAt = kPageBytes;
constexpr uint64_t kStatesAt = kSessionsAt + 16 * kPageBytes;
static_assert((PoolTable::kMaxSessions + 1) * kSessionBytes == kStatesAt - kSessionsAt);

uint64_t RecordsAt(uint32_t blocks) {
  return kStatesAt + (blocks * kStateBytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

// The bytes as they lie in memory. The table never leaves the machine: its byte order is its own.
// The fields that `checksum` covers do not change.
struct PoolTable::Head {
  char magic[8];
  uint64_t checksum;
  uint32_t version;
  uint32_t blocks;
  uint64_t block_bytes;
  uint64_t generation;
  uint64_t memory_bytes;
  uint64_t device_bytes;
  uint64_t memory_id;
  uint32_t driver_version;
  uint32_t tenant_bytes;
  std::array<uint8_t, 16> device_uuid;
  Digest128 boot_id;
  ModelFingerprint model;
  char tenant[kMaxTenantBytes];
  uint32_t unfinished_adoptions;  // changes, as the following
  uint32_t ready;
  uint32_t sessions_missing;

  [[nodiscard]] uint64_t Sum() const {
    const auto* const begin = reinterpret_cast<const std::byte*>(&version);
    const auto* const end = reinterpret_cast<const std::byte*>(&unfinished_adoptions);
    return ChecksumHeader({begin, end});
  }
};
// In use while the check is the complement of the number.
struct PoolTable::SessionRecord {
  uint32_t pid;
  uint32_t check;
  uint64_t birth;
  uint64_t session;
  SessionSecret secret;
  uint32_t uid;
  uint32_t unused[5];

  [[nodiscard]] bool used() const { return check == ~pid; }
};
struct PoolTable::State {
  uint32_t word;
  uint32_t generation;
};
// The fields that `seal` covers do not change while the block is whole.
struct PoolTable::Record {
  BlockHash hash;
  BlockHash parent;
  PayloadChecksum checksum;
  uint32_t depth;
  uint16_t tokens;
  uint8_t has_parent;
  uint8_t has_checksum;
  uint64_t seal;
  uint32_t uses;
  uint32_t last_use_s;
  uint32_t created_s;
  uint32_t pinned_until_s;
  uint64_t holder;  // NumberWord of the session's, while the block is private
  uint64_t unused_too;
};

uint64_t PoolTable::BytesFor(uint32_t blocks) { return RecordsAt(blocks) + blocks * kRecordBytes; }

void PoolTable::Format(const PoolDescription& description, std::span<std::byte> memory) {
  KVT_CHECK(memory.size() == BytesFor(description.blocks));
  KVT_CHECK(description.identity.tenant.size() <= kMaxTenantBytes);
  Head head{};
  std::memcpy(head.magic, kMagic.data(), kMagic.size());
  head.version = kVersion;
  head.blocks = description.blocks;
  head.block_bytes = description.identity.block_bytes;
  head.generation = description.generation;
  head.memory_bytes = description.memory_bytes;
  head.device_bytes = description.device_bytes;
  head.memory_id = description.memory_id;
  head.driver_version = description.driver_version;
  head.device_uuid = description.device_uuid;
  head.boot_id = description.boot_id;
  head.model = description.identity.model;
  head.tenant_bytes = static_cast<uint32_t>(description.identity.tenant.size());
  description.identity.tenant.copy(head.tenant, kMaxTenantBytes);
  head.checksum = head.Sum();
  std::memcpy(memory.data(), &head, sizeof(head));
}

Result<PoolDescription> PoolTable::Read(std::span<const std::byte> memory,
                                        const Digest128& boot_id) {
  const auto refuse = [](const char* reason) { return MakeError(ErrorCode::kCorrupt, reason); };
  if (memory.size() < kStatesAt) return refuse("damaged");
  Head head;
  std::memcpy(&head, memory.data(), sizeof(head));
  if (std::string_view(head.magic, sizeof(head.magic)) != kMagic) return refuse("damaged");
  if (head.version != kVersion) return refuse("version");
  const bool possible =
      head.checksum == head.Sum() && head.tenant_bytes <= kMaxTenantBytes && head.blocks > 0 &&
      head.blocks <= PoolPlace::kMaxBlocks && head.block_bytes > 0 &&
      head.memory_bytes / head.block_bytes >= head.blocks && memory.size() == BytesFor(head.blocks);
  if (!possible) return refuse("damaged");
  if (head.boot_id != boot_id) return refuse("other_boot");
  if (head.ready != 1) return refuse("not_ready");
  if (head.unfinished_adoptions >= kMaxUnfinishedAdoptions) return refuse("adoption_unfinished");
  return PoolDescription{
      .identity = {std::string(head.tenant, head.tenant_bytes), head.model, head.block_bytes},
      .generation = head.generation,
      .memory_bytes = head.memory_bytes,
      .device_bytes = head.device_bytes,
      .memory_id = head.memory_id,
      .blocks = head.blocks,
      .driver_version = head.driver_version,
      .device_uuid = head.device_uuid,
      .boot_id = head.boot_id};
}

PoolTable::PoolTable(std::span<std::byte> memory)
    : AdoptionCount(&reinterpret_cast<Head*>(memory.data())->unfinished_adoptions),
      memory_(memory),
      blocks_(head().blocks) {
  static_assert(sizeof(Head) <= kPageBytes && sizeof(SessionRecord) == kSessionBytes);
  static_assert(sizeof(State) == kStateBytes && sizeof(Record) == kRecordBytes);
  KVT_CHECK(memory.size() == BytesFor(blocks_));
  for (uint32_t number = kMaxSessions; number > 0; --number) {
    if (!sessions()[number - 1].used()) free_sessions_.push_back(number - 1);
  }
}

PoolTable::Head& PoolTable::head() const { return *reinterpret_cast<Head*>(memory_.data()); }

PoolTable::SessionRecord* PoolTable::sessions() const {
  return reinterpret_cast<SessionRecord*>(memory_.data() + kSessionsAt);
}

PoolTable::State& PoolTable::StateRecord(BlockIndex block) const {
  KVT_CHECK(block.value < blocks_);
  return reinterpret_cast<State*>(memory_.data() + kStatesAt)[block.value];
}

PoolTable::Record& PoolTable::RecordOf(BlockIndex block) const {
  KVT_CHECK(block.value < blocks_);
  return reinterpret_cast<Record*>(memory_.data() + RecordsAt(blocks_))[block.value];
}

// The block's number is part of it: a record that has come to stand in another's place is damaged.
uint64_t PoolTable::Seal(BlockIndex block, const Record& record) {
  constexpr size_t kSealedBytes = offsetof(Record, seal);
  std::array<std::byte, kSealedBytes + sizeof(uint32_t)> bytes;
  std::memcpy(bytes.data(), &record, kSealedBytes);
  std::memcpy(bytes.data() + kSealedBytes, &block.value, sizeof(uint32_t));
  return ChecksumHeader(bytes);
}

void PoolTable::StoreState(BlockIndex block, PoolEntryState state, RetentionClass retention) {
  StoreRecordWord(&StateRecord(block).word, RecordWord({static_cast<uint8_t>(state), retention}));
}

void PoolTable::SetReady() { StoreRecordWord(&head().ready, 1); }

void PoolTable::SetFree(BlockIndex block) {
  StoreRecordWord(&StateRecord(block).word, kEmptyRecordWord);
}

void PoolTable::Hold(BlockIndex block, uint32_t generation) {
  StoreState(block, PoolEntryState::kHeld, RetentionClass::kMemory);
  StateRecord(block).generation = generation;
}

void PoolTable::SetHolder(BlockIndex block, uint32_t session) {
  const PoolEntryState state = StateOf(block);
  KVT_CHECK(state == PoolEntryState::kHeld || state == PoolEntryState::kPrivate);
  std::atomic_ref(RecordOf(block).holder).store(NumberWord(session), std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  StoreState(block, PoolEntryState::kPrivate, RetentionClass::kMemory);
}

void PoolTable::Complete(BlockIndex block, const PoolEntryFacts& facts, bool referenced) {
  const PoolEntryState before = StateOf(block);
  KVT_CHECK(before == PoolEntryState::kHeld || before == PoolEntryState::kPrivate);
  Record record{};
  record.holder = RecordOf(block).holder;  // whose the block is until its state changes below
  record.hash = facts.hash;
  record.parent = facts.parent.value_or(BlockHash{});
  record.checksum = facts.checksum.value_or(PayloadChecksum{});
  record.depth = facts.depth;
  record.tokens = facts.tokens;
  record.has_parent = facts.parent.has_value();
  record.has_checksum = facts.checksum.has_value();
  record.seal = Seal(block, record);
  record.uses = facts.uses;
  record.last_use_s = facts.last_use_s;
  record.created_s = facts.created_s;
  record.pinned_until_s = facts.pinned_until_s;
  RecordOf(block) = record;
  StoreState(block, referenced ? PoolEntryState::kReferenced : PoolEntryState::kCached,
             facts.retention);
}

void PoolTable::SetReferenced(BlockIndex block, bool referenced) {
  const std::optional<RecordState> before = ReadRecordWord(StateRecord(block).word);
  KVT_CHECK(before.has_value() && Whole(block));
  StoreState(block, referenced ? PoolEntryState::kReferenced : PoolEntryState::kCached,
             before->retention);
}

void PoolTable::Update(BlockIndex block, const PoolEntryFacts& facts) {
  const PoolEntryState state = StateOf(block);
  KVT_CHECK(Whole(block));
  Record& record = RecordOf(block);
  record.uses = facts.uses;
  record.last_use_s = facts.last_use_s;
  record.created_s = facts.created_s;
  record.pinned_until_s = facts.pinned_until_s;
  StoreState(block, state, facts.retention);
}

// The check comes last, so that a death before it leaves a place that is not in use: the process
// has not been told of the memory by then.
std::optional<uint32_t> PoolTable::AddSession(const SessionIdentity& session) {
  if (free_sessions_.empty()) {
    head().sessions_missing = 1;
    return std::nullopt;
  }
  const uint32_t number = free_sessions_.back();
  free_sessions_.pop_back();
  SessionRecord& record = sessions()[number];
  record.pid = static_cast<uint32_t>(session.process.pid);
  record.birth = session.process.birth;
  record.session = session.session.value;
  record.secret = session.secret;
  record.uid = session.uid;
  StoreRecordWord(&record.check, ~record.pid);
  return number;
}

void PoolTable::RemoveSession(uint32_t number) {
  KVT_CHECK(number < kMaxSessions && sessions()[number].used());
  SessionRecord& record = sessions()[number];
  StoreRecordWord(&record.check, 0);
  record = SessionRecord{};
  free_sessions_.push_back(number);
}

PoolEntryState PoolTable::StateOf(BlockIndex block) const {
  const uint32_t word = StateRecord(block).word;
  if (word == kEmptyRecordWord) return PoolEntryState::kFree;
  const std::optional<RecordState> record = ReadRecordWord(word);
  if (!record) return PoolEntryState::kDamaged;
  const auto state = static_cast<PoolEntryState>(record->state);
  const bool written = state > PoolEntryState::kFree && state < PoolEntryState::kDamaged;
  return written ? state : PoolEntryState::kDamaged;
}

bool PoolTable::Whole(BlockIndex block) const {
  const PoolEntryState state = StateOf(block);
  return state == PoolEntryState::kCached || state == PoolEntryState::kReferenced;
}

uint32_t PoolTable::GenerationOf(BlockIndex block) const { return StateRecord(block).generation; }

std::optional<PoolEntryFacts> PoolTable::FactsOf(BlockIndex block) const {
  KVT_CHECK(Whole(block));
  const Record record = RecordOf(block);
  if (record.seal != Seal(block, record) || record.tokens == 0) return std::nullopt;
  PoolEntryFacts facts{.hash = record.hash,
                       .parent = std::nullopt,
                       .checksum = std::nullopt,
                       .depth = record.depth,
                       .tokens = record.tokens,
                       .retention = ReadRecordWord(StateRecord(block).word)->retention,
                       .uses = record.uses,
                       .last_use_s = record.last_use_s,
                       .created_s = record.created_s,
                       .pinned_until_s = record.pinned_until_s};
  if (record.has_parent != 0) facts.parent = record.parent;
  if (record.has_checksum != 0) facts.checksum = record.checksum;
  return facts;
}

std::optional<uint32_t> PoolTable::HolderOf(BlockIndex block) const {
  KVT_CHECK(StateOf(block) == PoolEntryState::kPrivate);
  const uint64_t word = RecordOf(block).holder;
  const auto session = static_cast<uint32_t>(word);
  return word == NumberWord(session) ? std::optional(session) : std::nullopt;
}

// A process that died while a place was given back leaves its number without the check: the place
// is not in use.
Result<std::vector<PoolTable::Session>> PoolTable::Sessions() const {
  if (head().sessions_missing != 0) return MakeError(ErrorCode::kCorrupt, "clients_unknown");
  std::vector<Session> found;
  for (uint32_t number = 0; number < kMaxSessions; ++number) {
    const SessionRecord& record = sessions()[number];
    if (!record.used()) {
      if (record.check != 0) return MakeError(ErrorCode::kCorrupt, "damaged");
      continue;
    }
    const auto pid = static_cast<int32_t>(record.pid);
    if (pid <= 0) return MakeError(ErrorCode::kCorrupt, "clients_unknown");
    found.push_back({number,
                     {.process = {pid, record.birth},
                      .uid = record.uid,
                      .session = SessionId(record.session),
                      .secret = record.secret}});
  }
  return found;
}

}  // namespace kvtier
