// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/refusal.h"

#include <cstdarg>
#include <cstdio>

namespace kvtier::kernels {
namespace {

// Long enough for every text of the checks; longer ones are cut.
thread_local char last_detail[256] = "";

__attribute__((format(printf, 1, 2))) void Note(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_detail, sizeof(last_detail), format, arguments);
  va_end(arguments);
}

const char* NameOf(kvt_dtype dtype) {
  switch (dtype) {
    case KVT_BF16:
      return "bf16";
    case KVT_FP16:
      return "fp16";
    case KVT_FP8_E4M3:
      return "fp8 e4m3";
    case KVT_FP32:
      return "fp32";
  }
  return "unknown";
}

}  // namespace

kvt_kernel_status CheckRules(std::initializer_list<Rule> rules) {
  for (const Rule& rule : rules) {
    if (rule.holds) continue;
    Note("%s", rule.text);
    return KVT_KERNEL_INVALID_ARGUMENT;
  }
  return KVT_KERNEL_OK;
}

kvt_kernel_status CheckBuilt(std::initializer_list<Limit> limits) {
  for (const Limit& limit : limits) {
    if (limit.built) continue;
    Note("%s is %lld; kernels are built for %s", limit.field, static_cast<long long>(limit.given),
         limit.choice);
    return KVT_KERNEL_UNSUPPORTED;
  }
  return KVT_KERNEL_OK;
}

kvt_kernel_status CheckTypes(std::initializer_list<TypeLimit> limits) {
  for (const TypeLimit& limit : limits) {
    if (limit.built) continue;
    Note("%s is %s (%d); kernels are built for %s", limit.field, NameOf(limit.given),
         static_cast<int>(limit.given), limit.choice);
    return KVT_KERNEL_UNSUPPORTED;
  }
  return KVT_KERNEL_OK;
}

kvt_kernel_status CheckDevice(Device* device) {
  if (!QueryDevice(device)) {
    Note("no CUDA device is current; kernels are built for compute capability %d.0 and later",
         kAmpereMajor);
    return KVT_KERNEL_UNSUPPORTED;
  }
  if (device->major < kAmpereMajor) {
    Note("the current device has compute capability %d.x; kernels are built for %d.0 and later",
         device->major, kAmpereMajor);
    return KVT_KERNEL_UNSUPPORTED;
  }
  return KVT_KERNEL_OK;
}

kvt_kernel_status CheckHopper(const char* kernels, Device* device) {
  if (!QueryDevice(device)) {
    Note("no CUDA device is current; %s kernels are built for compute capability %d.0", kernels,
         kHopperMajor);
    return KVT_KERNEL_UNSUPPORTED;
  }
  if (device->family != Family::kHopper) {
    Note("the current device has compute capability %d.x; %s kernels are built for %d.0",
         device->major, kernels, kHopperMajor);
    return KVT_KERNEL_UNSUPPORTED;
  }
  return KVT_KERNEL_OK;
}

kvt_kernel_status CheckWorkspace(const void* workspace, size_t given, size_t needed) {
  if (workspace != nullptr && given >= needed) return KVT_KERNEL_OK;
  Note("the workspace has %zu bytes; %zu are needed", workspace == nullptr ? size_t{0} : given,
       needed);
  return KVT_KERNEL_WORKSPACE_TOO_SMALL;
}

}  // namespace kvtier::kernels

const char* kvt_kernel_last_error_detail(void) { return kvtier::kernels::last_detail; }
