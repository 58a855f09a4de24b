// SPDX-License-Identifier: Apache-2.0
// The keys of an encrypted disk tier: one for each tenant and hour, and one for each tenant's
// hashes in the index. They lie in one file in memory, locked, sealed against other sizes and left
// out of core dumps. A process that holds its descriptor holds the keys: given to a process that
// outlives the daemon, they are there for the next one; when the last descriptor is closed, every
// byte that was encrypted with them is gone for good. They are written nowhere, unless a ring is
// told to keep them in a file, wrapped by a root key (key_file.h).
//
// An earlier daemon's records are believed no more than a disk: each has a checksum, and one that
// does not hold is wiped, so that data encrypted with it is lost rather than misread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/digest.h"
#include "base/executor.h"
#include "base/posix.h"
#include "base/result.h"
#include "tiers/storage/aes.h"

namespace kvtier {

// The hours of which a tenant has blocks on disk, whose keys are needed. Any thread, as a value.
// Hours count from 1970, by the wall clock.
class HoursInUse {
 public:
  // A block was written at some time from `first_s` to `last_s`. After the clock has been set by
  // more than a day, all later hours count, for a key that is wiped too late does less harm.
  void Add(int64_t first_s, int64_t last_s) {
    const uint32_t first = HourOf(first_s), last = HourOf(last_s);
    if (last - first > kMostHours) {
      from_ = std::min(from_, first);
      return;
    }
    for (uint32_t hour = first; hour <= last; ++hour) hours_.insert(hour);
  }
  [[nodiscard]] bool Contains(uint32_t hour) const {
    return hour >= from_ || hours_.contains(hour);
  }

 private:
  static constexpr uint32_t kMostHours = 24;
  [[nodiscard]] static uint32_t HourOf(int64_t time_s) {
    return static_cast<uint32_t>(std::clamp<int64_t>(time_s, 0, UINT32_MAX) / 3600);
  }

  std::unordered_set<uint32_t> hours_;
  uint32_t from_ = UINT32_MAX;
};

using HoursOfTenants = std::map<std::string, HoursInUse>;

// A copy of a key's bytes, wiped when it ends. Move-only.
class SecretKey {
 public:
  explicit SecretKey(std::span<const std::byte, kXtsKeyBytes> bytes);
  ~SecretKey() { WipeBytes(bytes_); }
  SecretKey(SecretKey&& other) noexcept : bytes_(other.bytes_) { WipeBytes(other.bytes_); }
  SecretKey& operator=(SecretKey&&) = delete;

  [[nodiscard]] std::span<const std::byte, kGcmKeyBytes> gcm() const {
    return std::span(bytes_).first<kGcmKeyBytes>();
  }
  [[nodiscard]] std::span<const std::byte, kXtsKeyBytes> xts() const { return bytes_; }

 private:
  std::array<std::byte, kXtsKeyBytes> bytes_;
};

// For one slot: its key, and a nonce for its header. Nothing else under that key has had or will
// have that nonce or the one after it, which is the payload's.
struct SlotKey {
  uint64_t id = 0;
  SecretKey key;
  GcmNonce nonce{};
};
[[nodiscard]] GcmNonce NonceAfter(const GcmNonce& nonce);

// One key as it is stored. Wiped when it ends.
struct StoredKey {
  uint64_t id = 0;  // never 0
  Digest256 tenant;
  uint32_t hour = 0;
  std::array<std::byte, kXtsKeyBytes> key{};
  StoredKey() = default;
  StoredKey(const StoredKey&) = default;
  StoredKey& operator=(const StoredKey&) = default;
  ~StoredKey() { WipeBytes(key); }
};

// Any thread.
class KeyRing {
 public:
  static constexpr uint32_t kMaxKeys = 4096;
  // Later than any hour, so that Destroy leaves nothing.
  static constexpr uint32_t kNoHour = UINT32_MAX;

  // An empty ring. Errors: kResourceExhausted by errno's name if the memory cannot be had or not be
  // locked (LimitMEMLOCK=).
  [[nodiscard]] static Result<std::unique_ptr<KeyRing>> Create();
  // The one that an earlier daemon left. Errors: kCorrupt "not_sealed", "size_changed", "damaged",
  // "version", after all of which a new ring has to be made; those of Create.
  [[nodiscard]] static Result<std::unique_ptr<KeyRing>> Adopt(UniqueFd memory);

  // The descriptor stays open elsewhere if it was given away; this process's copies are unmapped.
  ~KeyRing();
  KeyRing(const KeyRing&) = delete;
  KeyRing& operator=(const KeyRing&) = delete;

  // To write a slot with: the key of that tenant and hour, made if there is none. Errors:
  // kResourceExhausted "key_ring_full"; kIoError "random" if the system gives no random bytes.
  [[nodiscard]] Result<SlotKey> ForSlot(std::string_view tenant, uint32_t hour);
  // The key that a slot's header names; nothing if it is gone or another tenant's.
  [[nodiscard]] std::optional<SecretKey> Find(std::string_view tenant, uint64_t id) const;
  // The key of a tenant's hashes in the index, made if there is none; errors as above.
  [[nodiscard]] Result<SecretKey> ForIndex(std::string_view tenant);
  // The same; nothing if there is none, so that hashes written with it cannot be read.
  [[nodiscard]] std::optional<SecretKey> FindForIndex(std::string_view tenant) const;

  // Wipes the keys of the tenant's hours before `end_hour`; with kNoHour, of all its hours. Returns
  // how many. The key of its hashes stays: the index's deletions need it.
  uint64_t Destroy(std::string_view tenant, uint32_t end_hour);
  // The hour after those of the tenant's keys; 0 if it has none.
  [[nodiscard]] uint32_t EndHour(std::string_view tenant) const;

  // Wipes the slots' keys that no block needs: of hours that their tenant does not use, and that
  // ForSlot has not given since BeginPass. Returns how many.
  void BeginPass();
  uint64_t DestroyUnused(const HoursOfTenants& in_use);

  // All keys as they are now; a later copy of other keys has a higher version.
  struct Contents {
    uint64_t version = 0;
    std::vector<StoredKey> keys;
  };
  [[nodiscard]] Contents Copy() const;
  // Adds keys that a file held. Slots are decrypted with them, but none is written with one again:
  // which nonces they have had is not known, and the file may be an old one that was put back. A
  // key of an id that is there already, or beyond kMaxKeys, is left out. Later versions are higher
  // than the file's.
  void Load(const Contents& stored);

  // From now on the keys are to be stored, too, and WhenStored says when. `save` returns whether no
  // older keys are stored beside these. It is called by threads of `executor`, which is borrowed.
  // To be called once, before the ring is shared.
  using Save = std::function<Result<bool>(const Contents&)>;
  void KeepStored(Save save, Executor* executor);
  // Calls `done` when the keys that there are now are stored, and with kGone those that are gone no
  // more: at once if that is so, or if none are to be. Errors: those of `save`; with kGone kIoError
  // "older_keys_stored". Event loop only.
  enum class Older : uint8_t { kMayStay, kGone };
  void WhenStored(std::function<void(const Status&)> done, Older older = Older::kMayStay) const;

  [[nodiscard]] uint64_t size() const;
  // Records that an earlier daemon left and that did not hold.
  [[nodiscard]] uint64_t rejected() const { return rejected_; }
  // Whether the ring came with keys.
  [[nodiscard]] bool adopted() const { return adopted_; }
  [[nodiscard]] int descriptor() const { return memory_fd_.get(); }

 private:
  struct Head;
  struct Record;
  // The identity of a record: the tenant's digest and the hour, kNoHour for that of the index.
  struct Scope {
    Digest256 tenant;
    uint32_t hour = 0;
    friend bool operator==(const Scope&, const Scope&) = default;
  };
  struct HashScope {
    size_t operator()(const Scope& scope) const {
      return std::hash<Digest256>()(scope.tenant) ^ scope.hour;
    }
  };

  KeyRing(UniqueFd memory_fd, std::span<std::byte> memory);
  [[nodiscard]] static Result<std::unique_ptr<KeyRing>> Map(UniqueFd memory_fd);
  [[nodiscard]] Status CheckHead() const;
  void Format();
  void LoadRecords();
  [[nodiscard]] static bool IsFree(const Record& record);
  [[nodiscard]] static bool Holds(const Record& record);
  [[nodiscard]] std::span<Record> records() const;
  // REQUIRES of the following: mutex_ held.
  [[nodiscard]] Result<uint32_t> Obtain(const Scope& scope);
  [[nodiscard]] Result<uint32_t> Make(const Scope& scope);
  // kMaxKeys if there is none.
  [[nodiscard]] uint32_t FindFree() const;
  // Fills the free record; the counter is the caller's.
  void Put(uint32_t number, const Record& record);
  void Index(uint32_t number);
  void Wipe(uint32_t number);

  const UniqueFd memory_fd_;
  const std::span<std::byte> memory_;
  // Part of each nonce: even a counter that went back would not repeat one of another process.
  std::array<std::byte, 8> process_{};
  bool adopted_ = false;
  uint64_t rejected_ = 0;
  mutable std::mutex mutex_;  // guards what follows, and the memory
  std::unordered_map<uint64_t, uint32_t> by_id_;
  std::unordered_map<Scope, uint32_t, HashScope> by_scope_;  // to write with
  std::unordered_set<uint32_t> used_;                        // records, since BeginPass
  uint32_t next_free_ = 0;                                   // where the search begins
  uint64_t version_ = 1;                                     // of the set of keys
  struct Store;
  std::shared_ptr<Store> store_;  // null: the keys are in memory only
};

}  // namespace kvtier
