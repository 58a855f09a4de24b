// SPDX-License-Identifier: Apache-2.0
// KV writes on the CPU, which those of the GPU are judged by, also by a daemon that starts. All
// pointers are host pointers; layouts and meanings are those of kvtier/kv_write.h. Any thread.
#pragma once

#include "kvtier/kv_write.h"

namespace kvtier::kernels {

void KvWriteReference(const kvt_kv_write_params& params);

}  // namespace kvtier::kernels
