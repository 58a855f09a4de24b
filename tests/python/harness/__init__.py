# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the Python package: a daemon of their own and a small model."""
