// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/device_choice_name.h"

#include <fmt/format.h>

namespace kvtier {

int OrdinalOf(DeviceChoice choice) {
  return static_cast<int>(choice) - static_cast<int>(DeviceChoice::kCuda);
}

std::string DeviceChoiceName(DeviceChoice choice) {
  if (choice == DeviceChoice::kAuto) return "auto";
  if (choice == DeviceChoice::kHost) return "host";
  return fmt::format("cuda:{}", OrdinalOf(choice));
}

}  // namespace kvtier
