// SPDX-License-Identifier: Apache-2.0
// Makes one row of numbered batches of the tiers' events, each under the topic of a model.
//
// A tenant's blocks are told only if the configuration says so. A model's blocks are told once an
// engine has named the model: the blocks that are cached by then come first. So the batches from
// the first on always add up to the blocks that the tiers hold, topic by topic. Clients choose
// names, and each topic makes work for as long as the daemon runs: so there are only so many.
//
// Routers drop batches whose numbers do not rise, and ask for those that they miss. So the first
// number of a life is the microseconds since the Unix epoch when it begins, more than an earlier
// life gave; a snapshot takes new numbers, under which other routers hear empty batches.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "daemon/config/config.h"
#include "daemon/events/event_batch.h"
#include "daemon/events/event_report.h"
#include "daemon/events/event_ring.h"
#include "tiers/cache.h"
#include "tiers/state/block_event_sink.h"

namespace kvtier {

// Event loop only.
class EventStream final : public BlockEventSink {
  struct Topic;

 public:
  // Rows of the directory that one step of a walk looks at: well under a millisecond.
  static constexpr uint32_t kRowsPerStep = 1024;
  // Topics that a tenant's models are the first of. Nothing is told of its models of other names.
  static constexpr uint32_t kMaxTopicsPerTenant = 64;

  // The name by which a router knows a namespace.
  struct Name {
    std::string model;
    std::optional<uint32_t> group;  // as EventBatch::AddStored
  };
  // Nothing if no engine has named the model yet.
  using NameOf = std::function<std::optional<Name>(const NamespaceIdentity&)>;

  // `clock` is borrowed. `changed` is called when there is something to publish, or a new batch; it
  // must not call the stream.
  EventStream(EventsConfig config, const Clock* clock, NameOf name_of,
              std::function<void()> changed, uint32_t rows_per_step = kRowsPerStep);

  // Before any call but those of the sink. `cache` is borrowed.
  void SetCache(const Cache* cache) { cache_ = cache; }

  void BlockStored(const StoredBlock& block) override;
  void BlockRemoved(const BlockKey& key, Tier tier) override;
  // Nothing that was published before can be had again: a router that is behind gets a snapshot.
  void TokenIdsErased() override;

  // Publishes new events, and a part of the cached blocks of models that have got their names.
  // Returns whether there is more to publish now. Call soon after something has happened, and now
  // and then.
  bool Work();
  [[nodiscard]] const EventRing& ring() const { return ring_; }
  [[nodiscard]] const EventCounters& counters() const { return counters_; }

  // All cached blocks, in steps: first a clearance of all topics, then the stored blocks. A router
  // that applies its batches and then those published after it began knows all blocks of the tiers.
  // Its numbers rise by one, up to that before the first of those. How many there will be is
  // reckoned when it begins, and the last batches may be empty.
  class Snapshot {
   public:
    [[nodiscard]] bool finished() const { return told() && next_ > last_; }

   private:
    friend class EventStream;
    [[nodiscard]] bool told() const { return cursor_ >= rows_; }

    std::vector<const Topic*> topics_;  // all that there were when it began
    uint64_t next_ = 0;
    uint64_t last_ = 0;
    uint64_t cursor_ = 0;
    uint64_t rows_ = 0;  // blocks of later ones were published since
    bool cleared_ = false;
  };
  enum class Numbers : uint8_t {
    kNew,  // above all that a router can have seen
    kOld,  // those of the last batches, for who asks: it takes any, and others must not notice
  };
  // Nothing before the first batch is published: there is nothing to tell.
  [[nodiscard]] std::optional<Snapshot> BeginSnapshot(Numbers numbers);
  // REQUIRES: not finished.
  [[nodiscard]] std::vector<PublishedBatch> Continue(Snapshot* snapshot) const;

 private:
  struct Topic {
    std::shared_ptr<const std::string> text;
    EventBatch batch;
  };
  struct Space {
    Topic* topic = nullptr;  // null: no router hears of it, or not yet
    std::optional<uint32_t> group;
    bool known = false;    // it is, or was, one of `nameless_`
    bool walking = false;  // it is one of `walking_`
  };
  class Collector;

  // Null if the namespace is not told of.
  [[nodiscard]] const Space* SpaceOf(NamespaceId id) const;
  void NameSpaces();
  void FindNewSpaces();
  // False: no engine has named the model.
  [[nodiscard]] bool GiveName(NamespaceId id);
  // Null if the tenant has as many topics as it may.
  [[nodiscard]] Topic* TopicOf(const std::string& tenant, const std::string& model);
  void PublishPart();
  void Publish(Topic* topic);
  void NoteAdded(Topic* topic);
  [[nodiscard]] bool MayTell(const std::string& tenant) const;

  const EventsConfig config_;
  const Clock& clock_;
  const NameOf name_of_;
  const std::function<void()> changed_;
  const uint32_t rows_per_step_;
  const Cache* cache_ = nullptr;
  EventRing ring_;
  EventCounters counters_;
  std::map<std::string, Topic, std::less<>> topics_;           // by text; rows stay where they are
  std::map<std::string, uint32_t, std::less<>> topic_counts_;  // by the tenant of the first model
  std::vector<Space> spaces_;                                  // by NamespaceId
  size_t known_ = 0;                                           // so many of them are not free
  std::deque<NamespaceId> nameless_;                           // those that may get a name
  // The cached blocks of these are being published, from `cursor_` on, and those of the others once
  // that is done: one walk over the directory is for all that got their names meanwhile.
  std::vector<NamespaceId> walking_;
  std::vector<NamespaceId> waiting_;
  uint64_t cursor_ = 0;
};

}  // namespace kvtier
