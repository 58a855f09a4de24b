// SPDX-License-Identifier: Apache-2.0
// A pool as the application holds it: the same object through all reconnections.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"
#include "client/core/attachment.h"
#include "client/core/connection.h"
#include "client/core/device_choice.h"
#include "client/core/pool_mapping.h"
#include "protocol/messages.h"

namespace kvtier::client {

// Thread-safe. The connection must outlive it.
class Pool {
 public:
  // Attaches for the first time, or if there is no daemon and the connection waits for one, once
  // there is. `device` is a position in Connection::Devices or kAnyDevice; see kvt_attach. Errors:
  // kNotFound "unknown_group"; those of Connection::ModelIn, ChooseDevice and Attachment::Open.
  [[nodiscard]] static Result<std::unique_ptr<Pool>> Open(Connection* connection, uint32_t model,
                                                          uint32_t group, uint32_t device,
                                                          uint64_t pool_bytes);

  // An attachment over the connection's current session: resumed after a reconnection, or else
  // attached again.
  // Errors: kUnavailable, for whatever reason; a daemon's refusal is also among the connection's
  // AsyncErrors, once until the daemon takes the pool or refuses it for another reason.
  [[nodiscard]] Result<std::shared_ptr<const Attachment>> Attached();
  // The last one instead of an error, alive or not, if there is one.
  [[nodiscard]] Result<std::shared_ptr<const Attachment>> AttachedOrLatest();
  // The same for a sequence that is about to be opened: waits for the next daemon, which may have
  // the pool with all its blocks, even though this client holds none of them. All calls together
  // wait for `resume_wait_ms` at most in one daemon's absence.
  [[nodiscard]] Result<std::shared_ptr<const Attachment>> AttachedForOpening();
  // The last attachment, alive or not. Errors: kUnavailable "never_attached": the daemon has not
  // been there yet.
  [[nodiscard]] Result<std::shared_ptr<const Attachment>> Latest() const;
  // The mapping that an attachment of this pool used, in which the block is. Errors: kStaleHandle,
  // also once it has been dropped; kInvalidArgument "block_outside_pool".
  [[nodiscard]] Result<std::shared_ptr<PoolMapping>> MappingOf(uint64_t attachment,
                                                               uint32_t block) const;
  // Forgets the mappings of earlier generations.
  void DropStaleMappings();
  // Gives back all CUDA memory, of the current generation too. REQUIRES: nothing uses it.
  void UnmapDevice();

  // Applies to sequences that are opened from now on.
  void SetComputeCost(const ComputeCost& cost);
  [[nodiscard]] ComputeCost compute_cost() const;

  [[nodiscard]] Connection& connection() { return *connection_; }
  [[nodiscard]] uint32_t model() const { return model_; }
  [[nodiscard]] uint32_t group() const { return group_; }
  // The record's, and so known before the first attachment.
  [[nodiscard]] uint64_t block_bytes() const { return block_bytes_; }

 private:
  Pool(Connection* connection, uint32_t model, uint32_t group, uint32_t device, uint64_t pool_bytes,
       uint64_t block_bytes)
      : connection_(connection),
        model_(model),
        group_(group),
        block_bytes_(block_bytes),
        device_(device),
        pool_bytes_(pool_bytes) {}
  [[nodiscard]] bool IsAttachedTo(const std::shared_ptr<DaemonSession>& session) const;
  // REQUIRES of both: attach_mutex_ is held.
  [[nodiscard]] Status Attach(const std::shared_ptr<DaemonSession>& session);
  void TellRefusal(const Error& error);

  Connection* const connection_;
  const uint32_t model_;
  const uint32_t group_;
  const uint64_t block_bytes_;
  DeviceChoice device_;  // guarded by attach_mutex_
  std::string refusal_;  // the reason that was told; guarded by attach_mutex_
  const uint64_t pool_bytes_;

  // One thread attaches; taken before mutex_.
  std::timed_mutex attach_mutex_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Attachment> latest_;
  // The link whose daemon calls have waited for, and until when.
  LinkPtr waited_for_;
  Deadline wait_until_;
  ComputeCost compute_cost_;
  // By attachment: pointers into them stay good.
  std::map<uint64_t, std::shared_ptr<PoolMapping>> mappings_;
};

}  // namespace kvtier::client
