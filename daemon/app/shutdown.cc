// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/shutdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tiers/types/cache_stats.h"

namespace kvtier {
namespace {

constexpr int64_t kPollMs = 2;
constexpr int64_t kReportMs = 1000;
// Time for clients to read why their sessions end. A client that does not read loses only the
// reason.
constexpr int64_t kSessionGraceMs = 500;
// For I/O that is under way when the deadline has passed: a write that is cut off is harmless, but
// a copy into memory that is being freed is not.
constexpr int64_t kIdleGraceMs = 5000;
// systemd's time-out exceeds what a step may take by this much, so that it never kills a daemon
// that still keeps to its own deadlines.
constexpr int64_t kMarginMs = 10'000;

// How many of the blocks that a drain has left may be none; "" for none of them.
std::string Unseen(const CacheGauges& gauges) {
  const uint64_t slots = gauges.drain_left - gauges.unpersisted_blocks;
  if (slots == 0) return "";
  return fmt::format(
      "; {} of the first are slots that an earlier daemon left and that were not "
      "looked at",
      slots);
}

}  // namespace

void Shutdown::Begin(std::function<void()> finished) {
  if (std::exchange(begun_, true)) return;
  finished_ = std::move(finished);
  env_.manager->Stopping("Stopping: telling clients", kSessionGraceMs + kMarginMs);
  env_.server->StopListening();
  // A client that goes on with the next daemon finds its blocks there.
  if (env_.pools_are_kept) env_.cache->KeepHoldings();
  env_.server->CloseSessions(
      {ErrorCode::kUnavailable, "shutting_down", "the daemon is being stopped"});
  BeginStep();
  WaitForSessions();
}

void Shutdown::WaitForSessions() {
  if (env_.server->session_count() > 0 && ElapsedMs() < kSessionGraceMs) {
    return timer_.Start(kPollMs, [this] { WaitForSessions(); });
  }
  BeginDrain();
}

void Shutdown::BeginDrain() {
  BeginStep();
  reported_ms_ = 0;
  if (env_.config->drain.deadline_ms == 0) {
    env_.log->Info("drain.skipped", "drain.deadline is 0");
    return WaitForIdle();
  }
  const CacheGauges gauges = env_.cache->Gauges();
  drain_total_ = gauges.drain_left;
  given_up_before_ = BlocksGivenUp(env_.cache->stats());
  env_.log->Info("drain.begun", "{} blocks are to be written to disk{}", drain_total_,
                 Unseen(gauges));
  env_.manager->Stopping(fmt::format("Draining: {} blocks to disk", drain_total_),
                         env_.config->drain.deadline_ms + kIdleGraceMs + kMarginMs);
  draining_ = true;
  env_.cache->Drain([this] { drained_ = true; });
  WaitForDrain();
}

void Shutdown::ReportDrain(uint64_t left) {
  drain_total_ = std::max(drain_total_, left);
  const std::string progress =
      fmt::format("{} of {} blocks are left, {} s until the deadline", left, drain_total_,
                  (env_.config->drain.deadline_ms - ElapsedMs()) / 1000);
  env_.log->Info("drain.progress", "{}", progress);
  env_.manager->Status("Draining: " + progress);
}

void Shutdown::WaitForDrain() {
  const int64_t elapsed_ms = ElapsedMs();
  if (!drained_ && elapsed_ms < env_.config->drain.deadline_ms) {
    if (elapsed_ms - reported_ms_ >= kReportMs) {
      reported_ms_ = elapsed_ms;
      ReportDrain(env_.cache->Gauges().drain_left);
    }
    return timer_.Start(kPollMs, [this] { WaitForDrain(); });
  }
  drained_ms_ = elapsed_ms;
  // Nothing new is begun from here on; otherwise the cache would go on writing and never be idle.
  env_.cache->StopDraining();
  BeginStep();
  WaitForIdle();
}

void Shutdown::ReportOutcome() const {
  // Read when everything has ended, so that writes that came through after the deadline count.
  const CacheGauges gauges = env_.cache->Gauges();
  const uint64_t late = gauges.drain_left;
  const uint64_t refused = BlocksGivenUp(env_.cache->stats()) - given_up_before_;
  if (late + refused == 0) {
    env_.log->Info("drain.done", "after {} ms", drained_ms_);
  } else {
    env_.log->Warning("drain.incomplete",
                      "{} blocks were not written in {} ms, {} were refused (disk full, write "
                      "budget spent, or errors of disk or index){}",
                      late, drained_ms_, refused, Unseen(gauges));
  }
}

void Shutdown::WaitForIdle() {
  if (!env_.idle() && ElapsedMs() < kIdleGraceMs) {
    return timer_.Start(kPollMs, [this] { WaitForIdle(); });
  }
  if (draining_) ReportOutcome();
  std::exchange(finished_, nullptr)();
}

}  // namespace kvtier
