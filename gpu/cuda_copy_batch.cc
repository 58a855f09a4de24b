// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_copy_batch.h"

namespace kvtier {

void CudaCopyBatch::Clear() {
  targets_.clear();
  sources_.clear();
  sizes_.clear();
  strided_.clear();
}

void CudaCopyBatch::Add(const StridedCopy& copy) {
  const bool contiguous =
      copy.target_stride == copy.row_bytes && copy.source_stride == copy.row_bytes;
  if (copy.rows > 1 && !contiguous) return strided_.push_back(copy);
  targets_.push_back(copy.target);
  sources_.push_back(copy.source);
  sizes_.push_back(copy.rows * copy.row_bytes);
}

cudaError_t CudaCopyBatch::Launch(cudaStream_t stream) {
  if (!strided_.empty()) {
    if (const cudaError_t code = LaunchStrided(stream); code != cudaSuccess) return code;
  }
  return sizes_.empty() ? cudaSuccess : LaunchContiguous(stream);
}

}  // namespace kvtier
