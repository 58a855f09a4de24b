// SPDX-License-Identifier: Apache-2.0
#include "client/core/link_group.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "client/core/connection.h"
#include "client/core/pool_link.h"

namespace kvtier::client {
namespace {

// Sessions of daemons that died while a resume was under way.
constexpr size_t kMostHalfway = 7;
// Between tries if a daemon is there and cannot attach the pool yet.
constexpr std::chrono::milliseconds kAttachPause{5};

bool IsOf(const DaemonSession& session, uint64_t daemon_generation) {
  return session.limits().daemon_generation == daemon_generation;
}

}  // namespace

void LinkGroup::Join(const std::shared_ptr<PoolLink>& link) {
  const std::lock_guard lock(mutex_);
  std::erase_if(links_, [](const auto& known) { return known.expired(); });
  links_.push_back(link);
}

Status LinkGroup::Resume(const PoolLink& link, Deadline deadline) {
  while (true) {
    KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DaemonSession> session,
                         connection_.WaitForSession(deadline));
    const Status resumed = ResumeIn(session, link);
    // A link may have been lost since another call began.
    if (resumed && link.Current()->session != session) continue;
    const bool again = !resumed && resumed.error().code == ErrorCode::kUnavailable;
    if (!again || std::chrono::steady_clock::now() >= deadline) return resumed;
    std::this_thread::sleep_for(kAttachPause);
  }
}

// The link's blocks may be those of a session where its resume was under way.
void LinkGroup::Forsake(const DaemonSession& session) {
  forsaken_.push_back(FormerSession::Of(session));
  if (under_way_) forsaken_.push_back(FormerSession::Of(*under_way_->session()));
  forsaken_.insert(forsaken_.end(), halfway_.begin(), halfway_.end());
}

Status LinkGroup::ResumeIn(const std::shared_ptr<DaemonSession>& session, const PoolLink& link) {
  if (under_way_ && under_way_->session() != session) {
    EndHalfway(*under_way_->session());
    under_way_.reset();
  }
  if (!under_way_) {
    KVT_ASSIGN_OR_RETURN(under_way_, Begin(session, link));
  }
  const Status claimed = under_way_->Claim();
  if (!claimed && claimed.error().code == ErrorCode::kTimeout) return claimed;
  under_way_.reset();
  if (claimed) halfway_.clear();
  if (!claimed && claimed.error().code == ErrorCode::kUnavailable) EndHalfway(*session);
  return claimed;
}

// The blocks that the session was given are its own now, should its daemon have died.
void LinkGroup::EndHalfway(const DaemonSession& session) {
  if (halfway_.size() == kMostHalfway) halfway_.erase(halfway_.begin());
  halfway_.push_back(FormerSession::Of(session));
}

Result<std::unique_ptr<Resumption>> LinkGroup::Begin(const std::shared_ptr<DaemonSession>& session,
                                                     const PoolLink& asker) {
  // A daemon that has cut the connection has taken back the session's blocks.
  if (IsOf(*asker.Current()->session, session->limits().daemon_generation)) {
    return MakeError(ErrorCode::kStaleHandle, "same_daemon");
  }
  auto resumption = std::make_unique<Resumption>(&connection_, session);
  std::vector<FormerSession> formers;
  for (const std::shared_ptr<PoolLink>& link : LostLinks(*session)) {
    const FormerSession former = FormerSession::Of(*link->Current()->session);
    const Status added = resumption->Add(link);
    const bool may_pass = !added && (added.error().code == ErrorCode::kUnavailable ||
                                     added.error().code == ErrorCode::kTimeout);
    if (!added && (link.get() == &asker || may_pass)) return tl::unexpected(added.error());
    if (!added) forsaken_.push_back(former);
    if (std::ranges::find(formers, former) == formers.end()) formers.push_back(former);
  }
  formers.insert(formers.end(), halfway_.begin(), halfway_.end());
  for (const FormerSession& former : formers) {
    resumption->Name(former, std::ranges::find(forsaken_, former) == forsaken_.end());
  }
  return resumption;
}

// Links over a session that stands need nothing, and those over one with the same daemon, nothing
// that can be had.
std::vector<std::shared_ptr<PoolLink>> LinkGroup::LostLinks(const DaemonSession& session) const {
  std::vector<std::shared_ptr<PoolLink>> links;
  {
    const std::lock_guard lock(mutex_);
    for (const std::weak_ptr<PoolLink>& link : links_) links.push_back(link.lock());
  }
  const uint64_t daemon = session.limits().daemon_generation;
  std::erase_if(links, [daemon](const std::shared_ptr<PoolLink>& link) {
    return !link || !link->MayOutlive() || IsOf(*link->Current()->session, daemon);
  });
  return links;
}

}  // namespace kvtier::client
