// SPDX-License-Identifier: Apache-2.0
// Copies between a GPU's pool and host memory that are handed to CUDA together. Internal to gpu/.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvtier {

// `rows` of `row_bytes` each, as far apart as the strides say.
struct StridedCopy {
  void* target = nullptr;
  const void* source = nullptr;
  uint64_t target_stride = 0;
  uint64_t source_stride = 0;
  uint64_t row_bytes = 0;
  uint64_t rows = 0;
};

// One thread's, whose current device does the work.
class CudaCopyBatch {
 public:
  // Forgets all copies and keeps the room for them.
  void Clear();
  // REQUIRES: CUDA knows all of the memory.
  void Add(const StridedCopy& copy);
  // Queues all copies; if that fails, some of them may be queued. Their order is CUDA's. With CUDA
  // 13 and later by the runtime's batches. Builds with CUDA 12 find those of the driver at run
  // time, and make one call for each copy where it has none, as before 12.8.
  [[nodiscard]] cudaError_t Launch(cudaStream_t stream);

 private:
  [[nodiscard]] cudaError_t LaunchStrided(cudaStream_t stream) const;
  [[nodiscard]] cudaError_t LaunchContiguous(cudaStream_t stream);

  // The contiguous copies, as CUDA takes them: one array for each parameter.
  std::vector<void*> targets_;
  std::vector<const void*> sources_;
  std::vector<size_t> sizes_;
  std::vector<StridedCopy> strided_;
};

}  // namespace kvtier
