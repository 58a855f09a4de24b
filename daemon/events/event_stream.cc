// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/event_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/result.h"
#include "daemon/config/config.h"

namespace kvtier {
namespace {

constexpr size_t kNamesPerStep = 1024;
// Room for a snapshot before the first batch, where the machine's clock was never set.
constexpr int64_t kEarliestMs = 1'000'000;

uint64_t FirstNumber(const Clock& clock) {
  return static_cast<uint64_t>(std::max(clock.WallMs(), kEarliestMs)) * 1000;
}

}  // namespace

// Makes one batch of a walk's blocks for each topic, in it sorted by tiers, so that those of a
// sequence share one event.
class EventStream::Collector final : public BlockEventSink {
 public:
  enum class Of : uint8_t { kAll, kWalking };
  Collector(const EventStream* stream, Of of) : stream_(*stream), of_(of) {}

  void BlockStored(const StoredBlock& block) override {
    const Space* const space = stream_.SpaceOf(block.key.namespace_id);
    if (space == nullptr || (of_ == Of::kWalking && !space->walking)) return;
    tiers_[space->topic][static_cast<size_t>(block.tier)].AddStored(block, space->group);
    ++blocks_;
  }
  void BlockRemoved(const BlockKey&, Tier) override {}

  // The topic's blocks; empty if there are none.
  [[nodiscard]] EventBatch Take(const Topic* topic) {
    EventBatch batch;
    for (EventBatch& tier : tiers_[topic]) batch.Append(&tier);
    return batch;
  }
  [[nodiscard]] std::vector<const Topic*> topics() const {
    std::vector<const Topic*> topics;
    for (const auto& [topic, tiers] : tiers_) topics.push_back(topic);
    return topics;
  }
  [[nodiscard]] uint64_t blocks() const { return blocks_; }

 private:
  const EventStream& stream_;
  const Of of_;
  std::map<const Topic*, std::array<EventBatch, kTierCount>> tiers_;
  uint64_t blocks_ = 0;
};

EventStream::EventStream(EventsConfig config, const Clock* clock, NameOf name_of,
                         std::function<void()> changed, uint32_t rows_per_step)
    : config_(std::move(config)),
      clock_(*clock),
      name_of_(std::move(name_of)),
      changed_(std::move(changed)),
      rows_per_step_(rows_per_step),
      ring_(config_.buffer_steps, FirstNumber(clock_)) {}

bool EventStream::MayTell(const std::string& tenant) const {
  return tenant == kDefaultTenant ||
         std::ranges::find(config_.tenants, tenant) != config_.tenants.end();
}

const EventStream::Space* EventStream::SpaceOf(NamespaceId id) const {
  if (id.value >= spaces_.size() || spaces_[id.value].topic == nullptr) return nullptr;
  return &spaces_[id.value];
}

void EventStream::BlockStored(const StoredBlock& block) {
  const Space* const space = SpaceOf(block.key.namespace_id);
  if (space == nullptr) return;
  space->topic->batch.AddStored(block, space->group);
  ++counters_.stored;
  NoteAdded(space->topic);
}

void EventStream::BlockRemoved(const BlockKey& key, Tier tier) {
  const Space* const space = SpaceOf(key.namespace_id);
  if (space == nullptr) return;
  space->topic->batch.AddRemoved(key.hash, tier, space->group);
  ++counters_.removed;
  NoteAdded(space->topic);
}

void EventStream::TokenIdsErased() {
  for (auto& [text, topic] : topics_) Publish(&topic);
  ring_.Clear();
}

void EventStream::NoteAdded(Topic* topic) {
  if (topic->batch.full()) return Publish(topic);
  if (topic->batch.size() == 1) changed_();
}

void EventStream::Publish(Topic* topic) {
  if (topic->batch.empty()) return;
  ring_.Add(topic->text, topic->batch.Take(config_.format, clock_.WallMs()));
  ++counters_.batches;
  changed_();
}

bool EventStream::Work() {
  for (auto& [text, topic] : topics_) Publish(&topic);
  NameSpaces();
  PublishPart();
  return !walking_.empty() || !waiting_.empty();
}

// Engines name their models when they connect, which is after the cache has met those of an earlier
// daemon's disk. There may be thousands whose engines never come back.
void EventStream::NameSpaces() {
  if (cache_->SizeOfReplay(rows_per_step_).namespaces != known_) FindNewSpaces();
  if (nameless_.empty()) return;
  for (size_t left = std::min(nameless_.size(), kNamesPerStep); left > 0; --left) {
    const NamespaceId id = nameless_.front();
    nameless_.pop_front();
    if (!GiveName(id)) nameless_.push_back(id);
  }
  for (auto& [text, topic] : topics_) Publish(&topic);
}

void EventStream::FindNewSpaces() {
  known_ = cache_->SizeOfReplay(rows_per_step_).namespaces;
  spaces_.resize(cache_->NamespaceCount());
  for (uint32_t i = 0; i < spaces_.size(); ++i) {
    if (spaces_[i].known) continue;
    const NamespaceIdentity& identity = cache_->IdentityOf(NamespaceId(i));
    if (identity.block_bytes == 0) continue;  // the number is free
    spaces_[i].known = true;
    if (MayTell(identity.tenant)) nameless_.emplace_back(i);
  }
}

bool EventStream::GiveName(NamespaceId id) {
  const NamespaceIdentity& identity = cache_->IdentityOf(id);
  const std::optional<Name> name = name_of_(identity);
  if (!name) return false;
  Topic* const topic = TopicOf(identity.tenant, name->model);
  if (topic == nullptr) {
    ++counters_.untold;
    return true;
  }
  spaces_[id.value].topic = topic;
  spaces_[id.value].group = name->group;
  waiting_.push_back(id);
  return true;
}

EventStream::Topic* EventStream::TopicOf(const std::string& tenant, const std::string& model) {
  const std::string text = fmt::format("kv@{}@{}", config_.pod, model);
  if (const auto known = topics_.find(text); known != topics_.end()) return &known->second;
  uint32_t& count = topic_counts_[tenant];
  if (count == kMaxTopicsPerTenant) return nullptr;
  ++count;
  Topic& topic = topics_[text];
  // Batches that an earlier daemon published under this topic hold no longer.
  topic.text = std::make_shared<const std::string>(text);
  topic.batch.AddCleared();
  return &topic;
}

void EventStream::PublishPart() {
  if (walking_.empty()) {
    walking_.swap(waiting_);
    for (const NamespaceId id : walking_) spaces_[id.value].walking = true;
  }
  if (walking_.empty()) return;
  Collector collector(this, Collector::Of::kWalking);
  cursor_ = cache_->ReplayEvents(cursor_, rows_per_step_, &collector);
  counters_.stored += collector.blocks();
  for (const Topic* const topic : collector.topics()) {
    ring_.Add(topic->text, collector.Take(topic).Take(config_.format, clock_.WallMs()));
    ++counters_.batches;
    changed_();
  }
  if (cursor_ != Cache::kReplayEnd) return;
  cursor_ = 0;
  for (const NamespaceId id : walking_) spaces_[id.value].walking = false;
  walking_.clear();
}

std::optional<EventStream::Snapshot> EventStream::BeginSnapshot(Numbers numbers) {
  // The snapshot covers all events so far.
  for (auto& [text, topic] : topics_) Publish(&topic);
  if (topics_.empty()) return std::nullopt;
  Snapshot snapshot;
  for (const auto& [text, topic] : topics_) snapshot.topics_.push_back(&topic);
  const Cache::ReplaySize size = cache_->SizeOfReplay(rows_per_step_);
  snapshot.rows_ = size.rows;
  const uint64_t batches = snapshot.topics_.size() * (1 + size.steps);
  if (numbers == Numbers::kNew) {
    ring_.AddRun(batches, snapshot.topics_.front()->text,
                 EventBatch().Take(config_.format, clock_.WallMs()));
    changed_();
  }
  snapshot.next_ = ring_.next() - batches;
  snapshot.last_ = ring_.next() - 1;
  return snapshot;
}

std::vector<PublishedBatch> EventStream::Continue(Snapshot* snapshot) const {
  KVT_CHECK(!snapshot->finished());
  const bool clears = !std::exchange(snapshot->cleared_, true);
  Collector collector(this, Collector::Of::kAll);
  if (!clears && !snapshot->told()) {
    snapshot->cursor_ = cache_->ReplayEvents(snapshot->cursor_, rows_per_step_, &collector);
  }
  std::vector<PublishedBatch> batches;
  for (const Topic* const topic : snapshot->topics_) {
    EventBatch batch = collector.Take(topic);
    if (clears) batch.AddCleared();
    // Blocks that got token ids meanwhile may have taken more steps than were reckoned.
    if (batch.empty() && snapshot->next_ > snapshot->last_) continue;
    const uint64_t number = std::min(snapshot->next_, snapshot->last_);
    ++snapshot->next_;
    batches.push_back(
        {number, topic->text,
         std::make_shared<const std::string>(batch.Take(config_.format, clock_.WallMs()))});
  }
  return batches;
}

}  // namespace kvtier
