// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that copies of other GPUs can read. Internal to gpu/.
#pragma once

#include "base/result.h"
#include "gpu/device.h"

namespace kvtier {

// All memory that a CudaDevice makes or borrows. Event loop only.
class CudaMemory : public DevicePool {
 public:
  // From now on copies of that GPU may read the memory, which this maps for it when it is first
  // asked. REQUIRES: ordinal < kMostNeighbours. Errors: kIoError; kUnsupported "cuda_ipc".
  [[nodiscard]] virtual Status LetRead(int ordinal) = 0;
};

}  // namespace kvtier
