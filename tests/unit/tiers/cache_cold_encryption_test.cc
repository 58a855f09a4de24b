// SPDX-License-Identifier: Apache-2.0
// Hosts that share a store and a root key: what lies in the store is of no use without it.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/tiers/cache_cold_fixture.h"
#include "tiers/cold/encrypted_store.h"

namespace kvtier {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class CacheColdEncryptionTest : public CacheColdTest {
 protected:
  CacheColdEncryptionTest() {
    change_environment_ = [this](CacheEnvironment* environment, IndexSnapshot*) {
      store_.loop = &machine_->loop;
      encrypted_.reset();
      environment->cold = &store_;
      if (!root_key_) return;
      std::array<std::byte, kGcmKeyBytes> bytes{};
      bytes.fill(std::byte{*root_key_});
      encrypted_ =
          std::make_unique<EncryptedStore>(&store_, environment->executor, environment->loop,
                                           RootKey(bytes), AesAlgorithms::Fetch().value());
      environment->cold = encrypted_.get();
    };
  }
  // The cache goes before the store that it uses.
  ~CacheColdEncryptionTest() override { cache_.reset(); }

  [[nodiscard]] FakeColdStore::Object& FirstObject() { return store_.objects.begin()->second; }
  // Loads all blocks, whose first object is no good.
  void ExpectFirstBlockMissed(MissReason reason) {
    const AcquireReply reply = Acquire(kAlice, hashes_);
    EXPECT_EQ(LastProgress(reply.load).ready, 0u);
    EXPECT_EQ(LastProgress(reply.load).miss, reason);
    Release(kAlice, HandlesOf(reply));
    Settle();
  }
  // The store's name of the first block.
  [[nodiscard]] std::string HiddenName(const BlockHash& hash) {
    std::vector<std::string> before;
    for (const auto& [name, object] : store_.objects) before.push_back(name);
    encrypted_->Delete({Name(hash)}, 1000, [](const Status&) {});
    Settle();
    for (const std::string& name : before) {
      if (!store_.objects.contains(name)) return name;
    }
    return {};
  }

  std::optional<uint8_t> root_key_ = 1;
  std::unique_ptr<EncryptedStore> encrypted_;
};

TEST_F(CacheColdEncryptionTest, AHostWithTheSameRootKeyIsServedByteForByte) {
  WriteByAnotherHost(hashes_);
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_EQ(LastProgress(reply.load).ready, 4u);
  ExpectBytes(hashes_, reply);
  EXPECT_EQ(stats().read_blocks, 4u);
}

TEST_F(CacheColdEncryptionTest, TheStoreHasNeitherBytesNorHashes) {
  WriteByAnotherHost(hashes_);
  for (const BlockHash& hash : hashes_) {
    std::vector<std::byte> plain(kBlockBytes);
    FillFromHash(hash, plain);
    const auto hash_bytes = std::as_bytes(std::span(hash.bytes));
    for (const auto& [name, object] : store_.objects) {
      EXPECT_EQ(name.find(hash.Hex()), std::string::npos);
      const std::span<const std::byte> bytes = object.bytes;
      EXPECT_TRUE(std::ranges::search(bytes, std::span(plain).first(32)).empty());
      EXPECT_TRUE(std::ranges::search(bytes, hash_bytes).empty());
    }
  }
}

TEST_F(CacheColdEncryptionTest, AHostWithAnotherRootKeyMissesAndHarmsNothing) {
  WriteByAnotherHost(hashes_);
  root_key_ = 2;
  StartAnotherHost();
  EXPECT_THAT(Acquire(kAlice, hashes_).hits, IsEmpty());
  EXPECT_EQ(Lookups(ColdAnswer::kAbsent), 1u);
  EXPECT_EQ(store_.gets, 0u);
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  AdvanceAndTick(kAfterMs);
  EXPECT_THAT(store_.objects, SizeIs(8)) << "of each what it wrote";
  root_key_ = 1;
  StartAnotherHost();
  ExpectBytes(hashes_, Acquire(kAlice, hashes_));
  EXPECT_EQ(stats().read_blocks, 4u);
}

TEST_F(CacheColdEncryptionTest, AHostWithoutEncryptionMisses) {
  WriteByAnotherHost(hashes_);
  root_key_.reset();
  StartAnotherHost();
  EXPECT_THAT(Acquire(kAlice, hashes_).hits, IsEmpty());
  EXPECT_EQ(Lookups(ColdAnswer::kAbsent), 1u);
}

TEST_F(CacheColdEncryptionTest, NoBitOfAnObjectCanBeChanged) {
  WriteByAnotherHost(hashes_);
  const std::string name = HiddenName(hashes_[0]);
  WriteByAnotherHost(hashes_);
  const FakeColdStore::Object whole = store_.objects.at(name);
  for (const size_t position : {size_t{8}, size_t{64}, size_t{200}, size_t{260}, size_t{290},
                                kSlotHeaderBytes, whole.bytes.size() - 1}) {
    StartAnotherHost();
    store_.objects[name] = whole;
    store_.objects[name].bytes[position] ^= std::byte{1};
    ExpectFirstBlockMissed(MissReason::kChecksumMismatch);
  }
}

// A host that can write to the store can make whatever a plain store would serve.
TEST_F(CacheColdEncryptionTest, APlainObjectIsNotBelieved) {
  WriteByAnotherHost(hashes_);
  const std::string name = HiddenName(hashes_[0]);
  root_key_.reset();
  store_.objects.clear();
  WriteByAnotherHost(hashes_);
  const FakeColdStore::Object plain = store_.objects.at(Name(hashes_[0]));
  root_key_ = 1;
  store_.objects.clear();
  WriteByAnotherHost(hashes_);
  store_.objects.at(name) = plain;
  ExpectFirstBlockMissed(MissReason::kChecksumMismatch);
}

TEST_F(CacheColdEncryptionTest, AnotherBlockUnderTheRightNameIsNotServed) {
  WriteByAnotherHost(hashes_);
  for (auto& [name, object] : store_.objects) object = FirstObject();
  const AcquireReply reply = Acquire(kAlice, hashes_);
  EXPECT_LE(LastProgress(reply.load).ready, 1u);
  EXPECT_GE(FailedReads(MissReason::kIdentityMismatch), 1u);
  ExpectBytes({hashes_.begin(), hashes_.begin() + LastProgress(reply.load).ready},
              {.hits = {reply.hits.begin(), reply.hits.begin() + LastProgress(reply.load).ready}});
}

TEST_F(CacheColdEncryptionTest, VerifiesWhatItReads) {
  WriteByAnotherHost(hashes_);
  ExpectBytes(hashes_, Acquire(kAlice, hashes_));
  FirstObject().bytes.back() ^= std::byte{1};
  VerifyResult result;
  cache_->VerifyStep(
      0, 100, [&](const VerifyResult& verified) { result = verified; }, Cache::Verified::kCold);
  Settle();
  EXPECT_EQ(result.checked, 4u);
  EXPECT_EQ(result.bad, 1u);
  EXPECT_THAT(store_.objects, SizeIs(3));
}

TEST_F(CacheColdEncryptionTest, AnEvictionByHandReachesTheStore) {
  Start(ColdSetup());
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  AdvanceAndTick(kAfterMs);
  ASSERT_THAT(store_.objects, SizeIs(4));
  EXPECT_EQ(cache_->Evict({pool_.namespace_id, hashes_[3]}, std::nullopt), EvictOutcome::kEvicted);
  Settle();
  EXPECT_THAT(store_.objects, SizeIs(3));
}

TEST_F(CacheColdEncryptionTest, WhatItDoesNotAnswerAnyMoreIsNotCalled) {
  WriteByAnotherHost(hashes_);
  const PendingAcquire pending = BeginAcquire(kAlice, hashes_);
  cache_.reset();
  encrypted_.reset();
  machine_->loop.RunAll();
  EXPECT_FALSE(pending.succeeded());
}

}  // namespace
}  // namespace kvtier
