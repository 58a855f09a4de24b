// SPDX-License-Identifier: Apache-2.0
#include "kernels/write/kv_write_launch.cuh"

namespace kvtier::kernels {

cudaError_t LaunchKvWriteBf16(const kvt_kv_write_params& params, int processors,
                              cudaStream_t stream) {
  return LaunchType<__nv_bfloat16>(params, processors, stream);
}

}  // namespace kvtier::kernels
