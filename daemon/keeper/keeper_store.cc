// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/keeper_store.h"

#include <fmt/format.h>

#include <utility>

#include "base/units.h"

namespace kvtier {
namespace {

// A keeper that cannot be started, or is killed each time, costs a process every five seconds.
constexpr int64_t kRetryMs = 5000;

}  // namespace

Result<std::unique_ptr<KeeperStore>> KeeperStore::Open(const DescriptorStoreOptions& options) {
  const KeeperPlace place = KeeperPlace::Beside(options.socket, options.keeper_program);
  KVT_ASSIGN_OR_RETURN(KeeperLink link, KeeperLink::Open(place, options.keep_for_ms));
  options.log->Info("keeper.ready", "kvtier-keeper, pid {}, {}", link.pid(),
                    link.found() ? "was there already" : "was started");
  return std::unique_ptr<KeeperStore>(new KeeperStore(options, std::move(link)));
}

KeeperStore::KeeperStore(const DescriptorStoreOptions& options, KeeperLink link)
    : options_(options),
      place_(KeeperPlace::Beside(options.socket, options.keeper_program)),
      link_(std::move(link)),
      retry_(options.loop) {
  Watch();
}

void KeeperStore::Watch() {
  watch_.emplace(options_.loop, link_->descriptor());
  watch_->WaitHangUp([this] { OnLost("its connection has ended"); });
}

DescriptorStore::Holder KeeperStore::holder() const {
  if (!link_) return {.name = "none", .pid = 0, .until = "", .reason = why_lost_};
  return {.name = "kvtier-keeper",
          .pid = link_->pid(),
          .until = fmt::format("{} after the daemon's end", FormatDuration(options_.keep_for_ms)),
          .reason = ""};
}

void KeeperStore::OnLost(const std::string& why) {
  options_.log->Warning("keeper.lost", "kvtier-keeper, pid {}: {}; starting another", link_->pid(),
                        why);
  why_lost_ = why;
  watch_.reset();
  link_.reset();
  Reopen();
}

void KeeperStore::Reopen() {
  const auto opened = std::make_shared<std::optional<Result<KeeperLink>>>();
  options_.executor->Run(
      [opened, place = place_, keep_for_ms = options_.keep_for_ms] {
        *opened = KeeperLink::Open(place, keep_for_ms);
      },
      gate_.WhileOpen([this, opened] { OnReopened(*std::move(*opened)); }));
}

void KeeperStore::OnReopened(Result<KeeperLink> link) {
  if (ended_) {
    if (link) (void)link->End();
    return;
  }
  Status given;
  if (link) {
    for (const auto& [name, kept] : kept()) {
      if (given) given = link->Keep(name, kept.descriptor->get());
    }
  }
  if (!link || !given) {
    why_lost_ = (link ? given.error() : link.error()).ToString();
    options_.log->Warning("keeper.none", "memory is not kept over a restart: {}", why_lost_);
    return retry_.Start(kRetryMs, [this] { Reopen(); });
  }
  link_ = *std::move(link);
  options_.log->Info("keeper.ready", "kvtier-keeper, pid {}, has {} descriptor(s) again",
                     link_->pid(), kept().size());
  Watch();
}

bool KeeperStore::Succeeded(const Status& done) {
  if (done) return true;
  OnLost(done.error().ToString());
  return false;
}

std::optional<UniqueFd> KeeperStore::DoTake(std::string_view name) {
  if (!link_) return std::nullopt;
  Result<std::optional<UniqueFd>> taken = link_->Take(name);
  if (taken) return *std::move(taken);
  OnLost(taken.error().ToString());
  return std::nullopt;
}

Status KeeperStore::DoKeep(const std::string& name, const Descriptor& descriptor) {
  // Without a keeper now, the next one is given the descriptor.
  if (!link_) return {};
  Status kept = link_->Keep(name, descriptor->get());
  if (!kept && kept.error().reason == "keeper_full") return kept;
  (void)Succeeded(kept);
  return {};
}

void KeeperStore::DoRelease(std::string_view name) {
  if (link_) (void)Succeeded(link_->Release(name));
}

void KeeperStore::ReleaseUnclaimed() {
  if (link_) (void)Succeeded(link_->ReleaseUnclaimed());
}

void KeeperStore::DoReleaseAll() {
  ended_ = true;
  retry_.Cancel();
  watch_.reset();
  if (link_) (void)link_->End();
  link_.reset();
  why_lost_ = "released";
}

void EndKeeper(const std::string& socket, Log* log) {
  const Result<bool> ended = KeeperLink::End(KeeperPlace::Beside(socket, ""));
  if (!ended) {
    log->Warning("keeper.none", "an earlier daemon's keeper does not end: {}",
                 ended.error().ToString());
  } else if (*ended) {
    log->Info("keeper.ended", "an earlier daemon's keeper gave back what it kept");
  }
}

}  // namespace kvtier
