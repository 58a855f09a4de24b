// SPDX-License-Identifier: Apache-2.0
// The process that holds a daemon's descriptors while no daemon runs, and does nothing else.
//
// Memory that only a descriptor refers to stays as it is. The keeper maps nothing, opens no device
// and reads nothing of the memory that it holds. Every byte that it receives is taken for hostile
// although only the daemon's own user and root can connect.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/posix.h"
#include "daemon/keeper/keeper_protocol.h"

namespace kvtier {

// Closes descriptors beside the keeper's thread: who closes the last one of some memory gives it
// back within the call, which takes seconds for tens of GiB, and a daemon does not wait so long. A
// thread that starts with the first descriptor, so that a keeper may fork before. One thread calls.
class KeeperCloser {
 public:
  KeeperCloser() = default;
  // Closes all that it was given, as Finish does.
  ~KeeperCloser() { Finish(); }
  KeeperCloser(const KeeperCloser&) = delete;
  KeeperCloser& operator=(const KeeperCloser&) = delete;

  // Returns at once. Where no thread can be started it closes the descriptor itself.
  void Close(UniqueFd descriptor);
  // Returns when all is closed.
  void Finish();

 private:
  void Work();

  std::thread thread_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<UniqueFd> waiting_;
  bool ends_ = false;
};

// One thread, and one that only closes. It owns the socket's file, the lock beside it and the
// descriptors that it was given to keep.
//
// It ends when it is asked to, when no daemon has been connected for as long as the last one said,
// or when the socket's file is no longer its own: its directory was removed, or another file stands
// there, so that no daemon could find it.
class Keeper {
 public:
  explicit Keeper(std::string socket_path);
  // Closes its descriptors and removes its files.
  ~Keeper() { Close(); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  enum class Opened : uint8_t { kListening, kAnotherRuns, kFailed };
  // Takes the lock and listens. kFailed: errno says why.
  [[nodiscard]] Opened Open();
  // Serves until the keeper is to end. REQUIRES: open.
  void Run();

 private:
  struct Kept {
    std::array<char, kMaxKeptNameBytes + 1> name{};
    UniqueFd descriptor;
    bool claimed = false;  // taken or kept over the present daemon's connection
  };

  // Two keepers never listen on one path: the second finds the lock taken.
  [[nodiscard]] Opened Lock();
  [[nodiscard]] bool HasItsPlace() const;
  void Accept();
  // Reads one packet and answers it. `connection` is daemon_ or visitor_.
  void Serve(UniqueFd* connection);
  // Decides whether a visitor becomes the daemon. False: it was answered already.
  [[nodiscard]] bool Admit(const KeeperPacket& packet);
  void Answer(KeeperPacket packet, UniqueFd descriptor);
  [[nodiscard]] KeeperStatus Keep(const KeeperPacket& packet, UniqueFd* descriptor);
  // Removes the files before it answers, so that another keeper can start at once, and closes the
  // connection after the descriptors: its end tells that they are closed.
  void EndFor(UniqueFd* connection);
  void Close();
  // Null if nothing is kept under the name.
  [[nodiscard]] Kept* Find(std::string_view name);
  // Lets a dead daemon's connection go even if its end has not been read yet.
  [[nodiscard]] bool HasDaemon();
  void CloseDaemon();
  void RemoveFiles();

  const std::string path_;
  std::string lock_path_;
  UniqueFd lock_;
  UniqueFd listening_;
  uint64_t device_ = 0, inode_ = 0;  // of the socket's file
  UniqueFd daemon_;
  UniqueFd visitor_;  // connected, and has not sent its request yet
  int64_t keep_for_ms_;
  int64_t alone_since_ms_;  // meaningful while there is no daemon
  bool ended_ = false;
  std::array<Kept, kMaxKeptDescriptors> kept_;
  KeeperCloser closer_;
};

}  // namespace kvtier
