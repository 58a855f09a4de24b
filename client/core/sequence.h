// SPDX-License-Identifier: Apache-2.0
// The blocks of one growing sequence of tokens; kvtier_sequence.h describes the calls.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/hit_plan.h"
#include "base/ids.h"
#include "base/result.h"
#include "client/core/attachment.h"
#include "client/core/sequence_tokens.h"
#include "client/core/unix_socket.h"
#include "protocol/block_hash.h"

namespace kvtier::client {

// Copies one block within the pool; false if that failed.
using BlockCopier =
    std::function<bool(uint64_t target_offset, uint64_t source_offset, uint64_t bytes)>;

struct SequenceOptions {
  PromptIdentity identity;  // without prompt_embeds: a sequence grows
  uint64_t leave_tokens = 1;
  uint64_t reserve_tokens = 0;
  RetentionClass retention = RetentionClass::kExtended;
  LoadWish wish;       // its tokens are the sequence's
  BlockCopier copier;  // empty: memcpy in host memory, a copy on the GPU in a CUDA pool
  int64_t request_timeout_ms = 5000;
};

// One thread at a time. A call that finds the session lost resumes it if it can, and goes on: all
// computed tokens are there. If it cannot, or if one of the blocks has been lost, calls other than
// Open fail with kStaleHandle "connection_lost" from then on.
class Sequence {
 public:
  // Hashes by the model's recipe. Errors: those of ParseHashRecipe and PromptIdentity::CheckFor;
  // kInvalidArgument "bad_prompt_embeds"; those of Attachment::Acquire.
  [[nodiscard]] static Result<std::unique_ptr<Sequence>> Open(
      std::shared_ptr<const Attachment> attachment, SequenceOptions options,
      std::span<const uint32_t> tokens);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  [[nodiscard]] Status Wait(Deadline deadline);
  [[nodiscard]] Status Check();
  [[nodiscard]] Status Append(std::span<const uint32_t> tokens);
  [[nodiscard]] Status MarkComputed(uint64_t tokens);
  [[nodiscard]] Status Finish();
  [[nodiscard]] Result<std::unique_ptr<Sequence>> Fork();

  // Whether the block table is final and the cached prefix usable.
  [[nodiscard]] bool ready() const { return ready_; }
  // The daemon's forecast when the sequence was opened; zeros without a wish.
  [[nodiscard]] const LoadForecast& forecast() const { return forecast_; }
  // Gives the daemon a hint about the blocks that this sequence found or has committed; returns of
  // how many it was taken. Errors: as Attachment::Hint; kStaleHandle.
  [[nodiscard]] Result<uint32_t> Hint(SequenceHint hint, int64_t returns_in_ms);
  // Valid until the next call that is not const.
  [[nodiscard]] std::span<const BlockHandle> blocks() const { return blocks_; }
  [[nodiscard]] uint64_t tokens() const { return tokens_.size(); }
  [[nodiscard]] uint64_t cached_tokens() const { return cached_end_; }
  [[nodiscard]] uint64_t computed_tokens() const { return computed_tokens_; }
  // How many of the cached tokens each tier had.
  [[nodiscard]] std::array<uint64_t, kTierCount> TokensByTier() const;
  [[nodiscard]] MissReason miss() const { return miss_; }
  [[nodiscard]] const Attachment& attachment() const { return *attachment_; }

 private:
  Sequence(std::shared_ptr<const Attachment> attachment, SequenceOptions options,
           SequenceTokens tokens);

  [[nodiscard]] Status AcquirePrefix();
  // Acquires the blocks behind those that were found, until some are not or have to be loaded.
  [[nodiscard]] Status AcquireMore();
  [[nodiscard]] Result<AcquiredPart> Ask(const PrefixPlan& plan) const;
  // Takes over what an acquire brought: the prefix that is kept, the block to copy from, and the
  // private blocks.
  void AdoptHits(const PrefixPlan& plan, const AcquiredPart& reply);
  // Drops the hits from `ready` on from the cached prefix.
  void LoseHitsFrom(uint32_t ready);
  // Makes the block table as long as the tokens need and the first writable block private.
  [[nodiscard]] Status Settle();
  // Allocates private blocks until there are `count`, and one more for `spare`, unless that is
  // null. Holds as much as before on errors.
  [[nodiscard]] Status GrowTo(size_t count, BlockHandle* spare = nullptr);
  // Gives back the private blocks behind the first `count`.
  void ShrinkTo(size_t count);
  [[nodiscard]] Status CommitBlocks(size_t first, size_t end,
                                    std::optional<uint16_t> partial_tokens);
  void ReleaseBlocks(std::vector<BlockHandle> blocks) const;
  // The attachment has been resumed over `link`: sees what of this sequence is there again.
  // Errors: kStaleHandle (not all that it needs).
  [[nodiscard]] Status Resume(const Link& link);
  [[nodiscard]] bool IsLost(BlockHandle block) const {
    return attachment_->OutcomeSince(resumes_, block) == ResumeOutcome::kLost;
  }
  // Ends the load; only the blocks that had arrived count.
  void EndLoadEarly();
  // Commits again those committed blocks of which the daemon had not heard.
  [[nodiscard]] Status CommitAgain();

  // Fork's parts, called on the new sequence.
  [[nodiscard]] Status ShareBlocksOf(const Sequence& parent);
  [[nodiscard]] Status CopyBlocksOf(const Sequence& parent, size_t first);

  [[nodiscard]] Status CheckReady();
  [[nodiscard]] Deadline RequestDeadline() const { return DeadlineIn(options_.request_timeout_ms); }
  [[nodiscard]] uint32_t block_tokens() const { return attachment_->block_tokens(); }

  const std::shared_ptr<const Attachment> attachment_;
  const SequenceOptions options_;
  SequenceTokens tokens_;
  bool tells_tokens_ = false;  // the daemon wants their ids

  // The block table: shared_blocks_ immutable ones, then private ones.
  std::vector<BlockHandle> blocks_;
  size_t shared_blocks_ = 0;
  size_t cached_blocks_ = 0;  // the table's first so many are the cached prefix
  // The last shared block is a partial one that this sequence committed.
  bool partial_committed_ = false;
  // A cached block of which a part is used: copied to the first private block once it is there.
  std::optional<BlockHandle> copy_source_;
  // Where the cached prefix came from, by hit, the copied one included.
  std::vector<Tier> cached_tiers_;

  uint64_t cached_end_ = 0;  // in tokens
  LoadForecast forecast_;
  uint64_t computed_tokens_ = 0;
  LoadId load_;
  std::unique_ptr<LoadHold> load_hold_;
  uint32_t load_first_ = 0;  // of the hits, the first that the load brings or names
  uint32_t load_hits_ = 0;
  bool found_all_ = false;  // that a call may name: those behind have not been asked for
  MissReason miss_ = MissReason::kNone;
  bool ready_ = false;
  // How often the attachment had been resumed when all blocks were last known to be held.
  uint64_t resumes_ = 0;
  bool lost_ = false;
};

}  // namespace kvtier::client
