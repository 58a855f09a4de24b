// SPDX-License-Identifier: Apache-2.0
// The canary: blocks that engines compute anew are compared with the cache's own.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tests/fakes/fake_cold_store.h"
#include "tests/unit/tiers/region_fixture.h"
#include "tiers/blocks/trust.h"
#include "tiers/transfer/kv_difference.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr uint32_t kLayers = 4;
constexpr uint32_t kTokens = 16;

size_t BytesOf(NumberFormat format) {
  if (format == NumberFormat::kFloat32) return 4;
  return format == NumberFormat::kBfloat16 || format == NumberFormat::kFloat16 ? 2 : 1;
}

// A number rounded to the format, as its bits.
uint32_t Rounded(float value, NumberFormat format) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (format == NumberFormat::kFloat32) return bits;
  if (format == NumberFormat::kBfloat16) return (bits + 0x8000) >> 16;
  // Numbers with four or five bits of exponent have 3 or 10 of mantissa. Neither overflows here.
  const int exponent_bits = format == NumberFormat::kFloat16 ? 5 : 4;
  const int mantissa_bits = format == NumberFormat::kFloat16 ? 10 : 3;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t sign = (bits >> 31) << (exponent_bits + mantissa_bits);
  int exponent;
  (void)std::frexp(value, &exponent);
  const int field = std::max(exponent - 1 + bias, 1);
  const float unit = std::ldexp(1.0f, field - bias - mantissa_bits);
  const auto steps = static_cast<uint32_t>(std::lround(std::fabs(value) / unit));
  const uint32_t hidden = 1u << mantissa_bits;
  return sign |
         (steps < hidden ? steps : (static_cast<uint32_t>(field - 1) << mantissa_bits) + steps);
}

// An engine of which the KV follows from weights, the order of its layers and a rope, and whose
// sums end in other bits in each batch.
struct ToyEngine {
  uint32_t weights = 1;
  double rope_base = 10'000;
  bool layers_are_reversed = false;
  bool k_and_v_are_exchanged = false;
  NumberFormat format = NumberFormat::kBfloat16;
  std::mt19937 batches{7};  // their shapes

  // The block of the sequence that begins at this depth.
  std::vector<std::byte> Compute(uint32_t stream, uint32_t depth) {
    const size_t dim = CacheBlockBytes() / BytesOf(format) / (kLayers * 2 * kTokens);
    std::vector<float> values(kLayers * 2 * kTokens * dim);
    std::normal_distribution<float> rounding(0, format == NumberFormat::kFloat32 ? 1e-5f : 4e-3f);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const uint32_t place = layers_are_reversed ? kLayers - 1 - layer : layer;
      for (uint32_t token = 0; token < kTokens; ++token) {
        for (uint32_t kind = 0; kind < 2; ++kind) {
          const uint32_t half = k_and_v_are_exchanged ? 1 - kind : kind;
          std::vector<float> vector = Project(stream, depth * kTokens + token, layer, kind, dim);
          if (kind == 0) Rotate(&vector, depth * kTokens + token);
          for (size_t i = 0; i < dim; ++i) {
            values[((place * 2 + half) * kTokens + token) * dim + i] =
                vector[i] * (1 + rounding(batches));
          }
        }
      }
    }
    std::vector<std::byte> bytes(CacheBlockBytes());
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t bits = Rounded(values[i], format);
      std::memcpy(&bytes[i * BytesOf(format)], &bits, BytesOf(format));
    }
    return bytes;
  }

  static size_t CacheBlockBytes() { return 4096; }
  // A number about 0, with a variance of about 1, that follows from these alone.
  static float Drawn(uint64_t kind, uint64_t row, uint64_t column) {
    uint64_t bits = kind * 0x9e3779b97f4a7c15 + row * 0xbf58476d1ce4e5b9 + column + 1;
    float sum = 0;
    for (int i = 0; i < 2; ++i) {
      bits = (bits ^ bits >> 31) * 0x94d049bb133111eb;
      bits ^= bits >> 29;
      sum += static_cast<float>(bits >> 40) / (1 << 24) - 0.5f;
    }
    return sum * 2.45f;
  }
  // The token's hidden state, times the layer's matrix for keys or values.
  [[nodiscard]] std::vector<float> Project(uint32_t stream, uint32_t position, uint32_t layer,
                                           uint32_t kind, size_t dim) const {
    std::vector<float> state(dim), result(dim);
    for (size_t i = 0; i < dim; ++i) state[i] = Drawn(stream, position, i);
    const uint64_t matrix = (1000 + weights) * 1000 + layer * 2 + kind;
    for (size_t row = 0; row < dim; ++row) {
      for (size_t i = 0; i < dim; ++i) result[row] += state[i] * Drawn(matrix, row, i);
      result[row] /= std::sqrt(static_cast<float>(dim));
    }
    return result;
  }
  void Rotate(std::vector<float>* key, uint32_t position) const {
    for (size_t i = 0; i + 1 < key->size(); i += 2) {
      const double turns = position * std::pow(rope_base, -double(i) / double(key->size()));
      const auto cosine = static_cast<float>(std::cos(turns));
      const auto sine = static_cast<float>(std::sin(turns));
      const float first = (*key)[i], second = (*key)[i + 1];
      (*key)[i] = first * cosine - second * sine;
      (*key)[i + 1] = first * sine + second * cosine;
    }
  }
};

class CacheCanaryTest : public CacheRegionsTest {
 protected:
  struct Session {
    PoolId region;
    FakeDevicePool* memory = nullptr;
  };

  void StartEngines(bool keep_host = false, BlockEventSink* events = nullptr) {
    Start({.host_slots = 256, .keep_host = keep_host, .disk_slots = 256, .events = events});
    OpenEngines();
  }
  void OpenEngines() {
    cache_->OpenSession(kCarol, [](const LoadProgress&) {});
    for (const SessionId session : {kAlice, kBob, kCarol}) {
      const PoolId region = OpenRegion(session);
      sessions_[session] = {region, memory_};
    }
  }
  // Begins to store one block as the engine of the session computes it.
  PendingTransfer BeginComparedStore(SessionId session, ToyEngine* engine, uint32_t stream,
                                     uint32_t depth = 0) {
    const Session& own = sessions_.at(session);
    const std::vector<std::byte> bytes = engine->Compute(stream, depth);
    std::memcpy(own.memory->data(), bytes.data(), bytes.size());
    const PendingTransfer pending = Begin(own.region, {BlockIndex(0)});
    const std::vector<StoreRequest> blocks{{.block = BlockIndex(0),
                                            .hash = TestHash(stream, depth),
                                            .parent = {},
                                            .tokens = kBlockTokens,
                                            .depth = depth,
                                            .compare = {engine->format, kLayers}}};
    cache_->Store(own.region, blocks);
    return pending;
  }
  static BlockHash HashOfCopy(BlockHash hash) {
    for (uint8_t& byte : hash.bytes) byte ^= 0xa5;
    return hash;
  }
  TransferEnd Store(SessionId session, ToyEngine* engine, uint32_t stream, uint32_t depth = 0) {
    const PendingTransfer pending = BeginComparedStore(session, engine, stream, depth);
    Settle();
    EXPECT_TRUE(pending.ended());
    return *pending;
  }
  [[nodiscard]] uint64_t Canaries(CanaryOutcome outcome) const {
    return cache_->stats().canaries[static_cast<size_t>(outcome)];
  }
  [[nodiscard]] size_t Told(IncidentKind kind) const {
    return static_cast<size_t>(
        std::ranges::count(machine_->owner.incidents, kind, &Incident::kind));
  }
  [[nodiscard]] bool IsFound(uint32_t stream, uint32_t depth = 0) const {
    return cache_->Lookup(sessions_.at(kAlice).region, Hashes{TestHash(stream, depth)})[0].host;
  }
  // After how many hits of honest blocks the other engine's lie is found; 0: never.
  uint32_t HitsUntilFound(ToyEngine liar) {
    StartEngines();
    ToyEngine honest;
    honest.format = liar.format;
    for (uint32_t hit = 1; hit <= 50; ++hit) {
      (void)Store(kAlice, &honest, hit, hit % 40);
      (void)Store(kBob, &liar, hit, hit % 40);
      if (!cache_->Gauges().distrusted.empty()) return hit;
    }
    return 0;
  }

  static constexpr SessionId kCarol{3};
  std::map<SessionId, Session> sessions_;
  ToyEngine good_, also_good_, bad_{.weights = 2};
};

TEST_F(CacheCanaryTest, OtherWeightsAreFound) {
  const uint32_t hits = HitsUntilFound({.weights = 2});
  EXPECT_GT(hits, 0u);
  EXPECT_LE(hits, 50u);
}

TEST_F(CacheCanaryTest, AnotherOrderOfLayersIsFound) {
  EXPECT_GT(HitsUntilFound({.layers_are_reversed = true}), 0u);
}

TEST_F(CacheCanaryTest, KeysInThePlaceOfValuesAreFound) {
  EXPECT_GT(HitsUntilFound({.k_and_v_are_exchanged = true}), 0u);
}

TEST_F(CacheCanaryTest, AWrongRopeBaseIsFound) {
  EXPECT_GT(HitsUntilFound({.rope_base = 500'000}), 0u);
}

TEST_F(CacheCanaryTest, HonestBlocksAreNeverFoundToDiffer) {
  for (const NumberFormat format : {NumberFormat::kFloat32, NumberFormat::kFloat16,
                                    NumberFormat::kBfloat16, NumberFormat::kFloat8E4m3}) {
    ToyEngine first{.format = format}, second{.format = format};
    second.batches.seed(8);
    for (uint32_t i = 0; i < 200; ++i) {
      const KvDifference difference =
          CompareKv(first.Compute(i, i % 40), second.Compute(i, i % 40), {format, kLayers});
      EXPECT_FALSE(difference.bits_equal);
      EXPECT_LE(difference.error, NoiseBound(format)) << static_cast<int>(format);
    }
  }
}

TEST_F(CacheCanaryTest, ATokenThatCameToOtherExpertsIsNoiseAndATurnedBlockIsNot) {
  // Errors as docs/IDENTITY.md has them: the largest honest one, of a model with experts, and the
  // smallest of a lie, another base of positions in a model with windows.
  for (const auto& [error, is_noise] : {std::pair(0.105f, true), std::pair(0.31f, false)}) {
    std::vector<float> stored(64), computed;
    for (size_t i = 0; i < stored.size(); ++i) stored[i] = ToyEngine::Drawn(1, i, 0);
    for (const float value : stored) computed.push_back(value * (1 - error));
    const KvDifference difference =
        CompareKv(std::as_bytes(std::span(stored)), std::as_bytes(std::span(computed)),
                  {NumberFormat::kFloat32, 1});
    EXPECT_NEAR(difference.error, error, 1e-3);
    EXPECT_EQ(difference.error <= NoiseBound(NumberFormat::kFloat32), is_noise);
    EXPECT_EQ(difference.error <= NoiseBound(NumberFormat::kFloat8E4m3), is_noise);
  }
}

TEST_F(CacheCanaryTest, HonestEnginesAgreeAndLoseNothing) {
  StartEngines();
  also_good_.batches.seed(8);
  for (uint32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(Store(kAlice, &good_, i, i).copied, 1u);
    EXPECT_EQ(Store(kBob, &also_good_, i, i).skipped, 1u);
    EXPECT_TRUE(IsFound(i, i));
  }
  EXPECT_EQ(Canaries(CanaryOutcome::kNoise) + Canaries(CanaryOutcome::kEqual), 50u);
  EXPECT_EQ(Canaries(CanaryOutcome::kDifferent), 0u);
  EXPECT_EQ(cache_->Gauges().host_blocks, 50u);
}

TEST_F(CacheCanaryTest, ALoneDifferenceCostsTheBlockAndNothingElse) {
  StartEngines();
  (void)Store(kAlice, &good_, 1);
  (void)Store(kAlice, &good_, 2);
  EXPECT_EQ(Store(kBob, &bad_, 1).skipped, 1u);
  EXPECT_FALSE(IsFound(1));
  EXPECT_TRUE(IsFound(2));
  EXPECT_THAT(cache_->Gauges().distrusted, IsEmpty());
  EXPECT_EQ(Told(IncidentKind::kKvDiffers), 1u);
  EXPECT_EQ(Store(kAlice, &good_, 1).copied, 1u);
}

TEST_F(CacheCanaryTest, ACondemnedBlockThatIsInUseGoesToNoStore) {
  FakeColdStore store;
  change_environment_ = [&](CacheEnvironment* environment, IndexSnapshot*) {
    store.loop = &machine_->loop;
    environment->cold = &store;
  };
  StartEngines();
  (void)Store(kAlice, &good_, 1);
  const AcquireReply reply = Acquire(kAlice, {TestHash(1, 0)});
  ASSERT_THAT(reply.hits, SizeIs(1));
  (void)Store(kBob, &bad_, 1);
  EXPECT_FALSE(IsFound(1));
  for (int ticks = 0; ticks < 120; ++ticks) AdvanceAndTick(1000);
  EXPECT_EQ(cache_->stats().cold.write_blocks, 0u);
  Release(kAlice, HandlesOf(reply));
  AdvanceAndTick(1000);
  EXPECT_EQ(cache_->Gauges().entries, 0u);
  EXPECT_EQ(store.deletions, 1u) << "another host may have computed it since";
  cache_.reset();
  machine_->loop.DropAll();
}

TEST_F(CacheCanaryTest, ABadEngineAmongThreeLosesItsBlocksAndTheOthersKeepTheirs) {
  StartEngines();
  for (uint32_t i = 0; i < 8; ++i) (void)Store(kCarol, &bad_, i);
  for (uint32_t i = 8; i < 16; ++i) (void)Store(kAlice, &good_, i);
  (void)Store(kAlice, &good_, 0);
  (void)Store(kBob, &also_good_, 1);
  for (uint32_t i = 2; i < 8; ++i) EXPECT_FALSE(IsFound(i)) << i;
  for (uint32_t i = 8; i < 16; ++i) EXPECT_TRUE(IsFound(i)) << i;
  EXPECT_THAT(cache_->Gauges().distrusted, IsEmpty());
  // Blocks that it computes are not taken any more, and count against no other engine.
  EXPECT_THAT(Store(kCarol, &bad_, 20).failed, ElementsAre(Pair(0u, MissReason::kDistrusted)));
  (void)Store(kCarol, &bad_, 8);
  EXPECT_TRUE(IsFound(8));
  EXPECT_EQ(Store(kAlice, &good_, 2).copied, 1u);
}

TEST_F(CacheCanaryTest, AThirdEnginesAgreementJudgesTwoThatDiffer) {
  StartEngines();
  (void)Store(kAlice, &good_, 1);
  (void)Store(kBob, &also_good_, 1);
  for (uint32_t i = 2; i < 6; ++i) {
    (void)Store(kAlice, &good_, i);
    (void)Store(kCarol, &bad_, i);
  }
  EXPECT_THAT(cache_->Gauges().distrusted, IsEmpty());
  EXPECT_EQ(Store(kAlice, &good_, 9).copied, 1u);
  EXPECT_THAT(Store(kCarol, &bad_, 10).failed, SizeIs(1));
}

TEST_F(CacheCanaryTest, ADistrustedIdentityMissesAndTakesNothingUntilItIsForgiven) {
  StartEngines();
  (void)Store(kAlice, &good_, 40);
  for (uint32_t i = 0; i < 3; ++i) {
    (void)Store(kAlice, &good_, i);
    (void)Store(kBob, &bad_, i);
  }
  ASSERT_THAT(cache_->Gauges().distrusted, SizeIs(1));
  EXPECT_EQ(Told(IncidentKind::kDistrusted), 1u);
  EXPECT_FALSE(IsFound(40));
  EXPECT_EQ(Acquire(kAlice, {TestHash(40, 0)}).miss, MissReason::kDistrusted);
  EXPECT_THAT(Store(kAlice, &good_, 41).failed, ElementsAre(Pair(0u, MissReason::kDistrusted)));
  EXPECT_EQ(cache_->Gauges().host_blocks, 0u);
  cache_->Forgive(cache_->Gauges().distrusted[0]);
  EXPECT_EQ(Store(kAlice, &good_, 41).copied, 1u);
  EXPECT_TRUE(IsFound(41));
}

TEST_F(CacheCanaryTest, ATenantOfWhichVeryManyModelsAreDistrustedIsComparedNoMore) {
  change_environment_ = [](CacheEnvironment*, IndexSnapshot* index) {
    for (uint32_t i = 0; i < Trust::kMostOfTenant; ++i) {
      NamespaceIdentity identity{.tenant = "tenant", .model = {}, .block_bytes = 64};
      std::memcpy(identity.model.bytes.data(), &i, sizeof(i));
      index->namespaces.emplace_back(NamespaceId(i), identity);
      index->distrusted.push_back(NamespaceId(i));
    }
  };
  StartEngines();
  ASSERT_THAT(cache_->Gauges().distrusted, SizeIs(Trust::kMostOfTenant));
  for (uint32_t i = 0; i < 3; ++i) {
    (void)Store(kAlice, &good_, i);
    EXPECT_EQ(Store(kBob, &bad_, i).skipped, 1u);
    EXPECT_TRUE(IsFound(i));
  }
  EXPECT_THAT(cache_->Gauges().distrusted, SizeIs(Trust::kMostOfTenant));
  cache_->Forgive(NamespaceId(5));
  (void)Store(kBob, &bad_, 0);
  EXPECT_FALSE(IsFound(0));
}

TEST_F(CacheCanaryTest, DistrustOutlivesARestartAndForgivenessToo) {
  StartEngines();
  for (uint32_t i = 0; i < 3; ++i) {
    (void)Store(kAlice, &good_, i);
    (void)Store(kBob, &bad_, i);
  }
  CrashAndRestart();
  ASSERT_THAT(cache_->Gauges().distrusted, SizeIs(1));
  OpenEngines();
  EXPECT_THAT(Store(kAlice, &good_, 5).failed, SizeIs(1));
  cache_->Forgive(cache_->Gauges().distrusted[0]);
  Settle();
  CrashAndRestart();
  OpenEngines();
  EXPECT_THAT(cache_->Gauges().distrusted, IsEmpty());
  EXPECT_EQ(Store(kAlice, &good_, 5).copied, 1u);
}

TEST_F(CacheCanaryTest, WeightsThatChangedOverARestartAreFound) {
  StartEngines();
  for (uint32_t i = 0; i < 3; ++i) (void)Store(kAlice, &good_, i);
  DrainAndRestart();
  OpenEngines();
  // A load brings each to host, as a hit does.
  for (uint32_t i = 0; i < 3; ++i) {
    (void)BeginLoad(sessions_.at(kAlice).region, {TestHash(i, 0)}, 3);
    Settle();
    (void)Store(kAlice, &bad_, i);
  }
  EXPECT_THAT(cache_->Gauges().distrusted, SizeIs(1));
}

// Its slot on disk is being written when the difference is found.
TEST_F(CacheCanaryTest, ABlockThatMovesWhenItIsFoundToDifferGoesWhenItHasMoved) {
  StartEngines();
  file().HoldWrites();
  (void)Store(kBob, &bad_, 1);
  cache_->Drain([] {});
  Settle();
  ASSERT_GT(cache_->Gauges().disk_writes_in_flight, 0u);
  (void)Store(kAlice, &good_, 1);
  EXPECT_FALSE(IsFound(1)) << "it must not be served meanwhile";
  // Nothing is kept under the hash before the block has gone.
  EXPECT_EQ(Store(kAlice, &good_, 1).skipped, 1u);
  EXPECT_FALSE(IsFound(1));
  for (int i = 0; i < 10; ++i) {
    file().LetWritesGo(100);
    AdvanceAndTick(1000);
    Settle();
  }
  EXPECT_EQ(cache_->Gauges().entries, 0u);
  EXPECT_EQ(Store(kAlice, &good_, 1).copied, 1u);
  EXPECT_TRUE(IsFound(1));
}

// A process of its own for each number.
ProcessIdentity Process(int32_t number) { return {.pid = number, .birth = 1}; }

TEST(Trust, EnginesThatCameAndWentAreForgottenWithTheirBlocks) {
  Trust trust;
  const EntryRef kept{.row = EntryIndex(7), .generation = 1};
  const Party storer = trust.Open(Process(1), SessionId(1));
  trust.NoteStored(kept, storer);
  trust.Close(storer);
  for (int32_t i = 2; i < 100'000; ++i) {
    const Party party = trust.Open(Process(i), SessionId(1));
    const EntryRef block{.row = EntryIndex(8), .generation = static_cast<uint32_t>(i)};
    trust.NoteStored(block, party);
    trust.Close(party);
    ASSERT_LE(trust.parties(), 2048u);
    ASSERT_NE(party, kUnknownParty);
  }
  EXPECT_EQ(trust.StorerOf(kept), storer);
  EXPECT_EQ(trust.NameOf(storer), "process 1");
  EXPECT_EQ(trust.Open(Process(1), SessionId(2)), storer);
}

TEST(Trust, AnExpelledEngineStaysKnownWhenItsBlocksAreGone) {
  Trust trust;
  const NamespaceId whose(0);
  const Party bad = trust.Open(Process(1), SessionId(1));
  for (int32_t other = 2; other <= 3; ++other) {
    (void)trust.Differ(whose, TenantLine(0), bad, trust.Open(Process(other), SessionId(1)));
  }
  ASSERT_TRUE(trust.Expelled(whose, bad));
  trust.Close(bad);
  for (int32_t i = 10; i < 10'000; ++i) trust.Close(trust.Open(Process(i), SessionId(1)));
  EXPECT_TRUE(trust.Expelled(whose, trust.Open(Process(1), SessionId(2))));
}

// A copy is a block under a hash that follows from its block's, so that a client can ask for it.
TEST_F(CacheCanaryTest, ACopyThatAnotherClientLoadsGoesWhenThatHasEnded) {
  StartEngines();
  const PoolId loads = sessions_.at(kCarol).region;
  (void)Store(kAlice, &good_, 1);
  const BlockHash of_copy = HashOfCopy(TestHash(1, 0));
  const PendingTransfer stored = BeginComparedStore(kBob, &good_, 1);
  while (!cache_->Lookup(loads, Hashes{of_copy})[0].host) ASSERT_TRUE(machine_->loop.RunOne());
  machine_->loop.Hold(machine_->device->source());
  const PendingTransfer loaded = BeginLoad(loads, {of_copy});
  Settle();
  ASSERT_TRUE(stored.ended());
  EXPECT_EQ(Canaries(CanaryOutcome::kEqual) + Canaries(CanaryOutcome::kNoise), 1u);
  EXPECT_FALSE(cache_->Lookup(loads, Hashes{of_copy})[0].host) << "no other may load it";
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(loaded.ended());
  AdvanceAndTick(1000);
  Settle();
  EXPECT_EQ(cache_->Gauges().entries, 1u);
  EXPECT_TRUE(IsFound(1));
}

TEST_F(CacheCanaryTest, ALoadOfACopyThatItsRegionStillStoresEnds) {
  StartEngines();
  const PoolId region = sessions_.at(kBob).region;
  (void)Store(kAlice, &good_, 1);
  const PendingTransfer stored = BeginComparedStore(kBob, &good_, 1);
  const PendingTransfer loaded = BeginLoad(region, {HashOfCopy(TestHash(1, 0))}, /*first=*/1);
  Settle();
  EXPECT_TRUE(stored.ended());
  EXPECT_TRUE(loaded.ended());
  AdvanceAndTick(1000);
  Settle();
  EXPECT_EQ(cache_->Gauges().entries, 1u);
}

// Hears of these blocks.
struct HashSink final : BlockEventSink {
  void BlockStored(const StoredBlock& block) override { hashes.insert(block.key.hash); }
  void BlockRemoved(const BlockKey& key, Tier /*tier*/) override { hashes.insert(key.hash); }
  std::set<BlockHash> hashes;
};

TEST_F(CacheCanaryTest, RoutersAreToldOfNoCopy) {
  HashSink sink, snapshot;
  StartEngines(/*keep_host=*/false, &sink);
  (void)Store(kAlice, &good_, 1);
  const BlockHash of_copy = HashOfCopy(TestHash(1, 0));
  (void)BeginComparedStore(kBob, &good_, 1);
  while (!cache_->Lookup(sessions_.at(kCarol).region, Hashes{of_copy})[0].host) {
    ASSERT_TRUE(machine_->loop.RunOne());
  }
  EXPECT_EQ(cache_->ReplayEvents(0, 100, &snapshot), Cache::kReplayEnd);
  Settle();
  EXPECT_THAT(sink.hashes, ElementsAre(TestHash(1, 0)));
  EXPECT_THAT(snapshot.hashes, ElementsAre(TestHash(1, 0)));
  cache_.reset();
}

TEST_F(CacheCanaryTest, ACopyDoesNotOutliveTheProcess) {
  StartEngines(/*keep_host=*/true);
  (void)Store(kAlice, &good_, 1);
  const BlockHash of_copy = HashOfCopy(TestHash(1, 0));
  (void)BeginComparedStore(kBob, &good_, 1);
  while (!cache_->Lookup(sessions_.at(kCarol).region, Hashes{of_copy})[0].host) {
    ASSERT_TRUE(machine_->loop.RunOne());
  }
  // As any block is, whose last use the table is told.
  (void)BeginLoad(sessions_.at(kCarol).region, {of_copy}, 3);
  while (machine_->loop.RunOne() && cache_->Gauges().entries > 1) continue;
  (void)BeginComparedStore(kBob, &good_, 1);
  while (!cache_->Lookup(sessions_.at(kCarol).region, Hashes{of_copy})[0].host) {
    ASSERT_TRUE(machine_->loop.RunOne());
  }
  DieAndAdopt();
  OpenEngines();
  EXPECT_TRUE(IsFound(1));
  EXPECT_EQ(cache_->Gauges().entries, 1u);
}

TEST_F(CacheCanaryTest, ARegionThatClosesInTheMidstOfAComparisonLeavesNothing) {
  StartEngines();
  (void)Store(kAlice, &good_, 1);
  (void)BeginComparedStore(kBob, &good_, 1);
  bool closed = false;
  cache_->CloseRegion(sessions_.at(kBob).region, [&] { closed = true; });
  Settle();
  EXPECT_TRUE(closed);
  EXPECT_TRUE(cache_->Idle());
  EXPECT_EQ(cache_->Gauges().entries, 1u);
}

}  // namespace
}  // namespace kvtier
