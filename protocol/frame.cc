// SPDX-License-Identifier: Apache-2.0
#include "protocol/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/result.h"

namespace kvtier::wire {
namespace {

// The least space that one receive is offered when the buffer is fresh, and the most that is taken
// beyond a frame's end.
constexpr size_t kReadBytes = 64u << 10;
// Less space than this is not worth a system call.
constexpr size_t kMinSpaceBytes = 4096;
// An idle connection keeps at most this.
constexpr size_t kKeepBytes = 512u << 10;

}  // namespace

FrameDecoder::FrameDecoder(uint32_t max_frame_bytes) : max_frame_bytes_(max_frame_bytes) {
  KVT_CHECK(max_frame_bytes >= kFrameHeaderBytes);
}

void FrameDecoder::ReleaseUnused() {
  if (begin_ != end_) return;
  begin_ = end_ = 0;
  capacity_ = 0;
  buffer_.reset();
}

std::span<std::byte> FrameDecoder::Prepare() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (capacity_ > kKeepBytes) ReleaseUnused();
  }
  if (capacity_ - end_ < kMinSpaceBytes) MakeSpace();
  return {buffer_.get() + end_, capacity_ - end_};
}

void FrameDecoder::MakeSpace() {
  const size_t buffered = buffered_bytes();
  if (capacity_ - buffered >= kMinSpaceBytes && begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, buffered);
  } else {
    const size_t enough = std::max<size_t>(max_frame_bytes_, buffered) + kReadBytes;
    capacity_ = std::min(std::max(2 * buffered, kReadBytes), enough);
    auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity_);
    if (buffered > 0) std::memcpy(larger.get(), buffer_.get() + begin_, buffered);
    buffer_ = std::move(larger);
  }
  begin_ = 0;
  end_ = buffered;
}

void FrameDecoder::Commit(size_t bytes) {
  KVT_CHECK(bytes <= capacity_ - end_);
  end_ += bytes;
}

void FrameDecoder::Feed(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> space = Prepare();
    const size_t count = std::min(space.size(), bytes.size());
    std::memcpy(space.data(), bytes.data(), count);
    Commit(count);
    bytes = bytes.subspan(count);
  }
}

size_t FrameDecoder::missing_bytes() const {
  const size_t buffered = buffered_bytes();
  if (buffered < kFrameHeaderBytes) return kFrameHeaderBytes - buffered;
  ByteReader header({buffer_.get() + begin_, kFrameHeaderBytes});
  return kFrameHeaderBytes + size_t{header.Read<uint32_t>()} - buffered;
}

Result<std::optional<Frame>> FrameDecoder::Next() {
  if (error_) return tl::unexpected<Error>(*error_);
  if (buffered_bytes() < kFrameHeaderBytes) return std::nullopt;
  ByteReader header({buffer_.get() + begin_, kFrameHeaderBytes});
  const auto payload_bytes = header.Read<uint32_t>();
  Frame frame;
  frame.type = header.Read<uint16_t>();
  frame.flags = header.Read<uint16_t>();
  frame.request_id = header.Read<uint64_t>();
  if (payload_bytes > max_frame_bytes_ - kFrameHeaderBytes) {
    error_ = Error{ErrorCode::kLimitExceeded, "frame_too_long",
                   fmt::format("type {}: {} payload bytes, at most {}", frame.type, payload_bytes,
                               max_frame_bytes_ - kFrameHeaderBytes)};
  } else if ((frame.flags & ~kKnownFlags) != 0) {
    error_ = Error{ErrorCode::kInvalidArgument, "unknown_flags",
                   fmt::format("type {}: flags {:#06x}", frame.type, frame.flags)};
  }
  if (error_) return tl::unexpected<Error>(*error_);
  if (buffered_bytes() - kFrameHeaderBytes < payload_bytes) return std::nullopt;
  frame.payload = {buffer_.get() + begin_ + kFrameHeaderBytes, payload_bytes};
  begin_ += kFrameHeaderBytes + payload_bytes;
  return frame;
}

}  // namespace kvtier::wire
