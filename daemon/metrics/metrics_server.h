// SPDX-License-Identifier: Apache-2.0
// The pages of the local web listener: / for people, /status.json for that page, /metrics for
// Prometheus, /healthz for probes; other machines get the last two alone. Rendered on the
// listener's thread; the event loop gives a snapshot and no more.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/metrics/http_server.h"
#include "daemon/metrics/metrics_snapshot.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/supervision.h"

namespace kvtier {

// The HTTP server's thread waits for the event loop, never the loop for that thread. If the loop
// does not answer within a second, the pages show the last snapshot together with how long the loop
// has been silent, so that a hanging daemon can be seen in its metrics.
class MetricsServer {
 public:
  // `snapshot` is called on the event loop. `loop` and `lag` are borrowed and outlive the server.
  // Errors: those of ParseListenAddress and of HttpServer::Start.
  [[nodiscard]] static Result<std::unique_ptr<MetricsServer>> Start(
      const MetricsConfig& config, EventLoop* loop, const LoopLag* lag,
      std::function<MetricsSnapshot()> snapshot);
  // Event loop's thread, or when the loop has stopped.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  [[nodiscard]] std::string Url() const { return http_->Url(); }

 private:
  class SnapshotSource;
  MetricsServer(EventLoop* loop, const LoopLag* lag, std::function<MetricsSnapshot()> snapshot);
  [[nodiscard]] HttpResponse Handle(const HttpRequest& request);
  [[nodiscard]] HttpResponse MetricsPage(const HttpRequest& request);
  [[nodiscard]] HttpResponse LiveDocument();
  [[nodiscard]] HttpResponse Health();

  const LoopLag* const lag_;
  const double watchdog_seconds_;
  // Outlives the threads of the HTTP server, which wait in it.
  const std::unique_ptr<SnapshotSource> source_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace kvtier
