// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics_server.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "daemon/metrics/live_page.h"
#include "daemon/metrics/live_status.h"
#include "daemon/metrics/metrics.h"
#include "daemon/metrics/metrics_text.h"

namespace kvtier {
namespace {

// Longer than any healthy event, shorter than any scraper's patience.
constexpr auto kLoopPatience = std::chrono::seconds(1);

// As systemd tells it; 0 without a watchdog.
double WatchdogSeconds() {
  const char* const text = std::getenv("WATCHDOG_USEC");
  return text == nullptr ? 0 : std::strtod(text, nullptr) / 1e6;
}

}  // namespace

// Fetches snapshots from the event loop for another thread. Events on the loop hold it weakly.
class MetricsServer::SnapshotSource : public std::enable_shared_from_this<SnapshotSource> {
 public:
  explicit SnapshotSource(MetricsEnvironment environment) : env_(std::move(environment)) {}

  // A snapshot taken after the call. If the loop does not answer in time, the last one there is,
  // or null. Any thread but the loop's.
  std::shared_ptr<const MetricsSnapshot> Fetch() {
    std::unique_lock lock(mutex_);
    // One question is enough, however many wait for the answer.
    if (!std::exchange(asked_, true)) {
      env_.loop->Post([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->Take();
      });
    }
    const uint64_t before = taken_;
    arrived_.wait_for(lock, kLoopPatience, [&] { return taken_ != before || closed_; });
    return latest_;
  }

  // Nobody waits any more, and nothing is asked of the daemon. Event loop's thread.
  void Close() {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    arrived_.notify_all();
  }

 private:
  void Take() {
    if (closed_) return;
    auto snapshot = std::make_shared<const MetricsSnapshot>(env_.snapshot());
    const std::scoped_lock lock(mutex_);
    latest_ = std::move(snapshot);
    asked_ = false;
    ++taken_;
    arrived_.notify_all();
  }

  const MetricsEnvironment env_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool asked_ = false;
  bool closed_ = false;
  uint64_t taken_ = 0;
  std::shared_ptr<const MetricsSnapshot> latest_;
};

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                            MetricsEnvironment environment) {
  KVT_ASSIGN_OR_RETURN(const LoopbackAddress address, ParseLoopbackAddress(listen));
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::move(environment)));
  KVT_ASSIGN_OR_RETURN(
      server->http_, HttpServer::Start(address, [self = server.get()](const HttpRequest& request) {
        return self->Handle(request);
      }));
  return server;
}

MetricsServer::MetricsServer(MetricsEnvironment environment)
    : pulse_(environment.pulse),
      watchdog_seconds_(WatchdogSeconds()),
      source_(std::make_shared<SnapshotSource>(std::move(environment))) {}

MetricsServer::~MetricsServer() { source_->Close(); }

HttpResponse MetricsServer::Handle(const HttpRequest& request) {
  if (request.path == "/metrics") return MetricsPage(request);
  if (request.path == "/status.json") return LiveDocument();
  if (request.path == "/") {
    return {.content_type = "text/html; charset=utf-8", .body = std::string(LivePageHtml())};
  }
  return {.status = 404, .body = "Here are /, /status.json and /metrics.\n"};
}

HttpResponse MetricsServer::MetricsPage(const HttpRequest& request) {
  const std::shared_ptr<const MetricsSnapshot> snapshot = source_->Fetch();
  if (!snapshot) return {.status = 503, .body = "The event loop does not answer.\n"};
  const MetricsFormat format = FormatFor(request.accept);
  // Read after the wait for the loop: this is what tells that it hangs.
  const LoopFacts loop{.silent_seconds = pulse_->SilentSeconds(),
                       .watchdog_seconds = watchdog_seconds_};
  return {.content_type = ContentTypeOf(format),
          .body = MetricsText(MetricsOf(*snapshot, loop, ReadProcessFacts()), format)};
}

HttpResponse MetricsServer::LiveDocument() {
  const std::shared_ptr<const MetricsSnapshot> snapshot = source_->Fetch();
  if (!snapshot) return {.status = 503, .body = "The event loop does not answer.\n"};
  return {.content_type = "application/json",
          .body = LiveStatusJson(*snapshot, pulse_->SilentSeconds())};
}

}  // namespace kvtier
