// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/bench_harness.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/bench/bench_kernels.h"
#include "kernels/reference/number_format.h"

namespace kvtier::kernels::bench {
namespace {

constexpr size_t kColdBytes = size_t{512} << 20;  // several times the L2 of any card
constexpr int kMaxRotations = 256;
constexpr double kGraphMicroseconds = 2000;  // one graph lasts at least so long
constexpr int kMinGraphLaunches = 32;        // or has so many launches
constexpr double kCaseMicroseconds = 100'000;
constexpr int kMinReplays = 5;
constexpr int kMaxReplays = 50;
constexpr int kDirectLaunches = 20;

// A graph of `launches` launches that cycle through the buffer sets.
class LaunchGraph {
 public:
  LaunchGraph(int launches, int rotations, const Launch& launch, TimedStream* stream)
      : launches_(launches), stream_(*stream) {
    cudaGraph_t graph = nullptr;
    CheckCuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < launches; ++i) launch(i % rotations, stream_.get());
    CheckCuda(cudaStreamEndCapture(stream_.get(), &graph), "end of capture");
    CheckCuda(cudaGraphInstantiate(&executable_, graph, 0), "graph");
    CheckCuda(cudaGraphDestroy(graph), "graph");
  }
  ~LaunchGraph() { cudaGraphExecDestroy(executable_); }
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  // Microseconds of one launch, from one replay.
  double Replay() {
    return stream_.Microseconds([this] {
      CheckCuda(cudaGraphLaunch(executable_, stream_.get()), "graph launch");
    }) / launches_;
  }

 private:
  int launches_;
  TimedStream& stream_;
  cudaGraphExec_t executable_ = nullptr;
};

// Whole turns through the buffer sets, until the graph is long enough to be timed.
int LaunchesFor(int rotations, double us) {
  int launches = rotations;
  while (launches < kMinGraphLaunches && launches * us < kGraphMicroseconds) launches += rotations;
  return launches;
}

}  // namespace

void CheckStatus(kvt_kernel_status status, const char* what) {
  if (status == KVT_KERNEL_OK) return;
  throw CudaFailure(std::string(what) + ": " + kvt_kernel_status_text(status) + " (" +
                    cudaGetErrorString(cudaPeekAtLastError()) + ")");
}

void FillRandom(void* device, kvt_dtype dtype, size_t count, uint64_t seed) {
  LaunchFillRandom(device, dtype, count, seed, nullptr);
  CheckCuda(cudaGetLastError(), "random data");
  CheckCuda(cudaDeviceSynchronize(), "random data");
}

DeviceMemory RandomOnDevice(kvt_dtype dtype, size_t count, uint64_t seed) {
  DeviceMemory memory(count * ElementBytes(dtype));
  FillRandom(memory.get(), dtype, count, seed);
  return memory;
}

std::vector<int32_t> Shuffled(size_t count, uint64_t seed) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937_64(seed));
  return numbers;
}

const char* TypeName(kvt_dtype dtype) {
  return dtype == KVT_BF16 ? "bf16" : dtype == KVT_FP16 ? "fp16" : "fp8";
}

PagedCache::PagedCache(const CacheShape& shape)
    : shape_(shape),
      memory_(RandomOnDevice(shape.dtype,
                             static_cast<size_t>(2 * shape.blocks * std::max(shape.layers, 1) *
                                                 shape.page * shape.kv_heads * shape.head_dim),
                             1)) {}

kvt_paged_kv PagedCache::Layer(int layer) const {
  const int64_t token = int64_t{shape_.kv_heads} * shape_.head_dim;
  const int64_t page = shape_.page * token;
  const bool apart = shape_.layers == 0;
  const auto element = static_cast<int64_t>(ElementBytes(shape_.dtype));
  std::byte* const keys = memory_.get<std::byte>() + (apart ? 0 : 2 * layer * page * element);
  const int64_t value_offset =
      shape_.interleaved ? shape_.head_dim : (apart ? shape_.blocks * page : page);
  const int row = shape_.interleaved ? 2 : 1;  // heads' vectors from one head's key to the next
  return {.key = keys,
          .value = keys + value_offset * element,
          .dtype = shape_.dtype,
          .kv_heads = shape_.kv_heads,
          .head_dim = shape_.head_dim,
          .page_tokens = shape_.page,
          .block_stride = apart ? page : 2 * shape_.layers * page,
          .token_stride = row * token,
          .head_stride = int64_t{row} * shape_.head_dim};
}

int RotationCount(size_t bytes) {
  const size_t sets = (kColdBytes + bytes - 1) / std::max<size_t>(bytes, 1);
  return static_cast<int>(std::clamp<size_t>(sets, 2, kMaxRotations));
}

double MedianMicroseconds(int rotations, const Launch& launch) {
  TimedStream stream;
  double once = 0;
  {
    LaunchGraph warm_up(rotations, rotations, launch, &stream);
    warm_up.Replay();
    once = warm_up.Replay();
  }
  const int launches = LaunchesFor(rotations, once);
  LaunchGraph graph(launches, rotations, launch, &stream);
  const int replays =
      std::clamp(static_cast<int>(kCaseMicroseconds / (once * launches)), kMinReplays, kMaxReplays);
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) times.push_back(graph.Replay());
  return Median(std::move(times));
}

double MedianMicrosecondsOutsideGraph(const std::function<void(cudaStream_t)>& launch) {
  TimedStream stream;
  std::vector<double> times;
  for (int i = 0; i < kDirectLaunches; ++i) {
    times.push_back(stream.Microseconds([&] { launch(stream.get()); }));
  }
  return Median(std::move(times));
}

double ReadFloorMicroseconds(size_t bytes) {
  const int rotations = RotationCount(bytes);
  const DeviceMemory data(bytes * rotations);
  const DeviceMemory sink(sizeof(uint32_t));
  FillRandom(data.get(), KVT_BF16, data.bytes() / 2, 1);
  return MedianMicroseconds(rotations, [&](int rotation, cudaStream_t stream) {
    LaunchRead(data.get<std::byte>() + bytes * rotation, bytes, sink.get(), stream);
  });
}

}  // namespace kvtier::kernels::bench
