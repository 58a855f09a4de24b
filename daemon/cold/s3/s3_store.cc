// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/s3/s3_store.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace kvtier {
namespace {

constexpr size_t kFirstAsked = 4;

// Connections of each lane.
constexpr size_t kQuestionsAtOnce = 32;
constexpr size_t kReadsAtOnce = 32;
constexpr size_t kWritesAtOnce = 16;
// Names of a list, whose objects are deleted by one call.
constexpr const char* kListedAtOnce = "250";

std::chrono::steady_clock::time_point In(int64_t timeout_ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
}

// Nothing is deleted by the word of a server that lists other names than was asked for. Names
// without an order could be passed over, and a list that comes no further would be asked for for
// ever.
bool IsNextPart(const S3List& list, const std::string& prefix, const std::string& after) {
  const auto is_other = [&](const std::string& name) { return !name.starts_with(prefix); };
  if (std::ranges::any_of(list.names, is_other) || !std::ranges::is_sorted(list.names)) {
    return false;
  }
  return !list.has_more || (!list.names.empty() && list.names.back() > after);
}

// The store itself is well.
S3Outcome MayCome() { return {.status = KVT_COLD_BUSY, .text = std::string(UnsurePuts::kWhy)}; }

}  // namespace

S3Question::S3Question(size_t count, bool each)
    : each_(each), search_(count, each), allowed_(each ? count : kFirstAsked) {}

std::vector<size_t> S3Question::TakeNext() {
  const std::lock_guard lock(mutex_);
  std::vector<size_t> positions;
  for (; allowed_ > 0 && failure_.status == KVT_COLD_OK; --allowed_) {
    const std::optional<size_t> next = search_.TakeNext();
    if (!next) break;
    positions.push_back(*next);
  }
  return positions;
}

void S3Question::Answer(size_t position, const S3Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  auto reply = PrefixSearch::Reply::kUnknown;
  if (outcome.status == KVT_COLD_OK) reply = PrefixSearch::Reply::kThere;
  if (outcome.status == KVT_COLD_ABSENT) reply = PrefixSearch::Reply::kAbsent;
  const bool is_failure = reply == PrefixSearch::Reply::kUnknown && (each_ || position == 0);
  if (is_failure && !search_.has_ended()) failure_ = outcome;
  if (reply == PrefixSearch::Reply::kThere) allowed_ += 2;
  if (search_.Answer(position, reply)) allowed_ = search_.left();
}

bool S3Question::TakeEnd(S3Outcome* outcome) {
  const std::lock_guard lock(mutex_);
  const bool has_failed = failure_.status != KVT_COLD_OK;
  if ((!has_failed && !search_.has_ended()) || is_told_) return false;
  is_told_ = true;
  *outcome = failure_;
  if (!has_failed) outcome->text = search_.Told();
  return true;
}

struct S3Store::Asked {
  S3Question question;
  const std::vector<std::string> names;
  const Time deadline;
  const std::function<void(S3Outcome)> tell;

  Asked(std::vector<std::string> all, bool each, int64_t patience_ms,
        std::function<void(S3Outcome)> teller)
      : question(all.size(), each),
        names(std::move(all)),
        deadline(In(patience_ms)),
        tell(std::move(teller)) {}
};

S3Store::S3Store(S3Endpoint endpoint, std::string credentials_file, kvt_cold_done done,
                 void* context)
    : endpoint_(std::move(endpoint)),
      credentials_(std::move(credentials_file), endpoint_.uses_instance_role),
      done_(done),
      context_(context),
      questions_(&endpoint_, &credentials_, kQuestionsAtOnce),
      reads_(&endpoint_, &credentials_, kReadsAtOnce),
      writes_(&endpoint_, &credentials_, kWritesAtOnce) {}

bool S3Store::Stop() {
  questions_.Interrupt();
  reads_.Interrupt();
  writes_.Interrupt();
  return true;
}

S3Call S3Store::CallFor(S3Verb verb, const std::string& name, Time deadline) const {
  S3Call call;
  call.verb = verb;
  call.path = endpoint_.PathOf(name);
  call.deadline = deadline;
  return call;
}

std::function<void(S3Outcome)> S3Store::TellerOf(uint64_t number) const {
  return [done = done_, context = context_, number](const S3Outcome& outcome) {
    const bool has_text = !outcome.text.empty();
    done(context, number, outcome.status, has_text ? outcome.text.data() : nullptr,
         has_text ? outcome.text.size() : outcome.bytes, 0);
  };
}

// A prefix is told before the caller's time is over, so that its part that is known is of use.
void S3Store::Exists(uint64_t number, std::vector<std::string> names, bool each,
                     int64_t timeout_ms) {
  const int64_t patience_ms = each ? timeout_ms : timeout_ms - timeout_ms / 4;
  AskNext(std::make_shared<Asked>(std::move(names), each, patience_ms, TellerOf(number)));
}

void S3Store::AskNext(const std::shared_ptr<Asked>& asked) {
  for (const size_t position : asked->question.TakeNext()) {
    S3Call call = CallFor(S3Verb::kHead, asked->names[position], asked->deadline);
    call.tenant = TenantOf(asked->names[position]);
    call.ended = [this, asked, position](const S3Outcome& outcome) {
      asked->question.Answer(position, outcome);
      AskNext(asked);
    };
    questions_.Add(std::move(call));
  }
  S3Outcome outcome;
  if (asked->question.TakeEnd(&outcome)) asked->tell(std::move(outcome));
}

void S3Store::Get(uint64_t number, const std::string& name, void* into, uint64_t bytes,
                  int64_t timeout_ms) {
  S3Call call = CallFor(S3Verb::kGet, name, In(timeout_ms));
  call.tenant = TenantOf(name);
  call.into = {static_cast<std::byte*>(into), bytes + 1};
  call.ended = TellerOf(number);
  reads_.Add(std::move(call));
}

void S3Store::Put(uint64_t number, const std::string& name, const void* data, size_t bytes,
                  int64_t /*ttl_s*/, bool replaces, int64_t timeout_ms) {
  S3Call call = CallFor(S3Verb::kPut, name, In(timeout_ms));
  call.payload = {static_cast<const std::byte*>(data), bytes};
  call.if_absent = !replaces;
  call.ended = [this, name, tell = TellerOf(number)](S3Outcome outcome) {
    if (outcome.may_come) unsure_.Add(name);
    tell(std::move(outcome));
  };
  writes_.Add(std::move(call));
}

void S3Store::Remove(uint64_t number, const std::vector<std::string>& names, int64_t timeout_ms) {
  RemoveAll(names, timeout_ms, [this, names, tell = TellerOf(number)](S3Outcome removed) {
    const auto may_come = [this](const std::string& name) { return unsure_.MayCome(name); };
    const bool is_unsure = removed.status == KVT_COLD_OK && std::ranges::any_of(names, may_come);
    tell(is_unsure ? MayCome() : std::move(removed));
  });
}

void S3Store::RemoveAll(const std::vector<std::string>& names, int64_t timeout_ms,
                        const std::function<void(S3Outcome)>& tell) {
  struct Removal {
    std::mutex mutex;
    size_t left = 0;
    S3Outcome outcome;
    std::function<void(S3Outcome)> tell;
  };
  const auto removal = std::make_shared<Removal>();
  removal->left = names.size();
  removal->tell = tell;
  if (names.empty()) return tell({});
  for (const std::string& name : names) {
    S3Call call = CallFor(S3Verb::kDelete, name, In(timeout_ms));
    call.ended = [removal](S3Outcome ended) {
      const bool is_gone = ended.status == KVT_COLD_OK || ended.status == KVT_COLD_ABSENT;
      {
        const std::lock_guard lock(removal->mutex);
        if (!is_gone) removal->outcome = std::move(ended);
        if (--removal->left > 0) return;
      }
      removal->tell(removal->outcome);
    };
    writes_.Add(std::move(call));
  }
}

// The list is asked for when all writes have ended that were sent before, so that none puts back
// what an erasure removes. It goes on behind the last one's names, so that there is an end while
// other hosts write, and deletes all even if it cannot end well.
void S3Store::RemoveSome(uint64_t number, std::string prefix, uint64_t cursor, int64_t timeout_ms) {
  std::string after = places_.Find(cursor);
  S3Call call = CallFor(S3Verb::kGet, "", In(timeout_ms));
  call.query = std::string("encoding-type=url&list-type=2&max-keys=") + kListedAtOnce +
               "&prefix=" + S3Encoded(prefix, false);
  if (!after.empty()) call.query += "&start-after=" + S3Encoded(after, false);
  call.is_barrier = true;
  call.ended = [this, prefix = std::move(prefix), after = std::move(after), timeout_ms,
                tell = TellerOf(number)](S3Outcome outcome) {
    if (outcome.status != KVT_COLD_OK) return tell(std::move(outcome));
    const std::optional<S3List> list = ReadS3List(outcome.text);
    if (!list || !IsNextPart(*list, prefix, after)) {
      return tell({.status = KVT_COLD_REFUSED, .text = "the server's list is not to be read"});
    }
    std::string last = list->has_more ? list->names.back() : std::string();
    const bool may_come = unsure_.MayComeInErasure(prefix, after.empty());
    RemoveAll(list->names, timeout_ms, [=, this, last = std::move(last)](S3Outcome removed) {
      if (removed.status != KVT_COLD_OK) return tell(std::move(removed));
      if (may_come && last.empty()) return tell(MayCome());
      const uint64_t next = last.empty() ? 0 : places_.Add(last);
      removed.text.resize(sizeof(next));
      std::memcpy(removed.text.data(), &next, sizeof(next));
      tell(std::move(removed));
    });
  };
  writes_.Add(std::move(call));
}

}  // namespace kvtier
