// SPDX-License-Identifier: Apache-2.0
// The service manager as the holder of descriptors (FileDescriptorStoreMax= of the unit): it gives
// them to the next process of the unit after a crash or a restart, and closes them when the unit is
// stopped.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/posix.h"
#include "base/result.h"
#include "daemon/keeper/descriptor_store.h"

namespace kvtier {

// Event loop only, or the time before it runs. It owns the descriptors that systemd has passed
// until they are taken.
class SystemdStore final : public DescriptorStore {
 public:
  // Takes what systemd has passed to this process, out of the environment too. Null if there is no
  // store; with `probe` it is found out whether there is one where systemd does not say so (before
  // version 254), in some milliseconds.
  [[nodiscard]] static std::unique_ptr<SystemdStore> Open(bool probe);

  void ReleaseUnclaimed() override;
  [[nodiscard]] Holder holder() const override;
  // Names that were passed and neither taken, kept nor released.
  [[nodiscard]] size_t passed() const { return passed_.size(); }

 protected:
  std::optional<UniqueFd> DoTake(std::string_view name) override;
  Status DoKeep(const std::string& name, const Descriptor& descriptor) override;
  void DoRelease(std::string_view name) override;
  void DoReleaseAll() override;

 private:
  using Passed = std::map<std::string, UniqueFd, std::less<>>;
  explicit SystemdStore(Passed passed);

  Passed passed_;
  // All names that systemd may have something under; of those that were taken or kept, that.
  std::map<std::string, Descriptor, std::less<>> held_;
};

}  // namespace kvtier
