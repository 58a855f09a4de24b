// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/rados/rados_eraser.h"

#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace kvtier {
namespace {

constexpr size_t kPartObjects = 256;
// A cursor is a period and, below it, how many of the period's indexes have been emptied. Periods
// end and are deleted meanwhile, so that a place among all of them would not stay the same.
constexpr int kPlaceBits = 24;

struct Target {
  RadosPeriod period = 0;
  std::string model;
  uint64_t cursor = 0;
};

// The first index at the cursor or behind it.
std::optional<Target> FirstFrom(uint64_t cursor,
                                const std::map<std::string, std::set<RadosPeriod>>& periods) {
  std::map<RadosPeriod, std::vector<std::string>> models;  // by name, as the list is
  for (const auto& [model, of_model] : periods) {
    for (const RadosPeriod period : of_model) models[period].push_back(model);
  }
  for (const auto& [period, of_period] : models) {
    for (size_t place = 0; place < of_period.size(); ++place) {
      const uint64_t here = uint64_t{period} << kPlaceBits | place;
      if (here >= cursor) return Target{period, of_period[place], here};
    }
  }
  return std::nullopt;
}

}  // namespace

struct RadosEraser::Part {
  RadosModel model;
  RadosPeriod period = 0;
  uint64_t cursor = 0;
  std::vector<std::string> hashes;
  size_t pending = 0;
  int error = 0;
  Done done;
};

void RadosEraser::DeletePart(const std::string& tenant, uint64_t cursor, const Done& done) {
  catalog_.AllPeriods(tenant, [this, tenant, cursor, done](int error, const auto& periods) {
    if (error != 0) return done(error, 0);
    std::optional<Target> target = FirstFrom(cursor, periods);
    if (!target) return done(0, 0);
    const auto part = std::make_shared<Part>();
    part->model = {tenant, std::move(target->model)};
    part->period = target->period;
    part->cursor = target->cursor;
    part->done = done;
    EmptyIndex(part);
  });
}

void RadosEraser::EmptyIndex(const std::shared_ptr<Part>& part) {
  cluster_.ListKeys(RadosIndex(part->model, part->period), "", kPartObjects,
                    [this, part](int error, std::vector<std::string> hashes, bool) {
                      thread_.Post([this, part, error, hashes = std::move(hashes)]() mutable {
                        OnListed(part, error, std::move(hashes));
                      });
                    });
}

// An index that is not there yet, or no more, is as good as an empty one.
void RadosEraser::OnListed(const std::shared_ptr<Part>& part, int error,
                           std::vector<std::string> hashes) {
  if (error != 0 && error != -ENOENT) return part->done(error, 0);
  if (hashes.empty()) return part->done(0, part->cursor + 1);
  part->hashes = std::move(hashes);
  part->pending = part->hashes.size();
  for (const std::string& hash : part->hashes) {
    cluster_.Remove(RadosObject({part->model, hash}, part->period), [this, part](int failed) {
      thread_.Post([this, part, failed] {
        if (failed != 0 && failed != -ENOENT) part->error = failed;
        if (--part->pending == 0) OnRemoved(part);
      });
    });
  }
}

// Only now: what no index names would never be deleted.
void RadosEraser::OnRemoved(const std::shared_ptr<Part>& part) {
  if (part->error != 0) return part->done(part->error, 0);
  cluster_.RemoveKeys(RadosIndex(part->model, part->period), part->hashes,
                      [this, part](int failed) {
                        thread_.Post([part, failed] {
                          const bool gone = failed == 0 || failed == -ENOENT;
                          part->done(gone ? 0 : failed, part->cursor);
                        });
                      });
}

}  // namespace kvtier
