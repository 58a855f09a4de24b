// SPDX-License-Identifier: Apache-2.0
// An administrator's question about a daemon that knows many models takes many short events.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>
#include <memory>
#include <string>

#include "daemon/admin/admin_operations.h"
#include "daemon/admin/admin_request.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/session/models.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

namespace json = boost::json;

constexpr uint32_t kModels = 20'000;
constexpr uint32_t kHashes = 800;
// One event looks for so many hashes at most, twice over: a look takes some ten nanoseconds.
constexpr uint64_t kLooksPerEvent = 2 * 8192;

class AdminCalls : public CacheTest {
 protected:
  struct Answer {
    std::string reply;
    std::string error;
    uint64_t events = 0;
  };
  class Call final : public AdminCall {
   public:
    explicit Call(Answer* answer) : answer_(*answer) {}
    void Progress(std::string) override {}
    void Reply(std::string json) override { answer_.reply = std::move(json); }
    void Fail(const Error& error) override { answer_.error = error.reason; }
    [[nodiscard]] bool cancelled() const override { return false; }

   private:
    Answer& answer_;
  };
  using Make = std::function<Result<std::unique_ptr<AdminOperation>>(
      const OperationBasics&, const ModelRegistry*, const AdminRequestBody&,
      std::shared_ptr<AdminCall>)>;

  // `meanwhile` is called after each event but the first few.
  Answer Ask(const Make& make, const AdminRequestBody& request,
             const std::function<void()>& meanwhile = {}) {
    EventLoop loop;
    Answer answer;
    const OperationBasics basics{.cache = cache_.get(), .loop = &loop, .clock = &machine_->clock};
    auto operation = make(basics, &models_, request, std::make_shared<Call>(&answer));
    if (!operation) return {.error = operation.error().reason};
    (*operation)->Run();
    if ((*operation)->ended()) return answer;
    loop.RunUntil([&] {
      if (++answer.events >= 3 && meanwhile) meanwhile();
      return (*operation)->ended();
    });
    return answer;
  }

  ModelRegistry models_{64, 16};
};

class AdminWork : public AdminCalls {
 protected:
  AdminWork() {
    Start();
    for (uint32_t i = 0; i < kModels; ++i) {
      NamespaceIdentity identity = Identity("tenant", 2);
      identity.model.bytes[0] = static_cast<uint8_t>(i);
      identity.model.bytes[1] = static_cast<uint8_t>(i >> 8);
      const auto region = cache_->OpenRegion(kAlice, identity,
                                             {.lent = {.bytes = kBlockBytes},
                                              .blocks = 1,
                                              .block_tokens = kBlockTokens,
                                              .pieces = {{0, kBlockBytes, kBlockBytes}}});
      EXPECT_TRUE(region) << region.error().ToString();
      cache_->CloseRegion(*region, [] {});
    }
  }
  static AdminRequestBody OfManyHashes() {
    AdminRequestBody request;
    for (uint32_t i = 0; i < kHashes; ++i) request.hashes.push_back(TestHash(7, i));
    return request;
  }
};

TEST_F(AdminWork, EvictionsAreMadeInShortSteps) {
  Put(Sequence(7, 4));
  const Answer answer = Ask(MakeEviction, OfManyHashes());
  const json::value reply = json::parse(answer.reply);
  EXPECT_EQ(reply.at("evicted"), 4);
  EXPECT_EQ(reply.at("absent"), kHashes - 4);
  EXPECT_GE(answer.events, uint64_t{kModels} * kHashes / kLooksPerEvent);
}

TEST_F(AdminWork, PinsAreMadeInShortSteps) {
  Put(Sequence(7, 4));
  AdminRequestBody request = OfManyHashes();
  request.ttl_ms = 60'000;
  const Answer answer = Ask(MakePinning, request);
  EXPECT_EQ(json::parse(answer.reply).at("blocks"), 4) << answer.error;
  EXPECT_GE(answer.events, uint64_t{kModels} * kHashes / kLooksPerEvent);
}

TEST_F(AdminWork, AnInspectionIsMadeInShortSteps) {
  Put(Sequence(7, 4));
  const Answer answer = Ask(MakeInspection, {.hashes = {TestHash(7, 0)}});
  EXPECT_EQ(json::parse(answer.reply).at("blocks").as_array().size(), 1u);
  EXPECT_GE(answer.events, kModels / kLooksPerEvent);
}

TEST_F(AdminWork, AListingNamesTheModelsOfItsBlocksAlone) {
  Put(Sequence(7, 4));
  const json::value reply = json::parse(Ask(MakeListing, {}).reply);
  EXPECT_EQ(reply.at("blocks").as_array().size(), 4u);
  ASSERT_EQ(reply.at("namespaces").as_array().size(), 1u);
  for (const json::value& block : reply.at("blocks").as_array()) {
    const auto name_space = block.at("namespace").to_number<size_t>();
    EXPECT_EQ(reply.at("namespaces").at(name_space).at("tenant"), "tenant");
  }
}

TEST_F(AdminWork, AListingOfOneModelFindsItAmongMany) {
  Put(Sequence(7, 4));
  const std::string model = Identity("tenant", 1).model.Hex();
  const Answer answer = Ask(MakeListing, {.model = model});
  EXPECT_EQ(json::parse(answer.reply).at("blocks").as_array().size(), 4u);
  EXPECT_GE(answer.events, kModels / kLooksPerEvent);
  EXPECT_EQ(json::parse(Ask(MakeListing, {.model = "beef"}).reply).at("blocks").as_array().size(),
            0u);
}

TEST_F(AdminWork, AModelIsForgottenAmongMany) {
  Put(Sequence(7, 4));
  const Answer answer = Ask(MakeForgetting, {.model = Identity("tenant", 1).model.Hex()});
  EXPECT_EQ(json::parse(answer.reply).at("evicted"), 4);
  EXPECT_EQ(Ask(MakeForgetting, {.model = "beef"}).error, "unknown_model");
}

// A daemon has just started, and half of the arena that the last one left is not ready yet.
class AdminDuringAdoption : public AdminCalls {
 protected:
  static constexpr size_t kBlocks = 10;

  explicit AdminDuringAdoption(uint32_t disk_slots = 0) {
    Start({.host_slots_ready = 8, .keep_host = true, .disk_slots = disk_slots});
    machine_->arena->Grow(kSlabBytes);
    Put(Sequence(7, kBlocks));
    EvictFromPool();
    cache_.reset();
    machine_->Crash(FakeMachine::HostMemory::kKept);
    cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), machine_->Snapshot());
  }
  Answer AskWhileTheArenaGrows(const Make& make, const AdminRequestBody& request) {
    return Ask(make, request, [this] {
      if (machine_->arena->growing()) machine_->arena->Grow(kSlabBytes);
      machine_->loop.RunAll();
    });
  }
};

TEST_F(AdminDuringAdoption, AModelIsForgottenWithWhatIsStillToBeAdopted) {
  const Answer answer =
      AskWhileTheArenaGrows(MakeForgetting, {.model = Identity("tenant", 1).model.Hex()});
  ASSERT_EQ(answer.error, "");
  EXPECT_EQ(json::parse(answer.reply).at("evicted"), kBlocks);
  EXPECT_EQ(cache_->Gauges().entries, 0u);
}

// Their model is not known yet, either.
TEST_F(AdminDuringAdoption, BlocksAreEvictedThatAreStillToBeAdopted) {
  const Answer answer = AskWhileTheArenaGrows(MakeEviction, {.hashes = Sequence(7, kBlocks)});
  EXPECT_EQ(json::parse(answer.reply).at("evicted"), kBlocks);
  EXPECT_EQ(cache_->Gauges().entries, 0u);
}

TEST_F(AdminDuringAdoption, BlocksArePinnedThatAreStillToBeAdopted) {
  const Answer answer =
      AskWhileTheArenaGrows(MakePinning, {.hashes = Sequence(7, 4), .ttl_ms = 60'000});
  EXPECT_EQ(json::parse(answer.reply).at("blocks"), 4) << answer.error;
}

TEST_F(AdminDuringAdoption, ATenantIsErasedThatOnlyBlocksToBeAdoptedTellOf) {
  const Config config;
  Log log(config.log);
  const Make make = [&](const OperationBasics& basics, const ModelRegistry*,
                        const AdminRequestBody& request, std::shared_ptr<AdminCall> call) {
    return MakeErasure(basics, &config, &log, request, std::move(call));
  };
  const Answer answer = AskWhileTheArenaGrows(make, {.tenant = "tenant", .without_proof = true});
  ASSERT_EQ(answer.error, "");
  EXPECT_EQ(json::parse(answer.reply).at("blocks").at("host"), kBlocks);
  EXPECT_EQ(AskWhileTheArenaGrows(make, {.tenant = "tennat"}).error, "unknown_tenant");
}

TEST_F(AdminDuringAdoption, AListingOfAllHasWhatIsStillToBeAdopted) {
  machine_->loop.RunAll();
  const auto listed = [](const Answer& answer) {
    return json::parse(answer.reply).at("blocks").as_array().size();
  };
  EXPECT_LT(listed(Ask(MakeListing, {})), kBlocks) << "one to look at waits for nothing";
  EXPECT_EQ(listed(AskWhileTheArenaGrows(MakeListing, {.all = true})), kBlocks);
}

class DrainDuringAdoption : public AdminDuringAdoption {
 protected:
  DrainDuringAdoption() : AdminDuringAdoption(/*disk_slots=*/32) {}
};

TEST_F(DrainDuringAdoption, TellsAtItsDeadlineWhatWasNotLookedAt) {
  machine_->loop.RunAll();
  EventLoop loop;
  Answer answer;
  const Config config{.drain = {.deadline_ms = 1}};
  ServiceManager manager;
  AdminOperations operations(
      {.basics = {.cache = cache_.get(), .loop = &loop, .clock = &machine_->clock},
       .config = &config,
       .manager = &manager});
  operations.Start(R"({"op":"drain_before_stop"})", std::make_shared<Call>(&answer));
  machine_->clock.Advance(1);
  loop.RunUntil([&] { return !answer.reply.empty(); });
  EXPECT_GE(json::parse(answer.reply).at("left").to_number<uint64_t>(), kBlocks);
}

}  // namespace
}  // namespace kvtier
