// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/slot_header.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "base/digest.h"

namespace kvtier {
namespace {

using Page = std::array<std::byte, kSlotHeaderBytes>;

SlotHeader FullHeader() {
  SlotHeader header;
  header.tenant = std::string(64, 't');
  header.model.bytes.fill(0x11);
  header.hash.bytes.fill(0x22);
  header.parent.emplace();
  header.parent->bytes.fill(0x33);
  header.address = DiskLocation{uint64_t{1} << 45};
  header.generation = 0xfffffffe;
  header.payload_bytes = kMaxPayloadBytes;
  header.payload_checksum.bytes.fill(0x44);
  header.tokens = 0xffff;
  header.depth = 0xffffffff;
  header.retention = RetentionClass::kMemory;
  header.created_s = 1'800'000'000;
  header.last_use_s = 0xffffffff;
  return header;
}

Page Encode(const SlotHeader& header) {
  Page page;
  page.fill(std::byte{0xee});
  EncodeSlotHeader(header, page);
  return page;
}

std::string ReasonOf(const Page& page) {
  const Result<SlotHeader> header = DecodeSlotHeader(page);
  return header ? "none" : header.error().reason;
}

// The page after a change, with a checksum that fits it again.
Page Tamper(const std::function<void(Page&)>& change) {
  Page page = Encode(FullHeader());
  change(page);
  std::memset(page.data() + 8, 0, 8);
  const uint64_t checksum = ChecksumHeader(page);
  std::memcpy(page.data() + 8, &checksum, sizeof(checksum));
  return page;
}

TEST(SlotHeaderTest, DecodesWhatWasEncoded) {
  const SlotHeader header = FullHeader();
  const Result<SlotHeader> decoded = DecodeSlotHeader(Encode(header));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(*decoded, header);
}

TEST(SlotHeaderTest, DecodesAHeaderOfAHostOnlySlotWithoutParent) {
  SlotHeader header;
  header.payload_bytes = 1;
  const Result<SlotHeader> decoded = DecodeSlotHeader(Encode(header));
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(*decoded, header);
  EXPECT_FALSE(decoded->address.valid());
  EXPECT_FALSE(decoded->parent.has_value());
}

TEST(SlotHeaderTest, RejectsEverySingleByteChange) {
  const Page good = Encode(FullHeader());
  for (size_t i = 0; i < good.size(); ++i) {
    for (const uint8_t flip : {0x01, 0x80, 0xff}) {
      Page bad = good;
      bad[i] ^= std::byte{flip};
      ASSERT_FALSE(DecodeSlotHeader(bad)) << "byte " << i << " ^ " << int{flip};
    }
  }
}

TEST(SlotHeaderTest, NamesTheBlockThatItWasMadeForAndNoOther) {
  const SlotHeader header = FullHeader();
  const NamespaceIdentity identity{header.tenant, header.model, header.payload_bytes};
  const Page page = Encode(header);
  EXPECT_TRUE(HeaderNames(identity, header.hash, header.tokens, page));

  NamespaceIdentity other = identity;
  other.tenant.pop_back();
  EXPECT_FALSE(HeaderNames(other, header.hash, header.tokens, page));
  other.tenant = std::string(63, 't') + 'u';
  EXPECT_FALSE(HeaderNames(other, header.hash, header.tokens, page));
  other = identity;
  other.model.bytes[31] ^= 1;
  EXPECT_FALSE(HeaderNames(other, header.hash, header.tokens, page));
  other = identity;
  --other.block_bytes;
  EXPECT_FALSE(HeaderNames(other, header.hash, header.tokens, page));
  BlockHash hash = header.hash;
  hash.bytes[0] ^= 1;
  EXPECT_FALSE(HeaderNames(identity, hash, header.tokens, page));
  EXPECT_FALSE(HeaderNames(identity, header.hash, header.tokens - 1, page));
}

TEST(SlotHeaderTest, NamesNothingWhereNoHeaderIs) {
  const SlotHeader header = FullHeader();
  const NamespaceIdentity identity{header.tenant, header.model, header.payload_bytes};
  for (const size_t at : {0u, 7u, 16u, 19u}) {
    Page page = Encode(header);
    page[at] ^= std::byte{1};
    EXPECT_FALSE(HeaderNames(identity, header.hash, header.tokens, page)) << at;
  }
  Page page = Encode(header);
  constexpr size_t kTenantBytesAt = 60;
  ASSERT_EQ(page[kTenantBytesAt], std::byte{64});
  page[kTenantBytesAt] = std::byte{0xff};
  EXPECT_FALSE(HeaderNames(identity, header.hash, header.tokens, page));
}

TEST(SlotHeaderTest, RejectsBytesThatWereNeverAHeader) {
  Page page{};
  EXPECT_EQ(ReasonOf(page), "bad_magic");
  page.fill(std::byte{0xff});
  EXPECT_EQ(ReasonOf(page), "bad_magic");
}

TEST(SlotHeaderTest, NamesAnotherVersionBeforeItsChecksum) {
  Page page = Encode(FullHeader());
  page[16] = std::byte{2};
  EXPECT_EQ(ReasonOf(page), "bad_version");
}

TEST(SlotHeaderTest, NamesADamagedHeader) {
  Page page = Encode(FullHeader());
  page[100] ^= std::byte{1};
  EXPECT_EQ(ReasonOf(page), "bad_header_checksum");
}

TEST(SlotHeaderTest, RejectsImpossibleFieldsUnderAGoodChecksum) {
  const struct {
    size_t offset;
    uint8_t value;
    const char* field;
  } kCases[] = {
      {20, 1, "zero"},
      {24, 1, "address"},
      {39, 1, "payload_bytes"},
      {58, 2, "retention"},
      {59, 2, "has_parent"},
      {59, 0, "parent"},
      {60, 65, "tenant_bytes"},
      {60, 63, "tenant"},
      {61, 1, "encryption_algorithm"},
      {62, 1, "zero"},
      {240, 1, "encryption_key_id"},
      {248, 1, "encryption_nonce"},
      {275, 1, "encryption_tag"},
      {276, 1, "zero_end"},
      {280, 1, "header_tag"},
      {296, 1, "padding"},
      {4095, 1, "padding"},
  };
  for (const auto& c : kCases) {
    const Page page = Tamper([&](Page& p) { p[c.offset] = std::byte{c.value}; });
    const Result<SlotHeader> header = DecodeSlotHeader(page);
    ASSERT_FALSE(header) << c.field;
    EXPECT_EQ(header.error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(header.error().reason, "bad_field");
    EXPECT_TRUE(header.error().context.starts_with(std::string(c.field) + " ="))
        << header.error().context;
  }
}

TEST(SlotHeaderTest, RejectsAnEmptyPayload) {
  const Page page = Tamper([](Page& p) { std::memset(p.data() + 32, 0, 8); });
  EXPECT_EQ(ReasonOf(page), "bad_field");
}

TEST(SlotHeaderTest, PlacingAHeaderChangesThoseFieldsAndKeepsTheRest) {
  SlotHeader header = FullHeader();
  Page page = Encode(header);
  PlaceSlotHeader({.address = DiskLocation{1 << 20},
                   .generation = 7,
                   .created_s = 1'900'000'000,
                   .last_use_s = 1'900'000'001},
                  page);
  header.address = DiskLocation{1 << 20};
  header.generation = 7;
  header.created_s = 1'900'000'000;
  header.last_use_s = 1'900'000'001;
  EXPECT_EQ(page, Encode(header));
}

// A slot as it is read from disk, and its expected content.
class SlotCheckTest : public ::testing::Test {
 protected:
  SlotCheckTest() : slot_(SlotBytes(kPayloadBytes), std::byte{0x5a}) {
    SlotHeader header;
    header.tenant = expected_.identity.tenant = "tenant";
    header.model.bytes.fill(0x11);
    header.hash.bytes.fill(0x22);
    header.address = DiskLocation{1 << 20};
    header.generation = 3;
    header.payload_bytes = kPayloadBytes;
    header.tokens = 16;
    header.payload_checksum = ChecksumPayload(std::span(slot_).subspan(kSlotHeaderBytes));
    EncodeSlotHeader(header, std::span(slot_).first<kSlotHeaderBytes>());
    expected_.identity.model = header.model;
    expected_.identity.block_bytes = header.payload_bytes;
    expected_.hash = header.hash;
    expected_.location = header.address;
    expected_.generation = header.generation;
    expected_.tokens = header.tokens;
  }
  [[nodiscard]] SlotVerdict Check() const { return CheckDiskSlot(expected_, slot_); }

  static constexpr uint64_t kPayloadBytes = 8192;
  std::vector<std::byte> slot_;
  SlotExpectation expected_;
};

TEST_F(SlotCheckTest, TheSlotExpectedIsGood) { EXPECT_EQ(Check(), SlotVerdict::kGood); }

TEST_F(SlotCheckTest, ASlotOfAnotherPlaceIsNotTheOneExpected) {
  expected_.location = DiskLocation{2 << 20};
  EXPECT_EQ(Check(), SlotVerdict::kIdentityMismatch);
}

TEST_F(SlotCheckTest, ASlotOfAnotherHashIsNotTheOneExpected) {
  expected_.hash.bytes[31] ^= 1;
  EXPECT_EQ(Check(), SlotVerdict::kIdentityMismatch);
}

TEST_F(SlotCheckTest, ASlotOfAnotherWriteModelTenantOrLengthIsNotTheOneExpected) {
  const SlotExpectation right = expected_;
  expected_.generation = 4;
  EXPECT_EQ(Check(), SlotVerdict::kIdentityMismatch);
  expected_ = right;
  expected_.identity.model.bytes[0] ^= 1;
  EXPECT_EQ(Check(), SlotVerdict::kIdentityMismatch);
  expected_ = right;
  expected_.identity.tenant = "other";
  EXPECT_EQ(Check(), SlotVerdict::kIdentityMismatch);
  expected_ = right;
  expected_.tokens = 15;
  EXPECT_EQ(Check(), SlotVerdict::kIdentityMismatch);
}

TEST_F(SlotCheckTest, ADamagedPayloadIsCorrupt) {
  slot_.back() ^= std::byte{1};
  EXPECT_EQ(Check(), SlotVerdict::kCorrupt);
}

}  // namespace
}  // namespace kvtier
