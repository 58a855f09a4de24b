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
  if (chosen_) {
    const auto is_chosen = [this](const wire::DevicesReply::Device& device) {
      return device.kind == chosen_->kind && device.uuid == chosen_->uuid;
    };
    // There may be several in host memory.
    if (position_ < devices.size() && is_chosen(devices[position_])) return position_;
    if (chosen_->kind == wire::DeviceKind::kCuda) return ChooseDevice(devices, chosen_->uuid, {});
    const auto found = std::ranges::find_if(devices, is_chosen);
    if (found != devices.end()) return static_cast<uint32_t>(found - devices.begin());
    return MakeError(ErrorCode::kNotFound, "device_not_served",
                     fmt::format("the pool was in host memory, and the daemon has pools on {}",
                                 NamesOf(devices)));
  }
  uint32_t device = position_;  // which the daemon refuses if it has fewer
  if (position_ == kAnyDevice) {
    const auto current = [this]() -> Result<DeviceUuid> {
      if (current_) return *current_;
      return CurrentDeviceUuid();
    };
    KVT_ASSIGN_OR_RETURN(device, ChooseDevice(devices, std::nullopt, current));
  }
  if (device >= devices.size()) return device;
  position_ = device;
  chosen_ = devices[device];
  return device;
}

}  // namespace kvtier::client
