// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/decode_kernel.cuh"

namespace kvtier::kernels {

using Family = DecodeFamily<Fp16Math, /*kFp8Cache=*/true>;

DecodeShape DecodeShapeFp8(int head_dim) { return Family::Shape(head_dim); }

cudaError_t LaunchDecodeFp8(const DecodeArguments& arguments, int blocks, cudaStream_t stream) {
  return Family::LaunchGroup(arguments, blocks, stream);
}

}  // namespace kvtier::kernels
