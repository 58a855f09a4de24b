// SPDX-License-Identifier: Apache-2.0
// Bytes and descriptors over a Unix stream socket: the part of sendmsg and recvmsg that both sides
// need. Never blocks on a non-blocking socket; EINTR is retried.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/posix.h"
#include "base/result.h"

namespace kvtier::wire {

// As many as the kernel lets one message carry (SCM_MAX_FD): what did not fit would be closed
// within recvmsg, and close() may block for as long as the descriptor's maker likes.
inline constexpr size_t kMaxDescriptorsPerReceive = 253;

// The most that one frame carries.
inline constexpr size_t kMaxDescriptorsPerSend = 2;

// Sends a first part of `bytes`, with `descriptors` (at most kMaxDescriptorsPerSend) attached to
// its first byte; returns how many bytes went, or nothing if the socket would block. The
// descriptors have gone exactly if a byte has. Errors: kUnavailable "peer_closed", kIoError
// "send_failed"; kResourceExhausted "send_refused", by a kernel that may take the same later.
[[nodiscard]] Result<std::optional<size_t>> Send(int socket, std::span<const std::byte> bytes,
                                                 std::span<const int> descriptors = {});

// An answer of Peek: how many bytes Receive would give (0: the peer closed), and whether
// descriptors may come with some of them. They may also be further behind; `bytes` ends before
// anything that was sent after the first descriptors.
struct Waiting {
  size_t bytes = 0;
  bool descriptors = false;
};

// Looks into the socket, up to as many bytes as `space` has, which is overwritten, and takes
// nothing. Nothing if the socket would block. Errors: those of Receive.
[[nodiscard]] Result<std::optional<Waiting>> Peek(int socket, std::span<std::byte> space);

// Receives into `space`; returns how many bytes came (0: the peer closed), or nothing if the socket
// would block. Descriptors that came along are appended to `descriptors` in order, close-on-exec;
// if it is null they are closed. Errors: kUnavailable "peer_closed", kIoError "receive_failed".
[[nodiscard]] Result<std::optional<size_t>> Receive(int socket, std::span<std::byte> space,
                                                    std::vector<UniqueFd>* descriptors);

}  // namespace kvtier::wire
