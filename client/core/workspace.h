// SPDX-License-Identifier: Apache-2.0
// Memory shared with the daemon for its attention, in one daemon's life.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"
#include "client/core/attachment.h"
#include "client/core/pool_mapping.h"
#include "client/core/unix_socket.h"
#include "protocol/messages.h"

namespace kvtier::client {

// Thread-safe. Every call fails with kUnavailable once the session is lost, for good.
class Workspace {
 public:
  // Errors: the daemon's; kLimitExceeded "too_many_workspaces"; kUnavailable; kTimeout; those of
  // PoolMapping::Map.
  [[nodiscard]] static Result<std::unique_ptr<Workspace>> Open(
      std::shared_ptr<const Attachment> attachment, uint64_t bytes, Deadline deadline);
  // Lets its number be used again. The daemon keeps its side until then, unless it was closed.
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // The daemon frees its side once it has computed all requests; no Attend may follow. A lost
  // session needs no closing.
  void Close() const;

  [[nodiscard]] PoolMapping& mapping() { return *mapping_; }
  [[nodiscard]] const Attachment& attachment() const { return *attachment_; }
  // Fills in pool and workspace, sends, and waits for the results: the nanoseconds that they took.
  // Errors: the daemon's; kLimitExceeded "frame_too_long"; kUnavailable; kTimeout.
  [[nodiscard]] Result<uint64_t> Attend(wire::Attend attend, Deadline deadline) const;

 private:
  Workspace(std::shared_ptr<const Attachment> attachment, LinkPtr link, uint32_t number)
      : attachment_(std::move(attachment)), link_(std::move(link)), number_(number) {}

  const std::shared_ptr<const Attachment> attachment_;
  const LinkPtr link_;              // the workspace ends with its session
  std::optional<uint32_t> number_;  // constant once open
  std::shared_ptr<PoolMapping> mapping_;
};

}  // namespace kvtier::client
