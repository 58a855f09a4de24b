// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/fakes/seeded_random.h"
#include "tests/fakes/temporary_directory.h"
#include "tiers/storage/key_ring.h"

namespace kvtier {
namespace {

constexpr uint32_t kHour = 500'000;
constexpr uint64_t kOrder = 77;

RootKey Root(uint8_t seed) {
  std::array<std::byte, kGcmKeyBytes> bytes;
  bytes.fill(std::byte{seed});
  return RootKey(bytes);
}

std::vector<StoredKey> Keys(uint32_t count) {
  std::vector<StoredKey> keys(count);
  for (uint32_t i = 0; i < count; ++i) {
    keys[i].id = i + 1;
    keys[i].tenant = Sha256(std::as_bytes(std::span("tenant")));
    keys[i].hour = kHour + i;
    keys[i].key.fill(static_cast<std::byte>(i + 7));
  }
  return keys;
}

class KeyFileTest : public ::testing::Test {
 protected:
  KeyFileTest() : aes_(AesAlgorithms::Fetch().value()) {}

  [[nodiscard]] std::vector<std::byte> Encode(uint8_t root, uint32_t count) const {
    return EncodeKeyFile(aes_, Root(root), {kOrder, Keys(count)}).value();
  }
  [[nodiscard]] std::string ReasonOf(uint8_t root, std::span<const std::byte> file) const {
    const auto keys = DecodeKeyFile(aes_, Root(root), file);
    return keys ? "" : keys.error().reason;
  }
  [[nodiscard]] std::shared_ptr<KeyFile> File(uint8_t root) const {
    return std::make_shared<KeyFile>(directory_.path(), Root(root), aes_);
  }
  [[nodiscard]] std::filesystem::path path() const {
    return std::filesystem::path(directory_.path()) / "keys";
  }

  TestDirectory directory_;
  const AesAlgorithms aes_;
};

TEST_F(KeyFileTest, KeysComeBackAsTheyWere) {
  for (const uint32_t count : {0u, 1u, 100u, kMaxStoredKeys}) {
    const auto keys = DecodeKeyFile(aes_, Root(1), Encode(1, count));
    ASSERT_TRUE(keys) << keys.error().ToString();
    EXPECT_EQ(keys->version, kOrder);
    ASSERT_EQ(keys->keys.size(), count);
    const std::vector<StoredKey> expected = Keys(count);
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(keys->keys[i].id, expected[i].id);
      EXPECT_EQ(keys->keys[i].tenant, expected[i].tenant);
      EXPECT_EQ(keys->keys[i].hour, expected[i].hour);
      EXPECT_EQ(keys->keys[i].key, expected[i].key);
    }
  }
}

TEST_F(KeyFileTest, KeysDoNotLieInTheOpenAndNoTwoFilesAreAlike) {
  const std::vector<std::byte> file = Encode(1, 3);
  const std::vector<std::byte> again = Encode(1, 3);
  EXPECT_NE(file, again);
  for (const StoredKey& key : Keys(3)) {
    EXPECT_TRUE(std::ranges::search(file, key.key).empty());
    EXPECT_TRUE(std::ranges::search(file, std::as_bytes(std::span(&key.tenant, 1))).empty());
  }
}

TEST_F(KeyFileTest, AnotherRootKeyIsToldFromDamage) {
  std::vector<std::byte> file = Encode(1, 3);
  EXPECT_EQ(ReasonOf(2, file), "wrong_root_key");
  for (size_t byte = 0; byte < file.size(); ++byte) {
    file[byte] ^= std::byte{4};
    EXPECT_EQ(ReasonOf(1, file), "key_file_damaged") << byte;
    file[byte] ^= std::byte{4};
  }
  EXPECT_EQ(ReasonOf(1, file), "");
}

TEST_F(KeyFileTest, AnyBytesAreRefused) {
  SeededRandom random(3);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::byte> whole = Encode(1, 4);
    std::vector<std::byte> file = whole;
    file.resize(random.Below(file.size() + 200));
    for (int i = 0; i < 4 && !file.empty(); ++i) {
      file[random.Below(file.size())] = static_cast<std::byte>(random.Below(256));
    }
    const auto keys = DecodeKeyFile(aes_, Root(1), file);
    if (keys) {
      EXPECT_EQ(file, whole) << "nothing was changed after all";
    } else {
      EXPECT_EQ(keys.error().reason, "key_file_damaged");
    }
  }
}

TEST_F(KeyFileTest, AFileIsReplacedWholeAndClosedToOthers) {
  const auto file = File(1);
  EXPECT_TRUE(file->Load(std::nullopt)->keys.empty()) << "there is none yet";
  ASSERT_TRUE(file->Save({1, Keys(5)}));
  ASSERT_TRUE(file->Save({2, Keys(2)}));
  // An older state that is saved later, by another thread, does not come back.
  ASSERT_TRUE(file->Save({1, Keys(5)}));
  EXPECT_EQ(File(1)->Load(std::nullopt)->keys.size(), 2u);
  struct stat status {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(File(1)->Load(std::nullopt)->version, 2u);
  ASSERT_TRUE(file->RemoveOlder(2));
  EXPECT_TRUE(std::filesystem::exists(path()));
  ASSERT_TRUE(file->RemoveOlder(3));
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_TRUE(KeyFile::Remove(directory_.path()));
}

TEST_F(KeyFileTest, ThePreviousRootKeyOpensWhatTheNewOneThenWraps) {
  ASSERT_TRUE(File(1)->Save({1, Keys(5)}));
  const auto rotated = File(2);
  const Error refused = rotated->Load(std::nullopt).error();
  EXPECT_EQ(refused.reason, "wrong_root_key");
  EXPECT_EQ(refused.context.find(path().native() + ": "), 0) << refused.context;
  const auto keys = rotated->Load(Root(1));
  ASSERT_TRUE(keys) << keys.error().ToString();
  ASSERT_TRUE(rotated->Save(*keys));
  EXPECT_EQ(File(2)->Load(std::nullopt)->keys.size(), 5u);
  EXPECT_EQ(File(1)->Load(std::nullopt).error().reason, "wrong_root_key");
}

TEST_F(KeyFileTest, AFullDirectoryOrALinkIsAnError) {
  std::filesystem::create_symlink("/dev/zero", path());
  EXPECT_FALSE(File(1)->Load(std::nullopt));
}

// --- with a ring ---

TEST_F(KeyFileTest, StoredKeysDecryptAfterARebootAndAreNotWrittenWithAgain) {
  const std::unique_ptr<KeyRing> before = KeyRing::Create().value();
  const SlotKey slot = before->ForSlot("tenant", kHour).value();
  const SecretKey index = before->ForIndex("tenant").value();
  ASSERT_TRUE(File(1)->Save(before->Copy()));

  // Twice from the same file, as after a file that was put back.
  std::set<std::vector<std::byte>> used{{slot.key.gcm().begin(), slot.key.gcm().end()}};
  for (int start = 0; start < 2; ++start) {
    const std::unique_ptr<KeyRing> after = KeyRing::Create().value();
    after->Load(File(1)->Load(std::nullopt).value());
    EXPECT_EQ(after->size(), 2u);
    ASSERT_TRUE(after->Find("tenant", slot.id).has_value());
    EXPECT_TRUE(std::ranges::equal(after->Find("tenant", slot.id)->xts(), slot.key.xts()));
    EXPECT_TRUE(std::ranges::equal(after->FindForIndex("tenant")->xts(), index.xts()));
    const SlotKey fresh = after->ForSlot("tenant", kHour).value();
    EXPECT_NE(fresh.id, slot.id);
    EXPECT_TRUE(used.insert({fresh.key.gcm().begin(), fresh.key.gcm().end()}).second);
  }
}

TEST_F(KeyFileTest, ADestroyedKeyIsNotInTheNextFile) {
  const std::unique_ptr<KeyRing> ring = KeyRing::Create().value();
  (void)ring->ForSlot("tenant", kHour).value();
  (void)ring->ForSlot("other", kHour).value();
  const uint64_t version = ring->Copy().version;
  EXPECT_EQ(ring->Destroy("tenant", KeyRing::kNoHour), 1u);
  const KeyRing::Contents contents = ring->Copy();
  EXPECT_GT(contents.version, version);
  ASSERT_EQ(contents.keys.size(), 1u);
}

}  // namespace
}  // namespace kvtier
