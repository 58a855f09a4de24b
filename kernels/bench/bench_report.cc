// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

#include "kernels/bench/bench_harness.h"

namespace kvtier::kernels::bench {
namespace {

constexpr size_t kGiB = size_t{1} << 30;

double CopyGbps() {
  const DeviceMemory from(2 * kGiB);
  const DeviceMemory to(2 * kGiB);
  FillRandom(from.get(), KVT_BF16, from.bytes() / 2, 1);
  const double us = MedianMicrosecondsOutsideGraph([&](cudaStream_t stream) {
    CheckCuda(cudaMemcpyAsync(to.get(), from.get(), from.bytes(), cudaMemcpyDeviceToDevice, stream),
              "copy");
  });
  return 2.0 * static_cast<double>(from.bytes()) / us / 1e3;
}

double ReadGbps() {
  const size_t bytes = 4 * kGiB;
  return static_cast<double>(bytes) / ReadFloorMicroseconds(bytes) / 1e3;
}

// cuBLAS, found at run time: the library needs nothing of it, and the machine may have none.
class Cublas {
 public:
  Cublas() {
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
      library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library_ != nullptr) break;
    }
    auto* create = Symbol<int (*)(void**)>("cublasCreate_v2");
    if (create != nullptr && create(&handle_) != 0) handle_ = nullptr;
  }
  [[nodiscard]] bool usable() const { return handle_ != nullptr; }

  template <typename Function>
  [[nodiscard]] Function Symbol(const char* name) const {
    return library_ != nullptr ? reinterpret_cast<Function>(dlsym(library_, name)) : nullptr;
  }
  [[nodiscard]] void* handle() const { return handle_; }

 private:
  void* library_ = nullptr;
  void* handle_ = nullptr;
};

double Bf16Tflops() {
  const Cublas cublas;
  if (!cublas.usable()) return 0;
  constexpr int kSize = 8192;
  constexpr int kBf16Type = 14;     // CUDA_R_16BF
  constexpr int kCompute32F = 68;   // CUBLAS_COMPUTE_32F
  constexpr int kDefaultAlgo = -1;  // CUBLAS_GEMM_DEFAULT
  using SetStream = int (*)(void*, cudaStream_t);
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int,
                       const void*, int, int, const void*, void*, int, int, int, int);
  const auto set_stream = cublas.Symbol<SetStream>("cublasSetStream_v2");
  const auto gemm = cublas.Symbol<Gemm>("cublasGemmEx");
  if (set_stream == nullptr || gemm == nullptr) return 0;
  constexpr size_t kBytes = size_t{2} * kSize * kSize;
  const DeviceMemory a(kBytes);
  const DeviceMemory b(kBytes);
  const DeviceMemory c(kBytes);
  FillRandom(a.get(), KVT_BF16, kBytes / 2, 1);
  FillRandom(b.get(), KVT_BF16, kBytes / 2, 2);
  const float one = 1;
  const float zero = 0;
  const double us = MedianMicroseconds(1, [&](int, cudaStream_t stream) {
    set_stream(cublas.handle(), stream);
    gemm(cublas.handle(), 1, 0, kSize, kSize, kSize, &one, a.get(), kBf16Type, kSize, b.get(),
         kBf16Type, kSize, &zero, c.get(), kBf16Type, kSize, kCompute32F, kDefaultAlgo);
  });
  return 2.0 * kSize * kSize * kSize / us / 1e6;
}

std::string Field(const char* name, const std::string& text) {
  return "\"" + std::string(name) + "\":\"" + text + "\"";
}

std::string Field(const char* name, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "\"%s\":%.6g", name, value);
  return text;
}

std::string ResultJson(const BenchResult& r) {
  return "{" + Field("kernel", r.kernel) + "," + Field("variant", r.variant) + "," +
         Field("dtype", r.dtype) + "," + Field("kv_dtype", r.kv_dtype) + "," +
         Field("batch", r.batch) + "," + Field("q_len", r.q_len) + "," +
         Field("context", r.context) + "," + Field("q_heads", r.q_heads) + "," +
         Field("kv_heads", r.kv_heads) + "," + Field("head_dim", r.head_dim) + "," +
         Field("page", r.page) + "," + Field("us", r.us) + "," + Field("gbps", r.gbps) + "," +
         Field("tflops", r.tflops) + "," + Field("ceiling_ratio", r.ceiling_ratio) + "}";
}

}  // namespace

Ceilings MeasureCeilings() {
  return {.copy_gbps = CopyGbps(), .read_gbps = ReadGbps(), .bf16_tflops = Bf16Tflops()};
}

void BenchRun::Add(BenchResult result, double us, double bytes, double flops, Bound bound) {
  result.us = us;
  result.gbps = bytes / us / 1e3;
  result.tflops = flops / us / 1e6;
  const bool matrix = bound == Bound::kMatrix || bound == Bound::kReadOrMatrix;
  const double gbps = bound == Bound::kCopy ? ceilings_.copy_gbps : ceilings_.read_gbps;
  result.ceiling_ratio = result.gbps / gbps;
  if (matrix && ceilings_.bf16_tflops > 0) {
    const double ratio = result.tflops / ceilings_.bf16_tflops;
    result.ceiling_ratio = bound == Bound::kMatrix ? ratio : std::max(ratio, result.ceiling_ratio);
  }
  results_.push_back(result);
  std::printf(
      "%-14s %-16s %s/%-5s b%-3d q%-5d ctx%-7d %d/%d d%-3d page%-3d %9.2f us %7.0f GB/s "
      "%7.1f TF %5.1f%%\n",
      result.kernel.c_str(), result.variant.c_str(), result.dtype.c_str(), result.kv_dtype.c_str(),
      result.batch, result.q_len, result.context, result.q_heads, result.kv_heads, result.head_dim,
      result.page, result.us, result.gbps, result.tflops, 100 * result.ceiling_ratio);
  std::fflush(stdout);
}

std::string BenchRun::Json(const std::string& commit) const {
  cudaDeviceProp properties = {};
  CheckCuda(cudaGetDeviceProperties(&properties, 0), "device");
  std::string json = "{" + Field("schema", "kvtier.kernel-bench/1") + "," +
                     Field("commit", commit) + "," + Field("device", properties.name) +
                     ",\n\"ceilings\":{" + Field("copy_gbps", ceilings_.copy_gbps) + "," +
                     Field("read_gbps", ceilings_.read_gbps) + "," +
                     Field("bf16_tflops", ceilings_.bf16_tflops) + "},\n\"results\":[\n";
  for (size_t i = 0; i < results_.size(); ++i) {
    json += ResultJson(results_[i]) + (i + 1 < results_.size() ? ",\n" : "\n");
  }
  return json + "]}\n";
}

}  // namespace kvtier::kernels::bench
