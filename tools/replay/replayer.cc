// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/replayer.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/result.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

void WaitForArrival(const TraceRequest& request, SteadyClock::time_point start, double speed) {
  if (speed <= 0) return;
  const std::chrono::duration<double, std::milli> since_start(
      static_cast<double>(request.arrival_ms) / speed);
  std::this_thread::sleep_until(start +
                                std::chrono::duration_cast<SteadyClock::duration>(since_start));
}

// The clients' progress together. Any thread.
class Progress {
 public:
  explicit Progress(uint64_t requests) : requests_(requests) {}

  // One request more.
  void Played(const ReplayOptions& options) {
    const uint64_t played = ++played_;
    if (!options.on_progress) return;
    const int64_t now = SteadyClock::now().time_since_epoch() / std::chrono::milliseconds(1);
    int64_t next = next_ms_;
    // Several clients may find progress due; one of them shows it.
    const bool due = now >= next && next_ms_.compare_exchange_strong(next, now + kShownEveryMs);
    if (due || played == requests_) options.on_progress(played, requests_);
  }

 private:
  static constexpr int64_t kShownEveryMs = 100;

  const uint64_t requests_;
  std::atomic<uint64_t> played_ = 0;
  std::atomic<int64_t> next_ms_ = 0;
};

// Plays the streams of one client from beginning to end.
Result<ReplayReport> PlayAs(uint32_t client_index, const Trace& trace, const ReplayOptions& options,
                            Progress* progress) {
  KVT_ASSIGN_OR_RETURN(ReplayClient client,
                       ReplayClient::Connect(options.target, trace.block_tokens));
  const auto start = SteadyClock::now();
  for (const TraceRequest& request : trace.requests) {
    if (request.stream % options.clients != client_index) continue;
    WaitForArrival(request, start, options.speed);
    KVT_RETURN_IF_ERROR(client.Play(request));
    progress->Played(options);
  }
  ReplayReport report = client.Finish();
  report.seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
  return report;
}

}  // namespace

Result<ReplayReport> Replay(const Trace& trace, const ReplayOptions& options) {
  KVT_CHECK(options.clients > 0);
  Progress progress(trace.requests.size());
  std::vector<Result<ReplayReport>> reports(options.clients);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < options.clients; ++i) {
    threads.emplace_back([&, i] { reports[i] = PlayAs(i, trace, options, &progress); });
  }
  for (std::thread& thread : threads) thread.join();
  ReplayReport merged;
  for (const Result<ReplayReport>& report : reports) {
    if (!report) return tl::unexpected(report.error());
    merged.Add(*report);
  }
  return merged;
}

}  // namespace kvtier
