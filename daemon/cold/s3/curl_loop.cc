// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/s3/curl_loop.h"

#include <curl/curl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace kvtier {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

}  // namespace

CurlLoop::CurlLoop(long most_idle)
    : multi_(::curl_multi_init()),
      poll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!is_good()) return;
  epoll_event event{.events = EPOLLIN, .data = {.fd = wake_}};
  (void)::epoll_ctl(poll_, EPOLL_CTL_ADD, wake_, &event);
  curl_multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, &CurlLoop::OnSocket);
  curl_multi_setopt(multi_, CURLMOPT_SOCKETDATA, this);
  curl_multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, &CurlLoop::OnTimer);
  curl_multi_setopt(multi_, CURLMOPT_TIMERDATA, this);
  curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, most_idle);
  curl_multi_setopt(multi_, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
}

CurlLoop::~CurlLoop() {
  if (multi_ != nullptr) ::curl_multi_cleanup(multi_);
  if (poll_ >= 0) ::close(poll_);
  if (wake_ >= 0) ::close(wake_);
}

// `known` is not null for a socket that is waited for already.
int CurlLoop::OnSocket(void* /*handle*/, int socket, int action, void* self, void* known) {
  auto* const loop = static_cast<CurlLoop*>(self);
  if (action == CURL_POLL_REMOVE) {
    (void)::epoll_ctl(loop->poll_, EPOLL_CTL_DEL, socket, nullptr);
    return 0;
  }
  epoll_event event{.events = 0, .data = {.fd = socket}};
  if ((action & CURL_POLL_IN) != 0) event.events |= EPOLLIN;
  if ((action & CURL_POLL_OUT) != 0) event.events |= EPOLLOUT;
  const int operation = known == nullptr ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  (void)::epoll_ctl(loop->poll_, operation, socket, &event);
  (void)::curl_multi_assign(loop->multi_, socket, loop);
  return 0;
}

int CurlLoop::OnTimer(void* /*multi*/, long ms, void* self) {
  auto* const loop = static_cast<CurlLoop*>(self);
  loop->timer_.reset();
  if (ms >= 0) loop->timer_ = steady_clock::now() + milliseconds(ms);
  return 0;
}

void CurlLoop::Add(void* handle) { (void)::curl_multi_add_handle(multi_, handle); }

void CurlLoop::Remove(void* handle) { (void)::curl_multi_remove_handle(multi_, handle); }

void CurlLoop::Wait(milliseconds most) {
  if (timer_) {
    // Rounded up, so that the timer has run out after it.
    const auto left = std::chrono::ceil<milliseconds>(*timer_ - steady_clock::now());
    most = std::clamp(left, milliseconds(0), most);
  }
  std::array<epoll_event, 64> events{};
  const int count = ::epoll_wait(poll_, events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(most.count()));
  int running = 0;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.fd == wake_) {
      uint64_t times = 0;
      (void)!::read(wake_, &times, sizeof(times));
      continue;
    }
    int happened = 0;
    if ((event.events & EPOLLIN) != 0) happened |= CURL_CSELECT_IN;
    if ((event.events & EPOLLOUT) != 0) happened |= CURL_CSELECT_OUT;
    if ((event.events & (EPOLLERR | EPOLLHUP)) != 0) happened |= CURL_CSELECT_ERR;
    (void)::curl_multi_socket_action(multi_, event.data.fd, happened, &running);
  }
  if (timer_ && *timer_ <= steady_clock::now()) {
    timer_.reset();
    (void)::curl_multi_socket_action(multi_, CURL_SOCKET_TIMEOUT, 0, &running);
  }
}

std::optional<CurlLoop::Ended> CurlLoop::TakeEnded() {
  int left = 0;
  while (const CURLMsg* const message = ::curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const Ended ended{.handle = message->easy_handle, .code = message->data.result};
    Remove(ended.handle);
    return ended;
  }
  return std::nullopt;
}

void CurlLoop::Wake() const {
  const uint64_t once = 1;
  (void)!::write(wake_, &once, sizeof(once));
}

}  // namespace kvtier
