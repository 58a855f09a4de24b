// SPDX-License-Identifier: Apache-2.0
/* Compiled as strict C11, to show that the public header is C. */
#ifndef TESTS_UNIT_CLIENT_C_HEADER_H_
#define TESTS_UNIT_CLIENT_C_HEADER_H_

#ifdef __cplusplus
extern "C" {
#endif

/* 0 if all went well. */
int kvt_test_use_from_c(void);

#ifdef __cplusplus
}
#endif

#endif /* TESTS_UNIT_CLIENT_C_HEADER_H_ */
