// The disk tier as the daemon starts it: lock, files, engine and index.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "daemon/config.h"
#include "daemon/event_loop.h"
#include "daemon/log.h"
#include "daemon/service_manager.h"
#include "daemon/status_json.h"
#include "tiers/cache.h"
#include "tiers/disk_files.h"
#include "tiers/index_start.h"

namespace kvtier {

class DiskTier {
 public:
  // Does nothing if the configuration has no disk tier. Blocks; `manager` hears of what takes long.
  // All are borrowed. Errors: those of OpenDiskFiles and StartIndex.
  [[nodiscard]] static Result<std::unique_ptr<DiskTier>> Open(const Config& config,
                                                              const Clock& clock, EventLoop* loop,
                                                              Log* log, ServiceManager* manager);

  // Fills in files, geometry and index; returns what they hold, once.
  [[nodiscard]] IndexSnapshot Join(CacheEnvironment* environment);
  [[nodiscard]] const DiskStartFacts& facts() const { return facts_; }

 private:
  DiskTier(Log* log, ServiceManager* manager) : log_(log), manager_(manager) {}
  [[nodiscard]] Status OpenFiles(const Config& config, EventLoop* loop);
  [[nodiscard]] Status OpenIndex(const Config& config, const Clock& clock, EventLoop* loop);
  void Note(const std::string& note);
  void LogRebuild(const RebuiltIndex& rebuilt) const;

  Log* const log_;
  ServiceManager* const manager_;
  DiskStartFacts facts_;
  // The lock within goes last, after the index is closed.
  DiskFiles files_;
  StartedIndex index_;
};

}  // namespace kvtier
