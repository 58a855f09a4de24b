// SPDX-License-Identifier: Apache-2.0
// A keeper process as the holder of descriptors, where there is no service manager. The daemon's
// connection to it is how the keeper knows that the daemon lives.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/executor.h"
#include "base/gate.h"
#include "base/result.h"
#include "daemon/keeper/descriptor_store.h"
#include "daemon/keeper/keeper_link.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {

// Event loop only, or the time before it runs.
//
// A request is sent at once, so that a daemon that is killed afterwards has made it. A thread of
// the store waits for the answers: a keeper that is stopped or swapped out holds up nothing
// but that thread, and at the end of the store its destructor, for two seconds. Only Take waits for
// the answer, which belongs to the daemon's start.
//
// A keeper that dies or does not answer is replaced by a new one, which is given everything again;
// so is one that the start finds silent. Until then nothing is kept, and calls still succeed.
class KeeperStore final : public DescriptorStore {
 public:
  // Finds a keeper or starts one. Errors: those of KeeperLink::Open but "keeper_silent".
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
  // The loop sends, the thread awaits; the rest is the thread's, or never changes.
  struct Keeper {
    explicit Keeper(KeeperLink opened)
        : link(std::move(opened)), pid(link.pid()), descriptor(link.descriptor()) {}
    KeeperLink link;
    const int32_t pid;
    const int descriptor;
    bool silent = false;  // it is not asked again
  };

  explicit KeeperStore(const DescriptorStoreOptions& options);
  void Connect(KeeperLink link);
  // Sends the request, if there is a keeper, and has the thread wait for the answer.
  void Ask(KeeperRequest request, std::string_view name = {}, int descriptor = -1);
  void OnAnswered(const Status& answer);
  // The keeper is gone, or does not answer.
  void OnLost(const std::string& why);
  void Reopen();
  void OnReopened(Result<KeeperLink> link);

  const DescriptorStoreOptions options_;
  const KeeperPlace place_;
  std::shared_ptr<Keeper> keeper_;  // null: being replaced
  std::optional<FdWatch> watch_;    // of its connection
  std::string why_lost_;
  bool ended_ = false;  // all was released: no keeper is wanted any more
  Timer retry_;
  ThreadExecutor thread_;
  Gate gate_;  // last: callbacks of the thread may come late
};

// Ends the keeper of a daemon that was to keep something, if one runs beside the socket and no
// daemon is connected to it. Blocks for two seconds at most.
void EndKeeper(const std::string& socket, Log* log);

}  // namespace kvtier
