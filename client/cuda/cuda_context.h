// SPDX-License-Identifier: Apache-2.0
// Makes a context the calling thread's for a while. Only for .cc files that use CUDA.
#pragma once

#include "client/cuda/cuda_driver.h"

namespace kvtier::client {

// The caller's context comes back when this goes. A null context changes nothing.
class CurrentContext {
 public:
  CurrentContext(const CudaDriver& driver, CUcontext context) : driver_(driver) {
    pushed_ = context != nullptr && driver_.ctx_push(context) == CUDA_SUCCESS;
  }
  ~CurrentContext() {
    CUcontext popped = nullptr;
    if (pushed_) (void)driver_.ctx_pop(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const CudaDriver& driver_;
  bool pushed_ = false;
};

}  // namespace kvtier::client
