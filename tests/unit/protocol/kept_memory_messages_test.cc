// SPDX-License-Identifier: Apache-2.0
#include "protocol/kept_memory_messages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "protocol/frame.h"
#include "tests/unit/protocol/payload.h"

namespace kvtier::wire {
namespace {

KeptMemoryName NameOf(uint8_t byte) {
  KeptMemoryName name;
  name.fill(byte);
  return name;
}

TEST(KeepMemory, CarriesItsFields) {
  const KeepMemory keep{NameOf(3), 2, RegionMemory::kVmm, uint64_t{1} << 40, 128};
  const auto decoded = Decode<KeepMemory>(PayloadOf(keep));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->name, keep.name);
  EXPECT_EQ(decoded->device, 2u);
  EXPECT_EQ(decoded->memory, RegionMemory::kVmm);
  EXPECT_EQ(decoded->bytes, uint64_t{1} << 40);
  EXPECT_EQ(decoded->table_bytes, 128u);
}

TEST(KeepMemory, MemoryWithoutADescriptorIsRefused) {
  KeepMemory keep{NameOf(3), 0, RegionMemory::kCudaIpc, 4096, 128};
  EXPECT_EQ(ReasonFor(keep), "bad_enum");
}

TEST(KeepMemory, SizesThatNoMemoryHasAreRefused) {
  for (const uint64_t bytes : {uint64_t{0}, kMaxKeptMemoryBytes + 1, UINT64_MAX}) {
    EXPECT_EQ(ReasonFor(KeepMemory{NameOf(3), 0, RegionMemory::kVmm, bytes, 128}),
              "bad_memory_size");
    EXPECT_EQ(ReasonFor(KeepMemory{NameOf(3), 0, RegionMemory::kVmm, 128, bytes}),
              "bad_memory_size");
  }
  EXPECT_EQ(ReasonFor(KeepMemory{NameOf(3), 0, RegionMemory::kVmm, kMaxKeptMemoryBytes, 1}), "");
}

TEST(KeepMemory, EveryShorterOrLongerPayloadIsRefused) {
  std::vector<std::byte> payload = PayloadOf(KeepMemory{NameOf(3), 0, RegionMemory::kVmm, 1, 1});
  for (size_t bytes = 0; bytes < payload.size(); ++bytes) {
    EXPECT_EQ(Decode<KeepMemory>(std::span(payload).first(bytes)).error().reason,
              "truncated_message");
  }
  payload.push_back({});
  EXPECT_EQ(Decode<KeepMemory>(payload).error().reason, "trailing_bytes");
}

TEST(TakeMemory, SaysWhetherTheTableAloneIsWanted) {
  for (const bool table_only : {false, true}) {
    const auto decoded = Decode<TakeMemory>(PayloadOf(TakeMemory{NameOf(9), table_only}));
    ASSERT_TRUE(decoded);
    EXPECT_EQ(decoded->name, NameOf(9));
    EXPECT_EQ(decoded->table_only, table_only);
  }
  std::vector<std::byte> payload = PayloadOf(TakeMemory{});
  payload.back() = std::byte{2};
  EXPECT_EQ(Decode<TakeMemory>(payload).error().reason, "unknown_bits");
}

TEST(TakeMemoryReply, SaysHowManyDescriptorsComeAlong) {
  EXPECT_EQ(TakeMemoryReply{}.descriptors(), 0u);
  const TakeMemoryReply whole{true, RegionMemory::kVmm, 1, 8192, 64};
  EXPECT_EQ(whole.descriptors(), 2u);
  EXPECT_EQ((TakeMemoryReply{true, RegionMemory::kVmm, 1, 0, 64}).descriptors(), 1u);
  const auto decoded = Decode<TakeMemoryReply>(PayloadOf(whole));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->memory, RegionMemory::kVmm);
  EXPECT_EQ(decoded->device, 1u);
  EXPECT_EQ(decoded->bytes, 8192u);
  EXPECT_EQ(decoded->table_bytes, 64u);
}

TEST(ReleaseMemory, NamesOneMemoryOrADevice) {
  const auto named = Decode<ReleaseMemory>(PayloadOf(ReleaseMemory{.name = NameOf(4)}));
  ASSERT_TRUE(named);
  EXPECT_EQ(named->name, NameOf(4));
  const auto on_device =
      Decode<ReleaseMemory>(PayloadOf(ReleaseMemory{.device = 5, .name = std::nullopt}));
  ASSERT_TRUE(on_device);
  EXPECT_EQ(on_device->device, 5u);
  EXPECT_FALSE(on_device->name);
  std::vector<std::byte> payload = PayloadOf(ReleaseMemory{});
  payload[0] = std::byte{2};
  EXPECT_EQ(Decode<ReleaseMemory>(payload).error().reason, "unknown_bits");
  payload[0] = std::byte{1};
  EXPECT_EQ(Decode<ReleaseMemory>(payload).error().reason, "truncated_message");
}

}  // namespace
}  // namespace kvtier::wire
