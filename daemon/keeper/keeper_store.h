// SPDX-License-Identifier: Apache-2.0
// A keeper process as the holder of descriptors, where there is no service manager. The daemon's
// connection to it is how the keeper knows that the daemon lives.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/gate.h"
#include "base/result.h"
#include "daemon/keeper/descriptor_store.h"
#include "daemon/keeper/keeper_link.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {

// Event loop only, or the time before it runs.
//
// A keeper that dies is replaced by a new one, which is given everything again: on a thread of the
// executor, since it waits for processes. Until then nothing is kept, and calls still succeed.
class KeeperStore final : public DescriptorStore {
 public:
  // Finds a keeper or starts one. Errors: those of KeeperLink::Open.
  [[nodiscard]] static Result<std::unique_ptr<KeeperStore>> Open(
      const DescriptorStoreOptions& options);

  void ReleaseUnclaimed() override;
  [[nodiscard]] Holder holder() const override;

 protected:
  std::optional<UniqueFd> DoTake(std::string_view name) override;
  Status DoKeep(const std::string& name, const Descriptor& descriptor) override;
  void DoRelease(std::string_view name) override;
  void DoReleaseAll() override;

 private:
  KeeperStore(const DescriptorStoreOptions& options, KeeperLink link);
  // Waits for the connection's end.
  void Watch();
  // The keeper is gone, or does not answer.
  void OnLost(const std::string& why);
  void Reopen();
  void OnReopened(Result<KeeperLink> link);
  // Logs the error and takes the keeper for lost.
  [[nodiscard]] bool Succeeded(const Status& done);

  const DescriptorStoreOptions options_;
  const KeeperPlace place_;
  std::optional<KeeperLink> link_;  // nothing: being replaced
  std::optional<FdWatch> watch_;    // of the link
  std::string why_lost_;
  bool ended_ = false;  // all was released: no keeper is wanted any more
  Timer retry_;
  Gate gate_;  // last: callbacks of the executor may come late
};

// Ends the keeper of a daemon that was to keep something, if one runs beside the socket and no
// daemon is connected to it. Blocks for two seconds at most.
void EndKeeper(const std::string& socket, Log* log);

}  // namespace kvtier
