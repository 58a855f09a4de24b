// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tiers/disk_fixture.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/disk_set_file.h"

namespace kvtier {

DiskTest::DiskTest() {
  for (const auto& directory : directories_) std::filesystem::create_directory(directory);
  OpenFiles();
}

DiskFiles DiskTest::OpenFiles() {
  auto files = OpenDiskFiles({.directories = directories_,
                              .bytes = kFiles * kFirstSlabOffset + kSlabs * kSlabBytes,
                              .slab_bytes = kSlabBytes,
                              .engine = DiskEngine::kPread},
                             &loop_);
  EXPECT_TRUE(files) << files.error().ToString();
  geometry_ = files->geometry;
  set_uuid_ = files->set_uuid;
  epoch_ = files->epoch;
  KVT_CHECK(geometry_.slabs() == kSlabs);
  return *std::move(files);
}

std::filesystem::path DiskTest::FilePath(uint32_t file) const {
  return directories_[file] / kDiskFileName;
}

void DiskTest::WriteBytes(DiskLocation location, std::span<const std::byte> bytes) {
  const UniqueFd fd(::open(FilePath(geometry_.FileOf(location)).c_str(), O_WRONLY | O_CLOEXEC));
  const auto offset = static_cast<off_t>(geometry_.OffsetInFile(location));
  ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), offset),
            static_cast<ssize_t>(bytes.size()));
}

void DiskTest::Flip(DiskLocation location, uint64_t offset) {
  const UniqueFd fd(::open(FilePath(geometry_.FileOf(location)).c_str(), O_RDWR | O_CLOEXEC));
  const auto position = static_cast<off_t>(geometry_.OffsetInFile(location) + offset);
  uint8_t byte = 0;
  ASSERT_EQ(::pread(fd.get(), &byte, 1, position), 1);
  byte ^= 0x10;
  ASSERT_EQ(::pwrite(fd.get(), &byte, 1, position), 1);
}

void DiskTest::WriteSlabHeader(uint64_t slab, SlabHeader header) {
  if (header.slot_bytes == 0) header.slot_bytes = kSlotBytes;
  header.tenant = "uid:0";
  header.model = TestHash(100, 0);
  std::array<std::byte, kSlabHeaderBytes> page;
  EncodeSlabHeader(header, page);
  WriteBytes(SlabStart(slab), page);
}

SlotHeader DiskTest::Header(uint64_t slab, uint64_t slot, uint64_t number) const {
  return {.tenant = "uid:0",
          .model = TestHash(100, 0),
          .hash = TestHash(1, number),
          .address = Slot(slab, slot),
          .generation = static_cast<uint32_t>(number) + 1,
          .payload_bytes = kPayloadBytes,
          .tokens = 16,
          .depth = static_cast<uint32_t>(number),
          .created_s = kNowS - 200,
          .last_use_s = kNowS - 100};
}

void DiskTest::WriteBlockAt(DiskLocation location, const SlotHeader& header) {
  std::vector<std::byte> slot(kSlotHeaderBytes + kPayloadBytes);
  const auto payload = std::span(slot).subspan(kSlotHeaderBytes);
  FillFromHash(header.hash, payload);
  SlotHeader sealed = header;
  sealed.payload_checksum = ChecksumPayload(payload);
  EncodeSlotHeader(sealed, std::span(slot).first<kSlotHeaderBytes>());
  WriteBytes(location, slot);
}

DiskBlock DiskTest::WriteBlock(uint64_t slab, uint64_t slot, uint64_t number) {
  const SlotHeader header = Header(slab, slot, number);
  WriteBlockAt(header.address, header);
  return {.header = header,
          .record = {.key = {NamespaceId(0), header.hash},
                     .location = header.address,
                     .generation = header.generation,
                     .depth = header.depth,
                     .created_s = header.created_s,
                     .last_use_s = header.last_use_s,
                     .tokens = header.tokens,
                     .retention = header.retention}};
}

std::vector<DiskBlock> DiskTest::Fill(uint64_t blocks) {
  for (uint64_t slab = 0; slab < kSlabs; ++slab) WriteSlabHeader(slab);
  std::vector<DiskBlock> stored;
  for (uint64_t i = 0; i < blocks; ++i) {
    stored.push_back(WriteBlock(i / kSlotsPerSlab, i % kSlotsPerSlab, i));
  }
  return stored;
}

IndexSnapshot DiskTest::SnapshotOf(const std::vector<DiskBlock>& blocks) {
  IndexSnapshot snapshot;
  snapshot.namespaces = {
      {NamespaceId(0),
       {.tenant = "uid:0", .model = TestHash(100, 0), .block_bytes = kPayloadBytes}}};
  for (const DiskBlock& block : blocks) snapshot.records.push_back(block.record);
  return snapshot;
}

IndexPlace DiskTest::Place() const {
  std::vector<StartedDrive> drives;
  for (uint32_t i = 0; i < kFiles; ++i) {
    drives.push_back({.number = i, .directory = directories_[i], .found_epoch = epoch_});
  }
  return IndexPlaceFor(directories_, drives);
}

void DiskTest::WriteIndex(const std::vector<DiskBlock>& blocks) {
  const Status status = RocksdbIndex::Replace(Place(), {.file_set = set_uuid_, .epoch = epoch_ + 1},
                                              SnapshotOf(blocks));
  ASSERT_TRUE(status) << status.error().ToString();
}

namespace {

using Contents = std::map<std::tuple<std::string, ModelFingerprint, uint64_t, BlockHash>,
                          std::tuple<uint64_t, uint32_t, uint32_t, uint32_t, uint32_t, uint16_t>>;

Contents ContentsOf(const IndexSnapshot& snapshot) {
  std::map<NamespaceId, NamespaceIdentity> namespaces(snapshot.namespaces.begin(),
                                                      snapshot.namespaces.end());
  Contents contents;
  for (const IndexRecord& r : snapshot.records) {
    const NamespaceIdentity& name_space = namespaces.at(r.key.namespace_id);
    const bool is_new = contents
                            .emplace(std::tuple(name_space.tenant, name_space.model,
                                                name_space.block_bytes, r.key.hash),
                                     std::tuple(r.location.offset, r.generation, r.depth,
                                                r.created_s, r.last_use_s, r.tokens))
                            .second;
    EXPECT_TRUE(is_new) << "twice: " << r.key.hash.Hex();
  }
  return contents;
}

}  // namespace

void ExpectSameContents(const IndexSnapshot& actual, const IndexSnapshot& expected) {
  EXPECT_EQ(actual.records.size(), expected.records.size());
  EXPECT_TRUE(ContentsOf(actual) == ContentsOf(expected));
}

}  // namespace kvtier
