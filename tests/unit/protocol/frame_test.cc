// SPDX-License-Identifier: Apache-2.0
#include "protocol/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace kvtier::wire {
namespace {

std::vector<std::byte> MakeFrame(uint16_t type, uint16_t flags, uint64_t request_id,
                                 size_t payload_bytes) {
  ByteWriter writer;
  writer.Write(static_cast<uint32_t>(payload_bytes));
  writer.Write(type);
  writer.Write(flags);
  writer.Write(request_id);
  std::vector<std::byte> payload(payload_bytes);
  for (size_t i = 0; i < payload_bytes; ++i) payload[i] = static_cast<std::byte>(request_id + i);
  writer.WriteBytes(payload);
  return writer.Take();
}

void ExpectFrame(const std::optional<Frame>& frame, uint64_t request_id, size_t payload_bytes) {
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->request_id, request_id);
  ASSERT_EQ(frame->payload.size(), payload_bytes);
  for (size_t i = 0; i < payload_bytes; ++i) {
    ASSERT_EQ(frame->payload[i], static_cast<std::byte>(request_id + i)) << i;
  }
}

TEST(FrameDecoder, GivesHeaderAndPayload) {
  FrameDecoder decoder;
  decoder.Feed(MakeFrame(7, kFlagWantReply, 42, 3));
  auto frame = decoder.Next();
  ASSERT_TRUE(frame.has_value());
  ExpectFrame(*frame, 42, 3);
  EXPECT_EQ((*frame)->type, 7);
  EXPECT_EQ((*frame)->flags, kFlagWantReply);
  EXPECT_FALSE(decoder.Next()->has_value());
}

TEST(FrameDecoder, GivesNothingUntilTheLastByteHasCome) {
  const std::vector<std::byte> bytes = MakeFrame(1, 0, 5, 100);
  FrameDecoder decoder;
  for (size_t i = 0; i + 1 < bytes.size(); ++i) {
    decoder.Feed({&bytes[i], 1});
    ASSERT_FALSE(decoder.Next()->has_value()) << i;
  }
  decoder.Feed({&bytes.back(), 1});
  ExpectFrame(*decoder.Next(), 5, 100);
}

TEST(FrameDecoder, GivesEveryFrameWhateverThePieces) {
  const size_t sizes[] = {0, 1, 5000, 0, 70000, 300000, 16, 65536, 3};
  std::vector<std::byte> stream;
  for (size_t i = 0; i < std::size(sizes); ++i) {
    const std::vector<std::byte> frame = MakeFrame(1, 0, i, sizes[i]);
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  for (const size_t piece : {1000, 4096, 65537, 1000000}) {
    FrameDecoder decoder;
    size_t frames = 0;
    for (size_t at = 0; at < stream.size(); at += piece) {
      decoder.Feed(std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
      for (auto frame = decoder.Next(); frame->has_value(); frame = decoder.Next()) {
        ExpectFrame(*frame, frames, sizes[frames]);
        ++frames;
      }
    }
    EXPECT_EQ(frames, std::size(sizes)) << "pieces of " << piece;
    EXPECT_EQ(decoder.buffered_bytes(), 0u);
  }
}

TEST(FrameDecoder, ReceivesInPlace) {
  const std::vector<std::byte> bytes = MakeFrame(1, 0, 5, 1000);
  FrameDecoder decoder;
  const std::span<std::byte> name_space = decoder.Prepare();
  ASSERT_GE(name_space.size(), bytes.size());
  std::ranges::copy(bytes, name_space.begin());
  decoder.Commit(bytes.size());
  EXPECT_EQ((*decoder.Next())->payload.data(), name_space.data() + kFrameHeaderBytes);
}

TEST(FrameDecoder, AcceptsAFrameOfExactlyTheLimit) {
  FrameDecoder decoder(1000);
  decoder.Feed(MakeFrame(1, 0, 5, 1000 - kFrameHeaderBytes));
  ExpectFrame(*decoder.Next(), 5, 1000 - kFrameHeaderBytes);
}

TEST(FrameDecoder, RefusesALongerFrameAtItsHeader) {
  FrameDecoder decoder(1000);
  const std::vector<std::byte> bytes = MakeFrame(1, 0, 5, 1000 - kFrameHeaderBytes + 1);
  decoder.Feed(std::span(bytes).first(kFrameHeaderBytes));
  const auto frame = decoder.Next();
  ASSERT_FALSE(frame.has_value());
  EXPECT_EQ(frame.error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame.error().reason, "frame_too_long");
}

TEST(FrameDecoder, RefusesALengthOfFourGigabytes) {
  ByteWriter header;
  header.Write(UINT32_MAX);
  header.Write(uint32_t{1});
  header.Write(uint64_t{1});
  FrameDecoder decoder(UINT32_MAX);
  decoder.Feed(header.data());
  ASSERT_FALSE(decoder.Next().has_value());
}

TEST(FrameDecoder, RefusesUnknownFlags) {
  FrameDecoder decoder;
  decoder.Feed(MakeFrame(1, 0x8000, 5, 0));
  EXPECT_EQ(decoder.Next().error().reason, "unknown_flags");
}

TEST(FrameDecoder, StaysFailedAfterAnError) {
  FrameDecoder decoder(1000);
  decoder.Feed(MakeFrame(1, 0, 5, 2000));
  EXPECT_EQ(decoder.Next().error().reason, "frame_too_long");
  decoder.Feed(MakeFrame(1, 0, 6, 0));
  EXPECT_EQ(decoder.Next().error().reason, "frame_too_long");
}

TEST(FrameDecoder, GivesTheFramesBeforeAnError) {
  FrameDecoder decoder(1000);
  decoder.Feed(MakeFrame(1, 0, 5, 10));
  decoder.Feed(MakeFrame(1, 0x10, 6, 0));
  ExpectFrame(*decoder.Next(), 5, 10);
  EXPECT_FALSE(decoder.Next().has_value());
}

TEST(FrameDecoder, DoesNotAllocateWhatAHeaderOnlyClaims) {
  FrameDecoder decoder;
  const std::vector<std::byte> bytes = MakeFrame(1, 0, 5, kMaxFrameBytes - kFrameHeaderBytes);
  decoder.Feed(std::span(bytes).first(kFrameHeaderBytes));
  ASSERT_FALSE(decoder.Next()->has_value());
  EXPECT_LE(decoder.Prepare().size(), 64u << 10);
}

TEST(FrameDecoder, OffersSpaceForALargeFrameUpToTheLimitAndOneRead) {
  FrameDecoder decoder;
  const std::vector<std::byte> bytes = MakeFrame(1, 0, 5, kMaxFrameBytes - kFrameHeaderBytes);
  std::span<const std::byte> left(bytes);
  while (!left.empty()) {
    const std::span<std::byte> name_space = decoder.Prepare();
    ASSERT_FALSE(name_space.empty());
    ASSERT_LE(decoder.buffered_bytes() + name_space.size(), kMaxFrameBytes + (64u << 10));
    const size_t count = std::min<size_t>({name_space.size(), left.size(), 10000});
    std::ranges::copy(left.first(count), name_space.begin());
    decoder.Commit(count);
    left = left.subspan(count);
    ASSERT_EQ(decoder.Next()->has_value(), left.empty());
  }
}

}  // namespace
}  // namespace kvtier::wire
