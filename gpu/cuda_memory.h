// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that copies of other GPUs can read. Internal to gpu/.
#pragma once

#include <cuda_runtime_api.h>

#include "base/result.h"
#include "gpu/device.h"

namespace kvtier {

// All memory that a CudaDevice makes or borrows. Event loop only, but for its end.
class CudaMemory : public DevicePool {
 public:
  explicit CudaMemory(int ordinal) : ordinal_(ordinal) {}
  // From now on copies of that GPU may read the memory, which this maps for it when it is first
  // asked. REQUIRES: ordinal < kMostNeighbours. Errors: kIoError; kUnsupported "cuda_ipc".
  [[nodiscard]] virtual Status LetRead(int ordinal) = 0;

 protected:
  [[nodiscard]] int ordinal() const { return ordinal_; }
  // Makes its GPU the thread's current one, as each destructor must: CUDA ends a stream or an
  // opened handle through a context on the current GPU, and makes one there, of half a GiB, if need
  // be.
  [[nodiscard]] bool ChooseGpu() const { return cudaSetDevice(ordinal_) == cudaSuccess; }

 private:
  const int ordinal_;
};

}  // namespace kvtier
