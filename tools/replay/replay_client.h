// SPDX-License-Identifier: Apache-2.0
// One inference client as the daemon sees it: asks for a prompt's blocks, checks those it gets,
// fills and publishes the others, and lets go of all of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kvtier/kvtier.hpp"
#include "tools/replay/report.h"
#include "tools/replay/trace.h"

namespace kvtier {

struct ReplayTarget {
  std::string socket;
  // When set, the daemon is asked to come to rest after each step of a request (load, allocation,
  // release), so that what each tier holds depends on the requests alone and not on timing.
  std::string settle_admin_socket;
  uint64_t block_bytes = 0;
  uint32_t layers = 1;
  uint64_t pool_bytes = 0;  // 0: as much as the daemon has left
  uint32_t device = 0;
  // The longest pause between tries to come back to a lost daemon.
  int64_t reconnect_max_ms = 2000;
};

// Used by one thread. A lost daemon means misses; the connection comes back by itself.
class ReplayClient {
 public:
  // Errors: kInvalidArgument "bad_block_bytes" when no KV geometry has this block, and those of
  // connecting, registering and attaching.
  [[nodiscard]] static Result<ReplayClient> Connect(const ReplayTarget& target,
                                                    uint32_t block_tokens);

  // Errors of the daemon are counted in the report; one is returned only when going on would make
  // the report meaningless (the daemon cannot settle).
  [[nodiscard]] Status Play(const TraceRequest& request);

  // Waits until the daemon has taken everything in, and returns the report.
  [[nodiscard]] const ReplayReport& Finish();

  [[nodiscard]] kvt::Connection& connection() { return connection_; }
  [[nodiscard]] kvt::Pool& pool() { return pool_; }

 private:
  ReplayClient(ReplayTarget target, uint32_t block_tokens, kvt::Connection connection,
               kvt::Pool pool);

  using SteadyClock = std::chrono::steady_clock;

  // Waits for the load of an acquire that was sent at `start`; takes out the hits that were lost.
  void WaitForHits(SteadyClock::time_point start, kvt::Acquired* acquired);
  // Returns how many hits still counted when they had been read: all, or none if the connection,
  // and with it the protection of the bytes, went away.
  size_t CheckHits(const std::vector<kvt_hash>& hashes, const kvt::Acquired& acquired);
  // A block's bytes: in place in host memory, or a copy of a GPU's, good until the next call.
  [[nodiscard]] kvt::Result<std::span<const std::byte>> Look(const kvt_block& block);
  // Fills a private block with what belongs to `hash`.
  [[nodiscard]] kvt::Status Fill(const BlockHash& hash, const kvt_block& block);
  void CountBlocks(const TraceRequest& request, const kvt::Acquired& acquired, size_t hits);
  // Fills and publishes the blocks from `first` on, and appends them to `held`.
  [[nodiscard]] Status FillMisses(const std::vector<kvt_hash>& hashes, size_t first,
                                  std::vector<kvt_block>* held);
  void CountAsyncErrors();
  [[nodiscard]] Status Settle();

  ReplayTarget target_;
  uint32_t block_tokens_;
  kvt::Connection connection_;
  kvt::Pool pool_;  // after the connection: closed before it
  ReplayReport report_;
  std::vector<std::byte> staging_;  // one block, if the pool is not host memory
};

// Hashes as the C ABI takes them.
[[nodiscard]] std::vector<kvt_hash> ToWire(const std::vector<BlockHash>& hashes);

// The record of a model whose blocks of `block_tokens` tokens take exactly `block_bytes`, in
// `layers` layers. Errors: kInvalidArgument "bad_block_bytes".
[[nodiscard]] Result<kvt_model_record> ModelOfBlockBytes(uint64_t block_bytes,
                                                         uint32_t block_tokens,
                                                         uint32_t layers = 1);

}  // namespace kvtier
