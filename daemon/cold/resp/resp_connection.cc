// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/resp/resp_connection.h"

#include <hiredis/hiredis.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/posix.h"
#include "daemon/cold/reason_line.h"

namespace kvtier {
namespace {

constexpr timeval kPatience = {.tv_sec = 1, .tv_usec = 0};
constexpr std::chrono::seconds kNamePatience{1};
// A peer that sends or takes a byte now and then would else hold up all calls behind one.
constexpr std::chrono::seconds kPatienceWithProgress{1};
constexpr std::string_view kClosing = "the store is being closed";

// One call of the system reads as much, beside a text.
constexpr size_t kChunkBytes = size_t{64} << 10;
// "$" and a length.
constexpr size_t kMostLineBytes = 24;

// A list that has more is refused as a whole.
constexpr size_t kMostTexts = size_t{64} << 10;

// hiredis makes an object of each reply; here the one that is expected is filled in, without
// memory of its own but for a list's texts.
RespConnection::Incoming* IncomingOf(const redisReadTask* task) {
  auto* const incoming = static_cast<RespConnection::Incoming*>(task->privdata);
  if (task->parent != nullptr) return nullptr;
  return incoming;
}

void TakeTextOfList(const redisReadTask* task, const char* text, size_t bytes) {
  RespReply& reply = static_cast<RespConnection::Incoming*>(task->privdata)->reply;
  if (reply.texts.size() == kMostTexts) {
    reply.kind = RespReply::Kind::kError;
    reply.error = "the server's list is too long";
  }
  if (reply.kind == RespReply::Kind::kList) reply.texts.emplace_back(text, bytes);
}

void* TakeText(const redisReadTask* task, char* text, size_t bytes) {
  if (task->parent != nullptr) TakeTextOfList(task, text, bytes);
  if (RespConnection::Incoming* const incoming = IncomingOf(task)) {
    const bool is_error = task->type == REDIS_REPLY_ERROR;
    incoming->reply.kind = is_error ? RespReply::Kind::kError : RespReply::Kind::kText;
    incoming->reply.bytes = std::min(bytes, incoming->into.size());
    if (is_error) incoming->reply.error = ReasonLine({text, bytes});
    if (!is_error && incoming->reply.bytes > 0) {
      std::memcpy(incoming->into.data(), text, incoming->reply.bytes);
    }
  }
  return task->privdata;
}

void* TakeInteger(const redisReadTask* task, long long value) {
  if (RespConnection::Incoming* const incoming = IncomingOf(task)) {
    incoming->reply.kind = RespReply::Kind::kInteger;
    incoming->reply.integer = value;
  }
  return task->privdata;
}

// The count is of another type from hiredis 1.0 on.
template <typename Count>
void* TakeArray(const redisReadTask* task, Count /*elements*/) {
  if (RespConnection::Incoming* const incoming = IncomingOf(task)) {
    incoming->reply.kind = RespReply::Kind::kList;
  }
  return task->privdata;
}

void* TakeNothing(const redisReadTask* task) { return task->privdata; }

redisReplyObjectFunctions MakeFunctions() {
  redisReplyObjectFunctions functions{};
  functions.createString = TakeText;
  functions.createArray = TakeArray;
  functions.createInteger = TakeInteger;
  functions.createNil = TakeNothing;
  functions.freeObject = [](void*) {};
  return functions;
}

}  // namespace

bool RespConnection::Fail(std::string_view why) {
  failure_ = ReasonLine(why.empty() ? "an error without a reason" : why);
  return false;
}

redisContext* RespConnection::Checked(redisContext* context) {
  const bool is_good =
      context != nullptr && context->err == 0 && redisSetTimeout(context, kPatience) == REDIS_OK;
  if (is_good) return context;
  (void)Fail(context == nullptr ? "out of memory" : context->errstr);
  if (context != nullptr) redisFree(context);
  return nullptr;
}

// hiredis would ask a name server itself, and could not be interrupted. Addresses are none of its
// names.
redisContext* RespConnection::OpenAddress() {
  const HostAddresses::Found found = addresses_.Find(kNamePatience);
  if (found.addresses.empty()) (void)Fail(found.error);
  for (const std::string& address : found.addresses) {
    if (Interrupted()) {
      (void)Fail(kClosing);
      break;
    }
    redisContext* const context =
        Checked(redisConnectWithTimeout(address.c_str(), endpoint_.port, kPatience));
    if (context != nullptr) return context;
  }
  return nullptr;
}

redisContext* RespConnection::OpenContext() {
  if (endpoint_.port != 0) return OpenAddress();
  return Checked(redisConnectUnixWithTimeout(endpoint_.host.c_str(), kPatience));
}

// Connecting may take its second, so the lock is not held meanwhile.
bool RespConnection::Connect() {
  static redisReplyObjectFunctions functions = MakeFunctions();
  redisContext* const context = OpenContext();
  if (context == nullptr) return false;
  context->reader->fn = &functions;
  context->reader->privdata = &incoming_;
  // Its buffer, which holds a whole text, is kept for the next one.
  context->reader->maxbuf = 0;
  chunk_.resize(kChunkBytes);
  chunk_begin_ = chunk_end_ = 0;
  {
    const std::lock_guard lock(mutex_);
    context_ = context;
    if (interrupted_) ::shutdown(context_->fd, SHUT_RDWR);
  }
  return Authenticate();
}

bool RespConnection::Authenticate() {
  if (endpoint_.password.empty()) return true;
  RespCommand command = {"AUTH"};
  if (!endpoint_.user.empty()) command.emplace_back(endpoint_.user);
  command.emplace_back(endpoint_.password);
  Append(command);
  RespReply reply;
  const Time now = std::chrono::steady_clock::now();
  if (!Flush(now) || !Receive({}, now, &reply)) return false;
  return reply.kind == RespReply::Kind::kText || Fail("AUTH was refused: " + reply.error);
}

void RespConnection::Append(const RespCommand& command) {
  std::vector<const char*> words;
  std::vector<size_t> lengths;
  for (const std::string_view word : command) {
    words.push_back(word.data());
    lengths.push_back(word.size());
  }
  // It fails for want of memory only; the connection has an error then, which Flush finds.
  (void)redisAppendCommandArgv(context_, static_cast<int>(words.size()), words.data(),
                               lengths.data());
}

bool RespConnection::Flush(Time deadline) {
  int all_written = 0;
  while (all_written == 0) {
    if (std::chrono::steady_clock::now() > deadline + kPatienceWithProgress) {
      return Fail("not sent whole in time");
    }
    if (redisBufferWrite(context_, &all_written) != REDIS_OK) return Fail(context_->errstr);
  }
  return true;
}

bool RespConnection::Send(const std::vector<RespCommand>& commands, Time deadline) {
  if (Interrupted()) return Fail(kClosing);
  if (context_ == nullptr && !Connect()) return false;
  for (const RespCommand& command : commands) Append(command);
  return Flush(std::max(deadline, std::chrono::steady_clock::now()));
}

// A text goes from the socket to where it is wanted; all else is short, and left to hiredis.
bool RespConnection::Receive(std::span<std::byte> into, Time deadline, RespReply* received) {
  if (context_ == nullptr) return Fail("nothing was sent");
  end_ = deadline + kPatienceWithProgress;
  redisReader* const reader = context_->reader;
  if (!into.empty() && reader->pos == reader->len) {
    if (!AwaitBytes()) return false;
    if (const std::optional<size_t> bytes = TextAhead(into.size())) {
      *received = {.kind = RespReply::Kind::kText, .integer = 0, .bytes = *bytes};
      return ReceiveText(into.first(*bytes));
    }
  }
  incoming_ = {.into = into, .reply = {}};
  void* ended = nullptr;
  while (ended == nullptr) {
    if (redisReaderGetReply(reader, &ended) != REDIS_OK) return Fail(reader->errstr);
    if (ended == nullptr && !FeedReader()) return false;
  }
  *received = incoming_.reply;
  return true;
}

bool RespConnection::Read(std::span<std::byte> first, size_t* received) {
  iovec parts[] = {{first.data(), first.size()}, {chunk_.data(), chunk_.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  ssize_t count = -1;
  if (std::chrono::steady_clock::now() > end_) return Fail("no whole answer in time");
  do {
    count = ::recvmsg(context_->fd, &message, 0);
  } while (count < 0 && errno == EINTR);
  if (count == 0) return Fail("the server has ended the connection");
  if (count < 0 && errno == EAGAIN) return Fail("no answer within a second");
  if (count < 0) return Fail(ErrnoName(errno));
  *received = std::min(static_cast<size_t>(count), first.size());
  chunk_begin_ = 0;
  chunk_end_ = static_cast<size_t>(count) - *received;
  return true;
}

bool RespConnection::AwaitBytes() {
  size_t none = 0;
  return chunk_begin_ < chunk_end_ || Read({}, &none);
}

// "$LENGTH\r\n". A line that has not come whole is hiredis's, which is rare.
std::optional<size_t> RespConnection::TextAhead(size_t most) {
  const std::string_view ahead(chunk_.data() + chunk_begin_, chunk_end_ - chunk_begin_);
  const size_t line_end = ahead.substr(0, kMostLineBytes).find("\r\n");
  if (!ahead.starts_with('$') || line_end == std::string_view::npos) return std::nullopt;
  size_t bytes = 0;
  const auto [end, error] = std::from_chars(ahead.data() + 1, ahead.data() + line_end, bytes);
  const bool whole = error == std::errc() && end == ahead.data() + line_end;
  if (!whole || bytes == 0 || bytes > most) return std::nullopt;
  chunk_begin_ += line_end + 2;
  return bytes;
}

bool RespConnection::ReceiveText(std::span<std::byte> text) {
  const size_t here = std::min(text.size(), chunk_end_ - chunk_begin_);
  std::memcpy(text.data(), chunk_.data() + chunk_begin_, here);
  chunk_begin_ += here;
  size_t received = 0;
  for (text = text.subspan(here); !text.empty(); text = text.subspan(received)) {
    if (!Read(text, &received)) return false;
  }
  for (const char expected : {'\r', '\n'}) {
    if (!AwaitBytes()) return false;
    if (chunk_[chunk_begin_++] != expected) return Fail("a text is longer than it says");
  }
  return true;
}

// A server that sends more than was asked for is not listened to any longer.
bool RespConnection::FeedReader() {
  redisReader* const reader = context_->reader;
  if (reader->len > incoming_.into.size() + 2 * kChunkBytes) return Fail("an answer is too long");
  if (!AwaitBytes()) return false;
  const size_t bytes = chunk_end_ - chunk_begin_;
  const char* const begin = chunk_.data() + std::exchange(chunk_begin_, chunk_end_);
  return redisReaderFeed(reader, begin, bytes) == REDIS_OK || Fail(reader->errstr);
}

void RespConnection::Interrupt() {
  addresses_.Interrupt();
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (context_ != nullptr) ::shutdown(context_->fd, SHUT_RDWR);
}

bool RespConnection::Interrupted() {
  const std::lock_guard lock(mutex_);
  return interrupted_;
}

void RespConnection::Drop() {
  const std::lock_guard lock(mutex_);
  if (context_ != nullptr) redisFree(context_);
  context_ = nullptr;
}

}  // namespace kvtier
