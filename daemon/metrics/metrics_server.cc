// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics_server.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "base/gate.h"
#include "daemon/metrics/metrics.h"
#include "daemon/metrics/metrics_text.h"
#include "daemon/metrics/status_json.h"

namespace kvtier {
namespace {

// Longer than any healthy event, shorter than any scraper's time-out.
constexpr auto kLoopPatience = std::chrono::seconds(1);
// Snapshots take one of so many parts of the loop's time at most.
constexpr int64_t kLoopShare = 10;

// The interval that systemd has set, in seconds; 0 without a watchdog.
double WatchdogSeconds() {
  const char* const text = std::getenv("WATCHDOG_USEC");
  return text == nullptr ? 0 : std::strtod(text, nullptr) / 1e6;
}

}  // namespace

// Fetches snapshots from the event loop for another thread. The mutex guards what both touch; it is
// never held while a snapshot is taken, which is the long part.
class MetricsServer::SnapshotSource {
 public:
  SnapshotSource(EventLoop* loop, std::function<MetricsSnapshot()> snapshot)
      : loop_(loop), snapshot_(std::move(snapshot)), pass_(gate_.MakePass()) {}

  // Whether the loop runs an event within the time that is waited for it. No snapshot is taken: a
  // probe comes often. Any thread but the loop's.
  bool LoopAnswers() {
    std::unique_lock lock(mutex_);
    if (!std::exchange(pinged_, true)) {
      loop_->Post([this, pass = pass_] {
        if (pass.open()) Pong();
      });
    }
    const uint64_t before = pongs_;
    arrived_.wait_for(lock, kLoopPatience, [&] { return pongs_ != before || closed_; });
    return pongs_ != before;
  }

  // A new snapshot. If the loop does not answer in time, the last one there is, or null. Waits if
  // the last was taken just now, for any local user may ask without pause. Any thread but the
  // loop's.
  std::shared_ptr<const MetricsSnapshot> Fetch() {
    std::unique_lock lock(mutex_);
    const auto next = next_;
    arrived_.wait_until(lock, next, [&] { return closed_; });
    // One event is enough, however many threads wait for the snapshot.
    if (!std::exchange(asked_, true)) {
      loop_->Post([this, pass = pass_] {
        if (pass.open()) Take();
      });
    }
    const uint64_t before = taken_;
    arrived_.wait_for(lock, kLoopPatience, [&] { return taken_ != before || closed_; });
    return latest_;
  }

  // Ends the wait of other threads; nothing is asked of the daemon any more. Event loop's thread.
  void Close() {
    gate_.Close();
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    arrived_.notify_all();
  }

 private:
  void Take() {
    auto snapshot = std::make_shared<const MetricsSnapshot>(snapshot_());
    const std::scoped_lock lock(mutex_);
    latest_ = std::move(snapshot);
    next_ = std::chrono::steady_clock::now() +
            std::min<std::chrono::microseconds>(
                kLoopShare * std::chrono::microseconds(latest_->taken_in_us), kLoopPatience);
    asked_ = false;
    ++taken_;
    arrived_.notify_all();
  }

  void Pong() {
    const std::scoped_lock lock(mutex_);
    pinged_ = false;
    ++pongs_;
    arrived_.notify_all();
  }

  EventLoop* const loop_;
  const std::function<MetricsSnapshot()> snapshot_;
  Gate gate_;
  const Gate::Pass pass_;  // copied by other threads, asked on the loop only
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool asked_ = false;   // a snapshot is on its way
  bool pinged_ = false;  // a sign of life is
  bool closed_ = false;
  uint64_t taken_ = 0;
  uint64_t pongs_ = 0;
  std::chrono::steady_clock::time_point next_;  // when the next may be taken
  std::shared_ptr<const MetricsSnapshot> latest_;
};

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const MetricsConfig& config, EventLoop* loop, const LoopLag* lag,
    std::function<MetricsSnapshot()> snapshot) {
  // CheckConfig has seen whether other machines may ask.
  KVT_ASSIGN_OR_RETURN(const ListenAddress address,
                       ParseListenAddress(config.listen, /*beyond_loopback=*/true));
  std::unique_ptr<MetricsServer> server(new MetricsServer(loop, lag, std::move(snapshot)));
  KVT_ASSIGN_OR_RETURN(
      server->http_, HttpServer::Start(address, [self = server.get()](const HttpRequest& request) {
        return self->Handle(request);
      }));
  return server;
}

MetricsServer::MetricsServer(EventLoop* loop, const LoopLag* lag,
                             std::function<MetricsSnapshot()> snapshot)
    : lag_(lag),
      watchdog_seconds_(WatchdogSeconds()),
      source_(std::make_unique<SnapshotSource>(loop, std::move(snapshot))) {}

// Close ends the waits first: the HTTP server's destructor joins its thread, which may be waiting
// for this very loop.
MetricsServer::~MetricsServer() { source_->Close(); }

HttpResponse MetricsServer::Handle(const HttpRequest& request) {
  if (request.path == "/metrics") return MetricsPage(request);
  if (request.path == "/healthz") return Health();
  if (!request.from_this_machine) {
    return {.status = 403, .body = "Other machines get /metrics and /healthz.\n"};
  }
  if (request.path == "/status.json") return LiveDocument();
  if (request.path == "/") {
    return {.content_type = "text/html; charset=utf-8", .body = std::string(LivePageHtml())};
  }
  return {.status = 404, .body = "Here are /, /status.json, /metrics and /healthz.\n"};
}

// For probes, which look at the status alone: the daemon serves exactly when its loop answers.
HttpResponse MetricsServer::Health() {
  if (!source_->LoopAnswers()) return {.status = 503, .body = "The event loop does not answer.\n"};
  return {.body = "ok\n"};
}

HttpResponse MetricsServer::MetricsPage(const HttpRequest& request) {
  const std::shared_ptr<const MetricsSnapshot> snapshot = source_->Fetch();
  if (!snapshot) return {.status = 503, .body = "The event loop does not answer.\n"};
  const MetricsFormat format = FormatFor(request.accept);
  // Read after the wait for the loop, so that the page shows a loop that hangs.
  const LoopFacts loop{.silent_seconds = lag_->SilentSeconds(),
                       .watchdog_seconds = watchdog_seconds_};
  return {.content_type = ContentTypeOf(format),
          .body = MetricsText(MetricsOf(*snapshot, loop, ReadProcessFacts()), format)};
}

HttpResponse MetricsServer::LiveDocument() {
  const std::shared_ptr<const MetricsSnapshot> snapshot = source_->Fetch();
  if (!snapshot) return {.status = 503, .body = "The event loop does not answer.\n"};
  return {.content_type = "application/json",
          .body = LiveStatusJson(*snapshot, lag_->SilentSeconds())};
}

}  // namespace kvtier
