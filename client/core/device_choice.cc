// SPDX-License-Identifier: Apache-2.0
#include "client/core/device_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "client/cuda/cuda_mapping.h"

namespace kvtier::client {
namespace {

std::string NamesOf(std::span<const wire::DevicesReply::Device> devices) {
  std::vector<std::string> names;
  for (size_t i = 0; i < devices.size(); ++i) {
    names.push_back(fmt::format("{} ({})", i, devices[i].name));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Result<uint32_t> ChooseDevice(std::span<const wire::DevicesReply::Device> devices,
                              const std::optional<DeviceUuid>& chosen,
                              const std::function<Result<DeviceUuid>()>& current) {
  if (!chosen && devices.size() == 1) return 0;
  std::optional<DeviceUuid> wanted = chosen;
  if (!wanted) {
    const Result<DeviceUuid> uuid = current();
    if (!uuid) {
      return MakeError(ErrorCode::kNotFound, "device_ambiguous",
                       fmt::format("the daemon has pools on {}; name one, or make its CUDA context "
                                   "current ({})",
                                   NamesOf(devices), uuid.error().ToString()));
    }
    wanted = *uuid;
  }
  const auto found = std::ranges::find_if(devices, [&](const wire::DevicesReply::Device& device) {
    return device.kind == wire::DeviceKind::kCuda && device.uuid == *wanted;
  });
  if (found != devices.end()) return static_cast<uint32_t>(found - devices.begin());
  return MakeError(ErrorCode::kNotFound, "device_not_served",
                   fmt::format("the GPU {:02x} is not among the daemon's ({}): set its pool.device "
                               "to \"all\", or name that GPU there",
                               fmt::join(*wanted, ""), NamesOf(devices)));
}

void DeviceChoice::RememberCurrent() {
  if (position_ != kAnyDevice) return;
  if (const Result<DeviceUuid> current = CurrentDeviceUuid()) current_ = *current;
}

Result<uint32_t> DeviceChoice::In(const Connection& connection, DaemonSession& session) {
  KVT_ASSIGN_OR_RETURN(const auto devices, connection.DevicesOf(session));
  const auto current = [this]() -> Result<DeviceUuid> {
    if (current_) return *current_;
    return CurrentDeviceUuid();
  };
  uint32_t device = position_;  // which the daemon refuses if it has fewer
  if (chosen_ || position_ == kAnyDevice) {
    KVT_ASSIGN_OR_RETURN(device, ChooseDevice(devices, chosen_, current));
  }
  const bool is_listed = device < devices.size();
  if (is_listed && devices[device].kind == wire::DeviceKind::kCuda) chosen_ = devices[device].uuid;
  return device;
}

}  // namespace kvtier::client
