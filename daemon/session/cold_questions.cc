// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/cold_questions.h"

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

// The first block that a prefix longer than `boundary_tokens` may need of the group.
size_t FirstNeededBeyond(const GroupRule& rule, uint64_t boundary_tokens) {
  switch (rule.rule) {
    case HitRule::kAll:
      return 0;
    case HitRule::kTrailing: {
      const uint64_t window = std::min<uint64_t>(rule.window_tokens, boundary_tokens);
      return (boundary_tokens - window) / rule.block_tokens;
    }
    case HitRule::kState:
      return boundary_tokens / rule.block_tokens;
  }
  return 0;
}

// Until the last answer has come.
struct Asked {
  ColdPresence presence;
  size_t unanswered = 0;
  std::function<void(const ColdPresence&)> done;
};

void OnAnswer(Asked* asked, const ColdQuestion& question, const std::vector<bool>& present) {
  std::vector<uint8_t>& of_group = asked->presence[question.group];
  for (size_t i = 0; i < std::min(question.positions.size(), present.size()); ++i) {
    // A store may tell more of a prefix than can be used.
    if (!present[i] && question.ask == ColdAsk::kPrefix) break;
    if (present[i]) of_group[question.positions[i]] = 1;
  }
  if (--asked->unanswered == 0) asked->done(asked->presence);
}

}  // namespace

std::vector<ColdQuestion> ColdQuestions(std::span<const GroupPresence> groups) {
  std::vector<ColdQuestion> questions;
  uint64_t reach_tokens = UINT64_MAX;
  for (const GroupPresence& group : groups) {
    reach_tokens =
        std::min<uint64_t>(reach_tokens, group.present.size() * group.group.block_tokens);
  }
  const uint64_t here_tokens = LongestRestorable(groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    const GroupRule& rule = groups[i].group;
    const bool by_all = rule.rule == HitRule::kAll;
    ColdQuestion question{.group = i, .ask = by_all ? ColdAsk::kPrefix : ColdAsk::kEach};
    const size_t end = reach_tokens / rule.block_tokens;
    for (size_t block = FirstNeededBeyond(rule, here_tokens); block < end; ++block) {
      if (groups[i].present[block] == 0) question.positions.push_back(block);
    }
    if (!question.positions.empty()) questions.push_back(std::move(question));
  }
  return questions;
}

void AskColdStore(const ColdAsker& asker, std::span<const ColdSubject> subjects,
                  std::vector<ColdQuestion> questions,
                  std::function<void(const ColdPresence&)> done) {
  const auto asked = std::make_shared<Asked>();
  for (const ColdSubject& subject : subjects) {
    asked->presence.emplace_back(subject.hashes.size());
  }
  asked->done = std::move(done);
  // An answer may come within the call, and must not be the last before all are asked.
  asked->unanswered = questions.size() + 1;
  for (ColdQuestion& question : questions) {
    const ColdSubject& subject = subjects[question.group];
    std::vector<BlockHash> hashes;
    hashes.reserve(question.positions.size());
    for (const size_t position : question.positions) hashes.push_back(subject.hashes[position]);
    const ColdAsk ask = question.ask;
    asker(subject.pool, hashes, ask,
          [asked, question = std::move(question)](const std::vector<bool>& present) {
            OnAnswer(asked.get(), question, present);
          });
  }
  if (--asked->unanswered == 0) asked->done(asked->presence);
}

}  // namespace kvtier
