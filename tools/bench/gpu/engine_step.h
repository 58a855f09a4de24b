// SPDX-License-Identifier: Apache-2.0
// The step of an inference engine, as the GPU and the engine's user see it: a small copy up, the
// model's layers, and the sampled tokens' copy down, for which the host waits.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/bench/cuda_bench.h"
#include "kvtier/kernels.h"

namespace kvtier {

struct StepTimes {
  double p50_us = 0;
  double p99_us = 0;
};

// Owns its memory, stream and graph on the current device. One thread at a time; throws a
// CudaFailure where CUDA fails or the GPU has no decode kernel.
//
// A layer is kvtier's decode attention of 8 sequences of 4,096 tokens (Llama-3.1-8B's heads, bf16)
// and one read of 32 MiB, the equivalent of the matrix products of 8 tokens: their time is the time
// of reading the weights. The whole stands for 32 layers of such a model.
class EngineStep {
 public:
  EngineStep();
  ~EngineStep();
  EngineStep(const EngineStep&) = delete;
  EngineStep& operator=(const EngineStep&) = delete;

  // Steps of one CUDA graph launch each, as engines run while decoding.
  [[nodiscard]] StepTimes RunGraph();
  // Steps whose layers are launched one by one by the host, as engines without graphs do.
  [[nodiscard]] StepTimes RunEager();

 private:
  using DeviceMemory = kernels::bench::DeviceMemory;

  [[nodiscard]] kvt_decode_params Decode() const;
  void LaunchLayers();
  // Times `launch` between the two small copies.
  template <typename Launch>
  [[nodiscard]] StepTimes Run(Launch launch);

  int multiprocessors_ = 0;
  kernels::bench::TimedStream stream_;
  cudaGraphExec_t graph_ = nullptr;
  DeviceMemory cache_, weights_, query_, output_, tables_, lengths_, workspace_, tokens_, digest_,
      host_tokens_;
};

}  // namespace kvtier
