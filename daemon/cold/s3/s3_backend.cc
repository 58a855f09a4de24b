// SPDX-License-Identifier: Apache-2.0
// The library for servers that speak S3.
#include <curl/curl.h>

#include <memory>
#include <optional>
#include <utility>

#include "daemon/cold/backend_table.h"
#include "daemon/cold/cold_backend.h"
#include "daemon/cold/s3/s3_store.h"
#include "daemon/config/s3_endpoint.h"

namespace kvtier {
namespace {

void* Open(const kvt_cold_config* config, kvt_cold_done done, void* context) {
  // Once for the process; libcurl counts.
  if (::curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return nullptr;
  std::optional<S3Endpoint> endpoint = S3Endpoint::Parse(config->endpoint);
  if (!endpoint) return nullptr;
  return std::make_unique<S3Store>(*std::move(endpoint), config->password_file, done, context)
      .release();
}

constexpr kvt_cold_backend kBackend = BackendTable<S3Store>::With(Open);

}  // namespace
}  // namespace kvtier

// The one symbol that can be seen from outside.
__attribute__((visibility("default"))) const kvt_cold_backend* kvt_cold_backend_table(
    uint32_t abi) {
  return abi == KVT_COLD_ABI ? &kvtier::kBackend : nullptr;
}
