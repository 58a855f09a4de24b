// SPDX-License-Identifier: Apache-2.0
// Work captured once on a stream of its own and replayed at will.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace kvtier::kernels {

// Failures of CUDA are failures of the test; a replay that was not made fails each Launch.
class GraphReplay {
 public:
  // `queue(stream)` queues the work; nothing of it runs yet.
  template <typename Queue>
  explicit GraphReplay(const Queue& queue) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    queue(stream_);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable_, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  ~GraphReplay() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  GraphReplay(const GraphReplay&) = delete;
  GraphReplay& operator=(const GraphReplay&) = delete;

  // Runs the work once: after all that the device was given before, and to its end.
  void Launch() {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable_, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace kvtier::kernels
