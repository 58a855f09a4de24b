// SPDX-License-Identifier: Apache-2.0
// Batches by the runtime of CUDA 13 and later.
#include "gpu/cuda_copy_batch.h"

namespace kvtier {
namespace {

// Copies read all data written before them in stream order; they should leave the SMs alone.
constexpr auto kAccessOrder = cudaMemcpySrcAccessOrderStream;
constexpr unsigned kCopyFlags = cudaMemcpyFlagPreferOverlapWithCompute;

// Rows of bytes; a row stands for what CUDA calls an element's row, its length is the stride.
cudaMemcpy3DOperand Rows(const void* first, uint64_t stride) {
  cudaMemcpy3DOperand rows{};
  rows.type = cudaMemcpyOperandTypePointer;
  rows.op.ptr.ptr = const_cast<void*>(first);
  rows.op.ptr.rowLength = stride;
  return rows;
}

}  // namespace

cudaError_t CudaCopyBatch::LaunchStrided(cudaStream_t stream) const {
  std::vector<cudaMemcpy3DBatchOp> operations;
  operations.reserve(strided_.size());
  for (const StridedCopy& copy : strided_) {
    cudaMemcpy3DBatchOp operation{};
    operation.src = Rows(copy.source, copy.source_stride);
    operation.dst = Rows(copy.target, copy.target_stride);
    operation.extent = {.width = copy.row_bytes, .height = copy.rows, .depth = 1};
    operation.srcAccessOrder = kAccessOrder;
    operation.flags = kCopyFlags;
    operations.push_back(operation);
  }
  return cudaMemcpy3DBatchAsync(operations.size(), operations.data(), 0, stream);
}

cudaError_t CudaCopyBatch::LaunchContiguous(cudaStream_t stream) {
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = kAccessOrder;
  attributes.flags = kCopyFlags;
  size_t first = 0;
  return cudaMemcpyBatchAsync(targets_.data(), sources_.data(), sizes_.data(), sizes_.size(),
                              &attributes, &first, 1, stream);
}

}  // namespace kvtier
