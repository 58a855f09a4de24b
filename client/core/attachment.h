// SPDX-License-Identifier: Apache-2.0
// A pool as the application reaches it: the calls about its blocks, over one session or, if the
// held blocks outlive the daemon, over several in a row.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "client/core/daemon_session.h"
#include "client/core/group_request.h"
#include "client/core/loads.h"
#include "client/core/pool_link.h"
#include "client/core/pool_mapping.h"
#include "client/core/unix_socket.h"
#include "protocol/messages.h"
#include "protocol/model_record.h"

namespace kvtier::client {

// The outcome of one entry of a commit or release.
struct EntryOutcome {
  bool ok = true;
  bool duplicate = false;  // commits only
  ErrorCode code = ErrorCode::kInternal;
  std::string reason;
};

// Thread-safe. A call that finds the session lost resumes it, if it can (PoolLink::Live), and is
// made again. If it cannot, every call fails with kUnavailable, for good: all blocks acquired here
// are lost. When the last that has it lets go of it, the memory is unmapped and all that is held is
// given back; with the connection gone, that has happened.
class Attachment {
 public:
  // Attaches over `session`, one of the connection's, with the target's request, of a group of the
  // model that `record` describes. `known` (may be null) is the mapping of this pool's last
  // attachment and is used again if it is the same memory. The connection outlives the attachment.
  // Errors: the daemon's; kUnavailable; kTimeout; kCorrupt, kIoError from mapping.
  [[nodiscard]] static Result<std::shared_ptr<const Attachment>> Open(
      PoolLink::Target target, std::shared_ptr<DaemonSession> session, ModelRecord record,
      const std::shared_ptr<PoolMapping>& known);

  // Differs between any two attachments of this process, never 0.
  [[nodiscard]] uint64_t id() const { return id_; }
  // How it is reached now, alive or not.
  [[nodiscard]] LinkPtr link() const { return link_->Current(); }
  // One that stands: see PoolLink::Live.
  [[nodiscard]] Result<LinkPtr> Live() const { return link_->Live(); }
  [[nodiscard]] bool MayOutlive() const { return link_->MayOutlive(); }
  [[nodiscard]] bool MayResume() const { return link_->MayResume(); }
  // See PoolLink::CheckHeld.
  [[nodiscard]] Status CheckHeld(std::span<const BlockHandle> blocks) const {
    return link_->CheckHeld(blocks);
  }
  // See PoolLink::Hold and OutcomeSince.
  [[nodiscard]] bool Hold(const LinkPtr& link, const AcquiredPart& acquired) const {
    return link_->Hold(link, acquired);
  }
  [[nodiscard]] ResumeOutcome OutcomeSince(uint64_t resumes, BlockHandle block) const {
    return link_->OutcomeSince(resumes, block);
  }
  [[nodiscard]] const std::shared_ptr<PoolMapping>& mapping() const { return mapping_; }
  [[nodiscard]] uint32_t blocks() const { return blocks_; }
  [[nodiscard]] const ModelRecord& record() const { return record_; }
  [[nodiscard]] const KvGroup& group() const { return record_.groups[group_]; }
  [[nodiscard]] uint64_t block_bytes() const { return group().BlockBytes(); }
  [[nodiscard]] uint32_t block_tokens() const { return group().block_tokens; }
  // AcquireGroups of this one group. The load that it begins is held: see HoldOf.
  [[nodiscard]] Result<AcquiredPart> Acquire(std::span<const BlockHash> hashes,
                                             std::span<const BlockHash> partial_blocks,
                                             uint32_t new_blocks, Deadline deadline,
                                             wire::LoadOrder order = wire::LoadOrder::kBlocks,
                                             const LoadWish& wish = {}) const;
  // The hold on a load that Acquire has begun; null if there is none, or the load's link has been
  // replaced.
  [[nodiscard]] std::unique_ptr<LoadHold> HoldOf(LoadId load) const;
  // See WaitForLoad.
  [[nodiscard]] Result<LoadState> Wait(LoadId load, const LoadGoal& goal, Deadline deadline) const;
  // Has a stream of the pool's GPU wait until the first `steps` hits, or layers if the load comes
  // in layers, are usable or nothing more will come; or waits here where there is no counter.
  // Errors: kUnsupported (not CUDA memory), those of Wait and of LoadCounters::WaitOnStream.
  [[nodiscard]] Status WaitOnStream(LoadId load, uint32_t steps, void* stream,
                                    Deadline deadline) const;

  // Publishes blocks; with `outcomes` waits for them, else errors go to the session's AsyncErrors.
  [[nodiscard]] Status Commit(std::vector<wire::CommitItem> items,
                              std::vector<EntryOutcome>* outcomes, Deadline deadline) const;
  // Gives references back; `outcomes` as above.
  [[nodiscard]] Status Release(std::vector<BlockHandle> blocks, std::vector<EntryOutcome>* outcomes,
                               Deadline deadline) const;

  // See Cache. Errors: the daemon's; kLimitExceeded "too_many_hashes"; kUnavailable; kTimeout.
  [[nodiscard]] Result<uint32_t> Prefetch(std::span<const BlockHash> hashes,
                                          Deadline deadline) const;
  [[nodiscard]] Result<uint32_t> Pin(std::span<const BlockHash> hashes, int64_t ttl_ms,
                                     Deadline deadline) const;
  [[nodiscard]] Result<uint32_t> Hint(std::span<const BlockHash> hashes, SequenceHint hint,
                                      int64_t returns_in_ms, Deadline deadline) const;
  // Whether the daemon keeps ids of the blocks' tokens: asks until one call over the link has been
  // answered. Errors: as AskForTokenIds.
  [[nodiscard]] Result<bool> WantsTokenIds(Deadline deadline) const;
  // See TellTokenIds.
  [[nodiscard]] Status TellTokenIds(std::span<const BlockHash> hashes,
                                    std::span<const uint16_t> counts,
                                    std::span<const uint32_t> ids) const;
  [[nodiscard]] Result<std::vector<uint8_t>> Lookup(std::span<const BlockHash> hashes,
                                                    Deadline deadline) const;

 private:
  Attachment() = default;

  [[nodiscard]] Status CheckHashCount(size_t count) const;
  // `call(link)`, and again over the next one if the link is lost meanwhile.
  template <typename Call>
  [[nodiscard]] auto OverLink(Call call) const -> decltype(call(*LinkPtr()));
  // One request of several blocks, repeated over the next link for the blocks that are left.
  [[nodiscard]] Status CommitBatch(std::vector<wire::CommitItem> items,
                                   std::span<EntryOutcome> outcomes, bool want_reply,
                                   Deadline deadline) const;
  [[nodiscard]] Status CommitOver(const Link& link, const std::vector<wire::CommitItem>& items,
                                  std::span<EntryOutcome> outcomes, bool want_reply,
                                  Deadline deadline) const;
  // The same of a release, in batches.
  [[nodiscard]] Status ReleaseAll(const Link& link, std::span<const BlockHandle> blocks,
                                  std::vector<EntryOutcome>* outcomes, Deadline deadline) const;
  [[nodiscard]] Status ReleaseOver(const Link& link, std::span<const BlockHandle> blocks,
                                   std::span<EntryOutcome> outcomes, bool want_reply,
                                   Deadline deadline) const;

  uint64_t id_ = 0;
  // Its only owner, but for a thread that resumes it right now. It ends after the mapping.
  std::shared_ptr<PoolLink> link_;
  std::shared_ptr<PoolMapping> mapping_;
  uint32_t blocks_ = 0;
  ModelRecord record_;
  uint32_t group_ = 0;  // of the record's groups
  // A daemon's answer, and the link over which it came, by Link::resumes.
  struct Asked {
    uint64_t resumes = 0;
    bool wants_token_ids = false;
  };
  mutable std::mutex asked_mutex_;
  mutable std::optional<Asked> asked_;  // guarded by asked_mutex_
};

}  // namespace kvtier::client
