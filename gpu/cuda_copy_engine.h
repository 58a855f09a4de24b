// SPDX-License-Identifier: Apache-2.0
// Copies between a GPU's pools and host memory by the GPU's copy engines. Internal to
// gpu/.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/executor.h"
#include "gpu/copy_queue.h"
#include "gpu/cuda_copy_batch.h"
#include "gpu/cuda_counters.h"
#include "gpu/device.h"
#include "gpu/host_pinner.h"
#include "gpu/piece_runs.h"

namespace kvtier {

struct CudaCopyEngineOptions {
  int ordinal = 0;
  CopyQueueOptions queue;
  // Chunks handed to the hardware and not done, in each direction: two keep it busy, a third covers
  // for a late thread. One that is not full is only begun if fewer than two are: what comes
  // meanwhile goes with it, and the pause after each chunk comes less often.
  size_t chunks_in_flight = 3;
  // Called once on the event loop if the device's context is broken, for which there is no cure
  // within the process.
  std::function<void(std::string)> on_fatal;
};

// One thread that feeds one stream for each direction. It polls while something is in flight:
// without pause while a client waits for a kDemand copy, every 20 us otherwise.
class CudaCopyEngine {
 public:
  // `driver`, `pinned` and `loop` outlive the engine. Errors: those of CUDA.
  [[nodiscard]] static Result<std::unique_ptr<CudaCopyEngine>> Start(CudaCopyEngineOptions options,
                                                                     const CudaDriver* driver,
                                                                     const PinnedRanges* pinned,
                                                                     EventQueue* loop);
  // Waits for the chunks in flight, fails the rest; all `done`s are posted on return.
  ~CudaCopyEngine();
  CudaCopyEngine(const CudaCopyEngine&) = delete;
  CudaCopyEngine& operator=(const CudaCopyEngine&) = delete;

  // On the event loop's thread. `pool` is the address of `request.pool`, in whose bounds all copies
  // lie. Never blocks.
  void Submit(CopyRequest request, std::byte* pool);
  // On the event loop's thread. See Device.
  void AwaitBackground(bool awaited);
  // Any thread. See Device.
  [[nodiscard]] uint64_t unreachable_counter_pages() const { return unreachable_counter_pages_; }

 private:
  struct Flight {
    CopyChunk chunk;
    cudaEvent_t landed = nullptr;
    // Steps that the stream could not count.
    std::vector<CountedStep> left_to_count;
  };
  // One direction.
  struct Lane {
    CopyDirection direction = CopyDirection::kPoolToHost;
    cudaStream_t stream = nullptr;
    std::deque<Flight> flights;  // in order
    std::vector<cudaEvent_t> events;
  };
  using Ending = std::pair<std::function<void(Status)>, Status>;

  CudaCopyEngine(CudaCopyEngineOptions options, const CudaDriver* driver,
                 const PinnedRanges* pinned, EventQueue* loop);
  [[nodiscard]] Status OpenLanes();

  // On the engine's thread.
  void Work();
  bool Launch(Lane& lane);
  [[nodiscard]] cudaError_t Perform(const CopyChunk& chunk, const Lane& lane);
  // Counts the requests of which the chunk is the last, behind it on the stream. (A second stream
  // that waits for the chunk would keep the first from pausing, some 2 us; but all work that is no
  // copy waits for the GPU's turns, which while another process computes are 2 ms apart.)
  [[nodiscard]] std::vector<CountedStep> Count(const CopyChunk& chunk, const Lane& lane);
  bool Reap(Lane& lane);
  // False when there is nothing left to do.
  bool WaitForWork();
  void CancelRest();
  // Ends the chunk's jobs; the requests that are done with it are to be told once it is gone, so
  // that nothing of them is held any more when they hear.
  [[nodiscard]] static std::vector<Ending> Land(const CopyChunk& chunk, const Status& outcome);
  void PostEndings(std::vector<Ending> endings);
  [[nodiscard]] Status Failed(cudaError_t code, const Lane& lane);

  const CudaCopyEngineOptions options_;
  const PinnedRanges& pinned_;
  EventQueue* const loop_;
  std::array<Lane, kCopyDirectionCount> lanes_;
  CudaCopyBatch batch_;
  std::unique_ptr<CudaCounters> counters_;  // the thread's
  const CudaDriver& driver_;
  bool broken_ = false;
  std::atomic<uint64_t> unreachable_counter_pages_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  CopyQueue queue_;        // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace kvtier
