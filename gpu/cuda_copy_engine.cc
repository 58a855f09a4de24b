// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_copy_engine.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "gpu/cuda_driver.h"

namespace kvtier {
namespace {

// The hardware is busy with one while the next waits.
constexpr size_t kBusyFlights = 2;

constexpr auto kPoll = std::chrono::microseconds(20);
// The kernel may otherwise delay a short sleep by 50 us.
constexpr unsigned long kTimerSlackNs = 1000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string_view DirectionName(CopyDirection direction) {
  if (direction == CopyDirection::kPoolToPool) return "copying from another GPU's pool";
  return direction == CopyDirection::kPoolToHost ? "copying from the pool to host memory"
                                                 : "copying from host memory to the pool";
}

StridedCopy CopyOf(const PieceRun& run, CopyDirection direction) {
  const bool up = direction != CopyDirection::kPoolToHost;
  return {.target = up ? run.pool : run.host,
          .source = up ? run.host : run.pool,
          .target_stride = up ? run.pool_stride : run.host_stride,
          .source_stride = up ? run.host_stride : run.pool_stride,
          .row_bytes = run.bytes,
          .rows = run.pieces};
}

}  // namespace

Result<std::unique_ptr<CudaCopyEngine>> CudaCopyEngine::Start(CudaCopyEngineOptions options,
                                                              const CudaDriver* driver,
                                                              const PinnedRanges* pinned,
                                                              EventQueue* loop) {
  std::unique_ptr<CudaCopyEngine> engine(
      new CudaCopyEngine(std::move(options), driver, pinned, loop));
  KVT_RETURN_IF_ERROR(engine->OpenLanes());
  engine->thread_ = std::thread([raw = engine.get()] { raw->Work(); });
  pthread_setname_np(engine->thread_.native_handle(), "cuda-copy");
  return engine;
}

CudaCopyEngine::CudaCopyEngine(CudaCopyEngineOptions options, const CudaDriver* driver,
                               const PinnedRanges* pinned, EventQueue* loop)
    : options_(std::move(options)),
      pinned_(*pinned),
      loop_(loop),
      driver_(*driver),
      queue_(options_.queue) {}

Status CudaCopyEngine::OpenLanes() {
  lanes_[0].direction = CopyDirection::kHostToPool;
  lanes_[1].direction = CopyDirection::kPoolToHost;
  lanes_[2].direction = CopyDirection::kPoolToPool;
  for (Lane& lane : lanes_) {
    KVT_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking),
                             "a stream for copies");
    for (size_t i = 0; i < options_.chunks_in_flight; ++i) {
      cudaEvent_t event = nullptr;
      KVT_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                               "an event for copies");
      lane.events.push_back(event);
    }
  }
  return {};
}

CudaCopyEngine::~CudaCopyEngine() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  // Or CUDA would make a context on the thread's current GPU to end them.
  if (cudaSetDevice(options_.ordinal) != cudaSuccess) return;
  for (const Lane& lane : lanes_) {
    for (const cudaEvent_t event : lane.events) (void)cudaEventDestroy(event);
    if (lane.stream != nullptr) (void)cudaStreamDestroy(lane.stream);
  }
}

void CudaCopyEngine::Submit(CopyRequest request, std::byte* pool) {
  if (std::ranges::all_of(request.copies, [](const BlockCopy& copy) { return copy.bytes == 0; })) {
    return loop_->Post([done = std::move(request.done)] { done({}); });
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.Add(std::move(request), pool);
  }
  wake_.notify_one();
}

void CudaCopyEngine::AwaitBackground(bool awaited) {
  {
    const std::lock_guard lock(mutex_);
    queue_.AwaitBackground(awaited);
  }
  wake_.notify_one();
}

void CudaCopyEngine::Work() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  (void)cudaSetDevice(options_.ordinal);
  counters_ = std::make_unique<CudaCounters>(driver_);
  do {
    bool progressed = true;
    while (progressed) {
      progressed = false;
      for (Lane& lane : lanes_) progressed |= Reap(lane);
      for (Lane& lane : lanes_) progressed |= Launch(lane);
    }
  } while (WaitForWork());
  CancelRest();
  counters_.reset();
}

bool CudaCopyEngine::Launch(Lane& lane) {
  if (lane.events.empty()) return false;
  std::optional<CopyChunk> chunk;
  {
    const std::lock_guard lock(mutex_);
    const auto least = lane.flights.size() < kBusyFlights ? ChunkFill::kAny : ChunkFill::kFull;
    if (!stopping_) chunk = queue_.Take(lane.direction, NowNs(), least, lane.flights.size());
  }
  if (!chunk) return false;
  cudaError_t code = broken_ ? cudaErrorUnknown : Perform(*chunk, lane);
  std::vector<CountedStep> left_to_count;
  if (code == cudaSuccess) left_to_count = Count(*chunk, lane);
  const cudaEvent_t event = lane.events.back();
  if (code == cudaSuccess) code = cudaEventRecord(event, lane.stream);
  if (code == cudaSuccess) {
    lane.events.pop_back();
    lane.flights.push_back({*std::move(chunk), event, std::move(left_to_count)});
    return true;
  }
  for (const auto& job : chunk->jobs) {
    for (const CountedStep& step : job->request.counted) step.counter->Stop();
  }
  // A part of it may be under way, and its memory must not be given back before that has ended.
  (void)cudaStreamSynchronize(lane.stream);
  std::vector<Ending> endings = Land(*chunk, Failed(code, lane));
  chunk.reset();
  PostEndings(std::move(endings));
  return true;
}

cudaError_t CudaCopyEngine::Perform(const CopyChunk& chunk, const Lane& lane) {
  batch_.Clear();
  const bool up = lane.direction != CopyDirection::kPoolToHost;
  const bool known = lane.direction == CopyDirection::kPoolToPool;
  for (std::span pieces(chunk.pieces); !pieces.empty();) {
    const PieceRun run = FirstRun(pieces);
    const std::span taken = pieces.first(run.pieces);
    pieces = pieces.subspan(run.pieces);
    if (known || pinned_.Holds(run.host, run.HostSpan())) {
      batch_.Add(CopyOf(run, lane.direction));
      continue;
    }
    // Batches do not take memory that CUDA does not know everywhere; this is slow and always works.
    for (const CopyPiece& piece : taken) {
      const cudaError_t code =
          cudaMemcpyAsync(up ? piece.pool : piece.host, up ? piece.host : piece.pool, piece.bytes,
                          cudaMemcpyDefault, lane.stream);
      if (code != cudaSuccess) return code;
    }
  }
  return batch_.Launch(lane.stream);
}

std::vector<CountedStep> CudaCopyEngine::Count(const CopyChunk& chunk, const Lane& lane) {
  std::vector<CountedStep> last;  // of each counter
  for (const auto& job : chunk.jobs) {
    if (!job->AllTaken()) continue;
    for (const CountedStep& step : job->request.counted) {
      if (!job->outcome) step.counter->Stop();
      if (!job->outcome || !step.counter->Claim(step.done)) continue;
      const auto same = std::ranges::find(last, step.counter, &CountedStep::counter);
      if (same == last.end()) {
        last.push_back(step);
      } else {
        same->done = step.done;
      }
    }
  }
  std::erase_if(last, [&](const CountedStep& step) { return counters_->Write(step, lane.stream); });
  unreachable_counter_pages_ = counters_->unreachable_pages();
  return last;
}

bool CudaCopyEngine::Reap(Lane& lane) {
  bool progressed = false;
  while (!lane.flights.empty()) {
    Flight& flight = lane.flights.front();
    const cudaError_t code = cudaEventQuery(flight.landed);
    if (code == cudaErrorNotReady) break;
    for (const CountedStep& step : flight.left_to_count) {
      if (code == cudaSuccess) step.counter->Publish(step.done);
    }
    std::vector<Ending> endings =
        Land(flight.chunk, code == cudaSuccess ? Status{} : Failed(code, lane));
    lane.events.push_back(flight.landed);
    lane.flights.pop_front();
    PostEndings(std::move(endings));
    progressed = true;
  }
  return progressed;
}

bool CudaCopyEngine::WaitForWork() {
  bool in_flight = false;
  for (const Lane& lane : lanes_) {
    for (const Flight& flight : lane.flights) {
      if (flight.chunk.priority == CopyPriority::kDemand) return true;
      in_flight = true;
    }
  }
  if (!in_flight) counters_->Collect();
  std::unique_lock lock(mutex_);
  if (in_flight) {
    wake_.wait_for(lock, kPoll);
    return true;
  }
  if (stopping_) return false;
  const int64_t next_ns = queue_.next_start_ns();
  if (next_ns == INT64_MAX) {
    wake_.wait(lock);
  } else if (const int64_t wait_ns = next_ns - NowNs(); wait_ns > 0) {
    wake_.wait_for(lock, std::chrono::nanoseconds(wait_ns));
  }
  return true;
}

void CudaCopyEngine::CancelRest() {
  std::vector<Ending> endings;
  const std::lock_guard lock(mutex_);
  for (const auto& job : queue_.Clear()) {
    endings.emplace_back(
        std::move(job->request.done),
        MakeError(ErrorCode::kCancelled, "device_closed", "the copy was not finished"));
  }
  PostEndings(std::move(endings));
}

std::vector<CudaCopyEngine::Ending> CudaCopyEngine::Land(const CopyChunk& chunk,
                                                         const Status& outcome) {
  std::vector<Ending> endings;
  for (const auto& job : chunk.jobs) {
    job->chunks_under_way -= 1;
    if (!outcome) job->outcome = outcome;
    // The rest of a request is in later chunks, or was cancelled.
    if (!job->AllTaken() || job->chunks_under_way > 0) continue;
    endings.emplace_back(std::move(job->request.done), job->outcome);
  }
  return endings;
}

void CudaCopyEngine::PostEndings(std::vector<Ending> endings) {
  if (endings.empty()) return;
  loop_->Post([endings = std::move(endings)] {
    for (const auto& [done, status] : endings) done(status);
  });
}

// An error that a harmless call still meets after it was reported is one of the whole context.
Status CudaCopyEngine::Failed(cudaError_t code, const Lane& lane) {
  (void)cudaGetLastError();
  const Status failure = CudaError(code, std::string(DirectionName(lane.direction)));
  const cudaError_t after = cudaStreamQuery(lane.stream);
  if (after == cudaSuccess || after == cudaErrorNotReady || broken_) return failure;
  broken_ = true;
  if (options_.on_fatal) {
    loop_->Post(
        [on_fatal = options_.on_fatal, text = failure.error().ToString()] { on_fatal(text); });
  }
  return failure;
}

}  // namespace kvtier
