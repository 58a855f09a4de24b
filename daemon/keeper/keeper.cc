// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <system_error>
#include <utility>

namespace kvtier {
namespace {

// How often it is looked whether the socket's file is still there, which no event tells.
constexpr int64_t kLookMs = 1000;
// A daemon that starts a keeper connects at once; without one nothing is kept yet.
constexpr int64_t kFirstPatienceMs = 10'000;
constexpr int64_t kMaxKeepForMs = int64_t{366} * 24 * 3600 * 1000;
constexpr int kBacklog = 4;
// A lock's file that was removed between opening and locking it is locked in vain.
constexpr int kLockAttempts = 10;

// Time in which the machine sleeps does not count: no daemon could have come.
int64_t NowMs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

bool IsAtEnd(int socket) {
  pollfd looked{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&looked, 1, 0) == 1 && (looked.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

}  // namespace

void KeeperCloser::Close(UniqueFd descriptor) {
  if (!descriptor.valid()) return;
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Work(); });
    } catch (const std::system_error&) {
      return;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(descriptor));
  }
  changed_.notify_one();
}

void KeeperCloser::Finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
  ends_ = false;
}

void KeeperCloser::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::vector<UniqueFd> closed = std::exchange(waiting_, {});
    lock.unlock();
    closed.clear();
    lock.lock();
  }
}

Keeper::Keeper(std::string socket_path)
    : path_(std::move(socket_path)), keep_for_ms_(kFirstPatienceMs), alone_since_ms_(NowMs()) {
  lock_path_ = path_.substr(0, path_.rfind('/') + 1).append(kKeeperLockName);
}

Keeper::Opened Keeper::Lock() {
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    UniqueFd file(::open(lock_path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file.valid()) return Opened::kFailed;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      return errno == EWOULDBLOCK ? Opened::kAnotherRuns : Opened::kFailed;
    }
    struct stat locked {
    }, there{};
    if (::fstat(file.get(), &locked) == 0 && ::stat(lock_path_.c_str(), &there) == 0 &&
        locked.st_ino == there.st_ino && locked.st_dev == there.st_dev) {
      lock_ = std::move(file);
      return Opened::kListening;
    }
  }
  return Opened::kAnotherRuns;
}

Keeper::Opened Keeper::Open() {
  if (const Opened locked = Lock(); locked != Opened::kListening) return locked;
  // With the lock held, a socket that stands there is that of a keeper that was killed. Another
  // kind of file stays, and bind fails.
  struct stat there {};
  if (::lstat(path_.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) ::unlink(path_.c_str());
  listening_ = OpenKeeperSocket(path_, /*listening=*/true);
  if (!listening_.valid()) return Opened::kFailed;
  if (::lstat(path_.c_str(), &there) != 0 || ::listen(listening_.get(), kBacklog) != 0) {
    return Opened::kFailed;
  }
  device_ = there.st_dev;
  inode_ = there.st_ino;
  return Opened::kListening;
}

bool Keeper::HasItsPlace() const {
  struct stat there {};
  return ::lstat(path_.c_str(), &there) == 0 && there.st_dev == device_ && there.st_ino == inode_;
}

void Keeper::Run() {
  alone_since_ms_ = NowMs();
  while (!ended_) {
    const int64_t left_ms = HasDaemon() ? kLookMs : alone_since_ms_ + keep_for_ms_ - NowMs();
    if (left_ms <= 0 || !HasItsPlace()) return Close();
    // poll passes over descriptors that are -1.
    pollfd polled[] = {{.fd = daemon_.get(), .events = POLLIN, .revents = 0},
                       {.fd = visitor_.get(), .events = POLLIN, .revents = 0},
                       {.fd = listening_.get(), .events = POLLIN, .revents = 0}};
    const int ready = ::poll(polled, 3, static_cast<int>(std::min(left_ms, kLookMs)));
    if (ready < 0 && errno != EINTR) return Close();
    if (ready <= 0) continue;
    if (polled[0].revents != 0) Serve(&daemon_);
    if (polled[1].revents != 0 && !ended_) Serve(&visitor_);
    if (polled[2].revents != 0 && !ended_) Accept();
  }
}

void Keeper::Accept() {
  UniqueFd connection(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!connection.valid() || !IsTrustedPeer(connection.get())) return;
  // One visitor at a time is enough; a later one takes the place of one that is silent.
  visitor_ = std::move(connection);
}

// A daemon that has ended was still promised all that it sent before.
bool Keeper::HasDaemon() {
  while (daemon_.valid() && IsAtEnd(daemon_.get())) Serve(&daemon_);
  return daemon_.valid();
}

void Keeper::CloseDaemon() {
  daemon_.Reset();
  alone_since_ms_ = NowMs();
}

void Keeper::Serve(UniqueFd* connection) {
  KeeperPacket packet;
  UniqueFd descriptor;
  const Received received = ReceivePacket(connection->get(), &packet, &descriptor);
  if (received == Received::kNothing) return;
  if (received == Received::kClosed || received == Received::kBad) {
    if (received == Received::kBad) {
      (void)SendPacket(connection->get(), {.status = KeeperStatus::kBadRequest}, -1);
    }
    return connection == &daemon_ ? CloseDaemon() : connection->Reset();
  }
  const bool busy = connection == &visitor_ && HasDaemon();
  if (ended_) return;
  if (busy) {
    packet = {.request = packet.request, .status = KeeperStatus::kBusy};
    (void)SendPacket(visitor_.get(), packet, -1);
    return visitor_.Reset();
  }
  if (packet.request == KeeperRequest::kEnd) return EndFor(connection);
  if (received == Received::kForeign) {
    packet = {.request = packet.request, .status = KeeperStatus::kOtherVersion};
    (void)SendPacket(connection->get(), packet, -1);
    return;
  }
  if (connection == &visitor_ && !Admit(packet)) return;
  Answer(packet, std::move(descriptor));
}

bool Keeper::Admit(const KeeperPacket& packet) {
  if (packet.request != KeeperRequest::kHello) {
    (void)SendPacket(visitor_.get(), {.status = KeeperStatus::kBadRequest}, -1);
    visitor_.Reset();
    return false;
  }
  daemon_ = std::move(visitor_);
  for (Kept& kept : kept_) kept.claimed = false;
  return true;
}

Keeper::Kept* Keeper::Find(std::string_view name) {
  const auto kept = std::ranges::find_if(kept_, [&](const Kept& candidate) {
    return candidate.descriptor.valid() && name == candidate.name.data();
  });
  return kept == kept_.end() ? nullptr : &*kept;
}

KeeperStatus Keeper::Keep(const KeeperPacket& packet, UniqueFd* descriptor) {
  Kept* place = Find(packet.Name());
  if (place == nullptr) {
    const auto free = std::ranges::find_if(
        kept_, [](const Kept& candidate) { return !candidate.descriptor.valid(); });
    if (free == kept_.end()) return KeeperStatus::kFull;
    place = &*free;
    place->name = {};
    packet.Name().copy(place->name.data(), kMaxKeptNameBytes);
  }
  place->claimed = true;
  std::swap(place->descriptor, *descriptor);
  return KeeperStatus::kOk;
}

void Keeper::Answer(KeeperPacket packet, UniqueFd descriptor) {
  using enum KeeperRequest;
  const bool named =
      packet.request == kKeep || packet.request == kTake || packet.request == kRelease;
  Kept* const found = named ? Find(packet.Name()) : nullptr;
  int answered = -1;
  packet.status = found == nullptr ? KeeperStatus::kNotFound : KeeperStatus::kOk;
  if ((named && packet.Name().empty()) || descriptor.valid() != (packet.request == kKeep)) {
    packet.status = KeeperStatus::kBadRequest;
  } else if (packet.request == kHello) {
    keep_for_ms_ = std::clamp(packet.number, int64_t{0}, kMaxKeepForMs);
    packet.status = KeeperStatus::kOk;
    packet.number = ::getpid();
  } else if (packet.request == kKeep) {
    packet.status = Keep(packet, &descriptor);
  } else if (packet.request == kTake && found != nullptr) {
    found->claimed = true;
    answered = found->descriptor.get();
  } else if (packet.request == kRelease && found != nullptr) {
    descriptor = std::move(found->descriptor);
  } else if (packet.request == kReleaseUnclaimed) {
    for (Kept& kept : kept_) {
      if (!kept.claimed) closer_.Close(std::move(kept.descriptor));
    }
    packet.status = KeeperStatus::kOk;
  } else if (!named) {
    packet.status = KeeperStatus::kBadRequest;
  }
  const bool sent = SendPacket(daemon_.get(), packet, answered);
  // A daemon that does not read its answers has no use for a keeper. One that has ended may have
  // sent more before.
  const bool unread = !sent && errno != EPIPE && errno != ECONNRESET;
  if (unread || packet.status == KeeperStatus::kBadRequest) CloseDaemon();
  closer_.Close(std::move(descriptor));
}

void Keeper::EndFor(UniqueFd* connection) {
  RemoveFiles();
  (void)SendPacket(connection->get(), {.request = KeeperRequest::kEnd}, -1);
  const UniqueFd told_by_its_end = std::move(*connection);
  Close();
}

void Keeper::RemoveFiles() {
  if (listening_.valid() && HasItsPlace()) ::unlink(path_.c_str());
  listening_.Reset();
  if (lock_.valid()) ::unlink(lock_path_.c_str());
  lock_.Reset();
}

void Keeper::Close() {
  ended_ = true;
  RemoveFiles();
  for (Kept& kept : kept_) kept.descriptor.Reset();
  closer_.Finish();
  visitor_.Reset();
  daemon_.Reset();
}

}  // namespace kvtier
