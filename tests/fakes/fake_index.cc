// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/fake_index.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace kvtier {

FakeIndex::FakeIndex(FakeLoop* loop, uint64_t seed)
    : loop_(loop), source_(loop->AddSource(FakeLoop::Order::kAsPosted)), random_(seed) {}

void FakeIndex::Apply(IndexBatch batch, std::function<void(Status)> done) {
  under_way_.push_back(std::move(batch));
  loop_->PostFrom(source_, [this, done = std::move(done)] { CompleteFirst(done); });
}

void FakeIndex::CompleteFirst(const std::function<void(Status)>& done) {
  IndexBatch batch = std::move(under_way_.front());
  under_way_.pop_front();
  if (refuse_next_ > 0) {
    --refuse_next_;
    return done(MakeError(ErrorCode::kIoError, "index_write", "injected"));
  }
  const bool failed = fail_next_ > 0 || random_.Chance(failure_rate_);
  if (fail_next_ > 0) --fail_next_;
  if (!failed || random_.Chance(0.5)) log_.push_back(std::move(batch));
  if (failed) return done(MakeError(ErrorCode::kIoError, "index_write", "injected"));
  done({});
}

void FakeIndex::Crash() {
  const size_t applied = random_.Below(under_way_.size() + 1);
  for (size_t i = 0; i < applied; ++i) log_.push_back(std::move(under_way_[i]));
  under_way_.clear();
}

void FakeIndex::LoseTail(size_t batches) {
  log_.resize(log_.size() - std::min(batches, log_.size()));
}

size_t FakeIndex::purges() const {
  return static_cast<size_t>(std::ranges::count(log_, true, &IndexBatch::purge_tokens));
}

void FakeIndex::ReplaceWith(const IndexSnapshot& snapshot) {
  log_ = {IndexBatch{.namespaces = snapshot.namespaces,
                     .puts = snapshot.records,
                     .token_puts = snapshot.tokens,
                     .distrusted = snapshot.distrusted}};
}

IndexSnapshot FakeIndex::Snapshot() const {
  IndexSnapshot snapshot;
  std::map<uint32_t, NamespaceIdentity> namespaces;
  std::map<std::pair<uint32_t, BlockHash>, IndexRecord> records;
  std::map<uint32_t, ErasureRecord> erasures;
  std::set<NamespaceId> distrusted;
  std::map<std::pair<uint32_t, BlockHash>, TokensRecord> tokens;
  for (const IndexBatch& batch : log_) {
    for (const auto& [id, identity] : batch.namespaces) namespaces[id.value] = identity;
    for (const BlockKey& key : batch.deletes) records.erase({key.namespace_id.value, key.hash});
    for (const IndexRecord& put : batch.puts)
      records[{put.key.namespace_id.value, put.key.hash}] = put;
    if (batch.budget) snapshot.budget = *batch.budget;
    for (const ErasureRecord& erasure : batch.erasures) erasures[erasure.number] = erasure;
    for (const uint32_t number : batch.ended_erasures) erasures.erase(number);
    for (const NamespaceId id : batch.trusted) distrusted.erase(id);
    distrusted.insert(batch.distrusted.begin(), batch.distrusted.end());
    for (const BlockKey& key : batch.token_deletes)
      tokens.erase({key.namespace_id.value, key.hash});
    for (const TokensRecord& put : batch.token_puts)
      tokens[{put.key.namespace_id.value, put.key.hash}] = put;
  }
  for (auto& [id, identity] : namespaces)
    snapshot.namespaces.emplace_back(NamespaceId(id), identity);
  for (auto& [key, record] : records) snapshot.records.push_back(record);
  for (auto& [number, erasure] : erasures) snapshot.erasures.push_back(erasure);
  for (auto& [key, record] : tokens) snapshot.tokens.push_back(record);
  snapshot.distrusted.assign(distrusted.begin(), distrusted.end());
  return snapshot;
}

}  // namespace kvtier
