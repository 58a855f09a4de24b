// SPDX-License-Identifier: Apache-2.0
// Files and index of an encrypted disk tier over starts with and without keys.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/tiers/disk_fixture.h"
#include "tiers/index/index_start.h"
#include "tiers/storage/encrypted_file.h"
#include "tiers/storage/slot_cipher.h"

namespace kvtier {
namespace {

class EncryptedSetTest : public DiskTest {
 protected:
  EncryptedSetTest() : cipher_(SlotCipher::Create(KeyRing::Create().value()).value()) {}

  using HasKeys = std::function<Result<bool>(const std::vector<std::filesystem::path>&)>;

  [[nodiscard]] Result<DiskFiles> Open(HasKeys has_keys) {
    return OpenDiskFiles({.directories = directories_,
                          .bytes = kFiles * kFirstSlabOffset + kSlabs * kSlabBytes,
                          .slab_bytes = kSlabBytes,
                          .has_keys = std::move(has_keys),
                          .engine = DiskEngine::kPread},
                         &loop_);
  }
  [[nodiscard]] DiskFiles OpenEncrypted(bool has_keys) {
    return Open([has_keys](const auto&) { return has_keys; }).value();
  }
  [[nodiscard]] StartedIndex StartWith(const DiskFiles& files) {
    RebuildOptions options = Options();
    options.cipher = cipher_;
    return StartIndex(directories_, files, options, &loop_).value();
  }
  // Makes the set one of encrypted blocks 0 to count-1, which are in the index.
  void FillEncrypted(uint64_t count) {
    const DiskFiles files = OpenEncrypted(true);
    StartedIndex started = StartWith(files);
    WriteSlabHeader(0);
    IndexBatch batch;
    std::vector<std::pair<NamespaceId, NamespaceIdentity>> namespaces;
    for (uint64_t i = 0; i < count; ++i) {
      DiskBlock block = WriteBlock(0, i, i);
      Encrypt(block);
      if (namespaces.empty()) {
        namespaces.emplace_back(
            block.record.key.namespace_id,
            NamespaceIdentity{block.header.tenant, block.header.model, block.header.payload_bytes});
      }
      batch.puts.push_back(block.record);
      hashes_.push_back(block.record.key.hash);
    }
    batch.namespaces = namespaces;
    bool done = false;
    started.index->Apply(std::move(batch), [&](const Status& status) {
      EXPECT_TRUE(status.has_value());
      done = true;
    });
    loop_.RunUntil([&] { return done; });
  }
  // In place of the plain slot.
  void Encrypt(const DiskBlock& block) {
    AlignedBuffer plain(kSlotBytes);
    AlignedBuffer encrypted(kSlotBytes);
    EncodeSlotHeader(block.header, plain.span().first<kSlotHeaderBytes>());
    ASSERT_TRUE(cipher_->Encrypt(plain.span(), encrypted.span()).has_value());
    WriteBytes(block.record.location, encrypted.span());
  }
  [[nodiscard]] static std::vector<BlockHash> HashesOf(const IndexSnapshot& snapshot) {
    std::vector<BlockHash> hashes;
    for (const IndexRecord& record : snapshot.records) hashes.push_back(record.key.hash);
    std::ranges::sort(hashes);
    return hashes;
  }
  [[nodiscard]] std::vector<BlockHash> Expected() {
    std::ranges::sort(hashes_);
    return hashes_;
  }

  std::shared_ptr<SlotCipher> cipher_;
  std::vector<BlockHash> hashes_;
};

TEST_F(EncryptedSetTest, TurningEncryptionOnBeginsAnewAndSaysSo) {
  const DiskFiles files = OpenEncrypted(true);
  EXPECT_TRUE(files.created);
  ASSERT_FALSE(files.notes.empty());
  EXPECT_NE(files.notes.front().find("disk.encryption was turned on"), std::string::npos);
}

TEST_F(EncryptedSetTest, TurningEncryptionOffBeginsAnewAndSaysSo) {
  FillEncrypted(2);
  const DiskFiles files = Open(nullptr).value();
  EXPECT_TRUE(files.created);
  ASSERT_FALSE(files.notes.empty());
  EXPECT_NE(files.notes.front().find("disk.encryption was turned off"), std::string::npos);
}

TEST_F(EncryptedSetTest, AStartWithItsKeysFindsItsBlocks) {
  FillEncrypted(5);
  const DiskFiles files = OpenEncrypted(true);
  EXPECT_FALSE(files.created);
  const StartedIndex started = StartWith(files);
  EXPECT_EQ(started.found, IndexState::kGood);
  EXPECT_EQ(HashesOf(started.snapshot), Expected());
}

TEST_F(EncryptedSetTest, AStartWithoutKeysBeginsAnewAndSaysSo) {
  FillEncrypted(5);
  const DiskFiles files = OpenEncrypted(false);
  EXPECT_TRUE(files.created);
  ASSERT_FALSE(files.notes.empty());
  EXPECT_NE(files.notes.front().find("keys"), std::string::npos);
}

TEST_F(EncryptedSetTest, AnErrorOfTheKeysChangesNothing) {
  FillEncrypted(5);
  const auto refused = Open([](const auto&) -> Result<bool> {
    return MakeError(ErrorCode::kResourceExhausted, "ENOMEM", "locked memory");
  });
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().reason, "ENOMEM");
  EXPECT_EQ(HashesOf(StartWith(OpenEncrypted(true)).snapshot), Expected());
}

TEST_F(EncryptedSetTest, ALostIndexIsRebuiltWithTheKeysAndGoodAfterwards) {
  FillEncrypted(5);
  std::filesystem::remove_all(directory_ / "index");
  {
    const StartedIndex started = StartWith(OpenEncrypted(true));
    EXPECT_EQ(started.found, IndexState::kMissing);
    EXPECT_EQ(HashesOf(started.snapshot), Expected());
  }
  const StartedIndex again = StartWith(OpenEncrypted(true));
  EXPECT_EQ(again.found, IndexState::kGood);
  EXPECT_EQ(HashesOf(again.snapshot), Expected());
}

TEST_F(EncryptedSetTest, AnIndexWhoseKeyIsLostIsRebuiltFromTheHeaders) {
  FillEncrypted(3);
  const std::shared_ptr<SlotCipher> before = std::move(cipher_);
  cipher_ = SlotCipher::Create(KeyRing::Create().value()).value();
  const StartedIndex started = StartWith(OpenEncrypted(true));
  EXPECT_EQ(started.found, IndexState::kDamaged);
  ASSERT_TRUE(started.rebuilt.has_value());
  EXPECT_EQ(started.rebuilt->rejected[static_cast<size_t>(RebuildReject::kErased)], 3u);
  EXPECT_TRUE(started.snapshot.records.empty());
}

TEST_F(EncryptedSetTest, APlainSlotPutIntoAnEncryptedSetIsNotTakenIntoTheIndex) {
  FillEncrypted(3);
  WriteBlock(0, 5, 77);
  std::filesystem::remove_all(directory_ / "index");
  EXPECT_EQ(HashesOf(StartWith(OpenEncrypted(true)).snapshot), Expected());
}

}  // namespace
}  // namespace kvtier
