# SPDX-License-Identifier: Apache-2.0
"""manifests.py SOURCE KVTIERD: the Kubernetes manifests name what there is, fit together, and hold a
configuration that the daemon accepts. Checked against the schemas where kubernetes-validate is
installed (PyPI). Exit code 77: skipped."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError:
    print("skipped: there is no PyYAML")
    sys.exit(77)

SOURCE = pathlib.Path(sys.argv[1])
KVTIERD = sys.argv[2]
DIRECTORY = SOURCE / "tools" / "packaging" / "kubernetes"
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def expect(held: bool, what: str) -> None:
    if not held:
        sys.exit(f"FAILED: {what}")


def documents(name: str) -> dict[str, dict]:
    return {one["kind"]: one for one in yaml.safe_load_all((DIRECTORY / name).read_text())}


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


def mounts(container: dict) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


def paths(pod: dict) -> dict[str, str]:
    return {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}


daemon = documents("kvtierd.yaml")
pod = daemon["DaemonSet"]["spec"]["template"]["spec"]
container = pod["containers"][0]
config = daemon["ConfigMap"]["data"]["kvtierd.toml"]

# The images are of this version.
version = (SOURCE / "VERSION").read_text().strip()
for one in [*pod["initContainers"], container]:
    expect(one["image"] == f"kvtier:{version}", f"the image {one['image']}")

# The configuration is what the daemon would read, at the path that it is told.
with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
    file.write(config)
    file.flush()
    checked = subprocess.run(
        [KVTIERD, "--check-config", "--config", file.name], capture_output=True, text=True
    )
expect(checked.returncode == 0, f"the configuration: {checked.stderr}")
expect(container["args"][1].startswith(mounts(container)["config"] + "/"), "the file's path")
for key in ("socket", "admin_socket"):
    path = re.search(rf'^{key} = "(.*)"', config, re.M)[1]
    expect(path.startswith(mounts(container)["run"] + "/"), f"server.{key} is not in the volume")

# The limit covers host memory, whose pages are the pod's.
host = size(re.search(r'\[host\]\nbytes = "(\w+)"', config)[1])
resources = container["resources"]
expect(size(resources["limits"]["memory"]) >= host + (2 << 30), "the memory limit")
expect(resources["requests"]["memory"] == resources["limits"]["memory"], "requests and limits differ")

# It is the user of the image, who owns what the init container made, on the same volumes.
user = container["securityContext"]["runAsUser"]
image = (SOURCE / "Dockerfile").read_text()
expect(f"USER {user}:{user}" in image and f"--uid {user}" in image, "the image has another user")
expect(not re.search(r"install[^&]*\bgit\b", image), "git, where the context has no commits")
expect("FROM compiler AS wheel" in image, "the image is made where all that tests use is installed")
expect(f"-o {user} -g {user}" in pod["initContainers"][0]["command"][2], "the directories' owner")
expect(mounts(pod["initContainers"][0]).items() <= mounts(container).items(), "the volumes")
for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
    expect(container[probe]["exec"]["command"][0] == "kvtierctl", f"{probe} runs another program")
    patience = int(container[probe]["exec"]["command"][2])
    expect(container[probe]["timeoutSeconds"] > patience, f"{probe} is cut before it can tell")
grace = pod["terminationGracePeriodSeconds"]
expect(grace > 65, "a drain takes 60 seconds and the last writes five")

# The engine finds the socket that the daemon makes, and its options are JSON.
engine_pod = documents("engine.yaml")["Deployment"]["spec"]["template"]["spec"]
engine = engine_pod["containers"][0]
expect(paths(engine_pod)["kvtier"] == paths(pod)["run"], "the engine's directory is another")
variables = {one["name"]: one["value"] for one in engine["env"]}
expect(variables["KVTIER_SOCKET"].startswith(mounts(engine)["kvtier"] + "/"), "KVTIER_SOCKET")
options = json.loads(engine["args"][engine["args"].index("--kv-transfer-config") + 1])
module = SOURCE / "client/python" / options["kv_connector_module_path"].replace(".", "/")
expect(options["kv_connector"] in (module / "__init__.py").read_text(), "the connector's name")

if validator := shutil.which("kubernetes-validate"):
    files = sorted(str(path) for path in DIRECTORY.glob("*.yaml"))
    subprocess.run([validator, "--strict", "--quiet", *files], check=True)
else:
    print("not checked against the schemas: kubernetes-validate is not installed")
print("ok")
