# SPDX-License-Identifier: Apache-2.0
"""setup.py SOURCE: tools/setup.sh, for the tests and for everything, on machines of Debian 12 that have packages
already. apt decides by the lists of this machine and only simulates: it would remove no package, and it would
install every package that kvtier cannot do without. Exit code 77: skipped."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(sys.argv[1])
# Each has the argument of setup.sh and the packages that are there already. CI itself is the bare machine that gets everything.
MACHINES = {
    "bare": ("--tests", ["apt"]),
    "scipy": ("--tests", ["apt", "python3-scipy", "libboost-dev"]),
    "desktop": ("--all", ["apt", "chromium", "gnuplot", "fish", "zsh", "libboost-all-dev"]),
}
# Stands before apt-get: simulates on the machine's packages, asks no server, and downloads empty files.
APT_GET = r"""#!/bin/bash
simulate=--simulate
case " $* " in
  *" --print-uris "*) simulate= ;;
  *" update "*) exit 0 ;;
  *" download "*)
    for name in "${@:4}"; do /usr/bin/apt-cache show "$name" >/dev/null && touch "$name.deb" || exit 1; done
    exit 0 ;;
esac
echo "apt-get $*" >>"$ASKED"
/usr/bin/apt-get -o Dir::State::status="$DPKG_ADMINDIR/status" -o Dir::Cache::pkgcache="$DPKG_ADMINDIR/cache.bin" \
  $simulate "$@" | tee -a "$ASKED"
exit "${PIPESTATUS[0]}"
"""
DPKG_DEB = '#!/bin/bash\nmkdir -p "$3/usr/include/boost"\n'


def expect(held: bool, what: str) -> None:
    if not held:
        sys.exit(f"FAILED: {what}")


def text_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def machine_with(packages: list[str], directory: pathlib.Path) -> None:
    """Makes dpkg's directory of a machine on which apt has installed these packages and no others."""
    (directory / "info").mkdir(parents=True)
    (directory / "updates").mkdir()
    status = directory / "status"
    status.touch()
    told = text_of("apt-get", "-o", f"Dir::State::status={status}", "--simulate",
                   "--no-install-recommends", "install", *packages)
    installed = re.findall(r"^Inst (\S+) \((\S+)", told, re.MULTILINE)
    expect(len(installed) >= len(packages), f"apt would not install {packages}")
    stanzas = text_of("apt-cache", "show", *(f"{name}={version}" for name, version in installed))
    # An archive says more of a package than dpkg accepts.
    stanzas = re.sub(r"^(Filename|Size|MD5sum|SHA256): .*\n", "", stanzas, flags=re.MULTILINE)
    status.write_text(re.sub(r"^(Package: .*)$", r"\1\nStatus: install ok installed", stanzas, flags=re.MULTILINE))
    environment = {**os.environ, "DPKG_ADMINDIR": str(directory)}
    subprocess.run(["dpkg-query", "--show", packages[-1]], env=environment, stdout=subprocess.DEVNULL, check=True)


def check(machine: str, level: str, admin: pathlib.Path, work: pathlib.Path) -> str:
    """Returns how many packages apt would install."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "tools").mkdir(parents=True)
    script = shutil.copy(SOURCE / "tools/setup.sh", work / "tools")
    for name, content in (("apt-get", APT_GET), ("dpkg-deb", DPKG_DEB)):
        (work / name).write_text(content)
        (work / name).chmod(0o755)
    asked = work / "asked"
    asked.touch()
    done = subprocess.run(
        [script, level], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{work}:{os.environ['PATH']}", "DPKG_ADMINDIR": str(admin), "ASKED": str(asked)})
    where = f"{level} on a machine with {' '.join(MACHINES[machine][1])}"
    expect(done.returncode == 0, f"{where}: {done.stdout}{done.stderr}")
    last = asked.read_text().rpartition("\napt-get ")[2]
    expect("--yes --no-remove" in last, f"{where} installs without --no-remove: {last[:200]}")
    expect(re.search(r"^Remv ", last, re.MULTILINE) is None, f"{where}: apt would remove packages: {last}")
    beside = (work / "build/boost/usr/include/boost").is_dir()
    expect(beside == (machine != "bare"), f"{where}: Boost {'was' if beside else 'was not'} unpacked")
    would = set(re.findall(r"^Inst (\S+)", last, re.MULTILINE))
    for needed in ("librocksdb-dev", "libspdlog-dev", "liburing-dev", "ninja-build"):
        expect(needed in would, f"{where} does not install {needed}")
    expect("python3-matplotlib" not in would, f"{where} installs matplotlib")
    for package in ("redis-server", "prometheus", "chromium-headless-shell"):
        expect((package in would) == (level == "--all"), f"{where}: {package}")
    left = re.search(r"left out, .*: (.*)", done.stdout)
    expect(left is None, f"{where} goes without {left and left[1]}")
    return str(len(would))


if os.geteuid() != 0:
    print("skipped: only root sets a machine up")
    sys.exit(77)
release = pathlib.Path("/etc/os-release")
if not release.is_file() or "VERSION_CODENAME=bookworm" not in release.read_text():
    print("skipped: this is not Debian 12")
    sys.exit(77)
policy = subprocess.run(["apt-cache", "policy", "librocksdb-dev"], capture_output=True, text=True, check=False)
if not re.search(r"Candidate: \d", policy.stdout):
    print("skipped: apt has no lists of packages")
    sys.exit(77)
with tempfile.TemporaryDirectory() as scratch:
    for machine, (level, packages) in MACHINES.items():
        admin = pathlib.Path(scratch) / machine
        machine_with(packages, admin)
        count = check(machine, level, admin, pathlib.Path(scratch) / "work")
        print(f"{machine} {level}: packages {count}", flush=True)
print("ok")
