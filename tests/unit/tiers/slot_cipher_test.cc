// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/slot_cipher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "tests/fakes/seeded_random.h"
#include "tiers/storage/header_page.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

constexpr uint64_t kPayloadBytes = 5000;  // not a multiple of the I/O alignment

class SlotCipherTest : public ::testing::Test {
 protected:
  SlotCipherTest() : plain_(SlotBytes(kPayloadBytes)), encrypted_(plain_.span().size()) {
    cipher_ = SlotCipher::Create(KeyRing::Create().value()).value();
    SeededRandom random(1);
    const auto payload = plain_.span().subspan(kSlotHeaderBytes, kPayloadBytes);
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random.Next());
    header_.tenant = "tenant";
    header_.model.bytes.fill(0x11);
    header_.hash.bytes.fill(0x22);
    header_.parent.emplace();
    header_.parent->bytes.fill(0x33);
    header_.address = DiskLocation{8192};
    header_.generation = 7;
    header_.payload_bytes = kPayloadBytes;
    header_.payload_checksum = ChecksumPayload(payload);
    header_.tokens = 16;
    header_.depth = 1;
    header_.created_s = 1'748'736'000;
    header_.last_use_s = 1'748'736'100;
    EncodeSlotHeader(header_, plain_.span().first<kSlotHeaderBytes>());
    EXPECT_TRUE(cipher_->Encrypt(plain_.span(), encrypted_.span()).has_value());
  }

  [[nodiscard]] std::vector<std::byte> Copy() const {
    return {encrypted_.span().begin(), encrypted_.span().end()};
  }
  [[nodiscard]] SlotVerdict Check(std::span<const std::byte> slot, bool authenticated) const {
    return CheckDiskSlot({.identity = {header_.tenant, header_.model, kPayloadBytes},
                          .hash = header_.hash,
                          .location = header_.address,
                          .generation = header_.generation,
                          .tokens = header_.tokens,
                          .authenticated = authenticated},
                         slot);
  }
  // The header after a change, sealed again, as one does who cannot encrypt.
  [[nodiscard]] std::vector<std::byte> Forge(size_t offset, std::byte flip) const {
    std::vector<std::byte> slot = Copy();
    SlotFields fields;
    std::memcpy(&fields, slot.data(), sizeof(fields));
    fields.prefix.checksum = 0;
    auto bytes = std::as_writable_bytes(std::span(&fields, 1));
    bytes[offset] ^= flip;
    SealHeaderPage(bytes, std::span(slot).first<kSlotHeaderBytes>());
    return slot;
  }

  std::unique_ptr<SlotCipher> cipher_;
  SlotHeader header_;
  AlignedBuffer plain_;
  AlignedBuffer encrypted_;
};

TEST_F(SlotCipherTest, ASlotComesBackAsItWas) {
  std::vector<std::byte> slot = Copy();
  EXPECT_EQ(cipher_->Decrypt(slot), DecryptOutcome::kDecrypted);
  EXPECT_TRUE(std::ranges::equal(slot, plain_.span()));
  EXPECT_EQ(Check(slot, false), SlotVerdict::kGood);
  EXPECT_EQ(Check(slot, true), SlotVerdict::kGood);
}

TEST_F(SlotCipherTest, ASlotWithoutAParentComesBackToo) {
  header_.parent.reset();
  EncodeSlotHeader(header_, plain_.span().first<kSlotHeaderBytes>());
  ASSERT_TRUE(cipher_->Encrypt(plain_.span(), encrypted_.span()).has_value());
  std::vector<std::byte> slot = Copy();
  EXPECT_EQ(cipher_->Decrypt(slot), DecryptOutcome::kDecrypted);
  EXPECT_TRUE(std::ranges::equal(slot, plain_.span()));
}

TEST_F(SlotCipherTest, NothingOfContentOrHashesIsInWhatIsWritten) {
  const std::vector<std::byte> slot = Copy();
  const auto contains = [&](std::span<const std::byte> what) {
    return !std::ranges::search(slot, what).empty();
  };
  const auto payload = plain_.span().subspan(kSlotHeaderBytes, kPayloadBytes);
  for (size_t at = 0; at + 16 <= payload.size(); at += 16) {
    EXPECT_FALSE(contains(payload.subspan(at, 16)));
  }
  EXPECT_FALSE(contains(std::as_bytes(std::span(header_.hash.bytes)).first(16)));
  EXPECT_FALSE(contains(std::as_bytes(std::span(header_.parent->bytes)).first(16)));
  EXPECT_FALSE(contains(std::as_bytes(std::span(header_.payload_checksum.bytes))));
}

TEST_F(SlotCipherTest, TheSameSlotTwiceSharesNoBytes) {
  AlignedBuffer again(encrypted_.span().size());
  ASSERT_TRUE(cipher_->Encrypt(plain_.span(), again.span()).has_value());
  const auto first = encrypted_.span().subspan(kSlotHeaderBytes, kPayloadBytes);
  const auto second = again.span().subspan(kSlotHeaderBytes, kPayloadBytes);
  size_t equal = 0;
  for (size_t at = 0; at + 16 <= first.size(); at += 16) {
    equal += std::ranges::equal(first.subspan(at, 16), second.subspan(at, 16)) ? 1 : 0;
  }
  EXPECT_EQ(equal, 0u);
}

TEST_F(SlotCipherTest, EveryFlippedBitOfTheHeaderIsNoticed) {
  for (size_t byte = 0; byte < sizeof(SlotFields) + 16; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> slot = Copy();
      slot[byte] ^= static_cast<std::byte>(1 << bit);
      EXPECT_EQ(cipher_->Decrypt(slot), DecryptOutcome::kDamaged) << byte << "." << bit;
      EXPECT_NE(Check(slot, true), SlotVerdict::kGood);
    }
  }
}

// The checksum alone would not tell: it has no secret.
TEST_F(SlotCipherTest, EveryForgedBitOfTheHeaderIsNoticed) {
  for (size_t byte = sizeof(HeaderPagePrefix); byte < sizeof(SlotFields); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> slot = Forge(byte, static_cast<std::byte>(1 << bit));
      EXPECT_NE(cipher_->Decrypt(slot), DecryptOutcome::kDecrypted) << byte << "." << bit;
      EXPECT_NE(Check(slot, true), SlotVerdict::kGood);
      std::vector<std::byte> again = Forge(byte, static_cast<std::byte>(1 << bit));
      const bool in_payload_tag =
          byte >= offsetof(SlotFields, payload_tag) && byte < offsetof(SlotFields, zero_end);
      const auto outcome = cipher_->DecryptHeader(std::span(again).first<kSlotHeaderBytes>());
      // Bits of that tag concern the payload, which a header alone does not have.
      EXPECT_EQ(outcome == DecryptOutcome::kDecrypted, in_payload_tag) << byte << "." << bit;
    }
  }
}

TEST_F(SlotCipherTest, EveryFlippedByteOfThePayloadIsNoticed) {
  for (size_t byte = 0; byte < kPayloadBytes; ++byte) {
    std::vector<std::byte> slot = Copy();
    slot[kSlotHeaderBytes + byte] ^= static_cast<std::byte>(1 << byte % 8);
    EXPECT_EQ(cipher_->Decrypt(slot), DecryptOutcome::kDamaged) << byte;
    EXPECT_EQ(Check(slot, true), SlotVerdict::kCorrupt);
  }
}

TEST_F(SlotCipherTest, APlainSlotIsNotBelieved) {
  std::vector<std::byte> slot(plain_.span().begin(), plain_.span().end());
  EXPECT_EQ(Check(slot, true), SlotVerdict::kGood);
  EXPECT_EQ(cipher_->Decrypt(slot), DecryptOutcome::kDamaged);
  EXPECT_EQ(Check(slot, true), SlotVerdict::kCorrupt);
}

TEST_F(SlotCipherTest, ASlotWhoseKeyIsGoneIsErased) {
  EXPECT_EQ(cipher_->keys().Destroy("tenant", KeyRing::kNoHour), 1u);
  std::vector<std::byte> slot = Copy();
  EXPECT_EQ(cipher_->Decrypt(slot), DecryptOutcome::kNoKey);
  EXPECT_TRUE(std::ranges::equal(slot, encrypted_.span()));
  EXPECT_EQ(Check(slot, true), SlotVerdict::kErased);
}

TEST_F(SlotCipherTest, AHeaderAloneGivesItsHashes) {
  std::vector<std::byte> slot = Copy();
  const auto page = std::span(slot).first<kSlotHeaderBytes>();
  const Result<SlotHeader> without_key = DecodeEncryptedSlotHeader(page);
  ASSERT_TRUE(without_key.has_value());
  EXPECT_EQ(without_key->address, header_.address);
  EXPECT_EQ(without_key->hash, BlockHash{});
  EXPECT_EQ(cipher_->DecryptHeader(page), DecryptOutcome::kDecrypted);
  EXPECT_EQ(DecodeSlotHeader(page).value(), header_);
}

TEST_F(SlotCipherTest, APayloadLargerThanTheSlotIsDamage) {
  std::vector<std::byte> slot = Copy();
  EXPECT_EQ(cipher_->Decrypt(std::span(slot).first(2 * kSlotHeaderBytes)),
            DecryptOutcome::kDamaged);
}

TEST_F(SlotCipherTest, AnyBytesAreReadWithoutHarm) {
  SeededRandom random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> slot = Copy();
    const size_t end = random.Chance(0.5) ? sizeof(SlotFields) : kSlotHeaderBytes + kPayloadBytes;
    for (uint64_t i = random.Below(40) + 1; i > 0; --i) {
      slot[random.Below(end)] = static_cast<std::byte>(random.Next());
    }
    if (random.Chance(0.7)) {
      std::fill_n(slot.begin() + 8, 8, std::byte{0});
      const std::vector<std::byte> fields(slot.begin(), slot.begin() + kSlotHeaderBytes);
      SealHeaderPage(fields, std::span(slot).first<kSlotHeaderBytes>());
    }
    if (slot == Copy()) continue;
    EXPECT_NE(cipher_->Decrypt(slot), DecryptOutcome::kDecrypted);
  }
}

TEST_F(SlotCipherTest, HashesOfTheIndexComeBackAndDifferByTenantAndPlace) {
  BlockHash hash = header_.hash;
  BlockHash parent = header_.hash;
  ASSERT_TRUE(cipher_->EncryptHashes("tenant", &hash, &parent).has_value());
  EXPECT_NE(hash, header_.hash);
  EXPECT_NE(hash, parent);
  BlockHash again = header_.hash;
  ASSERT_TRUE(cipher_->EncryptHashes("tenant", &again, nullptr).has_value());
  EXPECT_EQ(again, hash);
  BlockHash other = header_.hash;
  ASSERT_TRUE(cipher_->EncryptHashes("other", &other, nullptr).has_value());
  EXPECT_NE(other, hash);
  ASSERT_TRUE(cipher_->DecryptHashes("tenant", &hash, &parent));
  EXPECT_EQ(hash, header_.hash);
  EXPECT_EQ(parent, header_.hash);
  EXPECT_FALSE(cipher_->DecryptHashes("unknown", &hash, nullptr));
}

TEST_F(SlotCipherTest, TokenIdsComeBackUnderTheirOwnBlockAndTenantAlone) {
  const std::vector<std::byte> ids(64, std::byte{0x5a});
  const auto sealed = cipher_->EncryptIds("tenant", 100, header_.hash, ids);
  ASSERT_TRUE(sealed.has_value());
  EXPECT_EQ(sealed->size(), ids.size() + SlotCipher::kSealedIdsBytes);
  EXPECT_EQ(std::ranges::search(*sealed, std::span(ids).first(8)).size(), 0u);
  EXPECT_EQ(cipher_->DecryptIds("tenant", header_.hash, *sealed), ids);
  EXPECT_TRUE(cipher_->DecryptIds("tenant", *header_.parent, *sealed).empty());
  EXPECT_TRUE(cipher_->DecryptIds("other", header_.hash, *sealed).empty());
  EXPECT_NE(*cipher_->EncryptIds("tenant", 100, header_.hash, ids), *sealed);
  cipher_->keys().Destroy("tenant", 101);
  EXPECT_TRUE(cipher_->DecryptIds("tenant", header_.hash, *sealed).empty());
}

TEST_F(SlotCipherTest, TokenIdsOfWhichAnyByteWasChangedAreNone) {
  const std::vector<std::byte> ids(8, std::byte{1});
  const std::vector<std::byte> sealed = *cipher_->EncryptIds("tenant", 100, header_.hash, ids);
  for (size_t i = 0; i < sealed.size(); ++i) {
    std::vector<std::byte> changed = sealed;
    changed[i] ^= std::byte{4};
    EXPECT_TRUE(cipher_->DecryptIds("tenant", header_.hash, changed).empty()) << i;
    changed.resize(i);
    EXPECT_TRUE(cipher_->DecryptIds("tenant", header_.hash, changed).empty()) << i;
  }
}

}  // namespace
}  // namespace kvtier
