// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: bytes of a socket through FrameDecoder and every message's Decode.
//
// The first input byte says how the rest is used: 0xff, as a model record; 0xfe, as the lengths of
// long frames and of the pieces in which they arrive; else as a stream that arrives in pieces of a
// size derived from it. Checked besides memory safety: the pieces make no difference, and whatever
// decodes encodes to the same bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/result.h"
#include "protocol/frame.h"
#include "protocol/limits.h"
#include "protocol/model_record.h"
#include "tests/fuzz/reencode.h"

namespace kvtier::wire {
namespace {

constexpr uint8_t kAsModelRecord = 0xff;
constexpr uint8_t kAsLengths = 0xfe;
// Small enough that the fuzzer finds frames that are too long.
constexpr uint32_t kFrameLimit = 4096;

struct Decoded {
  std::vector<std::byte> frames;  // one after the other, as they came
  bool failed = false;
};

std::vector<std::byte> HeaderOf(const Frame& frame) {
  std::vector<std::byte> header(kFrameHeaderBytes);
  const auto payload_bytes = static_cast<uint32_t>(frame.payload.size());
  std::memcpy(header.data(), &payload_bytes, 4);
  std::memcpy(header.data() + 4, &frame.type, 2);
  std::memcpy(header.data() + 6, &frame.flags, 2);
  std::memcpy(header.data() + 8, &frame.request_id, 8);
  return header;
}

void CheckMessage(const Frame& frame, std::span<const std::byte> bytes) {
  const auto again = Reencode(frame);
  if (!again.has_value()) return;
  // The only freedom: messages other than COMMIT and RELEASE ignore the frame's flags.
  KVT_CHECK(again->size() == bytes.size());
  KVT_CHECK(std::ranges::equal(std::span(*again).first(6), bytes.first(6)));
  KVT_CHECK(std::ranges::equal(std::span(*again).subspan(8), bytes.subspan(8)));
}

Decoded DecodeStream(std::span<const std::byte> stream, size_t piece_bytes) {
  FrameDecoder decoder(kFrameLimit);
  Decoded decoded;
  while (!stream.empty() && !decoded.failed) {
    const size_t count = std::min(piece_bytes, stream.size());
    decoder.Feed(stream.first(count));
    stream = stream.subspan(count);
    while (true) {
      const auto frame = decoder.Next();
      decoded.failed = !frame.has_value();
      if (decoded.failed || !frame->has_value()) break;
      const size_t at = decoded.frames.size();
      const std::vector<std::byte> header = HeaderOf(**frame);
      decoded.frames.insert(decoded.frames.end(), header.begin(), header.end());
      decoded.frames.insert(decoded.frames.end(), (*frame)->payload.begin(),
                            (*frame)->payload.end());
      CheckMessage(**frame, std::span(decoded.frames).subspan(at));
    }
  }
  KVT_CHECK(decoded.failed || decoder.buffered_bytes() < kFrameLimit);
  return decoded;
}

void CheckStream(std::span<const std::byte> stream, uint8_t mode) {
  const Decoded whole = DecodeStream(stream, std::max<size_t>(stream.size(), 1));
  const Decoded pieces = DecodeStream(stream, 1 + mode % 64);
  KVT_CHECK(whole.frames == pieces.frames && whole.failed == pieces.failed);
  KVT_CHECK(std::ranges::equal(whole.frames, stream.first(whole.frames.size())));
}

// Long frames, which a fuzzer would not build byte by byte, make the decoder move and enlarge its
// buffer. Each byte of `lengths` is a frame or, if odd, the size of the next pieces.
void CheckLengths(std::span<const std::byte> lengths) {
  constexpr size_t kMaxStreamBytes = 150000;  // more would only make runs slow
  std::vector<std::byte> stream;
  std::vector<size_t> piece_sizes = {1000};
  for (const std::byte length : lengths) {
    const auto value = std::to_integer<size_t>(length);
    if (value % 2 == 1) {
      piece_sizes.push_back(500 + value * value);
    } else if (stream.size() < kMaxStreamBytes) {
      std::vector<std::byte> payload(value * value * 2, length);
      const std::vector<std::byte> header = HeaderOf({1, 0, stream.size(), payload});
      stream.insert(stream.end(), header.begin(), header.end());
      stream.insert(stream.end(), payload.begin(), payload.end());
    }
  }
  FrameDecoder decoder;
  size_t fed = 0, decoded = 0;
  for (size_t i = 0; fed < stream.size(); ++i) {
    const size_t count = std::min(piece_sizes[i % piece_sizes.size()], stream.size() - fed);
    decoder.Feed(std::span(stream).subspan(fed, count));
    fed += count;
    for (auto frame = decoder.Next(); frame->has_value(); frame = decoder.Next()) {
      KVT_CHECK((*frame)->request_id == decoded);
      decoded += kFrameHeaderBytes;
      const std::span<const std::byte> payload = (*frame)->payload;
      KVT_CHECK(payload.size() <= stream.size() - decoded);
      KVT_CHECK(std::memcmp(payload.data(), stream.data() + decoded, payload.size()) == 0);
      decoded += payload.size();
    }
    KVT_CHECK(decoder.buffered_bytes() == fed - decoded);
  }
  KVT_CHECK(decoded == stream.size());
}

void CheckModelRecord(std::span<const std::byte> bytes) {
  const auto record = ModelRecord::Decode(bytes);
  if (!record.has_value()) return;
  KVT_CHECK(std::ranges::equal(record->Encode(), bytes));
  for (const KvGroup& group : record->groups) {
    KVT_CHECK(group.BlockBytes() > 0 && group.BlockBytes() <= kMaxModelBlockBytes);
  }
}

}  // namespace
}  // namespace kvtier::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvtier::wire;
  if (size == 0) return 0;
  const auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  if (data[0] == kAsModelRecord) {
    CheckModelRecord(rest);
  } else if (data[0] == kAsLengths) {
    CheckLengths(rest);
  } else {
    CheckStream(rest, data[0]);
  }
  return 0;
}
