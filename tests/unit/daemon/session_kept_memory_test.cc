// SPDX-License-Identifier: Apache-2.0
// Kept memory over the socket: descriptors both ways, and what a client may do wrong with them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/daemon/bystander.h"
#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

constexpr uint64_t kBytes = 8192;
constexpr uint64_t kTableBytes = 128;

wire::KeptMemoryName Name() {
  wire::KeptMemoryName name;
  name.fill(7);
  return name;
}

UniqueFd MemoryFile(uint64_t bytes, const std::string& content) {
  UniqueFd fd(::memfd_create("kept", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::pwrite(fd.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  return fd;
}

std::string Beginning(const UniqueFd& fd, size_t bytes) {
  std::string content(bytes, '\0');
  EXPECT_EQ(::pread(fd.get(), content.data(), bytes, 0), static_cast<ssize_t>(bytes));
  return content;
}

class SessionKeptMemory : public testing::Test {
 protected:
  // A client of another process than this one.
  std::unique_ptr<WireClient> ClientOf(const Bystander& process) {
    daemon_.peers.pid = process.pid();
    auto client = std::make_unique<WireClient>(daemon_.socket());
    (void)client->Hello();
    daemon_.peers.pid = DisguisedPeers::kTrue;
    return client;
  }
  static wire::KeepMemory KeepMessage() {
    return {.name = Name(), .bytes = kBytes, .table_bytes = kTableBytes};
  }
  void Keep(WireClient* client) {
    client->SendWithDescriptors(KeepMessage(), {memory_.get(), table_.get()});
    (void)client->Expect<wire::KeepMemoryReply>();
  }
  static WireClient::Received Take(WireClient* client, bool table_only = false) {
    client->Send(wire::TakeMemory{Name(), table_only});
    auto received = client->Receive();
    EXPECT_TRUE(received && received->Is(wire::MessageType::kTakeMemoryReply));
    return received ? *std::move(received) : WireClient::Received{};
  }
  static wire::TakeMemoryReply ReplyOf(const WireClient::Received& received) {
    return wire::Decode<wire::TakeMemoryReply>(received.payload).value();
  }
  size_t Kept() {
    size_t kept = 0;
    daemon_.OnLoop([&] { kept = daemon_.kept_memories().entries().size(); });
    return kept;
  }

  ServerUnderTest daemon_;
  UniqueFd memory_ = MemoryFile(kBytes, "memory");
  UniqueFd table_ = MemoryFile(kTableBytes, "table");
  Bystander first_;
  Bystander second_;
};

TEST_F(SessionKeptMemory, TheNextProcessIsHandedBothDescriptors) {
  auto client = ClientOf(first_);
  Keep(client.get());
  auto next = ClientOf(second_);
  EXPECT_EQ(next->ErrorOf(wire::TakeMemory{Name(), false}), "memory_in_use");
  first_.Kill();
  client->Close();
  daemon_.WaitUntil([&] {
    const auto entries = daemon_.kept_memories().entries();
    return entries.size() == 1 && entries[0].waiting;
  });
  const WireClient::Received taken = Take(next.get());
  EXPECT_EQ(ReplyOf(taken).bytes, kBytes);
  EXPECT_EQ(ReplyOf(taken).table_bytes, kTableBytes);
  EXPECT_EQ(Beginning(taken.descriptor, 6), "memory");
  EXPECT_EQ(Beginning(taken.second, 5), "table");
  // Later messages have no descriptor of these.
  (void)next->Call<wire::Pong>(wire::Ping{});
}

TEST_F(SessionKeptMemory, AnyoneOfTheTenantMayReadTheTable) {
  auto owner = ClientOf(first_);
  Keep(owner.get());
  auto other = ClientOf(second_);
  const WireClient::Received taken = Take(other.get(), /*table_only=*/true);
  EXPECT_EQ(ReplyOf(taken).bytes, 0u);
  EXPECT_EQ(Beginning(taken.descriptor, 5), "table");
  EXPECT_FALSE(taken.second.valid());
  EXPECT_EQ(other->ErrorOf(wire::TakeMemory{Name(), false}), "memory_in_use");
}

TEST_F(SessionKeptMemory, NothingComesOfANameThatIsNotKept) {
  auto client = ClientOf(first_);
  const WireClient::Received taken = Take(client.get());
  EXPECT_FALSE(ReplyOf(taken).found);
  EXPECT_FALSE(taken.descriptor.valid());
}

TEST_F(SessionKeptMemory, FewerThanTwoDescriptorsAreRefusedAndNotLeftForTheNext) {
  auto client = ClientOf(first_);
  client->SendWithDescriptors(KeepMessage(), {table_.get()});
  EXPECT_EQ(client->ExpectError(1 + 1), "no_descriptor");
  EXPECT_EQ(client->ErrorOf(KeepMessage()), "no_descriptor");
  Keep(client.get());
  EXPECT_EQ(Beginning(Take(client.get()).descriptor, 6), "memory");
}

TEST_F(SessionKeptMemory, DescriptorsOfAMessageThatCannotBeReadAreNotTheNextOnes) {
  auto client = ClientOf(first_);
  wire::KeepMemory bad = KeepMessage();
  bad.bytes = 0;
  const UniqueFd other = MemoryFile(kBytes, "other!");
  const uint64_t request = client->SendWithDescriptors(bad, {other.get(), other.get()});
  EXPECT_EQ(client->ExpectError(request), "bad_memory_size");
  Keep(client.get());
  EXPECT_EQ(Beginning(Take(client.get()).descriptor, 6), "memory");
}

TEST_F(SessionKeptMemory, DescriptorsThatNoMessageTakesEndWithTheConnection) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  auto client = ClientOf(first_);
  for (int i = 0; i < 40; ++i) {
    client->SendWithDescriptors(wire::Ping{}, {writing.get(), writing.get()});
    (void)client->Expect<wire::Pong>();
  }
  client->Close();
  writing.Reset();
  char byte;
  EXPECT_EQ(::read(reading.get(), &byte, 1), 0) << "one is open somewhere";
}

TEST_F(SessionKeptMemory, AClientThatReconnectsKeepsItsMemory) {
  auto client = ClientOf(first_);
  Keep(client.get());
  client->Close();
  client = ClientOf(first_);
  Keep(client.get());
  EXPECT_EQ(Kept(), 1u);
  const auto released = client->Call<wire::ReleaseMemoryReply>(wire::ReleaseMemory{.name = Name()});
  EXPECT_EQ(released.released, 1u);
  EXPECT_EQ(released.released_bytes, kBytes);
  EXPECT_EQ(Kept(), 0u);
}

TEST_F(SessionKeptMemory, RefusalsAreCounted) {
  auto client = ClientOf(first_);
  client->SendWithDescriptors(KeepMessage(), {table_.get(), table_.get()});
  EXPECT_EQ(client->ExpectError(2), "bad_memory");
  EXPECT_EQ(daemon_.Refusals("bad_memory"), 1u);
}

}  // namespace
}  // namespace kvtier
