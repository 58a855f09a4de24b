// SPDX-License-Identifier: Apache-2.0
// How an attachment reaches its pool: over one session at a time, and over the next one when the
// daemon has been started anew and the same memory is there again. Then the application's blocks
// are claimed with RESUME, together with those of the pool's other links (LinkGroup), and its
// handles stay good.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/acquired.h"
#include "base/ids.h"
#include "base/result.h"
#include "client/core/connection.h"
#include "client/core/device_choice.h"
#include "client/core/link_group.h"
#include "client/core/pool_mapping.h"
#include "protocol/messages.h"

namespace kvtier::client {

// Which blocks of one pool the application holds, and how often: what a client claims when it
// resumes its session with the next daemon. A row for each block that was ever held, so that an
// acquire of thousands costs microseconds. Not thread-safe.
class HeldBlocks {
 public:
  // One hold more. Holds of an earlier generation end: the block has been another's since.
  void Add(BlockHandle block);
  // One hold less. False if there was none.
  bool Remove(BlockHandle block);
  // All holds of the block end.
  void Forget(BlockHandle block);
  [[nodiscard]] uint32_t CountOf(BlockHandle block) const;
  [[nodiscard]] bool empty() const { return total_ == 0; }
  // Claims of all blocks, in order of index.
  [[nodiscard]] std::vector<ResumeClaim> Claims() const;

 private:
  struct Row {
    uint32_t generation = 0;
    uint32_t holds = 0;
  };
  // Null if the block of this generation is not held.
  [[nodiscard]] const Row* Find(BlockHandle block) const;

  std::vector<Row> rows_;
  uint64_t total_ = 0;
};

// The reason of what concerns a block that could not be taken back.
inline constexpr const char* kLostBlock = "lost_at_restart";

// A pool in one session. Constant.
struct Link {
  std::shared_ptr<DaemonSession> session;
  PoolId pool;
  uint64_t resumes = 0;  // how often the attachment was resumed before

  // A load's number as the application knows it, in which the link's own is part: a load ends with
  // the daemon that began it, and the next daemon counts from 1 again.
  [[nodiscard]] LoadId Tagged(LoadId load) const;
  // The daemon's own number. Errors: kUnavailable "connection_lost" (the load was another link's).
  [[nodiscard]] Result<LoadId> Untagged(LoadId load) const;
};
using LinkPtr = std::shared_ptr<const Link>;

// Thread-safe.
class PoolLink {
 public:
  // Which pool the link is to, as it was attached at first.
  struct Target {
    Connection* connection = nullptr;  // outlives this
    uint32_t model = 0;                // its number on the connection
    wire::Attach request;              // but for the model and the device
    DeviceChoice device{kAnyDevice};
    uint64_t attachment = 0;  // for errors that name blocks
  };
  [[nodiscard]] static std::shared_ptr<PoolLink> Make(const Target& target,
                                                      std::shared_ptr<PoolMapping> mapping,
                                                      Link first);
  PoolLink(const Target& target, std::shared_ptr<PoolMapping> mapping, Link first);
  // Gives back all that the application holds. REQUIRES: nothing of the process uses the memory,
  // which is unmapped here unless others have the mapping.
  ~PoolLink();
  PoolLink(const PoolLink&) = delete;
  PoolLink& operator=(const PoolLink&) = delete;

  // Alive or not.
  [[nodiscard]] LinkPtr Current() const;
  // Returns a link that stands. If the daemon is gone, and blocks may outlive it, takes the
  // application's blocks back from the next one; if there are any, waits for that one up to
  // `resume_wait_ms`.
  // Errors: kTimeout, if the daemon has not answered yet: another call may still take the blocks
  // back; kUnavailable, if something was held for good: it is lost.
  [[nodiscard]] Result<LinkPtr> Live();
  // Whether the application has held all these blocks without a break until now, so that bytes it
  // read from them before this call are theirs. A session that is gone is resumed first, as by
  // Live. Errors: those of Live, kStaleHandle "lost_at_restart" (one of them is not held).
  [[nodiscard]] Status CheckHeld(std::span<const BlockHandle> blocks);
  // Whether something is held that Live would try to take back.
  [[nodiscard]] bool MayResume() const;
  // Whether the pool may outlive the session's daemon, so that the next one is worth waiting for.
  [[nodiscard]] bool MayOutlive() const;

  // The application holds what an acquire over `link` brought. False if it does not, because the
  // link has been replaced since, and the acquired blocks are lost.
  [[nodiscard]] bool Hold(const LinkPtr& link, const wire::AcquireReply::Part& acquired);
  // The application gives one hold of each block back: the daemon is to be told over the link that
  // is returned. Says of each block whether it was lost, of which the daemon need not be told.
  [[nodiscard]] LinkPtr Drop(std::span<const BlockHandle> blocks, std::vector<bool>* lost);
  // The outcome for a block that was held when the attachment had been resumed `since` times:
  // kReferenced also if it has not been resumed since; kLost also if it has been given back.
  [[nodiscard]] ResumeOutcome OutcomeSince(uint64_t since, BlockHandle block) const;

  // The steps of a Resumption, which alone calls them.

  // Attaches the same pool. Errors: kStaleHandle "pool_replaced"; those of the requests.
  [[nodiscard]] Result<PoolId> Attach(const std::shared_ptr<DaemonSession>& session) const;
  // The blocks to claim. No others are held until the link is replaced.
  [[nodiscard]] std::vector<ResumeClaim> BeginResume();
  // Replaces the link, with the outcomes of the claims. Blocks that were given back meanwhile are
  // released.
  void EndResume(const std::shared_ptr<DaemonSession>& session, PoolId pool,
                 std::span<const ResumeClaim> claims, std::span<const ResumeOutcome> outcomes);

 private:
  // The blocks of one resume that did not become kReferenced.
  using Outcomes = std::unordered_map<uint64_t, ResumeOutcome>;

  // REQUIRES: mutex_ is held.
  [[nodiscard]] bool CanResume() const;
  // REQUIRES: mutex_ is held, and the block is not.
  [[nodiscard]] bool WasLost(BlockHandle block) const;
  // Notes the outcomes; references beyond those still held go to `surplus`. REQUIRES: mutex_ is
  // held.
  void TakeOutcomes(std::span<const ResumeClaim> claims, std::span<const ResumeOutcome> outcomes,
                    std::vector<BlockHandle>* surplus);
  const Target target_;
  std::shared_ptr<PoolMapping> mapping_;  // constant but for the end

  const std::shared_ptr<LinkGroup> group_;

  mutable std::mutex mutex_;  // guards the following; taken after the group's lock
  LinkPtr link_;
  HeldBlocks held_;
  bool resuming_ = false;  // held blocks have been claimed
  bool given_up_ = false;
  std::deque<Outcomes> outcomes_;  // of the latest resumes
};

}  // namespace kvtier::client
