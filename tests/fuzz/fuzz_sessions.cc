// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whole sessions of hostile clients; see hostile_sessions.h.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/hostile_sessions.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvtier::PlayHostileSessions({data, size});
  return 0;
}
