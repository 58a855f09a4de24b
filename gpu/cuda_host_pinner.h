// SPDX-License-Identifier: Apache-2.0
// Host memory registered with CUDA.
#pragma once

#include "gpu/host_pinner.h"
#include "gpu/pin_gate.h"
#include "gpu/pinned_ranges.h"

namespace kvtier {

class CudaHostPinner final : public HostPinner {
 public:
  // The ordinal of the device whose context does the work; memory is pinned for all devices.
  explicit CudaHostPinner(int ordinal) : ordinal_(ordinal) {}

  [[nodiscard]] Status Pin(std::span<std::byte> memory) override;
  void Unpin(std::span<std::byte> memory) override;

  [[nodiscard]] const PinnedRanges& ranges() const { return ranges_; }
  // For those who must not wait while memory is pinned piece by piece.
  [[nodiscard]] PinGate& gate() { return gate_; }

 private:
  const int ordinal_;
  PinnedRanges ranges_;
  PinGate gate_;
};

}  // namespace kvtier
