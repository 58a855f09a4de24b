// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/scripted_cold.h"

#include <cstdint>
#include <cstdlib>

#include "daemon/cold/backend_table.h"

namespace kvtier {
namespace {

// The library's store, which writes down each call in the test's script.
class ScriptedStore {
 public:
  explicit ScriptedStore(ScriptedCold* script) : script_(*script) {}
  bool Stop() {
    script_.is_closed = true;
    return true;
  }
  template <typename... Arguments>
  void Exists(uint64_t call, const Arguments&...) {
    script_.calls.push_back(call);
  }
  template <typename... Arguments>
  void Get(uint64_t call, const Arguments&...) {
    script_.calls.push_back(call);
  }
  template <typename... Arguments>
  void Put(uint64_t call, const Arguments&...) {
    script_.calls.push_back(call);
  }
  template <typename... Arguments>
  void Remove(uint64_t call, const Arguments&...) {
    script_.calls.push_back(call);
  }
  template <typename... Arguments>
  void RemoveSome(uint64_t call, const Arguments&...) {
    script_.calls.push_back(call);
  }
  void Send() { ++script_.sends; }

 private:
  ScriptedCold& script_;
};

// The library is loaded into the test's own process: an address is all that a text can bring over.
void* Open(const kvt_cold_config* config, kvt_cold_done done, void* context) {
  auto* const script =
      reinterpret_cast<ScriptedCold*>(std::strtoull(config->endpoint, nullptr, 10));
  script->done = done;
  script->context = context;
  return new ScriptedStore(script);
}

constexpr kvt_cold_backend kBackend = BackendTable<ScriptedStore>::With(Open);

}  // namespace
}  // namespace kvtier

__attribute__((visibility("default"))) const kvt_cold_backend* kvt_cold_backend_table(uint32_t) {
  return &kvtier::kBackend;
}
