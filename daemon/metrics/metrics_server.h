// SPDX-License-Identifier: Apache-2.0
// The pages of the local web listener: / for people, /status.json for that page, /metrics for
// Prometheus. Rendered on the listener's thread; the event loop gives a snapshot and no more.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/metrics/http_server.h"
#include "daemon/metrics/metrics_snapshot.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/loop_pulse.h"

namespace kvtier {

// Borrowed; outlives the server.
struct MetricsEnvironment {
  EventLoop* loop = nullptr;
  const LoopPulse* pulse = nullptr;
  // Called on the event loop.
  std::function<MetricsSnapshot()> snapshot;
};

class MetricsServer {
 public:
  // `listen` as in ParseLoopbackAddress. Errors: those of it and of HttpServer::Start.
  [[nodiscard]] static Result<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                                    MetricsEnvironment environment);
  // Event loop's thread, or when the loop has stopped.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  [[nodiscard]] std::string Url() const { return http_->Url(); }

 private:
  class SnapshotSource;
  explicit MetricsServer(MetricsEnvironment environment);
  [[nodiscard]] HttpResponse Handle(const HttpRequest& request);
  [[nodiscard]] HttpResponse MetricsPage(const HttpRequest& request);
  [[nodiscard]] HttpResponse LiveDocument();

  const LoopPulse* const pulse_;
  const double watchdog_seconds_;
  const std::shared_ptr<SnapshotSource> source_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace kvtier
