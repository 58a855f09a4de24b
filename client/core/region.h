// SPDX-License-Identifier: Apache-2.0
// A region as the application holds it: memory of its own, opened in one daemon's life.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/posix.h"
#include "base/result.h"
#include "client/core/connection.h"
#include "client/core/daemon_session.h"
#include "client/core/transfers.h"
#include "client/core/unix_socket.h"
#include "protocol/messages.h"

namespace kvtier::client {

// Thread-safe. Once the session is lost, calls that send fail with kUnavailable, for good, and all
// transfers have ended; a region is not opened again by itself, since only the application knows
// what its memory holds.
class Region {
 public:
  // Opens a region of a registered model over the connection's current session. `request.model` is
  // filled in; `request.device` may be kAnyDevice; without pieces the blocks lie one behind the
  // other. `descriptor` is the memory's and is closed here; not valid for kCudaIpc. Errors: the
  // daemon's; those of Connection::ModelIn and ChooseDevice; kNotFound "unknown_group";
  // kInvalidArgument "no_descriptor"; kLimitExceeded "too_many_blocks", "too_many_pieces";
  // kUnavailable; kTimeout.
  [[nodiscard]] static Result<std::unique_ptr<Region>> Open(Connection* connection, uint32_t model,
                                                            wire::OpenRegion request,
                                                            UniqueFd descriptor);
  // Waits until nothing touches the memory; for the answer of a daemon that is not at work no
  // longer than for others.
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  [[nodiscard]] uint64_t block_bytes() const { return group_.BlockBytes(); }
  // Whether the session still stands; takes in the frames that have arrived.
  [[nodiscard]] bool Alive() const { return session_->channel().Poll(); }
  // Takes the daemon for lost, and all transfers with it.
  void HangUp() { session_->channel().HangUp(); }
  // Whether nothing of the daemon touches the memory any more.
  [[nodiscard]] bool DaemonEnded() const {
    return session_->daemon().Ended() || session_->channel().Settled();
  }

  // Begins a transfer and returns its number, which differs from those of all other transfers of
  // the region. `items` are not empty. Errors: kInvalidArgument "empty_request",
  // "block_out_of_range", "bad_token_count"; kUnavailable. Any other refusal of the daemon ends the
  // transfer, see EndedTransfer. Blocks that the daemon has are compared, if `compare` says what
  // type of numbers they are.
  [[nodiscard]] Result<uint64_t> Store(std::vector<wire::StoreItem> items,
                                       std::optional<KvDtype> compare = {});
  [[nodiscard]] Result<uint64_t> Load(std::vector<wire::LoadItem> items, wire::LoadOrder order);

  // Takes in the frames that have arrived, and up to `limit` of the transfers that have ended.
  // Never waits.
  [[nodiscard]] std::vector<EndedTransfer> Poll(size_t limit);
  // Waits until the transfer has ended. Errors: kTimeout; kNotFound "unknown_transfer" (never
  // begun, or taken before).
  [[nodiscard]] Result<EndedTransfer> Wait(uint64_t transfer, Deadline deadline);
  // How many layers of a load begun with kLayers all of its blocks have: a kernel that is launched
  // now sees them. Looks at memory alone while the load is counted there. Its failure, once it has
  // ended without all layers, is kCancelled "load_incomplete", kUnavailable, or the daemon's
  // refusal. Errors: kNotFound "unknown_transfer" (not begun in this order, or too long ago).
  [[nodiscard]] Result<LayerCounts::State> LayersLoaded(uint64_t transfer);
  // Waits for so many of them. Errors: the load's failure; kNotFound as above; kTimeout;
  // kInvalidArgument "too_many_layers".
  [[nodiscard]] Status WaitLayers(uint64_t transfer, uint32_t layers, Deadline deadline);
  // The first `limit` failures of a taken transfer; `count` is how many there are. If these are
  // all, they are forgotten.
  [[nodiscard]] std::vector<wire::TransferDone::Failed> TakeFailures(uint64_t transfer,
                                                                     size_t limit, size_t* count);

  // Keeps blocks of the group from being forgotten until `ttl_ms` from now, 0 unpins; returns how
  // many are cached. Errors: as Attachment::Pin.
  [[nodiscard]] Result<uint32_t> Pin(std::span<const BlockHash> hashes, int64_t ttl_ms) const;
  // See Attachment::Hint.
  [[nodiscard]] Result<uint32_t> Hint(std::span<const BlockHash> hashes, SequenceHint hint,
                                      int64_t returns_in_ms) const;
  // Has what only the disk has of a prefix brought to host memory, and waits for that; returns how
  // many blocks of it are in memory. Errors: as Attachment::Prefetch.
  [[nodiscard]] Result<uint32_t> Prefetch(std::span<const BlockHash> hashes,
                                          Deadline deadline) const;
  // See AskForTokenIds and TellTokenIds.
  [[nodiscard]] Result<bool> WantsTokenIds() const;
  [[nodiscard]] Status TellTokenIds(std::span<const BlockHash> hashes,
                                    std::span<const uint16_t> counts,
                                    std::span<const uint32_t> ids) const;
  // Which tiers hold each block now, one byte of kPresent* bits each. Errors: the daemon's;
  // kLimitExceeded "too_many_hashes"; kUnavailable; kTimeout.
  [[nodiscard]] Result<std::vector<uint8_t>> Lookup(std::span<const BlockHash> hashes) const;

 private:
  Region(Connection* connection, std::shared_ptr<DaemonSession> session, KvGroup group,
         uint32_t blocks)
      : connection_(*connection),
        session_(std::move(session)),
        group_(group),
        blocks_(blocks),
        transfers_(std::make_shared<Transfers>(session_->counters())) {}

  template <typename Message>
  [[nodiscard]] Result<uint64_t> Begin(Message message, size_t blocks_per_message);
  // Whether the daemon touches nothing of it, answered or not.
  [[nodiscard]] bool IsIdle() const;
  [[nodiscard]] Status CheckBlock(uint32_t block) const;
  [[nodiscard]] Status CheckHashCount(size_t count) const;

  const Connection& connection_;
  const std::shared_ptr<DaemonSession> session_;
  const KvGroup group_;
  const uint32_t blocks_;
  // Constant once open.
  PoolId id_;
  bool open_ = false;
  // The daemon may read it at any time, or its owner may not free it before the daemon has let go.
  bool touched_unasked_ = false;
  uint64_t looks_ = 0;  // of LayersLoaded; guarded by the channel's lock
  // Shared with the session, which hears of the transfers. Guarded by the channel's lock.
  const std::shared_ptr<Transfers> transfers_;
};

}  // namespace kvtier::client
