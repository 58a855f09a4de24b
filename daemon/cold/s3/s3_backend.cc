// SPDX-License-Identifier: Apache-2.0
// The library for servers that speak S3.
#include <curl/curl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cold/cold_backend.h"
#include "daemon/cold/s3/s3_endpoint.h"
#include "daemon/cold/s3/s3_store.h"

namespace kvtier {
namespace {

S3Store* StoreOf(void* store) { return static_cast<S3Store*>(store); }

std::string Text(const kvt_cold_name& name) { return {name.data, name.bytes}; }

std::vector<std::string> Texts(const kvt_cold_name* names, size_t count) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < count; ++i) texts.push_back(Text(names[i]));
  return texts;
}

void* Open(const kvt_cold_config* config, kvt_cold_done done, void* context) {
  // Once for the process; libcurl counts.
  if (::curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return nullptr;
  std::optional<S3Endpoint> endpoint = S3Endpoint::Parse(config->endpoint);
  if (!endpoint) return nullptr;
  return std::make_unique<S3Store>(*std::move(endpoint), config->password_file, done, context)
      .release();
}

int Close(void* store) {
  const std::unique_ptr<S3Store> closed(StoreOf(store));
  closed->Interrupt();
  return 1;
}

constexpr kvt_cold_backend kBackend = {
    .abi = KVT_COLD_ABI,
    .table_bytes = sizeof(kvt_cold_backend),
    .open = Open,
    .close = Close,
    .exists =
        [](void* store, uint64_t call, const kvt_cold_name* names, size_t count, int each,
           int64_t timeout_ms) {
          StoreOf(store)->Exists(call, Texts(names, count), each == 1, timeout_ms);
        },
    .get =
        [](void* store, uint64_t call, kvt_cold_name name, void* into, uint64_t bytes,
           int64_t timeout_ms) { StoreOf(store)->Get(call, Text(name), into, bytes, timeout_ms); },
    .put =
        [](void* store, uint64_t call, kvt_cold_name name, const void* data, size_t bytes,
           int64_t /*ttl_s*/,
           int64_t timeout_ms) { StoreOf(store)->Put(call, Text(name), data, bytes, timeout_ms); },
    .remove =
        [](void* store, uint64_t call, const kvt_cold_name* names, size_t count,
           int64_t timeout_ms) { StoreOf(store)->Remove(call, Texts(names, count), timeout_ms); },
    .remove_some =
        [](void* store, uint64_t call, kvt_cold_name prefix, uint64_t cursor, int64_t timeout_ms) {
          StoreOf(store)->RemoveSome(call, Text(prefix), cursor, timeout_ms);
        },
};

}  // namespace
}  // namespace kvtier

// The one symbol that can be seen from outside.
__attribute__((visibility("default"))) const kvt_cold_backend* kvt_cold_backend_table(
    uint32_t abi) {
  return abi == KVT_COLD_ABI ? &kvtier::kBackend : nullptr;
}
