// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/scripted_cold.h"

#include <cstdlib>

namespace kvtier {
namespace {

ScriptedCold& Of(void* store) { return *static_cast<ScriptedCold*>(store); }

void* Open(const kvt_cold_config* config, kvt_cold_done done, void* context) {
  auto* const script =
      reinterpret_cast<ScriptedCold*>(std::strtoull(config->endpoint, nullptr, 10));
  script->done = done;
  script->context = context;
  return script;
}
int Close(void* store) {
  Of(store).is_closed = true;
  return 1;
}
void Exists(void* store, uint64_t call, const kvt_cold_name*, size_t, int, int64_t) {
  Of(store).calls.push_back(call);
}
void Get(void* store, uint64_t call, kvt_cold_name, void*, uint64_t, int64_t) {
  Of(store).calls.push_back(call);
}
void Put(void* store, uint64_t call, kvt_cold_name, const void*, size_t, int64_t, int64_t) {
  Of(store).calls.push_back(call);
}
void Remove(void* store, uint64_t call, const kvt_cold_name*, size_t, int64_t) {
  Of(store).calls.push_back(call);
}
void RemoveSome(void* store, uint64_t call, kvt_cold_name, uint64_t, int64_t) {
  Of(store).calls.push_back(call);
}
void Send(void* store) { ++Of(store).sends; }

constexpr kvt_cold_backend kBackend{.abi = KVT_COLD_ABI,
                                    .table_bytes = sizeof(kvt_cold_backend),
                                    .open = Open,
                                    .close = Close,
                                    .exists = Exists,
                                    .get = Get,
                                    .put = Put,
                                    .remove = Remove,
                                    .remove_some = RemoveSome,
                                    .send = Send};

}  // namespace
}  // namespace kvtier

__attribute__((visibility("default"))) const kvt_cold_backend* kvt_cold_backend_table(uint32_t) {
  return &kvtier::kBackend;
}
