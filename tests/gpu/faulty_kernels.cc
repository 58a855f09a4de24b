// SPDX-License-Identifier: Apache-2.0
// libkvtier_kernels with a fault, for tests: a decode with kFatalScale reads where nothing is,
// which breaks the process's CUDA context. All else is the real library's, which lies beside this
// one.
#include "tests/gpu/faulty_kernels.h"

#include <dlfcn.h>

#include <cstdint>
#include <filesystem>

#include "kvtier/kernel_table.h"

namespace {

const kvt_kernel_table* RealTable(uint32_t abi) {
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&RealTable), &self) == 0) return nullptr;
  const std::filesystem::path real =
      std::filesystem::canonical(self.dli_fname).parent_path() / "libkvtier_kernels.so";
  void* const library = ::dlopen(real.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto find =
      reinterpret_cast<decltype(&kvt_kernels_table)>(::dlsym(library, KVT_KERNEL_TABLE_SYMBOL));
  return find == nullptr ? nullptr : find(abi);
}

kvt_kernel_status DecodeOrBreak(const kvt_decode_params* params, void* workspace,
                                size_t workspace_bytes, void* stream) {
  static const kvt_kernel_table* const real = RealTable(KVT_KERNELS_ABI);
  kvt_decode_params changed = *params;
  if (params->softmax_scale == kvtier::kFatalScale) {
    changed.query = reinterpret_cast<const void*>(uintptr_t{256});
  }
  return real->decode(&changed, workspace, workspace_bytes, stream);
}

}  // namespace

const kvt_kernel_table* kvt_kernels_table(uint32_t abi) {
  static kvt_kernel_table table;
  const kvt_kernel_table* const real = RealTable(abi);
  if (real == nullptr) return nullptr;
  table = *real;
  table.decode = DecodeOrBreak;
  return &table;
}
