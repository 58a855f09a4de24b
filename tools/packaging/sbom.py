# SPDX-License-Identifier: Apache-2.0
"""sbom.py WHEEL: what a wheel of kvtier is made of, as an SPDX 2.3 document on standard output.

Programs and libraries with their digests, and Debian's packages that are linked into them or carried
along, by the licences that build-wheel.sh put beside them; versions are those of this machine, on
which the wheel was built. The same wheel gives the same bytes."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile
from typing import Any

KVTIER = "SPDXRef-kvtier"


def identifier(name: str) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def package(name: str, reference: str, version: str, licence: str, purl: str) -> dict[str, Any]:
    return {
        "SPDXID": reference,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": licence,
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": purl,
            }
        ],
    }


def debian_version(name: str) -> str:
    command = ["dpkg-query", "--show", "--showformat", "${Version}\n", name]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return told.stdout.splitlines()[0] if told.returncode == 0 and told.stdout else "NOASSERTION"


def document(wheel: pathlib.Path) -> dict[str, Any]:
    version = wheel.name.split("-")[1]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    created = datetime.datetime.fromtimestamp(
        int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")), datetime.timezone.utc
    )
    main = package("kvtier", KVTIER, version, "Apache-2.0", f"pkg:pypi/kvtier@{version}")
    main["checksums"] = [{"algorithm": "SHA256", "checksumValue": digest}]
    main["packageFileName"] = wheel.name
    packages, files, relations = [main], [], [("SPDXRef-DOCUMENT", "DESCRIBES", KVTIER)]
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            path = name.partition("/purelib/")[2] or name
            if "/licenses/" in path and not path.endswith("/kvtier"):
                debian = path.rpartition("/")[2]
                known = debian_version(debian)
                packages.append(
                    package(debian, identifier(debian), known, "NOASSERTION",
                            f"pkg:deb/debian/{debian}@{known}")
                )
                relations.append((KVTIER, "CONTAINS", identifier(debian)))
            elif "/bin/" in path or ".so" in path:
                files.append(
                    {
                        "SPDXID": identifier(path),
                        "fileName": f"./{path}",
                        "checksums": [
                            {"algorithm": algorithm, "checksumValue":
                             hashlib.new(algorithm, archive.read(name)).hexdigest()}
                            for algorithm in ("SHA1", "SHA256")
                        ],
                        "licenseConcluded": "NOASSERTION",
                        "copyrightText": "NOASSERTION",
                    }
                )
                # SPDX lets a package name its files only if all of them are listed.
                relations.append(("SPDXRef-DOCUMENT", "DESCRIBES", identifier(path)))
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"kvtier-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/kvtier-{version}-{digest}",
        "creationInfo": {
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: kvtier-sbom"],
        },
        "packages": packages,
        "files": files,
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in relations
        ],
    }


if __name__ == "__main__":
    print(json.dumps(document(pathlib.Path(sys.argv[1])), indent=1))
