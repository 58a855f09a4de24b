// SPDX-License-Identifier: Apache-2.0
// Facts that the host's side of every kernel needs before it launches: the device, the types of the
// operands, and whether other calls would accept their parameters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvtier/kernels.h"

namespace kvtier::kernels {

// For which devices a kernel is compiled. All later multiprocessors have Ampere's instructions
// (mma.sync, ldmatrix, cp.async), so kAmpere runs everywhere; kHopper uses Hopper's own besides and
// runs there alone. Kernels of both are compiled twice from one source, with this as a parameter of
// their templates; prefill has kernels of its own for each, and MLA is Hopper's only.
enum class Family { kAmpere, kHopper };

inline constexpr int kAmpereMajor = 8;  // compute capability
inline constexpr int kHopperMajor = 9;

// The device that is current on the calling thread.
struct Device {
  int id = 0;
  int processors = 0;    // multiprocessors
  int major = 0;         // compute capability
  int shared_bytes = 0;  // shared memory of a multiprocessor
  Family family = Family::kAmpere;
};

// False: CUDA has no device, or refused to tell.
[[nodiscard]] bool QueryDevice(Device* device);

// The types for which attention kernels are compiled, one translation unit each: queries and cache
// of one 16-bit type, or an fp8 (e4m3) cache under queries of either. An fp8 cache is multiplied in
// fp16, which holds all values of e4m3.
enum class Operands { kBf16, kFp16, kFp8 };

[[nodiscard]] inline Operands OperandsOf(kvt_dtype cache) {
  return cache == KVT_BF16 ? Operands::kBf16 : cache == KVT_FP16 ? Operands::kFp16 : Operands::kFp8;
}

// Whether fp8 scales differ along tokens, so that they cannot be applied to a whole row at once.
[[nodiscard]] inline bool ScalesVaryByToken(const kvt_scales& scales) {
  return scales.values != nullptr && (scales.token_stride != 0 || scales.block_stride != 0);
}

// Refuses all parameters that kvt_decode, or kvt_prefill, refuses whatever the device and the
// workspace are; null: refused. For calls that are made of several others and must queue all of
// them or none.
[[nodiscard]] kvt_kernel_status CheckDecode(const kvt_decode_params* params);
[[nodiscard]] kvt_kernel_status CheckPrefill(const kvt_prefill_params* params);

// As kvt_decode and kvt_prefill, but rows of output leave as fp32, the type of sums: parts that are
// merged later must not be rounded twice. `params.output` points at contiguous fp32 rows [tokens,
// q_heads, head_dim], as its strides say; everything else is as for those calls.
[[nodiscard]] kvt_kernel_status DecodeToFp32(const kvt_decode_params& params, void* workspace,
                                             size_t workspace_bytes, void* stream);
[[nodiscard]] kvt_kernel_status PrefillToFp32(const kvt_prefill_params& params, void* workspace,
                                              size_t workspace_bytes, void* stream);

}  // namespace kvtier::kernels
