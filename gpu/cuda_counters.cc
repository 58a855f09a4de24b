// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_counters.h"

#include <sys/mman.h>

namespace kvtier {

CudaCounters::~CudaCounters() {
  for (const auto& [page, registered] : pages_) Unregister(registered);
}

bool CudaCounters::Write(const CountedStep& step, cudaStream_t stream) {
  const std::shared_ptr<CounterPage>& page = step.counter->page();
  auto found = pages_.find(page.get());
  if (found == pages_.end()) {
    found = pages_.emplace(page.get(), Register(page)).first;
    unreachable_pages_ += found->second.mapping == nullptr;
  }
  if (found->second.mapping == nullptr) return false;
  const CUdeviceptr address = found->second.address + step.counter->offset();
  return driver_.stream_write_value(stream, address, step.counter->ValueOf(step.done),
                                    CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
}

CudaCounters::Registered CudaCounters::Register(const std::shared_ptr<CounterPage>& page) const {
  Registered registered{.page = page};
  const size_t bytes = page->memory().size();
  void* const mapping = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd(), 0);
  if (mapping == MAP_FAILED) return registered;
  void* address = nullptr;
  if (cudaHostRegister(mapping, bytes, cudaHostRegisterMapped) != cudaSuccess) {
    (void)cudaGetLastError();  // or the next call of this thread would report it
    ::munmap(mapping, bytes);
    return registered;
  }
  registered.mapping = mapping;
  if (cudaHostGetDevicePointer(&address, mapping, 0) != cudaSuccess) {
    (void)cudaGetLastError();
    Unregister(registered);
    registered.mapping = nullptr;
  }
  registered.address = reinterpret_cast<CUdeviceptr>(address);
  return registered;
}

void CudaCounters::Unregister(const Registered& registered) {
  if (registered.mapping == nullptr) return;
  (void)cudaHostUnregister(registered.mapping);
  ::munmap(registered.mapping, registered.page->memory().size());
}

void CudaCounters::Collect() {
  std::erase_if(pages_, [](const auto& entry) {
    if (entry.second.page.use_count() > 1) return false;
    Unregister(entry.second);
    return true;
  });
}

}  // namespace kvtier
