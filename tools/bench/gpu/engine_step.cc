// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/engine_step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/byte_size.h"
#include "kvtier/kernels.h"
#include "tools/bench/gpu/cuda_check.h"
#include "tools/bench/gpu/kernel/read_memory.h"
#include "tools/replay/report.h"

namespace kvtier {
namespace {

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

Status CheckKernel(kvt_kernel_status status) {
  if (status == KVT_KERNEL_OK) return {};
  return MakeError(ErrorCode::kUnavailable, "no_kernel", kvt_kernel_status_text(status));
}

// bf16 numbers of both signs around 1; all-equal bytes would be read faster than real ones.
std::vector<uint16_t> Noise(size_t count) {
  std::vector<uint16_t> noise(count);
  std::mt19937 random(1);
  for (uint16_t& number : noise) number = static_cast<uint16_t>((random() & 0x807f) | 0x3f00);
  return noise;
}

kvt_decode_params DecodeOf(void* cache, void* query, void* output, const void* tables,
                           const void* lengths) {
  kvt_decode_params params{};
  params.query = query;
  params.output = output;
  params.query_dtype = KVT_BF16;
  params.q_heads = kQueryHeads;
  params.query_head_stride = params.output_head_stride = kHeadDim;
  params.query_sequence_stride = params.output_sequence_stride = kQueryHeads * kHeadDim;
  params.kv.key = cache;
  params.kv.value = static_cast<uint16_t*>(cache) + kPageElements;
  params.kv.dtype = KVT_BF16;
  params.kv.kv_heads = kKvHeads;
  params.kv.head_dim = kHeadDim;
  params.kv.page_tokens = kPageTokens;
  params.kv.block_stride = 2 * kPageElements;
  params.kv.token_stride = kKvHeads * kHeadDim;
  params.kv.head_stride = kHeadDim;
  params.sequences = {static_cast<const int32_t*>(tables), static_cast<const int32_t*>(lengths),
                      kPages / kSequences, kSequences, kContextTokens};
  params.softmax_scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim));
  return params;
}

template <typename Owner>
Status AllocateVram(uint64_t bytes, Owner* owner) {
  void* memory = nullptr;
  KVT_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&memory, bytes)));
  owner->reset(memory);
  return CheckCuda(cudaMemset(memory, 0, bytes));
}

}  // namespace

Result<std::unique_ptr<EngineStep>> EngineStep::Open() {
  std::unique_ptr<EngineStep> step(new EngineStep);
  KVT_RETURN_IF_ERROR(CheckCuda(
      cudaDeviceGetAttribute(&step->multiprocessors_, cudaDevAttrMultiProcessorCount, 0)));
  KVT_RETURN_IF_ERROR(CheckCuda(cudaStreamCreateWithFlags(&step->stream_, cudaStreamNonBlocking)));
  KVT_RETURN_IF_ERROR(step->Allocate());
  KVT_RETURN_IF_ERROR(step->Capture());
  return step;
}

EngineStep::~EngineStep() {
  if (graph_ != nullptr) (void)cudaGraphExecDestroy(graph_);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

Status EngineStep::Allocate() {
  KVT_RETURN_IF_ERROR(AllocateVram(kCacheBytes, &cache_));
  KVT_RETURN_IF_ERROR(AllocateVram(kWeightBytes + sizeof(uint32_t), &weights_));
  KVT_RETURN_IF_ERROR(AllocateVram(kQueryBytes, &query_));
  KVT_RETURN_IF_ERROR(AllocateVram(kQueryBytes, &output_));
  KVT_RETURN_IF_ERROR(AllocateVram(kTokenBytes, &tokens_));
  void* pinned = nullptr;
  KVT_RETURN_IF_ERROR(CheckCuda(cudaMallocHost(&pinned, 2 * kTokenBytes)));
  host_tokens_.reset(pinned);
  const auto upload = [](const auto& values, Vram* to) -> Status {
    const uint64_t bytes = values.size() * sizeof(values[0]);
    if (*to == nullptr) KVT_RETURN_IF_ERROR(AllocateVram(bytes, to));
    return CheckCuda(cudaMemcpy(to->get(), values.data(), bytes, cudaMemcpyHostToDevice));
  };
  KVT_RETURN_IF_ERROR(upload(Noise(kCacheBytes / sizeof(uint16_t)), &cache_));
  KVT_RETURN_IF_ERROR(upload(Noise(kWeightBytes / sizeof(uint16_t)), &weights_));
  KVT_RETURN_IF_ERROR(upload(Noise(kQueryBytes / sizeof(uint16_t)), &query_));
  std::vector<int32_t> table(kPages);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(2));
  KVT_RETURN_IF_ERROR(upload(table, &tables_));
  KVT_RETURN_IF_ERROR(upload(std::vector<int32_t>(kSequences, kContextTokens), &lengths_));
  const kvt_decode_params params =
      DecodeOf(cache_.get(), query_.get(), output_.get(), tables_.get(), lengths_.get());
  workspace_bytes_ = kvt_decode_workspace_bytes(&params);
  return AllocateVram(std::max<size_t>(workspace_bytes_, 1), &workspace_);
}

Status EngineStep::LaunchLayers() {
  const kvt_decode_params params =
      DecodeOf(cache_.get(), query_.get(), output_.get(), tables_.get(), lengths_.get());
  auto* const weights = static_cast<std::byte*>(weights_.get());
  auto* const digest = reinterpret_cast<uint32_t*>(weights + kWeightBytes);
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    KVT_RETURN_IF_ERROR(
        CheckKernel(kvt_decode(&params, workspace_.get(), workspace_bytes_, stream_)));
    const uint64_t at = layer * kLayerWeightBytes % kWeightBytes;
    KVT_RETURN_IF_ERROR(
        CheckCuda(ReadMemory(weights + at, kLayerWeightBytes, digest, multiprocessors_, stream_)));
  }
  return {};
}

Status EngineStep::Capture() {
  cudaGraph_t graph = nullptr;
  KVT_RETURN_IF_ERROR(CheckCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal)));
  const Status launched = LaunchLayers();
  KVT_RETURN_IF_ERROR(CheckCuda(cudaStreamEndCapture(stream_, &graph)));
  const Status made = launched ? CheckCuda(cudaGraphInstantiate(&graph_, graph, 0)) : launched;
  (void)cudaGraphDestroy(graph);
  return made;
}

template <typename Launch>
Result<StepTimes> EngineStep::Run(Launch launch) {
  std::vector<double> steps_us;
  auto* const host = static_cast<std::byte*>(host_tokens_.get());
  for (int i = 0; i < kWarmSteps + kSteps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    KVT_RETURN_IF_ERROR(CheckCuda(
        cudaMemcpyAsync(tokens_.get(), host, kTokenBytes, cudaMemcpyHostToDevice, stream_)));
    KVT_RETURN_IF_ERROR(launch());
    KVT_RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(host + kTokenBytes, tokens_.get(), kTokenBytes,
                                                  cudaMemcpyDeviceToHost, stream_)));
    KVT_RETURN_IF_ERROR(CheckCuda(cudaStreamSynchronize(stream_)));
    const std::chrono::duration<double, std::micro> step = std::chrono::steady_clock::now() - start;
    if (i >= kWarmSteps) steps_us.push_back(step.count());
  }
  return StepTimes{Percentile(steps_us, 0.50), Percentile(steps_us, 0.99)};
}

Result<StepTimes> EngineStep::RunGraph() {
  return Run([this] { return CheckCuda(cudaGraphLaunch(graph_, stream_)); });
}

Result<StepTimes> EngineStep::RunEager() {
  return Run([this] { return LaunchLayers(); });
}

}  // namespace kvtier
