// SPDX-License-Identifier: Apache-2.0
// The worked example of docs/DISK_FORMAT.md, byte for byte.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/digest.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/slot_header.h"
#include "tiers/storage/superblock.h"

namespace kvtier {
namespace {

constexpr DiskGeometry kExample{64 * kMiB, 2, 8};
constexpr uint64_t kSlotBytes = 69632;

using Page = std::array<std::byte, 4096>;

uint64_t PathDigest(std::string_view path) {
  return ChecksumHeader(std::as_bytes(std::span(path)));
}

Digest256 HashOf(std::string_view text) { return Sha256(std::as_bytes(std::span(text))); }

// The page of the document's hex dump fenced as `name`: each row says its offset, and rows of zeros
// are left out.
Page Documented(const std::string& name) {
  std::ifstream document(KVTIER_SOURCE_DIR "/docs/DISK_FORMAT.md");
  std::string line;
  while (std::getline(document, line) && line != "```" + name) {
  }
  Page page{};
  size_t rows = 0;
  for (; std::getline(document, line) && line != "```"; ++rows) {
    size_t place = std::stoul(line.substr(0, 4), nullptr, 16);
    std::istringstream bytes(line.substr(6, 47));
    for (unsigned value = 0; bytes >> std::hex >> value;) {
      page.at(place++) = static_cast<std::byte>(value);
    }
  }
  EXPECT_GT(rows, 0u) << name << " is missing from the document";
  return page;
}

TEST(DiskFormatExampleTest, Superblock) {
  Superblock superblock;
  superblock.set_uuid = *Digest128::FromHex("6b767469657240008000646f63756d65");
  superblock.drive = 1;
  superblock.slab_bytes = kExample.slab_bytes;
  superblock.file_bytes = kExample.FileBytes(1);
  superblock.epoch = 3;
  superblock.seen_s[0] = 1'800'000'000;
  superblock.seen_s[1] = 1'800'000'000;
  superblock.paths[0] = PathDigest("/mnt/nvme0/kvtier");
  superblock.paths[1] = PathDigest("/mnt/nvme1/kvtier");
  Page page;
  EncodeSuperblock(superblock, page);
  EXPECT_EQ(page, Documented("superblock"));
}

TEST(DiskFormatExampleTest, SlabHeader) {
  SlabHeader header;
  header.slab = 2 * kMaxDrives + 1;
  header.slot_bytes = kSlotBytes;
  header.generation = 2;
  header.tenant = "research";
  header.model = HashOf("example model");
  Page page;
  EncodeSlabHeader(header, page);
  EXPECT_EQ(page, Documented("slab"));
}

TEST(DiskFormatExampleTest, SlotHeader) {
  std::vector<std::byte> payload(65536);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i % 251);
  SlotHeader header;
  header.tenant = "research";
  header.model = HashOf("example model");
  header.hash = HashOf("example block 1");
  header.parent = HashOf("example block 0");
  header.address = kExample.SlotStart(2 * kMaxDrives + 1, 7, kSlotBytes);
  header.generation = 9;
  header.payload_bytes = payload.size();
  header.payload_checksum = ChecksumPayload(payload);
  header.tokens = 16;
  header.depth = 1;
  header.created_s = 1'800'000'000;
  header.last_use_s = 1'800'000'600;
  Page page;
  EncodeSlotHeader(header, page);
  EXPECT_EQ(page, Documented("slot"));
}

TEST(DiskFormatExampleTest, PlacesInTheFiles) {
  const DiskLocation slot = kExample.SlotStart(2 * kMaxDrives + 1, 7, kSlotBytes);
  EXPECT_EQ(kExample.SlotsPerSlab(kSlotBytes), 963u);
  EXPECT_EQ(slot.offset, 4362567680u);
  EXPECT_EQ(kExample.FileOf(slot), 1u);
  EXPECT_EQ(kExample.OffsetInFile(slot), 135757824u);
}

}  // namespace
}  // namespace kvtier
