// SPDX-License-Identifier: Apache-2.0
// All messages of both sockets. docs/PROTOCOL.md gives their bytes.
//
// Every message is a plain struct with
//   static constexpr MessageType kType;
//   void Encode(uint64_t request_id, std::vector<std::byte>* out) const;   // appends one frame
//   static Result<M> Decode(std::span<const std::byte> payload);           // pure
//
// Decode trusts nothing: counts are bounded and compared with what remains before anything is
// allocated, enum values and texts are checked, bytes left over are an error. Its errors concern
// that message alone, since the frame's end is known: kInvalidArgument "truncated_message",
// "trailing_bytes", "bad_enum", "bad_text", "unknown_bits"; kLimitExceeded "too_many_hashes",
// "too_many_blocks", "too_many_partial_blocks", "text_too_long".
//
// Encode REQUIRES that lists keep within limits.h; texts of errors are cut to fit. A std::span
// member borrows: for Encode from the caller, after Decode from the payload.
//
// Types and methods may be used from any thread.
#pragma once

#include "protocol/admin_messages.h"
#include "protocol/attend_messages.h"
#include "protocol/block_messages.h"
#include "protocol/lookup_messages.h"
#include "protocol/message_type.h"
#include "protocol/session_messages.h"
