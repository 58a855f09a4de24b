// SPDX-License-Identifier: Apache-2.0
// Shared by all sources of the C ABI: its opaque handles, its values in the library's types, the
// calling thread's last error, and the frame around each C function.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "client/core/connection.h"
#include "client/core/pool.h"
#include "client/core/sequence.h"
#include "kvtier/kvtier.h"

// Opaque to C, freed by kvt_disconnect. Pools, regions and workspaces borrow it, and must be closed
// before.
struct kvt_connection {
  std::unique_ptr<kvtier::client::Connection> connection;
};

// Opaque to C, freed by kvt_pool_close. It may be used by several threads at once.
struct kvt_pool {
  std::unique_ptr<kvtier::client::Pool> pool;
};

// Opaque to C, freed by kvt_sequence_close. One thread at a time uses it.
struct kvt_sequence {
  // For its time-outs; outlives it.
  const kvtier::client::Connection* connection = nullptr;
  std::unique_ptr<kvtier::client::Sequence> sequence;
};

namespace kvtier::client {

// Remembers the error for kvt_last_error and returns its code.
kvt_status SetLastError(Error error);

// KVT_OK, or the error remembered.
inline kvt_status ToC(const Status& status) {
  return status ? KVT_OK : SetLastError(status.error());
}

// Runs the body of a C function, a callable returning a Status: no exception passes to C.
template <typename Body>
kvt_status Guard(Body&& body) noexcept {
  try {
    return ToC(std::forward<Body>(body)());
  } catch (const std::bad_alloc&) {
    return SetLastError({ErrorCode::kResourceExhausted, "out_of_memory", {}});
  } catch (const std::exception& exception) {
    return SetLastError({ErrorCode::kInternal, "exception", exception.what()});
  }
}

// Errors: kInvalidArgument "null_argument".
[[nodiscard]] inline Status CheckPointer(const void* pointer, const char* name) {
  if (pointer != nullptr) return {};
  return MakeError(ErrorCode::kInvalidArgument, "null_argument", name);
}

// Guard for a function about an object, which must not be null. Errors: kInvalidArgument
// "null_argument".
template <typename Object, typename Body>
kvt_status GuardOn(Object* object, const char* name, Body&& body) noexcept {
  return Guard([&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(object, name));
    return std::forward<Body>(body)();
  });
}

// An array of the caller's: null only if empty. Errors: kInvalidArgument "null_argument".
[[nodiscard]] inline Status CheckArray(const void* array, size_t count, const char* name) {
  return count == 0 ? Status() : CheckPointer(array, name);
}

// A struct of the caller's that says how large it is: not smaller than here; a newer caller's may
// have grown at its end. Errors: kInvalidArgument "null_argument", "bad_struct_size".
template <typename Struct>
[[nodiscard]] Status CheckStruct(const Struct* value, const char* name) {
  KVT_RETURN_IF_ERROR(CheckPointer(value, name));
  if (value->size >= sizeof(Struct)) return {};
  return MakeError(ErrorCode::kInvalidArgument, "bad_struct_size",
                   std::string(name) + ".size is " + std::to_string(value->size) + ", expected " +
                       std::to_string(sizeof(Struct)));
}

// A handle is of the attachment in use. Errors: kStaleHandle "attachment_lost".
[[nodiscard]] inline Status CheckAttachment(uint64_t given, uint64_t current) {
  if (given == current) return {};
  return MakeError(ErrorCode::kStaleHandle, "attachment_lost",
                   "of attachment " + std::to_string(given) + ", now " + std::to_string(current));
}

static_assert(sizeof(kvt_hash) == sizeof(BlockHash) && alignof(kvt_hash) == alignof(BlockHash));

// The same bytes: both are 32 plain bytes.
[[nodiscard]] inline std::span<const BlockHash> ToHashes(const kvt_hash* hashes, size_t count) {
  return {reinterpret_cast<const BlockHash*>(hashes), count};
}

// The counts of kvt_give_tokens; null: none.
[[nodiscard]] inline std::span<const uint16_t> ToCounts(const uint16_t* counts, size_t count) {
  return {counts, counts == nullptr ? 0 : count};
}

// The handle as the daemon knows it. The attachment stays behind: callers compare it first, with
// CheckAttachment, because a handle of a lost attachment would name another block.
[[nodiscard]] inline BlockHandle ToHandle(const kvt_block& block) {
  return {BlockIndex{block.index}, block.generation};
}

// The handle as C callers hold it, bound to the attachment over which it was got.
[[nodiscard]] inline kvt_block ToBlock(const BlockHandle& handle, uint64_t attachment) {
  return {handle.index.value, handle.generation, attachment};
}

// `target` may be null: the caller does not want the count.
[[nodiscard]] inline Status StoreCount(const Result<uint32_t>& count, uint32_t* target) {
  if (!count) return tl::unexpected(count.error());
  if (target != nullptr) *target = *count;
  return {};
}

// Checks a hint that a caller gives. Errors: kInvalidArgument "bad_enum", "bad_returns_in".
[[nodiscard]] inline Status CheckHint(kvt_hint hint, int64_t returns_in_ms) {
  if (hint < KVT_HINT_CLOSED || hint > KVT_HINT_RETURNS) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_enum", "hint is " + std::to_string(hint));
  }
  if (returns_in_ms < 0 || (returns_in_ms > 0 && hint != KVT_HINT_RETURNS)) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_returns_in",
                     std::to_string(returns_in_ms) + " ms");
  }
  return {};
}

// KVT_DEFAULT_TIMEOUT, or any negative number, is the connection's.
[[nodiscard]] inline Deadline ToDeadline(int64_t timeout_ms, const Connection& connection) {
  return timeout_ms < 0 ? connection.RequestDeadline() : DeadlineIn(timeout_ms);
}

}  // namespace kvtier::client
