// SPDX-License-Identifier: Apache-2.0
// A reply that comes too late, while another thread of the application reads.
#include "client/core/late_replies.h"

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <thread>
#include <vector>

#include "client/core/daemon_session.h"
#include "protocol/frame.h"
#include "protocol/messages.h"
#include "protocol/socket_io.h"

namespace kvtier::client {
namespace {

constexpr PoolId kPool{3};

// The daemon's end of a session.
class Peer {
 public:
  explicit Peer(int socket) : socket_(socket) {}

  // The next frame's type and number; 0 if none comes.
  std::pair<uint16_t, uint64_t> Next() {
    while (true) {
      if (const auto frame = *decoder_.Next()) return {frame->type, frame->request_id};
      pollfd fd{socket_.get(), POLLIN, 0};
      if (::poll(&fd, 1, 60'000) != 1) return {};
      decoder_.Commit((*wire::Receive(socket_.get(), decoder_.Prepare(), nullptr)).value_or(0));
    }
  }
  void Grant(uint64_t request_id) {
    const BlockHandle block{BlockIndex{1}, 1};
    std::vector<std::byte> bytes;
    wire::Encode(wire::AcquireReply{.parts = {{.hits = {}, .new_blocks = {block}}}}, request_id,
                 &bytes);
    ASSERT_TRUE(wire::Send(socket_.get(), bytes));
  }
  // Whether the client has taken all from its socket.
  [[nodiscard]] bool IsRead() const {
    int unread = 0;
    return ::ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread == 0;
  }

 private:
  UniqueFd socket_;
  wire::FrameDecoder decoder_;
};

TEST(LateReplies, AGrantIsGivenBackThoughAnotherThreadTookItFromTheSocket) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  AsyncErrors errors;
  DaemonSession session(UniqueFd(ends[0]), 60'000, &errors);
  Channel& channel = session.channel();
  std::optional<Peer> peer(ends[1]);
  std::thread reader([&] { (void)channel.WaitUntil([] { return false; }, Deadline::max()); });
  const auto cancel = [&](uint64_t request_id) { session.CancelAcquire(request_id, {kPool}); };
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const wire::Acquire request{.parts = {{.pool = kPool, .new_blocks = 1}}};
    EXPECT_FALSE(channel.Call<wire::AcquireReply>(
        request, DeadlineIn(0), {.on_cancelled = cancel, .sent_later_behind = 0}));
    const auto [type, request_id] = peer->Next();
    EXPECT_EQ(type, static_cast<uint16_t>(wire::MessageType::kAcquire));
    {
      // Under the lock nothing is handled, but the thread that reads may have it all the same.
      const auto lock = channel.Lock();
      peer->Grant(request_id);
      for (int tries = 0; tries < 1000 && !peer->IsRead(); ++tries) std::this_thread::yield();
    }
    EXPECT_EQ(peer->Next().first, static_cast<uint16_t>(wire::MessageType::kRelease));
  }
  peer.reset();
  reader.join();
}

}  // namespace
}  // namespace kvtier::client
