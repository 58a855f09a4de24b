// SPDX-License-Identifier: Apache-2.0
#include "client/examples/generator.h"

#include <algorithm>

#include "base/result.h"
#include "client/examples/kv_store.h"

namespace kvtier::generate {
namespace {

// Tokens computed between two commits: others may use the beginning of a long prompt while its end
// is still being computed.
constexpr size_t kCommitTokens = 256;

}  // namespace

// How far one generation has come. Tokens are only added to it once they are certain.
struct Generator::Progress {
  std::vector<Token> tokens;
  size_t end = 0;  // when there are so many tokens
  std::unique_ptr<KvStore> store;
  size_t computed = 0;  // tokens in the store
  Clock::time_point start;
  std::optional<Clock::time_point> first_token;
};

Generation Generator::Run(std::span<const Token> prompt, size_t count, const OnToken& on_token) {
  KVT_CHECK(!prompt.empty() && prompt.size() + count <= model_.shape().max_positions);
  Progress progress{.tokens = {prompt.begin(), prompt.end()},
                    .end = prompt.size() + count,
                    .start = Clock::now()};
  Generation generation{.prompt_tokens = prompt.size()};
  if (open_store_) {
    if (const Status done = RunFromCache(&progress, on_token); !done) {
      generation.cache_error = done.error();
    }
  }
  if (progress.store == nullptr) {
    progress.store = std::make_unique<PrivateKv>(layout_, progress.end);
    KVT_CHECK(Continue(&progress, on_token).has_value());
  }

  const Clock::time_point end = Clock::now();
  for (size_t i = prompt.size(); i < progress.tokens.size(); ++i) {
    generation.text.push_back(static_cast<char>(progress.tokens[i]));
  }
  generation.cached = progress.store->cached_tokens();
  generation.prefilled_tokens = prompt.size() - generation.cached.total();
  generation.first_token_ms = progress.first_token.value_or(end) - progress.start;
  generation.total_ms = end - progress.start;
  return generation;
}

Status Generator::RunFromCache(Progress* progress, const OnToken& on_token) const {
  KVT_ASSIGN_OR_RETURN(progress->store, open_store_(progress->tokens));
  progress->computed = progress->store->cached_tokens().total();
  if (Status done = Continue(progress, on_token); !done) {
    progress->store.reset();
    progress->computed = 0;
    return done;
  }
  // The text is complete: a failure from here on only concerns later runs.
  return progress->store->Finish();
}

Status Generator::Continue(Progress* progress, const OnToken& on_token) const {
  while (progress->tokens.size() < progress->end) {
    KVT_ASSIGN_OR_RETURN(const Token token, ComputeNext(progress));
    if (!progress->first_token) progress->first_token = Clock::now();
    progress->tokens.push_back(token);
    on_token(token);
    // The last token is not computed: nothing follows it.
    if (progress->tokens.size() < progress->end) {
      KVT_RETURN_IF_ERROR(progress->store->Append(token));
    }
  }
  return {};
}

Result<Token> Generator::ComputeNext(Progress* progress) const {
  std::vector<float> logits(model_.shape().vocabulary);
  KVT_ASSIGN_OR_RETURN(KvAccess* const kv, progress->store->Access());
  const std::span<const Token> tokens = progress->tokens;
  while (progress->computed < tokens.size()) {
    const size_t count = std::min(kCommitTokens, tokens.size() - progress->computed);
    model_.Compute(tokens.subspan(progress->computed, count), progress->computed, kv, logits);
    progress->computed += count;
    KVT_RETURN_IF_ERROR(progress->store->MarkComputed(progress->computed));
  }
  const auto best = std::max_element(logits.begin(), logits.end());
  return static_cast<Token>(best - logits.begin());
}

}  // namespace kvtier::generate
