// SPDX-License-Identifier: Apache-2.0
// Waits of a GPU's streams for words of shared memory. No CUDA header is needed to use this.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"

namespace kvtier::client {

// Thread-safe. Its destructor waits until all that the device was given is done. REQUIRES, for
// that: every wait has ended or will end by itself.
class StreamWaits {
 public:
  // Maps the memory behind `fd` for itself and registers it with the device. Errors: as
  // CudaMapping::Map; kIoError from registering.
  [[nodiscard]] static Result<std::shared_ptr<StreamWaits>> Open(int fd, uint64_t bytes,
                                                                 int ordinal);
  virtual ~StreamWaits() = default;

  // Work given to `stream` (a cudaStream_t or CUstream of that device; null is the default one)
  // from now on starts when the u32 at `offset` has reached `value`, modulo 2^32. Does not wait.
  [[nodiscard]] virtual Status Wait(void* stream, uint32_t offset, uint32_t value) = 0;
};

}  // namespace kvtier::client
