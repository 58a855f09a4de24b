// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/engine_step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "base/units.h"
#include "tools/bench/gpu/kernel/read_memory.h"
#include "tools/replay/report.h"

namespace kvtier {
namespace {

using kernels::bench::CheckCuda;
using kernels::bench::DeviceMemory;
using kernels::bench::ToDevice;

constexpr int kLayers = 32;
constexpr int kSequences = 8;
constexpr int kContextTokens = 4096;
constexpr int kPageTokens = 16;
constexpr int kQueryHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kPages = kSequences * kContextTokens / kPageTokens;
constexpr int64_t kPageElements = int64_t{kPageTokens} * kKvHeads * kHeadDim;
constexpr uint64_t kCacheBytes = 2 * kPages * kPageElements * sizeof(uint16_t);
constexpr uint64_t kQueryBytes = uint64_t{kSequences} * kQueryHeads * kHeadDim * sizeof(uint16_t);
// Two layers' weights, so that no read finds its bytes in the GPU's cache.
constexpr uint64_t kLayerWeightBytes = 32 * kMiB;
constexpr uint64_t kWeightBytes = 8 * kLayerWeightBytes;
constexpr uint64_t kTokenBytes = 4 * kKiB;

constexpr int kWarmSteps = 100;
constexpr int kSteps = 2000;

// bf16 numbers of both signs around 1; all-equal bytes would be read faster than real ones.
std::vector<uint16_t> Noise(size_t count) {
  std::vector<uint16_t> noise(count);
  std::mt19937 random(1);
  for (uint16_t& number : noise) number = static_cast<uint16_t>((random() & 0x807f) | 0x3f00);
  return noise;
}

DeviceMemory NoiseOnDevice(uint64_t bytes) { return ToDevice(Noise(bytes / sizeof(uint16_t))); }

}  // namespace

EngineStep::EngineStep()
    : cache_(NoiseOnDevice(kCacheBytes)),
      weights_(NoiseOnDevice(kWeightBytes)),
      query_(NoiseOnDevice(kQueryBytes)),
      output_(kQueryBytes),
      lengths_(ToDevice(std::vector<int32_t>(kSequences, kContextTokens))),
      tokens_(kTokenBytes),
      digest_(sizeof(uint32_t)),
      host_tokens_(2 * kTokenBytes, DeviceMemory::Where::kPinnedHost) {
  CheckCuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, 0),
            "the device");
  std::vector<int32_t> table(kPages);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(2));
  tables_ = ToDevice(table);
  const kvt_decode_params params = Decode();
  workspace_ = DeviceMemory(std::max<size_t>(kvt_decode_workspace_bytes(&params), 1));
  workspace_.Zero();
  cudaGraph_t graph = nullptr;
  CheckCuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "capture");
  LaunchLayers();
  CheckCuda(cudaStreamEndCapture(stream_.get(), &graph), "capture");
  CheckCuda(cudaGraphInstantiate(&graph_, graph, 0), "graph");
  CheckCuda(cudaGraphDestroy(graph), "graph");
}

EngineStep::~EngineStep() { (void)cudaGraphExecDestroy(graph_); }

kvt_decode_params EngineStep::Decode() const {
  kvt_decode_params params{};
  params.query = query_.get();
  params.output = output_.get();
  params.query_dtype = KVT_BF16;
  params.q_heads = kQueryHeads;
  params.query_head_stride = params.output_head_stride = kHeadDim;
  params.query_sequence_stride = params.output_sequence_stride = kQueryHeads * kHeadDim;
  params.kv = {.key = cache_.get(),
               .value = cache_.get<uint16_t>() + kPageElements,
               .dtype = KVT_BF16,
               .kv_heads = kKvHeads,
               .head_dim = kHeadDim,
               .page_tokens = kPageTokens,
               .block_stride = 2 * kPageElements,
               .token_stride = kKvHeads * kHeadDim,
               .head_stride = kHeadDim};
  params.sequences = {tables_.get<int32_t>(), lengths_.get<int32_t>(), kPages / kSequences,
                      kSequences, kContextTokens};
  params.softmax_scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim));
  return params;
}

void EngineStep::LaunchLayers() {
  const kvt_decode_params params = Decode();
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    const kvt_kernel_status status =
        kvt_decode(&params, workspace_.get(), workspace_.bytes(), stream_.get());
    if (status != KVT_KERNEL_OK) throw kernels::bench::CudaFailure(kvt_kernel_status_text(status));
    const uint64_t at = layer * kLayerWeightBytes % kWeightBytes;
    CheckCuda(ReadMemory(weights_.get<std::byte>() + at, kLayerWeightBytes, digest_.get<uint32_t>(),
                         multiprocessors_, stream_.get()),
              "reading kernel");
  }
}

template <typename Launch>
StepTimes EngineStep::Run(Launch launch) {
  std::vector<double> steps_us;
  auto* const host = host_tokens_.get<std::byte>();
  for (int i = 0; i < kWarmSteps + kSteps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    CheckCuda(
        cudaMemcpyAsync(tokens_.get(), host, kTokenBytes, cudaMemcpyHostToDevice, stream_.get()),
        "copy up");
    launch();
    CheckCuda(cudaMemcpyAsync(host + kTokenBytes, tokens_.get(), kTokenBytes,
                              cudaMemcpyDeviceToHost, stream_.get()),
              "copy down");
    CheckCuda(cudaStreamSynchronize(stream_.get()), "step");
    const std::chrono::duration<double, std::micro> step = std::chrono::steady_clock::now() - start;
    if (i >= kWarmSteps) steps_us.push_back(step.count());
  }
  return {Percentile(steps_us, 0.50), Percentile(steps_us, 0.99)};
}

StepTimes EngineStep::RunGraph() {
  return Run([this] { CheckCuda(cudaGraphLaunch(graph_, stream_.get()), "graph"); });
}

StepTimes EngineStep::RunEager() {
  return Run([this] { LaunchLayers(); });
}

}  // namespace kvtier
