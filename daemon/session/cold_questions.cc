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

// The questions about one sequence, or about blocks of several, until the last answer has come.
struct Asked {
  bool is_sequence = true;
  ColdAsker asker;
  std::vector<ColdSubject> subjects;
  ColdPresence known;  // here or in the store
  ColdPresence in_store;
  std::vector<ColdBlock> blocks;  // to be asked about in this order, from `next` on
  size_t next = 0;
  size_t unanswered = 0;
  bool ended = false;  // the store has told nothing
  std::function<void(const ColdPresence&)> done;

  [[nodiscard]] std::vector<GroupPresence> Groups() const {
    std::vector<GroupPresence> groups;
    for (size_t i = 0; i < subjects.size(); ++i) groups.push_back({subjects[i].rule, known[i]});
    return groups;
  }
};

void Take(Asked* asked, const ColdQuestion& question, const std::vector<bool>& present) {
  asked->ended |= present.empty();
  for (size_t i = 0; i < std::min(question.positions.size(), present.size()); ++i) {
    // A store may tell more of a prefix than can be used.
    if (!present[i] && question.ask == ColdAsk::kPrefix && asked->is_sequence) break;
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

// The longest boundaries come first, so that none is left to ask for once one is whole.
void AskOn(const std::shared_ptr<Asked>& asked) {
  const std::span<const ColdBlock> left = std::span(asked->blocks).subspan(asked->next);
  if (asked->ended || left.empty() ||
      LongestRestorable(asked->Groups()) >= left.front().boundary_tokens) {
    return asked->done(asked->in_store);
  }
  std::vector<ColdQuestion> questions;
  for (const ColdBlock& block : left.first(std::min(left.size(), kMostAskedAtOnce))) {
    auto question = std::ranges::find(questions, block.group, &ColdQuestion::group);
    if (question == questions.end()) {
      question = questions.insert(question, {block.group, ColdAsk::kEach, {}});
    }
    question->positions.push_back(block.position);
    ++asked->next;
  }
  Ask(asked, std::move(questions), [asked] { AskOn(asked); });
}

std::shared_ptr<Asked> Begin(ColdAsker asker, std::vector<ColdSubject> subjects, ColdPresence here,
                             std::function<void(const ColdPresence&)> done) {
  const auto asked = std::make_shared<Asked>();
  asked->asker = std::move(asker);
  asked->subjects = std::move(subjects);
  asked->known = std::move(here);
  asked->done = std::move(done);
  for (const ColdSubject& subject : asked->subjects) {
    asked->in_store.emplace_back(subject.hashes.size());
  }
  return asked;
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

std::vector<ColdBlock> BoundaryBlocks(std::span<const GroupPresence> groups) {
  std::vector<ColdBlock> blocks;
  std::vector<uint64_t> taken_from(groups.size(), UINT64_MAX);  // by group
  const uint64_t here_tokens = LongestRestorable(groups);
  const uint64_t step = BoundaryTokens(groups);
  for (uint64_t boundary_tokens = LastBoundary(groups, /*present_only=*/true);
       boundary_tokens > here_tokens; boundary_tokens -= step) {
    for (size_t i = 0; i < groups.size(); ++i) {
      if (NeedsAll(groups[i])) continue;
      const BlockRange needed = NeededBlocks(groups[i].group, boundary_tokens);
      for (uint64_t block = std::min(needed.end, taken_from[i]); block > needed.first; --block) {
        if (groups[i].present[block - 1] == 0) blocks.push_back({i, block - 1, boundary_tokens});
      }
      taken_from[i] = needed.first;
    }
  }
  return blocks;
}

// Few prompts are in the store to their ends: the blocks of windows and states that a shorter
// prefix needs are known once it is.
void AskColdStore(ColdAsker asker, std::vector<ColdSubject> subjects, ColdPresence here,
                  std::function<void(const ColdPresence&)> done) {
  const auto asked = Begin(std::move(asker), std::move(subjects), std::move(here), std::move(done));
  Ask(asked, PrefixQuestions(asked->Groups()), [asked] {
    asked->blocks = BoundaryBlocks(asked->Groups());
    AskOn(asked);
  });
}

void LookUpInColdStore(ColdAsker asker, const ColdSubject& subject, std::vector<uint8_t> here,
                       std::function<void(const ColdPresence&)> done) {
  const auto asked = Begin(std::move(asker), {subject}, {std::move(here)}, std::move(done));
  asked->is_sequence = false;
  for (size_t i = 0; i < asked->known[0].size(); ++i) {
    const bool asks = subject.rule.rule != HitRule::kAll && asked->known[0][i] == 0;
    if (asks) asked->blocks.push_back({0, i, UINT64_MAX});
  }
  Ask(asked, PrefixQuestions(asked->Groups()), [asked] { AskOn(asked); });
}

}  // namespace kvtier
