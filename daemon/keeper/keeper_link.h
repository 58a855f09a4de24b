// SPDX-License-Identifier: Apache-2.0
// A connection to a keeper, and how a keeper is found, started and asked to end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/posix.h"
#include "base/result.h"
#include "daemon/keeper/keeper_protocol.h"

namespace kvtier {

// It is there and did not answer in time, which may pass.
[[nodiscard]] bool IsKeeperSilent(const Error& error);

// Where the keeper is and how it is to be started.
struct KeeperPlace {
  // "keeper.sock" beside the daemon's socket, as an absolute path.
  [[nodiscard]] static KeeperPlace Beside(const std::string& socket, std::string program);

  std::string socket;
  std::string program;  // empty: looked for
};

// Requests are answered before they return, or fail after kKeeperPatienceMs. Bound to no thread;
// one thread may Send while another is in Await, and no other calls may overlap.
class KeeperLink {
 public:
  // To the keeper there, after starting one if none listens. A keeper of another version is
  // replaced, and its memory is given back. `keep_for_ms` is told to it. Errors: kNotFound
  // "no_keeper_program"; kAlreadyExists "keeper_busy" (another daemon is connected for two
  // seconds); kPermissionDenied "keeper_owner" (another user's process listens there); kUnavailable
  // "keeper_silent", "keeper_failed".
  [[nodiscard]] static Result<KeeperLink> Open(const KeeperPlace& place, int64_t keep_for_ms);
  // To a keeper of this version, if one listens; none is started. Errors: those of Open but the
  // first and the last.
  [[nodiscard]] static Result<std::optional<KeeperLink>> Find(const KeeperPlace& place,
                                                              int64_t keep_for_ms);
  // Asks the keeper there to end and waits until it has closed everything, for kKeeperPatienceMs.
  // False if none listens. Errors: those of Open but the first and the last.
  [[nodiscard]] static Result<bool> End(const KeeperPlace& place);

  // Errors: kResourceExhausted "keeper_full", kUnavailable "keeper_silent".
  [[nodiscard]] Status Keep(std::string_view name, int descriptor);
  // Nothing if it has nothing of that name. Errors: kUnavailable "keeper_silent", also below.
  [[nodiscard]] Result<std::optional<UniqueFd>> Take(std::string_view name);
  [[nodiscard]] Status Release(std::string_view name);
  [[nodiscard]] Status ReleaseUnclaimed();
  [[nodiscard]] Status End();

  // One request in two halves. Send never waits, and the keeper has every request that was sent,
  // even if this process ends now. Each is followed by its Await, in the order of sending. Errors
  // of Send: kUnavailable "keeper_silent" (it is gone, or takes nothing); of Await: those of the
  // request.
  [[nodiscard]] Status Send(KeeperRequest request, std::string_view name = {}, int descriptor = -1,
                            int64_t number = 0);
  [[nodiscard]] Status Await(KeeperRequest request, UniqueFd* received = nullptr);

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  [[nodiscard]] int32_t pid() const { return pid_; }
  // Whether the keeper was there before this process asked.
  [[nodiscard]] bool found() const { return found_; }

 private:
  explicit KeeperLink(UniqueFd socket) : socket_(std::move(socket)) {}
  // Nothing if nothing listens.
  [[nodiscard]] static Result<std::optional<KeeperLink>> Connect(const std::string& path);
  // Waits for the answer to the request sent.
  [[nodiscard]] Result<KeeperPacket> Answer(KeeperRequest request, UniqueFd* received);
  // False: the keeper is of another version.
  [[nodiscard]] Result<bool> Greet(int64_t keep_for_ms);

  UniqueFd socket_;
  int32_t pid_ = 0;
  bool found_ = false;
};

}  // namespace kvtier
