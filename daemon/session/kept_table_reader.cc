// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/kept_table_reader.h"

#include <unistd.h>

#include <cstring>

#include "protocol/kept_table_layout.h"

namespace kvtier {
namespace {

uint64_t NumberIn(int table, uint32_t group, const PublishedBlocks::Asked& asked) {
  wire::KeptTableRecord record;
  const uint64_t offset = sizeof(wire::KeptTableHeader) + asked.block.value * sizeof(record);
  if (::pread(table, &record, sizeof(record), static_cast<off_t>(offset)) != sizeof(record)) {
    return 0;
  }
  static_assert(sizeof(record.hash) == sizeof(asked.hash.bytes));
  const bool is_it =
      record.group == group &&
      std::memcmp(record.hash.data(), asked.hash.bytes.data(), sizeof(record.hash)) == 0;
  return is_it ? record.state : 0;
}

}  // namespace

// A record is read in no order: one that is being changed may look like neither of its states, and
// its number, which is never given twice, tells.
void KeptTableReader::Look(std::vector<Asked> blocks, Answer answer) const {
  threads_.Run(lane_, [table = table_, group = group_, mail = mail_, blocks = std::move(blocks),
                       answer = std::move(answer)] {
    std::vector<uint64_t> numbers;
    numbers.reserve(blocks.size());
    for (const Asked& asked : blocks) {
      numbers.push_back(NumberIn(table->fd.get(), group, asked));
    }
    mail.Post([numbers = std::move(numbers), answer] { answer(numbers); });
  });
}

}  // namespace kvtier
