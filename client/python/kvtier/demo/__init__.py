# SPDX-License-Identifier: Apache-2.0
"""`python -m kvtier.demo`: one prompt, computed once, then served from each tier.

A small language model over bytes, with trained weights (MODEL.md), continues a text by greedy
decoding in numpy and keeps its KV in a pool of kvtierd. The program shows the time to the first
token when nothing is cached, and when the prompt's KV is in the pool, in host memory and on disk;
the text and the first token's logits must be the same each time. It uses the daemon that
`connect()` finds if that has its pool in host memory and may be administered. Otherwise it starts
one of its own in a temporary directory, and kills and restarts that one before the last run.
"""
