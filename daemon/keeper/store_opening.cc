// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/store_opening.h"

#include <string>
#include <utility>

#include "daemon/keeper/keeper_store.h"
#include "daemon/keeper/systemd_store.h"

namespace kvtier {
namespace {

class NoStore final : public DescriptorStore {
 public:
  explicit NoStore(std::string reason) : reason_(std::move(reason)) {}
  [[nodiscard]] bool keeps() const override { return false; }
  [[nodiscard]] Holder holder() const override {
    return {.name = "none", .pid = 0, .until = "", .reason = reason_};
  }

 protected:
  std::optional<UniqueFd> DoTake(std::string_view /*name*/) override { return std::nullopt; }
  Status DoKeep(const std::string& /*name*/, const Descriptor& /*descriptor*/) override {
    return MakeError(ErrorCode::kUnavailable, "nothing_keeps", reason_);
  }
  void DoRelease(std::string_view /*name*/) override {}
  void DoReleaseAll() override {}

 private:
  const std::string reason_;
};

}  // namespace

std::unique_ptr<DescriptorStore> OpenDescriptorStore(const DescriptorStoreOptions& options) {
  // First of all, since the descriptors are open already and the variables tell which they are.
  std::unique_ptr<SystemdStore> systemd = SystemdStore::Open(options.keep_for_ms > 0);
  if (options.keep_for_ms <= 0) {
    if (systemd != nullptr) systemd->ReleaseAll();
    EndKeeper(options.socket, options.log);
    return std::make_unique<NoStore>("restart.keep_for is 0");
  }
  if (systemd != nullptr) {
    options.log->Info("keeper.ready", "systemd keeps {} descriptor(s) of an earlier daemon",
                      systemd->passed());
    return systemd;
  }
  Result<std::unique_ptr<KeeperStore>> keeper = KeeperStore::Open(options);
  if (keeper) return *std::move(keeper);
  options.log->Warning("keeper.none", "memory is not kept over a restart: {}",
                       keeper.error().ToString());
  return std::make_unique<NoStore>(keeper.error().ToString());
}

}  // namespace kvtier
