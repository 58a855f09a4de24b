// SPDX-License-Identifier: Apache-2.0
#include "client/core/resumption.h"

#include <algorithm>
#include <utility>

#include "client/core/pool_link.h"

namespace kvtier::client {

Resumption::Resumption(const Connection* connection, std::shared_ptr<DaemonSession> session)
    : connection_(*connection), session_(std::move(session)) {}

// A session without blocks can leave the pool, and so can one whose blocks no one uses: the users
// of a link that is gone have ended.
Resumption::~Resumption() {
  for (const Member& member : members_) {
    const bool may_have_blocks = known_ || request_;
    if (member.resumed || (may_have_blocks && !member.link.expired())) continue;
    session_->Detach(pool_);
  }
}

Status Resumption::Add(const std::shared_ptr<PoolLink>& link) {
  KVT_ASSIGN_OR_RETURN(pool_, link->Attach(session_));
  members_.push_back({.link = link, .claims = {}, .outcomes = {}});
  return {};
}

void Resumption::Begin() {
  for (Member& member : members_) {
    const std::shared_ptr<PoolLink> link = member.link.lock();
    if (!link) continue;
    member.claims = link->BeginResume();
    member.outcomes.assign(member.claims.size(), ResumeOutcome::kLost);
  }
}

Status Resumption::Claim() {
  if (!std::exchange(begun_, true)) Begin();
  for (; !formers_.empty(); formers_.pop_back()) {
    const Status claimed = ClaimFrom(formers_.back());
    if (!claimed && claimed.error().code != ErrorCode::kPermissionDenied) return claimed;
  }
  if (!known_) return MakeError(ErrorCode::kStaleHandle, "unknown_session");
  for (Member& member : members_) {
    const std::shared_ptr<PoolLink> link = member.link.lock();
    if (!link) continue;
    link->EndResume(session_, pool_, member.claims, member.outcomes);
    member.resumed = true;
  }
  return {};
}

void Resumption::Divide() {
  const size_t most =
      std::max<size_t>(1, std::min(session_->limits().max_blocks, wire::kMaxClaimsPerResume));
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    if (member.link.expired()) continue;
    Part part{.member = i, .claims = {}};
    for (size_t claim = 0; claim < member.claims.size(); ++claim) {
      if (member.outcomes[claim] != ResumeOutcome::kLost) continue;
      part.claims.push_back(claim);
      if (part.claims.size() < most) continue;
      parts_.push_back(std::exchange(part, Part{.member = i, .claims = {}}));
    }
    if (!part.claims.empty()) parts_.push_back(std::move(part));
  }
  // A daemon that is asked for nothing hears so.
  if (parts_.empty()) parts_.emplace_back();
}

Status Resumption::ClaimFrom(const Former& former) {
  if (parts_.empty()) Divide();
  while (!parts_.empty()) {
    const Status asked = Ask(former, parts_.front(), parts_.size() > 1 || !former.is_last);
    if (!asked) {
      if (!request_) parts_.clear();
      return asked;
    }
    parts_.pop_front();
    known_ = true;
  }
  return {};
}

Status Resumption::Ask(const Former& former, const Part& part, bool more) {
  if (!request_) KVT_RETURN_IF_ERROR(Send(former, part, more));
  std::optional<Result<wire::ResumeReply>> answer;
  const auto answered = [&] {
    if (!answer) answer = session_->TakeResumed(*request_);
    return answer.has_value();
  };
  KVT_RETURN_IF_ERROR(session_->channel().WaitUntil(answered, connection_.RequestDeadline()));
  request_.reset();
  if (!*answer) return tl::unexpected(answer->error());
  Member& member = members_[part.member];
  for (size_t i = 0; i < part.claims.size(); ++i) {
    member.outcomes[part.claims[i]] = (*answer)->outcomes[i];
  }
  return {};
}

Status Resumption::Send(const Former& former, const Part& part, bool more) {
  wire::Resume request{.pool = pool_,
                       .session = former.session.session,
                       .secret = former.session.secret,
                       .more = more,
                       .claims = {}};
  for (const size_t claim : part.claims) {
    request.claims.push_back(members_[part.member].claims[claim]);
  }
  return session_->channel().Post(request, [&](uint64_t request_id) {
    session_->ExpectResumed(request_id, part.claims.size());
    request_ = request_id;
  });
}

}  // namespace kvtier::client
