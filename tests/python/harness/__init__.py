# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: a daemon of their own and a small model."""
