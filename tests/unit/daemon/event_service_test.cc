// SPDX-License-Identifier: Apache-2.0
// Routers over real sockets, with a cache whose loop and devices are fakes.
#include "daemon/events/event_service.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/metrics/http_server.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/daemon/event_client.h"
#include "tests/unit/daemon/event_reader.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

constexpr const char* kTopic = "kv@pod@model";

class EventServiceTest : public CacheTest {
 protected:
  ~EventServiceTest() override {
    cache_.reset();
    service_.reset();
  }

  void Open(const std::function<void(EventsConfig*)>& adjust = {}) {
    EventsConfig config{.endpoint = "ipc://" + (directory_.path() / "events").string(),
                        .replay_endpoint = "ipc://" + (directory_.path() / "replay").string(),
                        .pod = "pod",
                        .tenants = {"tenant"},
                        .format = EventFormat::kVllmBytes};
    if (adjust) adjust(&config);
    service_ = std::make_unique<EventService>(
        config, &loop_, &clock_, &log_,
        [](const NamespaceIdentity&) {
          return EventStream::Name{"model", std::nullopt};
        },
        owner_of_);
    Start({.events = service_->sink()});
    const Status listening = service_->Listen(cache_.get());
    ASSERT_TRUE(listening) << listening.error().ToString();
    first_ = service_->Report().next_sequence;
    service_->Tick();
  }
  // Runs the loop until it holds; the test's own time limit ends it if it never does.
  void WaitFor(const std::function<bool()>& holds) {
    Timer again(&loop_);
    std::function<void()> tick = [&] { again.Start(1, tick); };
    tick();
    loop_.RunUntil(holds);
  }
  EventClient::Message Next(EventClient* client) {
    std::optional<EventClient::Message> message;
    WaitFor([&] { return (message = client->Receive()).has_value(); });
    return *message;
  }
  // Reads batches until the view is that of the cache.
  void WaitForListing(EventClient* client, RouterView* view) {
    RouterView::Blocks listed;
    for (const BlockRecord& block : cache_->Walk(0, UINT32_MAX, UINT32_MAX, {}).blocks) {
      for (const Tier tier : {Tier::kPool, Tier::kHost, Tier::kDisk}) {
        if (!block.presence.in(tier)) continue;
        listed.emplace(block.key.hash.Hex(), MediumName(tier, EventFormat::kVllm));
      }
    }
    WaitFor([&] {
      while (const auto message = client->Receive()) {
        EXPECT_EQ(message->size(), 3u);
        view->Apply(message->at(0), message->at(2));
      }
      return view->BlocksOf(kTopic) == listed;
    });
  }
  void WaitForSubscribers(uint64_t count) {
    WaitFor([&] { return service_->Report().subscribers == count; });
  }

  TestDirectory directory_;
  FakeClock clock_;
  Log log_{LogConfig{.level = LogLevel::kError}};
  EventLoop loop_;
  std::unique_ptr<EventService> service_;
  // Loopback's addresses stand for hosts.
  EventService::OwnerOf owner_of_ = [](const std::string& address) { return address; };
  uint64_t first_ = 0;
};

TEST_F(EventServiceTest, ASubscriberLearnsWhatThereIsAndThenWhatHappens) {
  Open();
  Put(Sequence(1, 3));
  EventClient router(service_->Report().endpoint, "SUB");
  router.Subscribe("kv@");
  RouterView view;
  WaitForListing(&router, &view);
  EXPECT_GE(view.BlocksOf(kTopic).size(), 3u);
  Put(Sequence(2, 3));
  WaitForListing(&router, &view);
}

TEST_F(EventServiceTest, SendsTopicNumberAndPayload) {
  Open();
  EventClient router(service_->Report().endpoint, "SUB");
  router.Subscribe("kv@pod@");
  WaitFor([&] { return service_->Report().peers.snapshots == 1; });
  const uint64_t next = service_->Report().next_sequence;
  Put(Sequence(1, 1));
  EventClient::Message message = Next(&router);
  // The snapshot bears earlier numbers.
  while (message.size() == 3 && SequenceOf(message[1]) < next) message = Next(&router);
  ASSERT_EQ(message.size(), 3u);
  EXPECT_EQ(message[0], kTopic);
  EXPECT_EQ(SequenceOf(message[1]), next);
  EXPECT_EQ(ReadMsgpack(message[2]).at(1).at(0).at("type"), "BlockStored");
}

TEST_F(EventServiceTest, SendsNothingOfOtherTopicsNorAfterACancel) {
  Open();
  EventClient other(service_->Report().endpoint, "SUB");
  other.Subscribe("kv@elsewhere");
  EventClient all(service_->Report().endpoint, "SUB");
  all.Subscribe("");
  WaitForSubscribers(2);
  RouterView view;
  Put(Sequence(1, 2));
  WaitForListing(&all, &view);
  EXPECT_FALSE(other.Receive());
  all.Cancel("");
  WaitForSubscribers(1);
}

TEST_F(EventServiceTest, AnswersARequestWithWhatWasPublishedAndAnEndMarker) {
  Open();
  Put(Sequence(1, 3));
  EventClient router(service_->Report().endpoint, "SUB");
  router.Subscribe("");
  RouterView view;
  WaitForListing(&router, &view);
  EventClient asker(service_->Report().replay_endpoint, "REQ");
  asker.Request(first_);
  RouterView replayed;
  for (uint64_t expected = first_;; ++expected) {
    const EventClient::Message message = Next(&asker);
    ASSERT_EQ(message.size(), 4u);
    EXPECT_EQ(message[0], "");
    if (SequenceOf(message[2]) == UINT64_MAX) {
      EXPECT_EQ(message[1], "");
      EXPECT_EQ(message[3], "");
      EXPECT_EQ(expected, service_->Report().next_sequence);
      break;
    }
    EXPECT_EQ(SequenceOf(message[2]), expected);
    replayed.Apply(message[1], message[3]);
  }
  EXPECT_EQ(replayed.topics(), view.topics());
}

TEST_F(EventServiceTest, ARequestForWhatIsToComeIsAnsweredByTheEndMarkerAlone) {
  Open();
  EventClient asker(service_->Report().replay_endpoint, "DEALER");
  asker.Request(service_->Report().next_sequence);
  const EventClient::Message message = Next(&asker);
  ASSERT_EQ(message.size(), 4u);
  EXPECT_EQ(SequenceOf(message[2]), UINT64_MAX);
}

TEST_F(EventServiceTest, ServesTcpOnAPortOfItsChoice) {
  Open([](EventsConfig* config) { config->endpoint = "tcp://127.0.0.1:0"; });
  EXPECT_NE(service_->Report().endpoint, "tcp://127.0.0.1:0");
  EventClient router(service_->Report().endpoint, "XSUB");
  router.Subscribe("");
  RouterView view;
  Put(Sequence(1, 2));
  WaitForListing(&router, &view);
}

TEST_F(EventServiceTest, ARouterThatReadsNothingHoldsUpNoOther) {
  Open([](EventsConfig* config) { config->buffer_steps = 4; });
  EventClient silent(service_->Report().endpoint, "SUB");
  silent.Subscribe("");
  EventClient router(service_->Report().endpoint, "SUB");
  router.Subscribe("");
  WaitForSubscribers(2);
  RouterView view;
  for (uint64_t stream = 0; stream < 50; ++stream) {
    Put(Sequence(stream, 4));
    WaitForListing(&router, &view);
  }
  RouterView late;
  WaitForListing(&silent, &late);
}

TEST_F(EventServiceTest, AnswersPings) {
  Open();
  EventClient router(service_->Report().endpoint, "SUB");
  router.SendFrame(4, std::string("\x04PING\0\0context", 14));
  router.Subscribe("");
  Put(Sequence(1, 1));
  RouterView view;
  WaitForListing(&router, &view);
  EXPECT_EQ(service_->Report().peers.refused, 0u);
}

TEST_F(EventServiceTest, EndsConnectionsThatBreachTheProtocol) {
  Open();
  const std::vector<std::function<void(EventClient*)>> breaches = {
      [](EventClient* client) { client->SendFrame(0, "\x02topic"); },
      [](EventClient* client) { client->SendFrame(1, "\x01topic"); },
      [](EventClient* client) { client->SendFrame(0, ""); },
      [](EventClient* client) { client->SendFrame(4, "\x20x"); },
      [](EventClient* client) { client->SendFrame(4, std::string("\x04PING\0", 6)); },
      [](EventClient* client) { client->SendRaw("\x02\xff\xff\xff\xff\xff\xff\xff\xff"); },
      [](EventClient* client) {
        for (int i = 0; i < 100; ++i) client->Subscribe(std::to_string(i));
      },
  };
  for (const auto& breach : breaches) {
    EventClient client(service_->Report().endpoint, "SUB");
    breach(&client);
    WaitFor([&] { return client.ended(); });
  }
  EventClient wrong_type(service_->Report().endpoint, "PULL");
  WaitFor([&] { return wrong_type.ended(); });
  EXPECT_EQ(service_->Report().peers.refused, breaches.size() + 1);
  WaitForSubscribers(0);
}

TEST_F(EventServiceTest, EndsConnectionsWithRequestsThatAreNone) {
  Open();
  const std::vector<std::function<void(EventClient*)>> breaches = {
      [](EventClient* client) { client->SendFrame(0, "12345678"); },
      [](EventClient* client) { client->SendFrame(1, "12345678"); },
      [](EventClient* client) {
        client->SendFrame(1, "");
        client->SendFrame(0, "123456789");
      },
      [](EventClient* client) {
        client->SendFrame(1, "");
        client->SendFrame(1, "12345678");
      },
  };
  for (const auto& breach : breaches) {
    EventClient client(service_->Report().replay_endpoint, "REQ");
    breach(&client);
    WaitFor([&] { return client.ended(); });
  }
  EXPECT_EQ(service_->Report().peers.refused, breaches.size());
  EXPECT_EQ(service_->Report().peers.replays, 0u);
}

// As if something were published after each event.
TEST_F(EventServiceTest, ReplaysOfManyConnectionsTakeTurns) {
  Open();
  for (uint64_t i = 0; i < 50; ++i) {
    Put(Sequence(i, 1));
    service_->Tick();
  }
  const uint64_t batches = service_->Report().next_sequence - first_;
  ASSERT_GE(batches, 50u);
  std::vector<std::unique_ptr<EventClient>> askers;
  for (size_t i = 0; i < EventService::kMaxPeers; ++i) {
    askers.push_back(std::make_unique<EventClient>(service_->Report().replay_endpoint, "DEALER"));
    askers.back()->Request(first_);
  }
  uint64_t sent = 0, most = 0;
  loop_.RunUntil([&] {
    service_->Tick();
    const uint64_t before = sent;
    for (const auto& asker : askers) {
      while (asker->Receive()) ++sent;
    }
    most = std::max(most, sent - before);
    return sent == askers.size() * (batches + 1);
  });
  EXPECT_LE(most, 16u);
}

class FullEventServiceTest : public EventServiceTest {
 protected:
  void SetUp() override {
    Open([](EventsConfig* config) { config->endpoint = "tcp://127.0.0.1:0"; });
  }
  // Connects as many as fit, each from one of `hosts` addresses in turn.
  void Fill(size_t hosts, const std::function<void(EventClient*)>& then) {
    for (size_t i = 0; i < EventService::kMaxPeers; ++i) {
      const std::string from = fmt::format("127.0.0.{}", 10 + i % hosts);
      others_.push_back(std::make_unique<EventClient>(service_->Report().endpoint, "SUB", from));
      then(others_.back().get());
    }
  }
  [[nodiscard]] size_t Ended() {
    return static_cast<size_t>(
        std::ranges::count_if(others_, [](const auto& each) { return each->ended(); }));
  }
  void ExpectServed(EventClient* router) {
    router->Subscribe("");
    Put(Sequence(++puts_, 2));
    RouterView view;
    WaitForListing(router, &view);
  }

  // Puts what all others read at once.
  void PutForOthers() {
    const uint64_t next = service_->Report().next_sequence;
    Put(Sequence(++puts_, 8));
    WaitFor([&] { return service_->Report().next_sequence > next; });
    for (const auto& other : others_) {
      while (other->Receive()) {
      }
    }
  }

  std::vector<std::unique_ptr<EventClient>> others_;
  uint64_t puts_ = 0;
};

TEST_F(FullEventServiceTest, ClosesOneMoreIfAllOthersReadAndAreOfManyHosts) {
  Fill(8, [](EventClient* client) { client->Subscribe(""); });
  WaitForSubscribers(EventService::kMaxPeers);
  EventClient one_more(service_->Report().endpoint, "SUB", "127.0.0.99");
  WaitFor([&] { return one_more.ended(); });
  EXPECT_EQ(Ended(), 0u);
  others_.pop_back();
  WaitForSubscribers(EventService::kMaxPeers - 1);
  EventClient admitted(service_->Report().endpoint, "SUB", "127.0.0.99");
  ExpectServed(&admitted);
}

TEST_F(FullEventServiceTest, OneThatSubscribedToNothingMakesRoom) {
  Fill(8, [](EventClient*) {});
  EventClient router(service_->Report().endpoint, "SUB", "127.0.0.99");
  ExpectServed(&router);
  WaitFor([&] { return Ended() == 1; });
}

TEST_F(FullEventServiceTest, TheYoungestOfAHostWithMoreThanItsShareMakesRoom) {
  Fill(1, [](EventClient* client) { client->Subscribe(""); });
  WaitForSubscribers(EventService::kMaxPeers);
  EventClient router(service_->Report().endpoint, "SUB", "127.0.0.99");
  ExpectServed(&router);
  WaitFor([&] { return Ended() == 1; });
  EXPECT_TRUE(others_.back()->ended());
}

TEST_F(FullEventServiceTest, AnOldRouterStaysWhileOthersOfItsHostComeAndGo) {
  Fill(1, [](EventClient* client) { client->Subscribe(""); });
  WaitForSubscribers(EventService::kMaxPeers);
  for (int i = 0; i < 20; ++i) {
    EventClient one_more(service_->Report().endpoint, "SUB", "127.0.0.10");
    WaitFor([&] { return one_more.ended() || Ended() > 0; });
    ASSERT_EQ(Ended(), 0u);
  }
}

class EventServiceOfOneProcessTest : public FullEventServiceTest {
 protected:
  EventServiceOfOneProcessTest() {
    owner_of_ = [](const std::string& address) {
      return address == "127.0.0.99" ? "another host" : HttpOwnerOf(address);
    };
  }
};

TEST_F(EventServiceOfOneProcessTest, ManyAddressesOfLoopbackKeepNoOtherHostOut) {
  Fill(8, [](EventClient* client) { client->Subscribe(""); });
  WaitForSubscribers(EventService::kMaxPeers);
  EventClient router(service_->Report().endpoint, "SUB", "127.0.0.99");
  ExpectServed(&router);
  WaitFor([&] { return Ended() == 1; });
}

TEST_F(FullEventServiceTest, OneThatReadsNothingMakesRoomAfterSeconds) {
  Fill(8, [](EventClient* client) { client->Subscribe(""); });
  WaitForSubscribers(EventService::kMaxPeers);
  const std::unique_ptr<EventClient> silent = std::move(others_.back());
  others_.pop_back();
  // The kernel keeps more or less of them for a connection.
  for (bool made = false; !made;) {
    for (int i = 0; i < 20; ++i) PutForOthers();
    EventClient early(service_->Report().endpoint, "SUB", "127.0.0.99");
    WaitFor([&] { return early.ended(); });
    clock_.Advance(EventService::kUnreadMs + 1);
    EventClient router(service_->Report().endpoint, "SUB", "127.0.0.99");
    WaitFor([&] {
      made = service_->Report().subscribers < EventService::kMaxPeers;
      return made || router.ended();
    });
    if (made) ExpectServed(&router);
  }
  EXPECT_EQ(Ended(), 0u);
}

// Each snapshot has the others read two empty batches.
TEST_F(FullEventServiceTest, OneThatSubscribesAgainAndAgainHasItsShareOfSnapshots) {
  constexpr uint64_t kTimes = 100;
  EventClient greedy(service_->Report().endpoint, "SUB", "127.0.0.10");
  for (uint64_t i = 0; i < kTimes; ++i) {
    greedy.Subscribe("");
    WaitForSubscribers(1);
    greedy.Cancel("");
    WaitForSubscribers(0);
  }
  EXPECT_LT(service_->Report().next_sequence - first_, kTimes);
  EventClient router(service_->Report().endpoint, "SUB", "127.0.0.99");
  ExpectServed(&router);
  clock_.Advance(SnapshotShares::kAtOnce * SnapshotShares::kEachMs);
  ExpectServed(&greedy);
}

TEST_F(EventServiceTest, SaysWhichAddressIsTaken) {
  Open([](EventsConfig* config) { config->endpoint = "tcp://127.0.0.1:0"; });
  EventsConfig taken{.endpoint = service_->Report().endpoint};
  EventService second(
      taken, &loop_, &clock_, &log_, [](const NamespaceIdentity&) { return std::nullopt; },
      owner_of_);
  const Status listening = second.Listen(cache_.get());
  ASSERT_FALSE(listening);
  EXPECT_EQ(listening.error().reason, "EADDRINUSE");
}

}  // namespace
}  // namespace kvtier
