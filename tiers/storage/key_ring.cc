// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/key_ring.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/memory_file.h"
#include "tiers/storage/header_page.h"

namespace kvtier {
namespace {

constexpr std::string_view kMagic = "KVTKEYS1";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeadBytes = 4096;
// Far below what GCM allows for one key, and the counter is never near its end.
constexpr uint32_t kMostNonces = UINT32_MAX - 1;

tl::unexpected<Error> Failed(const char* what) {
  return tl::unexpected<Error>(ErrnoError(ErrorCode::kResourceExhausted, errno, what));
}

tl::unexpected<Error> Refused(std::string reason) {
  return MakeError(ErrorCode::kCorrupt, std::move(reason), "kept encryption keys");
}

[[nodiscard]] Status FillRandom(std::span<std::byte> bytes) {
  if (::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size())) return {};
  return MakeError(ErrorCode::kIoError, "random", "getrandom gave no bytes");
}

Digest256 DigestOf(std::string_view tenant) { return Sha256(std::as_bytes(std::span(tenant))); }

// Count and check in one word, which is stored at once: a process that dies leaves a count that
// holds, and a count that does not is noticed.
uint64_t CounterWord(uint64_t id, uint32_t count) {
  const std::array<uint64_t, 2> checked{id, count};
  const uint64_t check = ChecksumHeader(std::as_bytes(std::span(checked)));
  return uint64_t{count} << 32 | (check & UINT32_MAX);
}

}  // namespace

// The bytes as they lie in memory; the byte order is the machine's, which they never leave.
struct KeyRing::Head {
  char magic[8];
  uint32_t version;
  uint32_t records;
};
struct KeyRing::Record {
  uint64_t checksum;  // of what follows the counter; written last and cleared first
  uint64_t counter;   // see CounterWord
  uint64_t id;        // random; 0: the record is free
  Scope scope;
  uint32_t zero;
  std::byte key[kXtsKeyBytes];
};

SecretKey::SecretKey(std::span<const std::byte, kXtsKeyBytes> bytes) : bytes_{} {
  std::ranges::copy(bytes, bytes_.begin());
}

KeyRing::KeyRing(UniqueFd memory_fd, std::span<std::byte> memory)
    : memory_fd_(std::move(memory_fd)), memory_(memory) {}

KeyRing::~KeyRing() { ::munmap(memory_.data(), memory_.size()); }

std::span<KeyRing::Record> KeyRing::records() const {
  static_assert(sizeof(Record) == 128 && sizeof(Head) <= kHeadBytes);
  return {reinterpret_cast<Record*>(memory_.data() + kHeadBytes), kMaxKeys};
}

Result<std::unique_ptr<KeyRing>> KeyRing::Map(UniqueFd memory_fd) {
  constexpr size_t kBytes = kHeadBytes + kMaxKeys * sizeof(Record);
  if (const auto refusal = MemoryFileRefusal(memory_fd.get(), kBytes)) return Refused(*refusal);
  void* const address =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd.get(), 0);
  if (address == MAP_FAILED) return Failed("mmap of the encryption keys");
  const std::span<std::byte> memory(static_cast<std::byte*>(address), kBytes);
  std::unique_ptr<KeyRing> ring(new KeyRing(std::move(memory_fd), memory));
  if (::mlock(address, kBytes) != 0) return Failed("mlock of the encryption keys");
  if (::madvise(address, kBytes, MADV_DONTDUMP) != 0 ||
      ::madvise(address, kBytes, MADV_DONTFORK) != 0) {
    return Failed("madvise of the encryption keys");
  }
  KVT_RETURN_IF_ERROR(FillRandom(ring->process_));
  return ring;
}

Result<std::unique_ptr<KeyRing>> KeyRing::Create() {
  constexpr size_t kBytes = kHeadBytes + kMaxKeys * sizeof(Record);
  KVT_ASSIGN_OR_RETURN(UniqueFd fd, MakeMemoryFile("kvtier-keys", kBytes));
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<KeyRing> ring, Map(std::move(fd)));
  ring->Format();
  return ring;
}

Result<std::unique_ptr<KeyRing>> KeyRing::Adopt(UniqueFd memory) {
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<KeyRing> ring, Map(std::move(memory)));
  KVT_RETURN_IF_ERROR(ring->CheckHead());
  ring->LoadRecords();
  ring->adopted_ = true;
  return ring;
}

void KeyRing::Format() {
  Head head{};
  std::memcpy(head.magic, kMagic.data(), kMagic.size());
  head.version = kVersion;
  head.records = kMaxKeys;
  std::memcpy(memory_.data(), &head, sizeof(head));
}

Status KeyRing::CheckHead() const {
  Head head;
  std::memcpy(&head, memory_.data(), sizeof(head));
  if (std::string_view(head.magic, sizeof(head.magic)) != kMagic) return Refused("damaged");
  if (head.version != kVersion || head.records != kMaxKeys) return Refused("version");
  return {};
}

bool KeyRing::IsFree(const Record& record) {
  return IsAllZero(std::as_bytes(std::span(&record, 1)));
}

bool KeyRing::Holds(const Record& record) {
  const auto covered = std::as_bytes(std::span(&record, 1)).subspan(offsetof(Record, id));
  return record.id != 0 && record.zero == 0 && record.checksum == ChecksumHeader(covered);
}

// A key whose counter does not hold may still decrypt; it is not written with again. If two records
// have one identity, the first stays.
void KeyRing::LoadRecords() {
  const std::span<Record> all = records();
  for (uint32_t number = 0; number < all.size(); ++number) {
    if (IsFree(all[number])) continue;
    if (Holds(all[number]) && !by_id_.contains(all[number].id)) {
      Index(number);
    } else {
      ++rejected_;
      WipeBytes(std::as_writable_bytes(std::span(&all[number], 1)));
    }
  }
}

void KeyRing::Index(uint32_t number) {
  const Record& record = records()[number];
  by_id_.emplace(record.id, number);
  const auto count = static_cast<uint32_t>(record.counter >> 32);
  const bool writable = record.counter == CounterWord(record.id, count) && count < kMostNonces;
  if (writable) by_scope_.try_emplace(record.scope, number);
}

Result<uint32_t> KeyRing::Obtain(const Scope& scope) {
  const auto found = by_scope_.find(scope);
  if (found != by_scope_.end()) return found->second;
  return Make(scope);
}

uint32_t KeyRing::FindFree() const {
  for (uint32_t tried = 0; tried < kMaxKeys; ++tried) {
    const uint32_t number = (next_free_ + tried) % kMaxKeys;
    if (IsFree(records()[number])) return number;
  }
  return kMaxKeys;
}

Result<uint32_t> KeyRing::Make(const Scope& scope) {
  const uint32_t number = FindFree();
  if (number == kMaxKeys) {
    return MakeError(ErrorCode::kResourceExhausted, "key_ring_full",
                     "no room for another hour's encryption key");
  }
  Record made{.scope = scope};
  Status random = FillRandom(made.key);
  if (random) random = FillRandom(std::as_writable_bytes(std::span(&made.id, 1)));
  if (!random) return tl::unexpected<Error>(std::move(random).error());
  if (made.id == 0 || by_id_.contains(made.id)) {
    return MakeError(ErrorCode::kIoError, "random", "random bytes repeat themselves");
  }
  made.counter = CounterWord(made.id, 0);
  Put(number, made);
  WipeBytes(made.key);
  return number;
}

void KeyRing::Put(uint32_t number, const Record& made) {
  next_free_ = (number + 1) % kMaxKeys;
  ++version_;
  Record& record = records()[number];
  std::memcpy(&record, &made, sizeof(record));
  const auto covered = std::as_bytes(std::span(&record, 1)).subspan(offsetof(Record, id));
  const uint64_t checksum = ChecksumHeader(covered);
  // A process that dies before leaves a record that does not hold.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::atomic_ref(record.checksum).store(checksum, std::memory_order_release);
  Index(number);
}

// The nonces are taken, in the memory that outlives the process, before they are used.
Result<SlotKey> KeyRing::ForSlot(std::string_view tenant, uint32_t hour) {
  const Scope scope{DigestOf(tenant), std::min(hour, kNoHour - 1)};
  const std::lock_guard lock(mutex_);
  KVT_ASSIGN_OR_RETURN(uint32_t number, Obtain(scope));
  auto count = static_cast<uint32_t>(records()[number].counter >> 32);
  const bool holds = records()[number].counter == CounterWord(records()[number].id, count);
  if (!holds || count > kMostNonces - 2) {
    by_scope_.erase(scope);
    KVT_ASSIGN_OR_RETURN(number, Make(scope));
    count = 0;
  }
  Record& record = records()[number];
  std::atomic_ref(record.counter).store(CounterWord(record.id, count + 2));
  used_.insert(number);
  SlotKey slot{.id = record.id, .key = SecretKey(record.key)};
  std::memcpy(slot.nonce.data(), process_.data(), process_.size());
  std::memcpy(slot.nonce.data() + process_.size(), &count, sizeof(count));
  return slot;
}

GcmNonce NonceAfter(const GcmNonce& nonce) {
  GcmNonce after = nonce;
  uint32_t count;
  std::byte* const place = after.data() + after.size() - sizeof(count);
  std::memcpy(&count, place, sizeof(count));
  ++count;
  std::memcpy(place, &count, sizeof(count));
  return after;
}

std::optional<SecretKey> KeyRing::Find(std::string_view tenant, uint64_t id) const {
  const Digest256 digest = DigestOf(tenant);
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  const Record& record = records()[found->second];
  if (record.scope.tenant != digest || record.scope.hour == kNoHour) return std::nullopt;
  return SecretKey(record.key);
}

Result<SecretKey> KeyRing::ForIndex(std::string_view tenant) {
  const Scope scope{DigestOf(tenant), kNoHour};
  const std::lock_guard lock(mutex_);
  KVT_ASSIGN_OR_RETURN(const uint32_t number, Obtain(scope));
  return SecretKey(records()[number].key);
}

std::optional<SecretKey> KeyRing::FindForIndex(std::string_view tenant) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_scope_.find({DigestOf(tenant), kNoHour});
  if (found == by_scope_.end()) return std::nullopt;
  return SecretKey(records()[found->second].key);
}

uint64_t KeyRing::Destroy(std::string_view tenant, uint32_t end_hour) {
  const Digest256 digest = DigestOf(tenant);
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> numbers;
  for (const auto& [id, number] : by_id_) {
    const Scope& scope = records()[number].scope;
    if (scope.tenant == digest && scope.hour < end_hour) numbers.push_back(number);
  }
  for (const uint32_t number : numbers) Wipe(number);
  return numbers.size();
}

uint32_t KeyRing::EndHour(std::string_view tenant) const {
  const Digest256 digest = DigestOf(tenant);
  const std::lock_guard lock(mutex_);
  uint32_t end = 0;
  for (const auto& [id, number] : by_id_) {
    const Scope& scope = records()[number].scope;
    if (scope.tenant == digest && scope.hour != kNoHour) end = std::max(end, scope.hour + 1);
  }
  return end;
}

void KeyRing::BeginPass() {
  const std::lock_guard lock(mutex_);
  used_.clear();
}

uint64_t KeyRing::DestroyUnused(const HoursOfTenants& in_use) {
  std::map<Digest256, const HoursInUse*> hours;
  for (const auto& [tenant, of_tenant] : in_use) hours[DigestOf(tenant)] = &of_tenant;
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> numbers;
  for (const auto& [id, number] : by_id_) {
    const Scope& scope = records()[number].scope;
    if (scope.hour == kNoHour || used_.contains(number)) continue;
    const auto needed = hours.find(scope.tenant);
    if (needed != hours.end() && needed->second->Contains(scope.hour)) continue;
    numbers.push_back(number);
  }
  for (const uint32_t number : numbers) Wipe(number);
  return numbers.size();
}

void KeyRing::Wipe(uint32_t number) {
  Record& record = records()[number];
  ++version_;
  by_id_.erase(record.id);
  const auto writing = by_scope_.find(record.scope);
  if (writing != by_scope_.end() && writing->second == number) by_scope_.erase(writing);
  WipeBytes(std::as_writable_bytes(std::span(&record, 1)));
}

KeyRing::Contents KeyRing::Copy() const {
  const std::lock_guard lock(mutex_);
  Contents contents{.version = version_};
  contents.keys.reserve(by_id_.size());
  for (const auto& [id, number] : by_id_) {
    const Record& record = records()[number];
    StoredKey& key = contents.keys.emplace_back();
    key.id = id;
    key.tenant = record.scope.tenant;
    key.hour = record.scope.hour;
    std::ranges::copy(record.key, key.key.begin());
  }
  return contents;
}

// The key of a tenant's hashes has no nonces.
void KeyRing::Load(const Contents& stored) {
  const std::lock_guard lock(mutex_);
  version_ = std::max(version_, stored.version + 1);
  for (const StoredKey& key : stored.keys) {
    const uint32_t number = FindFree();
    if (number == kMaxKeys) return;
    if (key.id == 0 || by_id_.contains(key.id)) continue;
    Record record{.id = key.id, .scope = {key.tenant, key.hour}};
    record.counter = CounterWord(key.id, key.hour == kNoHour ? 0 : kMostNonces);
    std::ranges::copy(key.key, record.key);
    Put(number, record);
    WipeBytes(record.key);
  }
}

// Outlives the ring while a thread saves.
struct KeyRing::Store {
  Save save;
  Executor* executor = nullptr;
  // The latest version that was saved, and the latest beside which no older one stayed.
  std::atomic<uint64_t> saved = 0, alone = 0;
};

void KeyRing::KeepStored(Save save, Executor* executor) {
  store_ = std::make_shared<Store>();
  store_->save = std::move(save);
  store_->executor = executor;
}

// The copy is made here, and not by the thread that writes: the ring may be gone by then.
void KeyRing::WhenStored(std::function<void(const Status&)> done, Older older) const {
  if (store_ == nullptr) return done({});
  const auto stored = [this, older] {
    const std::lock_guard lock(mutex_);
    return (older == Older::kGone ? store_->alone : store_->saved) >= version_;
  };
  // Without the lock: `done` may call back.
  if (stored()) return done({});
  struct Saving {
    Contents contents;
    Status status;
  };
  const auto saving = std::make_shared<Saving>(Saving{.contents = Copy()});
  store_->executor->Run(
      [saving, store = store_, older] {
        const Result<bool> alone = store->save(saving->contents);
        if (!alone) {
          saving->status = tl::unexpected(alone.error());
          return;
        }
        // A later one may have been faster.
        const uint64_t version = saving->contents.version;
        if (store->saved < version) store->saved = version;
        if (*alone && store->alone < version) store->alone = version;
        if (!*alone && older == Older::kGone) {
          saving->status = MakeError(ErrorCode::kIoError, "older_keys_stored",
                                     "a drive neither takes the file of keys nor removes its own");
        }
      },
      [saving, done = std::move(done)] { done(saving->status); });
}

uint64_t KeyRing::size() const {
  const std::lock_guard lock(mutex_);
  return by_id_.size();
}

}  // namespace kvtier
