// SPDX-License-Identifier: Apache-2.0
// One request of the admin socket, read from its JSON text.
//
// The text comes from root or from the daemon's own user, but it is checked all the same: a
// script's mistake must be an answer that names the mistake, and never an operation on other
// blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"

namespace kvtier {

// How long "settle" waits if the request does not say. The next is the most that it may say, a day.
inline constexpr int64_t kDefaultSettleTimeoutMs = 60'000;
inline constexpr int64_t kMaxSettleTimeoutMs = 24 * 3600 * 1000;
// Blocks in one reply to "ls", events in one to "trace". The reply must fit a frame, and is built
// in the daemon's memory; a long listing takes several requests.
inline constexpr uint32_t kMaxListedBlocks = 8192;
inline constexpr int64_t kMaxTraceSinceMs = int64_t{366} * 24 * 3600 * 1000;

// Members that the operation has no use for are ignored; unknown ones are errors.
struct AdminRequestBody {
  std::string op;
  int64_t timeout_ms = kDefaultSettleTimeoutMs;
  // Which blocks. Empty texts were not given: of every tenant, of every model.
  std::string tenant;
  std::string model;  // its name, or the first digits of its fingerprint
  std::string epoch;  // the revision of its weights, whole
  std::optional<Tier> tier;
  bool cold = false;   // the tier is the store that hosts share
  std::string prefix;  // of the hash, in hexadecimal digits
  std::vector<BlockHash> hashes;
  uint64_t cursor = 0;
  uint32_t limit = kMaxListedBlocks;
  std::optional<int64_t> ttl_ms;
  int64_t since_ms = 0;              // before now; 0: however long ago
  std::optional<int64_t> before_ms;  // Unix time; none: whenever it was made
  bool without_proof = false;
  // More is released than the memory that no process uses, or listed than is adopted so far.
  bool all = false;
  bool release = false;  // also the memory kept for the next daemon
};

// Pure; never recurses deeper than the document may be. Errors: kInvalidArgument "bad_json" or
// "bad_request", which names the member.
[[nodiscard]] Result<AdminRequestBody> ParseAdminRequest(std::string_view json);

}  // namespace kvtier
