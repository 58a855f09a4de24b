// SPDX-License-Identifier: Apache-2.0
// KVT_CHECK ends the process when a programmer's assumption does not hold. Never for input: bad
// input is an Error.
#pragma once

#include <cstdio>
#include <cstdlib>

#define KVT_CHECK(condition)                                                             \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
