// SPDX-License-Identifier: Apache-2.0
// Batches for builds with CUDA 12: by the driver where it has them (12.8 and later), else one by
// one.
#include <cuda.h>

#include "gpu/cuda_copy_batch.h"
#include "gpu/cuda_driver.h"

namespace kvtier {
namespace {

// In which both functions appeared. Their parameters are declared here as that version has them:
// headers of earlier versions lack them, and later ones have others.
constexpr unsigned int kVersion = 12080;

// In cuda.h: CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE and
// CU_MEMCPY_OPERAND_TYPE_POINTER. Copies read all data written before them in stream order; they
// should leave the SMs alone.
constexpr int kAccessOrder = 1;
constexpr unsigned kCopyFlags = 1;
constexpr int kPointer = 1;

// CUmemcpyAttributes
struct Attributes {
  int access_order = kAccessOrder;
  CUmemLocation source_hint{};
  CUmemLocation target_hint{};
  unsigned flags = kCopyFlags;
};

// CUmemcpy3DOperand, as a pointer
struct Operand {
  int type = kPointer;
  CUdeviceptr first = 0;
  size_t row_length = 0;  // the stride, in elements of one byte
  size_t layer_height = 0;
  CUmemLocation hint{};
};

// CUDA_MEMCPY3D_BATCH_OP
struct Operation {
  Operand source;
  Operand target;
  size_t width = 0;
  size_t height = 0;
  size_t depth = 1;
  int access_order = kAccessOrder;
  unsigned flags = kCopyFlags;
};

#if CUDA_VERSION >= 12080
static_assert(sizeof(Attributes) == sizeof(CUmemcpyAttributes));
static_assert(sizeof(Operand) == sizeof(CUmemcpy3DOperand));
static_assert(sizeof(Operation) == sizeof(CUDA_MEMCPY3D_BATCH_OP));
static_assert(offsetof(Operand, first) == offsetof(CUmemcpy3DOperand, op));
static_assert(offsetof(Operation, width) == offsetof(CUDA_MEMCPY3D_BATCH_OP, extent));
static_assert(offsetof(Operation, flags) == offsetof(CUDA_MEMCPY3D_BATCH_OP, flags));
#endif

using CopyBatch = CUresult (*)(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes,
                               size_t count, Attributes* attributes, size_t* first_of_attributes,
                               size_t attributes_count, size_t* failed, CUstream stream);
using CopyStridedBatch = CUresult (*)(size_t count, Operation* operations, size_t* failed,
                                      unsigned long long flags, CUstream stream);

CopyBatch FindCopyBatch() {
  return reinterpret_cast<CopyBatch>(FindInDriver("cuMemcpyBatchAsync", kVersion));
}

CopyStridedBatch FindCopyStridedBatch() {
  return reinterpret_cast<CopyStridedBatch>(FindInDriver("cuMemcpy3DBatchAsync", kVersion));
}

CUdeviceptr AddressOf(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

}  // namespace

cudaError_t CudaCopyBatch::LaunchStrided(cudaStream_t stream) const {
  static const CopyStridedBatch copy_batch = FindCopyStridedBatch();
  if (copy_batch == nullptr) {
    for (const StridedCopy& copy : strided_) {
      const cudaError_t code =
          cudaMemcpy2DAsync(copy.target, copy.target_stride, copy.source, copy.source_stride,
                            copy.row_bytes, copy.rows, cudaMemcpyDefault, stream);
      if (code != cudaSuccess) return code;
    }
    return cudaSuccess;
  }
  std::vector<Operation> operations;
  operations.reserve(strided_.size());
  for (const StridedCopy& copy : strided_) {
    operations.push_back(
        {.source = {.first = AddressOf(copy.source), .row_length = copy.source_stride},
         .target = {.first = AddressOf(copy.target), .row_length = copy.target_stride},
         .width = copy.row_bytes,
         .height = copy.rows});
  }
  size_t failed = 0;
  return static_cast<cudaError_t>(
      copy_batch(operations.size(), operations.data(), &failed, 0, stream));
}

cudaError_t CudaCopyBatch::LaunchContiguous(cudaStream_t stream) {
  static const CopyBatch copy_batch = FindCopyBatch();
  if (copy_batch == nullptr) {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const cudaError_t code =
          cudaMemcpyAsync(targets_[i], sources_[i], sizes_[i], cudaMemcpyDefault, stream);
      if (code != cudaSuccess) return code;
    }
    return cudaSuccess;
  }
  // The driver's addresses are numbers.
  std::vector<CUdeviceptr> targets;
  std::vector<CUdeviceptr> sources;
  targets.reserve(sizes_.size());
  sources.reserve(sizes_.size());
  for (size_t i = 0; i < sizes_.size(); ++i) {
    targets.push_back(AddressOf(targets_[i]));
    sources.push_back(AddressOf(sources_[i]));
  }
  Attributes attributes;
  size_t first = 0;
  size_t failed = 0;
  return static_cast<cudaError_t>(copy_batch(targets.data(), sources.data(), sizes_.data(),
                                             sizes_.size(), &attributes, &first, 1, &failed,
                                             stream));
}

}  // namespace kvtier
