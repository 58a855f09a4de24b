// SPDX-License-Identifier: Apache-2.0
// What is known of the devices that the kernels are built for.
#pragma once

namespace kvtier::kernels {

inline constexpr int kHopper = 9;                   // compute capability, major
inline constexpr int kMaxSharedBytes = 227 * 1024;  // of a block that has a multiprocessor alone

}  // namespace kvtier::kernels
