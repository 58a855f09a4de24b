// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/bench_harness.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/bench/bench_kernels.h"

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

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// A graph of `launches` launches that cycle through the buffer sets.
class LaunchGraph {
 public:
  LaunchGraph(int launches, int rotations, const Launch& launch, cudaStream_t stream)
      : launches_(launches), stream_(stream) {
    cudaGraph_t graph = nullptr;
    CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < launches; ++i) launch(i % rotations, stream);
    CheckCuda(cudaStreamEndCapture(stream, &graph), "end of capture");
    CheckCuda(cudaGraphInstantiate(&executable_, graph, 0), "graph");
    CheckCuda(cudaGraphDestroy(graph), "graph");
    CheckCuda(cudaEventCreate(&begin_), "event");
    CheckCuda(cudaEventCreate(&end_), "event");
  }
  ~LaunchGraph() {
    cudaGraphExecDestroy(executable_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  // Microseconds of one launch, from one replay.
  double Replay() {
    CheckCuda(cudaEventRecord(begin_, stream_), "event");
    CheckCuda(cudaGraphLaunch(executable_, stream_), "graph launch");
    CheckCuda(cudaEventRecord(end_, stream_), "event");
    CheckCuda(cudaEventSynchronize(end_), "a launch in the graph");
    float ms = 0;
    CheckCuda(cudaEventElapsedTime(&ms, begin_, end_), "event");
    return ms * 1000.0 / launches_;
  }

 private:
  int launches_;
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Whole turns through the buffer sets, until the graph is long enough to be timed.
int LaunchesFor(int rotations, double us) {
  int launches = rotations;
  while (launches < kMinGraphLaunches && launches * us < kGraphMicroseconds) launches += rotations;
  return launches;
}

}  // namespace

void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "kvtier-kernel-bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void CheckStatus(kvt_kernel_status status, const char* what) {
  if (status == KVT_KERNEL_OK) return;
  std::fprintf(stderr, "kvtier-kernel-bench: %s: %s (%s)\n", what, kvt_kernel_status_text(status),
               cudaGetErrorString(cudaPeekAtLastError()));
  std::exit(1);
}

DeviceMemory::DeviceMemory(size_t bytes) : bytes_(bytes) {
  CheckCuda(cudaMalloc(&data_, bytes), "device memory");
}

DeviceMemory::~DeviceMemory() { cudaFree(data_); }

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceMemory::Zero() { CheckCuda(cudaMemset(data_, 0, bytes_), "memset"); }

void FillRandom(void* device, kvt_dtype dtype, size_t count, uint64_t seed) {
  LaunchFillRandom(device, dtype, count, seed, nullptr);
  CheckCuda(cudaGetLastError(), "random data");
  CheckCuda(cudaDeviceSynchronize(), "random data");
}

int RotationCount(size_t bytes) {
  const size_t sets = (kColdBytes + bytes - 1) / std::max<size_t>(bytes, 1);
  return static_cast<int>(std::clamp<size_t>(sets, 2, kMaxRotations));
}

double MedianMicroseconds(int rotations, const Launch& launch) {
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  double once = 0;
  {
    LaunchGraph warm_up(rotations, rotations, launch, stream);
    warm_up.Replay();
    once = warm_up.Replay();
  }
  const int launches = LaunchesFor(rotations, once);
  LaunchGraph graph(launches, rotations, launch, stream);
  const int replays =
      std::clamp(static_cast<int>(kCaseMicroseconds / (once * launches)), kMinReplays, kMaxReplays);
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) times.push_back(graph.Replay());
  CheckCuda(cudaStreamDestroy(stream), "stream");
  return Median(std::move(times));
}

double MedianMicrosecondsOutsideGraph(const std::function<void(cudaStream_t)>& launch) {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  CheckCuda(cudaEventCreate(&begin), "event");
  CheckCuda(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < kDirectLaunches; ++i) {
    CheckCuda(cudaEventRecord(begin, stream), "event");
    launch(stream);
    CheckCuda(cudaEventRecord(end, stream), "event");
    CheckCuda(cudaEventSynchronize(end), "a launch");
    float ms = 0;
    CheckCuda(cudaEventElapsedTime(&ms, begin, end), "event");
    times.push_back(ms * 1000.0);
  }
  CheckCuda(cudaEventDestroy(begin), "event");
  CheckCuda(cudaEventDestroy(end), "event");
  CheckCuda(cudaStreamDestroy(stream), "stream");
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
