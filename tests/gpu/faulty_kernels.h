// SPDX-License-Identifier: Apache-2.0
// See faulty_kernels.cc.
#pragma once

namespace kvtier {

inline constexpr float kFatalScale = 1234.5F;

}  // namespace kvtier
