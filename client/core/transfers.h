// SPDX-License-Identifier: Apache-2.0
// The transfers of one region: which are under way, which have ended and were not told to the
// caller yet, and why blocks of the told ones have failed.
//
// A transfer of more blocks than one message can name goes out as several messages, its parts. Each
// part's number on the wire is the id of the request that carried it, so that TRANSFER_DONE and an
// ERROR in its place find the part by the same number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/acquired.h"
#include "base/result.h"
#include "client/core/layer_counts.h"
#include "protocol/region_messages.h"

namespace kvtier::client {

// Said by the library alone, of blocks whose transfer was lost with the connection.
inline constexpr auto kMissUnavailable = static_cast<MissReason>(255);

// Copied, skipped and failed blocks are together all that the transfer named.
struct EndedTransfer {
  uint64_t transfer = 0;
  uint32_t copied = 0;
  uint32_t skipped = 0;
  std::vector<wire::TransferDone::Failed> failed;  // in ascending order of their positions
  // Set if the daemon refused the transfer, or one of its parts, as a whole (those blocks failed as
  // kCancelled), or if the connection was lost meanwhile (kMissUnavailable).
  std::optional<Error> error;
};

// Not thread-safe: guarded by the channel's lock.
class Transfers {
 public:
  explicit Transfers(std::shared_ptr<LoadCounters> counters) : layers_(std::move(counters)) {}

  // For so many reported transfers the positions of failures are kept; the oldest go first.
  static constexpr size_t kFailuresKept = 1024;

  // The request `request_id` is about to carry the blocks [first, first + count) of a transfer of
  // `blocks` blocks, which begins with its first part. REQUIRES: request ids are never reused.
  void AddPart(uint64_t transfer, uint32_t blocks, uint64_t request_id, uint32_t first,
               uint32_t count);
  // A transfer whose first part could not be sent is not reported: its caller was given an error.
  void Forget(uint64_t transfer);
  // A later part, the request's if it was added and `request_id` not 0, could not be sent: its
  // blocks and all behind them fail as kMissUnavailable. The daemon may be at work on those before.
  void FailUnsent(uint64_t transfer, uint64_t request_id, const Error& error);

  // Errors: kCorrupt "transfer_unknown" (never begun, or ended before), "transfer_done_invalid" (it
  // does not tell of each block once).
  [[nodiscard]] Status OnDone(const wire::TransferDone& done);
  // The daemon answered a request with an error. False if the request carried no part.
  [[nodiscard]] bool OnRefused(uint64_t request_id, const Error& error);
  // The connection is lost: all that is under way ends as failed.
  void FailAll(const Error& error);

  // The counts of loads in layers. Each part that is added to them is added here as well.
  [[nodiscard]] LayerCounts& layers() { return layers_; }

  // The blocks of all parts under way, and wire::kTransferPrice for each part.
  [[nodiscard]] uint64_t PriceUnderWay() const;
  [[nodiscard]] bool IsUnderWay(uint64_t transfer) const { return under_way_.contains(transfer); }
  // Up to `limit` ended transfers in the order in which they ended, each once.
  [[nodiscard]] std::vector<EndedTransfer> TakeEnded(size_t limit);
  // One of them; nothing if it is under way, or unknown, or was taken before.
  [[nodiscard]] std::optional<EndedTransfer> TakeOne(uint64_t transfer);
  // Why blocks of a taken transfer have failed; empty if none has or they are not kept any more.
  // Valid until the next call.
  [[nodiscard]] const std::vector<wire::TransferDone::Failed>& FailuresOf(uint64_t transfer) const;
  void ForgetFailures(uint64_t transfer);

 private:
  struct Part {
    uint64_t transfer = 0;
    uint32_t first = 0;
    uint32_t count = 0;
  };
  struct UnderWay {
    uint32_t blocks = 0;
    uint32_t blocks_left = 0;   // of parts under way or not added yet
    uint32_t blocks_added = 0;  // the first so many
    EndedTransfer end;
  };

  // All blocks of the part failed for one reason.
  void FailPart(const Part& part, MissReason reason, const Error& error);
  // The part's blocks are in the transfer's end; with the last one the transfer has ended.
  void EndPart(const Part& part);
  EndedTransfer Tell(EndedTransfer end);

  LayerCounts layers_;
  std::unordered_map<uint64_t, Part> parts_;  // by request id
  std::unordered_map<uint64_t, UnderWay> under_way_;
  std::deque<EndedTransfer> ended_;
  // Failures of transfers that were told, oldest first.
  std::deque<EndedTransfer> told_;
};

}  // namespace kvtier::client
