// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/kept_memories.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/config/config.h"
#include "daemon/net/connection.h"
#include "daemon/runtime/log.h"
#include "tests/fakes/fake_clock.h"
#include "tests/unit/daemon/bystander.h"

namespace kvtier {
namespace {

constexpr uint64_t kBytes = 8192;
constexpr uint64_t kTableBytes = 128;

UniqueFd MemoryFile(uint64_t bytes) {
  UniqueFd fd(::memfd_create("kept", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

wire::KeptMemoryName NameOf(uint8_t byte) {
  wire::KeptMemoryName name;
  name.fill(byte);
  return name;
}

// A pipe that ends when all of its writing ends are closed.
struct Watched {
  UniqueFd reading;
  UniqueFd writing;
  [[nodiscard]] static Watched Make() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  // Blocks until they are.
  void ExpectClosed() const {
    char byte;
    EXPECT_EQ(::read(reading.get(), &byte, 1), 0);
  }
};

class KeptMemoriesTest : public testing::Test {
 protected:
  KeptMemoriesTest() {
    wire_devices_.devices = {{.kind = wire::DeviceKind::kHost}, {.kind = wire::DeviceKind::kCuda}};
    Start();
  }

  void Start() { memories_.emplace(environment_); }

  [[nodiscard]] static wire::KeepMemory Message(uint8_t name) {
    return {.name = NameOf(name), .bytes = kBytes, .table_bytes = kTableBytes};
  }
  // A message about a GPU's memory, which may be any descriptor.
  [[nodiscard]] static wire::KeepMemory GpuMessage(uint8_t name) {
    wire::KeepMemory message = Message(name);
    message.memory = wire::RegionMemory::kVmm;
    message.device = 1;
    return message;
  }
  std::string Keep(uint64_t session, const Bystander& process, const wire::KeepMemory& message,
                   std::optional<UniqueFd> memory = {}, const std::string& tenant = "a") {
    if (!memory) memory = MemoryFile(kBytes);
    const Status kept = memories_->Keep({SessionId(session), PeerOf(process), tenant}, message,
                                        *std::move(memory), MemoryFile(kTableBytes));
    return kept ? "" : kept.error().reason;
  }
  std::string Take(uint64_t session, const Bystander& process, uint8_t name,
                   const std::string& tenant = "a") {
    const auto taken = memories_->Take({SessionId(session), PeerOf(process), tenant},
                                       {.name = NameOf(name), .table_only = false});
    if (!taken) return taken.error().reason;
    return taken->reply.found ? "taken" : "nothing";
  }
  wire::ReleaseMemoryReply Release(uint64_t session, const Bystander& process,
                                   const wire::ReleaseMemory& request) {
    return memories_->Release({SessionId(session), PeerOf(process), tenant_}, request).value();
  }
  // Its session ends, then the process; until the daemon knows.
  void End(uint64_t session, Bystander* process) {
    memories_->OnSessionEnded(SessionId(session));
    process->Kill();
    loop_.RunUntil([&] { return Waiting() > 0 || memories_->entries().empty(); });
  }
  [[nodiscard]] size_t Waiting() const {
    size_t waiting = 0;
    for (const KeptMemories::Entry& entry : memories_->entries()) waiting += entry.waiting ? 1 : 0;
    return waiting;
  }
  [[nodiscard]] const Peer& PeerOf(const Bystander& process) {
    return peers_.try_emplace(process.pid(), process.peer()).first->second;
  }

  EventLoop loop_;
  Log log_{LogConfig{.level = LogLevel::kError}};
  FakeClock clock_;
  Network network_{&loop_};
  Config config_;
  wire::DevicesReply wire_devices_;
  KeptMemories::Environment environment_{.config = &config_,
                                         .loop = &loop_,
                                         .clock = &clock_,
                                         .log = &log_,
                                         .closer = &network_.closer,
                                         .devices = &wire_devices_};
  const std::string tenant_ = "a";
  std::map<pid_t, Peer> peers_;
  std::optional<KeptMemories> memories_;
};

TEST_F(KeptMemoriesTest, TheNextProcessHasTheSameMemory) {
  Bystander first, second;
  UniqueFd memory = MemoryFile(kBytes);
  ASSERT_EQ(::pwrite(memory.get(), "kept", 4, 0), 4);
  EXPECT_EQ(Keep(1, first, Message(7), std::move(memory)), "");
  End(1, &first);
  const auto taken = memories_->Take({SessionId(2), PeerOf(second), tenant_},
                                     {.name = NameOf(7), .table_only = false});
  ASSERT_TRUE(taken);
  EXPECT_TRUE(taken->reply.found);
  EXPECT_EQ(taken->reply.bytes, kBytes);
  EXPECT_EQ(taken->reply.table_bytes, kTableBytes);
  char bytes[4];
  ASSERT_EQ(::pread(taken->descriptors->memory.get(), bytes, 4, 0), 4);
  EXPECT_EQ(std::string(bytes, 4), "kept");
  EXPECT_EQ(memories_->counters().adopted, 1u);
  EXPECT_EQ(memories_->entries()[0].owner_pid, second.pid());
}

TEST_F(KeptMemoriesTest, OnlyTheOwnersProcessFindsItsTableByName) {
  Bystander first, second;
  EXPECT_EQ(Keep(1, first, Message(7)), "");
  EXPECT_TRUE(memories_->TableOf({SessionId(1), PeerOf(first), tenant_}, NameOf(7)).valid());
  EXPECT_TRUE(memories_->TableOf({SessionId(3), PeerOf(first), tenant_}, NameOf(7)).valid());
  EXPECT_FALSE(memories_->TableOf({SessionId(2), PeerOf(second), tenant_}, NameOf(7)).valid());
  EXPECT_FALSE(memories_->TableOf({SessionId(1), PeerOf(first), "b"}, NameOf(7)).valid());
  EXPECT_FALSE(memories_->TableOf({SessionId(1), PeerOf(first), tenant_}, NameOf(8)).valid());
  // Memory without an owner has no reader.
  End(1, &first);
  EXPECT_FALSE(memories_->TableOf({SessionId(2), PeerOf(second), tenant_}, NameOf(7)).valid());
}

TEST_F(KeptMemoriesTest, AProcessThatLivesStaysTheOwnerWithoutASession) {
  Bystander first, second;
  EXPECT_EQ(Keep(1, first, Message(7)), "");
  memories_->OnSessionEnded(SessionId(1));
  EXPECT_EQ(Take(2, second, 7), "memory_in_use");
  EXPECT_EQ(Keep(2, second, Message(7)), "memory_in_use");
  EXPECT_EQ(memories_->counters().refused, 2u);
  // It connects again, and keeps again.
  EXPECT_EQ(Keep(3, first, Message(7)), "");
  EXPECT_EQ(memories_->entries().size(), 1u);
  // Only the end of the last session's process counts.
  memories_->OnSessionEnded(SessionId(3));
  first.Kill();
  loop_.RunUntil([&] { return Waiting() == 1; });
  EXPECT_EQ(Take(2, second, 7), "taken");
}

TEST_F(KeptMemoriesTest, AForeignProcessCostsOneDescriptorHoweverOftenItKeepsAgain) {
  Bystander foreign, second;
  if (!foreign.CanBeToldWithoutANumber()) GTEST_SKIP() << "this kernel cannot tell them apart";
  peers_.emplace(foreign.pid(), foreign.foreign_peer());
  EXPECT_EQ(Keep(1, foreign, Message(7)), "");
  memories_->OnSessionEnded(SessionId(1));
  const size_t open = OpenPidfds();
  for (uint64_t session = 2; session <= 10; ++session) {
    EXPECT_EQ(Keep(session, foreign, Message(7)), "");
    memories_->OnSessionEnded(SessionId(session));
  }
  EXPECT_LE(OpenPidfds(), open);
  EXPECT_EQ(Keep(11, second, Message(7)), "memory_in_use");
  foreign.Kill();
  loop_.RunUntil([&] { return Waiting() == 1; });
  EXPECT_EQ(Take(11, second, 7), "taken");
}

TEST_F(KeptMemoriesTest, TheOwnerEndsWithItsSessionAndItsProcess) {
  Bystander first, second;
  EXPECT_EQ(Keep(1, first, Message(7)), "");
  first.Kill();
  EXPECT_EQ(Take(2, second, 7), "memory_in_use");
  memories_->OnSessionEnded(SessionId(1));
  loop_.RunUntil([&] { return Waiting() == 1; });
  EXPECT_EQ(Take(2, second, 7), "taken");
}

TEST_F(KeptMemoriesTest, MemoryThatKernelsOfADeadProcessMayWriteIsNotOffered) {
  std::function<void(bool)> answer;
  environment_.kernels_remain = [&](int32_t, std::function<void(bool)> asked) {
    answer = std::move(asked);
  };
  Start();
  Bystander first, second;
  EXPECT_EQ(Keep(1, first, Message(7)), "");
  memories_->OnSessionEnded(SessionId(1));
  first.Kill();
  loop_.RunUntil([&] { return static_cast<bool>(answer); });
  EXPECT_EQ(Take(2, second, 7), "memory_in_use");
  answer(false);
  EXPECT_EQ(Take(2, second, 7), "taken");
}

TEST_F(KeptMemoriesTest, ALaterProcessOfTheSameNumberIsAnother) {
  Bystander first, second;
  EXPECT_EQ(Keep(1, first, Message(7)), "");
  first.Kill();
  Peer impostor = second.peer();
  impostor.pid = first.pid();
  const auto taken = memories_->Take({SessionId(2), impostor, tenant_}, {.name = NameOf(7)});
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().reason, "memory_in_use");
}

TEST_F(KeptMemoriesTest, MemoryWithoutAnOwnerExpires) {
  config_.kept_memory.keep_for_ms = 1000;
  Bystander first;
  Watched memory = Watched::Make();
  EXPECT_EQ(Keep(1, first, GpuMessage(7), std::move(memory.writing)), "");
  clock_.Advance(10'000);
  memories_->Tick();
  End(1, &first);
  clock_.Advance(999);
  memories_->Tick();
  ASSERT_EQ(memories_->entries().size(), 1u);
  EXPECT_EQ(memories_->entries()[0].waiting_ms, 999);
  clock_.Advance(1);
  memories_->Tick();
  EXPECT_TRUE(memories_->entries().empty());
  EXPECT_EQ(memories_->counters().expired, 1u);
  memory.ExpectClosed();
}

TEST_F(KeptMemoriesTest, MemoryThatWasTakenDoesNotExpire) {
  config_.kept_memory.keep_for_ms = 1000;
  Bystander first, second;
  EXPECT_EQ(Keep(1, first, Message(7)), "");
  End(1, &first);
  EXPECT_EQ(Take(2, second, 7), "taken");
  clock_.Advance(10'000);
  memories_->Tick();
  EXPECT_EQ(memories_->entries().size(), 1u);
}

TEST_F(KeptMemoriesTest, NothingIsKeptWhereNoTimeIsGiven) {
  config_.kept_memory.keep_for_ms = 0;
  Bystander first;
  EXPECT_EQ(Keep(1, first, Message(7)), "");
  End(1, &first);
  EXPECT_TRUE(memories_->entries().empty());
}

TEST_F(KeptMemoriesTest, ANewMemoryOfANameTakesThePlaceOfOneWithoutAnOwner) {
  Bystander first, second;
  Watched memory = Watched::Make();
  EXPECT_EQ(Keep(1, first, GpuMessage(7), std::move(memory.writing)), "");
  End(1, &first);
  EXPECT_EQ(Keep(2, second, Message(7)), "");
  memory.ExpectClosed();
  EXPECT_EQ(memories_->entries().size(), 1u);
  EXPECT_EQ(memories_->counters().released, 1u);
}

TEST_F(KeptMemoriesTest, WhatIsNoMemoryFileIsRefusedAndClosed) {
  Bystander process;
  Watched pipe = Watched::Make();
  EXPECT_EQ(Keep(1, process, Message(7), std::move(pipe.writing)), "bad_memory");
  pipe.ExpectClosed();
  EXPECT_EQ(Keep(1, process, Message(7), UniqueFd(::open("/", O_RDONLY | O_CLOEXEC))),
            "bad_memory");
  EXPECT_EQ(Keep(1, process, Message(7), UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC))),
            "bad_memory");
  EXPECT_EQ(Keep(1, process, Message(7), MemoryFile(kBytes - 1)), "bad_memory");
  // A table is a memory file on a GPU, too.
  Watched table = Watched::Make();
  const Status kept = memories_->Keep({SessionId(1), PeerOf(process), tenant_}, GpuMessage(7),
                                      MemoryFile(1), std::move(table.writing));
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().reason, "bad_memory");
  table.ExpectClosed();
  EXPECT_TRUE(memories_->entries().empty());
}

TEST_F(KeptMemoriesTest, MemoryOfAGpuIsKeptOnGpusAlone) {
  Bystander process;
  wire::KeepMemory message = GpuMessage(7);
  EXPECT_EQ(Keep(1, process, message), "");
  for (const uint32_t device : {0u, 2u, UINT32_MAX}) {
    message.device = device;
    EXPECT_EQ(Keep(1, process, message), "unknown_device");
  }
}

TEST_F(KeptMemoriesTest, NamesAndBytesAreLimited) {
  Bystander process;
  config_.kept_memory.max_bytes = 65 * (kBytes + kTableBytes);
  for (uint8_t name = 0; name < wire::kMaxKeptMemories; ++name) {
    ASSERT_EQ(Keep(1, process, Message(name)), "");
  }
  EXPECT_EQ(Keep(1, process, Message(200)), "too_many_kept_memories");
  EXPECT_EQ(Keep(1, process, Message(0)), "") << "one that is kept takes no more";
  // The names of tenants are limited for each, the bytes for all together.
  EXPECT_EQ(Keep(2, process, Message(0), {}, "b"), "");
  EXPECT_EQ(Keep(2, process, Message(1), {}, "b"), "kept_bytes");
  EXPECT_EQ(Keep(2, process, Message(0), {}, "b"), "");
}

TEST_F(KeptMemoriesTest, ATenantNeitherSeesNorReleasesAnothersMemory) {
  Bystander first, second;
  EXPECT_EQ(Keep(1, first, Message(7), {}, "b"), "");
  End(1, &first);
  EXPECT_EQ(Take(2, second, 7, "a"), "nothing");
  EXPECT_EQ(Release(2, second, {.name = NameOf(7)}).released, 0u);
  EXPECT_EQ(Release(2, second, {.name = std::nullopt}).released, 0u);
  EXPECT_EQ(Take(2, second, 7, "b"), "taken");
}

TEST_F(KeptMemoriesTest, ADeviceIsSweptOfWhatHasNoOwner) {
  Bystander first, second, third;
  EXPECT_EQ(Keep(1, first, GpuMessage(1)), "");
  EXPECT_EQ(Keep(1, first, Message(2)), "");
  EXPECT_EQ(Keep(2, second, GpuMessage(3)), "");
  End(1, &first);
  EXPECT_EQ(Release(3, third, {.device = 5, .name = std::nullopt}).released, 0u);
  const auto on_gpu = Release(3, third, {.device = 1, .name = std::nullopt});
  EXPECT_EQ(on_gpu.released, 1u);
  EXPECT_EQ(on_gpu.released_bytes, kBytes);
  EXPECT_EQ(Release(3, third, {.device = 0, .name = std::nullopt}).released, 1u);
  EXPECT_EQ(memories_->entries().size(), 1u) << "the one with an owner stays";
}

TEST_F(KeptMemoriesTest, ANameIsReleasedByItsOwnerOrAfterIt) {
  Bystander first, second;
  EXPECT_EQ(Keep(1, first, Message(7)), "");
  const auto refused =
      memories_->Release({SessionId(2), PeerOf(second), tenant_}, {.name = NameOf(7)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, "memory_in_use");
  EXPECT_EQ(Release(1, first, {.name = NameOf(7)}).released, 1u);
  EXPECT_EQ(Keep(1, first, Message(7)), "");
  End(1, &first);
  EXPECT_EQ(Release(2, second, {.name = NameOf(7)}).released, 1u);
  EXPECT_EQ(memories_->counters().released, 2u);
}

TEST_F(KeptMemoriesTest, TheOperatorReleasesWhatWaitsOrEverything) {
  Bystander first, second;
  EXPECT_EQ(Keep(1, first, Message(1)), "");
  EXPECT_EQ(Keep(2, second, Message(2), {}, "b"), "");
  End(1, &first);
  EXPECT_EQ(memories_->ReleaseAll(/*owned=*/false).released, 1u);
  EXPECT_EQ(memories_->ReleaseAll(/*owned=*/true).released, 1u);
  EXPECT_TRUE(memories_->entries().empty());
}

TEST_F(KeptMemoriesTest, DescriptorsOnTheirWayStayOpenWhenTheMemoryIsReleased) {
  Bystander process;
  EXPECT_EQ(Keep(1, process, Message(7)), "");
  const auto taken = memories_->Take({SessionId(1), PeerOf(process), tenant_}, {.name = NameOf(7)});
  EXPECT_EQ(Release(1, process, {.name = NameOf(7)}).released, 1u);
  EXPECT_GE(::fcntl(taken->descriptors->memory.get(), F_GETFD), 0);
}

}  // namespace
}  // namespace kvtier
