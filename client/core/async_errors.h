// SPDX-License-Identifier: Apache-2.0
// Errors of fire-and-forget calls, kept until they are taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace kvtier::client {

struct AsyncError {
  // The block that the error concerns; attachment 0 if it concerns the whole call.
  uint64_t attachment = 0;
  BlockHandle block;
  ErrorCode code = ErrorCode::kInternal;
  std::string reason;
};

// Thread-safe. Keeps the latest kKept.
class AsyncErrors {
 public:
  static constexpr size_t kKept = 1024;

  void Add(AsyncError error);
  // Up to `limit`, oldest first. `dropped`: how many were lost since the last Take.
  [[nodiscard]] std::vector<AsyncError> Take(size_t limit, uint64_t* dropped);

 private:
  std::mutex mutex_;
  std::deque<AsyncError> errors_;
  uint64_t dropped_ = 0;
};

}  // namespace kvtier::client
