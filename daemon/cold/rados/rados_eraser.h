// SPDX-License-Identifier: Apache-2.0
// Deletes a tenant's objects before their periods end, in parts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/cold/rados/rados_catalog.h"
#include "daemon/cold/rados/rados_cluster.h"
#include "daemon/cold/rados/rados_names.h"
#include "daemon/cold/rados/rados_thread.h"

namespace kvtier {

// The store's thread only, on which `done` is called; all pointers are borrowed. Indexes stay,
// empty, and so does the list of periods: other hosts believe that they are there, and write to
// them.
class RadosEraser {
 public:
  using Done = std::function<void(int error, uint64_t next)>;

  RadosEraser(RadosCluster* cluster, RadosCatalog* catalog, RadosThread* thread)
      : cluster_(*cluster), catalog_(*catalog), thread_(*thread) {}

  // Goes on at `cursor`, 0 at first, and says where the next part begins, or 0 when there is none.
  // Objects of one index beyond a part are the next part's.
  void DeletePart(const std::string& tenant, uint64_t cursor, const Done& done);

 private:
  struct Part;

  void EmptyIndex(const std::shared_ptr<Part>& part);
  void OnListed(const std::shared_ptr<Part>& part, int error, std::vector<std::string> hashes);
  void OnRemoved(const std::shared_ptr<Part>& part);

  RadosCluster& cluster_;
  RadosCatalog& catalog_;
  RadosThread& thread_;
};

}  // namespace kvtier
