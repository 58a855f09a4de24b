// SPDX-License-Identifier: Apache-2.0
// Frames: how messages are cut out of the byte stream of a socket.
//
// A frame is a 16-byte header, little-endian: u32 payload_bytes, u16 type, u16 flags,
// u64 request_id; then the payload. messages.h decides the meaning of a type's payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "protocol/limits.h"

namespace kvtier::wire {

// The sender of a COMMIT or RELEASE wants the reply even if everything succeeded.
inline constexpr uint16_t kFlagWantReply = 1 << 0;
inline constexpr uint16_t kKnownFlags = kFlagWantReply;

struct Frame {
  uint16_t type = 0;
  uint16_t flags = 0;
  // Chosen by the client; the reply carries it back. 0 in events and in errors about no request.
  uint64_t request_id = 0;
  // Points into the decoder; valid until its next Prepare or Feed.
  std::span<const std::byte> payload;
};

// Cuts a byte stream into frames. Pure: does no I/O. Not thread-safe.
//
// Receive straight into the decoder, so that payloads are never copied:
//   std::span<std::byte> space = decoder.Prepare();
//   decoder.Commit(recv(socket, space.data(), space.size()));
//   while (true) { auto frame = decoder.Next(); ... }
//
// Memory grows with the bytes received, not with the length a header claims, and is at most
// `max_frame_bytes` and one read of 64 KiB, provided that Next is called until it gives nothing
// before more bytes are put in.
class FrameDecoder {
 public:
  // REQUIRES: max_frame_bytes >= kFrameHeaderBytes.
  explicit FrameDecoder(uint32_t max_frame_bytes = kMaxFrameBytes);

  // For the next frames. REQUIRES: bytes >= kFrameHeaderBytes.
  void set_max_frame_bytes(uint32_t bytes) { max_frame_bytes_ = bytes; }
  // Frees the buffer if nothing of a frame is in it.
  void ReleaseUnused();

  // Where to put the next bytes: never empty. Invalidates the payloads of earlier frames.
  [[nodiscard]] std::span<std::byte> Prepare();
  // The first `bytes` of the last Prepare were filled. REQUIRES: bytes <= its size.
  void Commit(size_t bytes);
  // Prepare and Commit for bytes that are somewhere else already; copies them.
  void Feed(std::span<const std::byte> bytes);

  // The next complete frame; nothing when more bytes are needed. Errors: kLimitExceeded
  // "frame_too_long", kInvalidArgument "unknown_flags". A stream is lost after an error: each
  // further call repeats it.
  [[nodiscard]] Result<std::optional<Frame>> Next();

  // How many bytes the next frame lacks, as far as is known: those of its header first.
  // REQUIRES: Next has just given nothing.
  [[nodiscard]] size_t missing_bytes() const;
  // Received but not yet returned by Next.
  [[nodiscard]] size_t buffered_bytes() const { return end_ - begin_; }

 private:
  // Moves or enlarges the buffer so that there is space behind end_.
  void MakeSpace();

  uint32_t max_frame_bytes_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t capacity_ = 0;
  size_t begin_ = 0;
  size_t end_ = 0;
  std::optional<Error> error_;
};

}  // namespace kvtier::wire
