// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/machine_check.h"

#include <string_view>
#include <utility>

#include "daemon/config/config_check.h"
#include "daemon/config/config_schema.h"
#include "daemon/resources/cold_tier.h"
#include "daemon/resources/root_key.h"

namespace kvtier {

std::vector<std::string> MissingHere(const Config& config, const Gpus& gpus) {
  std::vector<std::string> missing;
  const auto note = [&](std::string_view key, const Error& error) {
    missing.push_back(AnnotateWithKey(config, key, error).context);
  };
  for (const auto& [key, file] :
       {std::pair("disk.root_key", &config.disk.root_key),
        std::pair("disk.previous_root_key", &config.disk.previous_root_key)}) {
    if (file->empty()) continue;
    const Result<RootKey> loaded = LoadRootKey(*file);
    // The service alone is given credentials.
    if (!loaded && loaded.error().reason != "no_credentials") note(key, loaded.error());
  }
  if (const Status checked = CheckColdPasswordFile(config.cold); !checked) {
    note("cold.password_file", checked.error());
  }
  for (const DeviceChoice device : config.pool.devices) {
    if (device == DeviceChoice::kAll || device == DeviceChoice::kHost) continue;
    if (const auto found = gpus.LookAt(OrdinalOf(device)); !found) {
      note("pool.device", found.error());
    }
  }
  return missing;
}

}  // namespace kvtier
