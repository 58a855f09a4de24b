// SPDX-License-Identifier: Apache-2.0
// Counter pages as a GPU's streams write to them. Internal to gpu/.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <unordered_map>

#include "gpu/counter_page.h"
#include "gpu/cuda_driver.h"

namespace kvtier {

// For one thread, whose current device does the work. Each page is mapped and registered here when
// it is first used, so that no other device's or process's use of it matters, and given up some
// time after its owner has let go of it.
class CudaCounters {
 public:
  explicit CudaCounters(const CudaDriver& driver) : driver_(driver) {}
  ~CudaCounters();
  CudaCounters(const CudaCounters&) = delete;
  CudaCounters& operator=(const CudaCounters&) = delete;

  // Has `stream` write the value behind its queued work; false if the stream cannot reach the page,
  // and the host has to write.
  [[nodiscard]] bool Write(const CountedStep& step, cudaStream_t stream);
  // Pages that could not be reached, ever.
  [[nodiscard]] uint64_t unreachable_pages() const { return unreachable_pages_; }
  // Lets go of pages that no load uses any more. REQUIRES: no write is in flight.
  void Collect();

 private:
  struct Registered {
    std::shared_ptr<CounterPage> page;
    void* mapping = nullptr;  // null: could not be registered
    CUdeviceptr address = 0;
  };

  [[nodiscard]] Registered Register(const std::shared_ptr<CounterPage>& page) const;
  static void Unregister(const Registered& registered);

  const CudaDriver& driver_;
  std::unordered_map<const CounterPage*, Registered> pages_;
  uint64_t unreachable_pages_ = 0;
};

}  // namespace kvtier
