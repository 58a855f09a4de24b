// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/rados/rados_store.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

namespace kvtier {
namespace {

constexpr std::chrono::seconds kConnectAgain(1);
// So many names of a question are looked for first: where a prefix is not in the store, which is
// the usual case, nothing is asked about the rest of it.
constexpr size_t kFirstNames = 32;
constexpr size_t kMostLocations = 65'536;

int StatusOf(int error) {
  switch (error) {
    case 0:
      return KVT_COLD_OK;
    case -ENOENT:
      return KVT_COLD_ABSENT;
    case -ETIMEDOUT:
    case -ECANCELED:
    case -ENOTCONN:
    case -ESHUTDOWN:
      return KVT_COLD_UNAVAILABLE;
    default:
      return KVT_COLD_REFUSED;
  }
}

}  // namespace

// Names of one model, of a prefix unless each is wanted for itself.
struct RadosStore::Question {
  uint64_t call = 0;
  bool each = false;
  RadosModel model;
  std::vector<std::string> hashes;
  size_t answered = 0;
  std::string answer;  // a byte for each name
};

// Object and place in the index travel at the same time: the index is asked for by every write, and
// one after the other would halve what goes to the store.
struct RadosStore::Write {
  uint64_t call = 0;
  RadosName name;
  RadosPeriod period = 0;
  int pending = 2;
  int index_error = 0;
  int object_error = 0;
};

struct RadosStore::Removal {
  uint64_t call = 0;
  size_t pending = 0;
  int error = 0;
};

RadosStore::RadosStore(RadosOptions options, kvt_cold_done done, void* context)
    : options_(std::move(options)), done_(done), context_(context) {
  thread_.Start([this] {
    if (Connected()) cleaner_->Tick(catalog_->Tenants());
  });
}

RadosStore::~RadosStore() {
  thread_.Stop();
  cluster_.reset();
}

bool RadosStore::Connected() {
  if (cluster_) return true;
  if (connect_at_ && SteadyClock::now() < *connect_at_) return false;
  cluster_ = RadosCluster::Connect(options_.endpoint, options_.user);
  connect_at_ = SteadyClock::now() + kConnectAgain;
  if (!cluster_) return false;
  catalog_ = std::make_unique<RadosCatalog>(cluster_.get(), &thread_);
  cleaner_ = std::make_unique<RadosCleaner>(cluster_.get(), &thread_, options_.hours);
  eraser_ = std::make_unique<RadosEraser>(cluster_.get(), catalog_.get(), &thread_);
  return true;
}

void RadosStore::Begin(uint64_t call, int64_t timeout_ms, std::function<void()> task) {
  const auto deadline = SteadyClock::now() + std::chrono::milliseconds(timeout_ms);
  thread_.Post([this, call, deadline, task = std::move(task)] {
    if (!Connected() || SteadyClock::now() >= deadline) return End(call, -ETIMEDOUT);
    task();
  });
}

void RadosStore::End(uint64_t call, int error, const void* data, size_t bytes) const {
  done_(context_, call, StatusOf(error), data, bytes);
}

void RadosStore::Exists(uint64_t call, std::vector<std::string> names, bool each,
                        int64_t timeout_ms) {
  Begin(call, timeout_ms, [this, call, names = std::move(names), each] {
    const auto question = std::make_shared<Question>();
    question->call = call;
    question->each = each;
    question->answer.resize(names.size());
    for (const std::string& name : names) {
      std::optional<RadosName> parsed = RadosName::Parse(name);
      if (!parsed) return Probe(call, name);
      if (question->hashes.empty()) question->model = parsed->model;
      // Names of another model count as absent, and so do those that follow them.
      if (parsed->model != question->model) break;
      question->hashes.push_back(std::move(parsed->hash));
    }
    question->hashes.empty() ? End(call, 0) : Ask(question);
  });
}

// A name that is none of a block only asks whether the cluster answers.
void RadosStore::Probe(uint64_t call, const std::string& name) {
  const auto byte = std::make_shared<char>();
  cluster_->Read({"", name}, byte.get(), 1, [this, call, byte](int error, size_t) {
    const bool answered = StatusOf(error) != KVT_COLD_UNAVAILABLE;
    End(call, answered ? 0 : error, "", answered ? 1 : 0);
  });
}

void RadosStore::Ask(const std::shared_ptr<Question>& question) {
  const size_t begin = question->answered;
  const bool some = begin == 0 && !question->each;
  const size_t end =
      some ? std::min(kFirstNames, question->hashes.size()) : question->hashes.size();
  const auto first = question->hashes.begin();
  catalog_->Locate(question->model,
                   std::vector<std::string>(first + static_cast<std::ptrdiff_t>(begin),
                                            first + static_cast<std::ptrdiff_t>(end)),
                   [this, question](int error, const std::vector<RadosPeriod>& periods) {
                     OnLocated(question, error, periods);
                   });
}

// In a prefix, what follows an object that is absent counts as absent.
void RadosStore::OnLocated(const std::shared_ptr<Question>& question, int error,
                           const std::vector<RadosPeriod>& periods) {
  if (error != 0) return End(question->call, error == -ENOENT ? -EIO : error);
  for (const RadosPeriod period : periods) {
    if (period == 0 && !question->each) break;
    const size_t position = question->answered++;
    if (period == 0) continue;
    NoteLocation({question->model, question->hashes[position]}, period);
    question->answer[position] = 1;
  }
  const bool all = question->answered == question->hashes.size();
  if (!all && question->answered == kFirstNames && periods.size() == kFirstNames) {
    return Ask(question);
  }
  End(question->call, 0, question->answer.data(), question->answer.size());
}

void RadosStore::Get(uint64_t call, std::string name, void* into, uint64_t bytes,
                     int64_t timeout_ms) {
  Begin(call, timeout_ms, [this, call, name = std::move(name), into, bytes] {
    const std::optional<RadosName> parsed = RadosName::Parse(name);
    if (!parsed) return End(call, -ENOENT);
    const RadosPeriod known = TakeLocation(*parsed);
    if (known != 0) return Read(call, *parsed, known, into, bytes);
    const auto located = [this, call, name = *parsed, into, bytes](
                             int error, const std::vector<RadosPeriod>& periods) {
      if (error == 0 && periods[0] == 0) error = -ENOENT;
      error == 0 ? Read(call, name, periods[0], into, bytes) : End(call, error);
    };
    catalog_->Locate(parsed->model, {parsed->hash}, located);
  });
}

void RadosStore::Read(uint64_t call, const RadosName& name, RadosPeriod period, void* into,
                      uint64_t bytes) {
  cluster_->Read(RadosObject(name, period), into, bytes + 1,
                 [this, call](int error, size_t size) { End(call, error, nullptr, size); });
}

void RadosStore::Put(uint64_t call, std::string name, const void* data, size_t bytes, int64_t ttl_s,
                     int64_t timeout_ms) {
  Begin(call, timeout_ms, [this, call, name = std::move(name), data, bytes, ttl_s] {
    const std::optional<RadosName> parsed = RadosName::Parse(name);
    if (!parsed) return End(call, -EINVAL);
    const auto write = std::make_shared<Write>();
    write->call = call;
    write->name = *parsed;
    write->period = RadosPeriodOf(std::time(nullptr) + ttl_s);
    catalog_->Add(write->name, write->period, [this, write](int error) {
      write->index_error = error;
      OnWritten(write);
    });
    cluster_->Write(RadosObject(write->name, write->period), data, bytes, [this, write](int error) {
      thread_.Post([this, write, error] {
        write->object_error = error;
        OnWritten(write);
      });
    });
  });
}

// Half of a write is taken back: what no index names would never be deleted. The object goes first,
// for the same reason.
void RadosStore::OnWritten(const std::shared_ptr<Write>& write) {
  if (--write->pending > 0) return;
  const int error = write->index_error != 0 ? write->index_error : write->object_error;
  if (error != 0) {
    const auto forget = [this, write](int failed) {
      if (failed != 0 && failed != -ENOENT) return;
      thread_.Post([this, write] {
        cluster_->RemoveKeys(RadosIndex(write->name.model, write->period), {write->name.hash},
                             [](int) {});
      });
    };
    cluster_->Remove(RadosObject(write->name, write->period), forget);
  }
  // Nothing of a write can be missing.
  End(write->call, error == -ENOENT ? -EIO : error);
}

void RadosStore::Remove(uint64_t call, std::vector<std::string> names, int64_t timeout_ms) {
  Begin(call, timeout_ms, [this, call, names = std::move(names)] {
    const auto removal = std::make_shared<Removal>();
    removal->call = call;
    std::vector<RadosName> parsed;
    for (const std::string& name : names) {
      const std::optional<RadosName> one = RadosName::Parse(name);
      if (one) parsed.push_back(*one);
    }
    removal->pending = parsed.size();
    if (parsed.empty()) return End(call, 0);
    for (const RadosName& name : parsed) RemoveOne(removal, name);
  });
}

// From every period, the object before its place in the index.
void RadosStore::RemoveOne(const std::shared_ptr<Removal>& removal, const RadosName& name) {
  (void)TakeLocation(name);
  const auto ended = [this, removal](int error) {
    if (error != 0 && error != -ENOENT) removal->error = error;
    if (--removal->pending == 0) End(removal->call, removal->error);
  };
  catalog_->Periods(
      name.model, [this, removal, name, ended](int error, const std::set<RadosPeriod>& periods) {
        removal->pending += periods.size();
        ended(error);
        for (const RadosPeriod period : periods) {
          const auto on_removed = [this, name, period, ended](int failed) {
            thread_.Post([this, name, period, ended, failed] {
              if (failed != 0 && failed != -ENOENT) return ended(failed);
              cluster_->RemoveKeys(
                  RadosIndex(name.model, period), {name.hash},
                  [this, ended](int result) { thread_.Post([ended, result] { ended(result); }); });
            });
          };
          cluster_->Remove(RadosObject(name, period), on_removed);
        }
      });
}

void RadosStore::RemoveSome(uint64_t call, std::string prefix, uint64_t cursor,
                            int64_t timeout_ms) {
  Begin(call, timeout_ms, [this, call, prefix = std::move(prefix), cursor] {
    const std::optional<std::string> tenant = RadosTenantOf(prefix);
    if (!tenant) return End(call, -EINVAL);
    locations_.clear();
    eraser_->DeletePart(*tenant, cursor, [this, call](int error, uint64_t next) {
      End(call, error, &next, error == 0 ? sizeof(next) : 0);
    });
  });
}

void RadosStore::NoteLocation(const RadosName& name, RadosPeriod period) {
  if (locations_.size() >= kMostLocations) locations_.clear();
  locations_[RadosObject(name, 0).name_space + name.model.model + name.hash] = period;
}

RadosPeriod RadosStore::TakeLocation(const RadosName& name) {
  const auto found =
      locations_.find(RadosObject(name, 0).name_space + name.model.model + name.hash);
  if (found == locations_.end()) return 0;
  const RadosPeriod period = found->second;
  locations_.erase(found);
  return period;
}

}  // namespace kvtier
