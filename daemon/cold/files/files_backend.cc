// SPDX-License-Identifier: Apache-2.0
// The library for directories that hosts share.
#include <memory>

#include "daemon/cold/backend_table.h"
#include "daemon/cold/cold_backend.h"
#include "daemon/cold/files/files_store.h"

namespace kvtier {
namespace {

void* Open(const kvt_cold_config* config, kvt_cold_done done, void* context) {
  if (config->endpoint[0] != '/') return nullptr;
  return std::make_unique<FilesStore>(config->endpoint, config->max_bytes,
                                      std::make_shared<FileSystem>(), done, context)
      .release();
}

constexpr kvt_cold_backend kBackend = BackendTable<FilesStore>::With(Open);

}  // namespace
}  // namespace kvtier

// The one symbol that can be seen from outside.
__attribute__((visibility("default"))) const kvt_cold_backend* kvt_cold_backend_table(
    uint32_t abi) {
  return abi == KVT_COLD_ABI ? &kvtier::kBackend : nullptr;
}
