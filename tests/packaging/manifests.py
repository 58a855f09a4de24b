# SPDX-License-Identifier: Apache-2.0
"""manifests.py SOURCE KVTIERD: the Kubernetes manifests name what there is, fit together, and hold a
configuration that the daemon accepts. Checked against the schemas where kubernetes-validate is
installed, and the Helm chart is rendered where helm-python-sdk is (both from PyPI), which
tools/test-chart.sh installs. Exit code 77: skipped, or not rendered."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

try:
    import yaml
except ImportError:
    print("skipped: there is no PyYAML")
    sys.exit(77)
try:
    import helm_python
except ImportError:
    helm_python = None

SOURCE = pathlib.Path(sys.argv[1])
KVTIERD = sys.argv[2]
DIRECTORY = SOURCE / "tools" / "packaging" / "kubernetes"
PAGE = "https://runbooks.example/kvtier"
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def expect(held: bool, what: str) -> None:
    if not held:
        sys.exit(f"FAILED: {what}")


def by_kind(text: str) -> dict[str, dict]:
    return {one["kind"]: one for one in yaml.safe_load_all(text) if one}


def documents(name: str) -> dict[str, dict]:
    return by_kind((DIRECTORY / name).read_text())


def expect_accepted(config: str) -> None:
    """The daemon would read it. A small machine has no room for the pools of a large one."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(config)
        file.flush()
        checked = subprocess.run(
            [KVTIERD, "--check-config", "--config", file.name, "--set", "pool.bytes=1GiB"],
            capture_output=True,
            text=True,
        )
    expect(checked.returncode == 0, f"the configuration: {checked.stderr}")


def expect_valid(*paths: pathlib.Path) -> None:
    if validator := shutil.which("kubernetes-validate"):
        subprocess.run([validator, "--strict", "--quiet", *map(str, paths)], check=True)
    else:
        print("not checked against the schemas: kubernetes-validate is not installed")


def rendered(values: dict, name: str = "kvtierd") -> dict[str, dict]:
    with helm_python.Chart.load(DIRECTORY / "chart") as chart:
        texts = chart.render(values, name=name, namespace="kvtier")
    # Notes are for people.
    return by_kind("\n---\n".join(text for path, text in texts.items() if path.endswith(".yaml")))


def expect_keys(schema: dict) -> None:
    """The schema of the chart's values knows the daemon's keys but the chart's own, and their units."""
    own = {("server", "socket"), ("server", "admin_socket"), ("disk", "directory"), ("metrics", "listen")}
    told = subprocess.run(
        [KVTIERD, "--print-config-reference"], capture_output=True, text=True, check=True
    ).stdout
    kinds = schema["definitions"]
    found, wanted = {}, {}
    for section, rows in re.findall(r"^## \[+(\w+)\]+\n(.*?)(?=^## |\Z)", told, re.M | re.S):
        for key, allowed in re.findall(r"^\| `(\w+)` \| `.*?` \| (.*?) \|", rows, re.M):
            if (section, key) not in own:
                kind = "sizes" if "a list of sizes" in allowed else allowed.split(" ")[1]
                wanted[section, key] = kind if kind in kinds else ""
    # The pod's grace is counted from it.
    wanted["drain", "deadline"] = "seconds"
    sections = schema["properties"]["config"]["properties"]
    for section, of in {**sections, "tenant": schema["properties"]["tenants"]["items"]}.items():
        for key in of["propertyNames"]["enum"]:
            units = [by for name, by in kinds["section"]["patternProperties"].items() if re.search(name, key)]
            by = of.get("properties", {}).get(key, *units or [{}])
            found[section, key] = by.get("$ref", "").rpartition("/")[2]
    expect(found == wanted, f"keys of the schema: {found.items() ^ wanted.items()}")
    for setting, kind, values in (
        ("host.bytes", "size", ("1.5GiB", "4GB", "512 MiB", ".5TB", "64Gi", "1073741824", "80%", "4gb")),
        ("pool.bytes", "share", ("80%", "12.5%", "80 %", "%")),
        ("retention.max_age", "duration", ("90s", "5min", "1 d", "1.5h", "5m", "10", "1000ms")),
    ):
        for value in values:
            command = [KVTIERD, "--check-config", "--set", f"{setting}={value}"]
            taken = subprocess.run(command, capture_output=True).returncode == 0
            told = f"the schema about {setting} = {value}, which the daemon takes: {taken}"
            expect((re.search(kinds[kind]["pattern"], value) is not None) == taken, told)


def is_refused(values: dict) -> bool:
    try:
        rendered(values)
    except Exception as error:  # of the binding's own kinds
        return "schema" in str(error)
    return False


def expect_rules(rule: dict) -> None:
    """They are the alert rules that are shipped and tested, as Prometheus reads them."""
    text = (SOURCE / "tools/monitoring/kvtier.rules.yml").read_text()
    # They link to a page that operators of a cluster can read.
    shipped = yaml.safe_load(text.replace("file:///usr/share/doc/kvtierd/METRICS.md", PAGE))
    expect(rule["spec"] == shipped, "the chart's alert rules are not tools/monitoring/kvtier.rules.yml")
    if promtool := shutil.which("promtool"):
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump(rule["spec"], file)
            subprocess.run([promtool, "check", "rules", file.name], check=True, capture_output=True)


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

# The configuration is the one that the daemon would read, at the path that it is told.
expect_accepted(config)
expect(container["args"][1].startswith(mounts(container)["config"] + "/"), "the file's path")
for key in ("socket", "admin_socket"):
    path = re.search(rf'^{key} = "(.*)"', config, re.M)[1]
    expect(path.startswith(mounts(container)["run"] + "/"), f"server.{key} is not in the volume")

# The limit covers host memory, whose pages are the pod's.
host = size(re.search(r'\[host\]\nbytes = "(\w+)"', config)[1])
resources = container["resources"]
expect(size(resources["limits"]["memory"]) >= host + (2 << 30), "the memory limit")
expect(resources["requests"]["memory"] == resources["limits"]["memory"], "requests and limits differ")

# It is the user of the image, who owns the init container's files, on the same volumes.
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

expect_valid(*sorted(DIRECTORY.glob("*.yaml")))

expect_keys(json.loads((DIRECTORY / "chart/values.schema.json").read_text()))

# The chart with its defaults is the manifest.
about = yaml.safe_load((DIRECTORY / "chart/Chart.yaml").read_text())
expect(about["version"] == about["appVersion"] == version, "the chart has another version")
if helm_python is None:
    print("skipped: the chart was not rendered, since helm-python-sdk is not installed")
    sys.exit(77)
report = helm_python.lint(DIRECTORY / "chart", strict=True)
expect(not report["errors"], f"the chart: {report}")
chart = rendered({})
expect(chart.keys() == {"ConfigMap", "DaemonSet"}, f"the chart's kinds: {chart.keys()}")
of_chart = chart["ConfigMap"]["data"]["kvtierd.toml"]
expect(tomllib.loads(of_chart) == tomllib.loads(config), f"the chart's configuration: {of_chart}")
template = chart["DaemonSet"]["spec"]["template"]
del template["metadata"]["annotations"]
for one in [*template["spec"]["initContainers"], *template["spec"]["containers"]]:
    expect(one.pop("imagePullPolicy") == "IfNotPresent", "the pull policy")
expect(chart["DaemonSet"] == daemon["DaemonSet"], "the chart's DaemonSet is another")

chart = rendered({
    "metrics": {
        "enabled": True,
        "serviceMonitor": {"enabled": True, "labels": {"release": "x"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "x"}, "runbookUrl": PAGE},
    },
    # Any key, also of sections that the chart has values of its own for.
    "config": {
        "pool": {"device": ["cuda:0", "cuda:1"], "bytes": "1GiB"},
        "disk": {"encryption": "aes-256-gcm", "write_budget_per_day": "2TiB"},
        "drain": {"deadline": "300s"},
        "log": {"level": "debug"},
        "retention": {"persist_after": "1s"},
    },
    "tenants": [{"name": "a", "uids": [0]}, {"name": "b", "uids": [1000660000], "gids": [5]}],
    "imagePullSecrets": [{"name": "secret"}], "runtimeClassName": "",
})
expect_accepted(chart["ConfigMap"]["data"]["kvtierd.toml"])
written = tomllib.loads(chart["ConfigMap"]["data"]["kvtierd.toml"])
expect(written["disk"]["encryption"] == "aes-256-gcm", "a key of a section of the chart's own")
expect(written["disk"]["bytes"] == "1TiB", "the defaults beside it")
expect(written["log"] == {"level": "debug", "format": "json"}, "the log's section")
pod = chart["DaemonSet"]["spec"]["template"]
expect(pod["spec"]["terminationGracePeriodSeconds"] == 330, "the grace follows from the drain")
ports = [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
service, monitor = chart["Service"], chart.pop("ServiceMonitor")
expect_rules(chart.pop("PrometheusRule"))
expect(service["spec"]["selector"].items() <= pod["metadata"]["labels"].items(), "the service's pods")
# The alert rules ask for this job.
job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
expect(f'up{{job="{job}"}}' in (SOURCE / "tools/monitoring/kvtier.rules.yml").read_text(), "the job")
expect([port["targetPort"] for port in service["spec"]["ports"]] == ports, "the service's port")
expect(monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items(),
       "the monitor")
expect("runtimeClassName" not in pod["spec"], "the runtime class")
with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
    yaml.safe_dump_all(chart.values(), file)
    expect_valid(pathlib.Path(file.name))

# Files and variables that keys need are the operator's.
volumes = [{"name": "secrets", "secret": {"secretName": "kvtier"}},
           *({"name": name, "hostPath": {"path": f"/mnt/{name}"}} for name in ("a", "b"))]
points = {"secrets": "/run/secrets/kvtier", "a": "/mnt/a", "b": "/mnt/b"}
chart = rendered({
    "extraVolumes": volumes,
    "extraVolumeMounts": [{"name": name, "mountPath": path} for name, path in points.items()],
    "envFrom": [{"secretRef": {"name": "aws"}}],
    "config": {
        "cold": {"endpoint": "resp://valkey:6379", "password_file": "/run/secrets/kvtier/password"},
        "disk": {"directories": ["/mnt/a", "/mnt/b"]},
        "pool": {"device": ["host"], "bytes": ["1GiB"]},
    },
    "cpu": 4,
})
expect_accepted(chart["ConfigMap"]["data"]["kvtierd.toml"])
pod = chart["DaemonSet"]["spec"]["template"]["spec"]
expect([one for one in pod["volumes"] if one in volumes] == volumes, "the volumes of the values")
expect(points.items() <= mounts(pod["containers"][0]).items(), "their mounts")
expect(pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "aws"}}], "the variables")
with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
    yaml.safe_dump_all(chart.values(), file)
    expect_valid(pathlib.Path(file.name))

# A value that nothing reads is a mistake, and so is a size in the wrong unit.
for wrong in (
    {"hosts": {"bytes": "1GiB"}},
    {"config": {"host": {"bytes": "64Gi"}}},
    {"config": {"host": {"byts": "1GiB"}}},
    {"config": {"hst": {"bytes": "1GiB"}}},
    {"config": {"retention": {"max_age": "5m"}}},
    {"tenants": [{"name": "a", "uid": [0]}]},
    {"config": {"server": {"socket": "/elsewhere"}}},
    {"config": {"drain": {"deadline": "5min"}}},
    {"memory": "68GiB"},
    {"extraVolumes": [{"name": "disk", "emptyDir": {}}]},
    {"extraVolumeMounts": [{"name": "secrets"}]},
):
    expect(is_refused(wrong), f"the schema takes {wrong}")
# Two releases in one namespace.
other = rendered({}, name="other")
expect(other["DaemonSet"]["metadata"]["name"] == "other-kvtierd", "the other release's name")
expect(other["DaemonSet"]["spec"]["selector"] != daemon["DaemonSet"]["spec"]["selector"], "its pods")
print("ok")
