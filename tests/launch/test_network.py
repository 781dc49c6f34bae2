"""Odd networks, each a network namespace of its own: the interfaces of this machine stay as they are."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tp_teach as tp

APART = ["unshare", "--map-root-user", "--net", "--uts"]
# One program for all: it changes its network between two launches.
PROGRAM = """
import psutil, subprocess
import torch, torch.distributed as dist
import tp_teach as tp

def reduce():
    number = torch.ones(2)
    dist.all_reduce(number)
    return number[0].item(), sorted({c.laddr.ip for c in psutil.Process().net_connections("inet")})

def show(*commands):
    for command in commands:
        subprocess.run(command, shell=True, check=True)
    try:
        print(*tp.launch(reduce, world_size=2, timeout=30).values)
    except RuntimeError as error:
        print(error)

show()
show("ip link set lo up", "ip address del 127.0.0.1/8 dev lo")
show("ip address add 127.0.0.1/8 dev lo", "ip address del ::1/128 dev lo", "hostname nowhere.invalid")
show(
    "ip link add vpn0 type dummy 2> /dev/null || ip tuntap add vpn0 mode tun",
    "ip address add 10.8.0.2/24 dev vpn0", "ip link set vpn0 up", "ip route add default dev vpn0",
)
"""


def apart() -> bool:
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False
    return subprocess.run([*APART, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0


@pytest.mark.skipif(not apart(), reason="needs `unshare` and `ip`, and leave to make a network namespace")
def test_no_network_only_ipv6_a_name_that_does_not_resolve_and_a_vpn(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(tp.__file__).parents[1])}
    command = [*APART, sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    none, ipv6, ipv4, vpn = done.stdout.splitlines()
    assert none.startswith("ranks talk through the loopback interface, which has no address here")
    assert ipv6 == "(2.0, ['::1']) (2.0, ['::1'])"
    assert ipv4 == vpn == "(2.0, ['127.0.0.1']) (2.0, ['127.0.0.1'])"
