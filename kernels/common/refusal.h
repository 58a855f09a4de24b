// SPDX-License-Identifier: Apache-2.0
// Why a call refuses its parameters. Checks return a status and leave the reason, in words, for
// kvt_kernel_last_error_detail. Each thread has its own; none of this is on the way of a call that
// is accepted.
#pragma once

#include <driver_types.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "kernels/common/call.h"
#include "kvtier/kernels.h"

namespace kvtier::kernels {

// Something that must hold of the parameters, and the words for it: "softmax_scale must be finite".
struct Rule {
  bool holds;
  const char* text;
};

// KVT_KERNEL_INVALID_ARGUMENT for the first rule that does not hold, else KVT_KERNEL_OK.
[[nodiscard]] kvt_kernel_status CheckRules(std::initializer_list<Rule> rules);

// A field whose value is sensible, but for which no kernel may be built.
struct Limit {
  bool built;
  const char* field;
  int64_t given;
  const char* choice;  // the values that are built: "64, 128 or 256"
};

// KVT_KERNEL_UNSUPPORTED for the first field for which nothing is built, else KVT_KERNEL_OK.
[[nodiscard]] kvt_kernel_status CheckBuilt(std::initializer_list<Limit> limits);

// As above for a field of an element type, which is named: "kv.dtype is fp32; built: ...".
struct TypeLimit {
  bool built;
  const char* field;
  kvt_dtype given;
  const char* choice;
};
[[nodiscard]] kvt_kernel_status CheckTypes(std::initializer_list<TypeLimit> limits);

// KVT_KERNEL_UNSUPPORTED unless the current device runs the kernels that are built for all
// families; fills in `device`.
[[nodiscard]] kvt_kernel_status CheckDevice(Device* device);
// Likewise for kernels that are Hopper's only, which `kernels` names.
[[nodiscard]] kvt_kernel_status CheckHopper(const char* kernels, Device* device);

// KVT_KERNEL_WORKSPACE_TOO_SMALL, with both sizes.
[[nodiscard]] kvt_kernel_status CheckWorkspace(const void* workspace, size_t given, size_t needed);

// CUDA's answer to a launch, or to another call, as the caller's. A kernel that its first launch
// loads may find memory used up, which breaks nothing.
[[nodiscard]] inline kvt_kernel_status StatusOf(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return KVT_KERNEL_OK;
    case cudaErrorMemoryAllocation:
      return KVT_KERNEL_OUT_OF_MEMORY;
    case cudaErrorInvalidDevice:
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return KVT_KERNEL_UNSUPPORTED;
    default:
      return KVT_KERNEL_LAUNCH_FAILED;
  }
}

// Scales and caps that are infinite or not a number would make every output so.
[[nodiscard]] inline bool IsPositive(float value) { return std::isfinite(value) && value > 0; }
[[nodiscard]] inline bool IsZeroOrPositive(float value) {
  return std::isfinite(value) && value >= 0;
}

}  // namespace kvtier::kernels
