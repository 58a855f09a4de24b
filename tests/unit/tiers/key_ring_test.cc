// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/key_ring.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fakes/fake_executor.h"
#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

constexpr size_t kBytes = 4096 + KeyRing::kMaxKeys * 128;

std::unique_ptr<KeyRing> NewRing() {
  Result<std::unique_ptr<KeyRing>> ring = KeyRing::Create();
  if (!ring) ADD_FAILURE() << ring.error().ToString();
  return std::move(ring).value();
}

UniqueFd Duplicate(const KeyRing& ring) { return UniqueFd(::dup(ring.descriptor())); }

// As after a restart: the first ring is gone, its memory is not.
std::unique_ptr<KeyRing> Restart(std::unique_ptr<KeyRing> ring) {
  UniqueFd kept = Duplicate(*ring);
  ring.reset();
  Result<std::unique_ptr<KeyRing>> adopted = KeyRing::Adopt(std::move(kept));
  if (!adopted) ADD_FAILURE() << adopted.error().ToString();
  return std::move(adopted).value();
}

std::vector<std::byte> BytesOf(const SecretKey& key) {
  return {key.xts().begin(), key.xts().end()};
}

// The ring's memory as another process sees it.
class Memory {
 public:
  explicit Memory(int descriptor)
      : address_(static_cast<std::byte*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0))) {}
  ~Memory() { ::munmap(address_, kBytes); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return {address_, kBytes}; }
  [[nodiscard]] bool Contains(const std::vector<std::byte>& what) const {
    return std::search(address_, address_ + kBytes, what.begin(), what.end()) != address_ + kBytes;
  }

 private:
  std::byte* const address_;
};

TEST(KeyRingTest, AKeyIsFoundByItsTenantAndIdOnly) {
  const auto ring = NewRing();
  const Result<SlotKey> key = ring->ForSlot("a", 100);
  ASSERT_TRUE(key.has_value());
  const auto found = ring->Find("a", key->id);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(BytesOf(*found), BytesOf(key->key));
  EXPECT_FALSE(ring->Find("b", key->id).has_value());
  EXPECT_FALSE(ring->Find("a", key->id + 1).has_value());
  EXPECT_FALSE(ring->Find("a", 0).has_value());
}

TEST(KeyRingTest, TenantsAndHoursHaveKeysOfTheirOwn) {
  const auto ring = NewRing();
  std::set<std::vector<std::byte>> keys;
  for (const char* tenant : {"a", "b"}) {
    for (const uint32_t hour : {100u, 101u}) keys.insert(BytesOf(ring->ForSlot(tenant, hour)->key));
    keys.insert(BytesOf(*ring->ForIndex(tenant)));
  }
  EXPECT_EQ(keys.size(), 6u);
  EXPECT_EQ(ring->size(), 6u);
}

TEST(KeyRingTest, ARestartFindsTheSameKeys) {
  auto ring = NewRing();
  const auto slot = ring->ForSlot("a", 100);
  const std::vector<std::byte> index = BytesOf(*ring->ForIndex("a"));
  ring = Restart(std::move(ring));
  EXPECT_TRUE(ring->adopted());
  EXPECT_EQ(ring->rejected(), 0u);
  EXPECT_EQ(BytesOf(*ring->Find("a", slot->id)), BytesOf(slot->key));
  EXPECT_EQ(BytesOf(*ring->FindForIndex("a")), index);
  EXPECT_EQ(ring->ForSlot("a", 100)->id, slot->id);
}

TEST(KeyRingTest, NoNonceComesTwiceForAnyKeyOverManyRestarts) {
  auto ring = NewRing();
  std::set<std::pair<uint64_t, GcmNonce>> seen;
  for (int start = 0; start < 20; ++start) {
    for (int i = 0; i < 50; ++i) {
      const auto key = ring->ForSlot("a", 100 + i % 2);
      ASSERT_TRUE(key.has_value());
      EXPECT_TRUE(seen.emplace(key->id, key->nonce).second);
      EXPECT_TRUE(seen.emplace(key->id, NonceAfter(key->nonce)).second);
    }
    ring = Restart(std::move(ring));
  }
  EXPECT_EQ(ring->size(), 2u);
}

TEST(KeyRingTest, NoNonceComesTwiceWhenThreadsTakeThemAtOnce) {
  const auto ring = NewRing();
  std::vector<std::vector<GcmNonce>> taken(4);
  std::vector<std::thread> threads;
  for (auto& mine : taken) {
    threads.emplace_back([&ring, &mine] {
      for (int i = 0; i < 500; ++i) mine.push_back(ring->ForSlot("a", 100)->nonce);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<GcmNonce> seen;
  for (const auto& mine : taken) seen.insert(mine.begin(), mine.end());
  EXPECT_EQ(seen.size(), 2000u);
}

// A process is killed between any two instructions, and the next one goes on with its keys: it
// sends the nonces that it took through a pipe before it could have used them.
TEST(KeyRingTest, NoNonceComesTwiceWhenProcessesAreKilled) {
  const auto ring = NewRing();
  std::set<std::pair<uint64_t, GcmNonce>> seen;
  SeededRandom random(1);
  for (int kill = 0; kill < 50; ++kill) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto adopted = KeyRing::Adopt(Duplicate(*ring));
      while (adopted.has_value()) {
        const auto key = (*adopted)->ForSlot("a", 100);
        if (!key) break;
        std::array<std::byte, 20> told;
        std::memcpy(told.data(), &key->id, 8);
        std::memcpy(told.data() + 8, key->nonce.data(), 12);
        if (::write(ends[1], told.data(), told.size()) != 20) break;
      }
      ::_exit(1);
    }
    ::close(ends[1]);
    uint64_t left = 1 + random.Below(200);
    std::array<std::byte, 20> told;
    while (::read(ends[0], told.data(), told.size()) == 20) {
      if (left > 0 && --left == 0) ::kill(child, SIGKILL);
      uint64_t id;
      GcmNonce nonce;
      std::memcpy(&id, told.data(), 8);
      std::memcpy(nonce.data(), told.data() + 8, 12);
      EXPECT_TRUE(seen.emplace(id, nonce).second);
      EXPECT_TRUE(seen.emplace(id, NonceAfter(nonce)).second);
    }
    ::close(ends[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
  }
  EXPECT_GT(seen.size(), 100u);
}

TEST(KeyRingTest, AKeyWhoseCounterDoesNotHoldDecryptsButIsNotWrittenWith) {
  auto ring = NewRing();
  const auto before = ring->ForSlot("a", 100);
  const Memory memory(ring->descriptor());
  // The counter's word follows the record's checksum.
  memory.bytes()[4096 + 8 + 4] ^= std::byte{1};
  const auto other = ring->ForSlot("a", 100);
  EXPECT_NE(other->id, before->id);
  memory.bytes()[4096 + 8 + 6] ^= std::byte{4};
  ring = Restart(std::move(ring));
  EXPECT_TRUE(ring->Find("a", before->id).has_value());
  EXPECT_NE(ring->ForSlot("a", 100)->id, before->id);
}

TEST(KeyRingTest, DestroyedKeysAreGoneFromTheMemory) {
  const auto ring = NewRing();
  const Memory memory(ring->descriptor());
  const auto early = ring->ForSlot("a", 100);
  const auto late = ring->ForSlot("a", 101);
  const auto other = ring->ForSlot("b", 100);
  ASSERT_TRUE(memory.Contains(BytesOf(early->key)));
  EXPECT_EQ(ring->EndHour("a"), 102u);
  EXPECT_EQ(ring->Destroy("a", 101), 1u);
  EXPECT_FALSE(memory.Contains(BytesOf(early->key)));
  EXPECT_FALSE(ring->Find("a", early->id).has_value());
  EXPECT_TRUE(ring->Find("a", late->id).has_value());
  EXPECT_TRUE(ring->Find("b", other->id).has_value());
  EXPECT_NE(ring->ForSlot("a", 100)->id, early->id);
}

TEST(KeyRingTest, DestroyingAllHoursLeavesTheKeyOfTheIndex) {
  const auto ring = NewRing();
  for (uint32_t hour = 0; hour < 5; ++hour) ASSERT_TRUE(ring->ForSlot("a", hour).has_value());
  ASSERT_TRUE(ring->ForIndex("a").has_value());
  EXPECT_EQ(ring->Destroy("a", KeyRing::kNoHour), 5u);
  EXPECT_TRUE(ring->FindForIndex("a").has_value());
}

TEST(KeyRingTest, KeysThatNoBlockNeedsAreWipedUnlessWrittenWithMeanwhile) {
  const auto ring = NewRing();
  const auto id = [&](const char* tenant, uint32_t hour) {
    return ring->ForSlot(tenant, hour)->id;
  };
  const uint64_t old_a = id("a", 100), kept_a = id("a", 102), used_a = id("a", 101);
  const uint64_t later_a = id("a", 103), only_b = id("b", 200);
  ring->BeginPass();
  EXPECT_EQ(id("a", 101), used_a);
  HoursOfTenants in_use;
  in_use["a"].Add(102 * 3600, 102 * 3600);
  EXPECT_EQ(ring->DestroyUnused(in_use), 3u);
  EXPECT_FALSE(ring->Find("a", old_a).has_value());
  EXPECT_FALSE(ring->Find("a", later_a).has_value());
  EXPECT_FALSE(ring->Find("b", only_b).has_value());
  EXPECT_TRUE(ring->Find("a", used_a).has_value());
  EXPECT_TRUE(ring->Find("a", kept_a).has_value());
}

TEST(KeyRingTest, WhatWaitsUntilKeysAreStoredMayCallTheRing) {
  const std::unique_ptr<KeyRing> ring = NewRing();
  FakeLoop loop;
  FakeExecutor executor(&loop);
  ring->KeepStored([](const KeyRing::Contents&) { return true; }, &executor);
  ASSERT_TRUE(ring->ForSlot("tenant", 1));
  ring->WhenStored([](const Status&) {});
  loop.RunAll();
  uint64_t keys = 0;
  ring->WhenStored([&](const Status&) { keys = ring->Copy().keys.size(); });
  EXPECT_EQ(keys, 1u);
}

TEST(KeyRingTest, KeysThatAreStoredBesideOlderOnesAreStoredButThoseAreNotGone) {
  const std::unique_ptr<KeyRing> ring = NewRing();
  FakeLoop loop;
  FakeExecutor executor(&loop);
  bool alone = false;
  ring->KeepStored([&](const KeyRing::Contents&) { return alone; }, &executor);
  std::vector<std::string> ends;
  const auto wait = [&](KeyRing::Older older) {
    ring->WhenStored(
        [&](const Status& status) { ends.push_back(status ? "" : status.error().reason); }, older);
    loop.RunAll();
  };
  wait(KeyRing::Older::kMayStay);
  wait(KeyRing::Older::kGone);
  alone = true;
  wait(KeyRing::Older::kGone);
  EXPECT_THAT(ends, testing::ElementsAre("", "older_keys_stored", ""));
}

TEST(KeyRingTest, VersionsGoOnFromThoseOfAFile) {
  const std::unique_ptr<KeyRing> ring = NewRing();
  ring->Load({.version = 1000, .keys = {}});
  EXPECT_GT(ring->Copy().version, 1000u);
}

TEST(KeyRingTest, AFullRingRefusesAnotherHourAndHasRoomAgainWhenOneEnds) {
  const auto ring = NewRing();
  for (uint32_t hour = 0; hour < KeyRing::kMaxKeys; ++hour) {
    ASSERT_TRUE(ring->ForSlot("a", hour).has_value());
  }
  const auto more = ring->ForSlot("a", KeyRing::kMaxKeys);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().reason, "key_ring_full");
  EXPECT_TRUE(ring->ForSlot("a", 7).has_value());
  EXPECT_EQ(ring->Destroy("a", 1), 1u);
  EXPECT_TRUE(ring->ForSlot("a", KeyRing::kMaxKeys).has_value());
}

TEST(KeyRingTest, MemoryOfAnotherKindIsNotAdopted) {
  UniqueFd plain(::memfd_create("plain", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(plain.get(), kBytes), 0);
  EXPECT_EQ(KeyRing::Adopt(std::move(plain)).error().reason, "not_sealed");
  UniqueFd small(::memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(small.get(), 4096), 0);
  ASSERT_EQ(::fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_EQ(KeyRing::Adopt(std::move(small)).error().reason, "size_changed");
  const auto ring = NewRing();
  const Memory memory(ring->descriptor());
  memory.bytes()[8] ^= std::byte{1};
  EXPECT_EQ(KeyRing::Adopt(Duplicate(*ring)).error().reason, "version");
  memory.bytes()[0] ^= std::byte{1};
  EXPECT_EQ(KeyRing::Adopt(Duplicate(*ring)).error().reason, "damaged");
}

// Whatever the memory says, a key that is given is one that was made; a changed record is not.
TEST(KeyRingTest, HostileMemoryCostsKeysAndNothingElse) {
  SeededRandom random(7);
  for (int round = 0; round < 200; ++round) {
    auto ring = NewRing();
    std::vector<std::pair<uint64_t, std::vector<std::byte>>> made;
    for (uint32_t hour = 0; hour < 8; ++hour) {
      const auto key = ring->ForSlot("a", hour);
      made.emplace_back(key->id, BytesOf(key->key));
    }
    {
      const Memory memory(ring->descriptor());
      for (int i = 0; i < 4; ++i) {
        const size_t at = 4096 + random.Below(16 * 128);
        memory.bytes()[at] ^= static_cast<std::byte>(1 + random.Below(255));
      }
    }
    ring = Restart(std::move(ring));
    for (const auto& [id, bytes] : made) {
      const auto found = ring->Find("a", id);
      if (found) {
        EXPECT_EQ(BytesOf(*found), bytes);
      }
    }
    EXPECT_GE(ring->size() + ring->rejected(), 8u);
    EXPECT_TRUE(ring->ForSlot("a", 3).has_value());
  }
}

}  // namespace
}  // namespace kvtier
