// SPDX-License-Identifier: Apache-2.0
// Whether attention's parameters make sense, for calls that are made of several others and must
// queue all of them or none.
#pragma once

#include "kvtier/kernels.h"

namespace kvtier::kernels {

// What kvt_decode, or kvt_prefill, refuses whatever the device and the workspace; null: refused.
[[nodiscard]] kvt_kernel_status CheckDecode(const kvt_decode_params* params);
[[nodiscard]] kvt_kernel_status CheckPrefill(const kvt_prefill_params* params);

}  // namespace kvtier::kernels
