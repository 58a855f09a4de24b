// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <functional>
#include <set>
#include <vector>

#include "daemon/admin/admin_operation.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/daemon/daemon_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"
#include "tiers/storage/disk_directory.h"

namespace kvtier {
namespace {

namespace json = boost::json;

class Admin : public testing::Test {
 protected:
  explicit Admin(const std::function<void(Config*)>& adjust = {})
      : daemon_(directory_.path(), adjust) {
    EXPECT_TRUE(daemon_.status()) << daemon_.status().error().ToString();
  }

  // The reply to `request`, past its progress.
  json::value Ask(WireClient* admin, const std::string& request) {
    admin->Send(wire::AdminRequest{request});
    while (true) {
      const auto received = admin->Receive();
      if (received && received->Is(wire::MessageType::kAdminProgress)) {
        progress_.push_back(
            json::parse(wire::Decode<wire::AdminProgress>(received->payload).value().json));
        continue;
      }
      if (!received || !received->Is(wire::MessageType::kAdminReply)) {
        ADD_FAILURE() << "no reply to " << request;
        return {};
      }
      return json::parse(wire::Decode<wire::AdminReply>(received->payload).value().json);
    }
  }
  json::value Ask(const std::string& request) {
    WireClient admin(daemon_.admin_socket());
    return Ask(&admin, request);
  }

  std::string ErrorOf(const std::string& request) {
    WireClient admin(daemon_.admin_socket());
    return admin.ErrorOf(wire::AdminRequest{request});
  }

  TestDirectory directory_;
  DaemonUnderTest daemon_;
  std::vector<json::value> progress_;
};

TEST_F(Admin, StatusShowsTiersSessionsAndReasons) {
  WireClient client(daemon_.socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, 4));
  const json::value status = Ask(R"({"op":"status"})");
  EXPECT_EQ(status.at("schema"), "kvtier.status/1");
  EXPECT_EQ(status.at("pid"), ::getpid());
  EXPECT_EQ(status.at("state"), "serving");
  EXPECT_EQ(status.at("device").at("kind"), "host");
  EXPECT_EQ(status.at("tiers").at("pool").at("capacity_bytes"), 256 * kKiB);
  EXPECT_EQ(status.at("tiers").at("host").at("capacity_bytes"), 2 * kMiB);
  EXPECT_GT(status.at("tiers").at("disk").at("capacity_bytes").to_number<uint64_t>(), 0u);
  EXPECT_EQ(status.at("disk").at("engines").as_array().size(), 1u);
  EXPECT_EQ(status.at("disk").at("degraded"), false);
  const json::value& shown_pool = status.at("pools").at(0);
  EXPECT_EQ(shown_pool.at("tenant"), "default");
  EXPECT_EQ(shown_pool.at("model_name"), "test-model");
  EXPECT_EQ(shown_pool.at("referenced"), 4);
  EXPECT_EQ(status.at("sessions").at("count"), 1);
  EXPECT_EQ(status.at("sessions").at("list").at(0).at("client"), "test");
  EXPECT_EQ(status.at("sessions").at("list").at(0).at("references"), 4);
  EXPECT_EQ(status.at("references"), 4);
  const json::value& stats = status.at("stats");
  EXPECT_EQ(stats.at("commits"), 4);
  EXPECT_EQ(stats.at("misses").as_object().size(), size_t{kMissReasonCount - 1});
  EXPECT_EQ(stats.at("drops").at("disk").as_object().size(), size_t{kDropReasonCount});
  EXPECT_GT(status.at("index").at("entry_bytes").to_number<uint64_t>(), 0u);
}

class AdminOfManyPools : public Admin {
 protected:
  AdminOfManyPools()
      : Admin([](Config* config) {
          config->cache.pool_bytes = 4 * kMiB;
          config->server.max_models_per_tenant = 100;
        }) {}
};

// Else a tenant that makes thousands of pools would hold the event loop with each status.
TEST_F(AdminOfManyPools, StatusListsThePoolsThatHoldTheMost) {
  WireClient client(daemon_.socket());
  (void)client.Hello();
  ModelRecord record = TestModel();
  PoolId last;
  for (record.tensor_parallel_size = 70; record.tensor_parallel_rank < 70;
       ++record.tensor_parallel_rank) {
    const auto model = client.Call<wire::RegisterModelReply>(wire::RegisterModel{record});
    last =
        client.Call<wire::AttachReply>(wire::Attach{.model = model.model, .pool_bytes = 32 * kKiB})
            .pool;
  }
  (void)Fill(&client, last, Hashes(0, 2));
  const json::value status = Ask(R"({"op":"status"})");
  const json::array& pools = status.at("pools").as_array();
  ASSERT_EQ(pools.size(), 64u);
  EXPECT_EQ(pools.at(62).at("referenced"), 0);
  EXPECT_EQ(pools.at(63).at("id"), last.value);
  EXPECT_EQ(pools.at(63).at("referenced"), 2);
  EXPECT_EQ(status.at("pools_unlisted"), 6);
  EXPECT_EQ(status.at("devices").at(0).at("blocks"), 2);
}

class AdminOfManyDistrusted : public Admin {
 protected:
  AdminOfManyDistrusted()
      : Admin([](Config* config) {
          std::vector<NamespaceIdentity> distrusted;
          for (uint8_t i = 0; i < 70; ++i) {
            distrusted.push_back(
                {.tenant = "a", .model = ModelFingerprint{{i}}, .block_bytes = 64});
          }
          distrusted.push_back({.tenant = "b", .model = ModelFingerprint{{9}}, .block_bytes = 64});
          const auto directory = config->disk.Places().front();
          std::filesystem::create_directories(directory);
          EXPECT_TRUE(DistrustMark::Write(directory, distrusted));
        }) {}
};

TEST_F(AdminOfManyDistrusted, StatusListsSomeOfEachTenant) {
  const json::value status = Ask(R"({"op":"status"})");
  const json::array& distrusted = status.at("distrusted").as_array();
  ASSERT_EQ(distrusted.size(), 65u);
  EXPECT_EQ(distrusted.at(63).at("tenant"), "a");
  EXPECT_EQ(distrusted.at(64).at("tenant"), "b");
  EXPECT_EQ(status.at("distrusted_unlisted"), 6);
}

TEST_F(Admin, KeptMemoryIsShownAndReleased) {
  const UniqueFd memory(::memfd_create("kept", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), 8192), 0);
  WireClient client(daemon_.socket());
  (void)client.Hello();
  client.SendWithDescriptors(wire::KeepMemory{.bytes = 8192, .table_bytes = 128},
                             {memory.get(), memory.get()});
  (void)client.Expect<wire::KeepMemoryReply>();
  const json::value status = Ask(R"({"op":"status"})");
  EXPECT_EQ(status.at("kept_memory").at("keep_for_ms"), 10 * kMinuteMs);
  EXPECT_EQ(status.at("kept_memory").at("events").at("kept"), 1);
  const json::value& kept = status.at("kept_memory").at("list").at(0);
  EXPECT_EQ(kept.at("bytes"), 8192);
  EXPECT_EQ(kept.at("device"), "host");
  EXPECT_EQ(kept.at("waiting"), false);
  EXPECT_EQ(kept.at("owner_pid"), ::getpid());
  EXPECT_EQ(Ask(R"({"op":"release_memory"})").at("released"), 0) << "its owner lives";
  const json::value released = Ask(R"({"op":"release_memory","all":true})");
  EXPECT_EQ(released.at("schema"), "kvtier.release_memory/1");
  EXPECT_EQ(released.at("released"), 1);
  EXPECT_EQ(released.at("bytes"), 8192);
}

TEST_F(Admin, ConfigShowsWhatIsInEffect) {
  const json::value config = Ask(R"({"op":"config"})");
  EXPECT_EQ(config.at("pool").at("bytes"), "256KiB");
  EXPECT_EQ(config.at("server").at("max_clients"), 256);
  EXPECT_EQ(config.at("kernels").at("enabled"), true);
}

TEST_F(Admin, DrainPersistsAndVerifyChecks) {
  WireClient client(daemon_.socket());
  const PoolId pool = client.Attach().pool;
  const auto hashes = Hashes(0, 40);
  (void)Fill(&client, pool, hashes);
  const json::value drained = Ask(R"({"op":"drain"})");
  EXPECT_EQ(drained.at("left"), 0);
  const auto lookup = client.Call<wire::LookupReply>(wire::Lookup{.pool = pool, .hashes = hashes});
  for (const uint8_t presence : lookup.presence) {
    EXPECT_TRUE(presence & wire::kPersistedOnDisk);
  }
  const json::value verified = Ask(R"({"op":"verify"})");
  EXPECT_EQ(verified.at("checked"), 40);
  EXPECT_EQ(verified.at("bad"), 0);
  // Payloads and their headers.
  EXPECT_EQ(verified.at("bytes"), 40 * (4096 + 4096));
}

TEST_F(Admin, VerifyNamesAFileThatWasDeletedUnderTheDaemon) {
  EXPECT_FALSE(Ask(R"({"op":"verify"})").as_object().contains("gone"));
  std::filesystem::remove_all(directory_.path() / "disk");
  const json::value verified = Ask(R"({"op":"verify"})");
  EXPECT_EQ(verified.at("gone").as_string().c_str(), directory_.path() / "disk");
  EXPECT_EQ(Ask(R"({"op":"status"})").at("disk").at("degraded"), true);
}

std::string Quoted(const std::vector<BlockHash>& hashes) {
  std::string list;
  for (const BlockHash& hash : hashes) list += (list.empty() ? "\"" : ",\"") + hash.Hex() + "\"";
  return "[" + list + "]";
}

TEST_F(Admin, ListingGoesOnWhereItsCursorPoints) {
  WireClient client(daemon_.socket());
  (void)Fill(&client, client.Attach().pool, Hashes(0, 20));
  std::set<std::string> seen;
  uint64_t cursor = 0;
  for (bool finished = false; !finished;) {
    const json::value reply =
        Ask(R"({"op":"ls","limit":3,"cursor":)" + std::to_string(cursor) + "}");
    EXPECT_EQ(reply.at("schema"), "kvtier.ls/1");
    EXPECT_LE(reply.at("blocks").as_array().size(), 3u);
    for (const json::value& block : reply.at("blocks").as_array()) {
      EXPECT_TRUE(seen.insert(json::value_to<std::string>(block.at("hash"))).second);
      EXPECT_EQ(reply.at("namespaces").at(block.at("namespace").to_number<size_t>()).at("tenant"),
                "default");
      EXPECT_EQ(block.at("tiers").at(0), "pool");
      EXPECT_EQ(block.at("references"), 1);
    }
    cursor = reply.at("cursor").to_number<uint64_t>();
    finished = reply.at("finished").as_bool();
  }
  EXPECT_EQ(seen.size(), 20u);
}

TEST_F(Admin, ListingIsNarrowedByTierModelTenantAndPrefix) {
  WireClient client(daemon_.socket());
  (void)Fill(&client, client.Attach().pool, Hashes(0, 5));
  const auto count = [this](const std::string& members) {
    return Ask(R"({"op":"ls",)" + members + "}").at("blocks").as_array().size();
  };
  EXPECT_EQ(count(R"("tier":"pool")"), 5u);
  EXPECT_EQ(count(R"("tier":"disk")"), 0u);
  EXPECT_EQ(count(R"("model":"test-model")"), 5u);
  EXPECT_EQ(count(R"("model":"another")"), 0u);
  EXPECT_EQ(count(R"("tenant":"default")"), 5u);
  EXPECT_EQ(count(R"("tenant":"absent")"), 0u);
  EXPECT_EQ(count(R"("prefix":")" + Hashes(0, 1)[0].Hex().substr(0, 16) + "\""), 1u);
}

TEST_F(Admin, ABlockOfAWindowIsShownAtItsPosition) {
  WireClient client(daemon_.socket());
  ModelRecord record = TestModel();
  record.groups[0].hit_rule = HitRule::kTrailing;
  record.groups[0].window_tokens = 16;
  const auto hashes = Hashes(0, 2);
  (void)Fill(&client, client.Attach(record, 0).pool, hashes);
  const json::value inspected = Ask(R"({"op":"inspect","hashes":)" + Quoted({hashes[1]}) + "}");
  EXPECT_EQ(inspected.at("blocks").at(0).at("depth"), 1);
  const json::value listing = Ask(R"({"op":"ls"})");
  for (const json::value& listed : listing.at("blocks").as_array()) {
    EXPECT_EQ(listed.at("depth"), listed.at("hash").as_string() == hashes[1].Hex() ? 1 : 0);
  }
}

TEST_F(Admin, InspectTellsOfABlockAndOfWhyItWasMissed) {
  WireClient client(daemon_.socket());
  const auto hashes = Hashes(0, 1);
  (void)Fill(&client, client.Attach().pool, hashes);
  const json::value reply = Ask(R"({"op":"inspect","hashes":)" + Quoted(hashes) + "}");
  EXPECT_EQ(reply.at("schema"), "kvtier.inspect/1");
  const json::value& block = reply.at("blocks").at(0);
  EXPECT_EQ(block.at("cached"), true);
  EXPECT_EQ(block.at("model_name"), "test-model");
  EXPECT_EQ(block.at("references"), 1);
  EXPECT_TRUE(block.at("last_drop").is_null());
  EXPECT_TRUE(Ask(R"({"op":"inspect","hashes":)" + Quoted(Hashes(99, 1)) + "}")
                  .at("blocks")
                  .as_array()
                  .empty());
}

TEST_F(Admin, PinnedBlocksAreEvictedOnlyWhenUnpinned) {
  const auto hashes = Hashes(0, 2);
  {
    WireClient client(daemon_.socket());
    (void)Fill(&client, client.Attach().pool, hashes);
    EXPECT_EQ(Ask(R"({"op":"evict","hashes":)" + Quoted(hashes) + "}").at("referenced"), 2);
  }
  const auto pin = [&](int64_t ttl_ms) {
    return Ask(R"({"op":"pin","ttl_ms":)" + std::to_string(ttl_ms) + R"(,"hashes":)" +
               Quoted(hashes) + "}");
  };
  EXPECT_EQ(pin(60'000).at("blocks"), 2);
  EXPECT_EQ(Ask(R"({"op":"evict","hashes":)" + Quoted(hashes) + "}").at("pinned"), 2);
  EXPECT_EQ(ErrorOf(R"({"op":"pin","hashes":)" + Quoted(hashes) + "}"), "bad_request");
  EXPECT_EQ(pin(0).at("blocks"), 2);
  (void)Ask(R"({"op":"drain"})");
  const json::value evicted = Ask(R"({"op":"evict","hashes":)" + Quoted(hashes) + "}");
  EXPECT_EQ(evicted.at("evicted"), 2);
  EXPECT_EQ(Ask(R"({"op":"evict","hashes":)" + Quoted(hashes) + "}").at("absent"), 2);
}

// An engine whose blocks are of an epoch of a model.
class EpochEngine {
 public:
  EpochEngine(const std::string& socket, const std::string& revision) : client_(socket) {
    ModelRecord record = TestModel();
    record.revision = revision;
    pool_ = client_.Attach(record, 0, 64 * kKiB).pool;
  }
  void Store(const std::vector<BlockHash>& hashes) { (void)Fill(&client_, pool_, hashes); }

 private:
  WireClient client_;
  PoolId pool_;
};

// Two models have blocks of the same hashes.
TEST_F(Admin, AHashIsEvictedOnlyIfNoBlockOfItStayedAndAbsentOnlyIfItIsNowhere) {
  for (const char* revision : {"files:1", "files:2"}) {
    EpochEngine(daemon_.socket(), revision).Store(Hashes(0, 2));
  }
  const std::string hashes = R"(,"hashes":)" + Quoted(Hashes(0, 3)) + "}";
  const json::value pinned = Ask(R"({"op":"pin","ttl_ms":60000)" + hashes);
  EXPECT_EQ(pinned.at("blocks"), 4);
  EXPECT_EQ(pinned.at("absent"), 1);
  (void)Ask(R"({"op":"drain"})");
  ModelRecord later = TestModel();
  later.revision = "files:2";
  const json::value unpinned =
      Ask(R"({"op":"pin","ttl_ms":0,"model":")" + later.GroupFingerprint(0).Hex() + "\"" + hashes);
  EXPECT_EQ(unpinned.at("blocks"), 2);
  const json::value evicted = Ask(R"({"op":"evict")" + hashes);
  EXPECT_EQ(evicted.at("pinned"), 2);
  EXPECT_EQ(evicted.at("evicted"), 0);
  EXPECT_EQ(evicted.at("absent"), 1);
  EXPECT_EQ(Ask(R"({"op":"ls"})").at("blocks").as_array().size(), 2u) << "the pinned model's";
}

TEST_F(Admin, ModelsAreListedWithTheirEpochsBlocksAndUsers) {
  EXPECT_TRUE(Ask(R"({"op":"models"})").at("models").as_array().empty());
  EpochEngine one(daemon_.socket(), "files:1");
  one.Store(Hashes(0, 3));
  {
    EpochEngine two(daemon_.socket(), "files:2");
    two.Store(Hashes(0, 2));
    EpochEngine idle(daemon_.socket(), "files:3");
    EXPECT_EQ(Ask(R"({"op":"models"})").at("models").as_array().size(), 3u);
    const json::value some = Ask(R"({"op":"models","limit":2})");
    EXPECT_EQ(some.at("models").as_array().size(), 2u);
    EXPECT_EQ(some.at("omitted"), 1);
  }
  // The daemon takes notice of the ends of sessions when it comes to them.
  json::value reply;
  do {
    reply = Ask(R"({"op":"models"})");
  } while (reply.at("models").as_array().size() == 3 ||
           reply.at("models").at(1).at("in_use").as_bool());
  EXPECT_EQ(reply.at("schema"), "kvtier.models/1");
  const json::value& first = reply.at("models").at(0);
  EXPECT_EQ(first.at("tenant"), "default");
  EXPECT_EQ(first.at("model_name"), "test-model");
  EXPECT_EQ(first.at("epoch"), "files:1");
  EXPECT_EQ(first.at("in_use"), true);
  EXPECT_EQ(first.at("blocks"), 3);
  EXPECT_EQ(first.at("bytes"), 3 * 4096);
  EXPECT_EQ(first.at("tiers").at("pool"), 3);
  EXPECT_GT(first.at("last_use_s").to_number<int64_t>(), 0);
  EXPECT_EQ(reply.at("models").at(1).at("epoch"), "files:2");
  EXPECT_EQ(reply.at("models").at(1).at("in_use"), false);
  EXPECT_EQ(reply.at("models").at(1).at("blocks"), 2);
}

TEST_F(Admin, AnEpochIsForgottenAndItsModelsOthersStay) {
  for (const char* revision : {"files:1", "files:2"}) {
    EpochEngine engine(daemon_.socket(), revision);
    engine.Store(Hashes(0, 3));
  }
  (void)Ask(R"({"op":"drain"})");
  EXPECT_EQ(ErrorOf(R"({"op":"forget"})"), "bad_request");
  EXPECT_EQ(ErrorOf(R"({"op":"forget","model":"other"})"), "unknown_model");
  EXPECT_EQ(ErrorOf(R"({"op":"forget","model":"test-model","epoch":"files:"})"), "unknown_model");
  const json::value one = Ask(R"({"op":"forget","model":"test-model","epoch":"files:2"})");
  EXPECT_EQ(one.at("schema"), "kvtier.forget/1");
  EXPECT_EQ(one.at("evicted"), 3);
  const json::value left = Ask(R"({"op":"models"})");
  ASSERT_EQ(left.at("models").as_array().size(), 1u);
  EXPECT_EQ(left.at("models").at(0).at("epoch"), "files:1");
  EXPECT_EQ(left.at("models").at(0).at("tiers").at("disk"), 3);
  EXPECT_EQ(Ask(R"({"op":"forget","model":"test-model"})").at("evicted"), 3);
  EXPECT_TRUE(Ask(R"({"op":"models"})").at("models").as_array().empty());
}

TEST_F(Admin, BlocksThatASessionHoldsAreNotForgotten) {
  EpochEngine engine(daemon_.socket(), "files:1");
  engine.Store(Hashes(0, 2));
  const json::value reply = Ask(R"({"op":"forget","model":"test-model"})");
  EXPECT_EQ(reply.at("evicted"), 0);
  EXPECT_EQ(reply.at("referenced"), 2);
}

TEST_F(Admin, ErasingRefusesToClaimWhatAPlainDiskCannotProve) {
  EXPECT_EQ(ErrorOf(R"({"op":"erase","tenant":"default"})"), "not_encrypted");
  EXPECT_EQ(ErrorOf(R"({"op":"erase","without_proof":true})"), "bad_request");
  EXPECT_EQ(ErrorOf(R"({"op":"erase","tenant":"default","before_ms":9000000000000000})"),
            "bad_request");
  {
    WireClient client(daemon_.socket());
    (void)Fill(&client, client.Attach().pool, Hashes(0, 4));
  }
  (void)Ask(R"({"op":"drain"})");
  const json::value older =
      Ask(R"({"op":"erase","tenant":"default","without_proof":true,"before_ms":0})");
  EXPECT_EQ(older.at("blocks").at("disk"), 0) << "none is from before 1970";
  const json::value erased = Ask(R"({"op":"erase","tenant":"default","without_proof":true})");
  EXPECT_EQ(erased.at("schema"), "kvtier.erase/1");
  EXPECT_EQ(erased.at("proven"), false);
  EXPECT_EQ(erased.at("keys"), 0);
  EXPECT_EQ(erased.at("blocks").at("disk"), 4);
  EXPECT_EQ(Ask(R"({"op":"evict","hashes":)" + Quoted(Hashes(0, 4)) + "}").at("absent"), 4);
}

// An erasure tells how far it is, until it is answered.
TEST_F(Admin, NothingComesAfterTheAnswer) {
  WireClient admin(daemon_.admin_socket());
  (void)Ask(&admin, R"({"op":"erase","tenant":"default","without_proof":true})");
  pollfd more{.fd = admin.socket(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&more, 1, 3 * kAdminProgressMs), 0);
}

class EncryptedAdmin : public Admin {
 protected:
  EncryptedAdmin()
      : Admin([](Config* config) { config->disk.encryption = DiskEncryption::kAes256Gcm; }) {}
};

TEST_F(EncryptedAdmin, ErasingDestroysKeysAndForgetsBlocksThatSessionsHold) {
  WireClient client(daemon_.socket());
  (void)Fill(&client, client.Attach().pool, Hashes(0, 4));
  (void)Ask(R"({"op":"drain"})");
  const json::value erased = Ask(R"({"op":"erase","tenant":"default"})");
  EXPECT_EQ(erased.at("proven"), true);
  // The hour may have ended between two writes.
  EXPECT_GE(erased.at("keys").to_number<uint64_t>(), 1u);
  EXPECT_EQ(erased.at("blocks").at("pool"), 4);
  EXPECT_EQ(erased.at("blocks").at("disk"), 4);
  EXPECT_EQ(erased.at("bytes").at("pool"), 4 * 4096);
  EXPECT_EQ(erased.at("referenced"), 4);
  EXPECT_EQ(erased.at("moving"), 0);
  EXPECT_EQ(Ask(R"({"op":"status"})").at("stats").at("drops").at("disk").at("erased"), 4);
}

TEST_F(Admin, DefaultsAreShownBesideWhatIsInEffect) {
  EXPECT_EQ(Ask(R"({"op":"config_defaults"})").at("pool").at("bytes"), "1GiB");
}

TEST_F(Admin, BadBlockRequestsAreRefused) {
  for (const char* request :
       {R"({"op":"ls","tier":"attic"})", R"({"op":"ls","limit":0})", R"({"op":"ls","limit":8193})",
        R"({"op":"ls","cursor":-1})", R"({"op":"ls","prefix":"xyz"})", R"({"op":"inspect"})",
        R"({"op":"inspect","hashes":["12"]})", R"({"op":"inspect","hashes":"12"})",
        R"({"op":"pin","hashes":[3]})", R"({"op":"evict","hashes":[]})",
        R"({"op":"pin","hashes":[],"ttl_ms":1})"}) {
    EXPECT_EQ(ErrorOf(request), "bad_request") << request;
  }
  EXPECT_EQ(
      ErrorOf(R"({"op":"pin","ttl_ms":9000000000000000,"hashes":)" + Quoted(Hashes(0, 1)) + "}"),
      "bad_request");
}

TEST_F(Admin, SettleRepliesWhenNothingIsUnderWay) {
  EXPECT_GE(Ask(R"({"op":"settle","timeout_ms":30000})").at("waited_ms").to_number<int64_t>(), 0);
}

TEST_F(Admin, SeveralRequestsTravelOnOneConnection) {
  WireClient admin(daemon_.admin_socket());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Ask(&admin, R"({"op":"settle"})").at("schema"), "kvtier.settle/1");
  }
}

TEST_F(Admin, BadRequestsAreRefused) {
  EXPECT_EQ(ErrorOf("nonsense"), "bad_json");
  EXPECT_EQ(ErrorOf(""), "bad_json");
  EXPECT_EQ(ErrorOf("[]"), "bad_request");
  EXPECT_EQ(ErrorOf(R"({"op":"reboot"})"), "unknown_op");
  EXPECT_EQ(ErrorOf("{}"), "unknown_op");
  EXPECT_EQ(ErrorOf(R"({"op":3})"), "bad_request");
  EXPECT_EQ(ErrorOf(R"({"op":"settle","timeout_ms":-1})"), "bad_request");
  EXPECT_EQ(ErrorOf(R"({"op":"settle","sudo":true})"), "bad_request");
  EXPECT_EQ(ErrorOf("{\"op\":" + std::string(5000, '[')), "bad_json");
}

TEST_F(Admin, ClientMessagesHaveNoPlaceHere) {
  WireClient admin(daemon_.admin_socket());
  admin.Send(wire::Ping{});
  EXPECT_EQ(admin.ExpectError(0), "unknown_message");
  EXPECT_TRUE(admin.AtEnd());
}

TEST_F(Admin, SocketIsForItsOwnerOnly) {
  struct stat status;
  ASSERT_EQ(::stat(daemon_.admin_socket().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  daemon_.peers.uid = 12345;
  WireClient stranger(daemon_.admin_socket());
  EXPECT_EQ(stranger.ExpectError(0), "not_admin");
  EXPECT_TRUE(stranger.AtEnd());
}

TEST_F(Admin, ConnectionsAreLimited) {
  std::vector<std::unique_ptr<WireClient>> admins;
  for (size_t i = 0; i < kMaxAdminConnections; ++i) {
    admins.push_back(std::make_unique<WireClient>(daemon_.admin_socket()));
  }
  WireClient last(daemon_.admin_socket());
  EXPECT_EQ(last.ExpectError(0), "too_many_clients");
}

}  // namespace
}  // namespace kvtier
