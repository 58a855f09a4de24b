// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/harness/plain_client.h"

#include <gtest/gtest.h>

#include <utility>

namespace kvtier {

kvt::Connection ConnectTo(const std::string& socket) {
  kvt_connect_options options;
  kvt_connect_options_init(&options);
  options.request_timeout_ms = 60'000;
  auto connection = kvt::Connection::Connect(socket, &options);
  EXPECT_TRUE(connection) << connection.error().ToString();
  return *std::move(connection);
}

uint32_t RegisterTinyModel(kvt::Connection* connection) {
  kvt_model_record record;
  kvt_model_record_init(&record);
  record.name = "tiny";
  record.groups[0].layers = record.groups[0].kv_heads = 1;
  record.groups[0].k_head_dim = record.groups[0].v_head_dim = 64;
  const auto model = connection->RegisterModel(record);
  EXPECT_TRUE(model) << model.error().ToString();
  return model ? model->model : 0;
}

}  // namespace kvtier
