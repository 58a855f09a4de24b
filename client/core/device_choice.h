// SPDX-License-Identifier: Apache-2.0
// Which of a daemon's devices a pool is attached on, if the application does not say.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/result.h"
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

}  // namespace kvtier::client
