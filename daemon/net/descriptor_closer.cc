// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/descriptor_closer.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "daemon/net/linger_breaker.h"

namespace kvtier {
namespace {

// A descriptor travels with at least one byte, and nothing arrives any more after the shutdown.
bool HoldsNothing(int socket) {
  int bytes = 0;
  return ::shutdown(socket, SHUT_RDWR) == 0 && ::ioctl(socket, SIOCINQ, &bytes) == 0 && bytes == 0;
}

}  // namespace

// Without SO_LINGER the kernel sends unsent data after close() has returned. The peer that gave us
// the descriptor asked for the wait, and we owe it none. The call fails harmlessly for anything but
// a socket, and does nothing for a socket that is within another.
void DescriptorCloser::CloseLingering(UniqueFd descriptor) {
  const linger off{};
  (void)::setsockopt(descriptor.get(), SOL_SOCKET, SO_LINGER, &off, sizeof(off));
  const LingerBreaker breaker;
  descriptor.Reset();
}

// Shared, because a call must be copyable.
std::function<void()> DescriptorCloser::CallOf(const CloseCall& close, UniqueFd descriptor) {
  return [close, kept = std::make_shared<UniqueFd>(std::move(descriptor))] {
    close(std::move(*kept));
  };
}

void DescriptorCloser::Close(UniqueFd descriptor, const std::string& sender) {
  CloseFor(sender)(std::move(descriptor));
}

std::function<void(UniqueFd)> DescriptorCloser::CloseFor(const std::string& sender) const {
  return [close = close_, threads = threads_, sender](UniqueFd descriptor) {
    if (!descriptor.valid()) return;
    threads.Run({SenderThreads::Use::kClose, sender}, CallOf(close, std::move(descriptor)));
  };
}

void DescriptorCloser::CloseSocket(UniqueFd socket, const std::string& peer) {
  if (!socket.valid() || HoldsNothing(socket.get())) return;
  threads_.Run({SenderThreads::Use::kCloseSocket, peer}, CallOf(close_, std::move(socket)));
}

size_t DescriptorCloser::pending(const std::string& sender) const {
  return threads_.pending({SenderThreads::Use::kClose, sender});
}

}  // namespace kvtier
