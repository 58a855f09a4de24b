// SPDX-License-Identifier: Apache-2.0
// On which of a daemon's devices a pool or region is to be.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/result.h"
#include "client/core/connection.h"
#include "client/core/daemon_session.h"
#include "protocol/messages.h"

namespace kvtier::client {

using DeviceUuid = std::array<uint8_t, 16>;

// KVT_ANY_DEVICE.
inline constexpr uint32_t kAnyDevice = UINT32_MAX;

// A position in `devices`: of `chosen` if it is given; else of the only one; else of the GPU that
// `current` names, which is asked only then. Errors: kNotFound "device_not_served" (no device has
// that UUID), "device_ambiguous" (`current` does not know).
[[nodiscard]] Result<uint32_t> ChooseDevice(std::span<const wire::DevicesReply::Device> devices,
                                            const std::optional<DeviceUuid>& chosen,
                                            const std::function<Result<DeviceUuid>()>& current);

// The device of a pool, as the application named it: the same GPU, or host memory, in each daemon's
// list, wherever it stands there. A position means the device that the first daemon of which the
// choice was kept has there. Not thread-safe.
class DeviceChoice {
 public:
  // A position, or kAnyDevice.
  explicit DeviceChoice(uint32_t position) : position_(position) {}

  // The GPU that is current on this thread is meant, should one have to be current: the thread that
  // finds a daemon later may have none.
  void RememberCurrent();
  // The device's position in the session's daemon. This object is to be kept only if the pool was
  // attached there: from then on it means that device. Errors: those of Connection::DevicesOf and
  // of ChooseDevice.
  [[nodiscard]] Result<uint32_t> In(const Connection& connection, DaemonSession& session);

 private:
  uint32_t position_;
  std::optional<wire::DevicesReply::Device> chosen_;  // by the first call
  std::optional<DeviceUuid> current_;
};

}  // namespace kvtier::client
