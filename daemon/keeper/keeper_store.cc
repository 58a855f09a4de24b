// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/keeper_store.h"

#include <fmt/format.h>

#include <future>
#include <utility>

#include "base/units.h"

namespace kvtier {
namespace {

// A keeper that cannot be started, or is killed each time, costs a process every five seconds.
constexpr int64_t kRetryMs = 5000;

}  // namespace

Result<std::unique_ptr<KeeperStore>> KeeperStore::Open(const DescriptorStoreOptions& options) {
  const KeeperPlace place = KeeperPlace::Beside(options.socket, options.keeper_program);
  Result<KeeperLink> link = KeeperLink::Open(place, options.keep_for_ms);
  if (!link && !IsKeeperSilent(link.error())) return tl::unexpected(std::move(link).error());
  std::unique_ptr<KeeperStore> store(new KeeperStore(options));
  if (link) {
    options.log->Info("keeper.ready", "kvtier-keeper, pid {}, {}", link->pid(),
                      link->found() ? "was there already" : "was started");
    store->Connect(*std::move(link));
  } else {
    store->why_lost_ = link.error().ToString();
    options.log->Warning("keeper.lost", "an earlier daemon's: {}; asking again", store->why_lost_);
    store->Reopen();
  }
  return store;
}

KeeperStore::KeeperStore(const DescriptorStoreOptions& options)
    : options_(options),
      place_(KeeperPlace::Beside(options.socket, options.keeper_program)),
      retry_(options.loop),
      thread_("keeper", 1, options.loop) {}

void KeeperStore::Connect(KeeperLink link) {
  keeper_ = std::make_shared<Keeper>(std::move(link));
  watch_.emplace(options_.loop, keeper_->descriptor);
  watch_->WaitHangUp([this] { OnLost("its connection has ended"); });
}

DescriptorStore::Holder KeeperStore::holder() const {
  if (!keeper_) return {.name = "none", .pid = 0, .until = "", .reason = why_lost_};
  return {.name = "kvtier-keeper",
          .pid = keeper_->pid,
          .until = fmt::format("{} after the daemon's end", FormatDuration(options_.keep_for_ms)),
          .reason = ""};
}

// The keeper has the request before this returns: a daemon that is killed now has still made it.
void KeeperStore::Ask(KeeperRequest request, std::string_view name, int descriptor) {
  if (!keeper_) return;
  const Status sent = keeper_->link.Send(request, name, descriptor);
  if (!sent) return OnLost(sent.error().ToString());
  const auto answer = std::make_shared<Status>();
  thread_.Run(
      [keeper = keeper_, request, answer] {
        if (keeper->silent) return;
        *answer = keeper->link.Await(request);
        keeper->silent = !*answer && answer->error().code == ErrorCode::kUnavailable;
      },
      // The connection ends with the store, even if the loop never runs this.
      gate_.WhileOpen([this, asked = std::weak_ptr(keeper_), answer] {
        if (keeper_ && asked.lock() == keeper_) OnAnswered(*answer);
      }));
}

void KeeperStore::OnAnswered(const Status& answer) {
  if (answer) return;
  if (answer.error().code == ErrorCode::kUnavailable) return OnLost(answer.error().ToString());
  options_.log->Warning("keeper.none", "some memory is not kept over a restart: {}",
                        answer.error().ToString());
}

void KeeperStore::OnLost(const std::string& why) {
  options_.log->Warning("keeper.lost", "kvtier-keeper, pid {}: {}; starting another", keeper_->pid,
                        why);
  why_lost_ = why;
  watch_.reset();
  keeper_.reset();
  Reopen();
}

void KeeperStore::Reopen() {
  const auto opened = std::make_shared<std::optional<Result<KeeperLink>>>();
  thread_.Run(
      [opened, place = place_, keep_for_ms = options_.keep_for_ms] {
        *opened = KeeperLink::Open(place, keep_for_ms);
      },
      gate_.WhileOpen([this, opened] { OnReopened(*std::move(*opened)); }));
}

void KeeperStore::OnReopened(Result<KeeperLink> link) {
  if (!link) {
    if (ended_) return;
    why_lost_ = link.error().ToString();
    options_.log->Warning("keeper.none", "memory is not kept over a restart: {}", why_lost_);
    return retry_.Start(kRetryMs, [this] { Reopen(); });
  }
  Connect(*std::move(link));
  if (ended_) return DoReleaseAll();
  options_.log->Info("keeper.ready", "kvtier-keeper, pid {}, is given {} descriptor(s) again",
                     keeper_->pid, kept().size());
  for (const auto& [name, kept] : kept()) (void)DoKeep(name, kept.descriptor);
  // One that was there already may hold descriptors that were released since it was lost.
  ReleaseUnclaimed();
}

std::optional<UniqueFd> KeeperStore::DoTake(std::string_view name) {
  if (!keeper_) return std::nullopt;
  UniqueFd received;
  Status taken = keeper_->link.Send(KeeperRequest::kTake, name);
  if (taken) {
    std::promise<Status> answer;
    thread_.Run(
        [&answer, &received, keeper = keeper_] {
          Status came;
          if (!keeper->silent) came = keeper->link.Await(KeeperRequest::kTake, &received);
          keeper->silent = keeper->silent || !came;
          answer.set_value(std::move(came));
        },
        nullptr);
    taken = answer.get_future().get();
  }
  if (!taken) {
    OnLost(taken.error().ToString());
    return std::nullopt;
  }
  if (!received.valid()) return std::nullopt;
  return received;
}

Status KeeperStore::DoKeep(const std::string& name, const Descriptor& descriptor) {
  if (kept().size() >= kMaxKeptDescriptors && !kept().contains(name)) {
    return MakeError(ErrorCode::kResourceExhausted, "keeper_full",
                     fmt::format("{} descriptors are kept already", kMaxKeptDescriptors));
  }
  // Without a keeper now, the next one is given the descriptor.
  Ask(KeeperRequest::kKeep, name, descriptor->get());
  return {};
}

void KeeperStore::DoRelease(std::string_view name) { Ask(KeeperRequest::kRelease, name); }

void KeeperStore::ReleaseUnclaimed() { Ask(KeeperRequest::kReleaseUnclaimed); }

void KeeperStore::DoReleaseAll() {
  ended_ = true;
  retry_.Cancel();
  watch_.reset();
  Ask(KeeperRequest::kEnd);
  keeper_.reset();
  why_lost_ = "released";
}

void EndKeeper(const std::string& socket, Log* log) {
  const Result<bool> ended = KeeperLink::End(KeeperPlace::Beside(socket, ""));
  if (!ended) {
    log->Warning("keeper.none", "an earlier daemon's keeper does not end: {}",
                 ended.error().ToString());
  } else if (*ended) {
    log->Info("keeper.ended", "an earlier daemon's keeper gave back its memory");
  }
}

}  // namespace kvtier
