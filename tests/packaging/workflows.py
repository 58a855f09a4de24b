# SPDX-License-Identifier: Apache-2.0
"""workflows.py SOURCE: GitHub's workflows name scripts and jobs that there are, and only the jobs that publish may
write. Where check-jsonschema is installed (PyPI), GitHub's schema is asked, too. Exit code 77: skipped."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

try:
    import yaml
except ImportError:
    print("skipped: there is no PyYAML")
    sys.exit(77)

SOURCE = pathlib.Path(sys.argv[1])
# The rights that each job has beyond reading the source.
RIGHTS = {
    ("release", "build"): {"id-token", "attestations"},
    ("release", "pypi"): {"id-token"},
    ("release", "image"): {"packages"},
    ("release", "github"): {"contents"},
}


def expect(held: bool, what: str) -> None:
    if not held:
        sys.exit(f"FAILED: {what}")


def writes(rights: dict[str, str]) -> set[str]:
    return {name for name, right in rights.items() if right == "write"}


def check_job(workflow: str, name: str, job: dict, jobs: dict) -> None:
    where = f"{workflow}.yml, {name}"
    expect(writes(job.get("permissions", {})) == RIGHTS.get((workflow, name), set()), f"{where}: permissions")
    needs = job.get("needs", [])
    for needed in [needs] if isinstance(needs, str) else needs:
        expect(needed in jobs, f"{where} needs a job {needed}, which is not there")
    for step in job["steps"]:
        expect(("run" in step) != ("uses" in step), f"{where}: a step neither runs nor uses something: {step}")
        expect("@" in step.get("uses", "@"), f"{where}: {step.get('uses')} has no version")
        for script in re.findall(r"(?:^|\s)(?:\./)?(tools/[\w./-]+\.sh)", step.get("run", "")):
            path = SOURCE / script
            expect(path.is_file() and os.access(path, os.X_OK), f"{where} runs {script}, which is no program")


paths = sorted((SOURCE / ".github/workflows").glob("*.yml"))
expect([path.stem for path in paths] == ["ci", "release"], f"there are {[path.name for path in paths]}")
for path in paths:
    document = yaml.safe_load(path.read_text())
    expect(writes(document["permissions"]) == set(), f"{path.name}: every job may write")
    for name, job in document["jobs"].items():
        check_job(path.stem, name, job, document["jobs"])
validator = shutil.which("check-jsonschema")
if validator:
    command = [validator, "--builtin-schema", "vendor.github-workflows", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"GitHub's schema: {done.stdout}{done.stderr}")
print(f"ok: {len(paths)} workflows{', by the schema, too' if validator else ''}")
