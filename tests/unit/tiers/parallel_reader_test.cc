// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/parallel_reader.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/bytes.h"
#include "tests/unit/tiers/disk_fixture.h"

namespace kvtier {
namespace {

class ParallelReaderTest : public DiskTest {
 protected:
  static constexpr size_t kPages = 500;

  // Reads of one page each, all for file 0 at offset 0.
  std::vector<DiskRead> Reads() {
    std::vector<DiskRead> reads(kPages);
    for (size_t i = 0; i < kPages; ++i) reads[i].into = buffer_.span().subspan(i * 4096, 4096);
    return reads;
  }

  AlignedBuffer buffer_{kPages * 4096};
};

TEST_F(ParallelReaderTest, EveryReadGetsItsOwnBytes) {
  std::vector<std::byte> slab(kSlabBytes);
  for (uint64_t i = 0; i < kSlabs; ++i) {
    FillFromHash(TestHash(1, i), slab);
    WriteBytes(SlabStart(i), slab);
  }
  const auto reader = ParallelReader::Open(directories_, 8);
  ASSERT_TRUE(reader) << reader.error().ToString();
  std::vector<DiskRead> reads = Reads();
  for (size_t i = 0; i < kPages; ++i) {
    const DiskLocation start = SlabStart(i % kSlabs);
    reads[i].file = geometry_.FileOf(start);
    reads[i].offset = geometry_.OffsetInFile(start);
  }
  reader->Read(reads);
  for (size_t i = 0; i < kPages; ++i) {
    ASSERT_TRUE(reads[i].status);
    ASSERT_TRUE(MatchesHash(TestHash(1, i % kSlabs), reads[i].into)) << i;
  }
}

TEST_F(ParallelReaderTest, AFailedReadIsReportedAloneOfMany) {
  const auto reader = ParallelReader::Open(directories_);
  ASSERT_TRUE(reader);
  std::vector<DiskRead> reads = Reads();
  reads[100].offset = geometry_.FileBytes(0);
  reads[200].file = kFiles;
  reader->Read(reads);
  for (size_t i = 0; i < kPages; ++i) EXPECT_EQ(reads[i].status.has_value(), i != 100 && i != 200);
  EXPECT_EQ(reads[100].status.error().reason, "short_io");
  EXPECT_EQ(reads[200].status.error().reason, "no_such_file");
}

TEST_F(ParallelReaderTest, NoReadsAreFine) {
  const auto reader = ParallelReader::Open(directories_);
  ASSERT_TRUE(reader);
  reader->Read({});
}

TEST_F(ParallelReaderTest, AMissingFileIsAnError) {
  std::filesystem::remove(FilePath(1));
  const auto reader = ParallelReader::Open(directories_);
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace kvtier
