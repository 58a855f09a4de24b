// SPDX-License-Identifier: Apache-2.0
#include "kernels/write/kv_write_launch.cuh"

namespace kvtier::kernels {

cudaError_t LaunchKvWriteFp16(const kvt_kv_write_params& params, int processors,
                              cudaStream_t stream) {
  return LaunchType<__half>(params, processors, stream);
}

}  // namespace kvtier::kernels
