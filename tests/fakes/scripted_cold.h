// SPDX-License-Identifier: Apache-2.0
// A library for cold stores that does nothing but remember its calls: a test ends them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/cold/cold_backend.h"

namespace kvtier {

// The test's own; the library gets its address, in decimal, as the endpoint. The loop's thread.
struct ScriptedCold {
  kvt_cold_done done = nullptr;
  void* context = nullptr;
  std::vector<uint64_t> calls;  // in their order
  size_t sends = 0;
  bool is_closed = false;

  // Ends a get of so many bytes, on any thread.
  void EndGet(uint64_t call, size_t bytes, bool more = false) const {
    done(context, call, KVT_COLD_OK, nullptr, bytes, more ? 1 : 0);
  }
};

}  // namespace kvtier
