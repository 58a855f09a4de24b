// SPDX-License-Identifier: Apache-2.0
// Makes host memory fast to copy to and from a device: the device page-locks it and knows where it
// is.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace kvtier {

// Any thread; calls may take long (some 30 ms per GiB). Copies work without pinning, slowly.
class HostPinner {
 public:
  virtual ~HostPinner() = default;
  // `memory` is touched already and stays mapped until it is unpinned. A copy that crosses from one
  // pinned piece into another is slow. Errors: kResourceExhausted, kIoError.
  [[nodiscard]] virtual Status Pin(std::span<std::byte> memory) = 0;
  // Takes exactly what Pin took. REQUIRES: no copy to or from it is under way.
  virtual void Unpin(std::span<std::byte> memory) = 0;
};

}  // namespace kvtier
