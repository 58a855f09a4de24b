# SPDX-License-Identifier: Apache-2.0
"""The client processes of a campaign.

    load_client.py play SOCKET SEED PROMPTS_SEED     plays until its standard input ends, then prints
                                                     its findings as JSON
    load_client.py nursery SOCKET 0 PROMPTS_SEED     takes "start SEED" and "kill PID", line by line,
                                                     and answers each with a number
"""

import json
import os
import random
import select
import signal
import sys
import time

from blocks import Player, conversations, random_prefix
from world import die_with_parent

RETRY_S = 0.002
#: In how many of its requests a client lets time go by between a load and the look at its bytes.
LINGERS_IN = 1 / 32
LONGEST_LINGER_S = 0.05


def play(socket, seed, prompts, is_over):
    player = Player(socket, f"campaign {seed}")
    random_numbers = random.Random(seed)

    def linger():
        if random_numbers.random() < LINGERS_IN:
            time.sleep(random_numbers.uniform(0, LONGEST_LINGER_S))

    player.before_reading = linger
    while not is_over():
        # Without a daemon there is nothing to load.
        if player.play(random_prefix(prompts, random_numbers)) < 0:
            time.sleep(RETRY_S)
    player.finish()
    return player.report()


def input_has_ended():
    return bool(select.select([sys.stdin], [], [], 0)[0])


def start(socket, seed, prompts):
    child = os.fork()
    if child == 0:
        try:
            die_with_parent()
            play(socket, seed, prompts, lambda: False)
        finally:
            os._exit(1)
    return child


def nursery(socket, prompts):
    for line in sys.stdin:
        verb, number = line.split()
        if verb == "start":
            print(start(socket, int(number), prompts), flush=True)
        else:
            # It was not waited for yet, so that the number is still its own.
            os.kill(int(number), signal.SIGKILL)
            status = os.waitpid(int(number), 0)[1]
            print(os.waitstatus_to_exitcode(status), flush=True)


def main():
    kind, socket, seed, prompts_seed = sys.argv[1:]
    prompts = conversations(int(prompts_seed))
    if kind == "nursery":
        nursery(socket, prompts)
    else:
        print(json.dumps(play(socket, int(seed), prompts, input_has_ended)))


main()
