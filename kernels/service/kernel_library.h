// SPDX-License-Identifier: Apache-2.0
// libkvtier_kernels.so, opened at run time: programs that use it start without it, too.
//
// Any thread. The library is never closed: CUDA does not bear it.
#pragma once

#include <string>

#include "kvtier/kernel_table.h"

namespace kvtier::kernels {

struct KernelLibrary {
  const kvt_kernel_table* table = nullptr;  // null: see why_not
  std::string path;                         // of the file that was opened
  std::string why_not;                      // for people
};

// Opens the library at `path`; if that is empty, the one beside this program (in its directory, in
// lib/ beside that, or where it is installed), else the one that the dynamic linker finds. A
// library of another ABI is refused.
[[nodiscard]] KernelLibrary OpenKernelLibrary(const std::string& path = {});

}  // namespace kvtier::kernels
