/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/c_header.h"

#include <string.h>

#include "kvtier/kvtier.h"
/* An engine that launches the kernels itself includes both. */
#include "kvtier/kernels.h"

int kvt_test_use_from_c(void) {
  kvt_connect_options options;
  kvt_model_record record;
  kvt_sequence_options sequence_options;
  kvt_acquire_request request = {0};
  kvt_acquire_reply reply = {0};
  kvt_connection* connection = NULL;

  kvt_connect_options_init(&options);
  kvt_model_record_init(&record);
  kvt_sequence_options_init(&sequence_options);
  request.size = sizeof(request);
  reply.size = sizeof(reply);
  if (options.size != sizeof(options) || record.groups[0].block_tokens != 16) return 1;
  if (sequence_options.leave_tokens != 1) return 2;
  if (kvt_connect("/nonexistent/kvtier.sock", &options, &connection) != KVT_UNAVAILABLE) return 3;
  if (connection != NULL) return 4;
  if (strcmp(kvt_status_name(kvt_last_error()->code), "unavailable") != 0) return 5;
  if (kvt_acquire(NULL, &request, &reply) != KVT_INVALID_ARGUMENT) return 6;
  return 0;
}
