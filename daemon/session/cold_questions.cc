// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/cold_questions.h"

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

bool NeedsAll(const GroupPresence& group) { return group.group.rule == HitRule::kAll; }

// All groups' lists reach this boundary, the last; with `present_only` those of full attention only
// to their first gaps.
uint64_t LastBoundary(std::span<const GroupPresence> groups, bool present_only) {
  uint64_t reach = UINT64_MAX;
  for (const GroupPresence& group : groups) {
    const bool ends_at_gap = present_only && NeedsAll(group);
    const auto end =
        ends_at_gap ? std::ranges::find(group.present, uint8_t{0}) : group.present.end();
    const auto blocks = static_cast<uint64_t>(end - group.present.begin());
    reach = std::min(reach, blocks * group.group.block_tokens);
  }
  const uint64_t step = BoundaryTokens(groups);
  return reach / step * step;
}

// Adds the group's absent blocks that the boundary needs, but for those from `*asked_from` on,
// which a longer one has added. Returns how many.
size_t AddNeeded(const GroupPresence& group, uint64_t boundary_tokens, uint64_t* asked_from,
                 std::vector<size_t>* positions) {
  const size_t before = positions->size();
  const BlockRange needed = NeededBlocks(group.group, boundary_tokens);
  for (uint64_t block = std::min(needed.end, *asked_from); block > needed.first; --block) {
    if (group.present[block - 1] == 0) positions->push_back(block - 1);
  }
  *asked_from = std::min(*asked_from, needed.first);
  return positions->size() - before;
}

// The questions about one sequence, until the last answer has come.
struct Asked {
  ColdAsker asker;
  std::vector<ColdSubject> subjects;
  ColdPresence known;  // here or in the store
  ColdPresence in_store;
  size_t unanswered = 0;
  std::function<void(const ColdPresence&)> done;

  [[nodiscard]] std::vector<GroupPresence> Groups() const {
    std::vector<GroupPresence> groups;
    for (size_t i = 0; i < subjects.size(); ++i) groups.push_back({subjects[i].rule, known[i]});
    return groups;
  }
};

void Take(Asked* asked, const ColdQuestion& question, const std::vector<bool>& present) {
  for (size_t i = 0; i < std::min(question.positions.size(), present.size()); ++i) {
    // A store may tell more of a prefix than can be used.
    if (!present[i] && question.ask == ColdAsk::kPrefix) break;
    if (!present[i]) continue;
    asked->known[question.group][question.positions[i]] = 1;
    asked->in_store[question.group][question.positions[i]] = 1;
  }
}

// Asks all questions at the same time and goes on with `next`.
void Ask(const std::shared_ptr<Asked>& asked, std::vector<ColdQuestion> questions,
         const std::function<void()>& next) {
  // An answer may come within the call, and must not be the last before all are asked.
  asked->unanswered = questions.size() + 1;
  for (ColdQuestion& question : questions) {
    const ColdSubject& subject = asked->subjects[question.group];
    std::vector<BlockHash> hashes;
    hashes.reserve(question.positions.size());
    for (const size_t position : question.positions) hashes.push_back(subject.hashes[position]);
    const ColdAsk ask = question.ask;
    asked->asker(subject.pool, hashes, ask,
                 [asked, next, question = std::move(question)](const std::vector<bool>& present) {
                   Take(asked.get(), question, present);
                   if (--asked->unanswered == 0) next();
                 });
  }
  if (--asked->unanswered == 0) next();
}

}  // namespace

std::vector<ColdQuestion> PrefixQuestions(std::span<const GroupPresence> groups) {
  std::vector<ColdQuestion> questions;
  const uint64_t reach_tokens = LastBoundary(groups, /*present_only=*/false);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!NeedsAll(groups[i])) continue;
    ColdQuestion question{.group = i, .ask = ColdAsk::kPrefix, .positions = {}};
    for (size_t block = 0; block < reach_tokens / groups[i].group.block_tokens; ++block) {
      if (groups[i].present[block] == 0) question.positions.push_back(block);
    }
    if (!question.positions.empty()) questions.push_back(std::move(question));
  }
  return questions;
}

std::vector<ColdQuestion> BoundaryQuestions(std::span<const GroupPresence> groups) {
  std::vector<ColdQuestion> questions;
  std::vector<uint64_t> asked_from;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (NeedsAll(groups[i])) continue;
    questions.push_back({.group = i, .ask = ColdAsk::kEach, .positions = {}});
    asked_from.push_back(groups[i].present.size());
  }
  const uint64_t here_tokens = LongestRestorable(groups);
  uint64_t boundary_tokens = LastBoundary(groups, /*present_only=*/true);
  for (size_t asked = 0; boundary_tokens > here_tokens && asked < kMostBoundaryBlocks;
       boundary_tokens -= BoundaryTokens(groups)) {
    for (size_t i = 0; i < questions.size(); ++i) {
      asked += AddNeeded(groups[questions[i].group], boundary_tokens, &asked_from[i],
                         &questions[i].positions);
    }
  }
  std::erase_if(questions, [](const ColdQuestion& question) { return question.positions.empty(); });
  return questions;
}

// Few prompts are in the store to their ends: the blocks of windows and states that a shorter
// prefix needs are known once it is.
void AskColdStore(ColdAsker asker, std::vector<ColdSubject> subjects, ColdPresence here,
                  std::function<void(const ColdPresence&)> done) {
  const auto asked = std::make_shared<Asked>();
  asked->asker = std::move(asker);
  asked->subjects = std::move(subjects);
  asked->known = std::move(here);
  asked->done = std::move(done);
  for (const ColdSubject& subject : asked->subjects) {
    asked->in_store.emplace_back(subject.hashes.size());
  }
  Ask(asked, PrefixQuestions(asked->Groups()), [asked] {
    Ask(asked, BoundaryQuestions(asked->Groups()), [asked] { asked->done(asked->in_store); });
  });
}

}  // namespace kvtier
