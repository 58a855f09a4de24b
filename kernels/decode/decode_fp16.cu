// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/decode_kernel.cuh"

namespace kvtier::kernels {

using Family = DecodeFamily<Fp16Math, /*kFp8Cache=*/false>;

DecodeShape DecodeShapeFp16(int head_dim) { return Family::Shape(head_dim); }

cudaError_t LaunchDecodeFp16(const DecodeArguments& arguments, int blocks, cudaStream_t stream) {
  return Family::LaunchGroup(arguments, blocks, stream);
}

}  // namespace kvtier::kernels
