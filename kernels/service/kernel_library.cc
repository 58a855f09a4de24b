// SPDX-License-Identifier: Apache-2.0
#include "kernels/service/kernel_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <vector>

namespace kvtier::kernels {
namespace {

constexpr const char* kName = "libkvtier_kernels.so";

// Where to look, in this order; the last is for the dynamic linker.
std::vector<std::string> Candidates(const std::string& path) {
  if (!path.empty()) return {path};
  std::vector<std::string> candidates;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path directory = program.parent_path();
    const std::filesystem::path prefix = directory.parent_path();
    // In a Python package, programs are in bin/ and libraries beside it.
    for (const auto& beside : {directory / kName, prefix / kName, prefix / "lib" / kName,
                               prefix / KVTIER_KERNELS_DIRECTORY / kName}) {
      if (std::filesystem::exists(beside, error)) candidates.push_back(beside);
    }
  }
  candidates.emplace_back(kName);
  return candidates;
}

bool SizesAgree(const kvt_kernel_table& table) {
  return table.abi == KVT_KERNELS_ABI && table.table_bytes == sizeof(kvt_kernel_table) &&
         table.decode_params_bytes == sizeof(kvt_decode_params) &&
         table.prefill_params_bytes == sizeof(kvt_prefill_params) &&
         table.kv_write_params_bytes == sizeof(kvt_kv_write_params);
}

KernelLibrary Refuse(std::string path, std::string why_not) {
  return {.table = nullptr, .path = std::move(path), .why_not = std::move(why_not)};
}

KernelLibrary Open(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return Refuse(path, why == nullptr ? "cannot be opened" : why);
  }
  const auto find_table =
      reinterpret_cast<decltype(&kvt_kernels_table)>(::dlsym(library, KVT_KERNEL_TABLE_SYMBOL));
  if (find_table == nullptr) return Refuse(path, path + " is no library of kernels");
  const kvt_kernel_table* const table = find_table(KVT_KERNELS_ABI);
  if (table == nullptr || !SizesAgree(*table)) {
    return Refuse(path, path + " is of another version: ABI " + std::to_string(KVT_KERNELS_ABI) +
                            " is wanted");
  }
  return {.table = table, .path = path, .why_not = {}};
}

}  // namespace

KernelLibrary OpenKernelLibrary(const std::string& path) {
  KernelLibrary library;
  for (const std::string& candidate : Candidates(path)) {
    library = Open(candidate);
    // One that is there but does not fit is not passed over in silence.
    if (library.table != nullptr || candidate != kName) return library;
  }
  return library;
}

}  // namespace kvtier::kernels
